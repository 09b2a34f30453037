from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.config import enable_x64
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.primitive import Linear, Zero
from anima.core.stage import trace_to_jaxpr
from anima.core.trace import aval_of
from anima.ops import index as ix
from anima.ops.gather import default_fill
from tests.compiler.results import same_for_threads
from tests.ops.rule_checks import check_batch, check_derivative, check_infer_and_stage, check_linear, numbers

Mode = ix.GatherScatterMode
COMBINE = {"scatter": lambda a, b: b, "scatter-add": np.add, "scatter-mul": np.multiply,
           "scatter-min": np.minimum, "scatter-max": np.maximum}
SCATTERS = [ix.scatter_p, ix.scatter_add_p, ix.scatter_mul_p, ix.scatter_min_p, ix.scatter_max_p]

# operand shape, shape of the indices, dimension numbers, slice sizes
GEOMETRIES = {
    "rows": ((4, 3), (5, 1), ((1,), (0,), (0,)), (1, 3)),
    "columns": ((4, 3), (5, 1), ((0,), (1,), (1,)), (4, 1)),
    "points": ((4, 3), (2, 2, 2), ((), (0, 1), (0, 1)), (1, 1)),
    "one point": ((4, 3), (2,), ((), (0, 1), (0, 1)), (1, 1)),
    "windows": ((5, 4), (3, 2), ((1, 2), (), (1, 0)), (2, 3)),
    "window first": ((5, 4, 3), (3, 1), ((0, 2), (2,), (1,)), (5, 2, 1)),
    "kept unit axis": ((4, 3), (5, 1), ((1, 2), (), (0,)), (1, 2)),
    "batched": ((3, 4, 2), (2, 3, 1), ((2,), (1,), (1,), (0,), (1,)), (1, 1, 2)),
    "two batch axes": ((3, 4, 2), (2, 3, 1), ((), (1,), (1,), (0, 2), (1, 0)), (1, 1, 1)),
    "no index": ((3,), (2, 0), ((1,), (), ()), (2,)),
    "no windows": ((4, 3), (0, 1), ((1,), (0,), (0,)), (1, 3)),
    "empty windows": ((4, 3), (2, 1), ((1, 2), (), (0,)), (2, 0)),
}


def indices_for(shape: tuple[int, ...], geometry: str, reach: int, seed: int = 0) -> np.ndarray:
    """Index arrays that reach `reach` beyond the operand's bounds."""
    rng = np.random.default_rng(seed)
    operand, _, dims, sizes = GEOMETRIES[geometry]
    bounds = [operand[d] - sizes[d] for d in dims[2]]
    draws = [rng.integers(-reach, b + reach + 1, shape[:-1]) for b in bounds]
    return np.stack(draws, -1).astype(np.int32) if draws else np.zeros(shape, np.int32)


def windows(operand: tuple[int, ...], indices: np.ndarray, dims: Any, sizes: tuple[int, ...], clip: bool) -> Any:
    """The definition, in loops: pairs (position in the result, position in the operand or None)."""
    offset, collapsed, index_map, batching, indices_batching = (*dims, (), ())[:5]
    rank = len(offset) + indices.ndim - 1
    batch_axes = [a for a in range(rank) if a not in offset]
    kept = [d for d in range(len(operand)) if d not in collapsed and d not in batching]
    for where in np.ndindex(*indices.shape[:-1]):
        start = [0] * len(operand)
        for j, d in enumerate(index_map):
            start[d] = int(indices[(*where, j)])
        for d, b in zip(batching, indices_batching, strict=True):
            start[d] = where[b]
        bounds = [n - s for n, s in zip(operand, sizes, strict=True)]
        inside = all(0 <= a <= b for a, b in zip(start, bounds, strict=True))
        if clip:
            start = [min(max(a, 0), b) for a, b in zip(start, bounds, strict=True)]
        for step in np.ndindex(*[sizes[d] for d in kept]):
            position = [0] * rank
            for a, i in zip(batch_axes, where, strict=True):
                position[a] = i
            for a, i in zip(offset, step, strict=True):
                position[a] = i
            place = list(start)
            for d, i in zip(kept, step, strict=True):
                place[d] += i
            yield tuple(position), tuple(place) if clip or inside else None


