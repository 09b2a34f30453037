"""Compiled convolutions: every way that windows are enumerated, on several machines, within their memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.loops import Call, Kernel, Program
from anima.compiler.ir.routines import arguments
from anima.compiler.products.blocking import exact_cover, families
from anima.compiler.products.convolution import WindowProduct, odometer
from anima.compiler.products.strip_driver import (
    MOST_PIECES,
    MOST_RUNS,
    MOST_STEPS,
    STRIP_BYTES,
    SUM_BYTES as STRIP_SUMS,
)
from anima.compiler.products.window_driver import MOST_DEPTH, MOST_ENTRIES, SUM_BYTES
from anima.ops.convolution import conv_general_dilated_p
from anima.runtime import threads
from anima.runtime.executable import compile_program
from tests.compiler.stages import lowered
from tests.compiler.test_gemm import HOST, TARGETS, Fenced

NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
NWC = ("NWC", "WIO", "NWC")
GRADIENT = ("CHWN", "IHWO", "HWNC")  # of a kernel, where channels come last


@dataclass(frozen=True)
class Conv:
    """A convolution: shapes, layout and parameters; `ways` are those by which it is expected to run."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    layout: tuple[str, str, str]
    ways: str
    strides: tuple[int, ...] = (1, 1)
    padding: Any = "SAME"
    lhs_dilation: tuple[int, ...] | None = None
    rhs_dilation: tuple[int, ...] | None = None
    groups: int = 1
    dtype: str = "float32"

    def __str__(self) -> str:
        sizes = ["x".join(map(str, n)) for n in (self.x, self.w)]
        return f"{self.ways}-{self.layout[0]}-{sizes[0]}-{sizes[1]}-{self.dtype}"

    def __call__(self, x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, self.strides[:len(self.x) - 2], self.padding, self.lhs_dilation,
                                        self.rhs_dilation, self.layout, feature_group_count=self.groups)

    def data(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.normal(size=shape).astype(self.dtype) for shape in (self.x, self.w)]

    def program(self) -> Program:
        return lowered(self, *self.data()).loops

    def expected(self) -> np.ndarray:
        """By the reference rule, in double precision."""
        with anima.enable_x64(True):
            return np.asarray(self(*(a.astype(np.float64) for a in self.data())))

    def check(self, out: np.ndarray) -> None:
        want = self.expected()
        terms = np.prod(self.w) / self.w[self.layout[1].index("O")]
        allowed = 4 * np.sqrt(terms + 4) * np.finfo(self.dtype).eps * max(np.abs(want).max(initial=0.0), 1.0)
        assert np.abs(out - want).max(initial=0.0) <= allowed


def ways(program: Program) -> set[str]:
    """How a program's convolutions run: calls by their side, kernels as "loops"."""
    calls = [s for s in program.body if isinstance(s, Call)]
    loops = {"loops" for s in program.body if isinstance(s, Kernel) and s.name.startswith("convolution")}
    return loops | {str(c.args[1]) if c.routine == "convolution" else c.routine for c in calls}


