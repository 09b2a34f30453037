"""Lowering: the loops of a handful of programs, and every rule against eager evaluation on every dtype."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
from anima.compiler.ir.loops import Again, For, statements
from anima.compiler.ir.show_loops import show
from anima.compiler.lowering import radix as lower_radix
from anima.compiler.machine import target as target_module
from anima.compiler.scheduling import reductions
from anima.control.cond import cond, switch
from anima.control.scan import scan
from anima.control.while_loop import fori_loop, while_loop
from anima.ops import elementwise as el, gather as ga, index, reduce as rd, shape as sh, sort as so
from anima.ops.contract import dot_general_p
from anima.ops.threefry import threefry2x32_p
from tests.compiler.stages import SMALL_CACHES, agree, lowered

RNG = np.random.default_rng(1)
BF16 = np.dtype(ml_dtypes.bfloat16)
I32 = np.dtype(np.int32)
DTYPES = [np.dtype(t) for t in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                                "float16", BF16, "float32", "float64", "complex64", "complex128")]
FLOATS = [np.dtype(t) for t in ("float16", BF16, "float32", "float64")]


@pytest.fixture(autouse=True)
def _all_dtypes() -> Any:
    with anima.enable_x64(True):
        yield


def array(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    dtype = np.dtype(dtype)
    values = RNG.normal(size=shape) * 3
    if dtype.kind == "c":
        return (values + 1j * RNG.normal(size=shape)).astype(dtype)
    if dtype.kind in "iub":
        return RNG.integers(0, 2 if dtype.kind == "b" else 9, size=shape).astype(dtype)
    return values.astype(dtype)


# ---------------------------------------------------------------- the loops, in print


def test_elementwise_in_print() -> None:
    stages = lowered(lambda x, y: el.add(el.sin(x), el.mul(y, 2.0)), array((3, 4)), array((3, 4)))
    assert show(stages.loops) == """\
program f(in0: f32[12], in1: f32[12]) -> (out0: f32[12])
  kernel add:
    vector i1 < 12:
      x2 = in0[i1]
      v3 = sin(x2)
      x4 = in1[i1]
      v5 = x4 * 2.0
      v6 = v3 + v5
      out0[i1] = v6"""


def test_row_reduction_in_print() -> None:
    stages = lowered(lambda x: el.mul(sh.reduce_sum(x, (1,)), 0.5), array((3, 40)))
    assert show(stages.loops) == """\
program f(in0: f32[120]) -> (out0: f32[3])
  kernel reduce_sum_mul:
    parallel i1 < 3:
      var s2: f32 = 0.0
      vector i3 < 40:
        x4 = in0[i1 * 40 + i3]
        s2 += x4
      v5 = s2 * 0.5
      out0[i1] = v5"""


def test_column_reduction_in_print() -> None:
    stages = lowered(lambda x: rd.reduce_max(x, (0,)), array((30, 12)))
    assert show(stages.loops) == """\
program f(in0: f32[360]) -> (out0: f32[12])
  kernel reduce_max:
    local s2.row: f32[12] in lanes
    whole(16) i1.1 < 12:
      s2.row[i1.1] = -inf
    for i3 < 30:
      whole(16) i1.2 < 12:
        s2.2 = s2.row[i1.2]
        x4.2 = in0[i1.2 + i3 * 12]
        s2.row[i1.2] = max(s2.2, x4.2)
    whole(16) i1.3 < 12:
      s2.3 = s2.row[i1.3]
      out0[i1.3] = s2.3"""


def test_a_reduction_of_few_columns_in_print() -> None:
    stages = lowered(lambda x: rd.reduce_max(x, (0,)), array((30, 2)))
    assert show(stages.loops) == """\
program f(in0: f32[60]) -> (out0: f32[2])
  kernel reduce_max:
    var s2.0: f32 = -inf
    var s2.1: f32 = -inf
    vector i3 < 30:
      x4.0 = in0[i3 * 2]
      x4.1 = in0[i3 * 2 + 1]
      s2.0 max= x4.0
      s2.1 max= x4.1
    out0[0] = s2.0
    out0[1] = s2.1"""


def test_values_that_do_not_depend_on_a_loop_stand_before_it() -> None:
    stages = lowered(lambda x, v, s: el.mul(el.add(x, sh.broadcast_in_dim(v, (3, 4), (0,))), el.exp(s)),
                     array((3, 4)), array((3,)), array(()))
    assert show(stages.loops) == """\