def result_shape(geometry: str) -> tuple[int, ...]:
    operand, shape, *_ = GEOMETRIES[geometry]
    params = gather_params(geometry, Mode.CLIP)
    avals = ShapedArray(operand, np.dtype("float32")), ShapedArray(shape, np.dtype("int32"))
    return ix.gather_p.infer(*avals, **params).shape


def gather_params(geometry: str, mode: Mode, **more: Any) -> dict[str, Any]:
    _, _, dims, sizes = GEOMETRIES[geometry]
    return {"dimension_numbers": ix.GatherDimensionNumbers(*dims), "slice_sizes": sizes, "mode": mode,
            "fill_value": None, "unique_indices": False, "indices_are_sorted": False, **more}


def scatter_params(geometry: str, mode: Mode, unique: bool = False) -> dict[str, Any]:
    return {"dimension_numbers": ix.ScatterDimensionNumbers(*GEOMETRIES[geometry][2]), "mode": mode,
            "unique_indices": unique, "indices_are_sorted": False}


@pytest.mark.parametrize("mode", list(Mode), ids=lambda m: m.name)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_gather_is_its_definition(geometry: str, mode: Mode) -> None:
    operand, shape, dims, sizes = GEOMETRIES[geometry]
    x, indices = numbers(operand), indices_for(shape, geometry, 2)
    (got,) = check_infer_and_stage(ix.gather_p, [x, indices], gather_params(geometry, mode))
    clip = mode in (Mode.CLIP, Mode.PROMISE_IN_BOUNDS)
    for position, place in windows(operand, indices, dims, sizes, clip):
        want = x[place] if place is not None else 0 if mode is Mode.ONE_HOT else np.nan
        np.testing.assert_equal(got[position], np.float32(want))


