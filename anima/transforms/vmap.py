"""Batching: the same program on a stack of values at once (vmap).

A `BatchTracer` stands for one element; its trace holds the stack and the dimension along which it is
stacked. Each primitive's `batch` rule moves the dimension through.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from anima import errors
from anima.core.axes import Axis, is_of_devices, mentions, name_of, naming, wants_all
from anima.core.dims import index_of
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive
from anima.core.stage import eval_jaxpr, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import Trace, Tracer, aval_of, check_leaks, under
from anima.ops.placing import spread, stack_type
from anima.ops.shape import broadcast, moveaxis
from anima.util import weak_cache

hooked: set[type] = set()   # types whose values are not mapped along axes of their leaves: vmap refuses them


class BatchTracer(Tracer):
    """One element of `stack`, whose dimension `dim` is being mapped over."""

    __slots__ = ("dim", "stack")

    def __init__(self, owner: Trace, stack: Any, dim: int):
        aval = aval_of(stack)
        self.owner = owner
        self.aval = aval.dec_rank(aval.shape[dim], dim)
        self.stack = stack
        self.dim = dim
        if owner.made is not None:
            owner.made.append(weakref.ref(self))

    @property
    def batch_dim(self) -> int:  # as readers of tracers know it
        return self.dim

    @property
    def val(self) -> Any:
        return self.stack

    def origin_text(self) -> str:
        return self.stack.origin_text() if isinstance(self.stack, Tracer) else "It is being mapped over by vmap."

    def from_numbers(self) -> bool:
        """Whether the arguments that it comes from are single numbers."""
        return errors.from_numbers(self.stack)

    def made_text(self) -> str:
        if isinstance(self.stack, Tracer):
            return self.stack.made_text()
        return "It was made while a function was being mapped by vmap."


class BatchTrace(Trace):
    """Maps over `size` elements (an `Axis`, if collectives have a name for it). Elements of the traces that it stands
    `within`, of functions around a rule, are its own, too."""

    label = "BatchTrace"

    def __init__(self, parent: Trace, size: int, within: BatchTrace | None = None):
        super().__init__(parent)
        self.size = size
        self.name, self.of_devices = name_of(size), is_of_devices(size)
        self._outer: tuple[Trace, ...] = () if within is None else (within, *within._outer)

    def split(self, x: Any) -> tuple[Any, int | None]:
        if isinstance(x, BatchTracer) and (x.owner is self or x.owner in self._outer):
            return x.stack, x.dim
        return x, None

    def join(self, stack: Any, dim: int | None) -> Any:
        return stack if dim is None else BatchTracer(self, stack, dim)

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        stacks, dims = zip(*map(self.split, args), strict=True) if args else ((), ())
        if all(d is None for d in dims) and not wants_all(primitive, params, self.of_devices) and (
                self.name is None or not mentions(primitive, params, self.name)):
            return under(self.parent, primitive.bind, *stacks, **params)
        batch = partial(primitive.batch, within=self) if primitive.closes_over else primitive.batch
        out, dim = under(self.parent, batch, self.size, stacks, dims, **params)
        if primitive.multiple_results:
            return list(map(self.join, out, dim))
        return self.join(out, dim)


def move_to(stack: Any, dim: int | None, target: int, size: int) -> Any:
    """A result with its mapped dimension at `target`; an unmapped one is repeated."""
    if dim is None:
        stack, dim = spread(broadcast(stack, (index_of(size),)), size), 0
    return moveaxis(stack, dim, target + aval_of(stack).ndim if target < 0 else target)


def batch_flat(fun: Callable[..., Sequence[Any]], size: int, args: Sequence[Any], dims: Sequence[int | None],
               within: BatchTrace | None = None) -> tuple[list[Any], list[int | None]]:
    """Results of `fun` (a flat list) on stacked arguments, and the dimension each is stacked along. `within`: the trace
    whose elements `fun` may close over."""
    trace = BatchTrace(current.trace, size, within)
    try:
        with naming(() if trace.name is None else ((trace.name, index_of(size)),)):
            pairs = [trace.split(x) for x in under(trace, fun, *map(trace.join, args, dims))]
    finally:
        trace.alive = False
    check_leaks(trace)
    return [s for s, _ in pairs], [d for _, d in pairs]


def batch_jaxpr(closed: ClosedJaxpr, size: int, dims: tuple[int | None, ...],
                force: tuple[int | None, ...] | None = None) -> tuple[ClosedJaxpr, list[int | None]]:
    """The program on stacked arguments, and the dimensions along which its results are stacked.

    With `force`, result k is stacked along `force[k]` if that is not None.
    """
    how = (size.name, size.spmd, size.of_devices, size.typed) if isinstance(size, Axis) else None
    return _batch_jaxpr(closed, index_of(size), how, dims, force)


@weak_cache
def _batch_jaxpr(closed: ClosedJaxpr, length: int, how: tuple[Any, ...] | None, dims: tuple[int | None, ...],
                 force: tuple[int | None, ...] | None) -> tuple[ClosedJaxpr, list[int | None]]:
    size = length if how is None else Axis(length, *how)
    found: list[int | None] = []

    def fun(*stacks: Any) -> list[Any]:
        outs, out_dims = batch_flat(lambda *xs: eval_jaxpr(closed.jaxpr, closed.consts, *xs), size, stacks, dims)
        if force is not None:
            outs = [o if f is None else move_to(o, d, f, size) for o, d, f in zip(outs, out_dims, force, strict=True)]
            out_dims = [d if f is None else f for d, f in zip(out_dims, force, strict=True)]
        found.extend(out_dims)
        return outs

    avals = [stack_type(a, size, d) for a, d in zip(closed.in_avals, dims, strict=True)]
    jaxpr, consts = trace_to_jaxpr(fun, avals)
    return ClosedJaxpr(jaxpr, consts), found
