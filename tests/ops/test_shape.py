from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.primitive import Zero
from anima.core.stage import trace_to_jaxpr
from anima.core.trace import aval_of
from anima.ops import shape as sh
from tests.ops.rule_checks import check_batch, check_infer_and_stage, check_linear, numbers

X = numbers((2, 3))
V = np.float32(9.0)

# primitive, shapes of its operands, parameters, the same in NumPy
CASES: list[tuple[Any, list[tuple[int, ...]], dict[str, Any], Any]] = [
    (sh.broadcast_in_dim_p, [(2, 1)], {"shape": (2, 4, 3), "broadcast_dimensions": (0, 2)},
     lambda x: np.broadcast_to(x[:, None, :], (2, 4, 3))),
    (sh.broadcast_in_dim_p, [()], {"shape": (5,), "broadcast_dimensions": ()}, lambda x: np.full(5, x)),
    (sh.broadcast_in_dim_p, [(3,)], {"shape": (0, 3), "broadcast_dimensions": (1,)}, lambda x: np.zeros((0, 3))),
    (sh.reduce_sum_p, [(2, 3, 4)], {"axes": (0, 2)}, lambda x: x.sum((0, 2))),
    (sh.reduce_sum_p, [(0, 3)], {"axes": (0,)}, lambda x: np.zeros(3)),
    (sh.reshape_p, [(2, 3)], {"new_sizes": (3, 2), "dimensions": None}, lambda x: x.reshape(3, 2)),
    (sh.reshape_p, [(2, 0)], {"new_sizes": (0,), "dimensions": None}, lambda x: x.reshape(0)),
    (sh.transpose_p, [(2, 3, 4)], {"permutation": (2, 0, 1)}, lambda x: x.transpose(2, 0, 1)),
    (sh.rev_p, [(2, 3)], {"dimensions": (1,)}, lambda x: x[:, ::-1]),
    (sh.squeeze_p, [(1, 3, 1)], {"dimensions": (0, 2)}, lambda x: x[0, :, 0]),
    (sh.slice_p, [(5, 4)], {"start_indices": (1, 0), "limit_indices": (4, 3), "strides": None},
     lambda x: x[1:4, :3]),
    (sh.slice_p, [(7, 4)], {"start_indices": (1, 3), "limit_indices": (6, 4), "strides": (2, 3)},
     lambda x: x[1:6:2, 3:4:3]),
    (sh.slice_p, [(5,)], {"start_indices": (2,), "limit_indices": (2,), "strides": (3,)}, lambda x: x[2:2]),
    (sh.concatenate_p, [(2, 3), (2, 1), (2, 0)], {"dimension": 1}, lambda *xs: np.concatenate(xs, 1)),
    (sh.pad_p, [(2, 3), ()], {"padding_config": ((1, 2, 0), (0, 1, 2))},
     lambda x, v: np.array([[v] * 8] + [[a, v, v, b, v, v, c, v] for a, b, c in x] + [[v] * 8] * 2)),
    (sh.pad_p, [(4, 3), ()], {"padding_config": ((-1, -2, 0), (-2, 3, 1))},
     lambda x, v: np.array([[b, v, c, v, v, v] for a, b, c in x[1:2]])),
    (sh.pad_p, [(3,), ()], {"padding_config": ((-3, -3, 3),)}, lambda x, v: np.array([v, x[1], v])),
    (sh.pad_p, [(0,), ()], {"padding_config": ((1, 2, 5),)}, lambda x, v: np.array([v] * 3)),
]


@pytest.mark.parametrize("p, shapes, params, reference", CASES, ids=lambda c: getattr(c, "name", None))
def test_primitives(p: Any, shapes: list[tuple[int, ...]], params: dict[str, Any], reference: Any) -> None:
    args = [numbers(s, i) for i, s in enumerate(shapes)]
    (got,) = check_infer_and_stage(p, args, params)
    np.testing.assert_array_equal(got, reference(*args))
    check_linear(p, args, range(len(args)), params)
    check_batch(p, args, params)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("p, shapes, params, reference", CASES, ids=lambda c: getattr(c, "name", None))
def test_element_types(p: Any, shapes: list[tuple[int, ...]], params: dict[str, Any], reference: Any,
                       dtype: str) -> None:
    if dtype == "bool" and p is sh.reduce_sum_p:
        with pytest.raises(TypeError, match="reduce_sum does not accept dtype bool"):
            p.infer(ShapedArray(shapes[0], np.dtype("bool")), **params)
        return
    kind = dtypes.canonicalize_dtype(dtype)
    args = [numbers(s, i, np.int8).astype(kind) for i, s in enumerate(shapes)]
    check_infer_and_stage(p, args, params)


