"""The register kernel of convolutions: terms in several stretches, each uniform.

    kernel(a, rs, ks, b, bs, c, cs, steps, count, add)     C[R, V*W] = the sum over steps of A[R, n] B[n, V*W]  (+ C)

A step is three numbers: where A and B begin, in elements from a and b, and n, how many terms it has. Otherwise it is
the kernel of matrix products, `products.kernel`.
"""

from __future__ import annotations

from anima.compiler.ir.assembly import Builder, Type, Value
from anima.compiler.products.kernel import I1, I64, PTR, Rows, loop, times, when

KERNEL = [("a", PTR), ("rs", I64), ("ks", I64), ("b", PTR), ("bs", I64), ("c", PTR), ("cs", I64), ("steps", PTR),
          ("count", I64), ("add", I1)]
STEP = 3  # words of a step


def write_kernel(b: Builder, vector: Type, rows: int, vectors: int) -> None:
    """Write the kernel for a tile of `rows` rows of `vectors` vectors; every step has at least one term."""
    size, width = vector.bits // 8, vector.width
    a, rs, ks, first_row, bs, c, cs, steps, count, add = b.params
    rs, ks, bs, cs = (times(b, stride, size) for stride in (rs, ks, bs, cs))
    a_rows = Rows(b, rs, rows)

    def stretch(number: Value, sums: list[Value]) -> list[Value]:
        entry = b.gep("i64", steps, b.op("mul", number, STEP))
        a_place, b_place, terms = (b.load(I64, b.gep("i64", entry, k)) for k in range(STEP))
        bases = a_rows.bases(b.gep(vector.element, a, a_place))

        def step(_: Value, carried: list[Value]) -> list[Value]:
            pointers, row, sums = carried[:len(bases)], carried[len(bases)], carried[len(bases) + 1:]
            lanes = [b.load(vector, b.gep("i8", row, v * width * size) if v else row) for v in range(vectors)]
            for r in range(rows):
                x = b.splat(b.load(vector.element, a_rows.at(pointers, r)), width)
                for v in range(vectors):
                    sums[r * vectors + v] = b.intrinsic("fmuladd", x, lanes[v], sums[r * vectors + v])
            return [*(b.gep("i8", p, ks) for p in pointers), b.gep("i8", row, bs), *sums]

        return loop(b, 0, terms, 1, step, [*bases, b.gep(vector.element, first_row, b_place), *sums],
                    sure=True)[len(bases) + 1:]

    sums = loop(b, 0, count, 1, stretch, [b.const(vector, 0.0)] * (rows * vectors))

    def finish(more: bool) -> None:
        c_rows = Rows(b, cs, rows)
        starts = c_rows.bases(c)
        for r in range(rows):
            row = c_rows.at(starts, r)
            for v in range(vectors):
                at, total = b.gep("i8", row, v * width * size) if v else row, sums[r * vectors + v]
                b.store(b.op("fadd", b.load(vector, at), total) if more else total, at)

    when(b, add, lambda: finish(True), lambda: finish(False))
    b.ret()
