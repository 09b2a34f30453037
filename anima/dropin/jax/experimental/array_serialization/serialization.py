"""Arrays in TensorStore's files, written while the program goes on: what libraries' older checkpoints are made of.

TensorStore is imported where it is first needed; it is none of Anima's requirements.
"""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anima
from anima.experimental.multihost_utils import sync_global_devices
from anima.util import lazy_module

tensorstore = lazy_module("tensorstore")


class GlobalAsyncCheckpointManagerBase(abc.ABC):
    """Writes arrays to storage and reads them, while the program goes on."""

    @abc.abstractmethod
    def check_for_errors(self) -> None:
        """Raises what went wrong in the background."""

    @abc.abstractmethod
    def wait_until_finished(self) -> None:
        """Waits until everything is written."""

    @abc.abstractmethod
    def serialize(self, arrays: Any, tensorstore_specs: Any, *, on_commit_callback: Any) -> Any:
        """Begins to write arrays."""

    @abc.abstractmethod
    def deserialize(self, shardings: Any, tensorstore_specs: Any, global_shapes: Any = None,
                    dtypes: Any = None) -> Any:
        """Reads arrays."""


def get_tensorstore_spec(ckpt_path: str, ocdbt: bool = False) -> dict[str, Any]:
    """TensorStore's specification of an array in the folder `ckpt_path`; ValueError unless that is absolute.

    NotImplementedError with `ocdbt`, and for other places than files.
    """
    path = os.path.normpath(ckpt_path)
    if ocdbt or "://" in ckpt_path:
        raise NotImplementedError(f"get_tensorstore_spec: only arrays in folders of files are written here, got "
                                  f"{ckpt_path!r} with {ocdbt=}. Fix: orbax-checkpoint, which writes elsewhere, too.")
    if not os.path.isabs(path):
        raise ValueError(f"Checkpoint path should be absolute. Got {path}")
    return {"driver": "zarr", "kvstore": {"driver": "file", "path": path}}


class GlobalAsyncCheckpointManager(GlobalAsyncCheckpointManagerBase):
    """Writes arrays by TensorStore in a thread: each process the parts on its devices, each part once.

    Args:
      timeout_secs: how many seconds `wait_until_finished` waits at most.
    """

    def __init__(self, timeout_secs: float = 300) -> None:
        self.timeout = timeout_secs
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def check_for_errors(self) -> None:
        """Raises what went wrong in the background, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def wait_until_finished(self) -> None:
        """Waits until everything is written, and raises what went wrong; TimeoutError after `timeout_secs`."""
        if self.thread is not None:
            self.thread.join(self.timeout)
            if self.thread.is_alive():
                raise TimeoutError(f"arrays were not written after {self.timeout} seconds")
            self.thread = None
        self.check_for_errors()

    def serialize(self, arrays: Sequence[Any], tensorstore_specs: Sequence[dict[str, Any]], *,
                  on_commit_callback: Callable[[], None]) -> None:
        """Begins to write arrays; when all are there, the first process calls `on_commit_callback`."""
        self.wait_until_finished()
        writes = []
        for x, spec in zip(arrays, tensorstore_specs, strict=True):
            x = anima.numpy.asarray(x)
            chunks = [max(n, 1) for n in x.sharding.shard_shape(x.shape)]
            spec = {**spec, "metadata": {"shape": list(x.shape), "chunks": chunks, "dtype": _zarr_dtype(x.dtype)}}
            store = tensorstore.open(tensorstore.Spec(spec), create=True, open=True).result()
            writes += [store[shard.index].write(np.asarray(shard.data)) for shard in x.addressable_shards
                       if shard.replica_id == 0]

        def finish() -> None:
            try:
                for write in writes:
                    write.result()
                if anima.process_count() > 1:
                    sync_global_devices("arrays are written")
                if anima.process_index() == 0:
                    on_commit_callback()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=finish, name="checkpoint")
        self.thread.start()

    def deserialize(self, shardings: Sequence[Any], tensorstore_specs: Sequence[dict[str, Any]],
                    global_shapes: Sequence[Any] | None = None, dtypes: Sequence[Any] | None = None) -> list[Any]:
        """Reads arrays, each process the parts on its devices; what is beyond the end of a file is zero."""
        self.wait_until_finished()
        count = len(tensorstore_specs)
        return [_read(tensorstore.open(tensorstore.Spec(spec), open=True).result(), sharding, shape, dtype)
                for spec, sharding, shape, dtype in zip(tensorstore_specs, shardings, global_shapes or [None] * count,
                                                        dtypes or [None] * count, strict=True)]


def _zarr_dtype(dtype: np.dtype) -> str:
    return "bfloat16" if dtype.name == "bfloat16" else np.dtype(dtype).str


def _read(store: Any, sharding: Any, shape: Any, dtype: Any) -> Any:
    shape = tuple(store.shape if shape is None else shape)
    dtype = np.dtype(store.dtype.numpy_dtype if dtype is None else dtype)

    def part(index: tuple[slice, ...]) -> np.ndarray:
        bounds = [s.indices(n)[:2] for s, n in zip(index, shape, strict=True)]
        out = np.zeros([stop - start for start, stop in bounds], dtype)
        known = [(start, max(start, min(stop, n))) for (start, stop), n in zip(bounds, store.shape, strict=True)]
        out[tuple(slice(0, stop - start) for start, stop in known)] = \
            store[tuple(slice(start, stop) for start, stop in known)].read().result()
        return out

    return anima.make_array_from_callback(shape, sharding, part)