@pytest.mark.parametrize("mode", list(Mode), ids=lambda m: m.name)
@pytest.mark.parametrize("p", SCATTERS, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_scatter_is_its_definition(geometry: str, p: Any, mode: Mode) -> None:
    operand, shape, dims, sizes = GEOMETRIES[geometry]
    x, indices, updates = numbers(operand), indices_for(shape, geometry, 2), numbers(result_shape(geometry), 4)
    (got,) = check_infer_and_stage(p, [x, indices, updates], scatter_params(geometry, mode))
    want, clip = x.copy(), mode is Mode.CLIP
    for position, place in windows(operand, indices, dims, sizes, clip):
        if place is not None:
            want[place] = COMBINE[p.name](want[place], updates[position])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mode", [Mode.CLIP, Mode.FILL_OR_DROP], ids=lambda m: m.name)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_gather_rules(geometry: str, mode: Mode) -> None:
    operand, shape, *_ = GEOMETRIES[geometry]
    x, indices = numbers(operand), indices_for(shape, geometry, 1)
    params = gather_params(geometry, mode, fill_value=0)
    check_linear(ix.gather_p, [x, indices], [0], params)
    many = [[numbers(operand, i) for i in range(3)], [indices_for(shape, geometry, 1, i) for i in range(3)]]
    check_batch(ix.gather_p, [x, indices], params, many)


@pytest.mark.parametrize("mode", [Mode.CLIP, Mode.FILL_OR_DROP], ids=lambda m: m.name)
@pytest.mark.parametrize("p", SCATTERS, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_scatter_rules(geometry: str, p: Any, mode: Mode) -> None:
    operand, shape, *_ = GEOMETRIES[geometry]
    x, indices, updates = numbers(operand), indices_for(shape, geometry, 1), numbers(result_shape(geometry), 4)
    params = scatter_params(geometry, mode)
    if p in (ix.scatter_p, ix.scatter_add_p):
        check_linear(p, [x, indices, updates], [0, 2], params)
    many = [[numbers(operand, i) for i in range(2)], [indices_for(shape, geometry, 1, i) for i in range(2)],
            [numbers(updates.shape, 4 + i) for i in range(2)]]
    check_batch(p, [x, indices, updates], params, many, size=2)


@pytest.mark.parametrize("p", SCATTERS, ids=str)
def test_scatter_derivatives(p: Any) -> None:
    with enable_x64(True):
        x, updates = numbers((6,), 0, np.float64) + 0.3, numbers((4,), 1, np.float64) + 0.1
        unique, twice = np.array([[3], [0], [9], [5]]), np.array([[3], [0], [9], [3]])
        dims = ix.ScatterDimensionNumbers((), (0,), (0,))
        params = {"dimension_numbers": dims, "mode": Mode.FILL_OR_DROP, "indices_are_sorted": False}
        check_derivative(p, [x, unique, updates], {**params, "unique_indices": True})
        if p is not ix.scatter_mul_p:
            check_derivative(p, [x, twice, updates], {**params, "unique_indices": False})


def test_scatter_mul_of_repeated_indices() -> None:
    x, indices, updates = numbers((4,)), np.array([[1], [1]]), numbers((2,))
    params = {"dimension_numbers": ix.ScatterDimensionNumbers((), (0,), (0,)), "mode": Mode.CLIP,
              "indices_are_sorted": False, "unique_indices": False}
    none = Zero(aval_of(updates))
    _, tangent = ix.scatter_mul_p.jvp([x, indices, updates], [np.ones_like(x), None, none], **params)
    np.testing.assert_array_equal(tangent, [1, updates[0] * updates[1], 1, 1])
    (ct, *_) = ix.scatter_mul_p.transpose(np.ones_like(x), Linear(aval_of(x)), indices, updates, **params)
    np.testing.assert_array_equal(ct, tangent)
    with pytest.raises(NotImplementedError, match="only implemented if `unique_indices=True`"):
        ix.scatter_mul_p.jvp([x, indices, updates], [Zero(aval_of(x)), None, updates], **params)


def test_extrema_share_their_derivative() -> None:
    params = {"dimension_numbers": ix.ScatterDimensionNumbers((), (0,), (0,)), "mode": Mode.FILL_OR_DROP,
              "indices_are_sorted": False, "unique_indices": False}
    x, indices, updates = np.float32([2, 5]), np.array([[0], [0], [1]]), np.float32([2, 2, 3])
    _, tangent = ix.scatter_max_p.jvp([x, indices, updates], [np.float32([3, 7]), None, np.float32([6, 12, 1])],
                                      **params)
    np.testing.assert_array_equal(tangent, [7, 7])


def test_transpose_of_overwriting_scatter_gives_to_the_last() -> None:
    params = {"dimension_numbers": ix.ScatterDimensionNumbers((), (0,), (0,)), "mode": Mode.FILL_OR_DROP,
              "indices_are_sorted": False, "unique_indices": False}
    x, updates = np.zeros(3, np.float32), np.zeros(3, np.float32)
    held = Linear(aval_of(x)), np.array([[1], [1], [5]]), Linear(aval_of(updates))
    ct_x, _, ct_updates = ix.scatter_p.transpose(np.float32([1, 2, 3]), *held, **params)
    np.testing.assert_array_equal(ct_x, [1, 0, 3])
    np.testing.assert_array_equal(ct_updates, [0, 2, 0])


@pytest.mark.parametrize("dtype, fill", [("float32", np.nan), ("int8", -128), ("uint16", 65535), ("bool", True),
                                         ("bfloat16", np.nan), ("complex64", np.nan)])
def test_what_is_read_outside(dtype: str, fill: Any) -> None:
    x = np.zeros(3).astype(dtypes.canonicalize_dtype(dtype))
    dims = ix.GatherDimensionNumbers((), (0,), (0,))
    got = ix.gather(x, np.array([[7], [-1]]), dims, (1,), mode="fill")
    np.testing.assert_array_equal(np.asarray(got).astype(complex), np.array([fill, fill], complex))
    assert got.dtype == x.dtype
    got = ix.gather(x, np.array([[7]]), dims, (1,), mode="fill", fill_value=1)
    np.testing.assert_array_equal(np.asarray(got), np.ones(1, x.dtype))
    assert default_fill(dtypes.KeyDType("fry")) == 2**32 - 1


def test_indices_of_every_integer_type() -> None:
    x, dims = numbers((300,)), ix.GatherDimensionNumbers((), (0,), (0,))
    for dtype in ("int8", "uint8", "int16", "uint32", "int32"):
        got = ix.gather(x, np.array([[0], [100], [127]], dtype), dims, (1,))
        np.testing.assert_array_equal(got, x[[0, 100, 127]])
    with enable_x64(True):
        big = np.array([[2**64 - 1], [2**63]], np.uint64)
        np.testing.assert_array_equal(ix.gather(x, big, dims, (1,), mode="clip"), x[[299, 299]])
        assert np.isnan(np.asarray(ix.gather(x, big, dims, (1,), mode="fill"))).all()
        low = np.array([[-2**63]])
        np.testing.assert_array_equal(ix.gather(x, low, dims, (1,), mode="clip"), x[:1])


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)], ids=str)
@pytest.mark.parametrize("scatter, combine", [(ix.scatter_add, np.add), (ix.scatter_mul, np.multiply)])
def test_scatters_into_halves_are_rounded_once(dtype: Any, scatter: Any, combine: np.ufunc) -> None:
    rng, dims = np.random.default_rng(0), ix.ScatterDimensionNumbers((), (0,), (0,))
    x, updates, places = rng.uniform(0.9, 1.1, 3), rng.uniform(0.9, 1.1, 60), rng.integers(0, 3, 60)
    x, updates = x.astype(dtype), updates.astype(dtype)
    want = x.astype(np.float32)
    combine.at(want, places, updates.astype(np.float32))

    def run(x: Any, updates: Any) -> Any:
        return scatter(x, places[:, None].astype(np.int32), updates, dims)

    for f in (run, anima.jit(run)):
        np.testing.assert_array_equal(f(x, updates), want.astype(dtype))


