"""Lowering is index arithmetic: an array value is "the scalar expression at index (i0, .., in)".

A `Scope` is a kernel under construction that knows where arrays come from. Asked for the value of a
variable at an index, it loads it if it is in memory, and otherwise follows the equation that defines it:

    c = exp b;  d = rev c;  e = mul a d        e at i  =  mul(a[i], exp(b[n-1 - i]))

Rules, one per primitive, in the table `AT`: `rule(scope, eqn, index)` gives the value of the equation's
result at that index (a tuple of values for several results). Elementwise primitives need none.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.compiler.ir.index_math import FALSE, TRUE, Index, conjunction
from anima.compiler.ir.loops import INDEX, Const, Expr
from anima.compiler.lowering.nest import KernelBuilder
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Atom, Eqn, Literal, Var
from anima.ops.family import Elementwise
from anima.util import record

ROW = 16  # elements of rows that are worth an index of their own


@record
class Sliced:
    """An array inside of a buffer, at `offset + sum(position * step)`: positions are indices of loops around the
    kernels that use it, each below `bound`. `positions` holds (position, bound, step)."""

    buffer: str
    offset: int
    positions: tuple[tuple[Expr, int, int], ...]


Indices = tuple[Index, ...]
Memory = str | Sliced  # where an array is: a whole buffer, or a part of one
Elements = tuple[Expr, ...]  # a small array as the values of its elements
Rule = Callable[["Scope", Eqn, Indices], Any]

AT: dict[str, Rule] = {}

_names: dict[Any, str] = {}
_IGNORED = frozenset({"accuracy", "input_dtype", "weak_type", "new_dtype", "sharding"})
_SYNONYMS = {"convert_element_type": "cast", "bitcast_convert_type": "bitcast", "add_any": "add"}
_IDENTITIES = frozenset({"copy", "stop_gradient", "name", "optimization_barrier"})


def scalar_type(aval: ShapedArray) -> str:
    """The loop IR's name of an array's element type; `float0` (no information) is a bool."""
    name = _names.get(aval.dtype)
    if name is None:
        name = dtypes.short_name(aval.dtype)
        name = _names[aval.dtype] = "bool" if name == "float0" else name
    return name


def constant(value: Any, dtype: str) -> Const:
    """A NumPy scalar as a constant of the loop IR."""
    if dtype == "bool":
        return Const(bool(value), dtype)
    item = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    if dtype[0] in "iu" and type(item) is not int:
        item = int(item)
    elif dtype[0] in "fb" and type(item) is not float:
        item = float(item)
    elif dtype[0] == "c" and type(item) is not complex:
        item = complex(item)
    return Const(item, dtype)


def at(name: str) -> Callable[[Rule], Rule]:
    """Enters a rule in the table."""
    def enter(rule: Rule) -> Rule:
        AT[name] = rule
        return rule
    return enter


def is_elementwise(eqn: Eqn) -> bool:
    return isinstance(eqn.primitive, Elementwise) and eqn.primitive.name not in AT


class Scope(KernelBuilder):
    """A kernel under construction and where its arrays come from.

    `places` says where variables are in memory, `values` has scalars and the elements of small arrays known by name
    or number, `producers` the equations of all others; `scratch` the rows kept in local memory: (buffer, axes, their
    sizes, block); `starts` where the parts of concatenations begin.
    """

    def __init__(self, places: dict[Var, Memory], producers: dict[Var, Eqn],
                 values: dict[Var, Expr | Elements] | None = None, starts: dict[Eqn, list[int]] | None = None):
        super().__init__()
        self.places = places
        self.producers = producers
        self.values = {} if values is None else values
        self.scratch: dict[Var, tuple[str, tuple[int, ...], Shape, int]] = {}
        self.starts: dict[Eqn, list[int]] = {} if starts is None else starts

    def indices(self, atom: Atom, index: Indices) -> Indices:
        """The index of an elementwise operand whose result is wanted at `index`."""
        shape = atom.aval.shape
        if not shape:
            return ()
        if 1 in shape:
            zero = self.ix.zero
            return tuple(zero if n == 1 else i for n, i in zip(shape, index, strict=True))
        return index

    def at(self, atom: Atom, index: Indices) -> Expr:
        """The value of an array at an index, as a name or a constant."""
        if type(atom) is Literal:
            return constant(atom.val, scalar_type(atom.aval))
        found = self.memo.get((atom, index))
        if found is not None:
            return found
        self._compute(atom, index)  # type: ignore[arg-type]
        return self.memo[atom, index]

    def _compute(self, atom: Var, index: Indices) -> None:
        """Puts the value of `atom` at `index` in the memo; elementwise operands first, without recursion."""
        memo = self.memo
        stack: list[tuple[Var, Indices]] = [(atom, index)]
        while stack:
            key = stack[-1]
            if key in memo:
                stack.pop()
                continue
            var, i = key
            given = self.values.get(var)
            if given is not None and type(given) is not tuple:
                memo[key] = given
                continue
            if given is not None and (var not in self.places or not any(x.terms for x in i)):
                memo[key] = self.element(given, self.ix.flatten(i, var.aval.shape))
                continue
            if var in self.places or var in self.scratch:
                memo[key] = self.stored(var, i)
                continue
            eqn = self.producers[var]
            if is_elementwise(eqn):
                operands = self.operands(eqn, i)
                missing = [k for k in operands if type(k[0]) is Var and k not in memo]
                if missing:
                    stack.extend(reversed(missing))  # type: ignore[arg-type]
                    continue
                if not eqn.primitive.multiple_results:
                    memo[key] = self.scalar(eqn, [memo[k] if type(k[0]) is Var else self.at(*k) for k in operands])
                    continue
            self.define(eqn, i)

    def element(self, values: Elements, index: Index) -> Expr:
        """The value of an element, chosen among all where its index is not a number."""
        if not index.terms:
            return values[index.const]
        found = values[0]
        for number, value in enumerate(values[1:], 1):
            here = self.condition(self.ix.at_least(index, number), index.level)
            found = self.op("select_n", (here, found, value), value.dtype)
        return found

    def operands(self, eqn: Eqn, index: Indices) -> list[tuple[Atom, Indices]]:
        """The operands of an elementwise equation, with their indices."""
        shape = eqn.outvars[0].aval.shape
        return [(v, index if v.aval.shape == shape else self.indices(v, index)) for v in eqn.invars]

    def define(self, eqn: Eqn, index: Indices) -> Any:
        """Computes an equation's results at an index (even those that are also in memory)."""
        if is_elementwise(eqn):
            value: Any = self.scalar(eqn, [self.at(v, i) for v, i in self.operands(eqn, index)])
        else:
            rule = AT.get(eqn.primitive.name)
            if rule is None:
                raise not_lowered(eqn)
            value = rule(self, eqn, index)
        if eqn.primitive.multiple_results:
            for var, one in zip(eqn.outvars, value, strict=True):
                self.memo[var, index] = one
            return value
        self.memo[eqn.outvars[0], index] = value
        return value

    def scalar(self, eqn: Eqn, args: Sequence[Expr]) -> Expr:
        """An elementwise equation's result for scalar operands."""
        name = eqn.primitive.name
        dtype = scalar_type(eqn.outvars[0].aval)
        if name in _IDENTITIES or (name == "convert_element_type" and args[0].dtype == dtype):
            return args[0]
        if name == "add_any":  # cotangents: the sign of a zero means nothing
            for known, other in (args, args[::-1]):
                if type(known) is Const and known.value == 0:
                    return other
        if name == "conj" and args[0].dtype != dtype:
            return self.op("complex", (args[0], Const(0.0, args[0].dtype)), dtype)
        if name == "pow" and args[1].dtype != args[0].dtype:
            args = [args[0], self.cast(args[1], args[0].dtype)]
        params = tuple((k, v) for k, v in eqn.params.items() if k not in _IGNORED) if eqn.params else ()
        return self.op(_SYNONYMS.get(name, name), args, dtype, params)

    def stored(self, var: Var, index: Indices) -> Expr:
        """Loads an element of an array that is in memory."""
        aval = var.aval
        local = self.scratch.get(var)
        if local is not None:
            buffer, axes, shape, level = local
            return self.load(buffer, self.ix.flatten([index[a] for a in axes], shape), scalar_type(aval), level)
        buffer, place = self.address(var, index)
        return self.load(buffer, place, scalar_type(aval))

    def address(self, var: Var, index: Indices) -> tuple[str, Index]:
        """The buffer that holds an array, and the place of an element there."""
        place, flat = self.places[var], self.ix.flatten(index, var.aval.shape)
        if isinstance(place, str):
            return place, flat
        flat = self.ix.offset(flat, place.offset)
        for position, bound, step in place.positions:
            flat = self.ix.add(flat, self.ix.scale(self.ix.opaque(position, 0, max(bound - 1, 0), 0), step))
        return place.buffer, flat

    def write(self, var: Var, index: Indices, value: Expr) -> None:
        """Stores an element of an array that is in memory."""
        self.store(*self.address(var, index), value)


