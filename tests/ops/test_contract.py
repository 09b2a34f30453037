"""dot_general: values against einsum, types, errors, derivatives, transposes, batching."""

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
from anima.core.primitive import Linear, Zero
from anima.core.stage import trace_to_jaxpr
from anima.ops import contract as ct

BF16 = np.dtype(ml_dtypes.bfloat16)
MATMUL = (((1,), (0,)), ((), ()))

CASES: list[tuple[tuple[int, ...], tuple[int, ...], Any]] = [
    ((2, 3), (3, 4), MATMUL),
    ((3,), (3,), (((0,), (0,)), ((), ()))),
    ((3,), (2,), (((), ()), ((), ()))),
    ((2, 3, 4), (2, 4, 5), (((2,), (1,)), ((0,), (0,)))),
    ((2, 3, 4), (4, 2, 5, 3), (((2, 1), (0, 3)), ((0,), (1,)))),
    ((2, 3, 4), (4, 3, 2), (((1, 2), (1, 0)), ((0,), (2,)))),
    ((5, 2, 3), (3, 5, 2), (((), ()), ((1, 0, 2), (2, 1, 0)))),
    ((2, 0), (0, 3), MATMUL),
    ((0, 3), (3, 4), MATMUL),
]


def arr(x: Any, dtype: Any = np.float64) -> ConcreteArray:
    value = np.array(x, dtype)
    return ConcreteArray(value, ShapedArray(value.shape, value.dtype))


def params(numbers: Any, preferred: Any = None) -> dict[str, Any]:
    return {"dimension_numbers": numbers, "precision": None, "preferred_element_type": preferred}


def einsum(x: np.ndarray, y: np.ndarray, numbers: Any) -> np.ndarray:
    """The definition: paired axes share a letter."""
    (lc, rc), (lb, rb) = numbers
    fresh = iter("abcdefghijklm")
    left, right = [""] * x.ndim, [""] * y.ndim
    for i, j in [*zip(lb, rb, strict=True), *zip(lc, rc, strict=True)]:
        left[i] = right[j] = next(fresh)
    left, right = [v or next(fresh) for v in left], [v or next(fresh) for v in right]
    out = [left[i] for i in lb] + [v for i, v in enumerate(left) if i not in (*lb, *lc)]
    out += [v for i, v in enumerate(right) if i not in (*rb, *rc)]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", x, y)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_transposes(case: Any) -> None:
    rng = np.random.default_rng(0)
    ls, rs, numbers = case
    x, y = rng.normal(size=ls), rng.normal(size=rs)
    want = einsum(x, y, numbers)
    out = ct.dot_general(arr(x), arr(y), numbers)
    assert out.shape == want.shape
    np.testing.assert_allclose(out, want, rtol=1e-12, atol=1e-12)
    c = rng.normal(size=want.shape)
    left, none = ct.dot_general_p.transpose(arr(c), Linear(arr(x).aval), arr(y), **params(numbers))
    other, right = ct.dot_general_p.transpose(arr(c), arr(x), Linear(arr(y).aval), **params(numbers))
    assert none is None and other is None and left.shape == ls and right.shape == rs
    for back, operand in ((left, x), (right, y)):
        np.testing.assert_allclose((np.asarray(back) * operand).sum(), (c * want).sum(), rtol=1e-10, atol=1e-12)
    zero = Zero(out.aval)
    assert ct.dot_general_p.transpose(zero, Linear(arr(x).aval), arr(y), **params(numbers))[0] == Zero(arr(x).aval)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batching(case: Any) -> None:
    rng = np.random.default_rng(1)
    ls, rs, numbers = case
    for dx, dy in itertools.product((None, *range(len(ls) + 1)), (None, *range(len(rs) + 1))):
        if dx is None and dy is None:
            continue
        x = rng.normal(size=ls if dx is None else (*ls[:dx], 3, *ls[dx:]))
        y = rng.normal(size=rs if dy is None else (*rs[:dy], 3, *rs[dy:]))
        out, dim = ct.dot_general_p.batch(3, [arr(x), arr(y)], [dx, dy], **params(numbers))
        for i in range(3):
            one = einsum(x if dx is None else x.take(i, dx), y if dy is None else y.take(i, dy), numbers)
            np.testing.assert_allclose(np.take(np.asarray(out), i, dim), one, rtol=1e-12, atol=1e-12)


def test_batching_one_operand_is_one_plain_product() -> None:
    f4 = np.dtype(np.float32)
    jaxpr, _ = trace_to_jaxpr(
        lambda a, b: [ct.dot_general_p.batch(5, [a, b], [0, None], **params((((0,), (0,)), ((), ()))))[0]],
        [ShapedArray((5, 3), f4), ShapedArray((3, 2), f4)])
    (eqn,) = jaxpr.eqns
    assert eqn.params["dimension_numbers"] == MATMUL and jaxpr.out_avals[0].shape == (5, 2)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint64", "float16", BF16, "float32", "float64",
                                   "complex64", "complex128"], ids=str)
