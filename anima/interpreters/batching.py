"""Batching rules of primitives, given from outside.

    batching.primitive_batchers[p] = lambda args, dims: (p.bind(*args), dims[0])
    batching.fancy_primitive_batchers[p] = lambda axis, args, dims: ...     # asked where nothing is mapped, too

A dimension is the axis that an argument is stacked along, or `not_mapped` (None).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima.core.axes import name_of
from anima.core.primitive import Primitive
from anima.core.trace import aval_of
from anima.interpreters.rules import Rule, RuleTable
from anima.names import access
from anima.ops.broadcast import broadcast_in_dim, expand_dims
from anima.ops.shape import moveaxis
from anima.transforms.vmap import BatchTrace as BatchTrace, BatchTracer as BatchTracer, hooked
from anima.util import record

__all__ = ["AxisData", "BatchTrace", "BatchTracer", "axis_primitive_batchers", "bdim_at_front", "broadcast",
           "defbroadcasting", "defreducer", "defvectorized", "fancy_primitive_batchers", "not_mapped",
           "primitive_batchers", "register_vmappable", "unregister_vmappable"]

not_mapped = None


@record
class AxisData:
    """A mapped axis: its name, or None, and its size."""

    name: Any
    size: int
    spmd_name: None = None
    explicit_mesh_axis: None = None


def _plain(primitive: Primitive, rule: Rule) -> Rule:
    def batch(size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        return rule(args, dims, **params)

    return batch


def _fancy(primitive: Primitive, rule: Rule) -> Rule:
    def batch(size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        return rule(AxisData(name_of(size), int(size)), args, dims, **params)

    return batch


def _axis(primitive: Primitive, rule: Rule) -> Rule:
    def batch(size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        return rule(int(size), name_of(size), None, args, dims, **params)

    return batch


def _read_plain(primitive: Primitive, batch: Rule) -> Rule:
    def rule(args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        size = next(aval_of(x).shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        return batch(size, args, dims, **params)

    return rule


def _read_fancy(primitive: Primitive, batch: Rule) -> Rule:
    return lambda axis, args, dims, **params: batch(axis.size, args, dims, **params)


def _read_axis(primitive: Primitive, batch: Rule) -> Rule:
    return lambda size, name, kind, args, dims, **params: batch(size, args, dims, **params)


primitive_batchers = RuleTable("batch", _plain, _read_plain, also={"maps_all": False})
fancy_primitive_batchers = RuleTable("batch", _fancy, _read_fancy, also={"maps_all": True})
axis_primitive_batchers = RuleTable("batch", _axis, _read_axis, also={"maps_all": True})


def broadcast(x: Any, sz: int, axis: int, mesh_axis: None = None) -> Any:
    """`x` repeated `sz` times along a new axis."""
    shape = aval_of(x).shape
    return broadcast_in_dim(x, (*shape[:axis], sz, *shape[axis:]), [i for i in range(len(shape) + 1) if i != axis])


def bdim_at_front(x: Any, bdim: int | None, size: int, mesh_axis: None = None) -> Any:
    """`x` with its mapped axis first; one that is not mapped is repeated."""
    return broadcast(x, size, 0) if bdim is None else moveaxis(x, bdim, 0)


def defvectorized(prim: Primitive) -> None:
    """Says that an operation acts on each element, of operands of one shape, by itself."""
    def rule(args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        if len(set(dims)) == 1:
            dim = dims[0]
        else:
            size = next(aval_of(x).shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
            args, dim = [bdim_at_front(x, d, size) for x, d in zip(args, dims, strict=True)], 0
        return _stacked(prim, prim.bind(*args, **params), dim)

    primitive_batchers[prim] = rule


def defbroadcasting(prim: Primitive) -> None:
    """Says that an operation acts on each element by itself, and repeats operands along axes of size 1."""
    def rule(args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        ranks = [aval_of(x).ndim - (d is not None) for x, d in zip(args, dims, strict=True)]
        rank = max(ranks)
        aligned = []
        for x, d, own in zip(args, dims, ranks, strict=True):
            if d is None:
                aligned.append(x if own == 0 else expand_dims(x, (0,)))
            else:
                x = moveaxis(x, d, 0)
                aligned.append(x if own == rank else expand_dims(x, tuple(range(own + 1, rank + 1))))
        return _stacked(prim, prim.bind(*aligned, **params), 0)

    primitive_batchers[prim] = rule


def defreducer(prim: Primitive) -> None:
    """Says that an operation of one operand takes away the axes in its parameter `axes`."""
    def rule(args: Sequence[Any], dims: Sequence[int], *, axes: Sequence[int], **params: Any) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        ndim = aval_of(x).ndim - 1
        taken = [a % ndim for a in axes]
        out = prim.bind(x, axes=tuple(a + (a >= dim) for a in taken), **params)
        return _stacked(prim, out, dim - sum(a < dim for a in taken))

    primitive_batchers[prim] = rule


def _stacked(prim: Primitive, out: Any, dim: int | None) -> tuple[Any, Any]:
    return (out, [dim] * len(out)) if prim.multiple_results else (out, dim)


def register_vmappable(data_type: type, spec_type: type, axis_size_type: type, to_elt: Callable[..., Any],
                       from_elt: Callable[..., Any], make_iota: Callable[..., Any] | None) -> None:
    """Says that values of `data_type` are mapped by functions of their own: `vmap` refuses them, since it maps over
    axes of arrays."""
    hooked.add(data_type)


def unregister_vmappable(data_type: type) -> None:
    """Takes back what `register_vmappable` said; KeyError if it said nothing of `data_type`."""
    hooked.remove(data_type)

globals().update(access(__name__, globals()))
