"""`ShapeDtypeStruct`s where functions return them, and where types are asked for; signatures of jitted functions."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import anima
import anima.numpy as jnp

STRUCT = anima.ShapeDtypeStruct((2,), "complex64")


def test_types_of_what_is_a_type_already() -> None:
    found = anima.eval_shape(lambda x: {"given": STRUCT, "traced": x + 1, "number": 3}, jnp.zeros(4))
    assert found == {"given": STRUCT, "traced": anima.ShapeDtypeStruct((4,), "float32"),
                     "number": anima.ShapeDtypeStruct((), "int32", weak_type=True)}
    assert anima.eval_shape(lambda: STRUCT) is STRUCT
    assert anima.typeof(STRUCT) == STRUCT.aval
    with pytest.raises(TypeError, match="not a valid Anima type"):
        anima.jit(lambda: STRUCT)()


def test_whether_types_are_complex() -> None:
    assert jnp.iscomplexobj(STRUCT) and jnp.iscomplexobj(jnp.complex64) and jnp.isrealobj(jnp.float32)
    assert not jnp.iscomplexobj(None) and not jnp.iscomplexobj(anima.random.key(0))


def test_signatures_of_jitted_functions() -> None:
    def f(x: Any, *, scale: float = 2.0) -> Any:
        return x * scale

    for follow in (True, False):
        assert list(inspect.signature(anima.jit(f), follow_wrapped=follow).parameters) == ["x", "scale"]


def test_traces_tell_which_transformation_they_are_of() -> None:
    def f(x: Any) -> Any:
        seen.append(x._trace.main)
        return anima.jvp(lambda y: seen.append(y._trace.main) or x * y, (x,), (x,))[1]

    seen: list[Any] = []
    anima.jvp(f, (2.0,), (1.0,))
    assert seen[0] is not seen[1]
