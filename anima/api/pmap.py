"""`pmap`: a function of one element made one of a stack of them, each on a device of its own.

    >>> anima.pmap(lambda x: x - lax.pmean(x, "i"), axis_name="i")(jnp.array([[1.0, 3.0]]))
    Array([[0., 0.]], dtype=float32)

It is a `shard_map` over a mesh of as many devices as there are elements, jitted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from anima import tree
from anima.api.jit import JitFunction
from anima.api.shard_map import on_parts
from anima.core.avals import canonicalize_axis
from anima.core.device import Device, devices as all_devices
from anima.core.mesh import Mesh, get_abstract_mesh
from anima.core.partition import PartitionSpec
from anima.core.trace import aval_of
from anima.ops.broadcast import as_array, expand_dims
from anima.ops.shape import squeeze
from anima.util import fun_name, wraps

_UNNAMED = "_internal_pmap_axis_name"


def pmap(fun: Callable[..., Any], axis_name: Any = None, *, in_axes: Any = 0, out_axes: Any = 0,
         static_broadcasted_argnums: int | Iterable[int] = (), devices: Sequence[Device] | None = None,
         backend: str | None = None, axis_size: int | None = None, donate_argnums: int | Iterable[int] = ()) -> Any:
    """Maps `fun` over an axis of its arguments, each element on a device of its own.

    Args:
      fun: a function of arrays and pytrees of them.
      axis_name: a name of the mapped axis for collectives (`lax.psum`, ...) within `fun`.
      in_axes: the axis to map over: an int, None (not mapped: every device gets all), or a pytree prefix of them, one
        entry for each positional argument. Keyword arguments are mapped over axis 0.
      out_axes: where the mapped axis stands in the results: likewise; None: all elements have the same, which is one.
      static_broadcasted_argnums: arguments that are part of the signature by value (hashable).
      devices: those to use, in their order; None: all.
      backend: None or "cpu".
      axis_size: the number of elements, needed only where no argument is mapped.
      donate_argnums: arguments whose memory may be reused; they are deleted by the call.

    Returns:
      A jitted function.

    Raises:
      ValueError: for sizes that disagree, and more elements than devices.

    >>> anima.pmap(lambda x, y: x * y, in_axes=(0, None))(jnp.array([[1, 2]]), 2)
    Array([[2, 4]], dtype=int32)
    """
    if not callable(fun):
        raise TypeError(f"Expected a callable value, got {fun!r}")
    if inspect.isgeneratorfunction(fun):
        raise TypeError(f"Expected a function, got a generator function: {fun}")
    if isinstance(axis_name, (int, tuple, list)):
        raise ValueError(f"pmap axis_name must be one name, and no int, got {axis_name!r}.")
    if backend not in (None, "cpu"):
        raise RuntimeError(f"Unknown backend: {backend!r} requested, but there is 'cpu' alone.")
    for what, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        if not all(isinstance(a, int) for a in tree.leaves(axes)):
            raise TypeError(f"pmap {what} must be an int, None, or (nested) container with those types as leaves, but "
                            f"got {axes}.")
    if devices is not None and (len(devices) == 0 or not all(isinstance(d, Device) for d in devices)):
        raise ValueError(f"pmap devices must be some of anima.devices(), or None, got {devices!r}.")
    if devices is not None and len(set(devices)) < len(devices):
        raise ValueError(f"pmap devices must be different ones, each with one element, got {devices!r}.")
    static = _as_tuple(static_broadcasted_argnums)
    name = _UNNAMED if axis_name is None else axis_name

    @wraps(fun)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        return _ElementCalls(fun, name, devices, axis_size).run(args, kwargs, axes, out_axes, static)

    return JitFunction(mapped, static_argnums=static, donate_argnums=_as_tuple(donate_argnums))


def _as_tuple(nums: int | Iterable[int]) -> tuple[int, ...]:
    return (nums,) if isinstance(nums, int) else tuple(nums)


class _ElementCalls:
    """One application of `fun` to elements, each on a device."""

    def __init__(self, fun: Callable[..., Any], name: Any, devices: Sequence[Device] | None, size: int | None):
        self.fun, self.name, self.size = fun, name, size
        self.devices = list(all_devices() if devices is None else devices)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any, out_axes: Any,
            static: tuple[int, ...]) -> Any:
        fixed = {n % len(args): args[n] for n in static}
        if isinstance(in_axes, tuple) and len(in_axes) != len(args):
            raise ValueError("pmap in_axes must be an int, None, or a tuple of entries corresponding to the positional "
                             f"arguments passed to the function, but got {len(in_axes)=}, {len(args)=}")
        own = tuple(a for k, a in enumerate(args) if k not in fixed)
        if isinstance(in_axes, tuple):
            in_axes = tuple(a for k, a in enumerate(in_axes) if k not in fixed)
        leaves, in_tree = tree.flatten((own, kwargs))
        axes = tree.broadcast_prefix((in_axes, 0), (own, kwargs), is_leaf=lambda x: x is None, what="pmap in_axes")
        leaves = list(map(as_array, leaves))
        axes = [self._axis(a, x) for a, x in zip(axes, leaves, strict=True)]
        mesh = self._mesh(leaves, axes)
        out_trees: list[Any] = []

        def flat(*parts: Any) -> tuple[list[Any], list[PartitionSpec]]:
            elements = [x if a is None else squeeze(x, (a,)) for x, a in zip(parts, axes, strict=True)]
            positional, keywords = tree.unflatten(in_tree, elements)
            given = iter(positional)
            result = self.fun(*(fixed[k] if k in fixed else next(given) for k in range(len(args))), **keywords)
            outs, out_tree = tree.flatten(result)
            out_trees.append(out_tree)
            places = tree.broadcast_prefix(out_axes, result, is_leaf=lambda x: x is None, what="pmap out_axes")
            return self._placed(outs, places)

        outs = on_parts(flat, leaves, [self._spec(a) for a in axes], mesh, frozenset(mesh.axis_names), False, self.fun)
        return tree.unflatten(out_trees[0], outs)

    def _spec(self, axis: int | None) -> PartitionSpec:
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, self.name)

    def _axis(self, axis: int | None, x: Any) -> int | None:
        if axis is None:
            return None
        ndim = aval_of(x).ndim
        if not ndim:
            raise ValueError("pmap requires at least one argument with a mapped axis, and that all that are mapped "
                             "have one: got a scalar. Fix: in_axes=None for it.")
        return canonicalize_axis(axis, ndim)

    def _mesh(self, leaves: Sequence[Any], axes: Sequence[int | None]) -> Mesh:
        """As many devices as there are elements."""
        mapped = [(aval_of(x), a) for x, a in zip(leaves, axes, strict=True) if a is not None]
        sizes = sorted({aval.shape[a] for aval, a in mapped})
        if len(sizes) > 1:
            lines = [f"  * axis {a} of an array of type {aval.str_short()} has size {aval.shape[a]};"
                     for aval, a in mapped]
            raise ValueError("pmap got inconsistent sizes for array axes to be mapped:\n" + "\n".join(lines)
                             + f"\nin pmap of {fun_name(self.fun)}.")
        if not sizes and self.size is None:
            raise ValueError("pmap requires at least one argument with a mapped axis.")
        if sizes and self.size not in (None, sizes[0]):
            raise ValueError(f"Specified axis_size {self.size} doesn't match received axis_size {sizes[0]}.")
        size = sizes[0] if sizes else self.size
        around = get_abstract_mesh()
        if around.manual_axes:
            raise ValueError(f"pmap of {fun_name(self.fun)} within a function that is mapped over devices already "
                             f"(along {', '.join(map(repr, around.manual_axes))}). Fix: vmap it there, or one "
                             "shard_map over a mesh of two axes.")
        if not 0 < size <= len(self.devices):  # type: ignore[operator]
            raise ValueError(f"pmap of {fun_name(self.fun)} over {size} elements requires as many devices, and there "
                             f"are {len(self.devices)}. Fix: vmap within pmap, or more of them: the option "
                             "anima_num_cpu_devices, before the first array is made.")
        return Mesh(self.devices[:size], (self.name,))

    def _placed(self, outs: Sequence[Any], places: Sequence[int | None]) -> tuple[list[Any], list[PartitionSpec]]:
        found, specs = [], []
        for x, place in zip(outs, places, strict=True):
            x = as_array(x)
            at = None if place is None else canonicalize_axis(place, x.ndim + 1)
            found.append(x if at is None else expand_dims(x, (at,)))
            specs.append(self._spec(at))
        return found, specs