CASES = [
    # Channels last: strips.
    Conv((2, 9, 11, 20), (3, 3, 20, 33), NHWC, "rows"),
    Conv((1, 30, 61, 64), (3, 3, 64, 64), NHWC, "strips"),
    Conv((1, 9, 28, 300), (3, 3, 300, 48), NHWC, "strips"),
    Conv((1, 9, 17, 300), (3, 3, 300, 48), NHWC, "rows", strides=(2, 2)),
    Conv((1, 21, 45, 3), (7, 7, 3, 64), NHWC, "strips", strides=(2, 2)),
    Conv((1, 19, 18, 32), (3, 3, 32, 16), NHWC, "strips", rhs_dilation=(2, 3)),
    Conv((2, 10, 15, 32), (4, 4, 32, 30), NHWC, "strips", padding=((2, 2), (2, 2)), lhs_dilation=(2, 2)),
    Conv((2, 9, 14, 64), (3, 3, 32, 128), NHWC, "strips", groups=2),
    Conv((2, 6, 9, 8, 16), (3, 2, 3, 16, 32), ("NDHWC", "DHWIO", "NDHWC"), "strips", strides=(1, 2, 1)),
    Conv((3, 50, 24), (5, 24, 64), NWC, "strips", strides=(1,), padding=[(4, 0)]),
    Conv((1, 12, 40, 16), (3, 3, 16, 32), ("NHWC", "HWIO", "NCHW"), "strips"),
    Conv((1, 20, 28, 24), (3, 3, 24, 304), NHWC, "strips", dtype="float64"),
    # Space last: channels are brought to the end, or windows packed.
    Conv((2, 32, 15, 21), (48, 32, 3, 3), NCHW, "strips"),
    Conv((1, 3, 20, 37), (2, 3, 3, 3), NCHW, "columns"),
    Conv((3, 6, 40), (4, 6, 3), ("NCW", "OIW", "NCW"), "columns", strides=(1,), padding=[(2, 0)]),
    Conv((2, 7, 13, 12), (2, 7, 4, 3), NCHW, "strips", strides=(1, 2), padding=((3, 1), (0, 2))),
    # Few outputs: a product at every place, whose results are added up.
    Conv((3, 16, 40), (4, 16, 3), ("NCW", "OIW", "NCW"), "gemm", strides=(1,), padding=[(2, 0)]),
    Conv((2, 15, 22, 24), (3, 4, 24, 3), NHWC, "gemm", padding=[(3, 1), (-1, 5)], rhs_dilation=(2, 1)),
    Conv((2, 24, 9, 22), (1, 24, 5, 3), ("NCHW", "OIHW", "NHWC"), "gemm"),
    # One output along lines: outputs are lanes.
    Conv((3, 1, 200), (1, 1, 19), ("NCW", "OIW", "NCW"), "loops", strides=(1,)),
    Conv((2, 2, 6, 131), (1, 2, 3, 40), NCHW, "loops", strides=(2, 1), padding=[(1, 1), (20, 39)]),
    Conv((1, 1, 9, 90), (1, 1, 5, 3), NCHW, "loops", padding=[(1, 2), (-2, 7)], rhs_dilation=(1, 2)),
    Conv((2, 20, 30, 17), (20, 1, 5, 7), NCHW, "loops", strides=(2, 1), groups=20),
    Conv((1, 6, 7, 7), (6, 1, 7, 7), NCHW, "loops", groups=6, dtype="float64"),
    Conv((1, 1, 5, 6, 70), (1, 1, 2, 3, 4), ("NCDHW", "OIDHW", "NCDHW"), "loops", strides=(1, 2, 1)),
    Conv((2, 1, 300), (1, 1, 115), ("NCW", "OIW", "NCW"), "loops", strides=(1,), padding=[(57, 57)]),
    # Gaps in x: phases one by one, or as products at every place; at once, if all see the same.
    Conv((2, 12, 13, 40), (7, 7, 40, 3), NHWC, "strips", padding=((3, 3), (4, 2)), lhs_dilation=(2, 2)),
    Conv((2, 10, 9, 5), (6, 10, 3, 2), ("NCHW", "OIHW", "NHWC"), "rows", (1, 3), ((1, 0), (2, 2)), (2, 2), (1, 3)),
    Conv((2, 12, 13, 40), (5, 4, 40, 3), NHWC, "gemm", padding=((3, 4), (2, 2)), lhs_dilation=(2, 3)),
    Conv((3, 16, 40), (2, 16, 3), ("NCW", "OIW", "NCW"), "gemm", (1,), [(1, -2)], (5,)),
    Conv((2, 12, 13, 24), (4, 2, 24, 3), NHWC, "gemm", padding=((3, 3), (1, 1)), lhs_dilation=(4, 2)),
    Conv((2, 24, 12, 13), (7, 24, 6, 6), NCHW, "columns", padding=((5, 5), (5, 7)), lhs_dilation=(6, 6)),
    Conv((2, 24, 12, 13), (7, 24, 3, 3), NCHW, "gemm", padding=((2, 2), (2, 2)), lhs_dilation=(3, 3)),
    # One place in the kernel.
    Conv((2, 32, 15, 21), (48, 32, 1, 1), NCHW, "gemm"),
    Conv((2, 15, 21, 32), (1, 1, 32, 48), NHWC, "gemm"),
    # Gradients of kernels.
    Conv((3, 20, 21, 32), (3, 20, 21, 40), GRADIENT, "gemm", padding="VALID"),
    Conv((2, 20, 21, 64), (2, 18, 19, 60), GRADIENT, "lines", padding="VALID"),
    Conv((3, 17, 16, 96), (3, 9, 8, 14), GRADIENT, "lines", padding=((1, 1), (1, 1)), rhs_dilation=(2, 2)),
    Conv((2, 20, 21, 8), (2, 18, 19, 12), GRADIENT, "lines", (1, 2), "VALID"),  # in shorter vectors
    Conv((3, 30, 41, 24), (3, 30, 41, 8), GRADIENT, "lines", padding=((1, 1), (1, 1))),
    Conv((2, 30, 41, 12), (2, 30, 41, 4), GRADIENT, "lines", (2, 2), ((1, 1), (1, 1))),
    Conv((2, 30, 41, 8), (2, 30, 41, 8), GRADIENT, "lines", (2, 2), ((1, 1), (1, 1)), dtype="float64"),
    Conv((1, 33, 41, 3), (1, 14, 18, 64), GRADIENT, "spans", padding=((2, 3), (2, 2)), rhs_dilation=(2, 2)),
    Conv((4, 28, 28, 2), (4, 28, 28, 16), GRADIENT, "spans", padding=((1, 1), (1, 1))),
    Conv((1, 16, 40, 40), (6, 16, 39, 38), NCHW, "rows", padding="VALID"),
    Conv((4, 20, 30, 21), (4, 28, 19, 7), ("CNHW", "IHWO", "HWNC"), "spans", padding="VALID"),
]