program f(in0: f32[12], in1: f32[3], in2: f32[1]) -> (out0: f32[12])
  kernel mul:
    x6 = in2[0]
    v7 = exp(x6)
    parallel i1 < 3:
      x4 = in1[i1]
      vector i2 < 4:
        x3 = in0[i1 * 4 + i2]
        v5 = x3 + x4
        v8 = v5 * v7
        out0[i1 * 4 + i2] = v8"""


def test_loop_with_scalar_state_in_print() -> None:
    stages = lowered(lambda x: while_loop(lambda s: el.lt(s, 100.0), lambda s: el.mul(s, s), x), array(()))
    assert show(stages.loops) == """\
program f(in0: f32[1]) -> (out0: f32[1])
  px1 = in0[0]
  var ps2: f32 = px1
  while:
    pv3 = ps2
    pv4 = pv3 < 100.0
    if not pv4: break
    pv5 = ps2
    pv6 = pv5 * pv5
    ps2 := pv6
  pv7 = ps2
  out0[0] = pv7"""


def test_gemm_takes_transposes_as_flags() -> None:
    def product(x: Any, y: Any) -> Any:
        return dot_general_p.bind(x, sh.transpose(y, (1, 0)), dimension_numbers=(((0,), (0,)), ((), ())),
                                  precision=None, preferred_element_type=None)

    stages = agree(product, array((20, 30)), array((24, 20)))
    assert show(stages.loops).splitlines()[1:] == [
        "  call gemm(f32, T, T, 30, 24, 20, 1.0, in0, 0, 30, in1, 0, 20, 0.0, out0, 0, 24, 1, 0, 0, 720)"]


# ---------------------------------------------------------------- shapes

SHAPES: list[tuple[str, tuple[int, ...], Callable[[Any], Any]]] = [
    ("broadcast", (3, 1, 4), lambda x: sh.broadcast_in_dim(x, (2, 3, 5, 4), (1, 2, 3))),
    ("broadcast scalar", (), lambda x: sh.broadcast_in_dim(x, (2, 3), ())),
    ("reshape", (3, 4, 5), lambda x: sh.reshape(x, (5, 2, 6))),
    ("reshape units", (3, 1, 5), lambda x: sh.reshape(x, (1, 3, 5, 1))),
    ("reshape of transpose", (3, 4, 5), lambda x: sh.reshape(sh.transpose(x, (2, 0, 1)), (6, 10))),
    ("transpose", (3, 4, 5), lambda x: sh.transpose(x, (1, 2, 0))),
    ("rev", (3, 4), lambda x: sh.rev(x, (0, 1))),
    ("squeeze", (3, 1, 4, 1), lambda x: sh.squeeze(x, (1, 3))),
    ("slice", (7, 9), lambda x: sh.slice(x, (1, 2), (6, 9), (2, 3))),
    ("slice, empty", (7, 9), lambda x: sh.slice(x, (1, 2), (1, 9))),
    ("pad", (3, 4), lambda x: sh.pad(x, _one(x), [(1, 2, 1), (0, 3, 0)])),
    ("pad, negative", (5, 6), lambda x: sh.pad(x, _one(x), [(-1, 2, 2), (3, -2, 0)])),
    ("pad, empty", (0, 3), lambda x: sh.pad(x, _one(x), [(1, 1, 2), (0, 1, 0)])),
    ("concatenate", (3, 4), lambda x: sh.concatenate([x, sh.rev(x, (0,)), x], 1)),
    ("concatenate with empty", (3, 4), lambda x: sh.concatenate([sh.slice(x, (0, 0), (0, 4)), x, x], 0)),
    ("concatenate of many", (2, 2), lambda x: sh.concatenate([x] * 9, 0)),
    ("concatenate, folded", (3, 4), lambda x: sh.transpose(sh.concatenate([x, x], 0), (1, 0))),
    ("concatenate of transposed pad", (3, 4),
     lambda x: sh.reshape(sh.concatenate([sh.transpose(sh.pad(x, _one(x), [(0, 1, 0), (0, 0, 1)]), (1, 0)),
                                          sh.broadcast_in_dim(_one(x), (2, 4), ())], 0), (4, 9))),
]


def _one(x: Any) -> Any:
    return np.asarray(1, x.dtype)


@pytest.mark.parametrize(("shape", "fun"), [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.bool_), BF16, np.dtype(np.complex64)], ids=str)
def test_shapes(shape: tuple[int, ...], fun: Callable[[Any], Any], dtype: Any) -> None:
    agree(fun, array(shape, dtype))


def test_iota() -> None:
    agree(lambda x: [sh.broadcasted_iota(d, (3, 4), 1) for d in DTYPES if d.kind != "b"], array(()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_selection_and_conversion(dtype: Any) -> None:
    which, x, y = array((3, 4), bool), array((3, 4), dtype), array((3, 4), dtype)
    agree(lambda w, x, y: el.select_n(w, x, y), which, x, y)
    agree(lambda w, x, y: el.select_n(w, x, y), np.array(True), x, y)
    agree(lambda x: [el.convert_element_type(x, d) for d in DTYPES], x)


@pytest.mark.parametrize("pair", [("float32", "int32"), ("float64", "uint64"), ("uint8", "int8"), (BF16, "uint16"),
                                  ("uint32", "uint8"), ("float64", "uint32"), ("float32", "uint16")], ids=str)
def test_bitcast(pair: tuple[Any, Any]) -> None:
    wide, narrow = map(np.dtype, pair)
    agree(lambda x: el.bitcast_convert_type(el.bitcast_convert_type(x, narrow), wide), array((3, 4), wide))


def test_threefry_is_written_out_once_for_both_results() -> None:
    words = RNG.integers(0, 2**32, size=(2, 6), dtype=np.uint32)
    keys = RNG.integers(0, 2**32, size=(2, 1), dtype=np.uint32)
    stages = agree(lambda k, w: threefry2x32_p.bind(k, el.add(k, np.uint32(1)), w, el.neg(w)), keys, words)
    assert stages.kernel_count == 1 and show(stages.loops).count("<<") == 20


# ---------------------------------------------------------------- reductions

REDUCTIONS = ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor"]


def _takes(name: str, dtype: Any) -> bool:
    bits = name in ("reduce_and", "reduce_or", "reduce_xor")
    if dtype.kind == "b":
        return name not in ("reduce_sum", "reduce_prod")
    return dtype.kind in "iu" if bits else not (dtype.kind == "c" and name in ("reduce_max", "reduce_min"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: Any) -> None:
    if not _takes(name, dtype):
        with pytest.raises(TypeError):
            agree(lambda x: getattr(rd, name)(x, (0,)), array((3,), dtype))
            raise TypeError("accepted: complex numbers have an order here")
        return
    small = dtype.itemsize == 2 and dtype.kind not in "iu"
    for shape, axes in [((3, 20), (1,)), ((20, 3), (0,)), ((2, 12, 3), (1,)), ((12, 2, 9), (0, 2)), ((3, 4), (0, 1)),
                        ((3, 2), (1,)), ((0, 3), (0,)), ((3, 0), (0,)), ((1, 30), (0,)), ((30, 1), (0, 1))]:
        x = array(shape, dtype)
        if name == "reduce_prod" and dtype.kind in "fcV":
            x = (1 + x * np.asarray(0.01, dtype)).astype(dtype)
        agree(lambda x, axes=axes: getattr(rd, name)(x, axes), x, rtol=2e-2 if small else 1e-5)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form of reductions, with `SMALL_CACHES`, on arrays that the interpreter can manage."""
    for name, value in [("MOST_BLOCKS", 8), ("RUN_LIMIT", 16)]:
        monkeypatch.setattr(reductions, name, value)


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (3, 40, 5), (101,), (37, 3, 11), (2, 3, 67), (12, 2, 3, 9)],
                         ids=str)
