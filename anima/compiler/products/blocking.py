"""How a matrix product is cut: tiles for registers, blocks for caches, units for threads.

    f32, 512x512x512, AVX-512:   tiles of 14 rows by 32 columns, blocks of 256 k by 128 columns

What is decided here depends on the product's constants and the machine's vectors alone, never on the
number of threads; every element of C is the sum, over blocks of k in order, of sums over k in order.
"""

from __future__ import annotations

import itertools
from functools import cache

from anima.compiler.products.dots import TILE
from anima.util import record

BLOCK_BYTES = 1 << 18    # the packed block of B: a part of the second-level cache, and of a thread's stack
DEPTH_BYTES = {4: 1024, 8: 1536}  # a row of a tile of A: the tile stays in a first-level cache of 32 KB
MOST_ROWS = 14
MOST_VECTORS = 6
TILE_ROWS = 2 * TILE     # of two tiles
ROW_BYTES = max(MOST_ROWS * DEPTH_BYTES[8], TILE_ROWS * DEPTH_BYTES[4]) + 64 * TILE_ROWS  # of packed rows of A
_FAR = 1 << 21           # bytes over which a B lies that is worth packing ...
_NEAR = 1 << 17          # ... where few registers make low tiles, which read it more often
_PACKED_ROWS = 56        # that use a packed block of B
_SAME_PLACE = 4096       # addresses so far apart share a place in a first-level cache
_ANOTHER = 1.03          # a second kernel must save this much
_MULTIPLICATIONS = 25.0  # done in a nanosecond, by vectors of 16
_WORTH = 25_000.0        # nanoseconds of work from which threads are used
_PIECE = 8_000.0         # least work for one piece


@record
class Shape:
    """A product's constants; A[i, p] is element i*rs + p*ks, B[p, j] is p*bs + j*js, C[i, j] is i*cs + j."""

    m: int
    n: int
    k: int
    rs: int
    ks: int
    bs: int
    js: int
    cs: int
    batch: int
    itemsize: int


@record
class Blocking:
    """The rows of C in `tiles`: `first` of them of rows[0] rows, the others of rows[1]; its columns in blocks of `nc`,
    these in panels of `vectors` vectors and perhaps a narrower last one of `edge`; k in blocks of `kc`.

    A unit of work is one tile of rows in one block of columns; a thread takes `grain` of them at least, all in
    order if it is 0.
    """

    rows: tuple[int, int]
    first: int
    tiles: int
    vectors: int
    edge: int
    nc: int
    kc: int
    pack_a: bool
    pack_b: bool
    grain: int


