"""What processes that compute together agree on: there is one process, which agrees with itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from anima import tree
from anima.api.devices import local_devices
from anima.ops.broadcast import as_array


class ProcessFailureError(RuntimeError):
    """Processes of some devices failed."""

    def __init__(self, failed_devices: Sequence[Any]) -> None:
        super().__init__(f"The processes of these devices failed: {failed_devices}")
        self.failed_devices = failed_devices


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Nothing, as a tree that this process alone has is the same in all; TypeError for leaves that are no arrays."""
    tree.map(as_array, in_tree)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """The tree, as NumPy arrays, of the one process that has something to say.

    ValueError if `is_source` says that this is not the source.
    """
    if is_source is False:
        raise ValueError("broadcast_one_to_all: no process is the source, as there is this one alone.")
    return tree.map(lambda x: np.asarray(as_array(x)), in_tree)


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """What all processes have, as NumPy arrays with a new leading axis of the processes, or, if `tiled` (or if they
    have no axes), one after the other along the first axis."""
    def gather(x: Any) -> np.ndarray:
        value = np.asarray(as_array(x))
        return value if tiled and value.ndim else value[None]

    return tree.map(gather, in_tree)


def sync_global_devices(name: str) -> None:
    """Waits until all processes are here."""


def reached_preemption_sync_point(step_id: int) -> bool:
    """Whether the processes have been told to stop: nobody tells them."""
    return False


@contextmanager
def live_devices(devices: Sequence[Any]) -> Iterator[list[Any]]:
    """A block that is handed those of the devices whose processes live."""
    here = local_devices()
    yield [d for d in devices if d in here]


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Arrays of all processes, made of those of each: the same for one process."""
    return tree.map(as_array, local_inputs)


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """This process's part of arrays of all processes: all of it."""
    return tree.map(as_array, global_inputs)
