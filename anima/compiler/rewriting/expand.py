"""Rewrites of composite operations into simpler ones, where that is how they run best.

    i = argmax[axes=(1,)] x   ->   m = reduce_max x;  h = x == m or x != x;  i = reduce_min select(h, iota, n)

so that the fusion of rows sees nothing but reductions and maps. Arrays of random keys become arrays of the
words that keys are made of, with one more dimension, and operations on keys the programs on words that their
`body` gives. After this pass no extended dtypes, `argmax` or `argmin` appear.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima.compiler.lowering import contract, linalg
from anima.compiler.lowering.sort import wants_passes
from anima.compiler.machine.target import Target
from anima.compiler.rewriting import convolve, maps
from anima.compiler.rewriting.inline import has_programs, inline, map_programs
from anima.compiler.rewriting.rewrites import Rewrite, Rewriter, is_rewritten, rewrite, rewrite_of
from anima.compiler.rewriting.simplify import direct_product, exchanged_product
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from anima.core.primitive import Primitive
from anima.core.stage import trace_to_jaxpr
from anima.core.trace import EVAL, under
from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_in_dim, broadcasted_iota, full
from anima.ops.index import dynamic_slice_p, dynamic_update_slice_p
from anima.ops.reduce import reduce_and_p, reduce_max_p, reduce_min_p, reduce_or_p
from anima.ops.shape import concatenate, slice_in_dim
from anima.ops.sort import sort_p
from anima.util import exactly

ENTERING = (contract, convolve, linalg, maps)  # modules that enter rewrites

TAPE_LOOPS = ("tape_while", "tape_scan")
RECORDS = "tapes"           # the effect of a program that records values on tapes which die with it ...
RECORDED = "tapes outlive"  # ... or do not: they are among its results


def expand(closed: ClosedJaxpr, target: Target) -> ClosedJaxpr:
    """Replaces composite equations by those that a target computes them by, and random keys by their words."""
    return _simpler(physical(closed), target)


def _simpler(closed: ClosedJaxpr, target: Target, within: bool = False) -> ClosedJaxpr:
    """Replaces composite equations of a program without keys, `within` another one, and of those in it."""
    if not any(is_rewritten(e.primitive.name) or e.primitive.name in _LOOKED_AT or (e.params and has_programs(e.params))
               for e in closed.eqns):
        return closed
    eqns: list[Eqn] = []
    env: dict[Var, Atom] = {}
    made: dict[Var, Eqn] = {}
    bodies: dict[Hashable, ClosedJaxpr] = {}
    constvars, consts = list(closed.jaxpr.constvars), list(closed.consts)
    products, absolutes = _products_for_one(closed.jaxpr), _absolutes_to_square(closed.jaxpr)
    for eqn in itertools.chain.from_iterable(map(contract.points_first, closed.eqns)) if within else closed.eqns:
        if eqn.primitive.name == "transpose" and eqn.invars[0] in products:
            eqn = exchanged_product(eqn, products[eqn.invars[0]]) or eqn
        invars = [env.get(v, v) if type(v) is Var else v for v in eqn.invars]
        if eqn.primitive.name in ("transpose", "reshape", "broadcast_in_dim", "sqrt"):
            made[eqn.outvars[0]] = eqn.replace(invars=invars)
        elif eqn.primitive.name == "dot_general":  # how a product is written depends on how its operands lie
            eqn = direct_product(eqn, invars, made) or eqn
        elif eqn.primitive.name == "div":
            eqn = _by_root(eqn, invars, made, eqns)
        found = rewrite_of(eqn, target)
        if eqn.primitive.name in _SQUARES and eqn.invars[0] in absolutes:
            invars = [env.get(v, v) if type(v) is Var else v for v in absolutes[eqn.invars[0]].invars]
            eqn, found = eqn.replace(invars=invars), _SQUARED
        if found is None:
            inside = partial(_simpler, target=target, within=True)
            params = map_programs(eqn.params, inside) if has_programs(eqn.params) else eqn.params
            eqns.append(eqn.replace(invars=invars, params=params))
            continue
        key = _form(eqn)
        body = bodies.get(key)
        if body is None:
            body = _traced(partial(found.program, eqn, target), [v.aval for v in eqn.invars])
            if found.again:
                body = _simpler(body, target, within)
            constvars += body.jaxpr.constvars
            consts += body.consts
            if key is not None:
                bodies[key] = body
        jaxpr = body.jaxpr
        inner: dict[Var, Atom] = dict(zip(jaxpr.invars, invars, strict=True))
        for e in jaxpr.eqns:
            inner.update((v, Var(v.aval)) for v in e.outvars)
            eqns.append(Eqn(e.primitive, [inner.get(v, v) if type(v) is Var else v for v in e.invars],
                            [inner[v] for v in e.outvars], e.params, eqn.source, e.effects))  # type: ignore[misc]
        env.update(zip(eqn.outvars, (inner.get(v, v) if type(v) is Var else v for v in jaxpr.outvars), strict=True))
    outvars = [env.get(v, v) if type(v) is Var else v for v in closed.jaxpr.outvars]
    return ClosedJaxpr(Jaxpr(constvars, closed.jaxpr.invars, outvars, eqns, closed.jaxpr.effects), consts)


def _products_for_one(jaxpr: Jaxpr) -> dict[Atom, Eqn]:
    """The products that one equation reads, and that no other is equal to, by their results."""
    products = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    if not products:
        return {}
    uses = Counter(v for atoms in (jaxpr.outvars, *(e.invars for e in jaxpr.eqns)) for v in atoms)
    equal = Counter((*map(id, e.invars), str(e.params)) for e in products)
    return {e.outvars[0]: e for e in products
            if uses[e.outvars[0]] == 1 and equal[(*map(id, e.invars), str(e.params))] == 1}


def _absolutes_to_square(jaxpr: Jaxpr) -> dict[Atom, Eqn]:
    """The absolute values of complex numbers of which nothing but the square is needed, by their results."""
    found = {e.outvars[0]: e for e in jaxpr.eqns if e.primitive is el.abs and e.invars[0].aval.dtype.kind == "c"}
    squared: Counter[Atom] = Counter()
    for e in jaxpr.eqns if found else ():
        if e.primitive.name in _SQUARES and e.invars[-1] is e.invars[0] and e.params.get("y", 2) == 2:
            squared.update(e.invars)
    uses = Counter(v for atoms in (jaxpr.outvars, *(e.invars for e in jaxpr.eqns if found)) for v in atoms)
    needed = {id(e.invars[0]) for v, e in found.items() if squared[v] < uses[v]}
    return {v: e for v, e in found.items() if squared[v] and id(e.invars[0]) not in needed}


def _squared_absolute(eqn: Eqn, target: Target, z: Any) -> Any:
    """|z|**2 without a root; of what is infinite in one part, as of hypot, infinity."""
    x, y = el.abs(el.real(z)), el.abs(el.imag(z))
    infinity = np.asarray(np.inf, x.dtype)
    infinite = el.or_(el.eq(x, infinity), el.eq(y, infinity))
    return el.select_n(infinite, el.add(el.mul(x, x), el.mul(y, y)), full(x.shape, infinity))


_LOOKED_AT = ("sqrt", "abs")
_SQUARES = frozenset(("integer_pow", "square", "mul"))
_SQUARED = Rewrite(_squared_absolute, lambda eqn, target: True, False)


def _by_root(eqn: Eqn, invars: list[Atom], made: dict[Var, Eqn], eqns: list[Eqn]) -> Eqn:
    """A quotient by sqrt(x), repeated or not, is a product with rsqrt(x). `invars` are changed to the new operands."""
    chain: list[Eqn] = []
    root = made.get(invars[1]) if type(invars[1]) is Var else None
    while root is not None and root.primitive.name in ("broadcast_in_dim", "reshape"):
        chain.append(root)
        root = made.get(root.invars[0]) if type(root.invars[0]) is Var else None
    if root is None or root.primitive.name != "sqrt" or root.outvars[0].aval.dtype.name not in ("float32", "float64"):
        return eqn
    inverse = root.invars[0]
    for e in (root, *chain[::-1]):
        primitive = el.rsqrt if e is root else e.primitive
        eqns.append(e.replace(primitive=primitive, invars=[inverse], outvars=[Var(e.outvars[0].aval)]))
        inverse = eqns[-1].outvars[0]
    invars[1] = inverse
    return Eqn(el.mul, invars, eqn.outvars, {}, eqn.source)


def _form(eqn: Eqn) -> Hashable | None:
    """What the rewrite of an equation depends on; None if that cannot be compared."""
    atoms = tuple((v.aval, v.val.tobytes() if type(v) is Literal else None) for v in eqn.invars)
    try:
        key = eqn.primitive, exactly(eqn.params), atoms, tuple(v.aval for v in eqn.outvars)
        hash(key)
    except TypeError:
        return None
    return key


def _as_list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (list, tuple)) else [x]


# ---------------------------------------------------------------- keys


def is_key(aval: ShapedArray) -> bool:
    return isinstance(aval.dtype, dtypes.ExtendedDType)


def words(aval: ShapedArray) -> ShapedArray:
    """The type of the words of an array of keys."""
    if not is_key(aval):
        return aval
    base = getattr(aval.dtype, "word", aval.dtype.base)  # tapes are addresses in compiled code
    return ShapedArray(aval.shape + tuple(aval.dtype.element_shape), np.dtype(base))


def physical(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with arrays of keys replaced by arrays of their words."""
    if not _mentions_keys(closed.jaxpr):
        return closed
    return _Words(closed).program()


