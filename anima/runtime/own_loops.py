"""Loops in LLVM's language for what NumPy has no loop of its own for (see `runtime.several`), with the bits of the
operations' own rules.

A loop over elements is as those of ufuncs, `loop(places, sizes, strides, data)`; one that folds rows is a program of
its own, whose arguments are followed by the number of rows and that of the elements of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

# A loop as ufuncs have them. Where elements lie one behind another, or are the same all along, it takes lanes at once.
_LANES = 16
_LOOP = """
define void @loop(ptr %args, ptr %sizes, ptr %strides, ptr %data) {{
  %n = load i64, ptr %sizes
{operands}
  br label %lanes
lanes:
  %j = phi i64 [ 0, %0 ], [ %j1, %several ]
  %j1 = add i64 %j, {lanes}
  %full = icmp sle i64 %j1, %n
  %wide = and i1 %full, %close{last}
  br i1 %wide, label %several, label %single
several:
{several}
  br label %lanes
single:
  %i = phi i64 [ %j, %lanes ], [ %i1, %one ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %one, label %done
one:
{one}
  %i1 = add i64 %i, 1
  br label %single
done:
  ret void
}}
"""
# What stands for operand {k}: where lanes of it are, and the bytes between elements there and where it is.
_OPERAND = """
  %p{k}.at = getelementptr ptr, ptr %args, i64 {k}
  %p{k} = load ptr, ptr %p{k}.at
  %s{k}.at = getelementptr i64, ptr %strides, i64 {k}
  %s{k} = load i64, ptr %s{k}.at
  %same{k} = icmp eq i64 %s{k}, {size}
  %still{k} = icmp eq i64 %s{k}, 0
  %fits{k} = or i1 %same{k}, {still}
  %close{k} = and i1 %fits{k}, {before}"""
_REPEATED = """
  %one{k} = load {kind}, ptr %p{k}, align {size}
  %begin{k} = insertelement <{lanes} x {kind}> poison, {kind} %one{k}, i64 0
  %all{k} = shufflevector <{lanes} x {kind}> %begin{k}, <{lanes} x {kind}> poison, <{lanes} x i32> zeroinitializer
  %room{k} = alloca <{lanes} x {kind}>
  store <{lanes} x {kind}> %all{k}, ptr %room{k}
  %w{k} = select i1 %still{k}, ptr %room{k}, ptr %p{k}"""


def _llvm(dtype: np.dtype) -> str:
    return f"i{8 * dtype.itemsize}" if dtype.kind in "biu" else {"f4": "float", "f8": "double"}[dtype.str[1:]]


Body = Callable[[Callable[[str], str]], str]  # of a function that gives a type, or that of lanes of it


def _scalar(kind: str) -> str:
    return kind


def _vector(kind: str) -> str:
    return f"<{_LANES} x {kind}>"


def _loop_text(kinds: Sequence[str], body: Body) -> str:
    """A loop over elements of these LLVM types, the result's last; `body` makes %y of %x0, %x1, ..."""
    last = len(kinds) - 1
    sizes = [int(kind.strip("i")) // 8 if kind[0] == "i" else {"float": 4, "double": 8}[kind] for kind in kinds]
    operands = []
    for k, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        operands.append(_OPERAND.format(k=k, size=size, still=f"%still{k}" if k < last else "false",
                                        before=f"%close{k - 1}" if k else "true"))
        if k < last:
            operands.append(_REPEATED.format(k=k, kind=kind, size=size, lanes=_LANES))

    def steps(of: Callable[[str], str], index: str, pointer: str) -> str:
        lines = []
        for k, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
            lines.append(f"  %o{k}.{index} = mul i64 %{index}, %s{k}\n"
                         f"  %e{k}.{index} = getelementptr i8, ptr %{pointer if k < last else 'p'}{k}, "
                         f"i64 %o{k}.{index}")
            if k < last:
                lines.append(f"  %x{k}.{index} = load {of(kind)}, ptr %e{k}.{index}, align {size}")
        text = re.sub(r"%(\w+(?:\.\w+)?)(?![\w.])", rf"%\1.{index}", body(of))
        lines += [text, f"  store {of(kinds[last])} %y.{index}, ptr %e{last}.{index}, align {sizes[last]}"]
        return "\n".join(lines)

    return _LOOP.format(operands="".join(operands), lanes=_LANES, last=last, several=steps(_vector, "j", "w"),
                        one=steps(_scalar, "i", "p"))


# Rows, each folded into one element.
_FOLD = """
define void @loop(ptr %args, ptr %arena, ptr %pool) {{
  %x = load ptr, ptr %args
  %out.at = getelementptr ptr, ptr %args, i64 1
  %out = load ptr, ptr %out.at
  %rows.at = getelementptr ptr, ptr %args, i64 2
  %rows = load i64, ptr %rows.at
  %n.at = getelementptr ptr, ptr %args, i64 3
  %n = load i64, ptr %n.at
  br label %row
row:
  %r = phi i64 [ 0, %0 ], [ %r1, %end ]
  %begin = mul i64 %r, %n
  br label %lanes
lanes:
  %j = phi i64 [ 0, %row ], [ %j1, %several ]
  %acc.j = phi {v} [ {identities}, %row ], [ %acc1.j, %several ]
  %wild.j = phi {lanes_of_bits} [ zeroinitializer, %row ], [ %wild1.j, %several ]
  %j1 = add i64 %j, {lanes}
  %full = icmp sle i64 %j1, %n
  br i1 %full, label %several, label %fold
several:
  %at.j = add i64 %begin, %j
  %x.at.j = getelementptr {n}, ptr %x, i64 %at.j
  %x.j = load {v}, ptr %x.at.j, align {size}
{several}
  br label %lanes
fold:
  %acc = call {n} @llvm.vector.reduce.{fold}.v{lanes}{n}({v} %acc.j)
  %wild = call i1 @llvm.vector.reduce.or.v{lanes}i1({lanes_of_bits} %wild.j)
  br label %single
single:
  %i = phi i64 [ %j, %fold ], [ %i1, %one ]
  %acc.i = phi {n} [ %acc, %fold ], [ %acc1.i, %one ]
  %wild.i = phi i1 [ %wild, %fold ], [ %wild1.i, %one ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %one, label %end
one:
  %at.i = add i64 %begin, %i
  %x.at.i = getelementptr {n}, ptr %x, i64 %at.i
  %x.i = load {n}, ptr %x.at.i
{one}
  %i1 = add i64 %i, 1
  br label %single
end:
{result}
  %out.r = getelementptr {n}, ptr %out, i64 %r
  store {n} %y, ptr %out.r
  %r1 = add i64 %r, 1
  %left = icmp slt i64 %r1, %rows
  br i1 %left, label %row, label %done
done:
  ret void
}}
declare {n} @llvm.vector.reduce.{fold}.v{lanes}{n}({v})
declare i1 @llvm.vector.reduce.or.v{lanes}i1({lanes_of_bits})
"""


def _splat(kind: str, number: int) -> str:
    return f"<{', '.join([f'{kind} {number}'] * _LANES)}>"


def _fold_text(n: str, fold: str, identity: int, body: Callable[[Callable[[str], str], str, Callable[[str, int], str]],
                                                                str], result: str) -> str:
    """Rows of integers folded: `body` makes %acc1 and %wild1, which says of a row that it is not a number, of %acc,
    %wild and %x; `result` makes %y of %acc.i and %wild.i."""
    def number(kind: str, value: int) -> str:
        return str(value)

    return _FOLD.format(n=n, v=_vector(n), lanes=_LANES, lanes_of_bits=_vector("i1"), identities=_splat(n, identity),
                        fold=fold, size=int(n[1:]) // 8, several=body(_vector, "j", _splat),
                        one=body(_scalar, "i", number), result=result)


def extreme_of_rows(name: str, dtype: np.dtype) -> str:
    """Of floats, their bits as integers in the same order; NaN if any is."""
    bits = 8 * dtype.itemsize
    t, n = _llvm(dtype), f"i{bits}"
    fold = f"{'u' if dtype.kind in 'ub' else 's'}{name}"
    ends = np.iinfo(f"{'u' if dtype.kind in 'ub' else 'i'}{dtype.itemsize}")
    floats = dtype.kind == "f"

    def turned(of: Callable[[str], str], x: str, to: str, number: Callable[[str, int], str]) -> str:
        return (f"  %{to}.sign = ashr {of(n)} %{x}, {number(n, bits - 1)}\n"
                f"  %{to}.flip = and {of(n)} %{to}.sign, {number(n, int(ends.max))}\n"
                f"  %{to} = xor {of(n)} %{x}, %{to}.flip")

    def body(of: Callable[[str], str], k: str, number: Callable[[str, int], str]) -> str:
        call = f"llvm.{fold}.{n if of is _scalar else f'v{_LANES}{n}'}"
        if not floats:
            return (f"  %wild1.{k} = or {of('i1')} %wild.{k}, zeroinitializer\n"
                    f"  %acc1.{k} = call {of(n)} @{call}({of(n)} %acc.{k}, {of(n)} %x.{k})")
        return (turned(of, f"x.{k}", f"key.{k}", number) + f"""
  %float.{k} = bitcast {of(n)} %x.{k} to {of(t)}
  %nan.{k} = fcmp uno {of(t)} %float.{k}, zeroinitializer
  %wild1.{k} = or {of('i1')} %wild.{k}, %nan.{k}
  %acc1.{k} = call {of(n)} @{call}({of(n)} %acc.{k}, {of(n)} %key.{k})""")

    def number(kind: str, value: int) -> str:
        return str(value)

    nan = int(np.array(np.nan, dtype).view(f"i{dtype.itemsize}")) if floats else 0
    result = (turned(_scalar, "acc.i", "bits", number) + f"\n  %y = select i1 %wild.i, {n} {nan}, {n} %bits"
              if floats else f"  %y = or {n} %acc.i, 0")
    declared = "".join(f"declare {of(n)} @llvm.{fold}.{tag}{n}({of(n)}, {of(n)})\n"
                       for of, tag in ((_scalar, ""), (_vector, f"v{_LANES}")))
    return declared + _fold_text(n, fold, int(ends.min if name == "max" else ends.max), body, result)


def bits_of_rows(name: str, dtype: np.dtype) -> str:
    n = f"i{8 * dtype.itemsize}"

    def body(of: Callable[[str], str], k: str, number: Callable[[str, int], str]) -> str:
        return (f"  %wild1.{k} = or {of('i1')} %wild.{k}, zeroinitializer\n"
                f"  %acc1.{k} = {name} {of(n)} %acc.{k}, %x.{k}")

    return _fold_text(n, name, 0 if name != "and" else 1 if dtype.kind == "b" else -1, body,
                      f"  %y = or {n} %acc.i, 0")


def chosen(kinds: Sequence[np.dtype]) -> str | None:
    """`select_n` by bools."""
    if len(kinds) != 4 or kinds[0].kind != "b":
        return None
    bits = f"i{8 * kinds[3].itemsize}"
    return _loop_text(["i8", bits, bits, bits], lambda of: (
        f"  %c = icmp ne {of('i8')} %x0, zeroinitializer\n"
        f"  %y = select {of('i1')} %c, {of(bits)} %x2, {of(bits)} %x1"))


def converted(kinds: Sequence[np.dtype]) -> str | None:
    """`convert_element_type`: as the reference, floats saturate, and NaN becomes 0."""
    old, new = kinds
    a, b = map(_llvm, kinds)
    wider = new.itemsize > old.itemsize
    if old == new:  # of numbers that adapt to others, or no more
        return copies(new)
    if old.kind == new.kind == "f":
        how = "fpext" if wider else "fptrunc"
    elif new.kind == "b":
        zero = "fcmp une" if old.kind == "f" else "icmp ne"
        return _loop_text([a, b], lambda of: (f"  %c = {zero} {of(a)} %x0, zeroinitializer\n"
                                              f"  %y = zext {of('i1')} %c to {of(b)}"))
    elif old.kind == "f":
        call = f"llvm.fpto{'s' if new.kind == 'i' else 'u'}i.sat"
        tags = {of: (f".{b}.f{8 * old.itemsize}" if of is _scalar else f".v{_LANES}{b}.v{_LANES}f{8 * old.itemsize}")
                for of in (_scalar, _vector)}
        return "".join(f"declare {of(b)} @{call}{tag}({of(a)})\n" for of, tag in tags.items()) + _loop_text(
            [a, b], lambda of: f"  %y = call {of(b)} @{call}{tags[of]}({of(a)} %x0)")
    elif new.kind == "f":
        how = "sitofp" if old.kind == "i" else "uitofp"
    elif old.itemsize == new.itemsize:
        return copies(new)
    else:
        how = ("sext" if old.kind == "i" else "zext") if wider else "trunc"
    return _loop_text([a, b], lambda of: f"  %y = {how} {of(a)} %x0 to {of(b)}")


def extreme(name: str) -> Callable[[Sequence[np.dtype]], str | None]:
    """`max` and `min` of floats: NaN if any is, and +0 is larger than -0."""
    more, zeros = ("ogt", "and") if name == "max" else ("olt", "or")

    def text(kinds: Sequence[np.dtype]) -> str | None:
        if len(kinds) != 3 or kinds[2].kind != "f":
            return None
        t, n = _llvm(kinds[2]), f"i{8 * kinds[2].itemsize}"
        return _loop_text([t, t, t], lambda of: f"""  %first = fcmp {more} {of(t)} %x0, %x1
  %b0 = bitcast {of(t)} %x0 to {of(n)}
  %b1 = bitcast {of(t)} %x1 to {of(n)}
  %equal = fcmp oeq {of(t)} %x0, %x1
  %both = {zeros} {of(n)} %b0, %b1
  %further = select {of('i1')} %first, {of(n)} %b0, {of(n)} %b1
  %some = select {of('i1')} %equal, {of(n)} %both, {of(n)} %further
  %nan = fcmp uno {of(t)} %x0, %x0
  %bits = select {of('i1')} %nan, {of(n)} %b0, {of(n)} %some
  %y = bitcast {of(n)} %bits to {of(t)}""")

    return text


def copies(dtype: np.dtype) -> str:
    bits = f"i{8 * dtype.itemsize}"
    return _loop_text([bits, bits], lambda of: f"  %y = or {of(bits)} %x0, zeroinitializer")