def test_jvp_of_zero_tangents_is_zero() -> None:
    out, tangent = sh.reshape_p.jvp([np.arange(4)], [Zero(ShapedArray((4,), dtypes.float0))],
                                    new_sizes=(2, 2), dimensions=None)
    assert out.shape == (2, 2)
    assert tangent == Zero(ShapedArray((2, 2), dtypes.float0))


def test_pad_many_configurations_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, lo, hi, interior = rng.integers(0, 6), *rng.integers(-6, 5, 2), rng.integers(0, 4)
        size = int(lo + hi + n + max(n - 1, 0) * interior)
        if size < 0:
            continue
        x = numbers((int(n),), int(n))
        want = np.full(size, V)
        for i in range(n):
            place = lo + i * (interior + 1)
            if 0 <= place < size:
                want[place] = x[i]
        config = ((int(lo), int(hi), int(interior)),)
        np.testing.assert_array_equal(sh.pad_p.eval(x, V, padding_config=config), want)
        check_linear(sh.pad_p, [x, V], [0, 1], {"padding_config": config})


def test_reduce_sum_is_accurate_and_wraps() -> None:
    ones = np.ones((4096, 3), np.float32)
    np.testing.assert_allclose(sh.reduce_sum(ones * np.float32(0.1), (0,)), 409.6, rtol=5e-7)  # in order: 4e-5
    np.testing.assert_array_equal(sh.reduce_sum(np.full(3, 100, np.int8), (0,)), np.int8(44))
    half = sh.reduce_sum(np.ones(4096, ml_dtypes.bfloat16), (0,))
    assert half.dtype == ml_dtypes.bfloat16 and float(half) == 4096.0


def keys(shape: tuple[int, ...]) -> ConcreteArray:
    return ConcreteArray(numbers((*shape, 2), 1, np.uint32), ShapedArray(shape, dtypes.KeyDType("fry")))


@pytest.mark.parametrize("fun, shape", [
    (lambda x: sh.reshape(x, (3, 2)), (2, 3)), (lambda x: sh.transpose(x, (1, 0)), (2, 3)),
    (lambda x: sh.rev(x, (0,)), (2, 3)), (lambda x: sh.squeeze(x, (0,)), (1, 3)),
    (lambda x: sh.slice(x, (0, 1), (2, 3), (1, 2)), (2, 3)), (lambda x: sh.slice(x, (0, 1), (2, 3)), (2, 3)),
    (lambda x: sh.concatenate([x, x], 1), (2, 3)), (lambda x: sh.broadcast(x, (4,)), (3,)),
    (lambda x: sh.broadcast_in_dim(x, (3, 2), (0,)), (3,)), (lambda x: sh.stack([x, x]), ()),
    (lambda x: sh.tile(x, (2,)), (3,))])
def test_random_keys_move_as_their_numbers_do(fun: Any, shape: tuple[int, ...]) -> None:
    moved = fun(keys(shape))
    assert moved.dtype == dtypes.KeyDType("fry")
    flat = [tuple(k) for k in keys(shape).value.reshape(-1, 2)]
    places = np.asarray(fun(np.arange(len(flat)).reshape(shape)))
    assert moved.shape == places.shape
    assert [tuple(k) for k in moved.value.reshape(-1, 2)] == [flat[i] for i in places.reshape(-1)]


def test_trivial_work_is_skipped() -> None:
    x = sh.as_array(X)
    assert sh.reshape(x, (2, 3)) is x and sh.transpose(x, (0, 1)) is x and sh.squeeze(x, ()) is x
    assert sh.slice(x, (0, 0), (2, 3), (1, 1)) is x and sh.concatenate([x], 0) is x
    assert sh.pad(x, V, [(0, 0, 0)] * 2) is x and sh.rev(x, ()) is x and sh.broadcast(x, ()) is x
    assert sh.reduce_sum(x, ()) is x
    scalar = sh.reshape(2.0, ())
    assert scalar.weak_type and scalar.dtype == np.float32