class _Words:
    """Rewrites one program: `env` has what stands for each variable that was replaced."""

    def __init__(self, closed: ClosedJaxpr):
        self.closed = closed
        self.env: dict[Var, Atom] = {}
        self.eqns: list[Eqn] = []
        self.constvars: list[Var] = []
        self.consts: list[Any] = []

    def read(self, atom: Atom) -> Atom:
        return self.env.get(atom, atom) if type(atom) is Var else atom

    def define(self, var: Var) -> Var:
        """The variable for the words of `var`."""
        if not is_key(var.aval):
            return var
        new = self.env[var] = Var(words(var.aval))
        return new

    def program(self) -> ClosedJaxpr:
        jaxpr = self.closed.jaxpr
        for var, value in zip(jaxpr.constvars, self.closed.consts, strict=True):
            if isinstance(value, ConcreteArray) and is_key(value.aval):
                given = value.aval.dtype.to_words(value.value) if hasattr(value.aval.dtype, "to_words") else value.value
                value = ConcreteArray(given, words(value.aval))
            self.constvars.append(self.define(var))
            self.consts.append(value)
        invars = [self.define(v) for v in jaxpr.invars]
        for eqn in jaxpr.eqns:
            self.equation(eqn)
        outvars = [self.read(v) for v in jaxpr.outvars]
        effects = jaxpr.effects
        if not effects & {RECORDS, RECORDED} and any(map(_records, self.eqns)):
            effects |= {RECORDED if any(hasattr(v.aval.dtype, "word") for v in jaxpr.outvars) else RECORDS}
        return ClosedJaxpr(Jaxpr(self.constvars, invars, outvars, self.eqns, effects), self.consts)

    def equation(self, eqn: Eqn) -> None:
        avals, params, primitive = [v.aval for v in eqn.invars], eqn.params, eqn.primitive
        if primitive.on_words and primitive.body is not None:
            self.splice(eqn, physical(inline(primitive.body(params, avals))))
            return
        if has_programs(params):
            params = map_programs(params, physical)
            if primitive.name in TAPE_LOOPS:
                params["words"] = True
        elif primitive.name in ON_WORDS and any(map(is_key, avals)):
            self.splice(eqn, _traced(partial(ON_WORDS[primitive.name], eqn), [words(a) for a in avals]))
            return
        elif any(map(is_key, avals)) or any(is_key(v.aval) for v in eqn.outvars):
            base = primitive.physical(avals, params)
            if base is None:
                raise TypeError(f"{primitive.name} does not accept arrays of random keys.")
            params = base
        invars = [self.read(v) for v in eqn.invars]
        self.eqns.append(eqn.replace(invars=invars, outvars=[self.define(v) for v in eqn.outvars], params=params))

    def splice(self, eqn: Eqn, body: ClosedJaxpr) -> None:
        """Adds the equations of `body`, with variables of their own, in the place of `eqn`."""
        inner: dict[Var, Atom] = dict(zip(body.jaxpr.invars, map(self.read, eqn.invars), strict=True))
        for var, value in zip(body.jaxpr.constvars, body.consts, strict=True):
            inner[var] = Var(var.aval)
            self.constvars.append(inner[var])  # type: ignore[arg-type]
            self.consts.append(value)
        for e in body.jaxpr.eqns:
            invars = [inner.get(v, v) if type(v) is Var else v for v in e.invars]
            outvars = [Var(v.aval) for v in e.outvars]
            inner.update(zip(e.outvars, outvars, strict=True))
            self.eqns.append(e.replace(invars=invars, outvars=outvars, source=eqn.source))
        results = (inner.get(v, v) if type(v) is Var else v for v in body.jaxpr.outvars)
        self.env.update(zip(eqn.outvars, results, strict=True))


