"""How reductions run: in rows, in columns, in blocks.

    each j < n:                          local s.row: f32[n]
      var s: f32 = 0.0                   each j < n: s.row[j] = 0.0
      reduce i < m: s += x[i*n + j]  ->  for i < m:
      y[j] = s                             each j < n: s.row[j] = s.row[j] + x[i*n + j]
                                         each j < n: y[j] = s.row[j]

rows      the last dimension is reduced: the totals of a row are in registers, those of a few rows if these read
          something in common, as a vector that a matrix is multiplied by; long sums have parts, for accuracy
columns   the last dimension is kept: the totals of many columns are a row, so that memory is read in order; those of
          a few are side by side in registers, so that there are lanes enough
blocks    few results from many elements: blocks of the outermost reduced loop give partial results in parallel,
          and a second kernel adds these. Rows and columns alike.

What is decided depends on shapes and the target, never on the number of threads.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from anima.compiler.ir.costs import cost, extent_of
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Assign,
    Call,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Op,
    Stmt,
    Store,
    While,
    affine,
    names_in,
    statements,
    varying_names,
    walk,
    with_blocks,
)
from anima.compiler.machine.target import Target
from anima.compiler.scheduling.tile import even_block, split
from anima.compiler.storage.accesses import LARGEST
from anima.compiler.storage.buffers import rename
from anima.core.avals import Shape
from anima.util import replace

UNROLLED = 8             # rows up to this length are written out term by term
RUN_LIMIT = 4096         # a longer loop is summed in blocks, for accuracy
_BLOCK_LIMIT = 4 * RUN_LIMIT  # and one within a block, which is a part already
MOST_BLOCKS = 4096
_ABREAST = 4             # iterations whose terms are added at once to totals in memory
_LIGHT = 8.0             # nanoseconds of an iteration, up to which they are
_SHARED = 3.0            # nanoseconds that values for all columns take, from which they are worth lanes
_ROWS_ABREAST = 4        # rows whose sums are in registers at once
_LONG = 16               # iterations that are worth vectors across what is reduced, if columns are few
_ENOUGH = 16             # rows, or blocks of columns, that need no blocks
_ROWS = 32               # of a block of columns, at least: partial results must stay few beside the elements


def row_limit(target: Target) -> int:
    """The longest row that one iteration reduces, and the most elements for one thread."""
    return target.second_cache // 4


def columns(target: Target) -> int:
    """The most totals in a row."""
    return target.first_cache // 32


def form(shape: Shape, axes: Sequence[int], target: Target) -> str:
    """How a reduction is done: "unrolled" (an expression of its elements), "rows", "columns" or "blocks"."""
    row = math.prod(shape[a] for a in axes)
    outer = math.prod(n for d, n in enumerate(shape) if d not in axes)
    if row <= UNROLLED:
        return "unrolled"
    if _keeps_last(shape, axes):
        return "columns"
    limit = row_limit(target)
    return "rows" if row * outer <= limit or (outer >= UNROLLED and row <= limit) else "blocks"


def _keeps_last(shape: Shape, axes: Sequence[int]) -> bool:
    for d in range(len(shape) - 1, -1, -1):
        if shape[d] != 1:
            return d not in axes
    return True


def arranged(kernel: Kernel, target: Target, temp: Callable[[str, int], str]) -> list[tuple[str, Sequence[Stmt]]]:
    """The name and the body of a plain kernel as it runs, or of the two that it becomes; `temp` makes buffers."""
    name, body = kernel.name, kernel.body
    if kernel.reduces is None:
        return [(name, body)]
    outer, block, inner = _nest(body)
    if form(*kernel.reduces, target) == "rows":
        if outer and inner:
            body = _inside(body, len(outer) - 1, _dots_abreast)
        return [(name, _long_sums(body, {}, RUN_LIMIT))]
    if not inner:
        return [(name, body)]
    across, in_columns = _keeps_last(*kernel.reduces), partial(_in_columns, target=target)
    size = _block_size(outer, inner, across, target)
    if size is None:
        if not across:
            return [(name, _long_sums(body, {}, _BLOCK_LIMIT))]
        body = _inside(body, len(outer) - 1, in_columns)
        return [(name, _inside(body, len(outer) - 2, _rows_abreast) if len(outer) > 1 else body)]
    first, second = _in_blocks(body, outer, block, inner, size, temp)
    first = _inside(first, len(outer), in_columns) if across else _long_sums(first, {}, _BLOCK_LIMIT)
    if outer:
        second = _inside(second, len(outer) - 1, in_columns)
    return [(f"{name}_blocks", first), (name, second)]


def _nest(stmts: Sequence[Stmt]) -> tuple[list[For], Sequence[Stmt], list[For]]:
    """The loops over what is kept, the block in them, and its loops over what is reduced: none for several sweeps."""
    outer: list[For] = []
    while isinstance(stmts[-1], For) and stmts[-1].kind == "each":
        outer.append(stmts[-1])
        stmts = stmts[-1].body
    block = stmts
    inner: list[For] = []
    while len(loops := [s for s in stmts if isinstance(s, For)]) == 1:
        inner += loops
        stmts = loops[0].body
    return outer, block, inner


def _inside(stmts: Sequence[Stmt], depth: int, change: Callable[[Sequence[Stmt]], Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """Statements with what stands in the last `depth` loops of them changed."""
    if not depth:
        return tuple(change(stmts))
    *before, loop = stmts
    assert isinstance(loop, For)
    return (*before, with_blocks(loop, [_inside(loop.body, depth - 1, change)]))


def _extent(loops: Sequence[For]) -> int:
    return math.prod(int(loop.extent.value) for loop in loops)  # type: ignore[union-attr, misc]


# ---------------------------------------------------------------- rows


def _long_sums(stmts: Sequence[Stmt], totals: dict[str, Mutable], limit: int) -> tuple[Stmt, ...]:
    """Statements in which long sums have parts; `totals` are the variables around them."""
    totals = totals | {s.name: s for s in stmts if isinstance(s, Mutable)}
    return tuple(_long_sum(s, totals, limit) if isinstance(s, For) else s for s in stmts)


def _long_sum(loop: For, totals: dict[str, Mutable], limit: int) -> Stmt:
    added = [s for s in loop.body if isinstance(s, Accumulate)]
    if not added:
        return with_blocks(loop, [_long_sums(loop.body, totals, limit)])
    if not isinstance(loop.extent, Const) or _extent([loop]) <= limit or not any(s.op == "add" for s in added):
        return loop  # (the last of several blocks may be shorter)
    blocks, block = split(loop, even_block(_extent([loop]), RUN_LIMIT // 2))
    parts = {s.name: replace(totals[s.name], name=f"{s.name}.part") for s in added}
    ends = [Accumulate(s.name, s.op, NamedValue(parts[s.name].name, s.value.dtype)) for s in added]
    body = (*parts.values(), *rename([block], {}, {n: v.name for n, v in parts.items()}), *ends)
    return with_blocks(blocks, [body])


# ---------------------------------------------------------------- columns


def _in_columns(stmts: Sequence[Stmt], target: Target) -> Sequence[Stmt]:
    """Statements whose last loop, over columns, runs inside of those in it."""
    *before, loop = stmts
    assert isinstance(loop, For)
    if _extent([loop]) <= UNROLLED and _pays_abreast(loop):
        return (*before, *_long_sums(_abreast(loop.body, loop.index, _extent([loop]), {loop.index}), {}, RUN_LIMIT))
    size = even_block(_extent([loop]), columns(target))
    if size == _extent([loop]):
        return (*before, *_Columns(loop, size).stmts())
    blocks, block = split(loop, size)
    return (*before, with_blocks(blocks, [_Columns(block, size).stmts()]))


def _pays_abreast(loop: For) -> bool:
    """Whether vectors run better along what is reduced in a loop over few columns: something is computed for all of
    them at once, or it is long enough, and they would leave lanes empty."""
    outer, _, inner = _nest([loop])
    if not inner or inner[-1].kind != "reduce":
        return False
    count, varying = extent_of(inner[-1].extent), varying_names(outer[0])
    shared = sum(cost(s) for s in statements(*inner) if isinstance(s, Let) and s.name not in varying)
    return (count > UNROLLED and shared > _SHARED) or (count >= _LONG and _extent([loop]) < UNROLLED)


def _abreast(stmts: Sequence[Stmt], index: str, size: int, varying: set[str]) -> tuple[Stmt, ...]:
    """The statements of a loop over a few columns for all of them at once, each with totals of its own: the loops over
    what is reduced can then run in vectors. `varying` are the names that differ between columns."""
    out: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, For):
            out.append(with_blocks(stmt, [_abreast(stmt.body, index, size, varying)]))
        elif isinstance(stmt, Let) and varying.isdisjoint(names_in(stmt.value)):
            out.append(stmt)
        else:
            if isinstance(stmt, (Let, Mutable)):
                varying.add(stmt.name)
            for k in range(size):
                names = {name: f"{name}.{k}" for name in varying}
                out += rename([stmt], {}, names, {index: Const(k, INDEX)})
    return tuple(out)


def _rows_abreast(stmts: Sequence[Stmt]) -> Sequence[Stmt]:
    """Statements whose last loop is around sums of rows that fit registers: of a few rows at once, which do not wait
    for each other, and what they read alike is read once."""
    *before, loop = stmts
    assert isinstance(loop, For)
    sums = [s for s in loop.body if isinstance(s, For) and s.kind == "reduce"]
    rows = [s for s in loop.body if isinstance(s, Local)]
    count = _extent([loop]) if isinstance(loop.extent, Const) else 0
    if (len(sums) != 1 or len(rows) != 1 or not 2 * _ROWS_ABREAST <= count <= LARGEST
            or not UNROLLED < extent_of(sums[0].extent) <= LARGEST
            or sum(cost(s) for s in statements(*sums[0].body) if isinstance(s, Let)) > _LIGHT
            or any(isinstance(s, (If, While, Call)) for s in statements(*loop.body))):
        return stmts
    return (*before, *few_at_once(loop, _ROWS_ABREAST if rows[0].size <= LARGEST // 2 else _ROWS_ABREAST // 2))


def _dots_abreast(stmts: Sequence[Stmt]) -> Sequence[Stmt]:
    """Statements whose last loop is around one sum along rows that all read something alike, as the vector of a product
    with a matrix: of a few rows at once. Every row is one of as many, and so has the same bits as the others."""
    *before, loop = stmts
    assert isinstance(loop, For)
    count = _extent([loop]) if isinstance(loop.extent, Const) else 0
    size = next((n for n in range(_ROWS_ABREAST, 2, -1) if count % n == 0), 0)
    *_, terms = [s for s in statements(*loop.body) if isinstance(s, For)]
    if (not size or count < 2 * _ROWS_ABREAST or extent_of(terms.extent) <= _LONG
            or not all(type(s) in (For, Let, Mutable, Accumulate, Store) for s in statements(*loop.body))
            or sum(isinstance(s, Accumulate) for s in terms.body) != 1
            or sum(cost(s) for s in terms.body if isinstance(s, Let)) > _LIGHT):
        return stmts
    varying = varying_names(loop)
    if not any(isinstance(n, Load) and varying.isdisjoint(names_in(n, True)) for n in walk(*terms.body)):
        return stmts
    return (*before, *few_at_once(loop, size))


def few_at_once(loop: For, size: int) -> list[Stmt]:
    """A loop by so many iterations at once, with the loops in them in common, and one for those that are left over."""
    out: list[Stmt] = []
    blocks, rest = divmod(_extent([loop]), size)
    for part, first, number, together in (("block", 0, blocks, size), ("rest", size * blocks, 1, rest)):
        index = NamedValue(f"{loop.index}.{part}", INDEX)
        each = [Let(f"{loop.index}.{part}{k}", affine(first + k, (index, size))) for k in range(together)]
        if each:
            body = _side_by_side(loop.body, together, part, {loop.index}, {})
            out.append(For(index.name, Const(number, INDEX), (*each, *body), loop.kind))
    return out


def _side_by_side(stmts: Sequence[Stmt], count: int, part: str, varying: set[str], alike: dict[str, str],
                  ) -> tuple[Stmt, ...]:
    """Statements for so many iterations, with the loops in them in common, and values that are `alike` once; `varying`
    are the names, and the buffers, that each has of its own."""
    out: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, For):
            alike[stmt.index] = f"{stmt.index}.{part}"
            out.append(replace(stmt, index=alike[stmt.index],
                               body=_side_by_side(stmt.body, count, part, varying, alike)))
            continue
        own = {n.buffer for n in walk(stmt) if isinstance(n, Load)} | names_in(stmt)
        once = isinstance(stmt, Let) and varying.isdisjoint(own)
        if isinstance(stmt, Let) and once:
            alike[stmt.name] = f"{stmt.name}.{part}"
        elif isinstance(stmt, (Let, Mutable, Local)):
            varying.add(stmt.buffer if isinstance(stmt, Local) else stmt.name)
        for k in range(1 if once else count):
            names = {name: f"{name}.{part}{k}" for name in varying}
            out += rename([stmt], names, {**alike, **names})
    return tuple(out)


class _Columns:
    """The statements of a loop over columns, put inside of the loops among them. Totals become rows; other values are
    computed again where they are used."""

    def __init__(self, lanes: For, size: int) -> None:
        self.lanes, self.size = lanes, size
        self.rows = {s.name: Local(f"{s.name}.row", s.dtype, size) for s in lanes.body if isinstance(s, Mutable)}
        self.varying = {lanes.index, *self.rows}
        self.count = 0

    def stmts(self) -> tuple[Stmt, ...]:
        return (*self.rows.values(), *self.block(self.lanes.body, ()))

    def terms(self, loop: For) -> tuple[For, ...]:
        """A loop over what is reduced by several iterations at once, so that totals in memory are read and written once
        for all of them; and a loop for those that are left over."""
        count = _extent([loop]) if isinstance(loop.extent, Const) else None
        if (count is None or count < 2 * _ABREAST or self.size <= LARGEST
                or not all(type(s) is Let or (type(s) is Accumulate and s.op == "add") for s in loop.body)
                or sum(map(cost, loop.body)) > _LIGHT):
            return (loop,)
        out: list[For] = []
        own = [s.name for s in loop.body if isinstance(s, Let)]
        rest = count % _ABREAST
        for part, first, number, size in (("block", 0, count // _ABREAST, _ABREAST), ("rest", count - rest, rest, 1)):
            index = NamedValue(f"{loop.index}.{part}", INDEX)
            body: list[Stmt] = []
            for k in range(size if number else 0):
                names = {name: f"{name}.{part}{k}" for name in (loop.index, *own)}
                body += (Let(names[loop.index], affine(first + k, (index, size))), *rename(loop.body, {}, names))
            out.append(For(index.name, Const(number, INDEX), tuple(body), loop.kind))
        return tuple(part for part in out if part.body)

    def block(self, stmts: Sequence[Stmt], before: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """The statements of a block, after the values `before`, in loops over columns of their own."""
        out: list[Stmt] = []
        own: list[Stmt] = []
        known = list(before)
        for stmt in stmts:
            if isinstance(stmt, For):
                out += self.columns(known, own)
                known += [s for s in own if isinstance(s, Let)]
                own = []
                out += (with_blocks(loop, [self.block(loop.body, known)]) for loop in self.terms(stmt))
            elif isinstance(stmt, Let) and self.varying.isdisjoint(names_in(stmt.value)):
                out.append(stmt)
            else:
                own.append(stmt)
                if isinstance(stmt, Let):
                    self.varying.add(stmt.name)
        return (*out, *self.columns(known, own))

    def columns(self, known: Sequence[Stmt], own: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """The loop over columns for a block's `own` statements."""
        if all(isinstance(s, Let) for s in own):
            return ()
        index, used = NamedValue(self.lanes.index, INDEX), set[str]()
        body: list[Stmt] = []
        for stmt in reversed((*known, *_in_turn(own))):
            if isinstance(stmt, Let) and stmt.name not in used:
                continue
            if isinstance(stmt, (Mutable, Assign, Accumulate)):
                assert stmt.name not in used, f"'{stmt.name}' is read where it is set"
            if isinstance(stmt, Accumulate):
                used.add(stmt.name)
            used |= names_in(stmt)
            body.append(self.on_rows(stmt, index))
        body += (Let(v, Load(row.buffer, index, row.dtype)) for v, row in self.rows.items() if v in used)
        self.count += 1
        names = {name: f"{name}.{self.count}" for name in (index.name, *(s.name for s in body if isinstance(s, Let)))}
        body.reverse()
        return (For(names[index.name], self.lanes.extent, rename(body, {}, names), "each"),)

    def on_rows(self, stmt: Stmt, index: Expr) -> Stmt:
        match stmt:
            case Mutable(name=name, init=value) | Assign(name=name, value=value):
                return Store(self.rows[name].buffer, index, value)
            case Accumulate(name=name, op=op, value=value):
                total = Op(op, (NamedValue(name, value.dtype), value), value.dtype)
                return Store(self.rows[name].buffer, index, total)
        return stmt


