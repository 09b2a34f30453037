"""Staging: running a function on tracers that record what is done to them as a jaxpr.

    >>> jaxpr, consts = trace_to_jaxpr(lambda x: [x * 2.0], [ShapedArray((3,), np.dtype(np.float32))])
    >>> jaxpr
    { lambda ; a:f32[3]. let b:f32[3] = mul a 2.0 in (b,) }

A value that is not a tracer of the recording trace becomes a literal (scalars) or a constvar.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import errors, tree
from anima.config import config
from anima.core import dtypes, source
from anima.core.array import Array, ConcreteArray, PlacedArray
from anima.core.avals import ShapedArray, ShardedArray
from anima.core.axes import Manual, ordered
from anima.core.check import check_jaxpr
from anima.core.explicit import typed
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from anima.core.primitive import Primitive
from anima.core.refs import AbstractRef, Ref, StagedRef
from anima.core.state import current
from anima.core.trace import CompileTimeTrace, Trace, Tracer, aval_of, check_leaks, numpy_value, under
from anima.util import deeper, record


@record
class Traced:
    """What is being traced: the user's function, by whom, and its arguments' names in order."""

    name: str = "<function>"
    place: str = ""
    by: str = "jit"
    arg_names: tuple[str, ...] = ()
    result_paths: tuple[str, ...] | None = None

    traced_for = property(lambda self: self.by)

    @property
    def func_src_info(self) -> str:
        return f"{self.name} at {self.place}" if self.place else self.name


Finish = Callable[[Any, list[Any]], list[Any]]  # makes results of what a function returns, and the leaves of that
_LARGE_CONSTANT = 1 << 20  # bytes
_INTERNAL = Traced()  # a program that Anima derives: nobody's function


_copies: weakref.WeakValueDictionary[int, ConcreteArray] = weakref.WeakValueDictionary()


def _copied(x: np.ndarray, aval: ShapedArray) -> ConcreteArray:
    """The elements of an array that may be written to later: one copy for all programs that see the same ones."""
    known = _copies.get(id(x))
    if known is not None and known.aval == aval and known.elements().tobytes() == x.astype(aval.dtype).tobytes():
        return known
    copy = _copies[id(x)] = ConcreteArray(np.array(x, aval.dtype, order="C"), aval)
    return copy


class StageTracer(Tracer):
    """A variable of the program being recorded, or a number in it."""

    __slots__ = ("source", "variable")

    def __init__(self, owner: StageTrace, var: Atom, where: source.Source | None = None):
        self.owner = owner
        self.aval = var.aval
        self.variable = var
        self.source = where
        if owner.made is not None:
            owner.made.append(weakref.ref(self))

    def origin_text(self) -> str:
        return self.owner.origin_text(self)  # type: ignore[attr-defined]

    def from_numbers(self) -> bool:
        """Whether the arguments that it comes from are single numbers."""
        return not any(v.aval.shape for _, v in self.owner.arguments_behind(self.variable))  # type: ignore[attr-defined]

    def made_text(self) -> str:
        return self.owner.made_text(self)  # type: ignore[attr-defined]


class StageTrace(Trace):
    """Records equations. `consts` maps the identity of a closed-over value to its variable."""

    label = "DynamicJaxprTrace"
    holds_refs = False  # they are variables
    keeps_places = False  # the program runs where its constants are, single numbers too

    def __init__(self, parent: Trace | None, traced: Traced = _INTERNAL):
        super().__init__(parent)
        self.traced = traced
        self.around = len(current.names)  # names around all of the program, which its equations do not tell of
        self.invars: list[Var] = []
        self.eqns: list[Eqn] = []
        self.consts: dict[int, tuple[Var, Any]] = {}
        self.alike: dict[tuple[ShapedArray, int], tuple[Var, ConcreteArray]] = {}  # constants by what they hold
        self.stages = False  # whether constants became variables before anything used them

    def describe(self) -> str:
        return f"{self.label}(level={self.level}/0)"

    def new_arg(self, aval: ShapedArray, source_info: Any = None) -> StageTracer | StagedRef:
        var = Var(aval)
        self.invars.append(var)
        return self._standing_for(var)

    def _standing_for(self, var: Var, where: source.Source | None = None) -> StageTracer | StagedRef:
        return (StagedRef if isinstance(var.aval, AbstractRef) else StageTracer)(self, var, where)

    def atom(self, x: Any) -> Atom:
        """The atom for an operand: this trace's variable, a literal, or a constvar."""
        if isinstance(x, StageTracer) and x.owner is self:
            return x.variable
        if isinstance(x, Ref):
            own = isinstance(x, StagedRef) and x.owner is self
            return x.variable if own else self.const(x, x.aval)  # type: ignore
        if isinstance(x, Tracer):
            if not x.owner.alive:
                raise errors.UnexpectedTracerError(errors.leaked_tracer_message(x))
            return self.const(x, x.aval)
        aval = aval_of(x)
        stays = self.keeps_places and type(x) is PlacedArray and x.committed
        if not (aval.shape or stays or isinstance(aval.dtype, dtypes.ExtendedDType)):
            return Literal(x.value if isinstance(x, ConcreteArray) else x, aval)
        return self.const(x, aval)

    def const(self, x: Any, aval: ShapedArray) -> Var:
        known = self.consts.get(id(x))
        if known is None:
            kept = _copied(x, aval) if isinstance(x, np.ndarray) else x
            known = self.consts[id(x)] = (self._variable_of(kept, aval), (kept, x))
        return known[0]

    def _variable_of(self, x: Any, aval: ShapedArray) -> Var:
        """A new variable; that of an array with the same elements, if there is one and they are not too many to look:
        NumPy arrays that a function closes over become other arrays each time it uses them."""
        if (x.__class__ is not ConcreteArray or isinstance(aval.dtype, dtypes.ExtendedDType)
                or x.nbytes > _LARGE_CONSTANT):
            return Var(aval)
        data = x.elements().tobytes()
        var, known = self.alike.setdefault((aval, hash(data)), (Var(aval), x))
        return var if known is x or known.elements().tobytes() == data else Var(aval)

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        atoms = [self.atom(x) for x in args]
        explicit = False
        for a in atoms:
            kind = type(a.aval)
            if kind is not ShapedArray:
                if kind is AbstractRef and not primitive.takes_refs:
                    raise ValueError(errors.ref_as_array_message(a.aval, primitive.name))
                explicit = explicit or kind is ShardedArray
        where = current.source or source.here()
        if current.names and where is not None:
            where = where._replace(names=current.names[self.around:] + where.names)
        vma = None
        if current.manual is not None and primitive.typed and not any(subjaxprs(params)):
            if primitive.takes_refs:
                self._check_varying(atoms)
            else:
                atoms, vma = self._typed(primitive, atoms, params)
        out_avals = primitive.infer(*[a.aval for a in atoms], **params)
        many = primitive.multiple_results
        if vma is not None:
            out_avals = [a.update(vma=vma) for a in out_avals] if many else out_avals.update(vma=vma)
        if explicit:
            outs = typed(primitive, [a.aval for a in atoms], out_avals if many else [out_avals], params)
            out_avals = outs if many else outs[0]
        outvars = [Var(a) for a in out_avals] if many else [Var(out_avals)]
        self.eqns.append(Eqn(primitive, atoms, outvars, params, where, eqn_effects(primitive, params)))
        if many:
            return [StageTracer(self, v, where) for v in outvars]
        if primitive.takes_refs:
            return self._standing_for(outvars[0], where)
        return StageTracer(self, outvars[0], where)

    def _typed(self, primitive: Primitive, atoms: list[Atom],
               params: dict[str, Any]) -> tuple[list[Atom], frozenset[Any]]:
        """The operands, all declared to vary along the axes of the mesh that the operation wants them to vary along,
        and the axes that its results vary along."""
        manual: Manual = current.manual
        wanted, results = primitive.manual(frozenset().union(*(a.aval.vma for a in atoms)), manual.names, params)
        for k, a in enumerate(atoms):
            missing = wanted - a.aval.vma
            if missing:
                declared = StageTracer(self, a) if isinstance(a, Var) else literal_array(a)
                atoms[k] = self.atom(self.process(manual.vary, [declared], {"axes": ordered(missing)}))
        return atoms, results

    @staticmethod
    def _check_varying(atoms: list[Atom]) -> None:
        """ValueError where a value that varies along an axis of the mesh would go into a reference that does not."""
        held = [a.aval.inner_aval.vma for a in atoms if isinstance(a.aval, AbstractRef)]  # type: ignore[attr-defined]
        for a in atoms:
            more = a.aval.vma - held[0] if held and not isinstance(a.aval, AbstractRef) else frozenset()
            if more:
                names = ", ".join(sorted(map(str, more)))
                raise ValueError(f"A {a.aval.str_short()} goes into, or chooses in, a reference to what does not vary "
                                 f"along {names}. Fix: new_ref(anima.lax.pcast(x, {tuple(more)}, to='varying')).")

    def finish(self, outs: Sequence[Any]) -> tuple[Jaxpr, list[Any]]:
        """The recorded program with these results, and the values of its constvars."""
        if self.traced is not _INTERNAL:
            self._refuse_refs(outs)
        outvars = [self.atom(x) for x in outs]
        constants = {var: kept for var, (kept, _) in self.consts.values()}
        if self.stages:
            used = {a for atoms in (outvars, *(e.invars for e in self.eqns)) for a in atoms if isinstance(a, Var)}
            constants = {var: kept for var, kept in constants.items() if var in used}
        effects = frozenset().union(*(e.effects for e in self.eqns)) if self.eqns else frozenset()
        self.alive = False
        return Jaxpr([*constants], self.invars, outvars, self.eqns, effects, self.traced), [*constants.values()]

    def _refuse_refs(self, outs: Sequence[Any]) -> None:
        """ValueError if a function of the user's returns a reference."""
        for k, x in enumerate(outs):
            if isinstance(x, Ref):
                t = self.traced
                where = f" as result number {k}" if len(outs) > 1 else ""
                raise ValueError(
                    f"function {t.name}{f' at {t.place}' if t.place else ''} traced for {t.by} returned a mutable "
                    f"array reference of type {x.aval!r}{where}, but mutable array references cannot be returned.\n"
                    f"{x.made_text()}\n"  # type: ignore[attr-defined]
                    "Fix: return what it holds, `r[...]` or `freeze(r)`; a reference made outside of the function and "
                    "passed to it is changed in place.")

    def origin_text(self, tracer: StageTracer | StagedRef) -> str:
        """The sentence of the documents: what was being traced, and on which arguments this depends."""
        t = self.traced
        place = f" at {t.place}" if t.place else ""
        text = f"The error occurred while tracing the function {t.name}{place} for {t.by}."
        names = [name for name, _ in self.arguments_behind(tracer.variable)]
        if names:
            plural = "s" if len(names) > 1 else ""
            text += (" This concrete value was not available in Python because it depends on the "
                     f"value{plural} of the argument{plural} {', '.join(names)}.")
        elif tracer.source:
            text += f" The value was made at {tracer.source}."
        return text

    def made_text(self, tracer: StageTracer | StagedRef) -> str:
        """Where a variable was made: the user's line, or which argument it is."""
        t = self.traced
        place = f" at {t.place}" if t.place else ""
        if tracer.source:
            return (f"It was made {errors.line_of(tracer.source)}\n"
                    f"  while tracing the function {t.name}{place} for {t.by}.")
        names = [f"the argument {n}" for n, v in zip(t.arg_names, self.invars, strict=False) if v is tracer.variable]
        return f"It was {names[0] if names else 'an argument'} of the function {t.name}{place}, traced for {t.by}."

    def arguments_behind(self, var: Atom) -> list[tuple[str, Var]]:
        """The arguments that a variable comes from, by name."""
        needed = {var}
        for eqn in reversed(self.eqns):
            if any(v in needed for v in eqn.outvars):
                needed.update(v for v in eqn.invars if isinstance(v, Var))
        return [(n, v) for n, v in zip(self.traced.arg_names, self.invars, strict=False) if v in needed]