def _traced(rule: Callable[..., Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """The program of a rule on operands of these types."""
    return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, lambda *xs: _as_list(rule(*xs)), list(avals)))


def _records(eqn: Eqn) -> bool:
    """Whether an equation makes tapes that it does not free; the programs in it say so of themselves by now."""
    return eqn.primitive.name in TAPE_LOOPS or any(RECORDED in inner.effects for inner in subjaxprs(eqn.params))


def _mentions_keys(jaxpr: Jaxpr) -> bool:
    if any(is_key(v.aval) for v in (*jaxpr.invars, *jaxpr.constvars)):
        return True
    return any(e.primitive.on_words or (e.params and has_programs(e.params))
               or any(is_key(v.aval) for v in e.outvars) for e in jaxpr.eqns)


# ---------------------------------------------------------------- operations on the words of keys


def _select_words(eqn: Eqn, which: Any, *cases: Any) -> Any:
    """A choice of keys chooses all of their words alike."""
    rank = eqn.outvars[0].aval.ndim
    cases = tuple(_led(x, v.aval.ndim, rank) for x, v in zip(cases, eqn.invars[1:], strict=True))
    if which.shape:
        more = len(cases[0].shape) - rank
        which = broadcast_in_dim(which, (*which.shape, *(1,) * more), tuple(range(rank)))
    return el.select_n_p.bind(which, *cases)


