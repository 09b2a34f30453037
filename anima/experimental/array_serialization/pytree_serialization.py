"""Checkpoints of trees of arrays, also of arrays that are cut over processes.

    save({"weights": w, "step": 3}, "checkpoint")
    load("checkpoint")["step"]                                   as NumPy would have it: whole arrays
    load("checkpoint", NamedSharding(mesh, P("x")))              cut along a mesh, perhaps of other processes

A checkpoint is a folder of safetensors files, one of each process that wrote, with the parts that its devices had, and
`index.json`, which tells the tree and where the parts of each array are. Each process writes its own parts, and reads
those that it needs, or the pieces of them. A checkpoint is there as a whole or not at all: it is written beside, and
takes its name when all processes have written.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anima import tree
from anima.api.placing import make_array_from_callback
from anima.api.stages import ShapeDtypeStruct
from anima.core import dtypes, processes
from anima.core.array import ConcreteArray, PlacedArray
from anima.core.avals import ShapedArray
from anima.core.format import FormatError, Reader, Writer
from anima.core.shardings import spreads
from anima.experimental.multihost_utils import sync_global_devices
from anima.export.trees import read_tree, write_tree
from anima.names import access
from anima.ops.broadcast import as_array
from anima.random import implementation
from anima.random.keys import wrap_key_data
from anima.util import lazy_module

FORMAT, VERSION = "anima-checkpoint", 1
_INDEX = "index.json"
_NATIVE = {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
           "bool"}  # of safetensors; others are there as unsigned integers of their size, complex numbers as pairs
_safetensors = lazy_module("safetensors")
_numpy_files = lazy_module("safetensors.numpy")


def save(data: Any, directory: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Writes a tree of arrays as a checkpoint.

    In several processes, all call it with the same `directory`, in a file system that all see. An array that does not
    lie on devices of several processes is written by process 0.

    Args:
      data: a pytree of arrays and numbers.
      directory: the folder to be; folders above it are made.
      overwrite: whether what is there may be replaced.

    Raises:
      ImportError: without safetensors; FileExistsError: where there is something, and `overwrite` is False.
      TypeError: for leaves that are no arrays.

    >>> save({"w": anima.numpy.ones(3), "step": 7}, folder)                        # doctest: +SKIP
    """
    _check_safetensors()
    directory = Path(directory)
    leaves = [(tree.keystr(path), as_array(x)) for path, x in tree.leaves_with_path(data)]
    if not overwrite and directory.exists():
        raise FileExistsError(f"There is something at {directory} already. Fix: overwrite=True, or another folder.")
    beside = directory.with_name(f".{directory.name}.partial")
    first = processes.here.index == 0
    if first:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
    sync_global_devices(f"checkpoint {directory}: begin")
    _write_parts(beside, leaves)
    sync_global_devices(f"checkpoint {directory}: written")
    if first:
        index = _index(data, leaves)
        _write(beside / _INDEX, json.dumps({**index, "checksum": _checksum_of(index)}, indent=1).encode())
        if directory.is_dir() and not directory.is_symlink():
            shutil.rmtree(directory)
        os.replace(beside, directory)
    sync_global_devices(f"checkpoint {directory}: end")


def load(directory: str | os.PathLike[str], shardings: Any = None, *, like: Any = None) -> Any:
    """The tree of arrays that a checkpoint holds.

    Args:
      directory: the folder that `save` wrote, also in other processes, and in another number of them.
      shardings: None, for arrays that lie as by default; a sharding, or a tree prefix of them. Each process reads the
        parts of its devices.
      like: a pytree of the structure of what was saved, whatever its leaves: needed where that has nodes of the
        user's types that are not registered with `anima.export`.

    Raises:
      FileNotFoundError: for what is not there; ImportError: without safetensors.
      ValueError: for what is no checkpoint, or a damaged one, and for another structure than that of `like`.
    """
    _check_safetensors()
    directory = Path(directory)
    index = _read_index(directory)
    structure = _structure(directory, index, like)
    wanted = tree.broadcast_prefix(shardings, tree.unflatten(structure, [0] * structure.num_leaves),
                                   is_leaf=lambda x: x is None, what="load shardings")
    files = _Files(directory)
    try:
        return tree.unflatten(structure, [_loaded(files, told, s)
                                          for told, s in zip(index["leaves"], wanted, strict=True)])
    except (KeyError, TypeError) as error:
        raise _damaged(directory / _INDEX, error) from error


