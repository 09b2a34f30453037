"""Differentiation for users: `grad`, `jvp`, `vjp`, `linearize`, and their likes.

Everything is built of three transformations: push tangents forward (`transforms/forward.py`), leave a
linear program behind (`transforms/linearize.py`), run it backwards (`transforms/transpose.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import errors, tree
from anima.api.derivatives import VJP, Pushforward, has_tangent, user_tangent
from anima.api.described import are_described, differentiable
from anima.api.jit import jit
from anima.api.signature import Signature
from anima.api.stages import ShapeDtypeStruct, type_of
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import ClosedJaxpr, Jaxpr
from anima.core.primitive import Linear, Zero
from anima.core.refs import Ref, check_given_once
from anima.core.source import Transform, within
from anima.core.stage import Traced, eval_jaxpr, trace_to_jaxpr
from anima.core.trace import aval_of
from anima.ops.broadcast import as_array, as_operand, instantiate
from anima.ops.elementwise import convert
from anima.transforms.discharge import without_refs
from anima.transforms.eager import linearize_again, without_last
from anima.transforms.forward import jvp_flat
from anima.transforms.linearize import linear_flat
from anima.transforms.refs import cells_of, held_by, new_ref, put, whole
from anima.transforms.transpose import backward
from anima.util import fun_name, wraps


def _flat_fun(fun: Callable[..., Any], in_tree: Any, has_aux: bool = False) -> tuple[Callable[..., list[Any]],
                                                                                     list[Any]]:
    """`fun` on flat arguments, and a list that will hold its output tree, how many results are its leaves, and
    what makes aux of the other results: what is no array in aux stays as it is."""
    found: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        result = fun(*tree.unflatten(in_tree, leaves))
        aux: Any = None
        if has_aux:
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                got = f"an array of type {errors.describe(result.aval)}" if isinstance(result, Array) else repr(result)
                raise TypeError(f"expected two-element tuple output with has_aux=True, got {got}. Fix: return (value, "
                                "aux), or leave has_aux out.")
            result, aux = result
        outs, out_tree = tree.flatten(result)
        aux_leaves, aux_tree = tree.flatten(aux)
        refs = [isinstance(x, Ref) for x in aux_leaves]
        aux_leaves = [held_by(x, fun, "differentiation") for x in aux_leaves]
        others = [None if isinstance(x, Array) else (x,) for x in aux_leaves]

        def join_aux(arrays: Sequence[Any]) -> Any:
            given = iter(arrays)
            full = [next(given) if other is None else other[0] for other in others]
            return tree.unflatten(aux_tree, [new_ref(x) if r else x for x, r in zip(full, refs, strict=True)])

        found[:] = [out_tree, len(outs), join_aux]
        for x in outs:
            if isinstance(x, Ref):
                raise ValueError(f"function {fun_name(fun)} that is differentiated returned a mutable array reference "
                                 f"of type {x.aval!r}. Return what it holds: `r[...]` or `freeze(r)`.")
            aval_of(x)
        return outs + [x for x in aux_leaves if isinstance(x, Array)]

    return flat, found


def _check_tangent(primal: Any, tangent: Any, kind: str) -> Any:
    """The tangent given for a primal, checked; Zero for float0."""
    expected = tangent_aval(aval_of(primal))
    if isinstance(tangent, np.ndarray) and tangent.dtype == dtypes.float0:
        got = ShapedArray(tangent.shape, dtypes.float0)
    else:
        got = aval_of(tangent)
    if got.dtype != expected.dtype:
        raise TypeError(f"primal and tangent arguments to {kind} do not match; dtypes must be equal, or in case of "
                        "int/bool "
                        f"primal dtype the tangent dtype must be float0. Got primal dtype "
                        f"{dtypes.name(aval_of(primal).dtype)} and so expected tangent dtype "
                        f"{dtypes.name(expected.dtype)}, but got tangent dtype {dtypes.name(got.dtype)} instead.")
    if got.shape != expected.shape:
        raise ValueError(f"{kind} called with different primal and tangent shapes; Got primal shape {expected.shape} "
                         "and "
                         f"tangent shape as {got.shape}")
    return Zero(expected) if expected.dtype == dtypes.float0 else as_array(tangent)


@errors.api_boundary
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """The value of `fun` at `primals` and its directional derivative along `tangents` (forward mode).

    Args:
      fun: a function of arrays and pytrees of them.
      primals, tangents: a tuple or list of arguments each, of equal structure, shapes and dtypes (integer
        arguments have tangents of dtype `float0`).
      has_aux: `fun` returns (out, aux), and aux is not differentiated.

    Returns:
      (out, tangent of out), and aux where `has_aux`.

    >>> jvp(lambda x: x ** 2, (3.0,), (1.0,))
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TypeError(f"primal and tangent arguments to anima.jvp must be tuples or lists; found "
                        f"{type(primals).__name__} and {type(tangents).__name__}.")
    flat, in_tree = tree.flatten(tuple(primals))
    flat_tangents, tangent_tree = tree.flatten(tuple(tangents))
    if in_tree != tangent_tree:
        raise TypeError(f"primal and tangent arguments to anima.jvp must have the same tree structure; primals have "
                        "tree "
                        f"structure {in_tree} whereas tangents have tree structure {tangent_tree}.")
    flat_fun, found = _flat_fun(fun, in_tree, has_aux)
    if are_described(flat):
        flat = differentiable(_flat_fun(fun, in_tree, has_aux)[0], flat, "the differentiated function")
    outs, out_tangents = _jvp_on_refs(flat_fun, flat, flat_tangents)
    out_tree, count, join_aux = found
    result = tree.unflatten(out_tree, _arrays(outs[:count]))
    tangent = tree.unflatten(out_tree, map(user_tangent, out_tangents[:count]))
    return (result, tangent, join_aux(outs[count:])) if has_aux else (result, tangent)


