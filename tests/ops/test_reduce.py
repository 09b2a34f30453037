"""Reductions, positions and running reductions: values, types, derivatives, transposes, batching."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.primitive import Linear, Primitive, Zero
from anima.ops import reduce as rd

BF16 = np.dtype(ml_dtypes.bfloat16)
INTS = [np.dtype(t) for t in ("int8", "uint8", "int32", "uint64")]
FLOATS = [np.dtype(np.float16), BF16, np.dtype(np.float32), np.dtype(np.float64)]
COMPLEX = [np.dtype(np.complex64), np.dtype(np.complex128)]
SHAPE = (3, 4, 5)


def arr(x: Any, dtype: Any = np.float64) -> ConcreteArray:
    value = np.array(x, dtype)
    return ConcreteArray(value, ShapedArray(value.shape, value.dtype))


def sample(dtype: np.dtype, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -9, 9, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtype.kind == "c" else x).astype(dtype)


REDUCTIONS = {"reduce_sum": np.sum, "reduce_prod": np.prod, "reduce_max": np.max, "reduce_min": np.min}


@pytest.mark.parametrize("axes", [(), (0,), (1, 2), (0, 1, 2), (-1,)], ids=str)
@pytest.mark.parametrize("dtype", INTS + FLOATS + COMPLEX, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_values(name: str, dtype: np.dtype, axes: tuple[int, ...]) -> None:
    x = sample(dtype)
    out = np.asarray(getattr(rd, name)(arr(x, dtype), axes))
    kwargs = {"dtype": dtype} if dtype.kind in "iu" and name in ("reduce_sum", "reduce_prod") else {}
    want = REDUCTIONS[name](x if dtype.kind in "iuc" else x.astype(np.float64), axis=axes, **kwargs).astype(dtype)
    assert out.dtype == dtype and out.shape == want.shape
    exact = dtype.kind in "iu" or name in ("reduce_max", "reduce_min")
    tolerance = 0.0 if exact else 40 * float(ml_dtypes.finfo(dtype).eps)
    wide = np.complex128 if dtype.kind == "c" else np.float64
    np.testing.assert_allclose(out.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.dtype(bool), *INTS], ids=str)
def test_logical(dtype: np.dtype) -> None:
    x = sample(dtype)
    for name, fun in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        out = np.asarray(getattr(rd, f"reduce_{name}")(arr(x, dtype), (0, 2)))
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, fun.reduce(x, axis=(0, 2)))


@pytest.mark.parametrize("name,dtype,want", [
    ("reduce_sum", "f4", 0), ("reduce_prod", "f4", 1), ("reduce_max", "f4", -np.inf), ("reduce_min", "f2", np.inf),
    ("reduce_max", "i1", -128), ("reduce_min", "u2", 65535), ("reduce_max", "?", False), ("reduce_min", "?", True),
    ("reduce_and", "?", True), ("reduce_and", "i4", -1), ("reduce_or", "i4", 0), ("reduce_xor", "?", False),
    ("reduce_max", BF16, -np.inf)])
def test_nothing_reduces_to_the_identity(name: str, dtype: Any, want: Any) -> None:
    out = np.asarray(getattr(rd, name)(np.zeros((2, 0), dtype), (1,)))
    assert out.shape == (2,) and out.dtype == np.dtype(dtype) and (out == np.array(want).astype(dtype)).all()
    assert getattr(rd, name)(np.zeros((2, 0), dtype), (0,)).shape == (0,)


def test_small_floats_add_up_in_float32() -> None:
    ones = np.ones(4096, np.float16)
    assert float(rd.reduce_sum(ones, (0,))) == 4096
    assert np.asarray(rd.cumsum(ones))[-1] == 4096
    assert float(rd.reduce_sum(ones.astype(BF16), (0,))) == 4096


def test_nan_wins_every_comparison() -> None:
    x = np.float32([1, np.nan, 3, np.nan])
    assert np.isnan(float(rd.reduce_max(x, (0,)))) and np.isnan(float(rd.reduce_min(x, (0,))))
    assert int(rd.argmax(x, 0, "int32")) == 1 and int(rd.argmin(x, 0, "int32")) == 1
    assert np.isnan(np.asarray(rd.cummax(x))).tolist() == [False, True, True, True]


@pytest.mark.parametrize("dtype", [np.dtype(bool), *INTS, *FLOATS], ids=str)
def test_positions(dtype: np.dtype) -> None:
    x = sample(dtype)
    for axis in range(3):
        for name in ("argmax", "argmin"):
            out = np.asarray(getattr(rd, name)(arr(x, dtype), axis, np.int8))
            assert out.dtype == np.int8
            np.testing.assert_array_equal(out, getattr(np, name)(x.astype(np.float64), axis=axis))


CUMULATIVE: dict[str, Callable[..., Any]] = {
    "cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate,
    "cumlogsumexp": np.logaddexp.accumulate}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", INTS + FLOATS, ids=str)
@pytest.mark.parametrize("name", CUMULATIVE)
def test_running_values(name: str, dtype: np.dtype, reverse: bool) -> None:
    x = sample(dtype)
    if name == "cumlogsumexp" and dtype in INTS:
        with pytest.raises(TypeError, match="cumlogsumexp does not accept dtype"):
            rd.cumlogsumexp(arr(x, dtype))
        return
    for axis in range(3):
        out = np.asarray(getattr(rd, name)(arr(x, dtype), axis, reverse))
        assert out.dtype == dtype
        wide = x if dtype in INTS else x.astype(np.float64)
        kwargs = {"dtype": dtype} if dtype in INTS and name in ("cumsum", "cumprod") else {}
        want = CUMULATIVE[name](np.flip(wide, axis) if reverse else wide, axis=axis, **kwargs)
        want = np.flip(want, axis) if reverse else want
        tolerance = 0 if dtype in INTS else 4 * float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(out.astype(want.dtype), want, rtol=tolerance, atol=tolerance)


def test_running_sums_are_accurate() -> None:
    x = np.full(100_000, 0.1, np.float32)
    assert abs(np.asarray(rd.cumsum(x))[-1] / (1e5 * float(x[0])) - 1) < 1e-7


def test_log_of_nothing() -> None:
    x = arr([-np.inf, -np.inf, 1.0])
    out, t = rd.cumlogsumexp_p.jvp([x], [arr([1.0, 1.0, 1.0])], axis=0, reverse=False)
    assert np.asarray(out).tolist() == [-np.inf, -np.inf, 1] and np.asarray(t).tolist() == [1, 0, 1]


@pytest.mark.parametrize("run", [lambda f: f, anima.jit])
def test_complex_log_sums_are_principal_logarithms(run: Callable[..., Any]) -> None:
    x = np.array([[1 + 5j, 2 - 7j, 90 + 1j, -90 + 2j], [-np.inf, -np.inf, 1 + 2j, np.inf + 1j]], np.complex64)
    got = np.asarray(run(lambda x: rd.cumlogsumexp(x, 1))(x))
    np.testing.assert_allclose(got[0], np.log(np.cumsum(np.exp(x[0].astype(complex)))), rtol=1e-5)
    assert got[1, :2].real.tolist() == [-np.inf, -np.inf] and got[1, 3].real == np.inf
    np.testing.assert_allclose(got[1, 2], 1 + 2j, rtol=1e-6)
    assert np.all(np.isnan(run(rd.cumlogsumexp)(np.array([np.nan, 1], np.complex64)).real))


ERRORS = [
    (lambda: rd.reduce_sum_p.infer(ShapedArray((3,), np.dtype(bool)), axes=(0,)), TypeError,
     "does not accept dtype bool"),
    (lambda: rd.reduce_prod(np.ones(3, bool), (0,)), TypeError,
     "reduce_prod does not accept dtype bool. Accepted dtypes are subtypes of number."),
    (lambda: rd.reduce_and(np.ones(3, np.float32), (0,)), TypeError,
     "logical reduction requires operand dtype bool or int"),
    (lambda: rd.reduce_max_p.infer(ShapedArray((2, 3), np.dtype("f4")), axes=(2,)), ValueError,
     r"reduction axes \(2,\) contains out-of-bounds indices for float32\[2,3\]"),
    (lambda: rd.reduce_max_p.infer(ShapedArray((2, 3), np.dtype("f4")), axes=(0, 0)), ValueError,
     r"duplicate value in 'axes' of reduction: \(0, 0\)"),
    (lambda: rd.reduce_max(np.ones((2, 3)), (2,)), ValueError, "axis 2 is out of bounds"),
    (lambda: rd.argmax(np.ones((3, 0)), 1, np.int32), ValueError, "require non-empty reduced dimension"),
    (lambda: rd.argmax(np.ones(3), 0, np.float32), TypeError, "index_dtype must be an integer type, but got float32"),
    (lambda: rd.argmax(np.ones(3, np.complex64), 0, np.int32), TypeError, "argmax does not accept dtype complex64"),
    (lambda: rd.cumsum(np.ones(3), 1), ValueError, "axis 1 is out of bounds"),
    (lambda: rd.cumsum(np.ones(3, bool)), TypeError, "cumsum does not accept dtype bool"),
    *((lambda k=k: rd.argmax_p.infer(ShapedArray((2, 3), np.dtype("f4")), axes=(k,), index_dtype=np.dtype("int32")),
       ValueError, rf"Invalid axis {k} for operand shape \(2, 3\)") for k in (-1, 2)),
    *((lambda k=k: rd.cumsum_p.infer(ShapedArray((2, 3), np.dtype("f4")), axis=k, reverse=False), ValueError,
       rf"axis {k} is out of bounds for array of shape \(2, 3\)") for k in (-1, 2)),
]


@pytest.mark.parametrize("call,kind,text", ERRORS, ids=[str(i) for i in range(len(ERRORS))])
def test_errors(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


# ---------------------------------------------------------------- derivatives

ALL: list[tuple[Primitive, dict[str, Any]]] = [
    *((p, {"axes": axes}) for p in (rd.reduce_sum_p, rd.reduce_prod_p, rd.reduce_max_p, rd.reduce_min_p)
      for axes in ((0,), (1, 2), (0, 1, 2))),
    *((p, {"axis": axis, "reverse": reverse})
      for p in (rd.cumsum_p, rd.cumprod_p, rd.cummax_p, rd.cummin_p, rd.cumlogsumexp_p)
      for axis, reverse in ((0, False), (2, True), (1, False)))]


@pytest.mark.parametrize("primitive,params", ALL, ids=str)
def test_derivatives(primitive: Primitive, params: dict[str, Any]) -> None:
    x, t = sample(np.dtype("f8")), sample(np.dtype("f8"), seed=1)
    out, tangent = primitive.jvp([arr(x)], [arr(t)], **params)

    def slope(h: float) -> np.ndarray:
        return (primitive.eval(x + h * t, **params) - primitive.eval(x - h * t, **params)) / (2 * h)

    assert tangent.shape == out.shape and tangent.dtype == out.dtype
    np.testing.assert_allclose(tangent, (4 * slope(1e-4) - slope(2e-4)) / 3, rtol=1e-8, atol=1e-8)
    zero = Zero(ShapedArray(x.shape, x.dtype))
    assert primitive.jvp([arr(x)], [zero], **params)[1] == Zero(out.aval)
    whole = sample(np.dtype("i4"))
    if primitive is not rd.cumlogsumexp_p:
        out, tangent = primitive.jvp([arr(whole, "i4")], [Zero(ShapedArray(whole.shape, dtypes.float0))], **params)
        assert tangent == Zero(ShapedArray(out.shape, dtypes.float0))


def test_products_with_zeros_have_derivatives() -> None:
    x, one = arr([[0.0, 3, 4], [0, 0, 2], [2, 3, 4]]), arr(np.eye(3)[:, [0, 1, 2]])
    rows = [np.asarray(rd.reduce_prod_p.jvp([x], [arr(np.tile(e, (3, 1)))], axes=(1,))[1]) for e in np.eye(3)]
    assert np.stack(rows, 1).tolist() == [[12, 0, 0], [0, 0, 0], [12, 8, 6]]
    _, t = rd.cumprod_p.jvp([x], [one], axis=1, reverse=False)
    assert np.asarray(t).tolist() == [[1, 3, 12], [0, 0, 0], [0, 0, 6]]
    assert isinstance(rd.reduce_prod_p.jvp([arr(np.ones((2, 0)))], [arr(np.ones((2, 0)))], axes=(1,))[1], Zero)


def test_ties_share_the_derivative() -> None:
    for i, want in enumerate([0, 0.5, 0.5]):
        _, t = rd.reduce_max_p.jvp([arr([1.0, 3, 3])], [arr(np.eye(3)[i])], axes=(0,))
        assert float(t) == want
    shares = [np.asarray(rd.cummax_p.jvp([arr([3.0, 3, 3])], [arr(np.eye(3)[i])], axis=0, reverse=False)[1])
              for i in range(3)]
    np.testing.assert_array_equal(np.transpose(shares), [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]])


@pytest.mark.parametrize(("primitive", "reverse", "want"), [
    (rd.cummax_p, False, [2.75, 1.75, 1.5, 4]), (rd.cummin_p, True, [0.25, 1.25, 2.25, 6.25])])
def test_ties_of_running_extremes_share_the_derivative_in_pairs(primitive: Any, reverse: bool,
                                                               want: list[float]) -> None:
    x, weights = arr([0.0, 0, 0, 1 if primitive is rd.cummax_p else 0]), np.arange(1.0, 5)
    slopes = [np.asarray(primitive.jvp([x], [arr(row)], axis=0, reverse=reverse)[1]) @ weights for row in np.eye(4)]
    assert slopes == want


def test_transposes() -> None:
    x = sample(np.dtype("f8"))
    linear = Linear(ShapedArray(x.shape, x.dtype))
    for primitive, params in ((rd.reduce_sum_p, {"axes": (0, 2)}), (rd.cumsum_p, {"axis": 1, "reverse": False}),
                              (rd.cumsum_p, {"axis": 2, "reverse": True})):
        out = primitive.eval(x, **params)
        ct = np.random.default_rng(5).normal(size=out.shape)
        (back,) = primitive.transpose(arr(ct), linear, **params)
        assert back.shape == x.shape
        np.testing.assert_allclose((np.asarray(back) * x).sum(), (ct * out).sum(), rtol=1e-10)
        zero = Zero(ShapedArray(out.shape, out.dtype))
        assert list(primitive.transpose(zero, linear, **params)) == [Zero(linear.aval)]
    with pytest.raises(NotImplementedError, match="of 'reduce_max'"):
        rd.reduce_max_p.transpose(arr(1.0), linear, axes=(0, 1, 2))


BATCHED: list[tuple[Primitive, dict[str, Any]]] = [
    *((p, {"axes": axes}) for p in (rd.reduce_sum_p, rd.reduce_prod_p, rd.reduce_max_p) for axes in ((0,), (0, 1))),
    *((p, {"axes": (a,), "index_dtype": np.dtype(np.int32)}) for p in (rd.argmax_p, rd.argmin_p) for a in (0, 1)),
    *((p, {"axis": a, "reverse": True}) for p in (rd.cumsum_p, rd.cummax_p) for a in (0, 1))]


@pytest.mark.parametrize("primitive,params", BATCHED, ids=str)
def test_batching(primitive: Primitive, params: dict[str, Any]) -> None:
    x = sample(np.dtype("f8"))
    for d in range(3):
        out, dim = primitive.batch(x.shape[d], [arr(x)], [d], **params)
        for i in range(x.shape[d]):
            np.testing.assert_allclose(np.take(np.asarray(out), i, dim), primitive.eval(np.take(x, i, d), **params),
                                       rtol=1e-14)


def test_infer_agrees_with_eval() -> None:
    primitives = [p for p in vars(rd).values() if isinstance(p, (rd.Reduce, rd.Cumulative))]
    tried = 0
    for primitive, dtype in itertools.product(primitives, [np.dtype(bool), *INTS, *FLOATS, *COMPLEX]):
        params = {"axes": (1,)} if isinstance(primitive, rd.Reduce) else {"axis": 1, "reverse": True}
        try:
            aval = primitive.infer(ShapedArray((2, 3), dtype), **params)
        except TypeError:
            continue
        out = primitive.eval(np.ones((2, 3), dtype), **params)
        assert (out.shape, out.dtype) == (aval.shape, aval.dtype)
        tried += 1
    assert tried > 70


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("count", [1, 2, 7, 9, 17, 33])
def test_zeros_of_extremes_have_one_sign(dtype: str, count: int) -> None:
    """+0 is larger than -0, in whatever order they come; in compiled reductions it is free."""
    rng = np.random.default_rng(count)
    for positive in (0.0, 0.5, 1.0):
        zeros = np.where(rng.random((3, count)) < positive, 0.0, -0.0).astype(np.float32)
        largest, smallest = zeros.copy(), zeros.copy()
        for row in range(3):
            for k in range(count):
                largest[row, k] = -0.0 if np.signbit(zeros[row, :k + 1]).all() else 0.0
                smallest[row, k] = -0.0 if np.signbit(zeros[row, :k + 1]).any() else 0.0

        def run(x: Any, at: Any) -> Any:
            into = (jnp.full(3, -np.inf, x.dtype), jnp.full(3, np.inf, x.dtype))
            scattered = into[0].at[at].max(x), into[1].at[at].min(x)
            return lax.cummax(x, 1), lax.cummin(x, 1), *scattered, x.max(1), x.min(1)

        at = np.broadcast_to(np.arange(3)[:, None], (3, count)).astype(np.int32)
        want = (largest, smallest, largest[:, -1], smallest[:, -1], largest[:, -1], smallest[:, -1])
        given = jnp.asarray(zeros).astype(dtype)
        for outs in (run(given, at), anima.jit(lambda x, at: run(x, at)[:4])(given, at)):
            for out, expected in zip(outs, want, strict=False):
                np.testing.assert_array_equal(np.signbit(np.asarray(out)), np.signbit(expected))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64", "float8_e5m2"])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 64, 1000])
def test_sums_of_negative_zeros(dtype: str, count: int) -> None:
    """One -0.0 stays; several make 0.0: sums start there."""
    x = jnp.full((3, count), -0.0, dtype)
    for axis in (0, 1, (0, 1), ()):
        total = lambda v, axis=axis: jnp.sum(v, axis)
        eager, compiled = (np.real(np.asarray(f(x))).astype(np.float32) for f in (total, anima.jit(total)))
        terms = x.size // eager.size
        assert np.signbit(eager).all() == np.signbit(compiled).all() == (terms == 1)
        assert not eager.any() and not compiled.any()


def test_long_runs_within_few_blocks_have_parts() -> None:
    x = np.random.default_rng(0).uniform(0, 1, (2, 2, 1 << 20)).astype(np.float32)
    pairs = [(0, 0), (0, 1), (1, 1)]
    for fun in (lambda x: (x * x).sum((0, 2)), lambda x: [(x[:, i] * x[:, j]).sum() for i, j in pairs]):
        got, want = (np.asarray(anima.tree.leaves(f(y))) for f, y in ((anima.jit(fun), x), (fun, x.astype(np.float64))))
        np.testing.assert_allclose(got, want, rtol=1e-6)
