"""Simplification of programs, keeping every bit of every result.

    b = mul a 1.0                        (an operation that changes nothing)
    c = sin b;  d = sin a                (computed twice)
    e = exp c                            (never used)
    in (add c d)             ->          c = sin a;  in (add c c)

Dead code goes first, so that its cost is that of one look at it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.compiler.rewriting.counters import counted
from anima.compiler.rewriting.inline import has_programs, map_programs
from anima.core.array import ConcreteArray
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.ops.elementwise import and_
from anima.ops.family import Elementwise
from anima.ops.shape import reshape_p, transpose_p
from anima.util import exactly

Program = dict[Var, Eqn]
Rule = Callable[[Eqn, list[Atom], Program], "Atom | Eqn | None"]


def dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Drops equations whose results nothing needs."""
    jaxpr = closed.jaxpr
    live: set[Any] = {v for v in jaxpr.outvars if type(v) is Var}
    kept: list[Eqn] = []
    changed = False
    for eqn in reversed(jaxpr.eqns):
        used = [v in live for v in eqn.outvars]
        if True not in used and not eqn.effects:
            changed = True
            continue
        shrink = eqn.primitive.dce
        if shrink is not None and not all(used):
            eqn, changed = shrink(eqn, used), True
            if eqn is None:
                continue
        kept.append(eqn)
        live.update(v for v in eqn.invars if type(v) is Var)
    if not changed:
        return closed
    pairs = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in live]
    return ClosedJaxpr(Jaxpr([v for v, _ in pairs], jaxpr.invars, jaxpr.outvars, kept[::-1], jaxpr.effects),
                       [c for _, c in pairs])


