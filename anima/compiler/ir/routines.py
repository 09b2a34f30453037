"""External routines: what a `Call` statement may name, and what its arguments mean.

    Call("gemm", ("f32", "N", "T", 128, 64, 32, 1.0, "x", 0, 32, "w", 0, 32, 0.0, "y", 0, 64, 1, 0, 0, 0))

A call stands directly in a program's body (or in that of a loop there), never inside a kernel. Its
arguments are names of whole buffers, names of dtypes or flags, and numbers; offsets, leading dimensions
and strides count elements, and matrices are row-major: element (i, j) of a matrix at `x, offset, ld` is
`x[offset + i*ld + j]`.

| routine | arguments in order | meaning |
|---|---|---|
| callback | number, count, buffers... | calls back into Python: the program's callback of that number, with the first `count` buffers to read and the others to write, all after all are read: a buffer may be both. If it raises, the program ends there. |
| foreign | address, layout, count, buffers... | calls a C function as `core/foreign.py` writes it; the first `count` buffers are read, the others written. |
| barrier | width | in programs for grids (`compiler/grid`): the threads of a team of that width wait for each other; 0: all. |
| poll | | looks for signals (Ctrl-C); if a handler raises, the program ends there. This one and the next three are `interrupt`'s. |
| watch | flag | makes a buffer of two words one by which threads tell each other to stop. |
| look | flag | in a kernel: like poll; or if another thread says so, the kernel ends there. |
| stopped | flag | ends the program if `look` has ended a kernel. |
| stamp | number | notes the time, for a profile: `scheduling/stamp.py`. |
| gemm | dtype (f32 f64 c64 c128; i8u8 i8i8 u8i8 u8u8: integers of bytes, of which four along k are an element of A and B, and C is i32; bf16: two of these are, and C is f32), transa, transb ("N" or "T"), m, n, k, alpha, a, a_offset, lda, b, b_offset, ldb, beta, c, c_offset, ldc, batch, a_stride, b_stride, c_stride | for each t < batch: C = alpha * op(A) op(B) + beta * C, where op(A) is m x k, op(B) is k x n, C is m x n; A is at a_offset + t*a_stride, and so on. "T": the matrix is stored transposed (A as k x m with rows lda apart). beta = 0 means that C is not read. m, n, batch >= 1, k >= 1. C overlaps neither A nor B. Strides of A and B may be 0 (one matrix for the whole batch). |
| convolution | dtype (f32 f64), side (how: see `products.convolution`), x, x_offset, w, w_offset, out, out_offset, and the numbers of `CONVOLUTION_NUMBERS` | for each group, row, place and output: out = the sum over terms, taps and features of x * w where each coordinate is in 0 <= c < size. All have distances in the three arrays, by which indices and coordinates (from `start` on) grow; places and taps move the last coordinate by a step. Rows and terms are four nested counters ("wheels"), whose steps add x, out (of terms: in w), c0, c1 and c2. `term` is the distance in w of all that is summed, in order, if side is rows or columns. |
| substitution | dtype (f32 f64), side ("L" or "R"), lower, trans ("N" or "T"), unit (numbers that are 0 or 1), n, columns, a, a_offset, lda, b, b_offset, ldb, batch, a_stride, b_stride | for each t < batch: B becomes the X of op(A) X = B (side "L": B is n x columns) or of X op(A) = B ("R": columns x n). A is n x n, of which the lower triangle is read if `lower` is 1, else the upper one; if `unit` is 1, its diagonal counts as ones. n is 512 at most. B does not overlap what is read of A. |
| turn | dtype (f32 f64), rows, columns, a, a_offset, lda, b, b_offset, ldb | B[j, i] = A[i, j] for i < rows, j < columns. |
| order | dtype (u32 u64), rows, n, pieces (a number that is 0 or 1), a, a_offset, b, b_offset, c, c_offset | each of the rows, of n numbers, of C is that of A, sorted. A and B, which is as large, are lost; none overlaps another. Rows are sorted at once, or, if `pieces` is 1, pieces of one row after the other; n is then at least 1536. |
| exchange | dtype (f32 f64), count, rows, columns, a, a_offset, lda, pivots, pivots_offset | for each i < count, in order: rows i and pivots[i] - 1 of A, or the nearest of the rows i to `rows` - 1, exchange their first `columns` elements. |

and the routines of LAPACK, whose arguments are described in `lapack.py`.
| tape_open | tapes, table, count, code | makes `count` empty tapes; see `lower_tape` for tables. `code` stands for the user's line. |
| tape_grow | the same | room for `table[1]` elements, or, if that is 0, for twice as many as there is room for. Where there is not the memory, table[0] stays, table[1] is -1 and the status is `code`. |
| tape_check | the same | where more than three quarters of the budget are used, table[0] is 0 and table[1] is -1. |
| tape_close | the same | the tapes have `table[1]` elements. |
| tape_read | the same | finds tapes whose headers are in the table: table[1] is the length of the longest, table[0] is not 0 if one is kept in part, zeros stand for tapes that are shorter. |
| tape_mark, tape_release | tapes, mark | remembers the tapes there are; frees those made since. |

What lowering promises the passes after it:

- Every loop of a kernel is `serial`, `each`, or `reduce`, or `unrolled`; `schedule` makes innermost ones `vector`, with
  width 1, and outermost ones `parallel`, with grain 1. `vectorize` chooses widths or turns a vector loop serial;
  `parallelize` chooses grains, turns a parallel loop serial, or cuts a kernel's lone vector loop into parallel blocks.
- A kernel that `reduces` is a nest of `each` for what is kept, with lets beside the loops; inside, totals (variables),
  loops over what is added up or gone through in order, and stores. A block that sets a total does not read it after.
- A kernel's body is a sequence of statements; a kernel with several loops side by side runs them in order.
- Names (indices, lets, vars, locals) are unique within a kernel. Index expressions are sums of products
  `index*constant` first, whatever is not affine (`div`, `rem`, casts of loaded integers) after; a `Let` may be of type index.
- `cast` converts between `index` and any integer type or bool.
- Values that do not depend on a loop's index are computed before the loop.
- A multiple-result scalar operation (threefry) is written out in single-result operations.
"""  # noqa: E501  (a table)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anima.compiler.ir import lapack