def _jvp_on_refs(fun: Callable[..., list[Any]], primals: Sequence[Any],
                 tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """`jvp_flat`, where the tangent of a reference is a reference: what `fun` makes of it goes there."""
    refs = [k for k, t in enumerate(tangents) if isinstance(primals[k], Ref) and isinstance(t, Ref)]
    check_given_once([*primals, *tangents], lambda k: f"argument {k}", "when calling anima.jvp")
    values = [whole(p) if k in refs else as_operand(p) for k, p in enumerate(primals)]
    given = [_check_tangent(p, whole(t) if k in refs else t, "anima.jvp")
             for k, (p, t) in enumerate(zip(values, tangents, strict=True))]

    def on_cells(*xs: Any) -> list[Any]:
        cells = cells_of(refs, primals, xs)
        return [*fun(*(cells.get(k, x) for k, x in enumerate(xs))), *(cells[k].whole() for k in refs)]

    outs, out_tangents = jvp_flat(within(Transform("jvp"))(on_cells), values, given)
    for k in reversed(refs):
        put(primals[k], outs.pop())
        put(tangents[k], instantiate(out_tangents.pop()))
    return outs, out_tangents


def _arrays(outs: Sequence[Any]) -> list[Any]:
    """Results as arrays: a Python number that a function returned becomes one."""
    return [x if isinstance(x, Array) else convert(x, aval_of(x).dtype, aval_of(x).weak_type) for x in outs]


def _linearize(fun: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool, kind: type[Any]) -> tuple[Any, ...]:
    """(out, derivative of `kind`, aux)."""
    flat, in_tree = tree.flatten(primals)
    flat_fun, found = _flat_fun(fun, in_tree, has_aux)
    if are_described(flat):
        flat = differentiable(_flat_fun(fun, in_tree, has_aux)[0], flat, "the differentiated function")
    flat = list(map(as_operand, flat))
    avals = list(map(aval_of, flat))
    named = within(Transform("jvp"))(flat_fun)
    outs, mask, jaxpr, consts = linearize_again(named, flat, list(map(has_tangent, avals)))
    out_tree, count, join_aux = found
    further = sum(mask[count:])
    more: tuple[Any, ...] = ()
    if kind is VJP:
        places = {id(x): k for k, x in reversed([*enumerate(flat)])}
        more = (tuple([places.get(id(c)) for c in consts]),)
    derivative = kind(without_last(jaxpr, further) if further else jaxpr, in_tree, out_tree, avals,
                      map(aval_of, outs[:count]), mask[:count], *more, consts)
    return tree.unflatten(out_tree, _arrays(outs[:count])), derivative, join_aux(outs[count:])


@errors.api_boundary
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of `fun` at `primals`, and its derivative there as a linear function of tangents.

    The derivative remembers what it needs: calling it many times does not evaluate `fun` again.

    Returns:
      (out, f_jvp), and aux where `has_aux`; `f_jvp(*tangents)` gives the tangent of out. It is a pytree.
    """
    result, push, aux = _linearize(fun, primals, has_aux, Pushforward)
    return (result, push, aux) if has_aux else (result, push)


def _refuse_reduce_axes(name: str, axes: Sequence[Any]) -> None:
    if axes:
        raise NotImplementedError(f"reduce_axes argument to {name} is deprecated: sum what {name} returns instead.")


@errors.api_boundary
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()) -> Any:
    """The value of `fun` at `primals`, and a function from a cotangent of it to cotangents of `primals`.

    Returns:
      (out, vjp_fun), and aux where `has_aux`; `vjp_fun(ct)` returns a tuple, one entry for each primal. It is
      a pytree: a jitted function can return it.

    >>> y, pull = vjp(lambda x: x ** 2, 3.0)
    >>> pull(1.0)
    (Array(6., dtype=float32, weak_type=True),)
    """
    _refuse_reduce_axes("vjp", reduce_axes)
    result, pull, aux = _linearize(fun, primals, has_aux, VJP)
    return (result, pull, aux) if has_aux else (result, pull)


def check_input(x: Any, name: str, holomorphic: bool, allow_int: bool, forward: bool = False) -> None:
    """TypeError unless `x` is something to differentiate by; of complex `x`, backwards only."""
    if isinstance(x, Ref):
        raise ValueError(f"{name} with respect to a mutable array reference of type {x.aval!r}: only arrays have "
                         "gradients. Differentiate by the array, and make the reference inside of the function.")
    dtype = (x if type(x) is ShapeDtypeStruct else aval_of(x)).dtype
    if holomorphic:
        if not dtypes.issubdtype(dtype, np.complexfloating):
            raise TypeError(f"{name} with holomorphic=True requires inputs with complex dtype, but got "
                            f"{dtypes.name(dtype)}.")
    elif forward and not dtypes.issubdtype(dtype, np.floating):
        raise TypeError(f"{name} requires real-valued inputs (input dtype that is a sub-dtype of np.floating), but got "
                        f"{dtypes.name(dtype)}. For holomorphic differentiation, pass holomorphic=True. For "
                        "differentiation of non-holomorphic functions involving complex inputs or integer inputs, use "
                        "anima.jvp directly.")
    elif not allow_int and not dtypes.issubdtype(dtype, np.inexact):
        raise TypeError(f"{name} requires real- or complex-valued inputs (input dtype that is a sub-dtype of "
                        f"np.inexact), but got {dtypes.name(dtype)}. If you want to use Boolean- or integer-valued "
                        "inputs, use vjp or set allow_int to True; else pass floats, as 3.0 for 3, or x.astype(float).")


def check_inputs(fun: Callable[..., Any], argnums: int | Sequence[int], args: Sequence[Any], name: str,
                 holomorphic: bool, allow_int: bool = False, forward: bool = False) -> None:
    """`check_input` of all leaves of the arguments `argnums` of `fun`; the error says which one it is."""
    for n in (argnums,) if isinstance(argnums, (int, np.integer)) else argnums:
        place = n % len(args)
        for k, leaf in enumerate(tree.leaves(args[place])):
            try:
                check_input(leaf, name, holomorphic, allow_int, forward)
            except TypeError as error:
                which = Signature(fun, None, None).leaf_names([None] * place + [args[place]], {}, None)[k]
                raise TypeError(f"{error} It is {which}, of the arguments of {fun_name(fun)}.") from None


def check_output_dtype(x: Any, name: str, holomorphic: bool) -> None:
    dtype = aval_of(x).dtype
    if holomorphic and not dtypes.issubdtype(dtype, np.complexfloating):
        raise TypeError(f"{name} with holomorphic=True requires outputs with complex dtype, but got "
                        f"{dtypes.name(dtype)}.")
    if not holomorphic and not dtypes.issubdtype(dtype, np.floating):
        advice = (" For holomorphic differentiation, pass holomorphic=True. For differentiation of non-holomorphic "
                  "functions involving complex outputs, use anima.vjp directly."
                  if dtypes.issubdtype(dtype, np.complexfloating) else
                  " For differentiation of functions with integer outputs, use anima.vjp directly.")
        raise TypeError(f"{name} requires real-valued outputs (output dtype that is a sub-dtype of np.floating), but "
                        "got "
                        f"{dtypes.name(dtype)}.{advice}")


def _check_scalar(fun: Callable[..., Any], x: Any) -> None:
    try:
        aval = aval_of(x)
    except TypeError:
        raise TypeError(f"Gradient only defined for scalar-output functions. Output was {x}. Fix: {fun_name(fun)} "
                        "returns the scalar alone, or (scalar, aux) under has_aux=True.") from None
    if aval.shape:
        raise TypeError(f"Gradient only defined for scalar-output functions. Output had shape: {aval.shape}. Fix: one "
                        f"number as the result of {fun_name(fun)} (a sum, a mean), or anima.jacrev for the derivatives "
                        "of each of its elements.")


def select_arguments(fun: Callable[..., Any], argnums: int | Sequence[int], args: tuple[Any, ...],
                     kwargs: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`fun` as a function of the arguments `argnums`, and those arguments."""
    nums = (argnums,) if isinstance(argnums, (int, np.integer)) else tuple(argnums)
    if not nums or not all(isinstance(n, (int, np.integer)) for n in nums):
        raise TypeError(f"argnums must be an int or a nonempty sequence of ints, got {argnums!r}")
    for n in nums:
        if not -len(args) <= n < len(args):
            named = f" Fix: pass by position what is given by name, {', '.join(kwargs)}." if kwargs else ""
            raise TypeError(f"differentiating {fun_name(fun)} with respect to {argnums=} requires at least "
                            f"{max(m if m >= 0 else -m - 1 for m in nums) + 1} positional arguments to be passed by "
                            f"the caller, but got only {len(args)} positional arguments.{named}")
    places = [n % len(args) for n in nums]
    if len(set(places)) < len(places):
        raise TypeError(f"argnums must name each argument once, got {argnums=} for {len(args)} arguments")

    def partial_fun(*chosen: Any) -> Any:
        given = dict(zip(places, chosen, strict=True))
        return fun(*(given.get(i, a) for i, a in enumerate(args)), **kwargs)

    return partial_fun, tuple(args[p] for p in places)


def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
                   holomorphic: bool = False, allow_int: bool = False,
                   reduce_axes: Sequence[Any] = ()) -> Callable[..., Any]:
    """A function that returns the value of `fun` and its gradient.

    Args:
      fun: a function whose result is a scalar (a pair of a scalar and aux where `has_aux`).
      argnums: which arguments to differentiate by; a tuple gives a tuple of gradients.
      holomorphic: `fun` is a holomorphic function of complex arguments.
      allow_int: integer arguments are let through; their gradients have dtype `float0`.

    Raises:
      TypeError: for results that are not real scalars, or arguments that are not floating.

    >>> value_and_grad(lambda x: 2 * x)(5.0)
    (Array(10., dtype=float32, weak_type=True), Array(2., dtype=float32, weak_type=True))
    """
    if not callable(fun):
        raise TypeError(f"Expected a callable value, got {fun!r}")
    _refuse_reduce_axes("grad", reduce_axes)

    @wraps(fun)
    @errors.api_boundary
    def value_and_grad_fun(*args: Any, **kwargs: Any) -> Any:
        partial_fun, chosen = select_arguments(fun, argnums, args, kwargs)
        check_inputs(fun, argnums, args, "grad", holomorphic, allow_int)
        value, pull, aux = _linearize(partial_fun, chosen, has_aux, VJP)
        _check_scalar(fun, value)
        check_output_dtype(value, "grad", holomorphic)
        aval = aval_of(value)
        grads = tree.unflatten(pull.in_tree, map(user_tangent, pull.flat([_one(aval)])))
        grad_out = grads[0] if isinstance(argnums, (int, np.integer)) else grads
        return ((value, aux), grad_out) if has_aux else (value, grad_out)

    return value_and_grad_fun