def test_scatter_into_small_types() -> None:
    dims = ix.ScatterDimensionNumbers((), (0,), (0,))
    indices = np.zeros((600, 1), np.int32)
    got = ix.scatter_add(np.zeros(1, ml_dtypes.bfloat16), indices, np.ones(600, ml_dtypes.bfloat16), dims)
    assert got.dtype == ml_dtypes.bfloat16 and float(np.asarray(got)[0]) == 600.0  # added in float32
    wrapped = ix.scatter_add(np.uint8([250]), indices[:3], np.uint8([4, 4, 4]), dims)
    np.testing.assert_array_equal(wrapped, np.uint8([6]))
    flags = ix.scatter_max(np.array([False]), indices[:2], np.array([False, True]), dims)
    np.testing.assert_array_equal(flags, [True])
    with pytest.raises(TypeError, match="scatter-add does not accept dtype bool"):
        ix.scatter_add(np.array([False]), indices[:1], np.array([True]), dims)


def test_modes_by_name() -> None:
    assert Mode.from_any(None) is Mode.from_any("fill") is Mode.from_any("drop") is Mode.FILL_OR_DROP
    assert Mode.from_any("clip") is Mode.CLIP and Mode.from_any("promise_in_bounds") is Mode.PROMISE_IN_BOUNDS
    assert Mode.from_any("one_hot") is Mode.ONE_HOT and str(Mode.CLIP) == "GatherScatterMode.CLIP"
    with pytest.raises(ValueError, match='Unknown gather mode "nope"'):
        Mode.from_any("nope")


def test_scatter_functions() -> None:
    x, indices, updates = np.float32([1, 2, 3]), np.array([[2], [2], [8]]), np.float32([5, 2, 9])
    dims = ix.ScatterDimensionNumbers((), (0,), (0,))
    want = {"scatter": [1, 2, 2], "scatter_add": [1, 2, 10], "scatter_mul": [1, 2, 30],
            "scatter_min": [1, 2, 2], "scatter_max": [1, 2, 5]}
    for name, result in want.items():
        function = getattr(ix, name)
        np.testing.assert_array_equal(function(x, indices, updates, dims), result)
        assert function.__name__ == name and function.__doc__
    doubled = ix.scatter_apply(x, np.array([[0], [2]]), lambda v: ix.el.mul(v, 2.0), dims, update_shape=(2,))
    np.testing.assert_array_equal(doubled, [2, 2, 6])
    np.testing.assert_array_equal(ix.index_take(numbers((3, 2)), (np.array([-1, 0]), np.array([1, 1])), (0, 1)),
                                  numbers((3, 2))[[-1, 0], [1, 1]])


