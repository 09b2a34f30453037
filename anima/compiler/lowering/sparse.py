"""Sparse products: a loop over rows, and in it one over the entries of the row.

    parallel i < rows:
      var s: f32 = 0.0
      vector e < pointers[i+1] - pointers[i]:  s += data[pointers[i] + e] * x[columns[pointers[i] + e]]
      out[i] = s

Row numbers and pointers are clamped where they are read, so that no list of them reads or writes outside of a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from anima.compiler.ir.index_math import TRUE, Index
from anima.compiler.ir.loops import INDEX, Const, Expr, Load, NamedValue, Op, Store, affine
from anima.compiler.lowering.array import Scope, constant, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.scalars.small import HALVES
from anima.core.jaxpr import Atom, Eqn

_BLOCK = 1024     # rows whose entries one thread looks for
_LEAST_BLOCK = 64  # as few rows, where there are no more
_ENOUGH = 16      # blocks that are enough for any number of threads
_FEW = 2048       # entries of a block, on average, that are worth looking for its first and last
_UNROLLED = 4     # columns of a product that are summed one by one: fewer than fill a vector
_LONG_ROW = 32    # entries, on average, from which rows are summed in vectors
_RUNS = 8         # entries of a row, on average, from which its sums stay in registers
_SPARE = 2        # entries for each row of a part, at least: parts must be few beside the entries
_WIDE_SPARE = 32  # of products with many columns
_PARTS = 8        # of the entries, at most; a power of two, as numbers of threads are
_ZERO = Const(0, INDEX)


def _of_batch(scope: Scope, atom: Atom, b: Index) -> Index:
    return b if atom.aval.shape[0] > 1 else scope.ix.zero


def _less(a: Expr, b: Expr) -> Expr:
    return Op("lt", (a, b), "bool")


@call("row_pointers", inline="all")
def _row_pointers(builder: ProgramBuilder, eqn: Eqn) -> None:
    """In blocks of rows: where the block begins and ends, by bisection; the last entry of each row; what is before."""
    (numbers,), (out,) = eqn.invars, eqn.outvars
    (batch, entries), rows = numbers.aval.shape, eqn.params["rows"]
    if not out.aval.size:
        return
    target = builder.result(out)
    scope = builder.scope()
    with ExitStack() as stack:
        b = stack.enter_context(scope.loop(batch, "each"))
        block = stack.enter_context(scope.loop(max(-(-rows // _BLOCK), 1), "each"))
        base = scope.ix.scale(b, rows + 1).expr()
        first, last, row_of = _row_block(scope, numbers, b, scope.ix.scale(block, _BLOCK), _BLOCK, rows)
        start, end = (_bisect(scope, row, entries, row_of) for row in (first, last))
        with scope.when(Op("eq", (first, _ZERO), "bool")):
            scope.emit(Store(target, base, Op("cast", (start,), "i32")))
        count = scope.let(affine(0, (last, 1), (first, -1)), scope.depth, "n")
        start32 = scope.let(Op("cast", (start,), "i32"), scope.depth)
        with scope.serial(count) as r:
            scope.emit(Store(target, affine(1, (base, 1), (first, 1), (r, 1)), start32))
        with scope.serial(scope.let(affine(0, (end, 1), (start, -1)), scope.depth, "n")) as e:
            entry = scope.let(affine(0, (start, 1), (e, 1)), scope.depth, "n")
            low = scope.let(Op("max", (row_of(entry), first), INDEX), scope.depth, "n")
            row = scope.let(Op("min", (low, affine(-1, (last, 1))), INDEX), scope.depth, "n")
            behind = Op("cast", (affine(1, (entry, 1)),), "i32")
            scope.emit(Store(target, affine(1, (base, 1), (row, 1)), behind))
        most = scope.var(start32)
        with scope.serial(count) as r:
            place = scope.let(affine(1, (base, 1), (first, 1), (r, 1)), scope.depth, "n")
            scope.assign(most, Op("max", (most, scope.let(Load(target, place, "i32"), scope.depth)), "i32"))
            scope.emit(Store(target, place, most))
    builder.kernel("row_pointers", scope, eqn.source)


def _row_block(scope: Scope, numbers: Atom, b: Index, start: Index, size: int,
               rows: int) -> tuple[Expr, Expr, Callable[[Expr], Expr]]:
    """The first row of a block and the one behind it, and a function from entries to their rows."""
    first = scope.let(start.expr(), scope.depth, "n")
    last = scope.let(Op("min", (affine(size, (first, 1)), Const(rows, INDEX)), INDEX), scope.depth, "n")

    def row_of(entry: Expr) -> Expr:
        place = scope.ix.opaque(entry, 0, max(numbers.aval.shape[1] - 1, 0), scope.depth)
        return scope.wide_index(scope.at(numbers, (_of_batch(scope, numbers, b), place)))

    return first, last, row_of


def _bisect(scope: Scope, row: Expr, entries: int, row_of: Callable[[Expr], Expr]) -> Expr:
    """How many entries are of rows before this one."""
    low, high = scope.var(_ZERO, "a"), scope.var(Const(entries, INDEX), "b")
    with scope.while_(_less(low, high), steps=max(entries, 1).bit_length()):
        middle = scope.let(Op("div", (affine(0, (low, 1), (high, 1)), Const(2, INDEX)), INDEX), scope.depth, "n")
        before = scope.let(_less(row_of(middle), row), scope.depth)
        new_low = Op("select_n", (before, scope.read(low), affine(1, (middle, 1))), INDEX)
        new_high = Op("select_n", (before, middle, scope.read(high)), INDEX)
        scope.assign(low, new_low)
        scope.assign(high, new_high)
    return scope.read(low)


@call("row_numbers", inline="all")
def _row_numbers(builder: ProgramBuilder, eqn: Eqn) -> None:
    (pointers,), (out,) = eqn.invars, eqn.outvars
    rows, (batch, entries) = pointers.aval.shape[1] - 1, out.aval.shape
    if not out.aval.size:
        return
    target = builder.result(out)
    builder.fill(target, out.aval.size, rows)
    scope = builder.scope()
    with ExitStack() as stack:
        b = stack.enter_context(scope.loop(batch, "each"))
        row = stack.enter_context(scope.loop(rows, "each"))
        start, count = _entries_of(scope, pointers, b, row, entries)
        number = scope.index_value(row, "i32")
        base = scope.ix.add(scope.ix.scale(b, entries), start)
        with scope.serial(count) as e:
            scope.emit(Store(target, _nth(scope, base, e, entries).expr(), number))
    builder.kernel("row_numbers", scope, eqn.source)


def _entries_of(scope: Scope, pointers: Atom, b: Index, row: Index, entries: int) -> tuple[Index, Expr]:
    """The first entry of a row, and how many there are."""
    b = _of_batch(scope, pointers, b)
    start, end = (scope.as_index(scope.at(pointers, (b, place)), 0, entries)
                  for place in (row, scope.ix.offset(row, 1)))
    count = Op("max", (affine(0, (end.expr(), 1), (start.expr(), -1)), _ZERO), INDEX)
    return start, scope.let(count, scope.depth, "n")


def _nth(scope: Scope, start: Index, step: Expr, entries: int) -> Index:
    """The entry `step` after another one; the step is the index of a loop."""
    return scope.ix.add(start, scope.ix.opaque(step, 0, max(entries - 1, 0), scope.depth))


@call("row_product", inline=(0, 1, 2))
def _row_product(builder: ProgramBuilder, eqn: Eqn) -> None:
    data, _, pointers, x = eqn.invars
    batch, rows, n = eqn.outvars[0].aval.shape
    if not eqn.outvars[0].aval.size:
        return
    target, entries = builder.result(eqn.outvars[0]), data.aval.shape[1]
    dtype = scalar_type(x.aval)
    total = "f32" if dtype in HALVES else dtype
    if not (entries and x.aval.size):
        builder.fill(target, eqn.outvars[0].aval.size, constant(0, dtype).value)
        return
    scope = builder.scope()
    with ExitStack() as stack:
        b = stack.enter_context(scope.loop(batch, "each"))
        row = stack.enter_context(scope.loop(rows, "each"))
        start, count = _entries_of(scope, pointers, b, row, entries)
        place = scope.ix.scale(scope.ix.add(scope.ix.scale(b, rows), row), n)
        if n > _UNROLLED:
            _wide_row(scope, eqn, (b, start, count), target, place, total)
        else:
            sums = [scope.var(constant(0, total)) for _ in range(n)]
            if entries >= _LONG_ROW * rows:
                _long_row(scope, eqn, (b, start, count), sums)
            else:
                with scope.serial(count) as e, _entry(scope, eqn, 1, b, _nth(scope, start, e, entries), total) as term:
                    for j, s in enumerate(sums):
                        scope.accumulate(s, "add", term(scope.ix.const(j)))
            for j, s in enumerate(sums):
                scope.store(target, scope.ix.offset(place, j), scope.cast(s, dtype))
    builder.kernel("row_product", scope, eqn.source)


def _as_unsigned(scope: Scope, number: Expr, count: int) -> tuple[Expr, Const | None]:
    """A number read as unsigned, so that negative ones are too large, and how many numbers are below `count`; None: all
    that there are of its type."""
    unsigned = "u" + number.dtype[1:]
    limit = 1 << (int(unsigned[1:]) - (number.dtype[0] == "i"))
    known = None if number.dtype[0] == "u" and count >= limit else Const(min(count, limit), unsigned)
    return scope.cast(number, unsigned), known


def _product_of(scope: Scope, eqn: Eqn, b: Index, entry: Index, row: Index, dtype: str) -> Callable[[Index], Expr]:
    """What an entry adds to a column of the result, as a function of that; it is multiplied with a row of x."""
    data, x = eqn.invars[0], eqn.invars[3]
    value = scope.cast(scope.at(data, (_of_batch(scope, data, b), entry)), dtype)

    def term(j: Index) -> Expr:
        other = scope.cast(scope.at(x, (_of_batch(scope, x, b), row, j)), dtype)
        return scope.op("mul", (value, other), dtype)

    return term


@contextmanager
def _entry(scope: Scope, eqn: Eqn, column: int, b: Index, entry: Index,
           dtype: str) -> Iterator[Callable[[Index], Expr]]:
    """What runs for an entry whose column, in operand number `column`, exists; see `_product_of`."""
    columns, k = eqn.invars[column], eqn.invars[3].aval.shape[1]
    number, limit = _as_unsigned(scope, scope.at(columns, (_of_batch(scope, columns, b), entry)), k)
    with scope.when(TRUE if limit is None else scope.op("lt", (number, limit), "bool")):
        row = scope.ix.opaque(scope.wide_index(number), 0, k - 1, scope.depth)
        yield _product_of(scope, eqn, b, entry, row, dtype)


def _long_row(scope: Scope, eqn: Eqn, where: tuple[Index, Index, Expr], sums: Sequence[NamedValue]) -> None:
    """Sums of many entries, in vectors: those outside give zeros."""
    (b, start, count), columns, x = where, eqn.invars[1], eqn.invars[3]
    with scope.loop(count, "reduce", bound=columns.aval.shape[1]) as e:
        entry = scope.ix.add(start, e)
        number, limit = _as_unsigned(scope, scope.at(columns, (_of_batch(scope, columns, b), entry)), x.aval.shape[1])
        last = Const(x.aval.shape[1] - 1 if limit is None else limit.value - 1, number.dtype)
        near = scope.wide_index(scope.op("min", (number, last), number.dtype))
        row = scope.ix.opaque(near, 0, x.aval.shape[1] - 1, scope.level(near))
        term = _product_of(scope, eqn, b, entry, row, sums[0].dtype)
        for j, s in enumerate(sums):
            value = term(scope.ix.const(j))
            if limit is not None:
                inside = scope.op("lt", (number, limit), "bool")
                value = scope.op("select_n", (inside, constant(0, s.dtype), value), s.dtype)
            scope.accumulate(s, "add", value)


def _wide_row(scope: Scope, eqn: Eqn, where: tuple[Index, Index, Expr], target: str, place: Index, dtype: str) -> None:
    """A row of many columns: in memory of its own, to which the rows of x are added in vectors."""
    (b, start, count), x = where, eqn.invars[3]
    n, entries = x.aval.shape[2], eqn.invars[0].aval.shape[1]
    sums = scope.local(dtype, n)
    with scope.loop(n, "each") as j:
        scope.store(sums, j, constant(0, dtype))
    with (scope.serial(count) as e, _entry(scope, eqn, 1, b, _nth(scope, start, e, entries), dtype) as term,
          scope.loop(n, "each") as j):
        old = scope.let(Load(sums, j.expr(), dtype), scope.depth, "x")
        scope.store(sums, j, scope.let(Op("add", (old, term(j)), dtype), scope.depth))
    with scope.loop(n, "each") as j:
        value = scope.let(Load(sums, j.expr(), dtype), scope.depth, "x")
        scope.store(target, scope.ix.add(place, j), scope.cast(value, scalar_type(x.aval)))


@call("entry_product", inline=(0, 1, 2))
def _entry_product(builder: ProgramBuilder, eqn: Eqn) -> None:
    """Entries in order of their rows: in blocks of rows. In any order: in parts, each with a result of its own, which
    are added up."""
    data, (out,) = eqn.invars[0], eqn.outvars
    _, rows, n = out.aval.shape
    if not out.aval.size:
        return
    dtype, entries = scalar_type(out.aval), data.aval.shape[1]
    total = "f32" if dtype in HALVES else dtype
    target = builder.result(out)
    if not (entries and eqn.invars[3].aval.size):
        builder.fill(target, out.aval.size, constant(0, dtype).value)
        return
    spare = _SPARE if n <= _UNROLLED else _WIDE_SPARE
    parts = 1 if eqn.params["sorted"] else min(1 << max(entries // (spare * rows), 1).bit_length() - 1, _PARTS)
    sums = target if parts == 1 and total == dtype else builder.temp(total, out.aval.size * parts)
    scope = builder.scope()
    if eqn.params["sorted"]:
        _in_row_blocks(scope, eqn, sums)
    else:
        _in_parts(scope, eqn, sums, parts)
    builder.kernel("entry_product", scope, eqn.source)
    if sums != target:
        _add_parts(builder, eqn, sums, target, parts)


def _in_row_blocks(scope: Scope, eqn: Eqn, sums: str) -> None:
    """Each block of rows finds its entries, which are in order, by bisection."""
    (batch, rows, n), numbers, ix = eqn.outvars[0].aval.shape, eqn.invars[1], scope.ix
    entries = numbers.aval.shape[1]
    with ExitStack() as stack:
        b = stack.enter_context(scope.loop(batch, "each"))
        blocks = min(-(-rows // _LEAST_BLOCK), max(-(-rows // _BLOCK), min(_ENOUGH, -(-entries // _FEW))))
        size = -(-rows // blocks)
        block = stack.enter_context(scope.loop(-(-rows // size), "each"))
        first, last, row_of = _row_block(scope, numbers, b, ix.scale(block, size), size, rows)
        start, end = (_bisect(scope, row, entries, row_of) for row in (first, last))
        base = ix.scale(b, rows * n)
        _clear(scope, sums, affine(0, (base.expr(), 1), (first, n)), affine(0, (last, n), (first, -n)), eqn)
        if n <= _UNROLLED and entries >= _RUNS * rows:
            _row_by_row(scope, eqn, b, sums, base, (first, last), size, (start, end), row_of)
            return
        count = scope.let(affine(0, (end, 1), (start, -1)), scope.depth, "n")
        with scope.serial(count) as e:
            entry = _nth(scope, scope.ix.opaque(start, 0, entries, scope.depth), e, entries)
            _add_entry(scope, eqn, b, entry, sums, base, (first, last))


def _row_by_row(scope: Scope, eqn: Eqn, b: Index, sums: str, base: Index, rows: tuple[Expr, Expr],
                size: int, span: tuple[Expr, Expr], row_of: Callable[[Expr], Expr]) -> None:
    """The rows of a block, at most `size`, whose entries are those of the span: a row's sums stay in registers.

    The last row that has entries goes to the end. It ends the rows before it, which so need not look for the end,
    in whatever order entries are.
    """
    (first, last), (start, end), (_, entries) = rows, span, eqn.invars[0].aval.shape
    dtype, (_, count, n) = scalar_type(eqn.outvars[0].aval), eqn.outvars[0].aval.shape
    total = "f32" if dtype in HALVES else dtype

    def add(entry: Expr, found: Sequence[NamedValue]) -> None:
        with _entry(scope, eqn, 2, b, scope.ix.opaque(entry, 0, entries - 1, scope.depth), total) as term:
            for j, s in enumerate(found):
                scope.accumulate(s, "add", term(scope.ix.const(j)))

    def store(row: Expr, found: Sequence[NamedValue]) -> None:
        for j, s in enumerate(found):
            scope.emit(Store(sums, affine(j, (base.expr(), 1), (row, n)), scope.read(s)))

    with scope.when(_less(start, end)):
        final = row_of(scope.let(affine(-1, (end, 1)), scope.depth, "n"))
        low = scope.let(Op("max", (final, first), INDEX), scope.depth, "n")
        tail = scope.let(Op("min", (low, affine(-1, (last, 1))), INDEX), scope.depth, "n")
        at, row = scope.var(start, "a"), scope.var(row_of(start), "b")
        before = scope.let(affine(0, (tail, 1), (first, -1)), scope.depth, "n")
        with scope.serial(Op("min", (before, Const(size, INDEX)), INDEX)) as k:  # as costs are to know
            own = scope.let(affine(0, (first, 1), (k, 1)), scope.depth, "n")
            found = [scope.var(constant(0, total)) for _ in range(n)]
            with scope.while_(Op("eq", (row, own), "bool"), steps=entries // count):
                entry = scope.read(at)
                add(entry, found)
                behind = scope.let(affine(1, (entry, 1)), scope.depth, "n")
                scope.assign(at, behind)
                scope.assign(row, row_of(behind))
            store(own, found)
        found = [scope.var(constant(0, total)) for _ in range(n)]
        begin = scope.read(at)
        with scope.serial(scope.let(affine(0, (end, 1), (begin, -1)), scope.depth, "n")) as k:
            add(scope.let(affine(0, (begin, 1), (k, 1)), scope.depth, "n"), found)
        store(tail, found)


def _in_parts(scope: Scope, eqn: Eqn, sums: str, parts: int) -> None:
    """Each part of the entries has sums of its own."""
    (batch, rows, n), entries, ix = eqn.outvars[0].aval.shape, eqn.invars[1].aval.shape[1], scope.ix
    size = -(-entries // parts)
    with ExitStack() as stack:
        b = stack.enter_context(scope.loop(batch, "each"))
        part = stack.enter_context(scope.loop(parts, "each"))
        base = ix.scale(ix.add(ix.scale(b, parts), part), rows * n)
        _clear(scope, sums, base.expr(), Const(rows * n, INDEX), eqn)
        first = ix.scale(part, size)
        rest = Op("max", (affine(entries, (first.expr(), -1)), _ZERO), INDEX)
        with scope.serial(Op("min", (rest, Const(size, INDEX)), INDEX)) as e:
            _add_entry(scope, eqn, b, _nth(scope, first, e, entries), sums, base)


def _clear(scope: Scope, sums: str, start: Expr, count: Expr, eqn: Eqn) -> None:
    """Sets sums to zero."""
    dtype = scalar_type(eqn.outvars[0].aval)
    with scope.loop(count, "each", bound=eqn.outvars[0].aval.size) as j:
        scope.emit(Store(sums, affine(0, (start, 1), (j.expr(), 1)), constant(0, "f32" if dtype in HALVES else dtype)))


def _add_entry(scope: Scope, eqn: Eqn, b: Index, entry: Index, sums: str, base: Index,
               span: tuple[Expr, Expr] | None = None) -> None:
    """Adds what an entry contributes to its row, if that is in `span` (None: all rows); row 0 begins at `base`."""
    out, numbers, x = eqn.outvars[0].aval, eqn.invars[1], eqn.invars[3]
    (_, rows, n), dtype = out.shape, "f32" if scalar_type(x.aval) in HALVES else scalar_type(x.aval)
    number, limit = _as_unsigned(scope, scope.at(numbers, (_of_batch(scope, numbers, b), entry)), rows)
    exists: Expr = TRUE if limit is None else scope.op("lt", (number, limit), "bool")
    if span is not None:  # as unsigned, what is below the first row is beyond the last one
        first, last = (scope.op("cast", (edge,), "u64") for edge in span)
        own = scope.op("sub", (scope.cast(number, "u64"), first), "u64")
        exists = scope.op("lt", (own, scope.op("sub", (last, first), "u64")), "bool")
    with scope.when(exists), _entry(scope, eqn, 2, b, entry, dtype) as term:
        row = scope.ix.scale(scope.ix.opaque(scope.wide_index(number), 0, rows - 1, scope.depth), n)
        with scope.loop(n, "unrolled" if n <= _UNROLLED else "each") as j:
            at = scope.ix.add(scope.ix.add(base, row), j)
            old = scope.let(Load(sums, at.expr(), dtype), scope.depth, "x")
            scope.store(sums, at, scope.let(Op("add", (old, term(j)), dtype), scope.depth))


def _add_parts(builder: ProgramBuilder, eqn: Eqn, sums: str, target: str, parts: int) -> None:
    """The results of all parts, added in order."""
    batch, rows, n = eqn.outvars[0].aval.shape
    dtype = scalar_type(eqn.outvars[0].aval)
    wide = "f32" if dtype in HALVES else dtype
    scope = builder.scope()
    ix = scope.ix
    with ExitStack() as stack:
        b = stack.enter_context(scope.loop(batch, "each"))
        j = stack.enter_context(scope.loop(rows * n, "each"))
        base = ix.add(ix.scale(b, parts * rows * n), j)
        result: Expr | None = None
        for part in range(parts):
            value = scope.load(sums, ix.offset(base, part * rows * n), wide)
            result = value if result is None else scope.op("add", (result, value), wide)
        assert result is not None
        scope.store(target, ix.add(ix.scale(b, rows * n), j), scope.cast(result, dtype))
    builder.kernel("entry_product_parts", scope, eqn.source)
