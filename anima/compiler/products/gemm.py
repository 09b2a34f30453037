"""Matrix products as generated code.

    gemm f32 N N 512 512 512   ->   plan = [512, 256, ...]; ctx = {plan, a, b, c, kernels}
                                    gemm(pool, ctx, units, grain)

For each scalar type there is one driver (`gemm_driver`) and there are a few register kernels (`gemm_kernel`); what
differs between products is data that the driver reads. So a program's own module only has numbers, and drivers and
kernels are modules of their own, made once in a process. A product by a vector has drivers of its own
(`gemm_vector`).
"""

from __future__ import annotations

import struct
from functools import cache

from anima.compiler.ir.assembly import ModuleBuilder, Type
from anima.compiler.machine import native
from anima.compiler.machine.target import Target
from anima.compiler.products.blocking import Shape, blocking, tile_blocking, vector_blocking
from anima.compiler.products.dots import IN_WORDS, has_tiles
from anima.compiler.products.driver import CONTEXT, DRIVER, Driver
from anima.compiler.products.kernel import I1, I64, KERNEL, PACK_A, PACK_B, PTR, SCALARS, PackWriter, write_kernel
from anima.compiler.products.tiles import write_tiles
from anima.compiler.products.vector import ALONG, DOT, write_along, write_dot

PACK_ROWS, PACK_COLUMNS, TRANSPOSE, MERGE = "gemm_pack_a", "gemm_pack_b", "gemm_transpose", "gemm_merge"
TILES = "gemm_tiles"
TRANSPOSED = "transposed"  # not for products, but made of the same
_FEW_BYTES = 32  # of one element of each vector, up to which vectors are multiplied one by one
_LONG = 64       # if they are at least so long
_SQUARE = 4      # lanes of the squares that are transposed: wider ones are no faster, and take longer to compile


def kernel_name(rows: int, vectors: int, minus: bool = False) -> str:
    """The register kernel for a tile of this size, which adds to it or, `minus`, subtracts from it."""
    return f"{'minus' if minus else 'gemm'}_{rows}x{vectors}"


@cache
def shared_text(name: str, dtype: str, target: Target) -> str:
    """The LLVM module of a driver or kernel, which has one public function of that name."""
    module = ModuleBuilder(target.triple, 8 * target.vector_bytes, target.features)
    scalar, lanes, masks = SCALARS[dtype], _lanes(dtype, target), target.masks
    if name == DRIVER:
        Driver(module, dtype, lanes, masks).write()
    elif name == DOT:
        write_dot(module, scalar, lanes, masks)
    elif name == ALONG:
        write_along(module, scalar, lanes, masks)
    elif name == PACK_ROWS:
        PackWriter(module.function(name, PACK_A), scalar, lanes, masks).pack_a()
    elif name == PACK_COLUMNS:
        PackWriter(module.function(name, PACK_B), scalar, lanes, masks).pack_b()
    elif name == TRANSPOSE:
        PackWriter(module.function(name, PACK_B), scalar, min(lanes, _SQUARE), masks).pack_transposed()
    elif name == TILES:
        write_tiles(module.function(name, KERNEL), dtype)
    elif name == TRANSPOSED:
        PackWriter(module.function(name, PACK_B), scalar, min(lanes, _SQUARE), masks).transpose()
    elif name == MERGE:
        params = [PTR, I64, PTR, I64, I64, I64, Type(scalar), Type(scalar), I1]
        PackWriter(module.function(name, params), scalar, lanes, masks).merge()
    else:
        kind, size = name.split("_")
        rows, vectors = map(int, size.split("x"))
        write_kernel(module.function(name, KERNEL), dtype, Type(scalar, lanes), rows, vectors, kind == "minus")
    return native.QUICKLY + module.text() if name == DRIVER else module.text()


def _lanes(dtype: str, target: Target) -> int:
    return target.vector_bytes // _size(dtype)


def _size(dtype: str) -> int:
    """Bytes of an element."""
    return 8 if dtype == "f64" else 4


def _bits(number: float) -> int:
    return struct.unpack("<q", struct.pack("<d", number))[0]