# ---------------------------------------------------------------- dynamic slices

@pytest.mark.parametrize("start", list(itertools.product([-9, -1, 0, 1, 9], [0, 2])))
def test_dynamic_slice_clamps(start: tuple[int, int]) -> None:
    x = numbers((4, 5))
    at = [np.int32(s) for s in start]
    row, col = min(max(start[0], 0), 2), min(max(start[1], 0), 2)
    (got,) = check_infer_and_stage(ix.dynamic_slice_p, [x, *at], {"slice_sizes": (2, 3)})
    np.testing.assert_array_equal(got, x[row:row + 2, col:col + 3])
    update = numbers((2, 3), 9)
    (got,) = check_infer_and_stage(ix.dynamic_update_slice_p, [x, update, *at], {})
    want = x.copy()
    want[row:row + 2, col:col + 3] = update
    np.testing.assert_array_equal(got, want)


def test_dynamic_slice_rules() -> None:
    x, update, at = numbers((4, 5)), numbers((2, 5), 1), [np.int32(1), np.int32(0)]
    check_linear(ix.dynamic_slice_p, [x, *at], [0], {"slice_sizes": (2, 5)})
    check_linear(ix.dynamic_update_slice_p, [x, update, *at], [0, 1], {})
    starts = [[np.int32(i) for i in (0, -3, 7)], [np.int32(i) for i in (0, 2, 9)]]
    xs, updates = [numbers((4, 5), i) for i in range(3)], [numbers((2, 5), 3 + i) for i in range(3)]
    check_batch(ix.dynamic_slice_p, [x, *at], {"slice_sizes": (2, 3)}, [xs, *starts])
    check_batch(ix.dynamic_slice_p, [x, *at], {"slice_sizes": (4, 5)}, [xs, *starts])
    check_batch(ix.dynamic_update_slice_p, [x, update, *at], {}, [xs, updates, *starts])


READS = {
    "x[k]": lambda x, k: x[k],
    "dynamic_slice": lambda x, k: anima.lax.dynamic_slice(x, (k,), (1,))[0],
    "dynamic_index_in_dim": lambda x, k: anima.lax.dynamic_index_in_dim(x, k, keepdims=False),
    "distinct in each lane": lambda x, k: x.at[jnp.array([k, (k + 1) % 5])].get(unique_indices=True).sum(),
    "sorted in each lane": lambda x, k: x.at[jnp.array([k, k])].get(indices_are_sorted=True).sum()}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("lanes", [1, 2, 6, 17, 64, 1000])