def test_composed_functions() -> None:
    np.testing.assert_array_equal(sh.tile(X, (2, 3)), np.tile(X, (2, 3)))
    np.testing.assert_array_equal(sh.stack([X, X + 1], -1), np.stack([X, X + 1], -1))
    assert [np.asarray(a).tolist() for a in sh.unstack(X, 1)] == [c.tolist() for c in X.T]
    assert [a.shape for a in sh.split(X, (1, 0, 2), -1)] == [(2, 1), (2, 0), (2, 2)]
    np.testing.assert_array_equal(sh.expand_dims(X, (0, -1)), X[None, :, :, None])
    np.testing.assert_array_equal(sh.reshape(X, (6,), (1, 0)), X.T.reshape(6))
    np.testing.assert_array_equal(sh.index_in_dim(X, -1, 1, keepdims=False), X[:, -1])
    np.testing.assert_array_equal(sh.slice_in_dim(X, 0, -1, 2, axis=1), X[:, 0:-1:2])
    np.testing.assert_array_equal(sh.broadcast_like(np.float32(1), X), np.ones((2, 3)))
    assert sh.collapse(X, 0).shape == (6,) and sh.collapse(X, 5).shape == (2, 3, 1)
    assert sh.broadcast_to_rank(X, 4).shape == (1, 1, 2, 3) and sh.broadcast_to_rank(X, 1).shape == (2, 3)


def test_filling_and_counting() -> None:
    assert sh.full((2,), 1.0).weak_type and not sh.full((2,), 1.0, np.float32).weak_type
    assert sh.full_like(2.0, 1).weak_type and sh.full_like(X, 1).dtype == np.float32
    np.testing.assert_array_equal(sh.full((2,), 1.7, np.int32), np.int32([1, 1]))
    np.testing.assert_array_equal(sh.full((2,), -1, np.uint8), np.uint8([255, 255]))
    np.testing.assert_array_equal(sh.full_like(np.arange(3), 2.5), [2, 2, 2])
    np.testing.assert_array_equal(sh.iota("uint8", 300), np.arange(300) % 256)
    np.testing.assert_array_equal(sh.broadcasted_iota(int, (2, 3), 1), [[0, 1, 2]] * 2)
    assert sh.iota(complex, 3).dtype == np.complex64
    assert np.asarray(sh.zeros(ShapedArray((2,), dtypes.float0))).dtype == dtypes.float0
    assert sh.zeros(ShapedArray((2,), np.dtype("float32"), True)).weak_type


def test_weak_types() -> None:
    weak = sh.full((3,), 2.0)
    assert sh.concatenate([weak, weak], 0).weak_type and not sh.concatenate([weak, X[0]], 0).weak_type
    assert sh.pad(weak, 1.0, [(1, 1, 0)]).weak_type and not sh.pad(weak, V, [(1, 1, 0)]).weak_type
    assert sh.reshape(weak, (3, 1)).weak_type and sh.slice(weak, (0,), (1,)).weak_type