def test_dtypes(dtype: Any) -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.integers(0, 3, s).astype(dtype) for s in ((4, 6), (6, 5)))
    out = np.asarray(ct.dot_general(arr(x, dtype), arr(y, dtype), MATMUL))
    assert out.dtype == np.dtype(dtype)
    wide = bool if dtype == "bool" else np.complex128 if "complex" in str(dtype) else np.float64
    np.testing.assert_array_equal(out.astype(wide), x.astype(wide) @ y.astype(wide))


def test_accumulation() -> None:
    x = np.full((1, 3), 2, np.int8), np.full((3, 1), 50, np.int8)
    assert np.asarray(ct.dot_general(*x, MATMUL)).tolist() == [[44]]
    wide = ct.dot_general(*x, MATMUL, preferred_element_type=np.int32)
    assert wide.dtype == np.int32 and np.asarray(wide).tolist() == [[300]]
    for dtype in (np.dtype(np.float16), BF16):
        ones = np.ones((1, 4096), dtype)
        assert float(np.asarray(ct.dot_general(ones, ones.T, MATMUL))[0, 0]) == 4096
        exact = ct.dot_general(np.full((1, 2), 300, dtype), np.full((2, 1), 300, dtype), MATMUL,
                               preferred_element_type=np.float32)
        assert exact.dtype == np.float32 and np.asarray(exact).tolist() == [[2 * float(dtype.type(300)) ** 2]]
    mixed = ct.dot_general(np.ones((2, 3), BF16), np.ones((3, 2), np.float32), MATMUL)
    assert mixed.dtype == np.float32


def test_derivatives() -> None:
    rng = np.random.default_rng(3)
    x, y, t, u = (rng.normal(size=s) for s in ((2, 3), (3, 4), (2, 3), (3, 4)))
    _, tangent = ct.dot_general_p.jvp([arr(x), arr(y)], [arr(t), arr(u)], **params(MATMUL))
    np.testing.assert_allclose(tangent, t @ y + x @ u, rtol=1e-12)
    zero = Zero(arr(u).aval)
    _, tangent = ct.dot_general_p.jvp([arr(x), arr(y)], [arr(t), zero], **params(MATMUL))
    np.testing.assert_allclose(tangent, t @ y, rtol=1e-12)
    whole = arr(np.ones((2, 2)), np.int32)
    none = Zero(ShapedArray((2, 2), dtypes.float0))
    assert ct.dot_general_p.jvp([whole, whole], [none, none], **params(MATMUL))[1] == none


def test_transposes_return_the_operands_dtype() -> None:
    x, y = arr(np.ones((2, 3)), BF16), arr(np.ones((3, 4)), BF16)
    preferred = params(MATMUL, np.dtype(np.float32))
    left, _ = ct.dot_general_p.transpose(arr(np.ones((2, 4)), np.float32), Linear(x.aval), y, **preferred)
    assert left.dtype == BF16 and np.asarray(left).astype(float).tolist() == [[4.0] * 3] * 2


ERRORS: list[tuple[Any, Any, Any, str]] = [
    ((2, 3), (4, 5), MATMUL,
     r"dot_general requires contracting dimensions to have the same shape, got \(3,\) and \(4,\)\."),
    ((2, 3), (4, 3), (((1,), (1,)), ((0,), (0,))),
     r"requires lhs batch dimensions and rhs batch dimensions to have the same shape, got \(2,\) and \(4,\)\."),
    ((2, 3), (3, 4), (((0, 1), (0,)), ((), ())),
     r"dot_general requires contracting dimensions to have the same shape, got \(2, 3\) and \(3,\)\."),
    ((2, 3), (3, 2), (((2,), (0,)), ((), ())),
     "lhs dimension numbers to be nonnegative and less than the number of axes"),
    ((2, 3), (3, 2), (((1, 1), (0, 0)), ((), ())),
     r"lhs contracting dimensions to be distinct, got lhs_contracting \(1, 1\)"),
    ((2, 3), (3, 2), (((1,), (0,)), ((1,), (0,))), "lhs batch dimensions to be disjoint from contracting dimensions"),
    ((2, 3), (2, 3), (((), ()), ((0,), ())), "equal numbers of lhs_batch and rhs_batch dimensions"),
]


@pytest.mark.parametrize("ls,rs,numbers,text", ERRORS, ids=[str(i) for i in range(len(ERRORS))])
def test_errors(ls: Any, rs: Any, numbers: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        ct.dot_general(np.ones(ls, np.float32), np.ones(rs, np.float32), numbers)


OTHER_ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ct.dot_general(np.ones((2, 3), np.int32), np.ones((3, 2), np.int32), MATMUL,
                            preferred_element_type=np.int8), TypeError, "must not be narrower than the original type"),
    (lambda: ct.dot_general(np.ones((2, 3), np.int32), np.ones((3, 2), np.int32), MATMUL, preferred_element_type=bool),
     TypeError, "must be of one kind, got bool for result type of int32"),
    (lambda: ct.dot(np.ones((2, 3, 4)), np.ones((4, 2))), ValueError, "dimension_numbers must be specified"),
    (lambda: ct.dot(np.ones(2), np.ones(3)), ValueError, "dimension_numbers must be specified"),
    (lambda: ct.batch_matmul(np.ones(4), np.ones(4)), ValueError, "must be at least 2D"),
    (lambda: ct.batch_matmul(np.ones((2, 3, 4)), np.ones((4, 5))), ValueError, "must have same ndim"),
    (lambda: ct.dot(np.ones(2), np.ones(2), precision="exact"), ValueError, "Precision must be"),
]


