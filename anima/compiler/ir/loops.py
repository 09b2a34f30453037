"""The loop IR: what a program is between array operations and machine code.

    program softmax(x: f32[4194304]) -> (out: f32[4194304])
      kernel row_softmax:
        parallel i < 4096:
          local t: f32[1024]
          var m: f32 = -inf
          vector(16) j < 1024:
            m max= x[i*1024 + j]
          ...

Buffers are flat (row-major arrays, an index is an element number). Every extent is an expression.
All scalar types are named as in `core.dtypes.short_name`, plus `index` (a signed 64-bit integer).

    Program = name, buffers, body: Stmt*
    Stmt    = Kernel | Again | For | While | If | Let | Mutable | Assign | Accumulate | Store | Prefetch | Local
            | WindowAt | Call
    Expr    = Const | NamedValue | Affine | Load | Op

`Op.name` is the name of an elementwise primitive (`add`, `exp`, `select_n`, `lt`, ...) with the
semantics of its `eval`, or `cast` (JAX's convert_element_type), or `bitcast`. On `index` operands
`div rem max min` and comparisons exist (`div`, `rem` of non-negative by positive); sums are `Affine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, Literal

from anima.core.source import Source
from anima.util import record

INDEX = "index"
PARTS = {"c64": "f32", "c128": "f64"}  # the types of complex numbers, and of their parts
ENTRY = "entry"  # the function of machine code that a call of a program calls
Size = int  # what a coefficient is, see `Affine`


# --- Expressions: pure scalars ---------------------------------------------------------------


@record
class Const:
    """A number: Python bool, int, float or complex, of a scalar type."""

    value: Any
    dtype: str


@record
class NamedValue:
    """The value of a loop index (dtype "index"), a `Let` or a `Mutable` in scope."""

    name: str
    dtype: str


@record
class Affine:
    """A sum of values of type index, each times its coefficient, and a number: `i1 * 64 + i4 + 3`.

    All sums and multiples of indices are such nodes, in their simplest form, which `affine` makes. A value is a name
    (of a loop's index, or a Let) or the rest, what is not linear in names: `i3 % 7`; no Const, no Affine.

    Coefficients and `const` are of type `Size`: numbers today. When sizes have names, so that one program serves every
    batch, a `Size` may be a product of these, too, with `+`, `*` and `==`; who asks how far a loop steps
    (`ir.affine.steps`) gets None for it, as for what is not linear. In an extent, an expression, it is a NamedValue.
    """

    values: tuple[Expr, ...]
    coefficients: tuple[Size, ...]
    const: Size = 0
    dtype = INDEX

    @property
    def terms(self) -> Iterator[tuple[Expr, Size]]:
        """Values with their coefficients."""
        return zip(self.values, self.coefficients, strict=True)

    @property
    def operations(self) -> int:
        """How many multiplications and additions it takes."""
        return len(self.values) - 1 + sum(c != 1 for c in self.coefficients) + (self.const != 0)


@record
class Load:
    """Element `index` of a buffer. The index must be in bounds whenever the expression is evaluated;
    `select_n` evaluates all of its operands, so clamp an index that may be outside."""

    buffer: str
    index: Expr
    dtype: str


@record
class Op:
    """A scalar operation. `params` are the primitive's parameters that matter (`(("y", 3),)`)."""

    name: str
    args: tuple[Expr, ...]
    dtype: str
    params: tuple[tuple[str, Any], ...] = ()


Expr = Const | NamedValue | Affine | Load | Op


def affine(const: Size, *terms: tuple[Expr, Size]) -> Expr:
    """The sum of a number and of values times their coefficients, in the simplest form that it has."""
    total: dict[Expr, Size] = {}
    for value, coefficient in terms:
        inner = (value if type(value) is Affine else Affine((), (), value.value) if type(value) is Const
                 else Affine((value,), (1,)))
        const += inner.const * coefficient
        for part, own in inner.terms:
            total[part] = total.get(part, 0) + own * coefficient
    return normal([v for v, c in total.items() if c], [c for c in total.values() if c], const)


def normal(values: Sequence[Expr], coefficients: Sequence[Size], const: Size) -> Expr:
    """The sum of such values as an Affine may have: an Affine, or the number or the one value that it is."""
    if not values:
        return Const(const, INDEX)
    if not const and len(values) == 1 and coefficients[0] == 1:
        return values[0]
    return Affine(tuple(values), tuple(coefficients), const)


# --- Statements ------------------------------------------------------------------------------


@record
class For:
    """`body` for each index in 0 <= index < extent.

    serial    in order; in lanes, `width` iterations at once where that is as good
    each      iterations are independent
    reduce    iterations are independent but for `Accumulate`, whose terms may be taken in any order
    parallel  iterations are independent and may run on any thread; outermost in a kernel, or around kernels and
              routines, each of which then runs on that thread alone
    vector    `each` or `reduce` (the emitter runs `width` lanes at once and the rest one by one or masked)
    unrolled  written out, one iteration after the other; the extent is a constant
    whole     a vector loop in a single round, of `width` lanes; the extent is a constant
    square    `each`, around a vector loop: `width` iterations of both at once
    stream    a square whose results go past the caches: they are large, and scattered over them
    spread    `each` or `reduce`, on grids: handed out to teams of `width` threads, see `compiler/grid`
    """

    index: str
    extent: Expr
    body: tuple[Stmt, ...]
    kind: Literal["serial", "each", "reduce", "parallel", "vector", "unrolled", "whole", "square", "stream",
                  "spread"] = "serial"
    width: int = 1
    grain: int = 1  # parallel: least number of iterations worth handing to a thread


@record
class While:
    """`before`, then leave if `cond` is false, then `body`; again. Names of `before` are seen in `body`.

    `steps` is about how often, where that is known.
    """

    before: tuple[Stmt, ...]
    cond: Expr
    body: tuple[Stmt, ...]
    steps: int | None = field(default=None, compare=False)


@record
class If:
    """One of two blocks; only the one taken is evaluated."""

    cond: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@record
class Let:
    """A name for a value, until the end of the block."""

    name: str
    value: Expr


@record
class Mutable:
    """A mutable scalar, until the end of the block."""

    name: str
    dtype: str
    init: Expr


@record
class Assign:
    """Gives a `Mutable` a new value."""

    name: str
    value: Expr


@record
class Accumulate:
    """`var = op(var, value)` for an associative `op` (add, mul, max, min, and, or, xor), not of indices: in a vector
    loop the terms may be combined in any order that does not depend on the number of threads."""

    name: str
    op: str
    value: Expr


@record
class Store:
    """`buffer[index] = value`; with `op`, `buffer[index] = op(buffer[index], value)` (serial loops only)."""

    buffer: str
    index: Expr
    value: Expr
    op: str | None = None


@record
class Prefetch:
    """What will be loaded soon, to be brought near: it changes nothing, and the place may not exist."""

    load: Load


@record
class Local:
    """Scratch memory of `size` elements private to the iteration (so to the thread), uninitialised.

    `held` in registers, as single "elements" or in the "lanes" of one vector, every index must be known when the
    program is compiled: made of numbers and of indices of loops that are unrolled or (for lanes) whole.
    `apart` are the elements in a vector loop where every lane has its own, at indices that are the same in all lanes:
    they lie lane beside lane.
    """

    buffer: str
    dtype: str
    size: int
    held: Literal["", "elements", "lanes", "apart"] = ""


@record
class WindowAt:
    """From here to the end of the block, a buffer of role "window" is the memory at `address` (an i64)."""

    buffer: str
    address: Expr


@record
class Call:
    """An external routine (`gemm`, `sort`, ...) on whole buffers: names of buffers and integers or floats."""

    routine: str
    args: tuple[str | int | float, ...]
    source: Source | None = field(default=None, compare=False)


@record
class Kernel:
    """A loop nest that runs as one unit; its free buffers are its operands. Equal bodies (up to the names
    of operands) are compiled once. One that works on registers is written `inline`, where it stands.
    `reduces` says what a plain nest adds up, until it is scheduled: the shape of that, and its axes."""

    name: str
    body: tuple[Stmt, ...]
    source: Source | None = field(default=None, compare=False)
    inline: bool = False
    reduces: tuple[tuple[int, ...], tuple[int, ...]] | None = field(default=None, compare=False)


@record
class Again:
    """A kernel that stands before in the program's body, once more: `names` has its buffers and those that take their
    place. A program of many equal parts is so no longer than one of them; `buffers.written_out` gives the kernel."""

    kernel: Kernel
    names: tuple[tuple[str, str], ...]


Stmt = (Kernel | Again | For | While | If | Let | Mutable | Assign | Accumulate | Store | Prefetch | Local | WindowAt
        | Call)


# --- Programs --------------------------------------------------------------------------------


@record
class Buffer:
    """Memory of `size` elements.

    input   given by the caller, read-only unless `donated`
    const   `value` (a NumPy array) is part of the program
    output  given by the caller, written by the program
    temp    allocated for the run; the buffer plan gives it `offset` bytes into the arena
    own     the same for each thread of a `parallel` loop around kernels; `offset` is into memory of that thread
    window  memory that a `WindowAt` statement finds
    `alias` names the buffer whose memory this one is (a donated input that an output overwrites).
    """

    name: str
    dtype: str
    size: int
    role: Literal["input", "const", "output", "temp", "own", "window"]
    value: Any = field(default=None, compare=False)
    offset: int | None = None
    alias: str | None = None
    donated: bool = False


@record
class Program:
    """A compiled function's body: kernels and control flow over buffers, in order.

    Callers pass inputs and outputs in the order in which they stand in `buffers`. `arena` is the number
    of bytes that temps need in all, `callbacks` are what `Call("callback", (number, ...))` calls. One that `flushes`
    makes 0 of results below the least normal number.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    arena: int = 0
    callbacks: tuple[Any, ...] = field(default=(), compare=False)
    flushes: bool = False

    def with_role(self, role: str) -> list[Buffer]:
        return [b for b in self.buffers if b.role == role]


def roots(buffers: Sequence[Buffer]) -> dict[str, Buffer]:
    """The buffer whose memory each buffer is, by name: itself, unless it has an `alias`."""
    known = {b.name: b for b in buffers}
    found: dict[str, Buffer] = {}
    for b in buffers:
        root = b
        while root.alias is not None:
            root = known[root.alias]
        found[b.name] = root
    return found


def slots(program: Program) -> list[Buffer]:
    """The buffers whose addresses the entry function takes, in order."""
    return [b for role in ("input", "output", "const") for b in program.with_role(role)]


_CHILDREN: dict[type, Callable[[Any], tuple[Expr | Stmt, ...]]] = {
    **dict.fromkeys((NamedValue, Const, Local, Call), lambda node: ()),
    **dict.fromkeys((Let, Assign, Accumulate), lambda node: (node.value,)),
    Op: lambda node: node.args,
    Affine: lambda node: node.values,
    Load: lambda node: (node.index,),
    Store: lambda node: (node.index, node.value),
    Prefetch: lambda node: (node.load,),
    Mutable: lambda node: (node.init,),
    For: lambda node: (node.extent, *node.body),
    While: lambda node: (*node.before, node.cond, *node.body),
    If: lambda node: (node.cond, *node.then, *node.orelse),
    Kernel: lambda node: node.body,
    Again: lambda node: (node.kernel,),
    WindowAt: lambda node: (node.address,),
}


def children(node: Expr | Stmt) -> tuple[Expr | Stmt, ...]:
    """The expressions and statements directly inside a node, in order of evaluation."""
    return _CHILDREN[type(node)](node)


def walk(*nodes: Expr | Stmt) -> Iterator[Expr | Stmt]:
    """Every node below and including the given ones, outside in."""
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        yield node
        below = _CHILDREN[type(node)](node)
        if below:
            stack.extend(below[::-1])


def statements(*stmts: Stmt) -> Iterator[Stmt]:
    """Every statement below and including the given ones, outside in; expressions are left out."""
    stack = list(reversed(stmts))
    while stack:
        stmt = stack.pop()
        yield stmt
        kind = type(stmt)
        if kind is For or kind is Kernel:
            stack.extend(reversed(stmt.body))  # type: ignore[union-attr]
        elif kind is If:
            stack.extend(reversed((*stmt.then, *stmt.orelse)))  # type: ignore[union-attr]
        elif kind is While:
            stack.extend(reversed((*stmt.before, *stmt.body)))  # type: ignore[union-attr]


def blocks_of(stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks of a loop or branch; a kernel counts as one statement."""
    kind = type(stmt)
    if kind is For:
        return (stmt.body,)  # type: ignore[union-attr]
    if kind is While:
        return stmt.before, stmt.body  # type: ignore[union-attr]
    return (stmt.then, stmt.orelse) if kind is If else ()  # type: ignore[union-attr]


def with_blocks(stmt: Stmt, blocks: Sequence[tuple[Stmt, ...]]) -> Stmt:
    """The statement with other blocks; itself, if they are its own."""
    match stmt:
        case For(index, extent, body, kind, width, grain) if blocks[0] is not body:
            return For(index, extent, blocks[0], kind, width, grain)
        case While(before, cond, body, steps) if blocks[0] is not before or blocks[1] is not body:
            return While(blocks[0], cond, blocks[1], steps)
        case If(cond, then, orelse) if blocks[0] is not then or blocks[1] is not orelse:
            return If(cond, *blocks)
    return stmt


def map_blocks(change: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...]], stmt: Stmt) -> Stmt:
    """The statement with each of its blocks changed."""
    blocks = blocks_of(stmt)
    return with_blocks(stmt, [change(block) for block in blocks]) if blocks else stmt


