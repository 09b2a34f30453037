"""Looking at programs without running them: `make_jaxpr`, `eval_shape`; what is done while tracing, and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from anima import errors, tree
from anima.api.jit import JitFunction, Signature
from anima.api.points import is_symbolic, symbolic_results
from anima.api.stages import ShapeDtypeStruct, struct_of, type_of
from anima.core.avals import ShapedArray
from anima.core.axes import naming
from anima.core.jaxpr import ClosedJaxpr
from anima.core.kept import kept
from anima.core.stage import Traced, trace_pytrees
from anima.core.trace import aval_of, ensure_compile_time_eval as ensure_compile_time_eval
from anima.util import clear_all, fun_name, place_of, wraps


def make_jaxpr(fun: Callable[..., Any], static_argnums: int | Sequence[int] = (),
               axis_env: Sequence[tuple[Any, int]] | None = None, return_shape: bool = False) -> Callable[..., Any]:
    """A function that returns the program that `fun` is, for arguments of these types.

    Args:
      static_argnums: arguments taken by value.
      axis_env: pairs (name, size) of named axes that collectives in `fun` are about.
      return_shape: return (jaxpr, shapes and dtypes of the results) instead.

    >>> make_jaxpr(lambda x: x * 2.0)(3.0)
    { lambda ; a:f32[]. let b:f32[] = mul a 2.0 in (b,) }
    """
    if not callable(fun):
        raise TypeError(f"Expected a callable value, got {fun!r}")
    signature = Signature(fun, static_argnums, None)

    @wraps(fun)
    @errors.api_boundary
    def jaxpr_maker(*args: Any, **kwargs: Any) -> Any:
        dynamic, named, static = signature.split(args, kwargs)
        leaves, in_tree = tree.flatten((dynamic, named))

        def whole(dynamic: Any, named: Any) -> Any:
            positional, keywords = signature.join(dynamic, named, static)
            return fun(*positional, **keywords)

        traced = Traced(fun_name(fun), place_of(fun), "make_jaxpr", signature.leaf_names(dynamic, named, static))
        with naming(axis_env or ()):
            jaxpr, consts, out_tree = trace_pytrees(whole, in_tree, list(map(type_of, leaves)), traced)
        closed = ClosedJaxpr(jaxpr, consts)
        if return_shape:
            return closed, tree.unflatten(out_tree, map(struct_of, closed.out_avals))
        return closed

    return jaxpr_maker


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of the results of `fun`, as a pytree of `ShapeDtypeStruct`s; nothing is computed.

    Where `fun` returns a `ShapeDtypeStruct`, that is the result. Arguments may be of sizes that are not known
    (`export.symbolic_shape`); so are the results.
    """
    if any(map(is_symbolic, tree.leaves((args, kwargs)))):
        return symbolic_results(partial(eval_shape, fun), args, kwargs)
    if isinstance(fun, JitFunction):  # it knows which of its arguments are static
        return fun.eval_shape(*args, **kwargs)
    leaves, in_tree = tree.flatten((args, kwargs))
    outs, _, out_tree = kept(fun, ("eval_shape", in_tree, tuple(map(type_of, leaves))),
                             lambda: _result_types(fun, args, kwargs))
    return tree.unflatten(out_tree, outs)


def _result_types(fun: Callable[..., Any], args: tuple[Any, ...],
                  kwargs: dict[str, Any]) -> tuple[list[ShapeDtypeStruct], tuple[()], Any]:
    """The types of the results of `fun`, nothing that it closes over, and the structure of the results."""
    told: list[Any] = []  # by each result that is a type already
    trees: list[Any] = []

    @wraps(fun)
    def arrays(*args: Any, **kwargs: Any) -> list[Any]:
        leaves, out_tree = tree.flatten(fun(*args, **kwargs))
        trees.append(out_tree)
        told.extend(x if isinstance(x, ShapeDtypeStruct) else None for x in leaves)
        return [x for x in leaves if not isinstance(x, ShapeDtypeStruct)]

    found = iter(make_jaxpr(arrays, return_shape=True)(*args, **kwargs)[1])
    return [next(found) if t is None else t for t in told], (), trees[0]


def typeof(x: Any) -> ShapedArray:
    """The type of a value, or of what a `ShapeDtypeStruct` stands for: shape, dtype and weak type."""
    return type_of(x) if isinstance(x, ShapeDtypeStruct) else aval_of(x)


def clear_caches() -> None:
    """Forgets every traced and compiled program of this process; functions are traced again when next called.

    Programs that nothing refers to any more go by themselves, but for the last 64 that were compiled and the last 128
    loops that ran outside of `jit`: these go now.
    """
    clear_all()