def _in_turn(stmts: Sequence[Stmt]) -> list[Stmt]:
    """Statements in which what is added to a total several times is added to a value, but for the last time."""
    left = Counter(s.name for s in stmts if isinstance(s, Accumulate))
    totals: dict[str, str] = {}
    out: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Accumulate) and (left[stmt.name] > 1 or stmt.name in totals):
            name, dtype = stmt.name, stmt.value.dtype
            left[name] -= 1
            value = Op(stmt.op, (NamedValue(totals.get(name, name), dtype), stmt.value), dtype)
            totals[name] = f"{name}.{left[name]}"
            out.append(Let(totals[name], value) if left[name] else Assign(name, value))
        else:
            out.append(stmt)
    return out


def _needed(stmts: Sequence[Stmt], used: set[str]) -> tuple[Stmt, ...]:
    """Statements without the values that none of them uses, nor what comes after them; puts in `used` what they do."""
    out: list[Stmt] = []
    for stmt in reversed(stmts):
        if isinstance(stmt, Let) and stmt.name not in used:
            continue
        if isinstance(stmt, For):
            stmt = with_blocks(stmt, [_needed(stmt.body, used)])
        else:
            used |= names_in(stmt)
        out.append(stmt)
    return tuple(reversed(out))


# ---------------------------------------------------------------- blocks


