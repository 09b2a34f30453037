"""Transfer guards: what happens where values go from the host to a device, or from one device to another.

    with anima.transfer_guard("disallow"):
        x + device_put(1.0)      # explicit
        x + 1.0                  # AnimaRuntimeError: Disallowed host-to-device transfer

Every device is the CPU, which reads NumPy's arrays and Python's numbers where they are: what is guarded is that a
program hands them to an operation, where an accelerator would wait for them. So what the user handed over is looked
for: constants of Anima's own are no transfers, nor are those of a function that is being traced.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FrameType
from typing import Any

import numpy as np

from anima import errors
from anima.config import Option, transfer_guard_device_to_device, transfer_guard_host_to_device
from anima.core.array import Array, ConcreteArray
from anima.core.device import Device
from anima.core.shardings import SingleDeviceSharding
from anima.core.state import is_tracing
from anima.util import logger

_HOST = (np.ndarray, np.generic, bool, int, float, complex)
_FIX = "Fix: anima.device_put it, which is an explicit transfer, or do this `with anima.transfer_guard('allow'):`."


def implicit(value: Any) -> None:
    """Applies the guard to a value that an operation is about to take: AnimaRuntimeError or a line of the log if the
    user handed it over as NumPy's or Python's."""
    level = transfer_guard_host_to_device.value
    if level not in (None, "allow") and not isinstance(value, Array) and not is_tracing() and _is_handed(value):
        _apply(level, "host-to-device", value)


def operands(values: Sequence[Any]) -> None:
    """`implicit` of each, for calls: quick where nothing is guarded."""
    if transfer_guard_host_to_device.value is not None:
        for x in values:
            implicit(x)


def explicit(value: Any, place: Any) -> None:
    """Applies the guards to a value that `device_put` puts on a device, or under a sharding."""
    if is_tracing():
        return
    if isinstance(place, Device):
        place = SingleDeviceSharding(place)
    if not isinstance(value, Array):
        _apply_explicit(transfer_guard_host_to_device, "host-to-device", value)
    elif place is not None and isinstance(value, ConcreteArray) and \
            not value.sharding.is_equivalent_to(place, value.ndim):
        _apply_explicit(transfer_guard_device_to_device, "device-to-device", value)


def between(values: Sequence[Any], shardings: Sequence[Any]) -> None:
    """Applies the guard to arrays that an operation takes from other devices than those of its results."""
    level = transfer_guard_device_to_device.value
    if level in (None, "allow"):
        return
    there = next((s.device_set for s in shardings if s is not None), None)
    for x in values:
        if there is not None and isinstance(x, ConcreteArray) and x.sharding.device_set != there:
            _apply(level, "device-to-device", x)


def _apply(level: str, direction: str, value: Any) -> None:
    text = f"{direction} transfer: {_described(value)}"
    if level.startswith("disallow"):
        raise errors.AnimaRuntimeError(f"Disallowed {text}\n  {errors.user_line()}\n  {_FIX}")
    logger().warning("%s, %s", text, errors.user_line())


def _apply_explicit(option: Option, direction: str, value: Any) -> None:
    level = option.value
    if level in ("log_explicit", "disallow_explicit"):
        _apply(level, direction, value)


def _described(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if isinstance(value, ConcreteArray):
        return f"{value.aval.str_short()} of {value.sharding}"
    if not isinstance(value, (np.ndarray, np.generic)):
        return f"a Python {kind}"
    return f"a {kind} of dtype {value.dtype} and shape {value.shape}"


def _is_handed(value: Any) -> bool:
    """Whether the call of the user's that is in progress was handed this, or what it was converted from."""
    return any(value is x or _is_from(value, x) for x in _handed(errors.public_frame()))


def _is_from(value: Any, given: Any) -> bool:
    if not isinstance(given, _HOST) or not isinstance(value, _HOST) or np.shape(given) != np.shape(value):
        return False
    return np.ndim(value) > 0 or bool(value == given)


def _handed(frame: FrameType) -> Iterator[Any]:
    """The arguments of a frame's function, with what lists, tuples and dictionaries among them hold."""
    code, values = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS) + bool(
        code.co_flags & CO_VARKEYWORDS)
    waiting = [values[name] for name in code.co_varnames[:count] if name in values]
    while waiting:
        x = waiting.pop()
        yield x
        if isinstance(x, (list, tuple)):
            waiting += x
        elif isinstance(x, dict):
            waiting += x.values()