@pytest.mark.parametrize("call,kind,text", OTHER_ERRORS, ids=[str(i) for i in range(len(OTHER_ERRORS))])
def test_other_errors(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_dot_and_batch_matmul() -> None:
    rng = np.random.default_rng(4)
    a, b, v = (rng.normal(size=s).astype(np.float32) for s in ((2, 3), (3, 4), (3,)))
    np.testing.assert_allclose(ct.dot(a, b), a @ b, rtol=1e-6)
    np.testing.assert_allclose(ct.dot(a, v), a @ v, rtol=1e-6)
    np.testing.assert_allclose(ct.dot(v, b), v @ b, rtol=1e-5)
    np.testing.assert_allclose(ct.dot(v, v), v @ v, rtol=1e-6)
    stack = rng.normal(size=(5, 2, 2, 3)).astype(np.float32)
    np.testing.assert_allclose(ct.batch_matmul(stack, stack.swapaxes(2, 3)), stack @ stack.swapaxes(2, 3), rtol=1e-5)


def test_precision() -> None:
    assert ct.Precision("bfloat16") is ct.Precision.DEFAULT and ct.Precision("float32") is ct.Precision.HIGHEST
    assert ct.canonicalize_precision("highest") == (ct.Precision.HIGHEST, ct.Precision.HIGHEST)
    assert ct.canonicalize_precision(("default", ct.Precision.HIGH)) == (ct.Precision.DEFAULT, ct.Precision.HIGH)
    assert ct.canonicalize_precision(None) is None and repr(ct.Precision.HIGH) == "Precision.HIGH"
    for pair in ((None, None), ("high", None)):
        with pytest.raises(ValueError, match="Precision must be None"):
            ct.canonicalize_precision(pair)


def test_the_real_part_of_a_product_that_is_asked_for_as_real() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(2, 3)) + 1j * rng.normal(size=(2, 3)) for _ in range(2))
    x, y = jnp.asarray(x, "complex64"), jnp.asarray(y.T, "complex64")
    for f in (lax.dot, anima.jit(lax.dot, static_argnames="preferred_element_type")):
        got = f(x, y, preferred_element_type=np.float32)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, (np.asarray(x) @ np.asarray(y)).real, rtol=1e-5)
    slopes = [anima.grad(lambda x, f=f: f(x, y).sum())(x) for f in (
        lambda x, y: lax.dot(x, y, preferred_element_type=np.float32), lambda x, y: lax.dot(x, y).real)]
    np.testing.assert_allclose(*slopes, rtol=1e-5)


@pytest.mark.parametrize("jitted", [False, True])
def test_real_products_asked_for_as_integers_add_up_before_they_are_cut(jitted: bool) -> None:
    product = anima.jit(lax.dot, static_argnames="preferred_element_type") if jitted else lax.dot
    got = product(np.float32([0.6, 0.7, -2]), np.float32([1, 1, 1]), preferred_element_type=np.dtype("int32"))
    assert got.dtype == np.int32 and int(got) == 0
    assert int(product(np.float32([0.6, 0.7]), np.float32([1, 1]), preferred_element_type=np.dtype("int32"))) == 1


@pytest.mark.parametrize("changed", [{"lhs_component_count": 2}, {"rhs_component_count": 3},
                                     {"num_primitive_operations": 2}, {"lhs_precision_type": np.float16},
                                     {"accumulation_type": np.float16}])
def test_algorithms_of_several_parts_are_refused(changed: dict[str, Any]) -> None:
    given = {"lhs_precision_type": np.float32, "rhs_precision_type": np.float32, "accumulation_type": np.float32}
    x = np.float32([[1, 2], [3, 4]])
    np.testing.assert_array_equal(lax.dot(x, x, precision=lax.DotAlgorithm(**given)), x @ x)
    with pytest.raises(ValueError, match="is not supported by dot_general on CPU"):
        lax.dot(x, x, precision=lax.DotAlgorithm(**{**given, **changed}))


def test_dot_with_dimension_numbers_contracts_any_axes() -> None:
    x, y = np.arange(6, dtype="f").reshape(2, 3), np.arange(12, dtype="f").reshape(4, 3)
    np.testing.assert_array_equal(lax.dot(x, y, dimension_numbers=(((1,), (1,)), ((), ()))), x @ y.T)
