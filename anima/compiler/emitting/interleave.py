"""Elements of several vectors in turn: stores to neighbouring places, each in steps, become stores of whole vectors.

    y[3 i] = a;  y[3 i + 1] = b;  y[3 i + 2] = c       ->       y[3 i ...] = a0 b0 c0 a1 b1 c1 ...

A scatter writes one element after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anima.compiler.ir.assembly import Builder, Value
from anima.compiler.ir.loops import Affine, Const, NamedValue, Stmt, Store

LONGEST_ROW = 32  # bytes of vectors that are transposed: longer ones are stored slowly


def interleaved(b: Builder, vectors: Sequence[Value]) -> list[Value]:
    """The elements of vectors, the first ones first, as vectors of the same width."""
    count, type = len(vectors), vectors[0].type
    if count == 1:
        return list(vectors)
    few, parts = 128 // type.bits, type.width * type.bits // 128
    if (parts in (1, 2) or (parts == 4 and count == type.width)) and count % few == 0 and count % parts == 0:
        return _by_parts(b, vectors, few, parts)
    width = type.width
    if count % 2 == 0:
        pairs = zip(interleaved(b, vectors[::2]), interleaved(b, vectors[1::2]), strict=True)
        return [b.permute(x, y, [lane // 2 + width * (lane % 2) for lane in range(start, start + width)])
                for x, y in pairs for start in (0, width)]
    found = []
    for start in range(0, count * width, width):
        places = [divmod(start + lane, count) for lane in range(width)]
        whole = vectors[0]
        for number, vector in enumerate(vectors[1:], 1):
            known = [row if number == 1 else lane for lane, (row, _) in enumerate(places)]
            whole = b.permute(whole, vector, [known[lane] if which < number else width + row if which == number else -1
                                              for lane, (row, which) in enumerate(places)])
        found.append(whole)
    return found


def _by_parts(b: Builder, vectors: Sequence[Value], few: int, parts: int) -> list[Value]:
    """`interleaved` within parts of 16 bytes, of `few` lanes, which then are exchanged: machines have instructions for
    that, and what needs others takes LLVM up to ten times as long, but for few vectors of 64 bytes."""
    columns = [_interleaved_within(b, vectors[start:start + few], few) for start in range(0, len(vectors), few)]
    in_part = [column[lane] for lane in range(few) for column in columns]
    exchanged = [_exchanged(b, in_part[start:start + parts], few) for start in range(0, len(in_part), parts)]
    return [vector for part in zip(*exchanged, strict=True) for vector in part]


def _exchanged(b: Builder, rows: Sequence[Value], few: int) -> list[Value]:
    """One, two or four vectors of as many parts, of `few` lanes each: the first parts of all, the second ones, ..."""
    def chosen(x: Value, y: Value, odd: int) -> Value:
        return b.shuffle(x, y, [part * few + lane for part in range(odd, 2 * len(rows), 2) for lane in range(few)])

    if len(rows) == 1:
        return list(rows)
    if len(rows) == 2:
        return [chosen(rows[0], rows[1], odd) for odd in (0, 1)]
    first, second = ([chosen(x, y, odd) for odd in (0, 1)] for x, y in (rows[:2], rows[2:]))
    return [chosen(first[number % 2], second[number % 2], number // 2) for number in range(4)]


def _interleaved_within(b: Builder, vectors: Sequence[Value], few: int) -> list[Value]:
    """The first elements of each `few` lanes of vectors in turn, then the second ones, ..."""
    if len(vectors) == 1:
        return list(vectors)
    width = vectors[0].type.width
    pairs = zip(_interleaved_within(b, vectors[::2], few), _interleaved_within(b, vectors[1::2], few), strict=True)
    return [b.shuffle(x, y, [start + half + lane // 2 + width * (lane % 2) for start in range(0, width, few)
                             for lane in range(few)]) for x, y in pairs for half in (0, few // 2)]


def runs(stmts: Sequence[Stmt]) -> Iterator[Sequence[Stmt]]:
    """Statements in order, those together that store what has a name to places next to each other."""
    start = 0
    for end in range(1, len(stmts) + 1):
        if end == len(stmts) or not _follows(stmts[end - 1], stmts[end]):
            yield stmts[start:end]
            start = end


def _follows(a: Stmt, c: Stmt) -> bool:
    if not isinstance(a, Store) or not isinstance(c, Store) or a.buffer != c.buffer or a.op or c.op:
        return False
    i, j = a.index, c.index
    return (isinstance(i, Affine) and isinstance(j, Affine) and i.values == j.values
            and i.coefficients == j.coefficients and j.const == i.const + 1
            and isinstance(a.value, (NamedValue, Const)) and isinstance(c.value, (NamedValue, Const)))