def conv_shape(conv: Conv) -> tuple[int, ...]:
    return anima.eval_shape(conv, *conv.data()).shape


SINGLE = [c for c in CASES if c.dtype == "float32"]


@pytest.mark.parametrize("conv", CASES, ids=str)
def test_every_way(conv: Conv) -> None:
    with anima.enable_x64(conv.dtype == "float64"):
        program = conv.program()
        assert conv.ways in ways(program)
        [out] = compile_program(program, [conv_shape(conv)])(conv.data())
    conv.check(out)


@pytest.mark.parametrize("target", list(TARGETS)[1:])
@pytest.mark.parametrize("conv", SINGLE, ids=str)
def test_every_way_on_other_machines(conv: Conv, target: str) -> None:
    [out] = compile_program(conv.program(), [conv_shape(conv)], TARGETS[target])(conv.data())
    conv.check(out)


@pytest.mark.parametrize(("features", "outputs"), [
    (4, 4), (8, 8), (4, 10), (12, 6), (20, 4), (7, 8), (3, 3), (5, 5), (12, 12), (15, 15), (16, 16), (17, 34),
    (24, 24)])
def test_gradients_of_kernels_in_groups(features: int, outputs: int) -> None:
    conv = Conv((2, 9, 13, 5 * features), (3, 3, features, 5 * outputs), NHWC, "", groups=5)
    x, w = conv.data()
    ct = np.random.default_rng(1).normal(size=conv_shape(conv))

    def gradient(x: Any, w: Any, ct: Any) -> Any:
        return anima.vjp(lambda w: conv(x, w), w)[1](ct)[0]

    got = anima.jit(gradient)(x, w, ct.astype(np.float32))
    with anima.enable_x64(True):
        want = gradient(*(a.astype(np.float64) for a in (x, w, ct)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("seed", range(40))
def test_random_sizes(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def pick(*numbers: int) -> int:
        return int(rng.choice(numbers))

    layout = [NHWC, NCHW, ("NHWC", "OIHW", "NCHW"), ("NCHW", "HWIO", "NHWC"), GRADIENT][seed % 5]
    n, c, o = pick(1, 2, 3, 5), pick(1, 3, 4, 16, 17, 33, 70), pick(1, 2, 3, 8, 16, 20, 33, 65)
    k, size = (pick(1, 2, 3, 4, 6), pick(1, 3, 5)), (pick(1, 5, 14, 19, 33), pick(6, 7, 13, 16, 30, 45))
    if layout is GRADIENT:
        k = size[0] - pick(0, 1) or 1, size[1] - pick(0, 1, 2)
    dims = {"N": n, "C": c, "I": c, "O": o}
    x = tuple({**dims, "H": size[0], "W": size[1]}[d] for d in layout[0])
    w = tuple({**dims, "H": k[0], "W": k[1]}[d] for d in layout[1])
    apart = None if seed % 3 else (pick(1, 2, 3), pick(1, 2))
    padding = [(pick(0, 1, 2), pick(0, 1, 3)) for _ in range(2)]
    conv = Conv(x, w, layout, "", (pick(1, 1, 2, 3), pick(1, 1, 2)), padding, apart, (pick(1, 1, 2), pick(1, 1, 2, 3)))
    [out] = compile_program(conv.program(), [conv_shape(conv)])(conv.data())
    conv.check(out)


@pytest.mark.parametrize("seed", range(4))
def test_channels_by_themselves(seed: int) -> None:
    """Lines begin and end where strides and gaps say, for all remainders of the padding; so do kernels' gradients."""
    rng = np.random.default_rng(seed)
    gaps, channels = (int(rng.integers(1, 4)), seed % 3 + 1), (8, 20, 70)[seed % 3]
    kernel = (int(rng.integers(1, 4)), int(rng.integers(2, 5)))
    x, w = (1 + seed % 2, 12, 17, channels), (*kernel, 1, channels)
    for strides, low in itertools.product(((1, 1), (2, 2), (1, 3)), (0, 1, 2, 3)):
        padding = [(low % 3, 1), (low, 3 - low)]
        conv = Conv(x, w, NHWC, "", strides, padding, None, gaps, channels)
        program = conv.program()
        assert ways(program) == {"loops"}
        [out] = compile_program(program, [conv_shape(conv)])(conv.data())
        conv.check(out)
        # The gradient of a kernel: strides are gaps there, and gaps strides.
        slope = anima.grad(lambda w, x, conv=conv: (conv(x, w) * jnp.cos(conv(x, w))).sum())
        given, factor = conv.data()
        np.testing.assert_allclose(anima.jit(slope)(factor, given), slope(factor, given), rtol=1e-3, atol=2e-3)


GROUPS = [(features, outputs, seed) for seed, (features, outputs) in enumerate(
    [(1, 4), (4, 4), (8, 8), (3, 5), (5, 7), (7, 8), (8, 6), (2, 8)])]


def in_group(features: int, outputs: int, seed: int) -> Conv:
    """A convolution of groups of a few channels, whose kernel is wider than the array, too."""
    rng = np.random.default_rng(seed)
    groups, gaps, dtype = (2, 3, 7)[seed % 3], (1 + seed % 2, 1 + seed % 3), ("float32", "float64")[seed == 5]
    kernel = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    size = int(rng.integers(1, 9)), (1, 6, 7, 20)[seed % 4]
    strides, padding = ((1, 1), (2, 3))[seed % 2], [(2, 3), (seed % 4, 7)]
    return Conv((2, *size, groups * features), (*kernel, features, groups * outputs), NHWC, "", strides, padding,
                (1, 2) if seed == 3 else None, gaps, groups, dtype)


@pytest.mark.parametrize("case", GROUPS, ids=str)
def test_few_channels_in_groups(case: tuple[int, int, int]) -> None:
    """So are the gradients by what they convolve, whose kernels do not lie as they are read."""
    conv = in_group(*case)
    x, w = conv.data()

    def slope(x: Any, w: Any) -> Any:
        return anima.grad(lambda x: (conv(x, w) * jnp.cos(conv(x, w))).sum())(x)

    with anima.enable_x64(conv.dtype == "float64"):
        program = conv.program()
        assert ways(program) <= {"loops"}
        [out] = compile_program(program, [conv_shape(conv)])(conv.data())
        np.testing.assert_allclose(anima.jit(slope)(x, w), slope(x, w), rtol=1e-3, atol=3e-3)
    conv.check(out)


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    yield 1, 2, 3
    threads.set_num_threads(None)


@pytest.mark.parametrize("conv", [c for c in SINGLE if np.prod(c.x) > 5000] + [in_group(4, 4, 1)], ids=str)
def test_the_number_of_threads_changes_no_bit(conv: Conv, thread_counts: tuple[int, ...]) -> None:
    run, results = compile_program(conv.program(), [conv_shape(conv)]), []
    for count in thread_counts:
        threads.set_num_threads(count)
        results += [run(conv.data())[0].copy() for _ in range(2)]
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.skipif(os.name != "posix", reason="protects pages")
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("target", ["host", "16 bytes, no masks"])
@pytest.mark.parametrize("conv", SINGLE + [in_group(*case) for case in GROUPS], ids=str)
def test_nothing_outside_of_the_buffers_is_touched(conv: Conv, target: str, at_end: bool) -> None:
    fence = Fenced()
    plain = conv.data()
    run = compile_program(conv.program(), [conv_shape(conv)], target=TARGETS[target])
    [fenced] = run([fence.array(x.ravel(), at_end).reshape(x.shape) for x in plain])
    assert np.array_equal(fenced, run(plain)[0])


@pytest.mark.parametrize("conv", SINGLE, ids=str)
def test_what_is_not_finite_stays_where_it_is_seen(conv: Conv) -> None:
    x, w = conv.data()
    rng = np.random.default_rng(1)
    for special in (np.nan, np.inf):
        x[tuple(rng.integers(n) for n in x.shape)] = special
    with anima.enable_x64(True):
        want = np.asarray(conv(x.astype(np.float64), w.astype(np.float64)))
    assert np.array_equal(np.isfinite(anima.jit(conv)(x, w)), np.isfinite(want))


def test_no_multiplication_by_gaps() -> None:
    """A transposed convolution has as many terms as there are meetings of elements and kernel."""
    conv = Conv((1, 8, 8, 32), (4, 4, 32, 32), NHWC, "", padding=((2, 2), (2, 2)), lhs_dilation=(2, 2))
    calls = [s for s in conv.program().body if isinstance(s, Call) and s.routine == "convolution"]
    work = 0
    for c in calls:
        a = arguments("convolution", c.args)
        rows, terms = (np.prod([a[f"{which}{d}_count"] for d in range(4)]) for which in ("row", "term"))
        work += rows * a["places"] * terms * a["taps"] * a["features"]
    assert len(calls) == 4
    assert work == 16 * 16 * 4 * 32  # places, taps that meet elements, features


# --- Plans ------------------------------------------------------------------------------------


def test_an_odometer_enumerates_all_combinations() -> None:
    wheels = [(2, 100, 7, 1, 0, 0), (3, 10, 5, 0, 2, 0), (4, 1, 3, 0, 0, 1)]
    numbers = odometer(wheels, (5, -1, 2))
    sizes, steps, carries, first = numbers[:4], numbers[4:36], numbers[36:68], numbers[68:]
    entry, counters, found = np.array(first), [0] * 4, []
    for _ in range(24):
        found.append(entry.copy())
        d = 3
        while d > 0 and counters[d] + 1 == sizes[d]:
            counters[d], d = 0, d - 1
        counters[d] += 1
        entry = entry + np.array(carries[8 * d:8 * d + 8])
    want = [np.array(first) + sum(i * np.array(steps[8 * d:8 * d + 8]) for d, i in enumerate((0, *index)))
            for index in np.ndindex(2, 3, 4)]
    assert np.array_equal(found, want)


@pytest.mark.parametrize("registers", [16, 32])
def test_exact_covers(registers: int) -> None:
    heights, _ = families(registers)
    for m in range(1, 300):
        found = exact_cover(m, heights)
        assert (found is None) == (m % 2 == 1 or m == 2)
        if found is not None:
            high, low, first, tiles = found
            assert first * high + (tiles - first) * low == m and {high, low} <= set(heights) and first > 0


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("conv", CASES, ids=str)
def test_blocks_fit_into_their_memory(conv: Conv, target: str) -> None:
    for stmt in conv.program().body:
        if isinstance(stmt, Call) and stmt.routine == "convolution":
            p = WindowProduct(arguments("convolution", stmt.args), TARGETS[target])
            n = p.numbers
            if p.driver in ("conv_strips", "conv_lines"):
                heights = n["window_block"] * max(n["height"], n["low_height"])
                rows = heights if p.driver == "conv_strips" else n["outputs"]
                assert rows * n["ld"] * p.size <= STRIP_SUMS
                assert n["window_block"] <= MOST_PIECES and n["run_block"] <= MOST_RUNS
                assert n["run_block"] * max(n["stretches"], 1) <= MOST_STEPS
                assert n["window_block"] * n["run_block"] * n["strip"] * p.size <= STRIP_BYTES
            else:
                assert n["window_block"] <= MOST_ENTRIES and n["run_block"] * n["length_block"] <= MOST_DEPTH
                rows = n["window_block"] if p.driver == "conv_rows" else n["output_block"]
                assert rows * n["ld"] * p.size <= SUM_BYTES


def test_the_primitive_is_not_rewritten_for_ever() -> None:
    """What a rewrite leaves is not rewritten again: integers, and floats of any layout, keep one equation."""
    for dtype in ("int32", "float32"):
        program = anima.make_jaxpr(lambda x, w: lax.conv(x, w, (1, 1), "SAME"))(
            np.ones((1, 8, 9, 9), dtype), np.ones((8, 8, 3, 3), dtype))
        assert [e.primitive for e in program.eqns] == [conv_general_dilated_p]


assert HOST is TARGETS["host"]
