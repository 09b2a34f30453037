"""Programs for sizes that are not known: one program for each value of the variables.

    family = Family(programs at three points, Fit(points, sizes));      family.at({"a": 5, "b": 2}) is a program

The programs must be of the same operations. Numbers in their types, parameters and literals that differ are those that
`api/points.py` finds for them; what is made for other values is checked as what is read from a file is.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from anima.api.points import Fit, Number
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.check import check_jaxpr
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.core.source import Source
from anima.core.stage import eval_jaxpr
from anima.core.trace import EVAL, aval_of, numpy_value, under
from anima.errors import InconclusiveDimensionOperation
from anima.export.calls import check_call
from anima.export.writing import exportable, plain
from anima.random.primitives import words_aval

Values = Mapping[str, int]
_MOST_TRIED = 1 << 26  # elements of an array in a program that is tried out
_MOST_NUMBERS = 1 << 10  # elements of a constant that each are found to be a number of the sizes


class Family:
    """Programs of one function at some points, and so at all others.

    Raises:
      InconclusiveDimensionOperation: where the programs differ in more than numbers that `fit` knows.
    """

    def __init__(self, programs: Sequence[ClosedJaxpr], fit: Fit) -> None:
        self.programs, self.fit = programs, fit
        self._numbers: dict[Any, Number] = {}
        self._source: Source | None = None
        self.at(fit.points[0])

    def at(self, values: Values) -> ClosedJaxpr:
        """The program for values of the variables; JaxprTypeError if it would be none."""
        closed = self._closed(self.programs, values)
        for eqn in closed.eqns:
            check_call(eqn)
        check_jaxpr(closed, set())
        return closed

    def _refuse(self, what: str) -> NoReturn:
        where = f" at {self._source}" if self._source else ""
        raise InconclusiveDimensionOperation(
            f"The program depends on the values of sizes that are not known{where}: {what}. Sizes may be computed from "
            "those of the arguments by +, -, *, //, %; decisions by them are for lax.cond and jnp.where."
        )

    def _closed(self, many: Sequence[ClosedJaxpr], values: Values) -> ClosedJaxpr:
        consts = [self._constant(c, values) for c in self._zip([p.consts for p in many], "constants")]
        env: list[dict[Var, Var]] = [{} for _ in many]

        def bind(found: Sequence[Var]) -> Var:
            new = Var(self._aval([v.aval for v in found], values))
            for known, var in zip(env, found, strict=True):
                known[var] = new
            return new

        def read(atoms: Sequence[Atom]) -> Atom:
            if isinstance(atoms[0], Literal):
                return self._literal(atoms, values)
            new = {id(known.get(a)) for known, a in zip(env, atoms, strict=True)}  # type: ignore[arg-type]
            if len(new) > 1:
                self._refuse("its equations are connected in another way for other sizes")
            return env[0][atoms[0]]

        constvars = [bind(v) for v in self._zip([p.jaxpr.constvars for p in many], "constants")]
        invars = [bind(v) for v in self._zip([p.jaxpr.invars for p in many], "arguments")]
        eqns = []
        for same in self._zip([[e for eqn in p.eqns for e in exportable(eqn)] for p in many], "equations"):
            self._source = same[0].source
            if len({e.primitive for e in same}) > 1:
                self._refuse(f"it has {' or '.join(dict.fromkeys(e.primitive.name for e in same))}")
            operands = [read(a) for a in self._zip([e.invars for e in same], "operands")]
            params = {name: self._value([plain(e.params.get(name)) for e in same], values) for name in same[0].params}
            outs = [bind(v) for v in self._zip([e.outvars for e in same], "results")]
            eqns.append(Eqn(same[0].primitive, operands, outs, params, same[0].source, same[0].effects))
        outvars = [read(a) for a in self._zip([p.jaxpr.outvars for p in many], "results")]
        return ClosedJaxpr(Jaxpr(constvars, invars, outvars, eqns, many[0].effects), consts)

    def _zip(self, lists: Sequence[Sequence[Any]], what: str) -> list[tuple[Any, ...]]:
        if len(set(map(len, lists))) > 1:
            self._refuse(f"it has {' or '.join(str(n) for n in dict.fromkeys(map(len, lists)))} {what}")
        return list(zip(*lists, strict=True))

    def _constant(self, found: Sequence[Any], values: Values) -> Any:
        """A constant for values of the variables: an array whose elements are numbers that follow from the sizes."""
        if all(c is found[0] for c in found):
            return found[0]
        avals = [aval_of(c) for c in found]
        arrays = [numpy_value(c, words_aval(a)) for c, a in zip(found, avals, strict=True)]
        if all(_same_array(a, arrays[0]) for a in arrays):
            return found[0]
        dtype = avals[0].dtype
        if len(set(avals)) > 1 or arrays[0].size > _MOST_NUMBERS or isinstance(dtype, dtypes.ExtendedDType):
            self._refuse("it holds an array that is another for other sizes, one of NumPy's perhaps")
        numbers = [self._number(n, dtype)(values) for n in zip(*(a.ravel().tolist() for a in arrays), strict=True)]
        return ConcreteArray(np.array(numbers, dtype).reshape(arrays[0].shape), avals[0])

    def _aval(self, avals: Sequence[ShapedArray], values: Values) -> ShapedArray:
        if len({(a.dtype, a.weak_type, a.ndim) for a in avals}) > 1:
            self._refuse(f"it has values of the types {', '.join(a.str_short() for a in avals)}")
        return avals[0].update(shape=tuple(self._int(n, values) for n in zip(*(a.shape for a in avals), strict=True)))

    def _int(self, found: Sequence[int], values: Values) -> int:
        if len(set(found)) == 1:
            return int(found[0])
        return int(self._number(tuple(map(int, found)), np.dtype(np.int64))(values))

    def _number(self, found: tuple[Any, ...], dtype: Any) -> Number:
        key = found, dtype
        if key not in self._numbers:
            number = self.fit.number(found, dtype)
            if number is None:
                self._refuse(
                    f"it has the numbers {', '.join(map(str, found))} where the sizes are "
                    f"{', '.join(map(str, self.fit.points))}"
                )
            self._numbers[key] = number
        return self._numbers[key]

    def _literal(self, atoms: Sequence[Atom], values: Values) -> Literal:
        if not all(isinstance(a, Literal) for a in atoms) or len({a.aval for a in atoms}) > 1:
            self._refuse("its equations are connected in another way for other sizes")
        found = [a.val for a in atoms]  # type: ignore[union-attr]
        if all(_same_array(v, found[0]) for v in found[1:]):
            return atoms[0]  # type: ignore[return-value]
        aval = atoms[0].aval
        return Literal(self._number(tuple(v.item() for v in found), dtypes.np_dtype(aval.dtype))(values), aval)

    def _value(self, found: Sequence[Any], values: Values) -> Any:
        """A parameter for values of the variables."""
        first = found[0]
        if len({isinstance(v, int) or type(v) for v in found}) > 1:
            self._refuse(f"it has the parameters {' or '.join(map(str, found))}")
        if isinstance(first, ClosedJaxpr):
            return self._closed(found, values)
        if isinstance(first, tuple):
            parts = [self._value(v, values) for v in self._zip(found, "parts of a parameter")]
            return type(first)(*parts) if hasattr(first, "_fields") or type(first) is not tuple else tuple(parts)
        if isinstance(first, int) and not isinstance(first, (bool, enum.Enum)):
            return self._int(found, values)
        if isinstance(first, float) and first == first and any(v != first for v in found):
            return float(self._number(tuple(found), np.dtype(np.float64))(values))
        if any(v is not first and v != first and v == v for v in found):
            self._refuse(f"it has the parameters {' or '.join(map(str, found))}")
        return first


def _same_array(x: Any, y: Any) -> bool:
    x, y = np.asarray(x), np.asarray(y)
    return x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()


def same_program(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Whether two programs are the same, as far as they are printed."""
    if len(one.consts) != len(other.consts) or not all(map(_same_array, _words(one.consts), _words(other.consts))):
        return False
    return str(one) == str(other)


