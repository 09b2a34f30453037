"""`ShapeDtypeStruct`s where functions return them, are given them, and where types are asked for; signatures of jitted
functions."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
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


def test_arguments_of_which_only_the_types_are_used() -> None:
    struct = anima.ShapeDtypeStruct((2,), "float32")

    def like(x: Any) -> Any:
        return jnp.zeros(x.shape, x.dtype) + 1

    inner = anima.jit(like)
    given = ({"a": struct, "b": anima.ShapeDtypeStruct((3,), "int32")}, 2.0)
    for f in (lambda d, y: anima.tree.map(lambda x: like(x) * y, d),
              lambda d, y: anima.tree.map(lambda x: inner(x) * y, d),
              lambda d, y: anima.tree.map(lambda x: (x + 1, like(x) * y)[1], d)):
        for _ in range(2):
            found = anima.jit(f)(*given)
            assert np.asarray(found["a"]).tolist() == [2, 2] and np.asarray(found["b"]).tolist() == [2, 2, 2]
    assert anima.jit(lambda y: inner(struct) * y)(3.0).tolist() == [3, 3]
    assert anima.jit(lambda x: jnp.ones(x.shape))(anima.ShapeDtypeStruct((2,), anima.random.key(0).dtype)).sum() == 2
    for f in (anima.jit(lambda x: x * 2), anima.jit(lambda x: x), anima.jit(lambda x: inner(x) + x),
              anima.jit(like, keep_unused=True), anima.grad(jnp.sum), lambda x: anima.jit(lambda: inner(x) + x)()):
        with pytest.raises(TypeError):
            f(struct)


def test_derivatives_by_what_is_only_described() -> None:
    struct = anima.ShapeDtypeStruct((2,), "float32")

    def loss(x: Any, y: Any) -> Any:
        return (jnp.ones(x.shape) * y).sum()

    value, slopes = anima.value_and_grad(loss, (0, 1))(struct, 3.0)
    assert (value, slopes[0].tolist(), slopes[1]) == (6, [0, 0], 2)
    out, pull = anima.vjp(loss, struct, 3.0)
    assert out == 6 and pull(1.0)[0].tolist() == [0, 0]
    assert anima.jvp(loss, (struct, 3.0), (jnp.ones(2), 1.0))[1] == 2
    assert anima.jit(anima.grad(loss))(struct, 3.0).tolist() == [0, 0]
    with pytest.raises(TypeError, match="has no value"):
        anima.grad(lambda x: (x * x).sum())(struct)


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