def _ceil(x: int, y: int) -> int:
    return -(-x // y)


def families(registers: int) -> tuple[tuple[int, ...], int]:
    """Heights of register tiles, of which few kernels are made, and the most accumulators."""
    return ((14, 12, 8, 4, 2), 28) if registers >= 32 else ((6, 4, 2), 12)


@cache
def cover(m: int, heights: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(rows, rows of the others, how many of the first, of both) to cover m rows: little waste, few and high tiles."""
    best, found = float("inf"), (heights[0], heights[0], 0, 0)
    for high, low in itertools.combinations_with_replacement(heights, 2):
        most = _ceil(m, high)
        for first in range(max(0, most - 12), most + 1):
            rest = max(0, m - first * high)
            others = _ceil(rest, low)
            if high == low and others:
                continue
            # A step costs a tile one load of B for each vector, besides its rows; low tiles wait for their sums.
            cost = (first * max(high + 1.0, 6.0) + others * max(low + 1.0, 6.0)) * (1.0 if high == low else _ANOTHER)
            if cost < best - 1e-9:
                best, found = cost, (high, low, first, first + others)
    return found


def exact_cover(m: int, heights: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """`cover` without waste; None if there is none."""
    for high, low in itertools.combinations(heights, 2):
        for first in range(m // high, 0, -1):
            if (m - first * high) % low == 0:
                return high, low, first, first + (m - first * high) // low
    return None


def blocking(s: Shape, lanes: int, registers: int) -> Blocking:
    """The plan of a product on a machine with vectors of `lanes` numbers."""
    heights, sums = families(registers)
    high, low, first, tiles = cover(s.m, heights)
    tallest = high if first else low
    vectors = min(max(2, min(sums // tallest, MOST_VECTORS)), _ceil(s.n, lanes))
    width = vectors * lanes
    rest = s.n % width
    edge = _ceil(rest, lanes) if rest else vectors
    if (vectors - edge) * lanes < (_ANOTHER - 1.0) * s.n:
        edge = vectors
    depth = DEPTH_BYTES[s.itemsize] // s.itemsize
    kc = _ceil(s.k, _ceil(s.k, depth))
    few = registers < 32
    pack_b = s.js != 1 or (s.m >= 3 * MOST_ROWS and s.k * s.bs * s.itemsize >= (_NEAR if few else _FAR))
    panels = max(1, (BLOCK_BYTES if pack_b else BLOCK_BYTES // 2) // s.itemsize // kc // width)
    blocks = _ceil(s.n, panels * width)
    nc = _ceil(_ceil(s.n, width), blocks) * width
    pack_a = (s.ks != 1 and s.n >= 4 * width) if few else (
        max(s.rs, s.ks) * s.itemsize % _SAME_PLACE == 0 and tallest > 8 and s.n > width)
    unit = tallest * min(nc, s.n) * s.k / (_MULTIPLICATIONS * lanes / 16)
    units = tiles * blocks * s.batch
    grain = 0 if unit * units < _WORTH else max(
        1, round(_PIECE / unit), min(_ceil(_PACKED_ROWS, tallest), tiles // 2) if pack_b else 1)
    return Blocking((high, low), first, tiles, vectors, edge, nc, kc, pack_a, pack_b, grain)


def grain_of(units: int, nanoseconds: float) -> int:
    """How many units of work, each of which takes so long, a thread takes at least; 0: all in order, by one."""
    return 0 if units * nanoseconds < _WORTH else max(1, round(_PIECE / nanoseconds))


def tile_blocking(s: Shape, lanes: int) -> Blocking:
    """The plan of a product of bytes on a machine that multiplies tiles: rows of A are contiguous."""
    assert s.ks == 1
    assert s.k % TILE == 0
    vectors, depth = TILE_ROWS // lanes, DEPTH_BYTES[4] // 4
    kc = _ceil(_ceil(s.k, _ceil(s.k, depth)), TILE) * TILE
    pack_b = s.js != 1 or (s.m > TILE_ROWS and s.k * s.bs * s.itemsize >= _FAR)
    panels = max(1, (BLOCK_BYTES if pack_b else BLOCK_BYTES // 2) // s.itemsize // kc // TILE_ROWS)
    nc = _ceil(_ceil(s.n, TILE_ROWS), _ceil(s.n, panels * TILE_ROWS)) * TILE_ROWS
    tiles, blocks = _ceil(s.m, TILE_ROWS), _ceil(s.n, nc)
    unit = TILE_ROWS * min(nc, s.n) * s.k / (8 * _MULTIPLICATIONS)
    grain = grain_of(tiles * blocks * s.batch, unit)
    return Blocking((TILE_ROWS, TILE_ROWS), tiles, tiles, vectors, vectors, nc, kc, False, pack_b, grain)


_BYTES = 16.0                       # read from memory in a nanosecond, by one core
_STRETCH_BYTES = 1 << 10, 1 << 13   # of results to which rows are added: short ones are fetched slowly
_DOTS = 16                          # results in a unit of dot products


def vector_blocking(outputs: int, k: int, lines: int, batch: int, itemsize: int, dot: bool) -> tuple[int, int]:
    """Results in a unit of work of products by `lines` vectors, and the grain: as in `blocking`."""
    least, most = (n // itemsize for n in _STRETCH_BYTES)
    size = _DOTS if dot else min(max(_ceil(outputs, 2), least), most)
    unit = min(size, outputs) * k * itemsize * max(1.0, lines / 4) / _BYTES
    units = _ceil(outputs, size) * batch
    return size, grain_of(units, unit)