def test_gradient_of_lanes_that_read_one_array(read: str, lanes: int) -> None:
    """What is read twice gets both cotangents: indices that are distinct in a lane are not so in all."""
    rng = np.random.default_rng(lanes)
    k, w, x = rng.integers(0, 5, lanes).astype(np.int32), numbers((lanes,)), numbers((5,))

    def loss(x: Any, k: Any, w: Any) -> Any:
        return anima.vmap(lambda k, w: w * READS[read](x, k))(k, w).sum()

    expected = np.zeros(5)
    for shift in {"distinct in each lane": (0, 1), "sorted in each lane": (0, 0)}.get(read, (0,)):
        np.add.at(expected, (k + shift) % 5, w)
    gradient, lanes_again = anima.grad(loss), anima.vmap(anima.grad(loss), (0, None, None))
    for found in (gradient(x, k, w), anima.jit(gradient)(x, k, w), anima.jit(lanes_again)(np.stack([x, x]), k, w)[1]):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_negative_indices_count_from_the_end() -> None:
    x = numbers((4, 5))
    np.testing.assert_array_equal(ix.dynamic_slice(x, (-1, -2), (1, 2)), x[-1:, -2:])
    np.testing.assert_array_equal(ix.dynamic_slice(x, np.array([-1, 9]), (1, 2)), x[-1:, -2:])
    np.testing.assert_array_equal(ix.dynamic_index_in_dim(x, -1, 1, keepdims=False), x[:, -1])
    np.testing.assert_array_equal(ix.dynamic_slice_in_dim(x, 1, 2), x[1:3])
    long = np.arange(300, dtype=np.int32)
    np.testing.assert_array_equal(ix.dynamic_slice(long, (np.int8(-5),), (2,)), [295, 296])
    np.testing.assert_array_equal(ix.dynamic_slice(long, (np.uint8(250),), (2,)), [250, 251])
    with pytest.raises(ValueError, match="Index -1 is out of bounds for dimension 4"):
        ix.dynamic_slice(x, (-1, 0), (1, 1), allow_negative_indices=False)
    row, column = np.zeros((1, 5), np.float32), np.zeros(4, np.float32)
    assert np.asarray(ix.dynamic_update_slice_in_dim(x, row, -1, 0))[-1].tolist() == [0] * 5
    assert np.asarray(ix.dynamic_update_index_in_dim(x, column, -2, 1))[:, -2].tolist() == [0] * 4


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index", [np.int32, np.int64, jnp.int32], ids=["int32", "int64", "array"])
def test_negative_indices_may_be_none(index: Any, axis: int) -> None:
    """Where they do not count from the end, they are clamped; numbers are refused."""
    x, row, part = numbers((4, 4)), np.zeros((4, 4), np.float32), slice(0, 1)
    first = (part, slice(None)) if axis == 0 else (slice(None), part)
    zero = x.copy()
    zero[first] = 0
    calls: list[tuple[Any, np.ndarray]] = [
        (lambda i, **o: ix.dynamic_slice_in_dim(x, i, 1, axis, **o), x[first]),
        (lambda i, **o: ix.dynamic_index_in_dim(x, i, axis, **o), x[first]),
        (lambda i, **o: ix.dynamic_update_slice_in_dim(x, row[first], i, axis, **o), zero),
        (lambda i, **o: ix.dynamic_update_index_in_dim(x, row[0], i, axis, **o), zero)]
    for call, want in calls:
        without = anima.jit(lambda i, call=call: call(i, allow_negative_indices=False))
        np.testing.assert_array_equal(without(index(-2)), want)
        assert not np.array_equal(anima.jit(call)(index(-2)), want)
        with pytest.raises(ValueError, match="allow_negative_indices=False"):
            call(-2, allow_negative_indices=False)


def test_staged_index_normalisation() -> None:
    weak, strong = (ShapedArray((), np.dtype("int32"), w) for w in (True, False))
    x = ShapedArray((5,), np.dtype("float32"))
    jaxpr = trace_to_jaxpr(lambda x, i: [ix.dynamic_slice(x, (i,), (2,))], [x, weak])[0]
    assert str(jaxpr) == ("{ lambda ; a:f32[5] b:i32[]. let\n"
                          "    c:bool[] = lt b 0\n"
                          "    d:i32[] = convert_element_type[new_dtype=int32 weak_type=False] b\n"
                          "    e:i32[] = add d 5\n"
                          "    f:i32[] = select_n c b e\n"
                          "    g:f32[2] = dynamic_slice[slice_sizes=(2,)] a f\n"
                          "  in (g,) }")
    names = [e.primitive.name for e in
             trace_to_jaxpr(lambda x, i: [ix.dynamic_slice(x, (i,), (2,))], [x, strong])[0].eqns]
    assert names == ["lt", "add", "select_n", "dynamic_slice"]
    jaxpr = trace_to_jaxpr(lambda x: [ix.dynamic_slice(x, (-1,), (1,))], [x])[0]
    assert [str(e) for e in jaxpr.eqns] == ["b:f32[1] = dynamic_slice[slice_sizes=(1,)] a 4"]


def test_random_keys() -> None:
    keys = ConcreteArray(np.arange(24, dtype=np.uint32).reshape(4, 3, 2), ShapedArray((4, 3), dtypes.KeyDType("fry")))
    part = ix.dynamic_slice(keys, (1, 0), (2, 3))
    np.testing.assert_array_equal(part.value, keys.value[1:3])
    np.testing.assert_array_equal(ix.dynamic_update_slice(keys, part, (0, 0)).value[:2], keys.value[1:3])
    rows = ix.GatherDimensionNumbers((1,), (0,), (0,))
    taken = ix.gather(keys, np.array([[3], [0]]), rows, (1, 3))
    assert taken.shape == (2, 3) and taken.dtype == keys.dtype
    np.testing.assert_array_equal(taken.value, keys.value[[3, 0]])
    put = ix.scatter(keys, np.array([[0]]), taken.__class__(taken.value[:1], taken.aval.update(shape=(1, 3))),
                     ix.ScatterDimensionNumbers((1,), (0,), (0,)))
    np.testing.assert_array_equal(put.value, np.concatenate([keys.value[3:], keys.value[1:]]))


