from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.config import enable_x64
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.stage import trace_to_jaxpr
from anima.ops.sort import sort, sort_key_val, sort_p, take_along, top_k, top_k_p
from anima.ops.threefry import threefry2x32_p, threefry_2x32
from tests.ops.rule_checks import check_batch, check_derivative, check_infer_and_stage, numbers

NAN, INF = np.nan, np.inf


def as_text(x: Any) -> list[str]:
    """Elements with their signs, which `==` does not see."""
    return [str(v) for v in np.asarray(x).tolist()]


def test_order_of_floats() -> None:
    x = np.float32([3, NAN, -0.0, 0, -INF, NAN, 1, INF])
    assert as_text(sort(x)) == ["-inf", "-0.0", "0.0", "1.0", "3.0", "inf", "nan", "nan"]
    _, places = sort((np.float32([0, -0.0, 0, -0.0]), np.arange(4)))
    np.testing.assert_array_equal(places, [0, 1, 2, 3])
    _, places = sort((np.float32([NAN, -NAN, NAN, 1]), np.arange(4)))
    np.testing.assert_array_equal(places, [3, 0, 1, 2])


def test_complex_numbers_are_ordered_by_parts() -> None:
    z = np.complex64([1 + 2j, 1 - 2j, 5j, complex(0, NAN), complex(NAN, 0), complex(0, -0.0)])
    _, places = sort((z, np.arange(6)))
    np.testing.assert_array_equal(places, [5, 2, 3, 1, 0, 4])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float32", "complex64"])
def test_sort_of_every_type(dtype: str) -> None:
    x = numbers((3, 5), 1, np.int8).astype(dtypes.canonicalize_dtype(dtype))
    for axis in (0, 1):
        (got,) = check_infer_and_stage(sort_p, [x], {"dimension": axis, "is_stable": True, "num_keys": 1})
        np.testing.assert_array_equal(got.astype(complex).real, np.sort(x.astype(complex).real, axis))
    if dtype != "complex64":
        values, places = check_infer_and_stage(top_k_p, [x], {"k": 2, "axis": 0})
        np.testing.assert_array_equal(values.astype(float), np.sort(x.astype(float), 0)[::-1][:2])
        np.testing.assert_array_equal(np.take_along_axis(x, places, 0).astype(float), values.astype(float))


def test_several_keys_and_stability() -> None:
    a, b, c = np.int32([2, 1, 2, 1]), np.float32([5, 7, 4, 7]), np.arange(4)
    by_one = sort((a, b, c))
    np.testing.assert_array_equal(by_one[2], [1, 3, 0, 2])
    by_two = sort((a, b, c), num_keys=2)
    np.testing.assert_array_equal(by_two[2], [1, 3, 2, 0])
    keys, values = sort_key_val(np.float32([[3, 1], [2, 4]]), np.int32([[0, 1], [2, 3]]), dimension=0)
    np.testing.assert_array_equal(keys, [[2, 1], [3, 4]])
    np.testing.assert_array_equal(values, [[2, 1], [0, 3]])
    assert isinstance(by_one, tuple) and sort([a, b])[0].tolist() == [1, 1, 2, 2]
    assert sort(np.zeros((0,), np.float32)).shape == (0,) and sort(np.zeros((2, 0)), 0).shape == (2, 0)


def test_top_k_counts_axes_from_the_front() -> None:
    """The operation; the function counts from the end, too."""
    for axis in (-1, 2):
        with pytest.raises(ValueError, match="axis argument out of range"):
            top_k_p.bind(jnp.ones((2, 3)), k=1, axis=axis)
    assert top_k(jnp.ones((2, 3)), 1, axis=-2)[0].shape == (1, 3)


def test_top_k_order() -> None:
    values, places = top_k(np.float32([3, NAN, -0.0, 0, -INF, NAN, 1]), 7)
    assert as_text(values) == ["nan", "nan", "3.0", "1.0", "0.0", "-0.0", "-inf"]
    np.testing.assert_array_equal(places, [1, 5, 0, 6, 3, 2, 4])
    assert np.asarray(top_k(np.uint8([1, 3, 3, 2]), 3)[1]).tolist() == [1, 2, 3]
    assert np.asarray(top_k(np.array([True, False, True]), 2)[1]).tolist() == [0, 2]
    assert top_k(np.zeros((3, 0), np.float32), 0)[0].shape == (3, 0)
    values, places = top_k(numbers((4, 3)), 2, axis=0)
    assert values.shape == places.shape == (2, 3) and places.dtype == np.int32