@pytest.mark.usefixtures("small_blocks")
def test_reductions_in_blocks(shape: tuple[int, ...]) -> None:
    x = array(shape)
    for count in range(1, len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            agree(lambda x, axes=axes: [sh.reduce_sum(el.exp(x), axes), rd.reduce_max(x, axes), el.exp(x)], x,
                  target=SMALL_CACHES)


@pytest.mark.usefixtures("small_blocks")
def test_equal_reductions_in_blocks_are_lowered_once() -> None:
    xs = [array((90, 3)) for _ in range(9)]
    stages = agree(lambda *xs: [sh.reduce_sum(x, (0,)) for x in xs], *xs, target=SMALL_CACHES)
    assert sum(isinstance(s, Again) for s in stages.loops.body) == 16
    assert len(stages.loops.with_role("temp")) == 1


@pytest.mark.usefixtures("small_blocks")
def test_blocks_depend_on_sizes_alone_and_round_little() -> None:
    x = np.full(3000, 0.1, np.float32)
    stages = agree(lambda x: sh.reduce_sum(x, (0,)), x, rtol=1e-6, target=SMALL_CACHES)
    assert stages.kernel_count == 2


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind != "c"], ids=str)
def test_positions(name: str, dtype: Any) -> None:
    x = array((5, 14), dtype)
    for axis in (0, 1):
        agree(lambda x, axis=axis: getattr(rd, name)(x, axis, I32), x)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