def _led(x: Any, rank: int, wanted: int) -> Any:
    """The words of keys of `rank` dimensions with dimensions of size 1 in front, so that they are `wanted`."""
    more = wanted - rank
    return x if not more else broadcast_in_dim(x, (1,) * more + tuple(x.shape), tuple(range(more, more + len(x.shape))))


def _compare_words(compare: Primitive, reduce: Primitive) -> Callable[..., Any]:
    """Keys are equal if all of their words are."""
    def compared(eqn: Eqn, x: Any, y: Any) -> Any:
        rank = eqn.outvars[0].aval.ndim
        x, y = (_led(z, v.aval.ndim, rank) for z, v in zip((x, y), eqn.invars, strict=True))
        same = compare.bind(x, y)
        return reduce.bind(same, axes=tuple(range(rank, len(same.shape))))
    return compared


def _dynamic_slice_words(eqn: Eqn, x: Any, *starts: Any) -> Any:
    """Windows of keys hold all of their words."""
    inner = tuple(x.shape[len(starts):])
    return dynamic_slice_p.bind(x, *starts, *_zeros(starts, inner), slice_sizes=eqn.params["slice_sizes"] + inner)


def _dynamic_update_words(eqn: Eqn, x: Any, update: Any, *starts: Any) -> Any:
    return dynamic_update_slice_p.bind(x, update, *starts, *_zeros(starts, x.shape[len(starts):]))


def _zeros(starts: Sequence[Any], dims: Sequence[int]) -> list[Any]:
    dtype = starts[0].dtype if starts else np.dtype(np.int32)
    return [np.zeros((), dtype)] * len(dims)


