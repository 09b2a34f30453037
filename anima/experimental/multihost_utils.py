"""What processes that compute together agree on; one process agrees with itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from anima import tree
from anima.api.devices import device_put, local_devices
from anima.api.placing import make_array_from_process_local_data
from anima.api.spread import record_of
from anima.core import processes
from anima.core.array import PlacedArray
from anima.core.partition import PartitionSpec
from anima.core.shardings import NamedSharding, spreads
from anima.names import access
from anima.ops.broadcast import as_array


class ProcessFailureError(RuntimeError):
    """Processes of some devices failed."""

    def __init__(self, failed_devices: Sequence[Any]) -> None:
        super().__init__(f"The processes of these devices failed: {failed_devices}")
        self.failed_devices = failed_devices


def _told(what: str, sent: str = "") -> None:
    """Tells the others what this process does next, which they are to do too, and what it sends."""
    processes.here.calls(record_of(what + sent, what))


def _exchanged(what: str, kind: str, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An exchange with all processes."""
    x, out = np.asarray(x, order="C"), np.empty(shape, x.dtype)
    _told(what, f" {kind} {x.dtype}{x.shape}")
    processes.here.exchange(kind, tuple(range(processes.here.count)), None)(x, out)
    processes.here.returns()
    return out


def _gathered(what: str, x: np.ndarray) -> np.ndarray:
    """What all processes have, along a new leading axis."""
    return x[None] if _alone() else _exchanged(what, "gather", x, (processes.here.count, *x.shape))


def _alone() -> bool:
    return processes.here.count == 1


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Nothing, if all processes have the same tree.

    AssertionError, with `fail_message`, where they do not; TypeError for leaves that are no arrays.
    """
    leaves, structure = tree.flatten(tree.map(lambda x: np.asarray(as_array(x)), in_tree))
    digest = hashlib.blake2b(repr(structure).encode())
    for x in leaves:
        digest.update(f"{x.dtype}{x.shape}".encode() + x.tobytes())
    found = _gathered("assert_equal", np.frombuffer(digest.digest(), np.uint8))
    others = [k for k, d in enumerate(found) if (d != found[0]).any()]
    if others:
        raise AssertionError(f"{fail_message} Processes {others} have other values than process 0.".strip())


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """The tree, as NumPy arrays, of the one process that is the source.

    Args:
      in_tree: a pytree of arrays, of the same shapes and dtypes in all processes.
      is_source: whether this is the source; None: the first process is.

    Raises:
      ValueError: if there is one process, and it is not the source.
    """
    source = processes.here.index == 0 if is_source is None else is_source
    if _alone() and not source:
        raise ValueError("broadcast_one_to_all: no process is the source, as there is this one alone.")

    def send(x: Any) -> np.ndarray:
        value = np.asarray(as_array(x), order="C")  # an error for what is no array
        if _alone():
            return np.asarray(x)
        words = value.reshape(-1).view(np.uint8) if source else np.zeros(value.nbytes, np.uint8)
        return _exchanged("broadcast_one_to_all", "add", words, words.shape).view(value.dtype).reshape(value.shape)

    return tree.map(send, in_tree)


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """What all processes have, as NumPy arrays with a new leading axis of the processes, or, if `tiled` (or if they
    have no axes), one after the other along the first axis. Of an array that is cut over processes, the whole. Where
    there is one process, its own arrays, with the dtypes that NumPy has for them."""
    def gather(x: Any) -> np.ndarray:
        if _alone():
            as_array(x)  # an error for what is no array
            return np.asarray(x) if tiled else np.asarray(x)[None]
        if isinstance(x, PlacedArray) and spreads(x.sharding):
            return np.asarray(device_put(x, NamedSharding(x.sharding.mesh, PartitionSpec())))
        found = _gathered("process_allgather", np.asarray(as_array(x)))
        return found.reshape(-1, *found.shape[2:]) if tiled and found.ndim > 1 else found

    return tree.map(gather, in_tree)


def sync_global_devices(name: str) -> None:
    """Waits until all processes are here; the job ends with an error where they wait for something else.

    TypeError for a name that is no string.
    """
    if not isinstance(name, str):
        raise TypeError(f"sync_global_devices: name must be a string, got {name!r}.")
    _told(f"sync_global_devices({name!r})")
    processes.here.barrier()
    processes.here.returns()


def reached_preemption_sync_point(step_id: int) -> bool:
    """Whether the processes have been told to stop: nobody tells them."""
    return False


@contextmanager
def live_devices(devices: Sequence[Any]) -> Iterator[list[Any]]:
    """A block that is handed those of the devices whose processes live."""
    here = local_devices()
    yield [d for d in devices if d in here]


def _layouts(name: str, pspecs: Any, arrays: Any) -> list[PartitionSpec]:
    """The layout of each of the arrays; None is that of an array of which every process has the whole."""
    specs = tree.broadcast_prefix(pspecs, arrays, lambda spec: spec is None, f"{name} pspecs")
    return [PartitionSpec() if spec is None else spec for spec in specs]


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Arrays over all processes, of the part that each has; see `anima.make_array_from_process_local_data`.

    Args:
      local_inputs: a pytree of arrays.
      global_mesh: a mesh over the devices of all processes.
      pspecs: a `PartitionSpec`, or a tree prefix of them; None is `PartitionSpec()`.
    """
    specs = _layouts("host_local_array_to_global_array", pspecs, local_inputs)
    leaves, structure = tree.flatten(local_inputs)
    return tree.unflatten(structure, [
        x if isinstance(x, PlacedArray) and spreads(x.sharding)
        else make_array_from_process_local_data(NamedSharding(global_mesh, spec), x)
        for x, spec in zip(leaves, specs, strict=True)])


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """This process's parts of arrays over all processes, which lie as `pspecs` say: the inverse."""
    specs = _layouts("global_array_to_host_local_array", pspecs, global_inputs)
    leaves, structure = tree.flatten(global_inputs)
    placed = [device_put(x, NamedSharding(global_mesh, spec)) for x, spec in zip(leaves, specs, strict=True)]
    return tree.unflatten(structure, placed if _alone() else [x.addressable_shards[0].data for x in placed])

globals().update(access(__name__, globals()))