def staged(x: ConcreteArray) -> Array:
    """A known array as a value of the program being recorded, if one is: programs in it see a variable of that one."""
    trace = current.trace
    while trace is not None and not isinstance(trace, (StageTrace, CompileTimeTrace)):
        trace = trace.parent
    if not isinstance(trace, StageTrace):
        return x
    trace.stages = True
    return StageTracer(trace, trace.atom(x), source.here())


def eqn_effects(primitive: Primitive, params: dict[str, Any]) -> frozenset[str]:
    """Effects of one equation: the primitive's own and those of the programs it holds."""
    effects = primitive.effects_of(params)
    for inner in subjaxprs(params) if params else ():
        effects = effects | inner.effects
    return effects


def trace_to_jaxpr(fun: Callable[..., Sequence[Any]], in_avals: Sequence[ShapedArray],
                   traced: Traced = _INTERNAL) -> tuple[Jaxpr, list[Any]]:
    """Traces `fun(*tracers)`, which returns a flat list, to (jaxpr, values of its constvars).

    The constants may be tracers of enclosing traces.
    """
    if config.no_tracing:
        raise RuntimeError(errors.no_tracing_message(getattr(fun, "__name__", str(fun))))
    with source.no_names():  # a program's equations tell of the names in it
        trace = StageTrace(current.trace, traced)
        try:
            with deeper():
                result = trace.finish(under(trace, fun, *map(trace.new_arg, in_avals)))
        finally:
            trace.alive = False
    check_leaks(trace)
    if config.enable_checks:
        check_jaxpr(result[0])
    return result


