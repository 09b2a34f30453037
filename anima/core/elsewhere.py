"""Programs on devices that are no CPUs: which device that is, and arrays on the way there and in its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima.core.array import PlacedArray
from anima.core.avals import ShapedArray
from anima.core.device import machines
from anima.core.remote import Remote, RemoteMachine
from anima.core.shardings import Sharding, SingleDeviceSharding
from anima.core.trace import numpy_value


def machine_of(shardings: Sequence[Sharding | None]) -> RemoteMachine | None:
    """What runs a program whose results are there, if that is no CPU."""
    for sharding in shardings:
        if isinstance(sharding, SingleDeviceSharding):
            return machines.get(sharding.device)
    return None


def memory_on(machine: RemoteMachine, x: Any, aval: ShapedArray) -> Remote:
    """The memory of an argument on a device, where it is brought if it is not there."""
    if type(x) is PlacedArray:
        if machine_of([x.sharding]) is not machine:
            return machine.put(x.elements())
        return x.brought() or machine.put(x.elements())  # the second raises: it is deleted
    return machine.put(numpy_value(x, aval))


def run(machine: RemoteMachine, program: Callable[[Sequence[Remote]], list[Remote]], leaves: Sequence[Any],
        avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], shardings: Sequence[Sharding | None],
        committed: bool) -> list[PlacedArray]:
    """The results of a program on a device."""
    given = [memory_on(machine, x, a) for x, a in zip(leaves, avals, strict=True)]
    return [PlacedArray.over(memory, aval, sharding, committed)  # type: ignore[arg-type]
            for memory, aval, sharding in zip(program(given), out_avals, shardings, strict=True)]