ON_WORDS: dict[str, Callable[..., Any]] = {  # (equation, *words) -> results
    "dynamic_slice": _dynamic_slice_words,
    "dynamic_update_slice": _dynamic_update_words,
    "eq": _compare_words(el.eq, reduce_and_p),
    "ne": _compare_words(el.ne, reduce_or_p),
    "select_n": _select_words,
}


# ---------------------------------------------------------------- rewrites


def _arg_extreme(reduce: Primitive) -> Rewriter:
    """The first place of the extreme value, or of the first NaN."""
    def found(eqn: Eqn, target: Target, x: Any) -> Any:
        (axis,), index_dtype = eqn.params["axes"], eqn.params["index_dtype"]
        kept = tuple(d for d in range(len(x.shape)) if d != axis)
        best = broadcast_in_dim(reduce.bind(x, axes=(axis,)), x.shape, kept)
        here = el.eq(x, best)
        if dtypes.issubdtype(x.dtype, np.inexact):
            here = el.or_(here, el.ne(x, x))
        places = broadcasted_iota(index_dtype, x.shape, axis)
        beyond = full(x.shape, np.asarray(max(x.shape[axis] - 1, 0), index_dtype))
        return reduce_min_p.bind(el.select_n_p.bind(here, beyond, places), axes=(axis,))
    return found


rewrite("argmax")(_arg_extreme(reduce_max_p))
rewrite("argmin")(_arg_extreme(reduce_min_p))


def _sorts(eqn: Eqn, target: Target) -> bool:
    aval, axis = eqn.invars[0].aval, eqn.params["axis"]
    return aval.size > 0 and target.sorts(eqn.params["k"], aval.shape[axis], aval.size // aval.shape[axis])


@rewrite("top_k", where=_sorts, again=True)
def _top_k(eqn: Eqn, target: Target, x: Any) -> Any:
    """The first k of a stable sort in descending order, NaN first."""
    k, axis = eqn.params["k"], eqn.params["axis"]
    places = broadcasted_iota(np.dtype(np.int32), x.shape, axis)
    _, values, order = sort_p.bind(_descending(x), x, places, dimension=axis, is_stable=True, num_keys=1)
    return [slice_in_dim(values, 0, k, axis=axis), slice_in_dim(order, 0, k, axis=axis)]


_FEW_KEPT = 3     # elements of a row that are taken one by one ...
_SHORT_ROW = 512  # ... if it is no longer than this: each goes through all of it
_SOME_ROWS = 16   # rows from which on that is quicker than to keep the best ones of each in order


def _takes_one_by_one(eqn: Eqn, target: Target) -> bool:
    aval, length = eqn.invars[0].aval, eqn.invars[0].aval.shape[eqn.params["axis"]]
    return type(target) is Target and aval.dtype != np.bool_ and 1 <= eqn.params["k"] <= _FEW_KEPT and \
        length <= _SHORT_ROW and aval.size >= _SOME_ROWS * length


@rewrite("top_k", where=_takes_one_by_one)
def _one_by_one(eqn: Eqn, target: Target, x: Any) -> Any:
    """Of many short rows: the first of the largest, the first of those that remain, and so on."""
    axis, kept = eqn.params["axis"], tuple(d for d in range(len(x.shape)) if d != eqn.params["axis"])
    keys, places = _descending(x), broadcasted_iota(np.dtype(np.int32), x.shape, axis)
    last = full(keys.shape, np.asarray(dtypes.iinfo(keys.dtype).max, keys.dtype))
    beyond = full(x.shape, np.asarray(x.shape[axis] - 1, np.int32))
    taken, best, order = None, [], []
    for _ in range(eqn.params["k"]):
        free = keys if taken is None else el.select(taken, last, keys)
        best.append(reduce_min_p.bind(free, axes=(axis,)))
        here = el.eq(keys, broadcast_in_dim(best[-1], x.shape, kept))
        if taken is not None:
            here = el.and_(here, el.not_(taken))
        order.append(reduce_min_p.bind(el.select(here, places, beyond), axes=(axis,)))
        found = el.eq(places, broadcast_in_dim(order[-1], x.shape, kept))
        taken = found if taken is None else el.or_(taken, found)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1:])
    together = [concatenate([broadcast_in_dim(v, shape, kept) for v in values], axis) for values in (best, order)]
    return [_ascending(together[0], x.dtype), together[1]]