def not_lowered(eqn: Eqn) -> Exception:
    where = f" (at {eqn.source})" if eqn.source else ""
    return eqn.primitive.refusal(eqn.params) or NotImplementedError(
        f"The compiler has no lowering for the primitive '{eqn.primitive.name}'{where}.")


# ---------------------------------------------------------------- shapes


@at("broadcast_in_dim")
def _broadcast_in_dim(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    operand = eqn.invars[0]
    zero = scope.ix.zero
    dims = eqn.params["broadcast_dimensions"]
    return scope.at(operand, tuple(zero if n == 1 else index[d]
                                   for n, d in zip(operand.aval.shape, dims, strict=True)))


@at("reshape")
def _reshape(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    operand = eqn.invars[0]
    old, new = operand.aval.shape, eqn.outvars[0].aval.shape
    if [n for n in old if n != 1] == [n for n in new if n != 1]:
        kept = iter([i for i, n in zip(index, new, strict=True) if n != 1])
        return scope.at(operand, tuple(scope.ix.zero if n == 1 else next(kept) for n in old))
    return scope.at(operand, scope.ix.unflatten(scope.ix.flatten(index, new), old))


@at("squeeze")
def _squeeze(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    operand = eqn.invars[0]
    kept = iter(index)
    gone = eqn.params["dimensions"]
    return scope.at(operand, tuple(scope.ix.zero if d in gone else next(kept) for d in range(operand.aval.ndim)))


@at("transpose")
def _transpose(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    permutation = eqn.params["permutation"]
    inner = [scope.ix.zero] * len(index)
    for i, p in zip(index, permutation, strict=True):
        inner[p] = i
    return scope.at(eqn.invars[0], tuple(inner))


@at("rev")
def _rev(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    ix, shape = scope.ix, eqn.outvars[0].aval.shape
    return scope.at(eqn.invars[0], tuple(
        ix.offset(ix.scale(i, -1), shape[d] - 1) if d in eqn.params["dimensions"] else i
        for d, i in enumerate(index)))


@at("slice")
def _slice(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    return scope.at(eqn.invars[0], _in_whole(scope, eqn, index))


def _in_whole(scope: Scope, eqn: Eqn, index: Indices) -> Indices:
    """The index, in the operand of a slice, of what is at an index of its result."""
    strides = eqn.params.get("strides") or (1,) * len(index)
    return tuple(scope.ix.offset(scope.ix.scale(i, k), a)
                 for i, a, k in zip(index, eqn.params["start_indices"], strides, strict=True))


@at("iota")
def _iota(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    return scope.index_value(index[eqn.params["dimension"]], scalar_type(eqn.outvars[0].aval))


@at("concatenate")
def _concatenate(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    ix, axis = scope.ix, eqn.params["dimension"]
    here = index[axis]
    dtype = scalar_type(eqn.outvars[0].aval)
    starts = scope.starts.get(eqn)
    if starts is None:
        sizes = [v.aval.shape[axis] for v in eqn.invars]
        starts = scope.starts[eqn] = list(itertools.accumulate(sizes, initial=0))
    first = max(bisect.bisect_right(starts, here.lo) - 1, 0)
    last = min(bisect.bisect_right(starts, here.hi), len(eqn.invars))
    parts = [(start, v, v.aval.shape[axis]) for start, v in zip(starts[first:last], eqn.invars[first:last], strict=True)
             if v.aval.shape[axis]][::-1]
    turned = _turned(scope, parts, index, axis)
    if turned is not None:
        return scope.at(*turned)
    result: Expr | None = None
    for start, operand, size in parts:
        inner = ix.clamp(ix.offset(here, -start), 0, size - 1)
        value = scope.at(operand, (*index[:axis], inner, *index[axis + 1:]))
        if result is None:
            result = value
        else:
            scope.used.append(here)
            inside = scope.condition(ix.less(here, start + size), here.level)
            result = scope.op("select_n", (inside, result, value), dtype)
    assert result is not None
    return result


def _turned(scope: Scope, parts: Sequence[tuple[int, Atom, int]], index: Indices, axis: int
            ) -> tuple[Atom, Indices] | None:
    """The array that all parts are slices of, and the index in it, chosen among those in each, if there are whole rows
    at each: an array whose rows are turned is looked at once, not once for each part."""
    ix, here = scope.ix, index[axis]
    if len(parts) < 2 or not any(i.level > here.level and any(a.hi >= ROW - 1 for a, _ in i.terms) for i in index):
        return None
    places: list[Index] = []
    wholes = set()
    for start, operand, _ in parts:
        eqn = scope.producers.get(operand) if type(operand) is Var and operand not in scope.places else None
        if eqn is None or eqn.primitive.name != "slice" or operand in scope.scratch:
            return None
        place = _in_whole(scope, eqn, (*index[:axis], ix.offset(here, -start), *index[axis + 1:]))
        places.append(place[axis])
        wholes.add((eqn.invars[0], place[:axis], place[axis + 1:]))
    if len(wholes) > 1:
        return None
    scope.used.append(here)
    chosen, *others = [scope.let(i.expr(), here.level, "n") for i in places]
    for (start, _, size), other in zip(parts[1:], others, strict=True):
        inside = scope.condition(ix.less(here, start + size), here.level)
        chosen = scope.op("select_n", (inside, chosen, other), INDEX)
    whole, before, after = wholes.pop()
    return whole, (*before, ix.opaque(chosen, 0, whole.aval.shape[axis] - 1, here.level), *after)


@at("pad")
def _pad(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    ix, (operand, fill) = scope.ix, eqn.invars
    outside = scope.at(fill, ())
    if 0 in operand.aval.shape:
        return outside
    conditions, inner, level = [], [], 0
    for i, n, (low, _, interior) in zip(index, operand.aval.shape, eqn.params["padding_config"], strict=True):
        step = interior + 1
        shifted = ix.offset(i, -low)
        near = ix.near(shifted, step)
        if near is None:
            conditions += [ix.at_least(shifted, 0), ix.less(shifted, (n - 1) * step + 1)]
            place, between = ix.divmod(ix.clamp(shifted, 0, (n - 1) * step), step)
            conditions.append(ix.less(between, 1))
        else:
            place, between = near
            conditions += [ix.is_zero(between), ix.at_least(place, 0), ix.less(place, n)]
            place = ix.clamp(place, 0, n - 1)
        inner.append(place)
        level = max(level, i.level)
        scope.used.append(shifted)
    inside = conjunction(conditions)
    if inside is FALSE:
        return outside
    value = scope.at(operand, tuple(inner))
    if inside is TRUE:
        return value
    inside = scope.condition(inside, level)
    return scope.op("select_n", (inside, outside, value), scalar_type(operand.aval))


# ---------------------------------------------------------------- bits and small reductions


@at("threefry2x32")
def _threefry2x32(scope: Scope, eqn: Eqn, index: Indices) -> tuple[Expr, Expr]:
    """Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011): 20 rounds of Threefry-2x32."""
    k0, k1, x0, x1 = [scope.at(v, i) for v, i in scope.operands(eqn, index)]

    def u32(name: str, a: Expr, b: Expr | int) -> Expr:
        return scope.op(name, (a, Const(b, "u32") if isinstance(b, int) else b), "u32")

    keys = (k0, k1, u32("xor", u32("xor", k0, k1), 0x1BD11BDA))
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    x0, x1 = u32("add", x0, keys[0]), u32("add", x1, keys[1])
    for group in range(5):
        for r in rotations[group % 2]:
            x0 = u32("add", x0, x1)
            turned = u32("or", u32("shift_left", x1, r), u32("shift_right_logical", x1, 32 - r))
            x1 = u32("xor", turned, x0)
        x0 = u32("add", x0, keys[(group + 1) % 3])
        x1 = u32("add", u32("add", x1, keys[(group + 2) % 3]), group + 1)
    return x0, x1


@at("bitcast_convert_type")
def _bitcast_convert_type(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    operand, out = eqn.invars[0], eqn.outvars[0].aval
    to = scalar_type(out)
    if operand.aval.ndim == out.ndim:
        return scope.op("bitcast", (scope.at(operand, index),), to)
    bits, new_bits = dtypes.itemsize_bits(operand.aval.dtype), dtypes.itemsize_bits(out.dtype)
    wide, narrow = f"u{max(bits, new_bits)}", f"u{min(bits, new_bits)}"
    if operand.aval.ndim < out.ndim:  # one element becomes several, the low bits first
        value = scope.op("bitcast", (scope.at(operand, index[:-1]),), wide)
        shift = scope.index_value(scope.ix.scale(index[-1], new_bits), wide)
        piece = scope.op("cast", (scope.op("shift_right_logical", (value, shift), wide),), narrow)
        return scope.op("bitcast", (piece,), to)
    total: Expr | None = None
    for place in range(operand.aval.shape[-1]):
        element = scope.at(operand, (*index, scope.ix.const(place)))
        piece = scope.op("cast", (scope.op("bitcast", (element,), narrow),), wide)
        if place:
            piece = scope.op("shift_left", (piece, Const(place * bits, wide)), wide)
        total = piece if total is None else scope.op("or", (total, piece), wide)
    assert total is not None
    return scope.op("bitcast", (total,), to)
