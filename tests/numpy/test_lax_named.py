"""Operations of `lax` that are made of others: products in groups and with scales, bits, orders, names, precisions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.test_util import check_grads

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def alike(f: Callable[..., Any], *args: Any) -> Any:
    """The result, eagerly, compiled, and mapped over two copies."""
    out = np.asarray(f(*args))
    np.testing.assert_allclose(np.asarray(anima.jit(f)(*args), out.dtype), out, rtol=1e-5, atol=1e-5)
    stacks = [np.stack([x, x]) for x in map(np.asarray, args)]
    np.testing.assert_allclose(np.asarray(anima.vmap(f)(*stacks), out.dtype), np.stack([out] * 2), rtol=1e-5, atol=1e-5)
    return out


SIZES = [[2, 3], [0, 5], [5, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize("sizes", SIZES)
def test_ragged_dot(sizes: list[int]) -> None:
    lhs, rhs, groups = normal(5, 3), normal(2, 3, 4), np.array(sizes, np.int32)
    want, start = np.zeros((5, 4), np.float32), 0
    for k, size in enumerate(sizes):
        want[start: start + size] = lhs[start: start + size] @ rhs[k]
        start += size
    np.testing.assert_allclose(alike(lax.ragged_dot, lhs, rhs, groups), want, rtol=1e-4, atol=1e-5)
    check_grads(lambda a, b: lax.ragged_dot(a, b, groups), (lhs, rhs), 2, atol=1e-2, rtol=1e-2, eps=1e-2)
    # The contracted axis divided: a product for each group; a batch axis: a product as any other.
    contract = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    right, parts, start = normal(5, 4), [], 0
    for size in sizes:
        parts.append(lhs[start: start + size].T @ right[start: start + size])
        start += size
    got = alike(lambda a, b, g: lax.ragged_dot_general(a, b, g, contract), lhs, right, groups)
    np.testing.assert_allclose(got, np.stack(parts), rtol=1e-4, atol=1e-5)
    batch = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), (0,), ())
    many, others = normal(5, 2, 3), normal(5, 3, 2)
    np.testing.assert_allclose(lax.ragged_dot_general(many, others, groups, batch), many @ others, rtol=1e-4, atol=1e-5)


def test_ragged_dot_with_batches_and_types() -> None:
    lhs, rhs, groups = normal(2, 5, 3), normal(2, 2, 3, 4), np.array([4, 1])
    numbers = lax.RaggedDotDimensionNumbers((((2,), (2,)), ((0,), (1,))), (1,), (0,))
    got = lax.ragged_dot_general(lhs, np.swapaxes(rhs, 0, 1), groups, numbers)
    want = np.stack([np.asarray(lax.ragged_dot(a, b, groups)) for a, b in zip(lhs, rhs, strict=True)])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    low = lax.ragged_dot(lhs[0].astype("bfloat16"), jnp.asarray(rhs[0], "bfloat16"), groups,
                         preferred_element_type=np.float32)
    assert low.dtype == np.float32
    assert "ragged_dot_general[" in str(anima.make_jaxpr(lax.ragged_dot)(lhs[0], rhs[0], groups))


def test_scaled_dot() -> None:
    lhs, rhs = (jnp.asarray(normal(*shape), "float8_e4m3fn") for shape in ((4, 64), (64, 6)))
    left, right = (2.0 ** RNG.integers(-2, 3, shape) for shape in ((4, 2), (2, 6)))
    wide = [np.asarray(lhs.astype("float32")) * np.repeat(left, 32, 1),
            np.asarray(rhs.astype("float32")) * np.repeat(right, 32, 0)]
    scales = jnp.asarray(left, "float8_e8m0fnu"), jnp.asarray(right, "float8_e8m0fnu")
    for f in (lax.scaled_dot, anima.jit(lax.scaled_dot)):
        got = f(lhs, rhs, lhs_scale=scales[0], rhs_scale=scales[1])
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(got, np.float32), wide[0] @ wide[1], rtol=1e-2, atol=0.1)
    plain = lax.scaled_dot(normal(3, 4), normal(4, 2), preferred_element_type=np.float32)
    assert plain.dtype == np.float32
    with anima.enable_x64(True):
        a, b = RNG.normal(size=(3, 8)), RNG.normal(size=(8, 2))
        np.testing.assert_allclose(lax.scaled_dot(a, b, preferred_element_type=np.float64), a @ b, rtol=1e-13)
    check_grads(lambda x, s: lax.scaled_dot(x, wide[1], lhs_scale=s, preferred_element_type=np.float32),
                (wide[0].astype(np.float32), left.astype(np.float32)), 1, atol=0.1, rtol=0.05, eps=1e-2)


@pytest.mark.parametrize("x, y, eq, le, lt", [
    (-0.0, 0.0, False, True, True), (np.nan, np.nan, True, True, False), (-np.nan, -np.inf, False, True, True),
    (np.inf, np.nan, False, True, True), (1.0, 1.0, True, True, False), (-1.0, -2.0, False, False, False)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_total_order(x: float, y: float, eq: bool, le: bool, lt: bool, dtype: str) -> None:
    a, b = jnp.asarray([x], dtype), jnp.asarray([y], dtype)
    for f in (lambda p: p.bind(a, b), lambda p: anima.jit(p.bind)(a, b)):
        assert [bool(f(p)[0]) for p in (lax.eq_to_p, lax.le_to_p, lax.lt_to_p)] == [eq, le, lt]
    assert bool(lax.lt_to_p.bind(jnp.asarray(2), jnp.asarray(3)))


def test_random_bits() -> None:
    """The first are JAX's on a CPU; each call goes on where the key says."""
    key = jnp.arange(4, dtype="uint32")
    after, bits = lax.rng_bit_generator(key, (5,))
    np.testing.assert_array_equal(bits, [895509795, 3230209149, 3834998268, 2007387529, 550253412])
    np.testing.assert_array_equal(after, [0, 1, 4, 3])
    after, bits = lax.rng_bit_generator(key, (3,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY)
    np.testing.assert_array_equal(bits, [2689575991, 2205648888, 150810639])
    np.testing.assert_array_equal(after, [0, 1, 4, 3])
    a, b = np.array([[2689575991, 150810639, 1815543426, 4188145336, 4241461402, 1716009397],
                     [2205648888, 1537324351, 3423679824, 3656263442, 1365468730, 3068738818]], np.uint32)
    for shape, blocks, want in (  # where blocks lie is JAX's on a CPU, too
            ((2, 2), 2, [a[:2], b[:2]]), ((2, 3), 3, [a[:3], b[:3]]), ((3, 2), 3, np.stack([a[:3], b[:3]], 1)),
            ((2, 1, 3), 3, [[a[:3]], [b[:3]]]), ((1, 4), 2, [[a[0], b[0], a[1], b[1]]]), ((), 1, a[0]),
            ((3, 3), 6, [a[:3], b[:3], a[3:]])):
        for draw in (lax.rng_bit_generator, anima.jit(lax.rng_bit_generator, static_argnums=(1, 2, 3))):
            after, bits = draw(key, shape, np.dtype("uint32"), lax.RandomAlgorithm.RNG_THREE_FRY)
            np.testing.assert_array_equal(bits, want)
            np.testing.assert_array_equal(after, [0, 1, 2 + blocks, 3])
    keys = jnp.stack([key, key + 3])
    for one, two in zip(anima.vmap(lambda k: lax.rng_bit_generator(k, (2, 3), algorithm=1))(keys),
                        zip(*(lax.rng_bit_generator(k, (2, 3), algorithm=1) for k in keys), strict=True), strict=True):
        np.testing.assert_array_equal(one, np.stack(two))
    for algorithm in lax.RandomAlgorithm:
        middle, first = lax.rng_bit_generator(key, (4,), algorithm=algorithm)
        _, second = lax.rng_bit_generator(middle, (4,), algorithm=algorithm)
        _, both = anima.jit(lambda k, a=algorithm: lax.rng_bit_generator(k, (8,), algorithm=a))(key)
        np.testing.assert_array_equal(both, np.concatenate([first, second]))
    for dtype in ("uint8", "uint16"):
        _, small = lax.rng_bit_generator(key, (4,), dtype)
        np.testing.assert_array_equal(small, np.asarray(lax.rng_bit_generator(key, (4,))[1]).astype(dtype))
    last = jnp.asarray([0, 1, 0xFFFFFFFF, 7], jnp.uint32)  # the counter carries
    np.testing.assert_array_equal(lax.rng_bit_generator(last, (4,))[0], [0, 1, 0, 8])
    with anima.enable_x64(True):
        wide, words = lax.rng_bit_generator(jnp.asarray([1 << 32, 3 << 32 | 2], jnp.uint64), (2,), jnp.uint64)
        assert (words.dtype, wide.dtype) == (np.uint64, np.uint64)
        np.testing.assert_array_equal(words.view(np.uint32), lax.rng_bit_generator(key, (4,))[1])
    for bad in (jnp.zeros(2, "uint32"), jnp.zeros((1, 4), "uint32"), jnp.zeros(4)):
        with pytest.raises(TypeError, match="key must be"):
            lax.rng_bit_generator(bad, (3,))
    with pytest.raises(TypeError, match="unsupported dtype"):
        lax.rng_bit_generator(key, (3,), "int32")


def test_approximate_top_k() -> None:
    x = normal(3, 7)
    values, indices = lax.approx_max_k(x, 2)
    np.testing.assert_array_equal(values, -np.sort(-x, -1)[:, :2])
    np.testing.assert_array_equal(np.take_along_axis(x, np.asarray(indices), -1), values)
    least, _ = anima.jit(lambda v: lax.approx_min_k(v, 2, reduction_dimension=0, aggregate_to_topk=False))(x)
    np.testing.assert_array_equal(least, np.sort(x, 0))
    check_grads(lambda v: lax.approx_max_k(v, 3)[0], (x,), 1, atol=1e-2, rtol=1e-2, eps=1e-3)
    check_grads(lambda v: lax.approx_min_k(v, 3)[0], (x,), 1, atol=1e-2, rtol=1e-2, eps=1e-3)
    for run in (lambda f: f, anima.jit):
        values, indices = run(lambda v: lax.approx_min_k(v, 4))(np.float32([1, np.nan, 3, -np.inf, np.nan]))
        np.testing.assert_array_equal(values, [-np.inf, 1, 3, np.nan])
        np.testing.assert_array_equal(indices, [3, 0, 2, 1])
    assert "approx_top_k[" in str(anima.make_jaxpr(lambda v: lax.approx_max_k(v, 2))(x))
    for call, text in ((lambda: lax.approx_max_k(x.astype(int), 2), "floating"),
                       (lambda: lax.approx_max_k(x, 8), "k must"), (lambda: lax.approx_max_k(x, 0), "k must be"),
                       (lambda: lax.approx_max_k(x, 2, recall_target=2.0), "recall_target")):
        with pytest.raises(ValueError, match=text):
            call()


def test_composite() -> None:
    power = lax.composite(lambda x, *, by: x ** by, "my.power", version=2)
    x = np.array([1.0, 2.0, 3.0], np.float32)
    np.testing.assert_allclose(alike(lambda v: power(v, by=3), x), x ** 3, rtol=1e-5)
    np.testing.assert_allclose(anima.grad(lambda v: power(v, by=3).sum())(x), 3 * x ** 2, rtol=1e-5)
    text = str(anima.make_jaxpr(lambda v: power(v, by=3))(x))
    assert "composite[" in text and "name=my.power" in text and "version=2" in text
    with pytest.raises(TypeError, match="callable"):
        lax.composite(3, "three")  # type: ignore[arg-type]


def test_wider_products() -> None:
    for given, wanted in (("int8", "int32"), ("float16", "float32"), ("uint8", "float32"), ("float32", "bfloat16")):
        x = jnp.asarray([100, 3], given)
        got = lax.mul(x, x, out_dtype=wanted)
        assert got.dtype == wanted
        np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(x, np.float64) ** 2, rtol=1e-2)
    with pytest.raises(TypeError, match="same dtypes"):
        lax.mul(jnp.int8(1), jnp.float32(1), out_dtype=jnp.float32)
    assert lax.mul(jnp.float32(2), 3) == 6


