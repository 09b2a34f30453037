"""Every refusal that no other test reaches, with the words that say what happened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, tree
from anima.api.stages import ShapeDtypeStruct
from anima.core.jaxpr import Jaxpr
from anima.core.primitive import Primitive
from anima.experimental.jet import jet


def _generator(x: Any) -> Any:
    yield x


def _double(x: Any) -> Any:
    return x * 2


def _backward_only(x: Any) -> Any:
    f = anima.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (x * 2, None), lambda _, t: (t * 2,))
    return f(x)


REFUSALS: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "jit of a generator": (TypeError, "Expected a function, got a generator function: .*_generator",
                           lambda: anima.jit(_generator)),
    "tangents of another structure": (
        TypeError, "linearized function called with arguments of structure .*but the function was linearized at",
        lambda: anima.linearize(_double, 1.0)[1]((1.0, 2.0))),
    "cotangents of another structure": (
        ValueError, "unexpected tree structure of argument to vjp function: got .*expected to match",
        lambda: anima.vjp(_double, 1.0)[1]((1.0, 2.0))),
    "two cotangents": (TypeError, "takes one argument.*but got 2", lambda: anima.vjp(_double, 1.0)[1](1.0, 2.0)),
    "forward mode of a custom_vjp": (TypeError, r"can't apply forward-mode differentiation \(jvp\) to a custom_vjp",
                                     lambda: anima.jvp(_backward_only, (1.0,), (1.0,))),
    "another debugger": (ValueError, "unknown debugger backend 'web'; there is 'cli'",
                         lambda: anima.debug.breakpoint(backend="web")),
    "two ways of numbering": (ValueError, "cannot switch from manual field specification to automatic",
                              lambda: anima.debug.print("{} {0}", 1)),
    "a field without value": (IndexError, "asks for argument number 1, but there are 1",
                              lambda: anima.debug.print("{} {}", 1)),
    "a named field without value": (KeyError, "missing", lambda: anima.debug.print("{missing}", there=1)),
    "operand twice": (TypeError, "if 'operand' keyword is passed then no positional .* passed, got operand=1",
                      lambda: lax.cond(True, _double, _double, 2.0, operand=1)),
    "operand twice in a switch": (TypeError, "no positional operands can be passed",
                                  lambda: lax.switch(0, [_double, _double], 2.0, operand=1)),
    "series of other lengths": (ValueError, r"jet terms have inconsistent lengths.*they have \[1, 2\] terms",
                                lambda: jet(lambda x, y: x * y, (1.0, 2.0), ([1.0], [1.0, 0.0]))),
    "series of other lengths in both": (TypeError, "list of its derivatives, got",
                                        lambda: jet(_double, (1.0,), (1.0,))),
    "an array that must not be copied": (ValueError, "Unable to avoid copy while converting float32 to float64",
                                         lambda: jnp.ones(3).__array__(np.dtype("float64"), copy=False)),
    "length of a scalar": (TypeError, r"len\(\) of unsized object", lambda: len(jnp.float32(1))),
    "length of a scalar's type": (TypeError, r"len\(\) of unsized object",
                                  lambda: len(ShapeDtypeStruct((), "float32"))),
    "iteration over a scalar": (TypeError, "iteration over a 0-d array", lambda: iter(jnp.float32(1))),
    "a vector as a number": (TypeError, "Only scalar arrays can be converted to Python scalars; got arr.ndim=1",
                             lambda: float(jnp.ones(1))),
    "a float as an index": (TypeError, "Only integer scalar arrays can be converted to a scalar index",
                            lambda: [1][jnp.float32(0)]),  # type: ignore[call-overload]
    "a dtype's field": (AttributeError, "is immutable",
                        lambda: setattr(anima.random.key(0).dtype, "tag", "other")),
    "a record's field": (dataclasses.FrozenInstanceError, "cannot change field 'eqns'",
                         lambda: setattr(Jaxpr([], [], [], []), "eqns", [1])),
    "a primitive without rules": (NotImplementedError, "Type inference of 'thing' is not implemented",
                                  lambda: Primitive("thing").infer()),
    "a primitive without values": (NotImplementedError, "Evaluation of 'thing' is not implemented",
                                   lambda: Primitive("thing").eval()),
    "transposing other trees": (TypeError, "Mismatch\n.*\n != \n", lambda: tree.transpose(
        tree.structure([0, 0]), tree.structure((0, 0)), [(1, 2), 3])),
    "a tree that is no outer part": (ValueError, "tree", lambda: tree.structure([0, 0]).flatten_up_to((1, 2))),
    "registering what is no class": (TypeError, "Expected a class, got 3", lambda: tree.register_pytree_node(
        3, lambda x: ((), None), lambda _, xs: 3)),  # type: ignore[arg-type]
    "no array": (TypeError, "not a valid Anima type", lambda: anima.device_put("text")),
    "a text as operand": (TypeError, "str", lambda: lax.sin("text")),
    "a masked array": (ValueError, "masked arrays are not supported as inputs: the mask would be lost",
                       lambda: lax.sin(np.ma.array([1.0, 2.0], mask=[0, 1]))),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    kind, words, call = REFUSALS[name]
    with pytest.raises(kind, match=f"(?s){words}"):
        call()


@pytest.mark.parametrize("use, words", [
    (bool, "boolean"), (int, "int"), (float, "Abstract tracer|concrete"), (complex, "Abstract tracer|concrete"),
    (np.asarray, "__array__"), (lambda x: [1, 2][x], "index|integer")])
def test_what_traced_values_are_not(use: Callable[[Any], Any], words: str) -> None:
    """While they are traced, and with words of their own when their function is over."""
    kept: list[Any] = []

    def keeps(x: Any) -> Any:
        kept.append(x)
        return x

    with pytest.raises(Exception, match=f"(?s){words}"):
        anima.jit(use)(jnp.int32(1))
    anima.jit(keeps)(jnp.int32(1))
    if use is not np.asarray:
        with pytest.raises(anima.errors.UnexpectedTracerError, match=r"(?s)side effect.*to escape the scope"):
            use(kept[0])
    with pytest.raises(anima.errors.UnexpectedTracerError):
        kept[0] + 1
    with pytest.raises(anima.errors.UnexpectedTracerError):
        anima.jit(lambda y: y + kept[0])(1)


@pytest.mark.parametrize("transform", [
    anima.jit, anima.vmap, lambda f: lambda x: anima.jvp(f, (x,), (x,)), anima.checkpoint,
    lambda f: lambda x: anima.linearize(f, x), lambda f: lambda x: anima.vjp(f, x),
    lambda f: lambda x: lax.scan(lambda c, _: (c, f(c)), x, None, length=2),
    lambda f: lambda x: jet(f, (x,), ([x, x],))])
def test_every_trace_ends(transform: Callable[..., Any]) -> None:
    """A value of a trace that is over is refused, whichever trace made it."""
    kept: list[Any] = []

    def keeps(x: Any) -> Any:
        kept.append(x * 2)
        return x

    transform(keeps)(jnp.ones(3))
    with pytest.raises(anima.errors.UnexpectedTracerError):
        jnp.sin(kept[0])
