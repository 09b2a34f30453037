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
from anima.core import dlpack, dtypes
from anima.core.array import PlacedArray
from anima.core.avals import ShapedArray
from anima.core.device import Device, accelerators, machines
from anima.core.elsewhere import machine_of
from anima.core.primitive import Primitive
from anima.core.remote import RemoteMachine
from anima.core.shardings import SingleDeviceSharding, device_of
from anima.core.trace import EvalTrace, Tracer
from anima.ops.elementwise import convert
from anima.ops.shape import transpose
from anima.util import cleared, exactly, lazy_module, once, replace

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


def borrowed(x: Any, copy: bool | None = None) -> Any:
    """An array over the memory of another library's on a GPU, for which `dlpack.is_on_gpu` holds; a copy on the GPU
    where `copy` is True, or where the memory does not lie as programs need it. BufferError where `copy` is False then.
    """
    there = gpus()
    lent = dlpack.borrowed(x)
    device = next((d for d in there if d.id == lent.device), None)
    if device is None:
        lent.give_back()
        raise BufferError(f"from_dlpack: the array is in the memory of GPU {lent.device}; programs run on {there}.")
    ndim = len(lent.shape)
    strides = lent.strides or tuple(np.cumprod((1, *lent.shape[:0:-1]))[::-1])
    order = sorted(range(ndim), key=lambda k: (-strides[k], lent.shape[k] == 1))
    step = 1
    for k in reversed(order):  # so it is row-major, but for what does not matter
        if lent.shape[k] > 1 and strides[k] != step and 0 not in lent.shape:
            lent.give_back()
            raise BufferError(f"from_dlpack: an array on a GPU with strides {strides} for the shape {lent.shape} has "
                              "gaps. Fix: make it contiguous first.")
        step *= lent.shape[k]
    known = machines[device]
    memory = known.borrow(replace(lent, shape=tuple(lent.shape[k] for k in order)))
    aval = ShapedArray(tuple(lent.shape[k] for k in order), lent.dtype)
    dtype = dtypes.canonicalize_dtype(lent.dtype)
    turned = [k for k in order if lent.shape[k] > 1] != [k for k in range(ndim) if lent.shape[k] > 1]
    if copy is False and (turned or dtype != lent.dtype or (lent.address and memory.address != lent.address)):
        raise BufferError(f"from_dlpack: cannot avoid a copy of an array at {lent.address:#x} with strides {strides} "
                          f"and dtype {lent.dtype}.")
    if copy and memory.address == lent.address:
        memory = memory.copy()
    array = PlacedArray.over(memory, aval, SingleDeviceSharding(device), True)
    array = convert(array, dtype, False) if dtype != lent.dtype else array
    return transpose(array, tuple(map(order.index, range(ndim))))


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