@pytest.mark.parametrize("call, error, message", [
    (lambda: sh.reshape(X, (4, 2)), TypeError, "reshape total size must be unchanged"),
    (lambda: sh.reshape(X, (-1, 2)), TypeError, "reshape new_sizes must all be positive"),
    (lambda: sh.reshape(X, (3, 2), (1, 1)), TypeError, "reshape dimensions must be a permutation"),
    (lambda: sh.full((-1,), 0.0), TypeError, r"broadcast_in_dim shape must have every element be nonnegative, "
                                             r"got \(-1,\)."),
    (lambda: sh.full((2,), X), TypeError, "full must be called with scalar fill_value"),
    (lambda: sh.full((2.5,), 0.0), TypeError, "must have every element be an integer type"),
    (lambda: sh.broadcast_to(X, (4, 3)), ValueError,
     r"Incompatible types for broadcasting: input type=float32\[2,3\] and requested type=float32\[4,3\]"),
    (lambda: sh.broadcast_in_dim(X, (2, 4), (0, 1)), TypeError, "operand dimension sizes must either be 1"),
    (lambda: sh.broadcast_in_dim(X, (2, 3, 3), (1, 0)), TypeError, "broadcast_in_dim"),
    (lambda: sh.broadcast_in_dim(X[:, :2], (2, 2), (1, 0)), TypeError, r"must be strictly increasing; got \(1, 0\)"),
    (lambda: sh.broadcast_in_dim(X[:, :2], (2, 2), (1, 1)), TypeError, r"must be strictly increasing; got \(1, 1\)"),
    (lambda: sh.broadcast_in_dim(X, (3,), (0, 1)), TypeError, "operand ndim 2 and target broadcast ndim 1"),
    (lambda: sh.squeeze(X[:1], (0, -2)), ValueError, r"dimensions are not unique: \(0, -2\)"),
    (lambda: sh.concatenate([X, X[0]], 0), TypeError,
     r"Cannot concatenate arrays with different numbers of dimensions: got \(2, 3\), \(3,\)."),
    (lambda: sh.concatenate([X, X[:, :2]], 0), TypeError,
     "Cannot concatenate arrays with shapes that differ in dimensions other than the one being concatenated: "
     r"concatenating along dimension 0 for shapes \(2, 3\), \(2, 2\)."),
    (lambda: sh.concatenate([X, X.astype(np.int32)], 0), TypeError, "same dtypes, got float32, int32"),
    (lambda: sh.concatenate([X, X], 2), TypeError, "dimension out of bounds"),
    (lambda: sh.concatenate([], 0), ValueError, "non-empty"),
    (lambda: sh.transpose(X, (0, 0)), TypeError,
     r"transpose permutation isn't a permutation of operand dimensions, got permutation \(0, 0\) for operand shape "
     r"\(2, 3\)."),
    (lambda: sh.squeeze(X, (0,)), ValueError, "cannot select an axis to squeeze out which has size not equal to one"),
    (lambda: sh.squeeze(X, (7,)), ValueError, "axis 7 is out of bounds for array of dimension 2"),
    (lambda: sh.slice(np.arange(4), (0,), (5,)), TypeError,
     r"slice slice_sizes must be less than or equal to operand shape, got slice_sizes \(5,\) for operand shape \(4,\)"),
    (lambda: sh.slice(X, (0, 0), (2, 3), (0, 1)), TypeError, "slice strides must be positive"),
    (lambda: sh.slice(X, (0,), (1,)), TypeError, "must have length equal to the number of dimensions"),
    (lambda: sh.pad(X, V, [(0, 0, 0)]), ValueError, "length of padding_config must equal the number of axes"),
    (lambda: sh.pad(X, np.int32(0), [(0, 0, 0)] * 2), TypeError, "operand and padding_value must be same dtype"),
    (lambda: sh.pad(X, V, [(-5, 0, 0), (0, 0, 0)]), ValueError, "Dimension size after padding"),
    (lambda: sh.rev(X, (0, 0)), TypeError, "rev dimensions must be unique"),
    (lambda: sh.iota(bool, 3), TypeError, "iota does not accept dtype bool"),
    (lambda: sh.broadcasted_iota(int, (2,), 1), ValueError, "iota dimension must be between"),
    (lambda: sh.index_in_dim(X, 5), IndexError, "index 5 is out of bounds for axis 0 with size 2"),
    (lambda: sh.split(X, (1, 1), 1), ValueError, "Sum of sizes 2 must be equal to dimension 1"),
    (lambda: sh.stack([]), ValueError, "Need at least one array"),
    (lambda: sh.collapse(X, 1, 0), ValueError, "Invalid dimension range"),
    (lambda: sh.expand_dims(X, (0, 0)), ValueError, "repeated axis"),
])
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_traced_shape_is_an_error_that_teaches() -> None:
    with pytest.raises(TypeError, match=r"Shapes must be 1D sequences of concrete values of integer type, "
                                        r"got .*Traced"):
        trace_to_jaxpr(lambda n: [sh.full((n,), 1.0)], [ShapedArray((), np.dtype("int32"))])


def test_staged_programs_read_as_in_the_documents() -> None:
    scalar = ShapedArray((), np.dtype("int32"))
    jaxpr = trace_to_jaxpr(lambda a: [sh.full((5,), a)], [scalar])[0]
    assert str(jaxpr) == ("{ lambda ; a:i32[]. let\n"
                          "    b:i32[5] = broadcast_in_dim[broadcast_dimensions=() shape=(5,)] a\n"
                          "  in (b,) }")
    jaxpr = trace_to_jaxpr(lambda x: [sh.index_in_dim(x, -1, 0, False), sh.slice(x, (0, 0), (2, 3), (1, 2))],
                           [aval_of(X)])[0]
    assert [str(e) for e in jaxpr.eqns] == [
        "b:f32[1,3] = slice[limit_indices=(2, 3) start_indices=(1, 0) strides=None] a",
        "b:f32[3] = squeeze[dimensions=(0,)] a",
        "b:f32[2,2] = slice[limit_indices=(2, 3) start_indices=(0, 0) strides=(1, 2)] a"]


@pytest.mark.parametrize("jitted", [False, True])
def test_a_traced_number_fills_in_the_type_that_is_asked_for(jitted: bool) -> None:
    for fill in (lambda x: sh.full((2, 3), x, "int32"), lambda x: sh.full_like(X, x, "int32")):
        got = (anima.jit(fill) if jitted else fill)(2.75)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, np.full((2, 3), 2))