@pytest.mark.parametrize("dtype", [np.dtype(t) for t in ("int32", "float16", "float32", "float64")], ids=str)
def test_running_reductions(name: str, dtype: Any) -> None:
    if name == "cumlogsumexp" and dtype.kind == "i":
        return
    for shape, axis, reverse in itertools.product([(5, 7), (1, 4), (2, 3, 4), (0, 2), (3, 11)], (0, 1), (False, True)):
        x = array(shape, dtype)
        if name == "cumprod":
            x = np.sign(x) + np.asarray(0.1 if dtype.kind == "f" else 1, dtype)
        agree(lambda x, a=axis, r=reverse: getattr(rd, name)(x, a, r), x.astype(dtype),
              rtol=2e-2 if dtype.itemsize == 2 else 1e-5, target=SMALL_CACHES)


def test_running_logsumexp_of_infinities() -> None:
    x = np.array([-np.inf, -np.inf, 1.0, np.inf, np.inf, np.nan, 0.0], np.float32)
    agree(lambda x: rd.cumlogsumexp(x, 0, False), x)


# ---------------------------------------------------------------- indexing


@pytest.mark.parametrize("start", [-3, 0, 2, 100])
def test_dynamic_slices(start: int) -> None:
    x, i = array((6, 5)), np.array(start, I32)
    agree(lambda x, i: index.dynamic_slice_p.bind(x, i, i, slice_sizes=(2, 3)), x, i)
    agree(lambda x, u, i: index.dynamic_update_slice_p.bind(el.sin(x), u, i, i), x, array((2, 3)), i)
    agree(lambda x, u, i: index.dynamic_update_slice_p.bind(x, u, i, i), x, array((0, 3)), i)


def test_unsigned_indices_beyond_any_array() -> None:
    huge = np.array(2**64 - 1, np.uint64)
    agree(lambda x, i: index.dynamic_slice_p.bind(x, i, slice_sizes=(2,)), array((6,)), huge)


GATHERS = [
    ("rows", (6, 5), (4, 1), ga.GatherDimensionNumbers((1,), (0,), (0,)), (1, 5)),
    ("columns, reversed axes", (6, 5), (4, 1), ga.GatherDimensionNumbers((0,), (1,), (1,)), (6, 1)),
    ("windows", (6, 5), (2, 3, 2), ga.GatherDimensionNumbers((2, 3), (), (0, 1)), (2, 3)),
    ("elements", (6, 5), (7, 2), ga.GatherDimensionNumbers((), (0, 1), (1, 0)), (1, 1)),
    ("batched", (4, 6, 5), (4, 3, 1), ga.GatherDimensionNumbers((2,), (1,), (1,), (0,), (0,)), (1, 1, 5)),
]