def test_values_of_programs() -> None:
    np.testing.assert_array_equal(lax.shape_as_value((2, 3)), [2, 3])
    assert isinstance(lax.stage(3), anima.Array)
    seen = []
    anima.jit(lambda x: seen.append(lax.stage(np.ones(2))) or x)(1.0)
    assert isinstance(seen[0], anima.core.trace.Tracer)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- how exactly

@pytest.mark.parametrize("name", ["F16_F16_F16", "F16_F16_F32", "BF16_BF16_BF16", "BF16_BF16_F32", "F32_F32_F32"])
def test_algorithms_round_their_operands(name: str) -> None:
    dtype = {"F16": np.float16, "BF1": ml_dtypes.bfloat16, "F32": np.float32}[name[:3]]
    x, y = normal(4, 5), normal(5, 3)
    want = x.astype(dtype).astype(np.float32) @ y.astype(dtype).astype(np.float32)
    for precision in (name, lax.DotAlgorithmPreset[name]):
        got = lax.dot(x, y, precision=precision)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=3e-2 if name.endswith("16") else 1e-5, atol=3e-2)
    as_given = lax.DotAlgorithm(dtype, dtype, np.float32)
    if name.endswith("F32"):
        np.testing.assert_allclose(lax.dot(x, y, precision=as_given), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lax.dot(x, y, precision=lax.DotAlgorithmPreset.DEFAULT), x @ y, rtol=1e-5, atol=1e-5)