def _block_size(outer: Sequence[For], inner: Sequence[For], across: bool, target: Target) -> int | None:
    """Iterations of the first reduced loop in a block; None to do without blocks."""
    kept, first = _extent(outer), _extent(inner[:1])
    last = _extent(outer[-1:]) if across else 1  # columns
    tasks = kept // last * -(-last // columns(target))
    if inner[0].kind != "reduce" or kept * _extent(inner) <= row_limit(target) or tasks >= _ENOUGH or first < 2:
        return None
    least = -(-target.first_cache // 4 // (last * _extent(inner[1:])))
    size = max(least, -(-first // MOST_BLOCKS), min(first, _ROWS if across else 1))
    return None if size >= first else even_block(first, size)


def _in_blocks(stmts: Sequence[Stmt], outer: Sequence[For], block: Sequence[Stmt], inner: Sequence[For], size: int,
               temp: Callable[[str, int], str]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """The plain nest with which each block stores its totals, and that which adds these."""
    number, part = split(inner[0], size)
    ops = {s.name: s.op for s in statements(*inner) if isinstance(s, Accumulate)}
    at = block.index(inner[0])
    head = sorted(block[:at], key=lambda s: isinstance(s, Mutable))
    loop = (part,) if size > 1 else (Let(inner[0].index, NamedValue(number.index, INDEX)), *inner[0].body)
    stores: list[Stmt] = []
    sums: list[Stmt] = []  # one by one: in what order a loop adds up depends on what else it does
    for var in head:
        if isinstance(var, Mutable):
            buffer, total = temp(var.dtype, _extent((number, *outer))), NamedValue(var.name, var.dtype)
            stores.append(Store(buffer, _place((number, *outer)), total))
            again, term = For(f"{var.name}.block", number.extent, ()), NamedValue(f"{var.name}.part", var.dtype)
            value = Load(buffer, _place((again, *outer)), var.dtype)
            add = Accumulate(var.name, ops[var.name], term)
            sums.append(For(again.index, again.extent, (Let(term.name, value), add), "reduce"))
    body = _inside(stmts, len(outer), lambda _: (*head, *loop, *stores))
    before = tuple(itertools.takewhile(lambda s: isinstance(s, Let), body))
    first = (*before, For(number.index, number.extent, body[len(before):], "each"))
    second = _inside(stmts, len(outer), lambda _: (*head, *sums, *block[at + 1:]))
    return first, _needed(second, set())


def _place(loops: Sequence[For]) -> Expr:
    """The number of an iteration, the last loop's counted fastest."""
    total: Expr = NamedValue(loops[0].index, INDEX)
    for loop in loops[1:]:
        total = affine(0, (total, _extent((loop,))), (NamedValue(loop.index, INDEX), 1))
    return total