@pytest.mark.parametrize("mode", list(ga.GatherScatterMode), ids=str)
@pytest.mark.parametrize(("shape", "indices_shape", "numbers", "sizes"), [g[1:] for g in GATHERS],
                         ids=[g[0] for g in GATHERS])
def test_gather_and_scatter(shape: Any, indices_shape: Any, numbers: Any, sizes: Any, mode: Any) -> None:
    x, indices = array(shape), RNG.integers(-2, 8, size=indices_shape).astype(I32)
    taken = agree(lambda x, i: ga.gather_p.bind(el.sin(x), i, dimension_numbers=numbers, slice_sizes=sizes, mode=mode),
                  x, indices)
    (out,) = (v.aval for v in taken.jaxpr.jaxpr.outvars)
    into = ga.ScatterDimensionNumbers(*numbers)
    for dtype in (np.float32, np.float16, np.int8):
        for scatter in (ga.scatter_p, ga.scatter_add_p, ga.scatter_mul_p, ga.scatter_min_p, ga.scatter_max_p):
            agree(lambda x, i, u, s=scatter: s.bind(x, i, u, dimension_numbers=into, mode=mode), array(shape, dtype),
                  indices, array(out.shape, dtype), rtol=2e-3)


def test_gather_fills() -> None:
    numbers = ga.GatherDimensionNumbers((), (0,), (0,))
    for dtype in DTYPES:
        agree(lambda x, i: ga.gather_p.bind(x, i, dimension_numbers=numbers, slice_sizes=(1,),
                                            mode=ga.GatherScatterMode.FILL_OR_DROP),
              array((3,), dtype), np.array([[1], [3], [-1]], I32))


# ---------------------------------------------------------------- sorting


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort(dtype: Any) -> None:
    x = array((4, 11), dtype)
    if dtype.kind in "fcV":
        x[0, 3], x[1, 1], x[1, 2], x[2, 0] = np.nan, -0.0, 0.0, np.inf
    place = np.arange(44, dtype=I32).reshape(4, 11)
    for axis in (0, 1):
        def sort(*xs: Any, axis: int = axis, keys: int = 1) -> Any:
            return so.sort_p.bind(*xs, dimension=axis, is_stable=True, num_keys=keys)

        agree(sort, x)
        agree(sort, x, place)
        agree(lambda x, p, sort=sort: sort(x, p, keys=2), x, -place)
        if dtype.kind != "c":
            agree(lambda x, axis=axis: so.top_k_p.bind(x, k=3, axis=axis), x)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 33])
def test_sort_of_every_length(n: int) -> None:
    agree(lambda x: so.sort_p.bind(x, dimension=0, is_stable=True, num_keys=1), array((n,)))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind != "c"], ids=str)