def flattened(fun: Callable[..., Any], in_tree: Any,
              finish: Finish | None = None) -> tuple[Callable[..., list[Any]], list[Any]]:
    """`fun` on the leaves of its arguments, which gives the leaves of its result, or what `finish(result, leaves)`
    makes of them; and a list that gets the structure of the result."""
    out_trees: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        result = fun(*tree.unflatten(in_tree, leaves))
        outs, out_tree = tree.flatten(result)
        out_trees.append(out_tree)
        return outs if finish is None else finish(result, outs)

    return flat, out_trees


def trace_pytrees(fun: Callable[..., Any], in_tree: Any, avals: Sequence[ShapedArray], traced: Traced = _INTERNAL,
                  finish: Finish | None = None) -> tuple[Jaxpr, list[Any], Any]:
    """As `trace_to_jaxpr`, for a function of pytrees; the third result is the structure of what it returns."""
    flat, out_trees = flattened(fun, in_tree, finish)
    jaxpr, consts = trace_to_jaxpr(flat, avals, traced)
    return jaxpr, consts, out_trees[0]


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], *args: Any, propagate_source_info: bool = True) -> list[Any]:
    """Applies a jaxpr's primitives, in order, under the current trace.

    What that records keeps the places of the jaxpr's equations, unless `propagate_source_info` is False.
    """
    env: dict[Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Atom) -> Any:
        return literal_array(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        out = bind_eqn(eqn, list(map(read, eqn.invars)), propagate_source_info)
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(a) for a in jaxpr.outvars]