def test_an_algorithm_of_all_products() -> None:
    x = jnp.linspace(0, 1.1, 9).reshape(3, 3)
    want = lax.dot(x, x, precision="BF16_BF16_F32")
    with anima.default_matmul_precision("BF16_BF16_F32"):
        for got in (x @ x, anima.jit(jnp.matmul)(x, x), jnp.einsum("ij,jk", x, x)):
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(jnp.arange(257) @ jnp.arange(257), sum(n * n for n in range(257)))
        assert ((x + 1j) @ x).imag.any()
    assert (x @ x != want).any()
    with anima.default_matmul_precision("TF32_TF32_F32"), pytest.raises(ValueError, match="not supported"):
        jnp.matmul(x, x)


@pytest.mark.parametrize("name", ["TF32_TF32_F32_X3", "BF16_BF16_F32_X9", "ANY_F8_ANY_F8_F32"])
def test_algorithms_that_cpus_do_not_have(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is not supported by dot_general on CPU"):
        lax.dot(jnp.ones((2, 2)), jnp.ones((2, 2)), precision=name)


# Of two dtypes, that of the product, as JAX gives it.
MIXED = [("int8", "uint8", "int8"), ("int8", "uint16", "uint16"), ("uint32", "int32", "int32"),
         ("int4", "int8", "int8"), ("float16", "bfloat16", "bfloat16"), ("float8_e4m3fn", "float16", "float16"),
         ("bool", "int8", "int8"),
         ("float8_e4m3fn", "float8_e5m2", "float8_e5m2"), ("float8_e5m2", "int32", "float8_e5m2"),
         ("float32", "complex64", "complex64"), ("int32", "float16", "float16")]


@pytest.mark.parametrize("a, b, want", MIXED)
def test_products_of_two_types(a: str, b: str, want: str) -> None:
    numbers = np.array([[1, 2], [0, 1]]), np.array([[1, 0], [2, 1]])
    x, y = jnp.asarray(numbers[0]).astype(a), jnp.asarray(numbers[1]).astype(b)
    exact = np.asarray(x.astype("complex64")) @ np.asarray(y.astype("complex64"))
    for f in (lax.dot, anima.jit(lax.dot)):
        for left, right, product in ((x, y, exact), (y, x, np.asarray(y.astype("complex64")) @
                                                     np.asarray(x.astype("complex64")))):
            got = f(left, right)
            assert got.dtype == want
            np.testing.assert_array_equal(np.asarray(got.astype("complex64")), product)
        if want not in ("complex64", "int32"):
            wide = partial(lax.dot, preferred_element_type=np.float32)
            got = (wide if f is lax.dot else anima.jit(wide))(x, y)
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, exact.real)


