"""Arrays made of the parts that the devices of a sharding hold.

    make_array_from_callback((2, 3), sharding, lambda index: rows[index])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import tree
from anima.core import dtypes
from anima.core.array import ConcreteArray, PlacedArray
from anima.core.avals import Shape, ShapedArray
from anima.core.layout import Format
from anima.core.partition import PartitionSpec
from anima.core.shardings import Sharding, spreads
from anima.core.trace import Tracer, aval_of
from anima.errors import UnexpectedTracerError
from anima.ops.elementwise import convert
from anima.ops.placing import on_current_mesh, put


def copy_to_host_async(x: Any) -> Any:
    """`x`, once the copying of every array in it to the host has begun: on a CPU they are there."""
    for leaf in tree.leaves(x):
        if hasattr(leaf, "copy_to_host_async"):
            leaf.copy_to_host_async()
    return x


def make_array_from_callback(shape: Sequence[int], sharding: Any, data_callback: Callable[[Any], Any],
                             dtype: Any = None) -> ConcreteArray:
    """An array of what `data_callback` returns for the part that each device of a sharding holds.

    Args:
      shape: the shape of the whole.
      sharding: a sharding, or a `Format` with one.
      data_callback: from the index of a part, a tuple of slices of the whole, to its elements, an array-like. Called
        once for each device, and once in all for what is the same on all devices.
      dtype: what their type must be; None: whatever it is.

    Raises:
      TypeError: for what is no sharding; ValueError: for a part of another shape or dtype;
      UnexpectedTracerError: for a part that is traced.

    >>> x = np.arange(6.0).reshape(2, 3)
    >>> anima.make_array_from_callback((2, 3), jnp.ones(()).sharding, lambda index: x[index])
    Array([[0., 1., 2.],
           [3., 4., 5.]], dtype=float32)
    """
    shape, sharding = tuple(shape), _sharding(sharding)
    parts = []
    places = list(sharding.addressable_devices_indices_map(shape).values())
    for index in places[:1] if sharding.is_fully_replicated else places:
        part = data_callback(index)
        if isinstance(part, Tracer):
            raise UnexpectedTracerError("make_array_from_callback: the callback returned an array that is traced, "
                                        "where numbers are needed. Call it outside of traced functions.")
        aval = aval_of(part)
        parts.append(convert(part, aval.dtype, False) if isinstance(part, ConcreteArray) else
                     ConcreteArray(np.array(part, aval.dtype, order="C"), ShapedArray(aval.shape, aval.dtype)))
    if sharding.is_fully_replicated:
        parts *= len(places)
    return _whole("make_array_from_callback", shape, sharding, parts, dtype)


def make_array_from_process_local_data(sharding: Any, local_data: Any, global_shape: Any = None) -> Any:
    """Arrays of what each process has of them; of one process all of it.

    Args:
      sharding: a sharding, or a tree prefix of them.
      local_data: an array-like, or a pytree of them: the part of this process's device, or the whole.
      global_shape: the shape of the whole, of which dimensions may be None; None: dimensions that are cut are as long
        as all parts, the others as those of `local_data`. Or a tree prefix of these.

    Raises:
      ValueError: for another shape.
    """
    leaves, structure = tree.flatten(local_data)
    shardings = [on_current_mesh("make_array_from_process_local_data", s, "sharding") if isinstance(s, PartitionSpec)
                 else s for s in tree.broadcast_prefix(sharding, local_data,
                                                       what="make_array_from_process_local_data sharding")]
    shapes = tree.broadcast_prefix(global_shape, local_data, is_leaf=_is_shape,
                                   what="make_array_from_process_local_data global_shape")
    made = []
    for leaf, one, shape in zip(leaves, shardings, shapes, strict=True):
        made.append(_of_local(np.asarray(leaf), one, shape))
    return tree.unflatten(structure, made)


def _of_local(data: np.ndarray, sharding: Any, shape: Any) -> ConcreteArray:
    """The array of which this process has the part, or the whole, `data`."""
    sharding = _sharding(sharding)
    parts = sharding.parts(data.ndim) if spreads(sharding) else (1,) * data.ndim
    given = tuple(shape) if shape is not None else (None,) * data.ndim
    if len(given) != data.ndim:
        raise ValueError(f"make_array_from_process_local_data: global_shape {given} does not have as many dimensions "
                         f"as the data, of shape {data.shape}.")
    whole = tuple(n * p if g is None else g for n, p, g in zip(data.shape, parts, given, strict=True))
    expected = [(n, g // p) for n, g, p in zip(data.shape, whole, parts, strict=True)]
    if any(n not in (g, e) for (n, e), g in zip(expected, whole, strict=True)):
        raise ValueError("make_array_from_process_local_data: each dimension of the data must be that of the part of "
                         f"this process, {tuple(e for _, e in expected)}, or of global_shape, {whole}; got "
                         f"{data.shape}.")

    def part(index: Any) -> np.ndarray:
        return data[tuple(slice(None) if p > 1 and n == e else i
                          for (n, e), p, i in zip(expected, parts, index, strict=True))]

    return make_array_from_callback(whole, sharding, part)


def _is_shape(x: Any) -> bool:
    return x is None or (isinstance(x, (tuple, list)) and all(n is None or isinstance(n, (int, np.integer)) for n in x))


def make_array_from_single_device_arrays(shape: Sequence[int], sharding: Any, arrays: Sequence[Any], *,
                                         dtype: Any = None) -> ConcreteArray:
    """An array of the arrays that lie on the devices of a sharding, in their order: on one device, of one.

    Raises:
      TypeError: for what is no list or tuple of arrays.
      ValueError: for another number of them than there are devices, and for another shape or dtype than is said.
    """
    if not isinstance(arrays, (tuple, list)):
        raise TypeError("make_array_from_single_device_arrays: `arrays` must be a list or tuple, got "
                        f"{type(arrays).__name__}.")
    if any(isinstance(x, Tracer) for x in arrays):
        raise ValueError("make_array_from_single_device_arrays needs arrays with values, and was given one that is "
                         "traced.")
    for x in arrays:
        if not isinstance(x, ConcreteArray):
            raise TypeError(f"make_array_from_single_device_arrays: `arrays` holds a {type(x).__name__}. Fix: "
                            "anima.device_put makes an array of it.")
    sharding = _sharding(sharding)
    by_device = {x.device: x for x in arrays}
    if len(by_device) < len(arrays):
        raise ValueError("When making an array from single-device arrays, the input arrays must be from distinct "
                         f"devices, but got device IDs {[d.id for x in arrays for d in x.devices()]}")
    ordered = [by_device[d] for d in sharding.addressable_devices_indices_map(tuple(shape)) if d in by_device]
    if len(ordered) < len(arrays):
        raise ValueError("make_array_from_single_device_arrays: there are arrays on devices that are not those of the "
                         f"sharding {sharding}: {list(by_device)}.")
    return _whole("make_array_from_single_device_arrays", tuple(shape), sharding, ordered, dtype)


def _sharding(given: Any) -> Sharding:
    sharding = given.sharding if isinstance(given, Format) else given
    if not isinstance(sharding, Sharding):
        raise TypeError(f"sharding must be a sharding of anima.sharding, got {given!r} of type {type(given)}.")
    return sharding


def _whole(name: str, shape: Shape, sharding: Sharding, parts: Sequence[ConcreteArray], dtype: Any) -> ConcreteArray:
    """The array that consists of the parts of this process's devices, in the order of these in the sharding."""
    indices = sharding.addressable_devices_indices_map(shape)
    if not indices:
        raise ValueError(f"{name}: this process has none of the devices of {sharding}. Fix: a mesh over the devices of "
                         "all processes.")
    if len(parts) != len(indices):
        raise ValueError(f"{name}: Expected {len(indices)} per-device arrays (this is how many devices are addressable "
                         f"by the sharding), but got {len(parts)}.")
    expected, first = sharding.shard_shape(shape), parts[0]
    for part in parts:
        if part.shape != expected:
            raise ValueError(f"{name}: Expected shard shape {expected} doesn't match the single device array shape "
                             f"{part.shape}. Shape of the array is {shape} with sharding {sharding}")
        if part.dtype != first.dtype:
            raise ValueError(f"{name}: the parts have several dtypes, {dtypes.name(first.dtype)} and "
                             f"{dtypes.name(part.dtype)}.")
    if dtype is not None and first.dtype != dtypes.canonicalize_dtype(dtype):
        raise ValueError(f"{name}: dtype is {dtypes.name(dtypes.np_dtype(dtype))}, but that of the array given is "
                         f"{dtypes.name(first.dtype)}.")
    if expected == shape:
        return put(first, sharding)
    if spreads(sharding):
        return PlacedArray(first.elements(), ShapedArray(shape, first.dtype, first.weak_type), sharding)
    whole = np.empty(shape + first.elements().shape[len(shape):], first.elements().dtype)
    for part, index in zip(parts, indices.values(), strict=True):
        whole[index] = part.elements()
    return put(ConcreteArray(whole, ShapedArray(shape, first.dtype, first.weak_type)), sharding)
