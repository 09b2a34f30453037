"""The register kernel of convolutions: terms in several stretches, each uniform.

    kernel(a, rs, ks, b, bs, c, cs, steps, count, add)     C[R, V*W] = the sum over steps of A[R, n] B[n, V*W]  (+ C)

A step is three numbers: where A and B begin, in elements from a and b, and n, how many terms it has. Otherwise it is
the kernel of matrix products, `products.kernel`.
"""

from __future__ import annotations

from anima.compiler.ir.assembly import Builder, Type, Value
from anima.compiler.products.kernel import I1, I64, PTR, Rows, Tile, loop, times

KERNEL = [("a", PTR), ("rs", I64), ("ks", I64), ("b", PTR), ("bs", I64), ("c", PTR), ("cs", I64), ("steps", PTR),
          ("count", I64), ("add", I1)]
STEP = 3  # words of a step


def write_kernel(b: Builder, vector: Type, rows: int, vectors: int) -> None:
    """Write the kernel for a tile of `rows` rows of `vectors` vectors; every step has at least one term."""
    tile = Tile(b, vector.element.text, vector, rows, vectors)
    a, rs, ks, first_row, bs, c, cs, steps, count, add = b.params
    rs, ks, bs, cs = (times(b, stride, tile.size) for stride in (rs, ks, bs, cs))
    a_rows = Rows(b, rs, rows)

    def stretch(number: Value, sums: list[Value]) -> list[Value]:
        entry = b.gep("i64", steps, b.op("mul", number, STEP))
        a_place, b_place, terms = (b.load(I64, b.gep("i64", entry, k)) for k in range(STEP))
        bases = a_rows.bases(b.gep(vector.element, a, a_place))
        return tile.add(a_rows, bases, ks, b.gep(vector.element, first_row, b_place), bs, terms, sums)

    tile.finish(c, cs, loop(b, 0, count, 1, stretch, tile.zeros), add)
