"""What functions take as numbers and arrays, what they refuse, and how deep they may nest."""

from __future__ import annotations

import enum
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


class Metres(float):
    """A number of a class of its own."""


class Count(int):
    """A whole number of a class of its own."""


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize("x", [Metres(1.5), Count(3), Level.HIGH, type("Phase", (complex,), {})(1 + 2j)], ids=repr)
def test_subclasses_of_numbers_are_numbers(x: Any) -> None:
    plain = complex(x) if isinstance(x, complex) else float(x) if isinstance(x, float) else int(x)
    for function in (jnp.asarray, anima.jit(lambda x: x), lambda x: jnp.full(2, x), lambda x: lax.mul(x, 2 * x),
                     lambda x: jnp.ones(3, "float16") * x, lambda x: lax.scan(lambda c, _: (c, c), x, None, 2)):
        got, want = function(x), function(plain)
        for a, b in zip(anima.tree.leaves(got), anima.tree.leaves(want), strict=True):
            assert a.aval == b.aval and (a == b).all()


@pytest.mark.parametrize("x", [np.ones(2, "V4"), np.zeros(2, [("a", "i4")]), np.array(["a"]), np.array([None]),
                               np.zeros(2, "M8[s]"), np.timedelta64(1, "s"), np.ones(2, np.longdouble)],
                         ids=lambda x: x.dtype.name)
def test_values_that_arrays_cannot_hold_are_refused(x: Any) -> None:
    if np.dtype(np.longdouble) == np.dtype(float) and x.dtype == float:
        pytest.skip("long doubles are doubles here")
    for function in (jnp.asarray, anima.jit(lambda x: x), jnp.sin, lax.sin, anima.vmap(lambda x: x), anima.device_put,
                     lambda x: jnp.where(True, x, x), lambda x: lax.cond(True, lambda x: x, lambda x: x, x),
                     lambda x: jnp.result_type(x), lambda x: lax.convert_element_type(1.0, x.dtype), jnp.zeros_like):
        with pytest.raises(TypeError, match=r"numeric|number|valid"):
            function(x)


@pytest.mark.parametrize("x, want", [(2.5, 2), (-2.5, -2), (3.7, 4), (np.int8(3), 3), (np.float16(1.5), 2),
                                     ([0.5, 1.5], [0, 2])])
def test_round_gives_whole_numbers(x: Any, want: Any) -> None:
    for got in (round(jnp.asarray(x)), anima.jit(round)(jnp.asarray(x))):
        assert got.dtype == "int32" and not got.weak_type
        np.testing.assert_array_equal(got, want)
    assert round(jnp.float32(1.26), 1) == np.float32(1.3)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_numbers_of_segments(name: str) -> None:
    function, data = getattr(anima.ops, f"segment_{name}"), jnp.ones(3)
    for dtype in ("int8", "uint8", "int32", "uint32"):
        ids = jnp.arange(3, dtype=dtype)
        assert function(data, ids).shape == (3,) and function(data, ids, 200).shape == (200,)
    for count in (1 << 31, 1 << 40, 1 << 70):
        with pytest.raises(ValueError, match="more than an array has rows"):
            function(data, jnp.arange(3), count)
    with pytest.raises(ValueError, match="more than an array has rows"):
        function(data, jnp.arange(3), 1 << 30, bucket_size=1)  # as many for each bucket
    for ids, count, text in ((jnp.arange(3), -1, "got -1."), (jnp.full(3, -3), None, "one more than the largest")):
        with pytest.raises(ValueError, match=text):
            function(data, ids, count)
    with pytest.raises(TypeError, match="integer"):
        function(data, jnp.arange(3), 2.5)
    with pytest.raises(TypeError, match="integer"):
        function(data, jnp.arange(3.0), 3)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 3, 2)])
def test_unique_elements_of_nothing(shape: tuple[int, ...]) -> None:
    for axis in (None, *range(len(shape))):
        got = jnp.unique(jnp.zeros(shape), return_index=True, return_inverse=True, return_counts=True, axis=axis)
        want = np.unique(np.zeros(shape), return_index=True, return_inverse=True, return_counts=True, axis=axis)
        assert [a.shape for a in got] == [a.shape for a in want]


# ---------------------------------------------------------------- depth


def nested(wrap: Callable[[Any], Any], depth: int) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = jnp.sin
    for _ in range(depth):
        function = wrap(lambda x, inner=function: inner(x) + 1)
    return function


