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
from collections.abc import Callable
from functools import cache

from anima.compiler.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.gemm_blocking import Shape, blocking, vector_blocking
from anima.compiler.gemm_driver import CONTEXT, DRIVER, Driver
from anima.compiler.gemm_kernel import KERNEL, PACK, PTR, SCALARS, Writer, i64, write_kernel
from anima.compiler.gemm_vector import ALONG, DOT, write_along, write_dot
from anima.compiler.native import Target

TRANSPOSE = "gemm_transpose"
_SQUARE = 4  # lanes of the squares that are transposed: wider ones are no faster, and take longer to compile


def kernel_name(rows: int, vectors: int) -> str:
    """The register kernel for a tile of this size."""
    return f"gemm_{rows}x{vectors}"


@cache
def shared_text(name: str, dtype: str, target: Target) -> str:
    """The LLVM module of a driver or kernel, which has one public function of that name."""
    module = ModuleBuilder(target.triple, 8 * target.vector_bytes, target.features)
    scalar, lanes, masks = SCALARS[dtype], _lanes(dtype, target), target.has("avx")
    if name == DRIVER:
        Driver(module, dtype, lanes, masks).write()
    elif name == DOT:
        write_dot(module, scalar, lanes, masks)
    elif name == ALONG:
        write_along(module, scalar, lanes, masks)
    elif name == TRANSPOSE:
        Writer(module.function(name, PACK), scalar, min(lanes, _SQUARE), masks).pack_transposed()
    else:
        rows, vectors = map(int, name.removeprefix("gemm_").split("x"))
        write_kernel(module.function(name, KERNEL), Type(scalar, lanes), rows, vectors)
    return module.text()


def _lanes(dtype: str, target: Target) -> int:
    return target.vector_bytes // (4 if dtype == "f32" else 8)


def _bits(number: float) -> int:
    return struct.unpack("<q", struct.pack("<d", number))[0]


class Product:
    """A call of `gemm` as a driver takes it.

    `functions`: names of the driver and of what it calls, in the order of its context; `operands`: which of a, b, c
    stand in the context; `plan`: numbers; `units` of work, of which a thread takes `grain` (0: all in order).
    """

    def __init__(self, call: dict[str, object], target: Target) -> None:
        def number(name: str) -> int:
            return int(call[name])  # type: ignore[call-overload]

        dtype = str(call["dtype"])
        lda, ldb = number("lda"), number("ldb")
        rs, ks = (lda, 1) if call["transa"] == "N" else (1, lda)
        bs, js = (ldb, 1) if call["transb"] == "N" else (1, ldb)
        lanes = _lanes(dtype, target)
        m, n, k = (number(x) for x in "mnk")
        s = Shape(m, n, k, rs, ks, bs, js, number("ldc"), number("batch"), 4 if dtype == "f32" else 8)
        steps = [number(f"{x}_stride") for x in "abc"]
        alpha, beta = float(call["alpha"]), float(call["beta"])  # type: ignore[arg-type]
        plain = alpha == 1.0 and beta in (0.0, 1.0)
        if not (plain and self._by_vector(s, steps, beta)):
            self._by_matrix(s, steps, alpha, beta, lanes, target.registers)

    def _by_matrix(self, s: Shape, steps: list[int], alpha: float, beta: float, lanes: int, registers: int) -> None:
        p = blocking(s, lanes, registers)
        blocks = -(-s.n // p.nc)
        kernels = [kernel_name(rows, vectors) for vectors in (p.vectors, p.edge) for rows in p.rows]
        self.functions = [DRIVER, *kernels, *([TRANSPOSE] if s.js != 1 else [])]
        self.operands = "abc"
        self.units, self.grain = p.tiles * blocks * s.batch, p.grain
        scaled = alpha != 1.0 or beta not in (0.0, 1.0)
        flags = map(int, (p.pack_a, p.pack_b, scaled, beta != 0.0))
        self.plan = [s.n, s.k, p.nc, p.kc, *p.rows, p.first, p.tiles, s.m, blocks, p.vectors * lanes, p.edge * lanes,
                     s.rs, s.ks, s.bs, s.js, s.cs, *steps, *flags, _bits(alpha), _bits(beta)]

    def _by_vector(self, s: Shape, steps: list[int], beta: float) -> bool:
        """Whether one operand is a vector that a driver for vectors can take; then the plan is for that."""
        if 1 not in (s.m, s.n):
            return False
        if s.m == 1:  # y[j] = sum of B[p, j] x[p]
            outputs, line, step, x, y, self.operands = s.n, s.js, s.bs, s.ks, 1, "bac"
        else:         # y[i] = sum of A[i, p] x[p]
            outputs, line, step, x, y, self.operands = s.m, s.rs, s.ks, s.bs, s.cs, "abc"
        if step == 1 and x == 1:
            driver, stride = DOT, line
        elif line == 1 and y == 1:
            driver, stride = ALONG, step
        else:
            return False
        size, self.grain = vector_blocking(outputs, s.k, s.batch, s.itemsize, driver == DOT)
        blocks = -(-outputs // size)
        self.functions, self.units = [driver], blocks * s.batch
        by_name = dict(zip("abc", steps, strict=True))
        self.plan = [outputs, s.k, stride, x, y, size, blocks, *(by_name[o] for o in self.operands), int(beta != 0.0)]
        return True


def emit_product(b: Builder, product: Product, operands: dict[str, Value], pool: Value,
                 function: Callable[[str], Value]) -> None:
    """Write the call of a driver: `operands` are addresses of the first elements of a, b and c, `pool` that of the pool
    or null, `function` gives addresses of shared functions."""
    text = "_".join(map(str, product.plan)).replace("-", "m")
    constant = b.module.constant(f"gemm.plan.{text}", "i64", product.plan, 8)
    driver, *called = [function(name) for name in product.functions]
    context = b.alloca(PTR, len(CONTEXT))
    for number, value in enumerate([constant, *(operands[o] for o in product.operands), *called]):
        b.store(value, b.gep("ptr", context, number))
    b.call(driver, [pool, context, i64(product.units), i64(product.grain)])
