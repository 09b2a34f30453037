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

from anima.compiler.ir.assembly import Builder, ModuleBuilder, Value
from anima.compiler.products.window_driver import (
    COLUMNS,
    CONTEXT,
    MOST_DEPTH,
    MOST_ENTRIES,
    PLAN,
    ROWS,
    SUM_BYTES,
    write_driver,
)
from anima.compiler.products.windows import C0, ENTRY, WHEELS
from anima.compiler.products.gemm import PACK_COLUMNS, PACK_ROWS, kernel_name, shared_text as gemm_text
from anima.compiler.products.blocking import DEPTH_BYTES, MOST_VECTORS, cover, families
from anima.compiler.products.kernel import PTR, SCALARS, i64
from anima.compiler.machine.native import Target
from anima.compiler.ir.routines import CONVOLUTION_NUMBERS, WHEEL

_MULTIPLICATIONS = 25.0   # done in a nanosecond, by vectors of 16
_WORTH = 25_000.0         # nanoseconds of work from which threads are used
_PIECE = 8_000.0          # least work for one piece
_UNITS = 16               # units, from which on there are enough for any number of threads
_BLOCK_OUTPUTS = 256      # columns of the matrix in a unit of `conv_rows`
_MOST_BLOCKS = 8          # tiles or panels of windows in a unit
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
    if name not in (ROWS, COLUMNS):
        return gemm_text(name, dtype, target)
    module = ModuleBuilder(target.triple, 8 * target.vector_bytes, target.features)
    scalar = SCALARS[dtype]
    write_driver(module, name, scalar, target.vector_bytes // (4 if dtype == "f32" else 8), target.has("avx"))
    return module.text()


class WindowProduct:
    """A call of `convolution` as a driver takes it: its `driver`, `functions` by place, `plan`, and `units` of work, of
    which a thread takes `grain` (0: all in order)."""

    def __init__(self, call: dict[str, object], target: Target) -> None:
        self.size = 4 if call["dtype"] == "f32" else 8
        self.lanes = target.vector_bytes // self.size
        n = {name: int(call[name]) for name in CONVOLUTION_NUMBERS}  # type: ignore[call-overload]
        self.numbers = {name: n[name] for name in PLAN if name in n}
        rows, terms = ([tuple(n[f"{which}{d}_{k}"] for k in WHEEL) for d in range(WHEELS)] for which in ("row", "term"))
        outer, runs = (math.prod(wheel[0] for wheel in wheels) for wheels in (rows, terms))
        by_rows = call["side"] == "rows"
        self.driver = ROWS if by_rows else COLUMNS
        positions = outer * n["row_length"]
        self.set(positions=positions, runs=runs, copied=0, first=0)
        self._deep(runs, n["length"])
        self.groups = n["groups"]
        (self._by_rows if by_rows else self._by_columns)(positions, n["outputs"], target.registers)
        unit = (min(self.numbers["window_block"], positions) * min(self.numbers["output_block"], n["outputs"]) * runs
                * n["length"] / (_MULTIPLICATIONS * self.lanes / 16))
        self.units = self.numbers["windows"] * self.numbers["blocks"] * n["groups"]
        self.grain = 0 if unit * self.units < _WORTH else max(1, round(_PIECE / unit))
        for d, number in enumerate(odometer(rows, [n[f"start{d}"] for d in range(3)])):
            self.numbers[f"positions{d}"] = number
        for d, number in enumerate(odometer(terms)):
            self.numbers[f"terms{d}"] = number
        self.plan = [self.numbers[name] for name in PLAN]

    def set(self, **numbers: int) -> None:
        self.numbers.update(numbers)

    def _deep(self, runs: int, length: int) -> None:
        """How terms are cut into blocks."""
        depth = min(DEPTH_BYTES[self.size] // self.size, MOST_DEPTH)
        if length >= depth:
            self.set(run_block=1, length_block=_even(length, depth))
        else:
            self.set(run_block=_even(runs, depth // length), length_block=length)

    def _panels(self, columns: int, height: int, registers: int) -> int:
        """How columns are cut into panels; their width."""
        vectors = min(max(2, min(families(registers)[1] // height, MOST_VECTORS)), _ceil(columns, self.lanes))
        rest = columns % (vectors * self.lanes)
        edge = _ceil(rest, self.lanes) if rest else vectors
        self.set(width=vectors * self.lanes, edge=edge * self.lanes)
        return vectors * self.lanes

    def _kernels(self, high: int, low: int) -> None:
        width, edge = (self.numbers[n] // self.lanes for n in ("width", "edge"))
        kernels = [kernel_name(rows, vectors) for vectors in (width, edge) for rows in (high, low)]
        self.functions = dict(zip(("high", "low", "high_edge", "low_edge"), kernels, strict=True))

    def _block(self, pieces: int, most: int, others: int) -> int:
        """How many tiles or panels of windows a unit has, of which there are `pieces` for each of `others`."""
        return max(1, min(_MOST_BLOCKS, most, pieces * others // _UNITS))

    def _by_rows(self, positions: int, outputs: int, registers: int) -> None:
        heights = families(registers)[0]
        height = min(heights, key=lambda h: (_ceil(positions, h) * max(h + 1, 6), -h))
        width = self._panels(outputs, height, registers)
        block = _even(_ceil(outputs, width), max(1, _BLOCK_OUTPUTS // width)) * width
        blocks, ld, tiles = _ceil(outputs, block), block, _ceil(positions, height)
        most = min(SUM_BYTES // (ld * self.size * height), MOST_ENTRIES // height)
        some = self._block(tiles, most, blocks * self.groups)
        self.set(output_block=block, blocks=blocks, height=height, low_height=height, ld=ld, window_block=some * height,
                 windows=_ceil(tiles, some))
        self._kernels(height, height)
        if outputs % width not in (0, self.numbers["edge"]):
            self.functions["pack_matrix"] = PACK_COLUMNS

    def _by_columns(self, positions: int, outputs: int, registers: int) -> None:
        heights = families(registers)[0]
        high, low, first, tiles = cover(outputs, heights)
        width = self._panels(positions, high if first else low, registers)
        most_rows = SUM_BYTES // (width * self.size)
        block = outputs
        if first * high + (tiles - first) * low > most_rows:
            high = low = heights[0]
            first, block = _ceil(outputs, high), most_rows // high * high
        blocks, panels = _ceil(outputs, block), _ceil(positions, width)
        rows = _ceil(block, high) * high if blocks > 1 else first * high + (tiles - first) * low
        most = min(SUM_BYTES // (rows * width * self.size), MOST_ENTRIES // width)
        some = self._block(panels, most, blocks * self.groups)
        copied = max(self.numbers["term"], self.numbers["output"]) * self.size % _SAME_PLACE == 0 and high > 8
        self.set(output_block=block, blocks=blocks, height=high, low_height=low, first=first, ld=some * width,
                 window_block=some * width, windows=_ceil(panels, some), copied=int(copied))
        self._kernels(high, low)
        self.functions["pack_matrix"] = PACK_ROWS


def emit_convolution(b: Builder, product: WindowProduct, operands: dict[str, Value], pool: Value,
                     function: Callable[[str], Value]) -> None:
    """Write the call of a driver: `operands` are addresses of the first elements of x, w and out, `pool` that of the
    pool or null, `function` gives addresses of shared functions."""
    text = "_".join(map(str, product.plan)).replace("-", "m")
    constant = b.module.constant(f"convolution.plan.{text}", "i64", product.plan, 8)
    driver = function(product.driver)
    context = b.alloca(PTR, len(CONTEXT))
    words = {"plan": constant, **operands, **{place: function(name) for place, name in product.functions.items()}}
    for place, value in words.items():
        b.store(value, b.gep("ptr", context, CONTEXT.index(place)))
    b.call(driver, [pool, context, i64(product.units), i64(product.grain)])