@rewrite("sort", where=wants_passes)
def _sort(eqn: Eqn, target: Target, *xs: Any) -> Any:
    """One stable sort for each key, by the last key first."""
    count = eqn.params["num_keys"]
    for key in reversed(range(count)):
        order = [key, *(k for k in range(len(xs)) if k != key)]
        found = sort_p.bind(*[xs[k] for k in order], **{**eqn.params, "num_keys": 1, "is_stable": True})
        xs = tuple(found[order.index(k)] for k in range(len(xs)))
    return xs


def _descending(x: Any) -> Any:
    """Integers in the opposite order of `x`; NaN comes before all else."""
    if not dtypes.issubdtype(x.dtype, np.floating):
        return el.not_(x)
    wide = el.convert(x, np.dtype(np.float32)) if x.dtype.itemsize < 4 else x
    signed = np.dtype(f"int{8 * wide.dtype.itemsize}")
    most = full(x.shape, np.asarray(np.iinfo(signed).max, signed))
    bits = el.bitcast_convert_type(wide, signed)
    ordered = el.select(el.lt(bits, full(x.shape, np.asarray(0, signed))), el.xor(bits, most), bits)
    return el.not_(el.select(el.ne(wide, wide), most, ordered))


def _ascending(keys: Any, dtype: np.dtype) -> Any:
    """Of `_descending(x)`, the numbers `x` of a dtype."""
    if not dtypes.issubdtype(dtype, np.floating):
        return el.not_(keys)
    wide = np.dtype(f"float{8 * keys.dtype.itemsize}")
    most = full(keys.shape, np.asarray(dtypes.iinfo(keys.dtype).max, keys.dtype))
    ordered = el.not_(keys)
    bits = el.select(el.lt(ordered, full(keys.shape, np.asarray(0, keys.dtype))), el.xor(ordered, most), ordered)
    return el.convert(el.bitcast_convert_type(bits, wide), dtype)


_MOST_FACTORS = 8  # of powers that are products: to 8 ulp, as those to integers


def _exponent(eqn: Eqn) -> float:
    """The exponent of a power if it is a literal real number; else NaN."""
    y = eqn.invars[1]
    return float(y.val.real) if type(y) is Literal and dtypes.issubdtype(y.aval.dtype, np.inexact) and y.val.imag == 0 \
        else np.nan


def _is_whole(eqn: Eqn, target: Target) -> bool:
    # Of complex numbers no higher ones: where a part of a product is infinite, those after it are NaN.
    is_complex = eqn.outvars[0].aval.dtype.kind == "c"
    return _exponent(eqn) in range(-1, 4) if is_complex else abs(_exponent(eqn)) in range(_MOST_FACTORS + 1)


@rewrite("pow", where=_is_whole)
def _product_of_powers(eqn: Eqn, target: Target, x: Any, y: Any) -> Any:
    return el.integer_pow(x, int(_exponent(eqn)))


def _is_root(eqn: Eqn, target: Target) -> bool:
    return eqn.outvars[0].aval.dtype.name in ("float32", "float64") and abs(_exponent(eqn)) in (0.5, 1.5, 2.5)


@rewrite("pow", where=_is_root)
def _power(eqn: Eqn, target: Target, x: Any, y: Any) -> Any:
    """x**y for y = 1/2, 3/2, 5/2 and their negatives by square roots, to 4 ulp; infinity and +0 from -infinity and -0,
    as C's pow."""
    exponent = _exponent(eqn)
    infinity, zero, one = (full(x.shape, np.asarray(number, x.dtype)) for number in (np.inf, 0.0, 1.0))
    is_infinite, positive = el.eq(el.abs(x), infinity), el.add(x, zero)  # -0 + 0 is +0
    power = {0.5: one, 1.5: el.abs(x), 2.5: el.square(x)}[abs(exponent)]
    if exponent > 0:
        return el.mul(power, el.select(is_infinite, infinity, el.sqrt(positive)))
    return el.div(el.select(is_infinite, zero, el.rsqrt(positive)), power)