class ProductText:
    """A call of `gemm` as a driver takes it (see `driver.Driven`)."""

    context = CONTEXT

    def __init__(self, call: dict[str, object], target: Target) -> None:
        def number(name: str) -> int:
            return int(call[name])  # type: ignore[call-overload]

        self.target = target
        dtype = str(call["dtype"])
        lda, ldb = number("lda"), number("ldb")
        rs, ks = (lda, 1) if call["transa"] == "N" else (1, lda)
        bs, js = (ldb, 1) if call["transb"] == "N" else (1, ldb)
        lanes = _lanes(dtype, target)
        m, n, k = (number(x) for x in "mnk")
        s = Shape(m, n, k, rs, ks, bs, js, number("ldc"), number("batch"), _size(dtype))
        steps = [number(f"{x}_stride") for x in "abc"]
        alpha, beta = float(call["alpha"]), float(call["beta"])  # type: ignore[arg-type]
        plain = alpha == 1.0 and beta in (0.0, 1.0) and dtype not in IN_WORDS
        if not (plain and self._by_vector(s, steps, beta)):
            self._by_matrix(s, steps, alpha, beta, lanes, dtype in IN_WORDS and has_tiles(target))

    def _by_matrix(self, s: Shape, steps: list[int], alpha: float, beta: float, lanes: int, tiles: bool) -> None:
        p = tile_blocking(s, lanes) if tiles else blocking(s, lanes, self.target.registers)
        blocks = -(-s.n // p.nc)
        self.driver, self.operands = DRIVER, dict(zip("abc", "abc", strict=True))
        self.units, self.grain = p.tiles * blocks * s.batch, p.grain
        minus = (alpha, beta) == (-1.0, 1.0)
        scaled = not minus and (alpha != 1.0 or beta not in (0.0, 1.0))
        rest = s.n % (p.vectors * lanes)
        broken = rest not in (0, p.edge * lanes)
        partial = p.first * p.rows[0] + (p.tiles - p.first) * p.rows[1] != s.m
        kernels = [TILES if tiles else kernel_name(rows, vectors, minus)
                   for vectors in (p.vectors, p.edge) for rows in p.rows]
        self.functions = dict(zip(("kernel0", "kernel1", "edge0", "edge1"), kernels, strict=True))
        needed = {"pack_a": (p.pack_a or partial, PACK_ROWS), "merge": (broken or partial or scaled, MERGE),
                  "pack_b": (s.js == 1 and (p.pack_b or broken), PACK_COLUMNS), "transpose": (s.js != 1, TRANSPOSE)}
        self.functions |= {place: name for place, (wanted, name) in needed.items() if wanted}
        flags = map(int, (p.pack_a, p.pack_b, scaled, beta != 0.0))
        self.plan = [s.n, s.k, p.nc, p.kc, *p.rows, p.first, p.tiles, s.m, blocks, p.vectors * lanes, p.edge * lanes,
                     s.rs, s.ks, s.bs, s.js, s.cs, *steps, *flags, _bits(alpha), _bits(beta)]

    def _by_vector(self, s: Shape, steps: list[int], beta: float) -> bool:
        """Whether one operand is a vector, or a few contiguous ones; then the plan is for a driver for those."""
        if s.m <= s.n:  # y[j, i] = sum of M[j, p] x[p, i], where M is B
            outputs, line, step, operands = s.n, s.js, s.bs, "bac"
            lines, x, x_line, y, y_line = s.m, s.ks, s.rs, 1, s.cs
        else:           # y[i, j] = sum of M[i, p] x[p, j], where M is A
            outputs, line, step, operands = s.m, s.rs, s.ks, "abc"
            lines, x, x_line, y, y_line = s.n, s.bs, s.js, s.cs, 1
        if step == 1 and x == 1 and (lines == 1 or (lines * s.itemsize <= _FEW_BYTES and s.k >= _LONG)):
            driver, stride = DOT, line
        elif lines == 1 and line == 1 and y == 1:
            driver, stride = ALONG, step
        else:
            return False
        size, self.grain = vector_blocking(outputs, s.k, lines, s.batch, s.itemsize, driver == DOT)
        blocks = -(-outputs // size)
        self.driver, self.functions, self.units = driver, {}, blocks * s.batch
        self.operands = dict(zip("abc", operands, strict=True))
        by_name = dict(zip("abc", steps, strict=True))
        self.plan = [outputs, s.k, stride, x, y, size, blocks, *(by_name[o] for o in operands), int(beta != 0.0),
                     lines, x_line, y_line]
        return True
