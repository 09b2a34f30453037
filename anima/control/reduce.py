"""Reductions by the user's own function: of whole axes (`reduce`) and of windows (`reduce_window`).

    >>> lax.reduce(jnp.array([1., 2., 3.]), 1., lambda a, x: a * x + 1., (0,))
    Array(16., dtype=float32)

The function takes what was found so far and one more element, on scalars; elements come in row-major order, after the
initial value. With a function of `lax` that it is known what leaves it alone (0 for `add`), and that as initial value,
these are `reduce_sum`, `reduce_window_max` and the like. Any other is a primitive that holds the function's program;
its derivatives, and what the compiler sees, are those of the loop that it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import tree
from anima.control.common import differences, strong_like, trace_pure
from anima.control.scan import scan
from anima.core.avals import Shape, ShapedArray, canonicalize_axes
from anima.core.jaxpr import ClosedJaxpr
from anima.core.kept import kept
from anima.core.primitive import Primitive, Zero
from anima.core.stage import StageTrace, close, eval_jaxpr, eval_numpy
from anima.core.trace import Trace, Tracer, aval_of, under
from anima.ops import elementwise as ew, reduce as rd, window as win
from anima.ops.composite import Composite
from anima.ops.family import known_scalar
from anima.ops.index import dynamic_slice
from anima.ops.placing import as_asked
from anima.ops.shape import (
    as_array,
    batch_at_front,
    broadcast,
    full,
    index_in_dim,
    reshape,
    slice as sliced,
    transpose,
)
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import fill, linearize_jaxpr
from anima.transforms.vmap import batch_jaxpr
from anima.util import weak_cache

UNROLLED = 8   # elements that are combined without a loop ...
WINDOWS = 32   # ... and those of a window
Arrays = list[Any]
Apply = Callable[[Arrays, Arrays], Arrays]  # the computation on arrays of one shape, element by element

# Of each operation that is known: what reduces axes, what reduces windows, and what the operation leaves alone.
KNOWN: dict[Primitive, tuple[Primitive, Primitive | None, Callable[[Any], Any]]] = {
    ew.add: (rd.reduce_sum_p, win.reduce_window_sum_p, lambda dtype: 0),
    ew.mul: (rd.reduce_prod_p, None, rd.reduce_prod_p.identity),
    ew.max: (rd.reduce_max_p, win.reduce_window_max_p, rd.reduce_max_p.identity),
    ew.min: (rd.reduce_min_p, win.reduce_window_min_p, rd.reduce_min_p.identity),
    ew.and_: (rd.reduce_and_p, None, rd.reduce_and_p.identity),
    ew.or_: (rd.reduce_or_p, None, rd.reduce_or_p.identity),
    ew.xor: (rd.reduce_xor_p, None, rd.reduce_xor_p.identity),
}


INFINITE = {ew.max: -np.inf, ew.min: np.inf}  # what leaves integers alone, too


def is_known(computation: Any, init: Any, dtype: Any) -> bool:
    """Whether the computation is an operation of `lax` that leaves the other operand of `init` alone."""
    value = known_scalar(init) if isinstance(computation, Primitive) and computation in KNOWN else None
    return value is not None and bool(value == KNOWN[computation][2](dtype) or value == INFINITE.get(computation))


def operation_of(jaxpr: ClosedJaxpr) -> Any:
    """The known operation that a computation consists of; None for any other."""
    inner = jaxpr.jaxpr
    if len(inner.eqns) != 1 or len(inner.invars) != 2:
        return None
    (eqn,) = inner.eqns
    known = eqn.primitive in KNOWN and set(eqn.invars) == set(inner.invars) and eqn.outvars == inner.outvars
    return eqn.primitive if known and not (eqn.primitive is ew.add and inner.invars[0].aval.dtype == bool) else None


@weak_cache
def on_arrays(computation: ClosedJaxpr, shape: Shape, count: int) -> ClosedJaxpr:
    """A program on scalars as one on arrays of this shape, element by element, but for its first `count` arguments."""
    for n in reversed(shape):
        dims = (None,) * count + (0,) * (len(computation.in_avals) - count)
        computation, _ = batch_jaxpr(computation, n, dims, (0,) * len(computation.out_avals))
    return computation


def applied(computation: ClosedJaxpr, consts: Sequence[Any], shape: Shape) -> Apply:
    """The computation on arrays of this shape; `consts` are its first arguments."""
    program = on_arrays(computation, shape, len(consts))
    return lambda totals, xs: eval_jaxpr(program.jaxpr, program.consts, *consts, *totals, *xs)


def without(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(n for d, n in enumerate(shape) if d not in axes)


# ---------------------------------------------------------------- the loops that reductions stand for


def fold_axes(computation: ClosedJaxpr, consts: Sequence[Any], xs: Arrays, inits: Arrays, axes: Shape) -> Arrays:
    """All elements along axes combined, one after the other; of what is kept, all at once. Without axes there is
    nothing to combine, not even with initial values."""
    if not axes:
        return xs
    shape = aval_of(xs[0]).shape
    kept, length = without(shape, axes), math.prod(shape[a] for a in axes)
    order = (*axes, *(d for d in range(len(shape)) if d not in axes))
    xs = [reshape(transpose(x, order), (length, *kept)) for x in xs]
    totals = [broadcast(init, kept) for init in inits]
    if 0 in kept:
        return totals
    apply = applied(computation, consts, kept)
    if length > UNROLLED:
        return scan(lambda found, x: (apply(found, x), ()), totals, xs)[0]
    for k in range(length):
        totals = apply(totals, [index_in_dim(x, k, 0, keepdims=False) for x in xs])
    return totals


def fold_windows(computation: ClosedJaxpr, consts: Sequence[Any], xs: Arrays, inits: Arrays, w: dict[str, Any],
                 ) -> Arrays:
    """The elements of each window combined, one after the other; of all windows at once. Padding does not count."""
    shape = aval_of(xs[0]).shape
    out = win.reduce_window_shape_tuple(shape, **w)
    totals = [broadcast(init, out) for init in inits]
    if 0 in out:
        return totals
    apply = applied(computation, consts, out)
    laid = [win.laid_out(x, 0, w) for x in xs]
    inside = win.laid_out(full(shape, True), False, w) if win.is_padded(w) else None
    reach = tuple((n - 1) * stride + 1 for n, stride in zip(out, w["window_strides"], strict=True))

    def step(totals: Arrays, take: Callable[[Any], Any]) -> Arrays:
        new = apply(totals, list(map(take, laid)))
        if inside is None:
            return new
        here = take(inside)
        return [ew.select_n_p.bind(here, a, b) for a, b in zip(totals, new, strict=True)]

    starts = list(win.offsets(w))
    if len(starts) > WINDOWS:
        return scan(lambda found, start: (step(found, lambda x: sliced(
            dynamic_slice(x, list(start), reach), (0,) * len(reach), reach, w["window_strides"])), ()),
            totals, tuple(as_array(np.asarray(places, np.int32)) for places in zip(*starts, strict=True)))[0]
    for start in starts:
        end = [a + n for a, n in zip(start, reach, strict=True)]
        totals = step(totals, partial(sliced, start_indices=start, limit_indices=end, strides=w["window_strides"]))
    return totals


# ---------------------------------------------------------------- the primitives


class Fold(Composite):
    """A loop as one operation: `computation` runs through the elements of the first half of the operands, from the
    initial values, which are the second half. Derivatives, and batches of initial values, are those of the loop."""

    multiple_results = True
    not_scalar: type[Exception] = ValueError  # raised for initial values that are arrays

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The loop, which is not kept: the program in it is a user's."""
        return self.trace(params, avals)

    def checked(self, avals: Sequence[ShapedArray], jaxpr: ClosedJaxpr) -> Sequence[ShapedArray]:
        """The operands among the arguments; errors where types do not fit together."""
        count = len(avals) // 2
        xs, inits = avals[:count], avals[count:]
        if any(i.shape for i in inits):
            raise self.not_scalar(f"{self.name} expected initial values to be scalars, but they have shapes "
                             f"{[i.shape for i in inits]}.")
        if [x.dtype for x in xs] != [i.dtype for i in inits]:
            raise TypeError(f"{self.name} operand dtypes should match corresponding initial value dtypes, got "
                            f"operands {_types(xs)} and initial values {_types(inits)}.")
        if any(x.shape != xs[0].shape for x in xs):
            raise ValueError(f"{self.name} operands must have equal shapes, got {_types(xs)}.")
        return xs

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Arrays, Arrays]:
        closed = self.body(params, list(map(aval_of, primals)))
        new, mask = jvp_jaxpr(closed, tuple(not isinstance(t, Zero) for t in tangents))
        outs = eval_jaxpr(new.jaxpr, new.consts, *primals, *(t for t in tangents if not isinstance(t, Zero)))
        return outs[: len(mask)], fill(mask, outs[len(mask):], outs)

    def linearize(self, parent: Trace, recorder: StageTrace, primals: Sequence[Any], tangents: Sequence[Any],
                  **params: Any) -> tuple[Arrays, Arrays]:
        """Runs the loop under `parent`, keeping residuals, and records the linear one with `recorder`."""
        closed = self.body(params, list(map(aval_of, primals)))
        primal, tangent, mask = linearize_jaxpr(closed, tuple(not isinstance(t, Zero) for t in tangents))
        outs = under(parent, eval_jaxpr, primal.jaxpr, primal.consts, *primals)
        given = [t for t in tangents if not isinstance(t, Zero)]
        found = under(recorder, eval_jaxpr, tangent.jaxpr, tangent.consts, *outs[len(mask):], *given)
        return outs[: len(mask)], fill(mask, found, outs)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        count = len(args) // 2
        if all(d is None for d in dims[count:]):
            stacks = [batch_at_front(a, d, size) for a, d in zip(args[:count], dims, strict=False)]
            return self.bind(*stacks, *args[count:], **self.led(params)), [0] * count
        avals = [a if d is None else a.update(shape=without(a.shape, (d,)))
                 for a, d in zip(map(aval_of, args), dims, strict=True)]
        closed, out_dims = batch_jaxpr(self.body(params, avals), size, tuple(dims))
        return eval_jaxpr(closed.jaxpr, closed.consts, *args), out_dims

    def led(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters for operands with one more dimension in front."""
        raise self._missing("Batching")


class CustomReduce(Fold):
    """Combines all elements along `dimensions`."""

    def infer(self, *avals: ShapedArray, jaxpr: ClosedJaxpr, dimensions: Shape) -> list[ShapedArray]:
        xs = self.checked(avals, jaxpr)
        if len(set(dimensions)) != len(dimensions) or not all(0 <= d < xs[0].ndim for d in dimensions):
            raise ValueError(f"reduce dimensions {dimensions} are not distinct dimensions of {xs[0].str_short()}.")
        return [ShapedArray(without(x.shape, dimensions), x.dtype) for x in xs]

    def eval(self, *args: np.ndarray, jaxpr: ClosedJaxpr, dimensions: Shape) -> Arrays:
        count = len(args) // 2
        xs, inits = args[:count], args[count:]
        if not dimensions:
            return list(xs)
        kept = without(xs[0].shape, dimensions)
        totals = [np.full(kept, i, i.dtype) for i in inits]
        if 0 in kept:
            return totals
        length = math.prod(xs[0].shape[d] for d in dimensions)
        rows = [np.moveaxis(x, dimensions, range(len(dimensions))).reshape((length, *kept)) for x in xs]
        program = on_arrays(jaxpr, kept, 0)
        for k in range(length):
            totals = eval_numpy(program, [*totals, *(np.asarray(x[k]) for x in rows)])
        return totals

    def program(self, *args: Any, jaxpr: ClosedJaxpr, dimensions: Shape) -> Arrays:
        count, operation = len(args) // 2, operation_of(jaxpr)
        if operation is None or not dimensions:
            return fold_axes(jaxpr, (), list(args[:count]), list(args[count:]), dimensions)
        total = KNOWN[operation][0].bind(args[0], axes=dimensions)
        return [operation.bind(broadcast(args[1], total.shape), total)]

    def led(self, params: dict[str, Any]) -> dict[str, Any]:
        return {**params, "dimensions": tuple(d + 1 for d in params["dimensions"])}


class ReduceWindow(Fold):
    """Combines the elements of each window (see `anima/ops/window.py`); padding does not count."""

    not_scalar = TypeError

    def infer(self, *avals: ShapedArray, jaxpr: ClosedJaxpr, **w: Any) -> list[ShapedArray]:
        xs = self.checked(avals, jaxpr)
        shape = win.check_windows(self.name, xs[0].shape, **w)
        return [ShapedArray(shape, x.dtype) for x in xs]

    def eval(self, *args: np.ndarray, jaxpr: ClosedJaxpr, **w: Any) -> Arrays:
        count = len(args) // 2
        xs, inits = args[:count], args[count:]
        out = win.reduce_window_shape_tuple(xs[0].shape, **w)
        totals = [np.full(out, i, i.dtype) for i in inits]
        if 0 in out:
            return totals
        laid = [win.laid_out_numpy(x, 0, w) for x in xs]
        inside = win.laid_out_numpy(np.full(xs[0].shape, True), False, w)
        program = on_arrays(jaxpr, out, 0)
        for start in win.offsets(w):
            places = win.element_slices(out, start, w)
            new = eval_numpy(program, [*totals, *(x[places] for x in laid)])
            totals = [np.where(inside[places], a, b) for a, b in zip(new, totals, strict=True)]
        return totals

    def program(self, *args: Any, jaxpr: ClosedJaxpr, **w: Any) -> Arrays:
        count, operation = len(args) // 2, operation_of(jaxpr)
        if operation is None:
            return fold_windows(jaxpr, (), list(args[:count]), list(args[count:]), w)
        x, init = args
        out = win.reduce_window_shape_tuple(x.shape, **w)
        if 0 in out:
            return [broadcast(init, out)]
        over_axes, over_windows, identity = KNOWN[operation]
        if over_windows is not None:
            total = over_windows.bind(x, **w)
        else:
            (total,) = win.windowed(lambda a, b: [operation.bind(a[0], b[0])],
                                    [win.laid_out(x, identity(x.dtype), w)], w,
                                    lambda y, axes: over_axes.bind(y, axes=tuple(axes)))
        return [operation.bind(broadcast(init, out), total)]

    def led(self, params: dict[str, Any]) -> dict[str, Any]:
        w = {name: value for name, value in params.items() if name != "jaxpr"}
        return {"jaxpr": params["jaxpr"], **win.led(w, 0)}


reduce_p = CustomReduce("reduce")
reduce_window_p = ReduceWindow("reduce_window")


def _types(avals: Sequence[ShapedArray]) -> str:
    return "[" + ", ".join(a.str_short() for a in avals) + "]"


# ---------------------------------------------------------------- the functions


def _fold(name: str, operands: Any, init_values: Any, computation: Callable[..., Any], known: Callable[[Any], Any],
          primitive: Fold, loop: Callable[..., Arrays], params: Callable[[Shape], dict[str, Any]]) -> Any:
    """`known(operation)(x)` where the computation is one, the primitive where it can hold it, else the loop."""
    leaves, structure = tree.flatten(operands)
    inits, init_structure = tree.flatten(init_values)
    if structure != init_structure:
        raise ValueError("Operands must have the same tree structure as init_values: "
                         f"{structure} vs. {init_structure}")
    if not leaves:
        raise ValueError(f"{name} requires at least one operand.")
    xs = list(map(as_array, leaves))
    avals = [a.strip_weak_type() for a in map(aval_of, xs)]
    if len(xs) == 1 and not aval_of(inits[0]).shape and is_known(computation, inits[0], avals[0].dtype):
        reduction = known(computation)
        if reduction is not None:
            return tree.unflatten(structure, [reduction(xs[0])])
    inits = [as_array(i) for i in strong_like(inits, avals)]
    scalars = [a.update(shape=()) for a in avals]
    given = params(avals[0].shape)
    closed, consts, out_tree = kept(computation, (name, structure, tuple(scalars)), lambda: trace_pure(
        lambda a, b: _strong(computation(a, b), scalars), tree.structure((operands, operands)), scalars * 2, name))
    if out_tree != structure:
        raise ValueError(f"{name} computation must return the structure of the operands, {structure}, but it returns "
                         f"{out_tree}.")
    problems = differences(structure, scalars, closed.out_avals, "input")
    if problems:
        raise TypeError(f"{name} computation must return scalars of the operands' types, but they differ:\n\n"
                        + "\n".join(problems))
    if any(isinstance(c, Tracer) for c in consts):
        primitive.infer(*avals, *map(aval_of, inits), jaxpr=closed, **given)
        return tree.unflatten(structure, loop(closed, consts, xs, inits, given))
    held, _ = close(closed.jaxpr.replace(constvars=closed.jaxpr.invars[: len(consts)],
                                         invars=closed.jaxpr.invars[len(consts):]), consts)
    return tree.unflatten(structure, primitive.bind(*xs, *inits, jaxpr=held, **given))


def _strong(outs: Any, avals: Sequence[ShapedArray]) -> Any:
    """The computation's results, weakly typed ones converted to the operands' types."""
    leaves, structure = tree.flatten(outs)
    if len(leaves) != len(avals):
        return outs
    return tree.unflatten(structure, strong_like(leaves, avals))


def reduce(operands: Any, init_values: Any, computation: Callable[[Any, Any], Any], dimensions: Sequence[int],
           out_sharding: Any = None) -> Any:
    """Combines all elements along `dimensions` by a function, one after the other.

    Args:
      operands: an array, or a pytree of arrays of one shape that are reduced together.
      init_values: scalars in the same structure, of the same dtypes: where to start from.
      computation: `(found so far, element) -> found`, on scalars in the structure of the operands. If it is
        `lax.add`, `mul`, `max`, `min`, `bitwise_and`, `bitwise_or` or `bitwise_xor`, and the initial value is what
        that leaves alone, this is `reduce_sum` and so on.

    Returns:
      Arrays in the structure of the operands, without `dimensions`; for no dimensions, the operands.

    Raises:
      TypeError: for dtypes of initial values or results that differ from the operands'.
      ValueError: for other structures, shapes or dimensions than these.

        >>> lax.reduce(jnp.array([1., 2., 3.]), 1., lambda a, x: a * x + 1., (0,))
        Array(16., dtype=float32)

    Differs from JAX: the computation may close over tracers, initial values may be mapped by `vmap`, and derivatives
    exist for any computation, initial values included.
    """
    if out_sharding is not None:
        return as_asked("reduce", None, out_sharding, reduce, operands, init_values, computation, dimensions)
    def axes(shape: Shape) -> Shape:
        return canonicalize_axes(tuple(dimensions), len(shape))

    return _fold("reduce", operands, init_values, computation,
                 lambda operation: lambda x: KNOWN[operation][0].bind(x, axes=axes(x.shape)), reduce_p,
                 lambda closed, consts, xs, inits, given: fold_axes(closed, consts, xs, inits, given["dimensions"]),
                 lambda shape: {"dimensions": axes(shape)})


def reduce_window(operand: Any, init_value: Any, computation: Callable[[Any, Any], Any],
                  window_dimensions: Sequence[int], window_strides: Sequence[int] | None = None,
                  padding: str | Sequence[tuple[int, int]] = "VALID", base_dilation: Sequence[int] | None = None,
                  window_dilation: Sequence[int] | None = None) -> Any:
    """Combines the elements under a window by a function, for each position of the window.

    Args:
      operand: an array, or a pytree of arrays of one shape that are reduced together.
      init_value: scalars in the same structure, of the same dtypes: where to start from.
      computation: `(found so far, element) -> found`, on scalars in the structure of the operands. `lax.add`, `max`
        and `min` with the initial value that they leave alone are faster than others.
      window_dimensions: the window's size in each dimension.
      window_strides: how far it moves at a time (1).
      padding: "VALID" (none), "SAME", "SAME_LOWER", or (low, high) for each dimension. Padding is not combined.
      base_dilation, window_dilation: distances of the operand's and the window's elements (1).

    Raises:
      TypeError: for sizes that do not fit the operand's rank or are not positive, and for dtypes as `reduce`.
      ValueError: for other structures or shapes than these.

        >>> lax.reduce_window(jnp.arange(5.), 0., lax.add, (3,))
        Array([3., 6., 9.], dtype=float32)

    Differs from JAX: derivatives and `vmap` of initial values as for `reduce`, and those of extremes under any
    dilation, of complex numbers, too.
    """
    def params(shape: Shape) -> dict[str, Any]:
        return win.window_params(shape, window_dimensions, window_strides, padding, base_dilation, window_dilation)

    def known(operation: Any) -> Callable[[Any], Any] | None:
        primitive = KNOWN[operation][1]
        return None if primitive is None else lambda x: primitive.bind(x, **params(x.shape))

    return _fold("reduce_window", operand, init_value, computation, known, reduce_window_p, fold_windows, params)
