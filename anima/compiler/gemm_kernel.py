"""Register kernels of the matrix product.

    kernel(a, rs, ks, b, bs, c, cs, k, add):  C[rows, vectors*W] = (C if add) + A[rows, k] B[k, vectors*W]

A kernel keeps its tile of C in registers over the whole of k; each step loads one row of B in `vectors`
vectors and broadcasts one element of A for each row of C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anima.compiler.assembly import Builder, Type, Value

I64, PTR = Type("i64"), Type("ptr")
_GROUP = 7  # rows that share one address


def i64(number: int) -> Value:
    return Value(str(number), I64)


def loop(b: Builder, stop: Value, carried: Sequence[Value], body: Callable[[Value, list[Value]], Sequence[Value]],
         at_least_once: bool = False) -> list[Value]:
    """`for i in 0 .. stop`, with values that the body makes anew; their last values."""
    before, head, done = b.block, b.label("loop"), b.label("done")
    if at_least_once:
        b.branch(head)
    else:
        b.branch_if(b.cmp("sgt", stop, 0), head, done)
    b.place(head)
    i = b.phi(I64, (0, before))
    phis = [b.phi(v.type, (v, before)) for v in carried]
    results = list(body(i, list(phis)))
    following = b.op("add", i, 1, "nuw nsw")
    i.add(following, b.block)
    for phi, value in zip(phis, results, strict=True):
        phi.add(value, b.block)
    latch = b.block
    b.branch_if(b.cmp("slt", following, stop), head, done)
    b.place(done)
    if at_least_once:
        return results
    return [b.phi(v.type, (v, before), (r, latch)) for v, r in zip(carried, results, strict=True)]


def row_offsets(b: Builder, stride: Value, rows: int, three: Value, five: Value) -> list[Value | None]:
    def shl(v, n):
        return b.op("shl", v, i64(n))
    every = [lambda: None, lambda: stride, lambda: shl(stride, 1), lambda: three, lambda: shl(stride, 2),
             lambda: five, lambda: shl(three, 1)]
    return [f() for f in every[:rows]]


def write_kernel(b: Builder, vector: Type, rows: int, vectors: int, mode: str = "offsets") -> None:
    size = vector.bits // 8
    width = vector.width
    a, rs, ks, bp, bs, c, cs, k, add = b.params
    rs, ks, bs, cs = (b.op("mul", v, i64(size)) for v in (rs, ks, bs, cs))
    three, five = b.op("mul", rs, i64(3)), b.op("mul", rs, i64(5))
    groups = -(-rows // _GROUP)
    firsts = [a]
    for g in range(1, groups):
        firsts.append(b.gep("i8", a, b.op("mul", rs, i64(g * _GROUP))))
    zero = b.const(vector, 0.0)

    def step(i: Value, carried: list[Value]) -> list[Value]:
        pointers, row, sums = carried[:groups], carried[groups], carried[groups + 1:]
        lanes = [b.load(vector, b.gep("i8", row, v * width * size) if v else row) for v in range(vectors)]
        out = []
        for r in range(rows):
            g, n = divmod(r, _GROUP)
            off = row_offsets(b, rs, n + 1, three, five)[n]
            p = pointers[g] if off is None else b.gep("i8", pointers[g], off)
            x = b.splat(b.load(vector.element, p), width)
            for v in range(vectors):
                out.append(b.intrinsic("fmuladd", x, lanes[v], sums[r * vectors + v]))
        return [*(b.gep("i8", p, ks) for p in pointers), b.gep("i8", row, bs), *out]

    sums = loop(b, k, [*firsts, bp, *[zero] * (rows * vectors)], step, at_least_once=True)[groups + 1:]
    fresh, more = b.label("set"), b.label("add")
    b.branch_if(b.cmp("eq", add, 0), fresh, more)
    for label in (fresh, more):
        b.place(label)
        row = c
        for r in range(rows):
            for v in range(vectors):
                at = b.gep("i8", row, v * width * size) if v else row
                total = sums[r * vectors + v]
                if label == more:
                    total = b.op("fadd", b.load(vector, at), total)
                b.store(total, at)
            if r + 1 < rows:
                row = b.gep("i8", row, cs)
        b.ret()
KERNEL_PARAMS = [("a", PTR), ("rs", I64), ("ks", I64), ("b", PTR), ("bs", I64), ("c", PTR), ("cs", I64), ("k", I64), ("add", I64)]