def same_results(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Whether two programs give the same for arguments that nothing is special about; False if it cannot be tried."""
    rng = np.random.default_rng(0)
    made = [v.aval.size for p in (one, other) for e in p.eqns for v in e.outvars]
    if one.effects or other.effects or max(made, default=0) > _MOST_TRIED:
        return False
    args = [_some_values(rng, a) for a in one.in_avals]
    outs = [_words(under(EVAL, eval_jaxpr, p.jaxpr, p.consts, *args)) for p in (one, other)]
    return all(map(_nearly, *outs))


def _words(arrays: Sequence[Any]) -> list[np.ndarray]:
    """The elements of arrays; of random keys, the words that these consist of."""
    return [numpy_value(x, words_aval(aval_of(x))) for x in arrays]


def _some_values(rng: np.random.Generator, aval: ShapedArray) -> Any:
    if isinstance(aval.dtype, dtypes.ExtendedDType):
        words = words_aval(aval)
        return ConcreteArray(rng.integers(0, 1 << 32, words.shape, np.uint32).astype(words.dtype), aval)
    if np.issubdtype(aval.dtype, np.bool_) or np.issubdtype(aval.dtype, np.integer):
        return rng.integers(0, 2, aval.shape).astype(aval.dtype)
    return (0.1 + rng.random(aval.shape)).astype(aval.dtype)


def _nearly(x: np.ndarray, y: np.ndarray) -> bool:
    if x.dtype.kind in "biu":
        return np.array_equal(x, y)
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    return np.allclose(x.astype(wide), y.astype(wide), rtol=1e-3, atol=1e-3, equal_nan=True)