def load_pytreedef(directory: str | os.PathLike[str], *, like: Any = None) -> Any:
    """The tree of a checkpoint, with the shapes and dtypes of its arrays (`anima.ShapeDtypeStruct`)."""
    directory = Path(directory)
    index = _read_index(directory)
    avals = [ShapeDtypeStruct(tuple(told["shape"]), _dtype(told), weak_type=told["weak_type"])
             for told in index["leaves"]]
    return tree.unflatten(_structure(directory, index, like), avals)


# ---------------------------------------------------------------- writing

def _check_safetensors() -> None:
    try:
        _safetensors.safe_open  # noqa: B018
    except ImportError as error:
        raise ImportError("Checkpoints are files of safetensors: pip install 'anima[checkpoints]'. "
                          f"{error}") from None


def _parts(x: ConcreteArray) -> Iterator[tuple[int, str, list[list[int]]]]:
    """For each part of an array: the process that writes it, its number, where it begins and ends."""
    if not spreads(x.sharding):
        yield 0, "0", [[0, n] for n in x.shape]
        return
    known: dict[Any, None] = {}
    for device, index in x.sharding.devices_indices_map(x.shape).items():
        bounds = [[*i.indices(n)[:2]] for i, n in zip(index, x.shape, strict=True)]
        if str(bounds) not in known:
            known[str(bounds)] = None
            yield device.process_index, str(len(known) - 1), bounds


def _file(process: int) -> str:
    return f"process-{process}.safetensors"


def _write_parts(folder: Path, leaves: Sequence[tuple[str, ConcreteArray]]) -> None:
    """Writes what this process has to."""
    arrays, sums = {}, {}
    for path, x in leaves:
        for process, number, _ in _parts(x):
            if process == processes.here.index:
                value = x.part() if isinstance(x, PlacedArray) else x.elements()
                name = f"{path}/{number}"
                arrays[name] = _as_native(value)
                sums[name] = str(_checksum(arrays[name]))
    if arrays or processes.here.index == 0:
        _write(folder / _file(processes.here.index), _numpy_files.save(arrays, sums))


def _as_native(value: np.ndarray) -> np.ndarray:
    """The elements in a type that files know."""
    value = np.asarray(value, order="C")
    if value.dtype.name in _NATIVE:
        return value
    if value.dtype.kind == "c":
        return value[..., None].view(value.real.dtype)
    return value.view(f"u{value.dtype.itemsize}")


