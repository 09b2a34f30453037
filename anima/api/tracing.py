"""Looking at programs without running them: `make_jaxpr`, `eval_shape`; what is done while tracing, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from anima import errors, tree
from anima.api.jit import JitFunction, Signature
from anima.api.stages import struct_of, type_of
from anima.core.avals import ShapedArray
from anima.core.axes import naming
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive
from anima.core.stage import Traced, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, Trace, Tracer, aval_of, installed, under
from anima.util import clear_all, fun_name


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
        found: list[Any] = []

        def flat(*xs: Any) -> list[Any]:
            positional, keywords = tree.unflatten(in_tree, xs)
            positional, keywords = signature.join(positional, keywords, static)
            outs, out_tree = tree.flatten(fun(*positional, **keywords))
            found.append(out_tree)
            return outs

        traced = Traced(fun_name(fun), _place(fun), "make_jaxpr", signature.leaf_names(dynamic, named, static))
        with naming(axis_env or ()):
            jaxpr, consts = trace_to_jaxpr(flat, list(map(type_of, leaves)), traced)
        closed = ClosedJaxpr(jaxpr, consts)
        if return_shape:
            return closed, tree.unflatten(found[0], map(struct_of, closed.out_avals))
        return closed

    return jaxpr_maker


def _place(fun: Callable[..., Any]) -> str:
    code = getattr(fun, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of the results of `fun`, as a pytree of `ShapeDtypeStruct`s; nothing is computed."""
    if isinstance(fun, JitFunction):  # it knows which of its arguments are static
        return fun.eval_shape(*args, **kwargs)
    return make_jaxpr(fun, return_shape=True)(*args, **kwargs)[1]


def typeof(x: Any) -> ShapedArray:
    """The type of a value: shape, dtype and weak type."""
    return aval_of(x)


class CompileTimeTrace(Trace):
    """Applies primitives at once, whatever is being traced, except to values that are tracers."""

    label = "CompileTimeTrace"
    holds_refs = False

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        waits = any(isinstance(x, Tracer) for x in args)
        return under(self.parent if waits else EVAL, primitive.bind, *args, **params)


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """A block (or decorated function) in which operations on known values are done while tracing.

    >>> @jit
    ... def f(x):
    ...     with anima.ensure_compile_time_eval():
    ...         n = int(anima.numpy.sum(anima.numpy.arange(3)))   # a number, where jit alone would record a sum
    ...     return x * n
    >>> f(2)
    Array(6, dtype=int32, weak_type=True)
    """
    with installed(CompileTimeTrace(current.trace)):
        yield


def clear_caches() -> None:
    """Forgets every traced and compiled program of this process; functions are traced again when next called.

    Programs that nothing refers to any more go by themselves, but for the last 64 that were compiled and the last 128
    loops that ran outside of `jit`: these go now.
    """
    clear_all()