def check_depth() -> None:
    x = 0.5
    many = nested(anima.jit, 300)
    assert abs(many(x) - (300 + np.sin(x))) < 1e-4
    assert str(anima.make_jaxpr(many)(x)).count("pjit") == 300
    assert anima.jit(many).lower(x).cost_analysis()["flops"] == 300
    for slope in (anima.grad(many), anima.jit(anima.grad(many)), anima.grad(nested(anima.checkpoint, 300))):
        assert abs(slope(x) - np.cos(x)) < 1e-6
    assert anima.vmap(many)(jnp.zeros(3)).tolist() == [300.0] * 3


def test_three_hundred_functions_in_each_other() -> None:
    limit = sys.getrecursionlimit()
    check_depth()
    assert sys.getrecursionlimit() == limit


def test_depth_in_several_threads_at_once() -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            check_depth()
        except BaseException as error:
            failures.append(error)

    limit, threads = sys.getrecursionlimit(), [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and sys.getrecursionlimit() == limit


def test_recursion_without_end_is_an_error() -> None:
    @anima.jit
    def forever(x: Any) -> Any:
        return forever(x + 1)

    limit = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        forever(1.0)
    assert sys.getrecursionlimit() == limit and anima.jit(lambda x: x + 1)(1.0) == 2.0


def _tangents(x: Any, t: Any) -> Any:
    return anima.jvp(lambda x: (x * 2, jnp.arange(3)), (x,), (t,))[1]


def _pulled(x: Any) -> Any:
    return anima.vjp(lambda x, i: x * 2.0, x, jnp.arange(3))[1](x)


NOTHING = np.zeros((3, 2), anima.float0)


@pytest.mark.parametrize("fun, args", [
    (lambda z: z, (NOTHING,)), (lambda z, x: (z[0], x + 1), (NOTHING, jnp.ones(2))),
    (lambda z, x: x + 1, (NOTHING, jnp.ones(2))), (lambda x: (x, NOTHING), (jnp.ones(2),)),
    (lambda x: NOTHING[0, 0], (1.0,)), (_tangents, (1.0, 1.0)), (_pulled, (1.0,)),
    (anima.grad(lambda i: i * 2.0, allow_int=True), (3,)), (anima.vmap(_tangents), (jnp.ones(2), jnp.ones(2))),
    (anima.jit(lambda x: anima.jit(lambda x: (x, NOTHING))(x)), (1.0,)),
    (anima.vmap(anima.jit(_pulled)), (jnp.ones(2),)),
    (lambda p, x: lax.cond(p, lambda x: _tangents(x, x), lambda x: _tangents(x + 1, x), x), (True, 1.0)),
    (lambda z: lax.scan(lambda c, z: (c + 1, (z, c)), 0, z), (NOTHING,)),
    (lambda z: lax.scan(lambda c, i: (c, i), z, jnp.arange(3)), (NOTHING,)),
    (anima.vmap(lambda n, z: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1]), (0, z))),
     (jnp.arange(3), NOTHING)),
    (lambda x: anima.jvp(lambda x: anima.jit(lambda x, z: (x * 2, z))(x, NOTHING), (x,), (x,)), (1.0,))])
def test_float0_goes_into_compiled_code_and_out(fun: Callable[..., Any], args: tuple[Any, ...]) -> None:
    want = fun(*args)
    compiled = anima.jit(fun)
    for got in (compiled(*args), compiled(*args), compiled.lower(*args).compile()(*args)):
        for a, b in zip(anima.tree.leaves(got), anima.tree.leaves(want), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.dtype == anima.float0 or (a == b).all()
    shapes = [(s.shape, s.dtype) for s in anima.tree.leaves(anima.eval_shape(compiled, *args))]
    assert shapes == [(b.shape, b.dtype) for b in anima.tree.leaves(want)]


def test_float0_is_donated_beside_bools() -> None:
    nothing, flags = anima.jit(lambda z: z)(NOTHING), jnp.ones((3, 2), bool)
    got, inverted = anima.jit(lambda z, b: (z, ~b), donate_argnums=(0, 1))(nothing, flags)
    assert got.dtype == anima.float0 and not inverted.any() and flags.is_deleted()
    assert "float0" in str(anima.make_jaxpr(lambda z: z)(NOTHING))