def _checksum(value: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _index(data: Any, leaves: Sequence[tuple[str, ConcreteArray]]) -> dict[str, Any]:
    writer = Writer()
    try:
        write_tree(writer, tree.structure(data))
        structure = writer.bytes().hex()
    except ValueError:  # nodes that have no name in files: `load` has to be told
        structure = None
    return {"format": FORMAT, "version": VERSION, "tree": structure, "leaves": [
        {"path": path, "shape": list(x.shape), "weak_type": x.weak_type, **_type_of(x), "parts": [
            {"file": _file(process), "name": f"{path}/{number}", "bounds": bounds}
            for process, number, bounds in _parts(x)]} for path, x in leaves]}


def _type_of(x: ConcreteArray) -> dict[str, str]:
    if isinstance(x.dtype, dtypes.KeyDType):
        return {"dtype": "key", "impl": implementation.of_dtype(x.dtype).name}
    return {"dtype": dtypes.name(x.dtype)}


# ---------------------------------------------------------------- reading

def _damaged(path: Path, why: Any) -> ValueError:
    return ValueError(f"{path} is damaged, or not part of a checkpoint: {why}")


def _read_index(directory: Path) -> dict[str, Any]:
    path = directory / _INDEX
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no checkpoint at {directory}: {path} is missing.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _damaged(path, f"it does not say that it is of the format {FORMAT!r}")
    if found.get("version") != VERSION:
        raise ValueError(f"{path} is of version {found.get('version')!r}, and this reads version {VERSION}.")
    if found.pop("checksum", None) != _checksum_of(found):
        raise _damaged(path, "its checksum is another")
    return found


def _checksum_of(index: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(index, sort_keys=True).encode())


def _structure(directory: Path, index: dict[str, Any], like: Any) -> tree.PyTreeDef:
    paths = [told["path"] for told in index["leaves"]]
    if like is not None:
        found = [tree.keystr(path) for path, _ in tree.leaves_with_path(like)]
        if found != paths:
            other = next((a, b) for a, b in zip([*found, None], [*paths, None], strict=False) if a != b)
            raise ValueError(f"The checkpoint at {directory} is of another structure than `like`: where that has "
                             f"{other[0]}, it has {other[1]}.")
        return tree.structure(like)
    if index.get("tree") is None:
        raise ValueError(f"The checkpoint at {directory} holds a tree with nodes of types that files have no name for. "
                         "Fix: load(directory, like=...) with a tree of that structure.")
    try:
        return read_tree(Reader(memoryview(bytes.fromhex(index["tree"]))))
    except (ValueError, FormatError) as error:
        raise _damaged(directory / _INDEX, error) from error


def _dtype(told: dict[str, Any]) -> Any:
    return implementation.named(told["impl"]).dtype if told["dtype"] == "key" else dtypes.np_dtype(told["dtype"])


class _Files:
    """The files of one checkpoint, each opened once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: dict[str, Any] = {}

    def read(self, told: dict[str, Any], within: Sequence[slice]) -> np.ndarray:
        """Some elements of a part, as they are in the file."""
        path = self.folder / Path(told["file"]).name
        try:
            if path not in self.opened:
                self.opened[path] = _safetensors.safe_open(path, framework="np")
            file = self.opened[path]
            if all((s.start, s.stop) == (0, b - a) for s, (a, b) in zip(within, told["bounds"], strict=True)):
                value = file.get_tensor(told["name"])
                if str(_checksum(value)) != file.metadata()[told["name"]]:
                    raise ValueError(f"the elements of {told['name']} are not those that were written")
                return value
            return file.get_slice(told["name"])[tuple(within)]
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is missing: the checkpoint is not complete.") from None
        except (_safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, error) from error


def _loaded(files: _Files, told: dict[str, Any], sharding: Any) -> ConcreteArray:
    """One array."""
    shape, dtype = tuple(told["shape"]), _dtype(told)

    def part(index: Sequence[slice]) -> Any:
        bounds = [i.indices(n)[:2] for i, n in zip(index, shape, strict=True)]
        return _assembled(files, told, bounds, dtype)

    if sharding is None:
        whole = part([slice(None)] * len(shape))
        return as_array(whole) if isinstance(whole, ConcreteArray) else ConcreteArray(
            whole, ShapedArray(shape, dtype, told["weak_type"]))
    return make_array_from_callback(shape, sharding, part)


def _assembled(files: _Files, told: dict[str, Any], bounds: Sequence[Sequence[int]], dtype: Any) -> Any:
    """The elements within bounds, of all parts that have some of them."""
    out: np.ndarray | None = None
    for part in told["parts"]:
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(bounds, part["bounds"], strict=True)]
        if any(a >= b for a, b in common) and all(a < b for a, b in bounds):
            continue
        found = files.read(part, [slice(a - c, b - c) for (a, b), (c, _) in zip(common, part["bounds"], strict=True)])
        if common == [tuple(b) for b in bounds]:
            out = found
            break
        if out is None:
            out = np.empty([b - a for a, b in bounds] + list(found.shape[len(bounds):]), found.dtype)
        out[tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(common, bounds, strict=True))] = found
    if out is None:
        raise _damaged(files.folder / _INDEX, f"no part of {told['path']} has its elements {bounds}")
    if told["dtype"] == "key":
        return wrap_key_data(out, impl=told["impl"])
    out = np.asarray(out, order="C")
    return out.view(dtype)[..., 0] if dtype.kind == "c" else out.view(dtype)

globals().update(access(__name__, globals()))