@pytest.mark.parametrize("long", [1 << 14, 8], ids=["digits of 8 bits", "digits of 11 bits"])
def test_sort_by_digits(dtype: Any, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_radix, "LENGTH", 4)
    monkeypatch.setattr(lower_radix, "LONG", long)
    x = array((3, 17), dtype)
    if dtype.kind in "fV":
        x[0, 3], x[1, 1], x[1, 2], x[2, 0], x[2, 5] = np.nan, -0.0, 0.0, np.inf, -np.nan
    if dtype.kind == "i":
        x[0, 0], x[0, 1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    place = np.arange(51, dtype=I32).reshape(3, 17)
    stages = agree(lambda x, p: so.sort_p.bind(x, p, dimension=1, is_stable=True, num_keys=1), x, place)
    assert stages.kernel_count == 1 and "local" in show(stages.loops)


@pytest.mark.parametrize("k", [0, 1, 4, 17])
def test_top_k_of_long_and_short_rows(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.concatenate([array((2, 8)), np.array([[np.nan, -0.0, 0.0, -np.inf, 1, 1, np.nan, 0, 2]] * 2)], 1)
    for most in (0, 64):
        monkeypatch.setattr(target_module, "MOST_KEPT", most)
        agree(lambda x: so.top_k_p.bind(x, k=k, axis=1), x.astype(np.float32))


def test_transposition_goes_through_tiles() -> None:
    stages = agree(lambda x: el.exp(sh.transpose(x, (0, 2, 1))), array((2, 37, 40)), target=SMALL_CACHES)
    found = [s.kind for s in statements(*stages.loops.body) if isinstance(s, For)]
    assert found == ["parallel", "each", "each", "each", "vector"]
    assert show(agree(lambda x: sh.transpose(x, (1, 0)), array((4, 40))).loops).count("for ") == 0


# ---------------------------------------------------------------- products

PRODUCTS = [
    ("matrices", (20, 24), (24, 16), (((1,), (0,)), ((), ()))),
    ("transposed", (24, 20), (16, 24), (((0,), (1,)), ((), ()))),
    ("small", (3, 4), (4, 5), (((1,), (0,)), ((), ()))),
    ("small, long sum", (3, 24), (5, 24), (((1,), (1,)), ((), ()))),
    ("matrix by vector", (20, 24), (24,), (((1,), (0,)), ((), ()))),
    ("vector by matrix", (24,), (24, 40), (((0,), (0,)), ((), ()))),
    ("inner", (30,), (30,), (((0,), (0,)), ((), ()))),
    ("outer", (3,), (4,), (((), ()), ((), ()))),
    ("batch", (3, 20, 24), (3, 24, 16), (((2,), (1,)), ((0,), (0,)))),
    ("batch axis in the middle", (20, 3, 24), (24, 16, 3), (((2,), (0,)), ((1,), (2,)))),
    ("batch, transposed", (3, 24, 20), (3, 16, 24), (((1,), (2,)), ((0,), (0,)))),
    ("two sums", (3, 20, 24), (24, 18, 3), (((0, 2), (2, 0)), ((), ()))),
    ("two free axes", (4, 24, 5), (24, 4, 6), (((1,), (0,)), ((), ()))),
    ("empty sum", (3, 0), (0, 4), (((1,), (0,)), ((), ()))),
    ("empty", (0, 3), (3, 4), (((1,), (0,)), ((), ()))),
]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize != 2 or d in FLOATS], ids=str)
@pytest.mark.parametrize(("left", "right", "numbers"), [p[1:] for p in PRODUCTS], ids=[p[0] for p in PRODUCTS])
def test_products(left: Any, right: Any, numbers: Any, dtype: Any) -> None:
    small = dtype in FLOATS[:2]
    agree(lambda x, y: dot_general_p.bind(x, y, dimension_numbers=numbers, precision=None,
                                          preferred_element_type=None),
          array(left, dtype), array(right, dtype), rtol=2e-2 if small else 2e-4)


def test_product_in_a_wider_type() -> None:
    numbers = (((1,), (0,)), ((), ()))
    for dtype, wide in ((BF16, np.float32), (np.int8, np.int32)):
        for n in (3, 24):
            agree(lambda x, y, w=wide: dot_general_p.bind(x, y, dimension_numbers=numbers, precision=None,
                                                          preferred_element_type=np.dtype(w)),
                  array((20, n), dtype), array((n, 16), dtype))


# ---------------------------------------------------------------- control flow


def test_scans() -> None:
    xs, c = array((5, 4)), array((4,))
    agree(lambda c, xs: _flat(scan(lambda c, x: (el.add(c, x), el.mul(c, x)), c, xs)), c, xs)
    agree(lambda c, xs: _flat(scan(lambda c, x: (el.sub(sh.rev(c, (0,)), x), c), c, xs, reverse=True)), c, xs)
    agree(lambda c, xs: _flat(scan(lambda c, x: (c, sh.reduce_sum(x, (0,))), c, xs)), c, xs)
    agree(lambda c, xs: _flat(scan(lambda c, x: ((c[1], c[0]), None), (c, el.sin(c)), xs)), c, xs)
    agree(lambda c, xs: _flat(scan(lambda c, x: (el.add(c, x), c), c, xs)), c, xs[:0])


def _flat(x: Any) -> list[Any]:
    return [leaf for y in x for leaf in _flat(y)] if isinstance(x, (tuple, list)) else [] if x is None else [x]