def test_accuracy_is_a_hint() -> None:
    for accuracy in (None, lax.AccuracyMode.HIGHEST, lax.Tolerance(1e-3, 1e-3, 2)):
        np.testing.assert_allclose(lax.exp(1.0, accuracy=accuracy), np.e, rtol=1e-6)
    with pytest.raises(NotImplementedError, match="Accuracy"):
        lax.exp(1.0, accuracy="high")
    with pytest.raises(ValueError, match="non-negative"):
        lax.Tolerance(-1)
    with pytest.raises(ValueError, match="must be set"):
        lax.Tolerance(0.0, 0.0, 0)


# ---------------------------------------------------------------- arranging

@pytest.mark.parametrize("f, name", [
    (lambda x: lax.split(x, (1, 3), -1), "split[axis=1 sizes=(1, 3)]"), (lambda x: lax.tile(x, (2, 1)), "tile["),
    (lambda x: lax.stack([x, 2 * x], -1), "stack[axis=2]"), (lambda x: lax.unstack(x, 1), "unstack[axis=1]")])
def test_arranging_is_one_operation(f: Callable[..., Any], name: str) -> None:
    x = normal(3, 4)
    assert name in str(anima.make_jaxpr(f)(x))
    want = list(map(np.asarray, anima.tree.leaves(f(x))))
    for other in (anima.jit(f), lambda v: [y[1] for y in anima.tree.leaves(anima.vmap(f)(np.stack([v + 1, v])))],
                  lambda v: anima.jvp(anima.jit(f), (v - 1,), (v,))[1]):
        for a, b in zip(anima.tree.leaves(other(x)), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    check_grads(anima.jit(f), (x,), 2, atol=1e-2, rtol=1e-2, eps=1e-2)


def test_scaled_matmul() -> None:
    x, y = (jnp.asarray(normal(2, n, 64), "float8_e4m3fn") for n in (3, 5))
    s, t = (2.0 ** RNG.integers(-2, 3, (2, n, 2)).astype(np.float32) for n in (3, 5))
    want = (np.asarray(x.astype("float32")) * np.repeat(s, 32, 2)) @ np.swapaxes(
        np.asarray(y.astype("float32")) * np.repeat(t, 32, 2), 1, 2)
    for f in (anima.nn.scaled_matmul, anima.jit(anima.nn.scaled_matmul)):
        np.testing.assert_allclose(f(x, y, s, t), want, rtol=1e-5, atol=1e-4)
    assert anima.nn.scaled_matmul(x, y, s, t, "bfloat16").dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="three dimensions"):
        anima.nn.scaled_matmul(x[0], y, s, t)
    with pytest.raises(TypeError, match="does not divide"):
        anima.nn.scaled_matmul(x, y, s[:, :, :1].repeat(3, 2), t)