def _one(aval: ShapedArray) -> Any:
    """The cotangent 1 of a result, as a value, so that a program being recorded shows a literal."""
    return ConcreteArray(np.ones(aval.shape, aval.dtype), aval)


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
         allow_int: bool = False, reduce_axes: Sequence[Any] = ()) -> Callable[..., Any]:
    """The gradient of a scalar function by reverse mode; arguments as for `value_and_grad`.

    Returns:
      A function with the arguments of `fun` that returns the gradient, (gradient, aux) where `has_aux`.

    >>> grad(lambda x: x ** 3)(2.0)
    Array(12., dtype=float32, weak_type=True)
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, reduce_axes)

    @wraps(fun)
    @errors.api_boundary
    def grad_fun(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return grad_fun


def linear_transpose(fun: Callable[..., Any], *primals: Any, reduce_axes: Sequence[Any] = ()) -> Callable[..., Any]:
    """The transpose of a function that is linear; `primals` give shapes and dtypes only.

    Returns:
      A function from a value like the result of `fun` to a tuple of values like `primals`.
    """
    _refuse_reduce_axes("linear_transpose", reduce_axes)
    flat, in_tree = tree.flatten(primals)
    avals = list(map(type_of, flat))
    flat_fun, found = _flat_fun(fun, in_tree)
    closed = without_refs(ClosedJaxpr(*trace_to_jaxpr(
        flat_fun, avals, Traced(fun_name(fun), by="linear_transpose"))))
    out_tree = found[0]
    jaxpr, consts = linear_flat(lambda *xs: eval_jaxpr(closed.jaxpr, closed.consts, *xs), avals)

    return tree.Partial(partial(_transposed, jaxpr, avals, in_tree, out_tree, closed.out_avals), consts)


@errors.api_boundary
def _transposed(jaxpr: Jaxpr, avals: Sequence[ShapedArray], in_tree: Any, out_tree: Any,
                out_avals: Sequence[ShapedArray], consts: list[Any], ct: Any) -> Any:
    cts, ct_tree = tree.flatten(ct)
    if ct_tree != out_tree:
        raise TypeError(f"cotangent tree does not match function output, expected {out_tree} but got {ct_tree}")
    for x, aval in zip(cts, out_avals, strict=True):
        got = aval_of(x)
        if (got.shape, got.dtype) != (aval.shape, aval.dtype):
            raise TypeError(f"linear_transpose got a cotangent of type {got} for an output of type {aval}.")
    found_cts = backward(jaxpr, consts, list(map(Linear, avals)), list(map(as_array, cts)))
    return tree.unflatten(in_tree, map(user_tangent, found_cts))


def fwd_and_bwd(fun: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool = False,
                jitted: bool = True) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two halves of reverse mode as functions that are compiled once, and not once for each point.

    Args:
      argnums: which arguments to differentiate by.
      jitted: put both halves under `jit`.

    Returns:
      fwd, bwd: `fwd(*args, **kwargs)` gives (out, residuals), and aux where `has_aux`; `bwd(residuals, ct)` the
      cotangents of the arguments `argnums`, a tuple unless that is an int.

    >>> fwd, bwd = fwd_and_bwd(lambda x, y: x * y, argnums=(0, 1))
    >>> y, residuals = fwd(2.0, 3.0)
    >>> bwd(residuals, 1.0)
    (Array(3., dtype=float32, weak_type=True), Array(2., dtype=float32, weak_type=True))
    """

    @wraps(fun)
    def fwd(*args: Any, **kwargs: Any) -> Any:
        partial_fun, chosen = select_arguments(fun, argnums, args, kwargs)
        return vjp(partial_fun, *chosen, has_aux=has_aux)

    def bwd(residuals: VJP, ct: Any) -> Any:
        grads = residuals(ct)
        return grads[0] if isinstance(argnums, (int, np.integer)) else grads

    return (jit(fwd), jit(bwd)) if jitted else (fwd, bwd)