GEMM_ARGUMENTS = ("dtype", "transa", "transb", "m", "n", "k", "alpha", "a", "a_offset", "lda", "b", "b_offset", "ldb",
                  "beta", "c", "c_offset", "ldc", "batch", "a_stride", "b_stride", "c_stride")
SUBSTITUTION_ARGUMENTS = ("dtype", "side", "lower", "trans", "unit", "n", "columns", "a", "a_offset", "lda",
                          "b", "b_offset", "ldb", "batch", "a_stride", "b_stride")
TURN_ARGUMENTS = ("dtype", "rows", "columns", "a", "a_offset", "lda", "b", "b_offset", "ldb")
ORDER_ARGUMENTS = ("dtype", "rows", "n", "pieces", "a", "a_offset", "b", "b_offset", "c", "c_offset")
EXCHANGE_ARGUMENTS = ("dtype", "count", "rows", "columns", "a", "a_offset", "lda", "pivots", "pivots_offset")

WHEEL = ("count", "x", "out", "c0", "c1", "c2")
CONVOLUTION_NUMBERS = (
    "groups", "x_group", "w_group", "out_group", "outputs", "output_w", "output_out", "term",
    *(f"row{d}_{k}" for d in range(4) for k in WHEEL), *(f"term{d}_{k}" for d in range(4) for k in WHEEL),
    "start0", "start1", "start2", "size0", "size1", "size2", "places", "place_x", "place_out", "place_step",
    "taps", "tap_x", "tap_w", "tap_step", "features", "feature_x", "feature_w")
CONVOLUTION_ARGUMENTS = ("dtype", "side", "x", "x_offset", "w", "w_offset", "out", "out_offset", *CONVOLUTION_NUMBERS)

# Of each routine: names of its arguments, which of them are buffers that it reads, and which it writes.
_Routines = dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]
TAPE_ROUTINES: _Routines = {
    **dict.fromkeys(("tape_open", "tape_grow", "tape_check", "tape_close", "tape_read"),
                    (("tapes", "table", "count", "code"), ("tapes", "table"), ("table",))),
    "tape_mark": (("tapes", "mark"), ("tapes",), ("mark",)),
    "tape_release": (("tapes", "mark"), ("tapes", "mark"), ()),
}
ROUTINES: _Routines = {
    "gemm": (GEMM_ARGUMENTS, ("a", "b"), ("c",)),
    "convolution": (CONVOLUTION_ARGUMENTS, ("x", "w"), ("out",)),
    "substitution": (SUBSTITUTION_ARGUMENTS, ("a", "b"), ("b",)),
    "turn": (TURN_ARGUMENTS, ("a",), ("b",)),
    "exchange": (EXCHANGE_ARGUMENTS, ("a", "pivots"), ("a",)),
    "order": (ORDER_ARGUMENTS, ("a",), ("a", "b", "c")),
    "callback": (("number", "count"), (), ()),  # then any number of buffers
    "foreign": (("address", "layout", "count"), (), ()),  # then any number of buffers
    "poll": ((), (), ()),
    "barrier": (("width",), (), ()),
    "stamp": (("number",), (), ()),
    "watch": (("flag",), (), ("flag",)),
    "look": (("flag",), ("flag",), ("flag",)),
    "stopped": (("flag",), ("flag",), ()),
} | TAPE_ROUTINES | lapack.ROUTINES
_OPEN = ("callback", "foreign")  # routines with any number of buffers, of which the last argument before them is read


