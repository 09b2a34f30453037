"""Calls on devices that are no CPUs: jitted functions, and single operations, each of which is a program there.

    gpus()                                   asks for them: until then nothing of this is loaded
    f = jit(lambda x: x + 1)
    f(device_put(x, gpus()[0]))              runs there, and stays there
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.config import config, default_device
from anima.core.array import PlacedArray
from anima.core.device import Device, accelerators, machines
from anima.core.elsewhere import machine_of
from anima.core.primitive import Primitive
from anima.core.remote import RemoteMachine
from anima.core.shardings import device_of
from anima.core.trace import EvalTrace, Tracer
from anima.util import cleared, exactly, lazy_module, once

cuda = lazy_module("anima.runtime.cuda")
jit = lazy_module("anima.api.jit")
_MOST_KNOWN = 4096
_operations: dict[Any, Any] = {}
cleared(_operations.clear)


@once
def gpus() -> list[Device]:
    """The GPUs. RuntimeError that names what is missing, where there is none."""
    machine = cuda.gpu()
    machine.live = _there
    enter_device(Device(0, "gpu"), machine)
    return [d for d in accelerators() if d.platform == "gpu"]


def enter_device(device: Device, machine: RemoteMachine) -> None:
    """Makes a device known, and what runs programs on it."""
    machines[device] = machine
    EvalTrace.on_remote = staticmethod(_apply)


def _there() -> list[PlacedArray]:
    return [x for x in gc.get_referrers(PlacedArray) if type(x) is PlacedArray and hasattr(x, "_value") and x.remote]


def _apply(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """An operation outside of `jit`, if it is to be done on such a device; else NotImplemented."""
    if (primitive.pins(params) or primitive.effects_of(params) or primitive.axis_names is not None
            or any(isinstance(x, Tracer) for x in args)):  # of a trace that is over
        return NotImplemented
    placed = [x for x in args if type(x) is PlacedArray and x.committed]
    if placed:
        if not any(machine_of([x.sharding]) for x in placed):
            return NotImplemented
    elif default_device.value is None or device_of() not in machines:
        return NotImplemented
    key = (primitive, *exactly(params))
    try:
        known = _operations.get(key)
    except TypeError:  # a parameter that has no hash
        key = known = None
    if known is None:
        def operation(*xs: Any) -> Any:
            return primitive.bind(*xs, **params)

        operation.__name__ = primitive.name
        known = jit.JitFunction(operation, counts_keys=False)
        if key is not None:
            if len(_operations) >= _MOST_KNOWN:
                _operations.clear()
            _operations[key] = known
    with config.option("disable_jit")(False):  # it is about functions; that is how an operation runs there
        out = known(*[np.asarray(x) if isinstance(x, np.generic) else x for x in args])
    return list(out) if primitive.multiple_results else out