def test_nested_scans_index_the_whole_array() -> None:
    def rows(c: Any, row: Any) -> Any:
        return scan(lambda a, b: (el.add(a, b), a), c, row)

    stages = agree(lambda c, xs: _flat(scan(rows, c, xs)), array(()), array((3, 4)))
    assert stages.loops.arena == 0 and "[pk" in show(stages.loops)


def test_carried_array_is_updated_in_place() -> None:
    def step(i: Any, a: Any) -> Any:
        return index.dynamic_update_slice_p.bind(a, sh.reshape(el.convert_element_type(i, np.float32), (1,)), i)

    stages = agree(lambda x: fori_loop(0, 4, step, x), array((6,)))
    assert show(stages.loops).count("kernel copy") == 1 and stages.loops.arena == 0


def test_sorting_and_products_inside_of_loops() -> None:
    def step(c: Any, x: Any) -> Any:
        (y,) = so.sort_p.bind(el.mul(c, x), dimension=0, is_stable=True, num_keys=1)
        z = dot_general_p.bind(sh.broadcast_in_dim(y, (18, 4), (1,)), sh.broadcast_in_dim(x, (4, 60), (0,)),
                               dimension_numbers=(((1,), (0,)), ((), ())), precision=None, preferred_element_type=None)
        return y, z

    agree(lambda c, xs: _flat(scan(step, c, xs)), array((4,)), array((3, 4)), rtol=1e-4)


def test_while_loops() -> None:
    x = np.float32(1.5)
    agree(lambda x: _flat(while_loop(lambda s: el.lt(s[0], 100.0), lambda s: (el.mul(s[0], 1.5), s[2], s[1]),
                                     (x, x, el.neg(x)))), x)
    agree(lambda n: fori_loop(0, n, lambda i, s: el.add(s, el.convert_element_type(i, np.float32)), np.float32(0)),
          np.array(7, I32))
    agree(lambda v: while_loop(lambda v: el.lt(sh.reduce_sum(v, (0,)), 50.0), lambda v: el.add(v, 1.0), v),
          np.arange(12, dtype=np.float32) * 0)


def test_loop_over_lanes_is_one_kernel() -> None:
    def lane(c: Any, x: Any) -> Any:
        return c, while_loop(lambda s: el.lt(s, 10.0), lambda s: el.add(el.mul(s, s), 1.0), x)

    stages = agree(lambda xs: _flat(scan(lane, (), xs)), array((4,)))
    assert "kernel lanes:\n    vector pk1 < 4" in show(stages.loops)


@pytest.mark.parametrize("i", [-1, 0, 1, 2, 7])
def test_branches(i: int) -> None:
    x = array((4,))
    agree(lambda i, x: switch(i, [lambda x: el.sin(x), lambda x: x, lambda x: el.mul(x, 2.0)], x), np.array(i, I32), x)
    agree(lambda i, x: _flat(cond(el.gt(i, 0), lambda x: (el.sin(x), sh.reduce_sum(x, (0,))),
                                  lambda x: (el.cos(x), rd.reduce_max(x, (0,))), x)), np.array(i, I32), x)


def test_branch_inside_of_a_loop() -> None:
    def step(c: Any, x: Any) -> Any:
        c = cond(el.gt(c, 0.0), lambda c, x: el.sub(c, x), lambda c, x: el.add(c, el.exp(x)), c, x)
        return c, c

    agree(lambda c, xs: _flat(scan(step, c, xs)), array(()), array((6,)))


# ---------------------------------------------------------------- edges


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1, 1), (1,)], ids=str)
def test_small_shapes(shape: tuple[int, ...]) -> None:
    x = array(shape)
    agree(lambda x: [el.sin(x), el.add(x, 1.0), sh.reshape(x, (*shape, 1)), sh.reduce_sum(x, tuple(range(x.ndim)))], x)


def test_literal_operands_and_no_operands() -> None:
    agree(lambda x: [sh.broadcast_in_dim(np.float32(3), (4,), ()), sh.iota(I32, 5), el.add(x, x)], array(()))