def bind_eqn(eqn: Eqn, args: Sequence[Any], keep_source: bool = True) -> Sequence[Any]:
    """Applies an equation's primitive again; what that records keeps the equation's source."""
    before = current.source
    current.source = eqn.source if keep_source else before
    try:
        out = eqn.primitive.bind(*args, **eqn.params)
    finally:
        current.source = before
    return out if eqn.primitive.multiple_results else [out]


def eval_numpy(closed: ClosedJaxpr, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Runs a program on NumPy arrays by its primitives' `eval` rules: the reference semantics of a body."""
    consts = zip(closed.jaxpr.constvars, closed.consts, strict=True)
    env: dict[Var, Any] = {v: numpy_value(c, v.aval) for v, c in consts}
    env.update(zip(closed.jaxpr.invars, args, strict=True))

    def read(atom: Atom) -> np.ndarray:
        return np.asarray(atom.val) if isinstance(atom, Literal) else env[atom]

    checking = config.debug_nans or config.debug_infs
    with np.errstate(all="ignore"):
        for eqn in closed.eqns:
            values, avals = list(map(read, eqn.invars)), [v.aval for v in eqn.invars]
            if any(isinstance(a.dtype, dtypes.ExtendedDType) for a in avals):
                out = eqn.primitive.eval_extended(avals, values, eqn.params)
            else:
                out = eqn.primitive.eval(*values, **eqn.params)
            results = out if eqn.primitive.multiple_results else [out]
            if checking:
                errors.check_finite(eqn.primitive.name, results, eqn.source, values if eqn.primitive.moves else ())
            env.update(zip(eqn.outvars, map(np.asarray, results), strict=True))  # NumPy makes scalars of 0-d arrays
    return list(map(read, closed.jaxpr.outvars))


def all_finite(name: str, outs: Sequence[np.ndarray]) -> bool:
    """Whether no result is invalid, under debug_nans and debug_infs; says so if one is."""
    if not (config.debug_nans or config.debug_infs):
        return True
    try:
        errors.check_finite(name, outs)
        return True
    except FloatingPointError:
        print("Invalid value encountered in the output of a jit function. Calling the de-optimized version.")
        return False


def or_one_by_one(name: str, closed: ClosedJaxpr, args: Sequence[np.ndarray],
                  outs: list[np.ndarray]) -> list[np.ndarray]:
    """A compiled program's results; if one is invalid where that is asked, those of its operations one by one, which
    raises where it is made."""
    return outs if all_finite(name, outs) else eval_numpy(closed, args)


def literal_array(literal: Literal) -> ConcreteArray:
    """A literal as an array of exactly its type."""
    return ConcreteArray(np.asarray(literal.val), literal.aval)


def hoisted(jaxpr: Jaxpr) -> ClosedJaxpr:
    """The program that takes its constants as leading arguments."""
    return ClosedJaxpr(jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars]))


def close(jaxpr: Jaxpr, consts: Sequence[Any]) -> tuple[ClosedJaxpr, list[Any]]:
    """Splits constants: arrays stay with the jaxpr, tracers and references become its leading arguments.

    Returns the closed jaxpr and what to pass before its other arguments.
    """
    pairs = list(zip(jaxpr.constvars, consts, strict=True))
    outer = [(v, c) for v, c in pairs if isinstance(c, (Tracer, Ref))]
    inner = [(v, c) for v, c in pairs if not isinstance(c, (Tracer, Ref))]
    new = jaxpr.replace(constvars=[v for v, _ in inner], invars=[v for v, _ in outer] + list(jaxpr.invars))
    return ClosedJaxpr(new, [c for _, c in inner]), [c for _, c in outer]