def test_rules() -> None:
    x, y = numbers((3, 4)), numbers((3, 4), 1)
    for num_keys in (1, 2):
        check_batch(sort_p, [x, y], {"dimension": 1, "is_stable": True, "num_keys": num_keys})
    check_batch(top_k_p, [x], {"k": 2, "axis": 0})
    check_batch(top_k_p, [x], {"k": 3, "axis": 1})
    with enable_x64(True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        check_derivative(sort_p, [x, y], {"dimension": 0, "is_stable": True, "num_keys": 1})
        check_derivative(sort_p, [x, np.arange(12).reshape(3, 4), y],
                         {"dimension": 1, "is_stable": True, "num_keys": 2})
        check_derivative(top_k_p, [x], {"k": 2, "axis": 1})
    np.testing.assert_array_equal(take_along(x, np.argsort(x, 0), 0), np.sort(x, 0))


@pytest.mark.parametrize(("shape", "axis"), [((0,), 0), ((0, 2), 0), ((3, 0), 1), ((3, 0), 0), ((0, 5), 1)])
def test_derivatives_where_there_is_nothing(shape: tuple[int, ...], axis: int) -> None:
    x = np.zeros(shape, np.float32)
    for k in range(min(shape[axis], 2) + 1):
        check_derivative(top_k_p, [x], {"k": k, "axis": axis})
    check_derivative(sort_p, [x, x], {"dimension": axis, "is_stable": True, "num_keys": 1})
    check_batch(top_k_p, [x], {"k": 0, "axis": axis})
    np.testing.assert_array_equal(take_along(x, np.argsort(x, axis), axis), x)


def test_no_permutation_is_made_for_constants() -> None:
    x = ShapedArray((4,), np.dtype("float32"))
    jaxpr = trace_to_jaxpr(lambda a: [sort(a), *top_k(a, 2)], [x])[0]
    assert str(jaxpr) == ("{ lambda ; a:f32[4]. let\n"
                          "    b:f32[4] = sort[dimension=0 is_stable=True num_keys=1] a\n"
                          "    c:f32[2] d:i32[2] = top_k[axis=0 k=2] a\n"
                          "  in (b, c, d) }")


@pytest.mark.parametrize("call, error, message", [
    (lambda: sort(()), TypeError, "Sort requires at least one operand"),
    (lambda: sort(np.ones(2), num_keys=2), ValueError, "num_keys=2 must equal 1 for a single operand."),
    (lambda: sort((np.ones(2), np.ones(2)), num_keys=3), ValueError, "num_keys=3 must be between 1 and"),
    (lambda: sort((np.ones(2), np.ones(3))), TypeError,
     r"Arguments to sort must have equal shapes, got: \(2,\) \(3,\)"),
    (lambda: sort(np.ones((2, 3)), 3), ValueError, "axis 3 is out of bounds for array of dimension 2"),
    (lambda: sort(1.0), ValueError, "out of bounds for array of dimension 0"),
    (lambda: top_k(np.ones((2, 3)), 5), ValueError,
     r"k argument to top_k must be no larger than size along axis; got k=5 with shape=\[2, 3\] and axis=1"),
    (lambda: top_k(np.ones(3), -1), ValueError, "k argument to top_k must be nonnegative, got -1"),
    (lambda: top_k(np.ones(3, complex), 1), ValueError, "top_k is not compatible with complex inputs."),
])
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# ---------------------------------------------------------------- threefry

def words(*values: int) -> list[np.ndarray]:
    return [np.array(v, np.uint32) for v in values]


@pytest.mark.parametrize("key, counter, answer", [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0))])
def test_known_answers_of_random123(key: Any, counter: Any, answer: Any) -> None:
    assert tuple(int(v) for v in threefry2x32_p.bind(*words(*key, *counter))) == answer


def test_threefry_of_counters() -> None:
    # jax.random.bits(PRNGKey(42), (7,)) with the original stream, JAX 0.10.2
    want = np.uint32([2954079971, 2575172198, 1139032965, 1681094280, 3276725750, 1223413151, 173471767])
    key = np.uint32([0, 42])
    got = threefry_2x32(key, np.arange(7, dtype=np.uint32))
    np.testing.assert_array_equal(got, want)
    even = np.asarray(threefry_2x32((key[0], key[1]), np.arange(6, dtype=np.uint32).reshape(2, 3)))
    a, b = threefry2x32_p.eval(key[0], key[1], np.uint32([0, 1, 2]), np.uint32([3, 4, 5]))
    np.testing.assert_array_equal(even, [a, b])
    assert threefry_2x32(key, np.zeros((0, 3), np.uint32)).shape == (0, 3)
    with pytest.raises(TypeError, match="threefry_2x32 requires uint32 arguments, got uint32, uint32, int32"):
        threefry_2x32(key, np.arange(3))