def arguments(routine: str, args: tuple[object, ...]) -> dict[str, object]:
    """The arguments of a call, by name; NotImplementedError for a routine that does not exist."""
    if routine not in ROUTINES:
        raise NotImplementedError(f"there is no external routine '{routine}'")
    names = ROUTINES[routine][0]
    return dict(zip(names, args[:len(names)] if routine in _OPEN else args, strict=True))


def buffers_read(routine: str, args: tuple[object, ...]) -> list[str]:
    """Names of the buffers that a call reads."""
    return [str(args[k]) for k in _places(routine, args)[0]]


def buffers_written(routine: str, args: tuple[object, ...]) -> list[str]:
    """Names of the buffers that a call writes."""
    return [str(args[k]) for k in _places(routine, args)[1]]


def renamed(routine: str, args: tuple[object, ...], names: Mapping[str, str]) -> tuple[object, ...]:
    """The arguments with the buffers among them renamed."""
    places = operand_places(routine, args)
    return tuple(names.get(str(a), a) if k in places else a for k, a in enumerate(args))


def operand_places(routine: str, args: tuple[object, ...]) -> set[int]:
    """Positions among the arguments of a call that name buffers."""
    reads, writes = _places(routine, args)
    return {*reads, *writes}


def _places(routine: str, args: tuple[object, ...]) -> tuple[Sequence[int], Sequence[int]]:
    """Positions among the arguments of buffers that are read, and of those that are written."""
    if routine in _OPEN:
        first = len(ROUTINES[routine][0])
        middle = first + int(args[first - 1])  # type: ignore[call-overload]
        return range(first, middle), range(middle, len(args))
    if routine not in ROUTINES:
        raise NotImplementedError(f"there is no external routine '{routine}'")
    names, reads, writes = ROUTINES[routine]
    return [names.index(n) for n in reads], [names.index(n) for n in writes]


# ---------------------------------------------------------------- parts of buffers


def shapes(routine: str, args: tuple[object, ...]) -> dict[str, tuple[int, int]]:
    """Rows and columns of the matrices of a call, as they are stored, by the argument that names their buffer: those
    that are read, and then the one that is written. Nothing for routines whose operands are whole buffers."""
    a: dict[str, Any] = arguments(routine, args)
    if routine == "gemm":
        x, y = (a["m"], a["k"]), (a["k"], a["n"])
        return {"a": x if a["transa"] == "N" else x[::-1], "b": y if a["transb"] == "N" else y[::-1],
                "c": (a["m"], a["n"])}
    if routine == "substitution":
        sides = a["n"], a["columns"]
        return {"a": (a["n"], a["n"]), "b": sides if a["side"] == "L" else sides[::-1]}
    if routine == "turn":
        return {"a": (a["rows"], a["columns"]), "b": (a["columns"], a["rows"])}
    return {}


def apart(routine: str, args: tuple[object, ...]) -> bool:
    """Whether a call that is given a buffer twice works on parts of it that have no element in common, as far as that
    can be told: rectangles of one matrix."""
    a: dict[str, Any] = arguments(routine, args)
    sizes = shapes(routine, args)
    if not sizes:
        return False
    *read, written = sizes
    matrices = {name: (a["ld" + name], a.get("batch", 1) > 1 and a[f"{name}_stride"]) for name in sizes}
    target = _corners(a, written, sizes[written])
    return all(a[name] != a[written] or (matrices[name] == matrices[written] and
                                         _disjoint(target, _corners(a, name, sizes[name]))) for name in read)


def _corners(a: Mapping[str, Any], name: str, shape: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Rows and columns, from and to, of an operand in its matrix."""
    return tuple((start, start + size) for start, size in
                 zip(divmod(a[f"{name}_offset"], a["ld" + name]), shape, strict=True))


def _disjoint(x: Sequence[tuple[int, int]], y: Sequence[tuple[int, int]]) -> bool:
    return any(end <= start or stop <= begin for (begin, end), (start, stop) in zip(x, y, strict=True))