def test_program_without_results() -> None:
    assert lowered(lambda x: [], array((3,))).kernel_count == 0


def test_mixed_exponent() -> None:
    agree(lambda x, n: el.pow(x, n), np.abs(array((4,))), array((4,), np.int32))
    agree(lambda x: el.conj(x), array((4,)))
    agree(lambda x: el.conj(x), array((4,), np.complex64))




@pytest.mark.parametrize("column", [False, True])
def test_product_of_a_transposed_matrix_by_a_vector_reads_rows(column: bool) -> None:
    """The loop inside runs along memory, and a vector that is a matrix of one column stays one."""
    def f(x: Any, y: Any) -> Any:
        return dot_general_p.bind(sh.transpose(x, (1, 0)), y, dimension_numbers=(((1,), (0,)), ((), ())),
                                  precision=None, preferred_element_type=None)

    stages = agree(f, array((24, 20)), array((24, 1) if column else (24,)))
    assert [(g.shape[-1], g.shape[g.axes[0]]) for g in stages.fused.groups if g.kind == "reduce"] == [(20, 24)]
    x, y = array((5, 4)), array((5, 1))
    square = anima.jit(lambda x, y: (x.T @ y) @ (y.T @ x))(x, y)
    np.testing.assert_allclose(square, (x.T @ y) @ (y.T @ x), rtol=1e-4)


@pytest.mark.parametrize("exponent", [0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_by_square_roots(exponent: float, dtype: Any) -> None:
    """As C's pow, to 2 ulp (2.5 and -2.5: to 4) and at its special values."""
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -2.0, 1e-45, -1e-45, 1e38, 1.0]
    x = np.concatenate([10.0 ** rng.uniform(-44, 38, 5000), special]).astype(dtype)
    with anima.enable_x64(True):
        power = anima.jit(lambda x: x ** exponent).lower(x)
        got = np.asarray(power.compile()(x))
    assert "pow" not in str(power.loops) and got.dtype == dtype
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.longdouble), np.full(x.shape, exponent, np.longdouble))
        near = np.abs(got - want) <= (2 if abs(exponent) < 2 else 4) * np.spacing(np.abs(want).astype(dtype))
        same = (got == want.astype(dtype)) | (np.isnan(got) & np.isnan(want))
    assert np.all(near | same)
    assert not np.signbit(got[~np.isnan(got)]).any()


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_every_size(axis: int) -> None:
    """Concatenations of three or many, none, one or several long, and pieces of them; some between others."""
    sizes = [s for s in itertools.product((0, 1, 3), repeat=3) if sum(s)]
    sizes += [(3, 0, 1) * 24, (0, 1, 1) * 24, (1, 3, 0) * 24]  # more than there are kernels for
    parts = [np.arange(2.0 * n, dtype=np.float32).reshape((n, 2) if axis == 0 else (2, n)) + 10 * k
             for k in range(3) for n in (0, 1, 3)]

    def chosen(size: tuple[int, ...], parts: Any) -> list[Any]:
        return [parts[3 * (k % 3) + (0, 1, 3).index(n)] for k, n in enumerate(size)]

    def joined(*parts: Any) -> list[Any]:
        whole = [sh.concatenate(chosen(size, parts), axis) for size in sizes]
        ends = [sh.slice_in_dim(w, w.shape[axis] // 2, None, axis=axis) for w in whole]
        return [*(el.mul(w, 2.0) for w in whole), *ends, *(sh.rev(w, (axis,)) for w in whole),
                *(el.add(sh.transpose(w, (1, 0)), 1.0) for w in whole), *(rd.reduce_max(w, (axis,)) for w in whole)]

    want = [np.concatenate(chosen(size, parts), axis) for size in sizes]
    want = [*(w * 2 for w in want), *(np.split(w, [w.shape[axis] // 2], axis)[1] for w in want),
            *(np.flip(w, axis) for w in want), *(w.T + 1 for w in want), *(w.max(axis) for w in want)]
    for got, expected in zip(anima.jit(joined)(*parts), want, strict=True):
        np.testing.assert_array_equal(got, expected)
