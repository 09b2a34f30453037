"""Convolutions as generated code.

    convolution f32 columns ...   ->   plan = [32, 32, 1, ...]; ctx = {plan, x, w, out, kernels}
                                       conv_columns(pool, ctx, units, grain)

As with matrix products, one driver for each scalar type serves all convolutions, and what differs between these is
data that it reads: sizes, blocks, and the odometers that enumerate windows (`windows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import ClassVar

from anima.compiler.ir.assembly import ModuleBuilder, Type
from anima.compiler.ir.routines import CONVOLUTION_NUMBERS, WHEEL
from anima.compiler.machine.target import Target
from anima.compiler.products import strip_driver, window_driver
from anima.compiler.products.blocking import DEPTH_BYTES, MOST_VECTORS, cover, exact_cover, families, grain_of
from anima.compiler.products.gemm import PACK_COLUMNS, PACK_ROWS, kernel_name, shared_text as gemm_text
from anima.compiler.products.kernel import SCALARS
from anima.compiler.products.strip_driver import LINES, MOST_PIECES, MOST_RUNS, MOST_STEPS, STRIP_BYTES, STRIPS
from anima.compiler.products.window_driver import COLUMNS, CONTEXT, MOST_DEPTH, MOST_ENTRIES, ROWS, SUM_BYTES
from anima.compiler.products.window_kernel import KERNEL, write_kernel
from anima.compiler.products.windows import C0, ENTRY, WHEELS
from anima.util import replace

_MULTIPLICATIONS = 25.0   # done in a nanosecond, by vectors of 16
_UNITS = 16               # units, from which on there are enough for any number of threads
_BLOCK_OUTPUTS = 256      # columns of the matrix in a unit of `conv_rows`
_MOST_BLOCKS = 8          # tiles or panels of windows in a unit
_STILL = 1 << 30          # elements of a run of terms that the last coordinate stays the same for: all
_STRIP_DEPTH = 256        # terms of a block of strips
_LINE_DEPTH = 384         # terms of a block of lines
_OF_STRIPS = ("stretches", "stretch", "stretch_a", "stretch_w", "row_stride", "term_stride", "begin_x", "begin_out",
              "begin_at", "begin_place", "batch", "batch_out")
_SAME_PLACE = 4096        # addresses so far apart share a place in a first-level cache
Wheel = tuple[int, ...]   # size; steps: x, out, c0, c1, c2


def _ceil(x: int, y: int) -> int:
    return -(-x // y)


def odometer(wheels: Sequence[Wheel], start: Sequence[int] = (0, 0, 0)) -> list[int]:
    """The numbers of an odometer: sizes; what each counter's step adds to an entry; what it adds after a carry; and the
    first entry, whose coordinates are `start`."""
    full = [(1, 0, 0, 0, 0, 0)] * (WHEELS - len(wheels)) + list(wheels)
    steps = [list(w[1:]) + [0] * (ENTRY + 1 - len(w)) for w in full]
    carries = []
    for d in range(WHEELS):
        back = [sum((full[e][0] - 1) * steps[e][k] for e in range(d + 1, WHEELS)) for k in range(ENTRY)]
        carries.append([step - b for step, b in zip(steps[d], back, strict=True)])
    first = [0] * C0 + list(start) + [0] * (ENTRY - C0 - len(start))
    return [w[0] for w in full] + [n for step in (*steps, *carries, first) for n in step]


def _even(total: int, most: int) -> int:
    """The size of blocks of about the same size, of at most `most`."""
    return _ceil(total, _ceil(total, most))


@cache
def shared_text(name: str, dtype: str, target: Target) -> str:
    """The LLVM module of a driver, or of a function that it shares with matrix products."""
    module = ModuleBuilder(target.triple, 8 * target.vector_bytes, target.features)
    scalar, lanes, masks = SCALARS[dtype], target.vector_bytes // (4 if dtype == "f32" else 8), target.masks
    if name in (ROWS, COLUMNS):
        window_driver.write_driver(module, name, scalar, lanes, masks)
    elif name in (STRIPS, LINES):
        strip_driver.write_driver(module, name, scalar, lanes, masks)
    elif name.startswith("window_"):
        rows, vectors = map(int, name.removeprefix("window_").split("x"))
        write_kernel(module.function(name, KERNEL), Type(scalar, lanes), rows, vectors)
    else:
        return gemm_text(name, dtype, target)
    return module.text()


def window_kernel_name(rows: int, vectors: int) -> str:
    """The register kernel for a tile of this size."""
    return f"window_{rows}x{vectors}"


class WindowProduct:
    """A call of `convolution` as a driver takes it (see `driver.Driven`)."""

    context = CONTEXT
    operands: ClassVar = {"x": "x", "w": "w", "out": "out"}

    def __init__(self, call: dict[str, object], target: Target) -> None:
        self.size = 4 if call["dtype"] == "f32" else 8
        if call["side"] == "lines":  # whose vectors are whole ones
            places = int(call["places"])  # type: ignore[call-overload]
            target = replace(target, vector_bytes=min(target.vector_bytes, self.size * (places & -places)))
        self.target, self.lanes = target, target.vector_bytes // self.size
        self.heights, self.most_sums = families(target.registers)
        n = {name: int(call[name]) for name in CONVOLUTION_NUMBERS}  # type: ignore[call-overload]
        self.n = n
        rows, terms = ([tuple(n[f"{which}{d}_{k}"] for k in WHEEL) for d in range(WHEELS)] for which in ("row", "term"))
        self.rows, self.runs = (math.prod(wheel[0] for wheel in wheels) for wheels in (rows, terms))
        self.numbers: dict[str, int] = {name: n[name] for name in (
            "x_group", "w_group", "out_group", "outputs", "size0", "size1", "size2", "term")}
        self.set(output=n["output_w"], out_output=n["output_out"], runs=self.runs)
        side = str(call["side"])
        if side == "spans":  # whose innermost wheel of rows is a part of lines
            self.batch, rows[-1] = rows[-1], (1, 0, 0, 0, 0, 0)
            self.rows //= self.batch[0]
        self.driver, plan, cut = {
            "rows": (ROWS, window_driver.PLAN, self._by_rows),
            "columns": (COLUMNS, window_driver.PLAN, self._by_columns),
            "strips": (STRIPS, strip_driver.PLAN, self._by_strips),
            "spans": (STRIPS, strip_driver.PLAN, self._by_spans),
            "lines": (LINES, strip_driver.PLAN, self._by_lines),
        }[side]
        cut()
        positions = self.rows * n["places"] * (self.batch[0] if side == "spans" else 1)
        self.units = self.numbers["windows"] * self.numbers["blocks"] * n["groups"]
        work = positions * n["outputs"] * self.runs * n["taps"] * n["features"] * n["groups"]
        time = work / (_MULTIPLICATIONS * self.lanes / 16)
        self.grain = grain_of(self.units, time / self.units)
        starts = [n[f"start{d}"] for d in range(3)]
        for name, numbers in (("positions", odometer(rows, starts)), ("terms", odometer(terms))):
            for d, number in enumerate(numbers):
                self.numbers[f"{name}{d}"] = number
        self.plan = [self.numbers[name] for name in plan]

    def set(self, **numbers: int) -> None:
        self.numbers.update(numbers)

    # -- runs of terms, or of rows, that are packed ---------------------------------------------

    def _deep(self, runs: int, length: int) -> None:
        """How terms are cut into blocks."""
        depth = min(DEPTH_BYTES[self.size] // self.size, MOST_DEPTH)
        if length >= depth:
            self.set(run_block=1, length_block=_even(length, depth))
        else:
            self.set(run_block=_even(runs, depth // length), length_block=length)

    def _panels(self, columns: int, height: int) -> int:
        """How columns are cut into panels; their width."""
        vectors = min(max(2, min(self.most_sums // height, MOST_VECTORS)), _ceil(columns, self.lanes))
        rest = columns % (vectors * self.lanes)
        edge = _ceil(rest, self.lanes) if rest else vectors
        self.set(width=vectors * self.lanes, edge=edge * self.lanes)
        return vectors * self.lanes

    def _kernels(self, high: int, low: int, name: Callable[[int, int], str]) -> None:
        width, edge = (self.numbers[n] // self.lanes for n in ("width", "edge"))
        kernels = [name(rows, vectors) for vectors in (width, edge) for rows in (high, low)]
        self.functions = dict(zip(("high", "low", "high_edge", "low_edge"), kernels, strict=True))

    def _block(self, pieces: int, most: int, others: int) -> int:
        """How many tiles or panels of windows a unit has, of which there are `pieces` for each of `others`."""
        return max(1, min(_MOST_BLOCKS, most, pieces * others // _UNITS))

    def _by_rows(self) -> None:
        n, outputs = self.n, self.n["outputs"]
        length = n["taps"] * n["features"]
        stride = n["feature_x"] if n["features"] > 1 else n["tap_x"] if n["taps"] > 1 else 1
        if stride == 1:
            step = n["features"] if n["taps"] > 1 else _STILL
        else:
            step = n["tap_step"] if n["taps"] > 1 else 0
        self.set(positions=self.rows, length=length, stride=stride, step=step, row_length=1, row_out=0, copied=0,
                 first=0)
        self._deep(self.runs, length)
        height = min(self.heights, key=lambda h: (_ceil(self.rows, h) * max(h + 1, 6), -h))
        width = self._panels(outputs, height)
        block = _even(_ceil(outputs, width), max(1, _BLOCK_OUTPUTS // width)) * width
        blocks, ld, tiles = _ceil(outputs, block), block, _ceil(self.rows, height)
        most = min(SUM_BYTES // (ld * self.size * height), MOST_ENTRIES // height)
        some = self._block(tiles, most, blocks * n["groups"])
        self.set(output_block=block, blocks=blocks, height=height, low_height=height, ld=ld, window_block=some * height,
                 windows=_ceil(tiles, some))
        self._kernels(height, height, kernel_name)
        if outputs % width not in (0, self.numbers["edge"]):
            self.functions["pack_matrix"] = PACK_COLUMNS

    def _by_columns(self) -> None:
        n, outputs = self.n, self.n["outputs"]
        positions = self.rows * n["places"]
        self.set(positions=positions, length=1, stride=n["place_x"] if n["places"] > 1 else 1, step=n["place_step"],
                 row_length=n["places"], row_out=n["place_out"])
        self._deep(self.runs, 1)
        high, low, first, tiles = cover(outputs, self.heights)
        width = self._panels(positions, high if first else low)
        high, low, first, blocks, rows = self._output_blocks((high, low, first, tiles), width)
        panels = _ceil(positions, width)
        most = min(SUM_BYTES // (rows * width * self.size), MOST_ENTRIES // width)
        some = self._block(panels, most, blocks * n["groups"])
        copied = max(self.numbers["term"], self.numbers["output"]) * self.size % _SAME_PLACE == 0 and high > 8
        self.set(ld=some * width, window_block=some * width, windows=_ceil(panels, some), copied=int(copied))
        self._kernels(high, low, kernel_name)
        self.functions["pack_matrix"] = PACK_ROWS

    def _output_blocks(self, tiles: tuple[int, int, int, int], width: int) -> tuple[int, int, int, int, int]:
        """How outputs, which are rows, are cut: heights, how many tiles are of the first, blocks, rows of a block."""
        high, low, first, count = tiles
        outputs = block = self.n["outputs"]
        rows, most = first * high + (count - first) * low, SUM_BYTES // (width * self.size)
        if rows > most:
            high = low = self.heights[0]
            first, block = _ceil(outputs, high), most // high * high
            rows = block
        self.set(output_block=block, blocks=_ceil(outputs, block), height=high, low_height=low, first=first)
        return high, low, first, _ceil(outputs, block), rows

    # -- lines that are read as they lie --------------------------------------------------------

    def _by_strips(self) -> None:
        """Rows are windows along a line; their terms, of a strip, are the features of some taps."""
        n, features, taps = self.n, self.n["features"], self.n["taps"]
        tiles = cover(n["places"], self.heights)
        tallest = tiles[0] if tiles[2] else tiles[1]
        pixels = (tallest - 1) * n["place_step"] + (taps - 1) * n["tap_step"] + 1
        if n["tap_step"] == 1 and n["tap_w"] == features * n["feature_w"]:
            stretches, stretch = 1, taps * features
        else:
            stretches, stretch = taps, features
        pixel = n["tap_x"] // n["tap_step"]
        self.set(places=n["places"], features=features, stretches=stretches, stretch=stretch,
                 stretch_a=n["tap_step"] * features, stretch_w=n["tap_w"], row_stride=n["place_step"] * features,
                 term_stride=1, begin_x=n["place_step"] * pixel, begin_out=n["place_out"], begin_at=n["place_step"],
                 begin_place=0, batch=1, batch_out=0, term=n["feature_w"])
        self._strips(tiles, self.rows, pixel, pixels, taps * features)

    def _by_spans(self) -> None:
        """Rows are the windows, and the elements of the batch, of a line; their terms, of a strip, are its taps."""
        n, (batch, _, batch_out, *_) = self.n, self.batch
        tiles = cover(n["places"] * batch, self.heights)
        pixels = (n["taps"] - 1) * n["tap_step"] + n["places"]
        self.set(places=n["places"] * batch, features=batch, stretches=1, stretch=n["taps"], stretch_a=0, stretch_w=0,
                 row_stride=1, term_stride=n["tap_step"] * batch, begin_x=0, begin_out=0, begin_at=0, begin_place=1,
                 batch=batch, batch_out=batch_out, term=n["tap_w"])
        self._strips(tiles, self.rows, n["tap_x"] // n["tap_step"], pixels, n["taps"])

    def _strips(self, tiles: tuple[int, int, int, int], lines: int, pixel: int, pixels: int, depth: int) -> None:
        """The numbers for lines that are cut into tiles, and for strips of so many pixels and terms."""
        n, outputs, (high, low, first, count) = self.n, self.n["outputs"], tiles
        self._panels(_ceil(outputs, self.lanes) * self.lanes, high if first else low)
        width, strip = self.numbers["width"], pixels * self.numbers["features"]
        block = _even(_ceil(outputs, width), max(1, _BLOCK_OUTPUTS // width)) * width
        most = min(_STRIP_DEPTH // depth, MOST_RUNS, MOST_STEPS // self.numbers["stretches"],
                   STRIP_BYTES // (strip * self.size))
        self.set(tiles=count, pieces=lines * count, run_block=_even(self.runs, max(most, 1)), taps=n["taps"],
                 gap=n["tap_step"], pixel=pixel, strip=strip, height=high, low_height=low, first=first,
                 row_out=n["place_out"], output_block=block, ld=block, blocks=_ceil(outputs, block))
        strips = self.numbers["run_block"] * strip * self.size
        self._pieces(min(SUM_BYTES // (block * self.size * max(high, low)), STRIP_BYTES // strips))
        self._kernels(high, low, window_kernel_name)

    def _by_lines(self) -> None:
        n = self.n
        found = exact_cover(n["outputs"], self.heights)
        assert found is not None, "lowering saw to it"
        width = self._panels(n["places"], found[0])
        high, low, _, _, rows = self._output_blocks(found, width)
        pixel = n["tap_x"] // n["tap_step"]
        self.set(tiles=_ceil(n["places"], width), pieces=self.rows * _ceil(n["places"], width), places=n["places"],
                 run_block=min(_even(self.runs, max(_LINE_DEPTH // n["taps"], 1)), MOST_RUNS), taps=n["taps"],
                 gap=n["tap_step"], features=1, pixel=pixel, strip=0, term=n["tap_w"], row_out=n["place_out"],
                 **dict.fromkeys(_OF_STRIPS, 0))
        self._pieces(SUM_BYTES // (rows * width * self.size))
        self.set(ld=self.numbers["window_block"] * width)
        self._kernels(high, low, window_kernel_name)

    def _pieces(self, most: int) -> None:
        """How many tiles or panels a unit has."""
        pieces = self.numbers["pieces"]
        some = self._block(pieces, min(most, MOST_PIECES), self.numbers["blocks"] * self.n["groups"])
        self.set(window_block=some, windows=_ceil(pieces, some))