def with_kernels(change: Callable[[Kernel], Kernel], stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements of a program's body with its kernels changed, one that stands there several times once; the same
    statements, if none is another one then."""
    changed: dict[int, tuple[Kernel, Kernel]] = {}

    def stmt(old: Stmt) -> Stmt:
        if type(old) is Again:
            return Again(changed[id(old.kernel)][1], old.names)
        if type(old) is not Kernel:
            return map_blocks(lambda block: tuple(map(stmt, block)), old)
        if id(old) not in changed:
            changed[id(old)] = old, change(old)
        return changed[id(old)][1]

    new = tuple(map(stmt, stmts))
    return stmts if all(old is new for old, new in changed.values()) else new


def lets_of(stmts: Iterable[Stmt], dtype: str | None = None) -> dict[str, Expr]:
    """The values (of that type) that some of the statements name, by name."""
    return {s.name: s.value for s in stmts if isinstance(s, Let) and (dtype is None or s.value.dtype == dtype)}


def statements_outside(stmts: Sequence[Stmt]) -> Iterator[Stmt]:
    """Every statement outside of kernels."""
    for stmt in stmts:
        yield stmt
        for block in blocks_of(stmt):
            yield from statements_outside(block)


def varying_names(loop: For) -> set[str]:
    """Names, of buffers too, whose values differ between iterations of a loop."""
    reads: list[tuple[str, set[str]]] = []
    for stmt in statements(*loop.body):
        match stmt:
            case Let(name=name, value=value) | Mutable(name=name, init=value):
                reads.append((name, names_in(value, True)))
            case Store(buffer=name, index=index, value=value):
                reads.append((name, names_in(value, True) | names_in(index)))
            case Assign(name=name, value=value) | Accumulate(name=name, value=value):
                reads.append((name, names_in(value, True)))
    names = {loop.index}
    grown = True
    while grown:
        grown = False
        for name, others in reads:
            if name not in names and not names.isdisjoint(others):
                names.add(name)
                grown = True
    return names


def names_in(node: Expr | Stmt, buffers: bool = False) -> set[str]:
    """The names whose values an expression or a statement takes; with `buffers`, those that it loads from, too."""
    found: set[str] = set()
    stack = [node]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is NamedValue:
            found.add(node.name)  # type: ignore[union-attr]
        elif kind is Op:
            stack += node.args  # type: ignore[union-attr, arg-type]
        elif kind is not Const:
            if buffers and kind is Load:
                found.add(node.buffer)  # type: ignore[union-attr]
            stack += children(node)
    return found