def simplify(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Applies the algebraic rules, and computes equal things once. Dead code is left for `dead_code`."""
    jaxpr = closed.jaxpr
    env: dict[Var, Atom] = {}
    known: dict[Any, Sequence[Var]] = {}
    program: Program = {}
    eqns: list[Eqn] = []
    for var, value in zip(jaxpr.constvars, closed.consts, strict=True):
        if not var.aval.shape and isinstance(value, ConcreteArray) and value.value.dtype == var.aval.dtype:
            env[var] = Literal(value.value, var.aval)
    for eqn in jaxpr.eqns:
        invars = [env.get(v, v) if type(v) is Var else v for v in eqn.invars]
        rule = RULES.get(eqn.primitive.name)
        better = rule(eqn, invars, program) if rule is not None else None
        if better is None and eqn.outvars:
            better = _constant(eqn, invars)
        if type(better) is Eqn:
            eqn, invars = better, list(better.invars)
        elif better is not None:
            env[eqn.outvars[0]] = better  # type: ignore[assignment]
            continue
        same = _equal(eqn, invars, known) if eqn.outvars else eqn.outvars
        if same is not eqn.outvars:
            env.update(zip(eqn.outvars, same, strict=True))
            continue
        params = eqn.params
        if has_programs(params):
            params = map_programs(counted(eqn.replace(invars=invars)).params, clean)
        new = Eqn(eqn.primitive, invars, eqn.outvars, params, eqn.source, eqn.effects)
        eqns.append(new)
        for var in eqn.outvars:
            program[var] = new
    outvars = [env.get(v, v) if type(v) is Var else v for v in jaxpr.outvars]
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, outvars, eqns, jaxpr.effects), closed.consts)


def clean(closed: ClosedJaxpr) -> ClosedJaxpr:
    """`simplify`, then `dead_code`: for programs inside of others."""
    return dead_code(simplify(closed))


def _equal(eqn: Eqn, invars: list[Atom], known: dict[Any, Sequence[Var]]) -> Sequence[Var]:
    """The results of an equation that computes the same, if one of the `known` does, else its own, known from now on.
    """
    if eqn.effects:
        return eqn.outvars
    atoms = tuple([v if type(v) is Var else (v.val.dtype, v.val.tobytes(), v.aval.shape)  # type: ignore[union-attr]
                   for v in invars])
    try:
        return known.setdefault((eqn.primitive, atoms, *exactly(eqn.params)), eqn.outvars)
    except TypeError:  # a parameter without a hash: there is no telling
        return eqn.outvars


def _constant(eqn: Eqn, invars: list[Atom]) -> Atom | None:
    """The value of a scalar operation on literals; those that would import SciPy for it are left to compiled code."""
    if not invars or any(type(v) is Var for v in invars) or not isinstance(eqn.primitive, Elementwise):
        return None
    if eqn.primitive.loads:
        return None
    out = eqn.outvars[0].aval
    if out.shape:
        return None
    with np.errstate(all="ignore"):
        value = eqn.primitive.eval(*[np.asarray(v.val) for v in invars], **eqn.params)  # type: ignore[union-attr]
    return Literal(np.asarray(value, out.dtype), out)


# ---------------------------------------------------------------- algebra


def _splat(atom: Atom, program: Program) -> Any:
    """The number that every element of an operand is, if that is known."""
    for _ in range(4):
        if type(atom) is Literal:
            return atom.val
        eqn = program.get(atom)  # type: ignore[arg-type]
        if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "reshape"):
            return None
        atom = eqn.invars[0]
    return None


def _same(eqn: Eqn, atom: Atom) -> Atom | None:
    """The operand, if it can stand for the equation's result."""
    out = eqn.outvars[0].aval
    return atom if atom.aval.shape == out.shape and atom.aval.dtype == out.dtype else None


def _neutral(value: Any, either_side: bool = True) -> Rule:
    """`op x value -> x`; `value` maps a dtype to the neutral element there (None: there is none)."""
    def rule(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | None:
        x, y = invars
        want = value(y.aval.dtype)
        if want is None:
            return None
        number = _splat(y, program)
        if number is not None and _equal_bits(number, want):
            return _same(eqn, x)
        if either_side:
            number = _splat(x, program)
            if number is not None and _equal_bits(number, want):
                return _same(eqn, y)
        return None
    return rule


def _equal_bits(a: Any, b: Any) -> bool:
    """Equal numbers, telling 0.0 from -0.0."""
    x, y = np.asarray(a), np.asarray(b)
    return bool(x == y) and (x.dtype.kind in "biu" or bool(np.signbit(x.real) == np.signbit(y.real)))


def _is_real_or_int(dtype: Any) -> bool:
    return dtype.kind in "iufV"


def _zero_to_add(dtype: Any) -> Any:
    # x + 0.0 turns -0.0 into 0.0, x + -0.0 is x.
    return 0 if dtype.kind in "iu" else -0.0 if dtype.kind in "fV" else None


def _one(dtype: Any) -> Any:
    return 1 if _is_real_or_int(dtype) else None


def _zero(dtype: Any) -> Any:
    return 0 if dtype.kind in "iu" else 0.0 if dtype.kind in "fV" else None


def _no_bits(dtype: Any) -> Any:
    return 0 if dtype.kind in "iu" else False


def _all_bits(dtype: Any) -> Any:
    return True if dtype.kind == "b" else np.invert(np.zeros((), dtype))[()]


def _identity(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | None:
    return _same(eqn, invars[0])


def _involution(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | None:
    inner = program.get(invars[0]) if type(invars[0]) is Var else None
    return inner.invars[0] if inner is not None and inner.primitive is eqn.primitive else None


def _reshape(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | Eqn | None:
    same = _same(eqn, invars[0])
    if same is not None:
        return same
    inner = program.get(invars[0]) if type(invars[0]) is Var else None
    if inner is not None and inner.primitive.name in ("reshape", "squeeze"):
        if inner.invars[0].aval.shape == eqn.outvars[0].aval.shape:
            return inner.invars[0]
        return Eqn(reshape_p, [inner.invars[0]], eqn.outvars,
                   {"new_sizes": eqn.outvars[0].aval.shape, "dimensions": None}, eqn.source)
    return None


def _transpose(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | Eqn | None:
    order = eqn.params["permutation"]
    inner = program.get(invars[0]) if type(invars[0]) is Var else None
    if inner is not None and inner.primitive.name == "transpose":
        before = inner.params["permutation"]
        order, invars = tuple(before[p] for p in order), list(inner.invars)
    if tuple(order) == tuple(range(len(order))):
        return invars[0]
    shape = invars[0].aval.shape
    moved = [p for p in order if shape[p] != 1]
    if moved == sorted(moved):  # only dimensions of size 1 move
        return Eqn(reshape_p, invars, eqn.outvars, {"new_sizes": eqn.outvars[0].aval.shape, "dimensions": None},
                   eqn.source)
    return Eqn(transpose_p, invars, eqn.outvars, {"permutation": tuple(order)}, eqn.source)


def _reduce(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | Eqn | None:
    """A reduction of a transposed array is one of the array itself, if the order of what is left stays; so is one of
    what was computed in another shape, if that has an axis for each one that is left: loops then run as it lies."""
    axes = eqn.params["axes"]
    if not axes:
        return _same(eqn, invars[0])
    inner = program.get(invars[0]) if type(invars[0]) is Var else None
    if inner is not None and inner.primitive.name == "reshape" and inner.invars[0] in program:
        before = _axes_before(inner.invars[0].aval.shape, invars[0].aval.shape, axes)
        if before is None:
            return None
        invars, axes = list(inner.invars), before
        eqn = eqn.replace(invars=invars, params={**eqn.params, "axes": axes})
        return _reduce(eqn, invars, program) or eqn
    if inner is None or inner.primitive.name != "transpose":
        return None
    order = inner.params["permutation"]
    kept = [p for d, p in enumerate(order) if d not in axes]
    if kept != sorted(kept):
        return None
    return eqn.replace(invars=list(inner.invars), params={**eqn.params, "axes": tuple(sorted(order[a] for a in axes))})


def _axes_before(old: Shape, new: Shape, axes: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of an array of shape `old` that are `axes` of the array in shape `new`; None if that divides axes."""
    found: list[int] = []
    i = j = 0
    while j < len(new):
        if j not in axes:
            while i < len(old) and old[i] == 1 != new[j]:
                found.append(i)
                i += 1
            if i == len(old) or old[i] != new[j]:
                return None
            i, j = i + 1, j + 1
            continue
        count = 1
        while j < len(new) and j in axes:
            count, j = count * new[j], j + 1
        while i < len(old) and count > 1:
            if not old[i] or count % old[i]:
                return None
            count //= old[i]
            found.append(i)
            i += 1
        if count != 1:
            return None
    found += range(i, len(old))
    return tuple(found) if math.prod(old[i:]) == 1 else None


def direct_product(eqn: Eqn, invars: list[Atom], program: Program) -> Eqn | None:
    """A product of a transposed operand is one of the operand itself, if the order of its other axes stays; one of two
    arrays that are seen as vectors is one of the arrays. `invars` are changed to the new operands."""
    (xc, yc), (xb, yb) = eqn.params["dimension_numbers"]
    if (xc, yc, xb, yb) == ((0,), (0,), (), ()) and not eqn.outvars[0].aval.shape:
        x, y = (_made_by(v, "reshape", program) for v in invars)
        if x is not None and y is not None and x[0].aval.shape == y[0].aval.shape:
            every = (*range(x[0].aval.ndim),)
            invars[:] = x[0], y[0]
            return eqn.replace(invars=invars, params={**eqn.params, "dimension_numbers": ((every, every), ((), ()))})
    axes = [(tuple(xc), tuple(xb)), (tuple(yc), tuple(yb))]
    changed = False
    for place, (contract, batch) in enumerate(axes):
        inner = program.get(invars[place]) if type(invars[place]) is Var else None  # type: ignore[arg-type]
        if inner is None or inner.primitive.name != "transpose":
            continue
        order = inner.params["permutation"]
        free = [p for d, p in enumerate(order) if d not in contract and d not in batch]
        if free == sorted(free):
            axes[place] = tuple(order[a] for a in contract), tuple(order[a] for a in batch)
            invars[place], changed = inner.invars[0], True
    if not changed:
        return None
    numbers = ((axes[0][0], axes[1][0]), (axes[0][1], axes[1][1]))
    return eqn.replace(invars=invars, params={**eqn.params, "dimension_numbers": numbers})


def exchanged_product(eqn: Eqn, product: Eqn) -> Eqn | None:
    """A transposed product as the product of the operands in the other order, if it is that."""
    contract, batch = product.params["dimension_numbers"]
    axes = range(eqn.outvars[0].aval.ndim)
    left = product.invars[0].aval.ndim - len(contract[0])
    if batch[0] or tuple(eqn.params["permutation"]) != (*axes[left:], *axes[:left]):
        return None
    return product.replace(invars=product.invars[::-1], outvars=eqn.outvars, params={
        **product.params, "dimension_numbers": (contract[::-1], batch)})


def _select(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | Eqn | None:
    which = _splat(invars[0], program)
    if which is not None and 0 <= int(which) < len(invars) - 1:
        return _same(eqn, invars[1 + int(which)])
    if len(invars) > 2 and all(v is invars[1] for v in invars[2:]):
        return _same(eqn, invars[1])
    return _low_bits(eqn, invars, program)


def _made_by(atom: Atom, name: str, program: Program) -> list[Atom] | None:
    """The operands of the operation with this name that an atom is the result of."""
    eqn = program.get(atom) if type(atom) is Var else None
    return list(eqn.invars) if eqn is not None and eqn.primitive.name == name else None


def _low_bits(eqn: Eqn, invars: list[Atom], program: Program) -> Eqn | None:
    """The remainder of a division by 2**k that is rounded down: `r = rem x 2**k; select (lt r 0) r (r + 2**k)` is
    `and x (2**k - 1)`."""
    if len(invars) != 3 or invars[1].aval.dtype.kind != "i":
        return None
    rest = invars[1]
    divided, negative, above = (_made_by(a, name, program)
                                for a, name in ((rest, "rem"), (invars[0], "lt"), (invars[2], "add")))
    if divided is None or negative is None or above is None or negative[0] is not rest or above[0] is not rest:
        return None
    divisor, zero, added = (_splat(a[1], program) for a in (divided, negative, above))
    if divisor is None or zero is None or added is None or zero != 0 or added != divisor:
        return None
    number = int(divisor)
    if number <= 0 or number & (number - 1) or divided[0].aval.shape != eqn.outvars[0].aval.shape:
        return None
    dtype = rest.aval.dtype
    mask = Literal(np.asarray(number - 1, dtype), ShapedArray((), dtype))
    return Eqn(and_, [divided[0], mask], eqn.outvars, {}, eqn.source)


def _ne(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | None:
    """`ne condition False -> condition`."""
    if invars[0].aval.dtype.kind != "b" or not _is_false(_splat(invars[1], program)):
        return None
    return _same(eqn, invars[0])


def _is_false(value: Any) -> bool:
    return value is not None and not value


def _and(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | None:
    """`and x True -> x`; what is negative is not zero: `and (lt x 0) (ne x 0) -> lt x 0`."""
    negative, other = (_made_by(a, name, program) for a, name in zip(invars, ("lt", "ne"), strict=True))
    if negative is not None and other is not None and negative[0] is other[0] and all(
            _is_false(_splat(a[1], program)) for a in (negative, other)):
        return _same(eqn, invars[0])
    return _neutral(_all_bits)(eqn, invars, program)  # type: ignore[return-value]


def _integer_pow(eqn: Eqn, invars: list[Atom], program: Program) -> Atom | None:
    return _same(eqn, invars[0]) if eqn.params["y"] == 1 else None


RULES: dict[str, Rule] = {
    "add": _neutral(_zero_to_add), "add_any": _neutral(_zero_to_add), "sub": _neutral(_zero, either_side=False),
    "mul": _neutral(_one), "div": _neutral(_one, either_side=False),
    "or": _neutral(_no_bits), "xor": _neutral(_no_bits), "and": _and, "ne": _ne,
    "shift_left": _neutral(_no_bits, either_side=False), "shift_right_logical": _neutral(_no_bits, either_side=False),
    "shift_right_arithmetic": _neutral(_no_bits, either_side=False),
    "neg": _involution, "not": _involution,
    "convert_element_type": _identity, "copy": _identity, "stop_gradient": _identity,
    "name": _identity,
    "broadcast_in_dim": _identity, "squeeze": _identity, "slice": _identity,
    "reshape": _reshape, "transpose": _transpose, "select_n": _select, "integer_pow": _integer_pow,
    "dot_general": direct_product,
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor"),
                    _reduce),
}