def test_threefry_rules() -> None:
    key, x1, x2 = words(1, 2), numbers((2, 3), 0, np.uint32), numbers((2, 3), 1, np.uint32)
    check_infer_and_stage(threefry2x32_p, [*key, x1, x2], {})
    check_infer_and_stage(threefry2x32_p, [np.uint32([[1], [2]]), np.uint32([[3], [4]]), x1, x2], {})
    stacks = [[np.uint32(i + j) for i in range(3)] for j in range(2)]
    stacks += [[numbers((2, 3), i + j, np.uint32) for i in range(3)] for j in range(2)]
    check_batch(threefry2x32_p, [*key, x1, x2], {}, stacks)
    check_batch(threefry2x32_p, words(1, 2, 3, 4), {}, [[np.uint32(i * j) for i in range(3)] for j in range(4)])
    with pytest.raises(TypeError, match="incompatible shapes"):
        threefry2x32_p.bind(*key, x1, x2[:, :2])
    with pytest.raises(TypeError, match="four arrays of uint32"):
        threefry2x32_p.bind(*key, x1, x2.astype(np.int32))


@pytest.mark.parametrize("shape, axis", [((0, 2), 0), ((2, 0), 1), ((3, 2), 0), ((0, 2), 1)])
def test_derivative_of_the_largest_none(shape: tuple[int, ...], axis: int) -> None:
    slope = anima.grad(lambda x: anima.lax.top_k(x, 0, axis=axis)[0].sum())(np.ones(shape, np.float32))
    np.testing.assert_array_equal(slope, np.zeros(shape))


@pytest.mark.parametrize("call, error, message", [
    (lambda x: sort_p.infer(dimension=0, is_stable=True, num_keys=1), TypeError, "Sort requires at least one operand"),
    *((lambda x, k=k: sort_p.infer(x, dimension=k, is_stable=True, num_keys=1), ValueError,
       f"sort dimension {k} is out of bounds") for k in (-1, 2)),
    *((lambda x, k=k: sort_p.infer(x, x, dimension=0, is_stable=True, num_keys=k), ValueError,
       f"num_keys={k} must be between 1 and len.operand.=2") for k in (0, 3)),
    (lambda x: top_k_p.infer(ShapedArray((), x.dtype), k=0, axis=0), TypeError, "must have >= 1 dimension"),
])
def test_errors_of_types(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(ShapedArray((2, 3), np.dtype(np.float32)))


def test_random_bits_have_no_slope() -> None:
    counters = np.arange(4, dtype=np.uint32)
    bits = np.asarray(threefry_2x32(counters[:2], counters)).astype(np.float32)
    for f in (lambda x: x * threefry_2x32(counters[:2], counters), lambda x: x * threefry_2x32(
            counters[:2], (counters + x.astype("uint32") * 0))):
        out, slope = anima.jvp(f, (jnp.float32(2),), (jnp.float32(1),))
        np.testing.assert_array_equal(slope, bits)
        np.testing.assert_array_equal(out, 2 * bits)


@pytest.mark.parametrize("kinds", [("float32", "int32"), ("bool", "float16", "uint8"), ("int8", "float64"),
                                   ("int64", "float32", "bool", "int16"), ("float32", "complex64"),
                                   ("uint16", "bfloat16", "int8", "bool", "float32")])
@pytest.mark.parametrize("shape", [(127, 1), (128, 3), (700, 5), (1024, 4), (4097, 4)])
def test_several_keys_compiled(kinds: tuple[str, ...], shape: tuple[int, int], x64: None) -> None:
    """Keys with many equal ones, NaN and zeros of both signs; what they leave equal stays in order."""
    rng = np.random.default_rng(len(kinds) + shape[0])
    keys = []
    for kind in kinds:
        numbers = rng.integers(0, 4, shape)
        special = np.array([np.nan, -0.0, 0.0, -1.5]) if "float" in kind or "complex" in kind else np.arange(4) - 1
        keys.append(jnp.asarray(special[numbers] + (1j * rng.integers(0, 2, shape) if "complex" in kind else 0)
                                if "bool" not in kind else numbers > 1).astype(kind))
    places = jnp.broadcast_to(jnp.arange(shape[0])[:, None], shape)
    for axis in (0, 1):
        def both(*xs: Any, axis: int = axis) -> Any:
            return sort(tuple(xs), dimension=axis, num_keys=len(kinds))

        given = [x if axis == 0 else x.T for x in (*keys, places)]
        for got, want in zip(anima.jit(both)(*given), both(*given), strict=True):
            np.testing.assert_array_equal(np.asarray(got).astype(complex), np.asarray(want).astype(complex))
            if jnp.issubdtype(got.dtype, jnp.floating):
                np.testing.assert_array_equal(jnp.signbit(got), jnp.signbit(want))