SIZED = lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0])


@pytest.mark.parametrize("changed, error, text", [
    ({"group_offset": np.array([0])}, NotImplementedError, "group_offset is not supported"),
    ({"group_sizes": np.float32([1, 3])}, TypeError, r"must be a vector of integers, got float32\[2\]"),
    ({"group_sizes": np.array([[1, 3]])}, TypeError, r"to have shape \(2,\) or"),
    ({"group_sizes": np.array([1, 2, 1])}, TypeError, "an entry for each of 3 groups, got 2"),
    ({"ragged_dot_dimension_numbers": lax.RaggedDotDimensionNumbers(SIZED.dot_dimension_numbers, [0, 1], [0])},
     TypeError, "exactly one lhs ragged dimension"),
    ({"ragged_dot_dimension_numbers": lax.RaggedDotDimensionNumbers(SIZED.dot_dimension_numbers, [0], [])}, TypeError,
     "expects 1 rhs group dimensions"),
    ({"ragged_dot_dimension_numbers": lax.RaggedDotDimensionNumbers(SIZED.dot_dimension_numbers, [1], [0])}, TypeError,
     "expects 0 rhs group dimensions"),
])
def test_ragged_products_that_do_not_fit(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    lhs, rhs, groups = normal(4, 3), normal(2, 5, 3), np.array([1, 3])
    given = {"group_sizes": groups, "ragged_dot_dimension_numbers": SIZED}
    want = np.stack([row @ rhs[int(k > 0)].T for k, row in enumerate(np.asarray(lhs))])
    np.testing.assert_allclose(lax.ragged_dot_general(lhs, rhs, **given), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(error, match=text):
        lax.ragged_dot_general(lhs, rhs, **{**given, **changed})


def test_nothing_to_scan_and_no_shapes() -> None:
    assert lax.associative_scan(lambda a, b: a, {}) == {} and lax.broadcast_shapes() == ()
    with pytest.raises(ValueError, match=r"must have the same first dimension. \(saw: \[3, 4\]\)"):
        lax.associative_scan(lambda a, b: a, (jnp.ones(3), jnp.ones(4)))
    assert [str(lax.RandomAlgorithm(k)) for k in range(3)] == ["RNG_DEFAULT", "RNG_THREE_FRY", "RNG_PHILOX"]


def test_group_sizes_that_differ_along_other_axes() -> None:
    def looped(lhs: Any, rhs: Any, sizes: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(lax.ragged_dot(a, b, s)) for a, b, s in zip(lhs, rhs, sizes, strict=True)])

    # Batches: the second axis of rhs; and a free axis of lhs before the ragged one, with the same matrices for each.
    lhs, rhs, sizes = normal(2, 5, 3), normal(2, 2, 3, 4), np.array([[4, 1], [2, 2]], np.int32)
    numbers = lax.RaggedDotDimensionNumbers((((2,), (2,)), ((0,), (1,))), (1,), (0,))
    got = alike(lambda a, b, s: lax.ragged_dot_general(a, b, s, numbers), lhs, np.swapaxes(rhs, 0, 1), sizes)
    np.testing.assert_allclose(got, looped(lhs, rhs, sizes), rtol=1e-4, atol=1e-5)
    free = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), (1,), (0,))
    got = alike(lambda a, b, s: lax.ragged_dot_general(a, b, s, free), lhs, rhs[0], sizes)
    np.testing.assert_allclose(got, looped(lhs, [rhs[0]] * 2, sizes), rtol=1e-4, atol=1e-5)
    # A contracted axis within batches that come last: a product for each group.
    contract = lax.RaggedDotDimensionNumbers((((0,), (1,)), ((2,), (0,))), (0,), ())
    left, right = normal(5, 3, 2), normal(2, 5, 4)
    got = lax.ragged_dot_general(left, right, sizes, contract)
    for b, (first, second) in enumerate(sizes):
        for g, rows in enumerate((slice(0, first), slice(first, first + second))):
            np.testing.assert_allclose(got[g, b], left[rows, :, b].T @ right[b, rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("sizes", "ragged", "group", "text"), [
    (np.ones((3, 2), int), [0], [0], r"to have shape \(2,\)"), (np.ones(2, int), [2], [0], "lhs ragged dimension"),
    (np.ones(2, int), [0], [3], "rhs group dimension numbers to be nonnegative"),
    (np.ones(2, int), [0], [1], "to be distinct from contracting")])
def test_groups_that_do_not_fit(sizes: np.ndarray, ragged: list[int], group: list[int], text: str) -> None:
    numbers = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), ragged, group)
    with pytest.raises(TypeError, match=text):
        lax.ragged_dot_general(normal(5, 3), normal(2, 3, 4), sizes, numbers)


def test_large_numbers_of_python_wrap_around() -> None:
    for value, dtype in ((2**32, "int32"), (2**33 + 5, "int32"), (-2**31 - 1, "int32"), (300, "int8"), (-1, "uint32")):
        out = lax.convert_element_type(value, dtype)
        assert out.dtype == dtype and int(out) == int(np.int64(value).astype(dtype)) and not out.weak_type
    assert float(lax.convert_element_type(2**40, "float32")) == 2.0**40
    with pytest.raises(OverflowError):
        lax.convert_element_type(2**70, "int32")