X, I = numbers((3, 4)), np.array([[0], [5], [-1]])
ROWS, INTO = ix.GatherDimensionNumbers((1,), (0,), (0,)), ix.ScatterDimensionNumbers((1,), (0,), (0,))


@pytest.mark.parametrize("name", ["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"])
@pytest.mark.parametrize("hints", [{}, {"indices_are_sorted": True}, {"unique_indices": True},
                                   {"indices_are_sorted": True, "unique_indices": True}])
def test_hints_are_recorded(name: str, hints: dict[str, bool]) -> None:
    def fun(x: Any) -> Any:
        return getattr(ix, name)(x, I, np.ones((3, 4), np.float32), INTO, mode="clip", **hints)

    eqns = trace_to_jaxpr(lambda x: [fun(x)], [aval_of(X)])[0].eqns
    (eqn,) = (e for e in eqns if e.primitive.name.startswith("scatter"))
    found = {hint for hint in ("indices_are_sorted", "unique_indices") if eqn.params[hint]}
    assert found == set(hints) and str(eqn.params["mode"]).endswith("CLIP")


@pytest.mark.parametrize("call, error, message", [
    (lambda: ix.gather(X, I, ROWS, (2, 4)), TypeError, "Gather op can only collapse slice dims with bound 1, but bound "
                                                       "is 2 for index 0 at position 0."),
    (lambda: ix.gather(X, I, ROWS, (1, 5)), TypeError, "Slice size at index 1 in gather op is out of range"),
    (lambda: ix.gather(X, I, ROWS, (1,)), TypeError, "must have one slice size for every input dimension"),
    (lambda: ix.gather(X, I.astype(float), ROWS, (1, 4)), ValueError, "indices must have an integer type"),
    (lambda: ix.gather(X, I, ix.GatherDimensionNumbers((2,), (0,), (0,)), (1, 2)), TypeError,
     "is out of bounds; got 2"),
    (lambda: ix.gather(X, I, ix.GatherDimensionNumbers((), (0,), (0,)), (1, 2)), TypeError, "All components of the"),
    (lambda: ix.gather(X, I, ix.GatherDimensionNumbers((1,), (0,), (0, 1)), (1, 2)), TypeError,
     "has 2 elements in start_index_map and the bound of dimension index_vector_dim=1 of indices is 1"),
    *((lambda n=n: ix.gather(X, np.zeros((n, 1), np.int32), ix.GatherDimensionNumbers((), (1,), (1,), (0,), (0,)),
                             (1, 1)), TypeError, "batching dimensions of operand and indices to have the same size")
      for n in (len(X) - 1, len(X) + 1)),
    (lambda: ix.gather(X, I, ix.GatherDimensionNumbers((1,), (0,), (2,)), (1, 2)), TypeError,
     r"Invalid start_index_map; domain is \[0, 2\), got: 0->2."),
    (lambda: ix.gather(X, I, ROWS, (1, 4), mode="nope"), ValueError, "Unknown gather mode"),
    (lambda: ix.scatter(X, I, np.ones((3, 5), np.float32), INTO), TypeError,
     "For dimension 1, updates bound is 5, operand bound is 4."),
    (lambda: ix.scatter(X, I, np.ones((2, 4), np.float32), INTO), TypeError,
     "For scatter dimension 0, updates bound is 2, indices bound is 3."),
    (lambda: ix.scatter(X, I, np.ones((3, 4), np.int32), INTO), TypeError, "same dtypes, got float32, int32"),
    (lambda: ix.scatter(X, I, np.float32(1), INTO), TypeError, "Updates tensor must be of rank 2; got 0."),
    (lambda: ix.dynamic_slice(np.arange(4), (0,), (5,)), TypeError,
     r"slice slice_sizes must be less than or equal to operand shape, got slice_sizes \(5,\) for operand shape \(4,\)"),
    (lambda: ix.dynamic_slice(np.ones((4, 4)), (0,), (2, 2)), ValueError,
     r"Length of slice indices must match number of operand dimensions \(1 vs \(4, 4\)\)"),
    (lambda: ix.dynamic_slice_p.infer(ShapedArray((4, 4), np.dtype("f4")), ShapedArray((), np.dtype("i4")),
                                      slice_sizes=(2, 2)), ValueError, r"dimensions \(1 vs \(4, 4\)\)"),
    *((lambda s=s, a=a: ix.dynamic_update_index_in_dim(X, np.ones(s, np.float32), 1, a), TypeError,
       f"does not have size 1 along axis {a} of operand shape") for s, a in (
           ((2, 4), 0), ((3, 2), 1), ((1, 1, 4), 0))),
    (lambda: ix.dynamic_slice(X, (0.0, 0), (1, 1)), TypeError,
     "index arguments to dynamic_slice must be integers of the same type, got: float32, int32"),
    (lambda: ix.dynamic_slice(X, (0, True), (1, 1)), TypeError, "must be integers of the same type"),
    (lambda: ix.dynamic_slice(X, (np.zeros(2, int), 0), (1, 1)), TypeError, "must be scalars"),
    (lambda: ix.dynamic_update_slice(X, np.ones((4, 4), np.float32), (0, 0)), TypeError,
     "update shape must be smaller than operand shape"),
    (lambda: ix.dynamic_update_slice(X, X[0], (0, 0)), TypeError, "must have the same rank as operand"),
    (lambda: ix.dynamic_update_slice(X, X.astype(np.int32), (0, 0)), TypeError, "same dtypes, got float32, int32"),
])
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("axis, index, at", [(0, 1, 1), (0, -1, 2), (0, 9, 2), (1, 3, 3), (1, -2, 2), (-1, 0, 0)])
def test_updates_at_one_index_with_the_axis_or_without(jitted: bool, axis: int, index: int, at: int) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    want, line = np.moveaxis(x.copy(), axis, 0), -np.arange(1, 1 + x.shape[1 - axis % 2], dtype=np.float32)
    want[at] = line

    def update(i: Any, line: Any) -> Any:
        return ix.dynamic_update_index_in_dim(x, line, i, axis)

    for given in (line, np.expand_dims(line, axis)):
        got = (anima.jit(update) if jitted else update)(index, given)
        np.testing.assert_array_equal(got, np.moveaxis(want, 0, axis))


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("name", ("set", "add", "multiply", "min", "max"))
def test_updates_of_rows_by_themselves(name: str, axis: int) -> None:
    """Rows are independent, updates of one place in a row are not: those of a row are made in their order, for any
    number of threads, wherever the axis of rows is."""
    rng = np.random.default_rng(3)
    for rows, places, window in ((37, 5, ()), (300, 4, (3,)), (2, 40, ())):
        x = rng.integers(1, 9, (rows, places, *window)).astype(np.float32)
        index = rng.integers(-places - 2, places + 2, (rows, 9)).astype(np.int32)
        updates = rng.integers(1, 4, (rows, 9, *window)).astype(np.float32)

        def update(x: Any, index: Any, updates: Any) -> Any:
            return getattr(x.at[index], name)(updates)

        want = np.stack([update(jnp.asarray(a), b, c) for a, b, c in zip(x, index, updates, strict=True)])
        moved = [np.moveaxis(a, 0, axis) for a in (x, index, updates)]
        same_for_threads(anima.vmap(update, axis), *moved)
        np.testing.assert_array_equal(anima.jit(anima.vmap(update, axis))(*moved), want)
        two = [np.moveaxis(np.stack([a, a[::-1]]), 1, 1 + axis) for a in (x, index, updates)]
        np.testing.assert_array_equal(anima.jit(anima.vmap(anima.vmap(update, axis)))(*two), [want, want[::-1]])
    text = anima.jit(anima.vmap(lambda x, i: x.at[i].set(1.0))).lower(x, index).loops
    assert "parallel" in str(text)
