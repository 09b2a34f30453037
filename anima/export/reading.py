"""Bytes to programs: what `writing.py` wrote, checked entry by entry, and every program by the checker of types.

    programs = Programs(reader);  closed = programs.program()

Only names of the closed table mean anything; nothing is imported, looked up or run because a file says so.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anima.control.tape import STEPS, TapeDType
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.check import check_jaxpr
from anima.core.format import FormatError, Reader
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from anima.core.source import Source
from anima.core.stage import eqn_effects
from anima.errors import JaxprTypeError
from anima.export.calls import check_call
from anima.export.primitives import ENUMS, PRIMITIVES, RECORDS, TAGS, fits, kinds_of
from anima.ops.elementwise import ge, le
from anima.random.implementation import Implementation, named
from anima.random.primitives import words_aval

_BYTES = 1 << 47      # more than any array has
_RANK = 32
_EQUATIONS = 1 << 24  # of a program with all that it runs, written out


class Programs:
    """The programs of a file."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._types: list[ShapedArray] = []
        self._programs: list[ClosedJaxpr] = []
        self._sizes: dict[int, int] = {}  # of programs, by identity: equations with those of programs in them
        self._checked: set[int] = set()
        self._texts = reader.many(reader.text)
        for _ in range(reader.count()):
            self._types.append(self._type())
        self._sources = reader.many(self._source)
        self._constants = reader.many(self._constant)
        for _ in range(reader.count()):
            self._programs.append(self._body())

    def program(self) -> ClosedJaxpr:
        """A program, by its number."""
        return self._programs[self._reader.below(len(self._programs), "program")]

    def text(self) -> str:
        """A text, by its number."""
        return self._texts[self._reader.below(len(self._texts), "text")]

    def type(self) -> ShapedArray:
        """A type, by its number."""
        return self._types[self._reader.below(len(self._types), "type")]

    def source(self) -> Source | None:
        """A place, by its number; 0 is none."""
        place = self._reader.below(len(self._sources) + 1, "place")
        return self._sources[place - 1] if place else None

    # ---------------------------------------------------------------- entries of tables

    def _type(self) -> ShapedArray:
        r = self._reader
        dtype, weak = self._dtype(), r.flag()
        shape = tuple(r.many(r.natural))
        if len(shape) > _RANK or math.prod(n or 1 for n in shape) * _element_size(dtype) >= _BYTES:
            r.fail(f"there are no arrays of {len(shape)} dimensions with sizes {shape[:_RANK]}")
        return ShapedArray(shape, dtype, weak)

    def _dtype(self) -> Any:
        r = self._reader
        kind = r.below(3, "kind of dtype")
        if kind == 2:
            element, tag = self.type(), self.text()
            tape = TapeDType(element, tag)
            if tape != STEPS and tape != TapeDType(element):
                r.fail(f"a tape is named {tag!r}")
            return STEPS if tape == STEPS else tape
        name = self.text()
        if kind == 1:
            return self._generator(name).dtype
        if name not in _DTYPES:
            r.fail(f"there is no dtype {name!r}")
        return _DTYPES[name]

    def _generator(self, name: str) -> Implementation:
        try:
            return named(name)
        except ValueError as error:
            raise FormatError(f"The exported program draws random numbers by a generator that is not registered in "
                              f"this process: {error}") from None

    def _source(self) -> Source:
        file, line, function = self.text(), self._reader.natural(), self.text()
        return Source(f"<exported>/{file}", min(line, 1 << 31), function)

    def _constant(self) -> ConcreteArray:
        aval = self.type()
        if isinstance(aval.dtype, TapeDType):
            self._reader.fail("a constant is a tape")
        words = words_aval(aval)
        return ConcreteArray(self._elements(words).reshape(words.shape), aval)

    def _elements(self, aval: ShapedArray) -> np.ndarray:
        """The elements of an array that follow, in memory of their own."""
        data, dtype = self._reader.data(), aval.dtype
        if len(data) != aval.size * dtype.itemsize:
            self._reader.fail(f"{len(data)} bytes are not those of an array of type {aval.str_short()}")
        if not dtype.itemsize:
            return np.zeros(aval.size, dtype)
        whole = np.frombuffer(data, np.uint8)
        if dtype == dtypes.bool_ and whole.size and whole.max() > 1:
            self._reader.fail("a bool is neither 0 nor 1")
        if dtype in _SMALL:
            given = whole.view(np.int8)
            values = given.astype(dtype)
            if not np.array_equal(values.astype(np.int8), given):
                self._reader.fail(f"a number is no {dtype.name}")
            return values
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)

    # ---------------------------------------------------------------- programs

    def _body(self) -> ClosedJaxpr:
        r = self._reader
        bound: list[Var] = []

        def bind() -> Var:
            aval = self.type()
            if len(bound) > _EQUATIONS:
                r.fail("there are too many variables")
            bound.append(Var(aval))
            return bound[-1]

        consts, constvars = [], []
        for _ in range(r.count()):
            consts.append(self._constants[r.below(len(self._constants), "constant")])
            constvars.append(bind())
        invars = r.many(bind)
        eqns = []
        for _ in range(r.count()):
            eqn = self._equation(bound)
            eqns.append(eqn.replace(outvars=r.many(bind)))
        outs = self._atoms(bound)
        effects = frozenset().union(*(e.effects for e in eqns))
        closed = ClosedJaxpr(Jaxpr(constvars, invars, outs, eqns, effects), consts)
        self._check(closed)
        return closed

    def _check(self, closed: ClosedJaxpr) -> None:
        """FormatError unless a program is right, those in it being so."""
        size = sum(1 + sum(self._sizes[id(p)] for p in subjaxprs(e.params)) for e in closed.eqns)
        if size > _EQUATIONS:
            self._reader.fail("the programs, written out, are too long")
        self._sizes[id(closed)] = size
        try:
            for eqn in closed.eqns:
                check_call(eqn)
            check_jaxpr(closed, self._checked)
        except JaxprTypeError as error:
            raise FormatError(f"The exported program is damaged: {error}") from None
        except Exception as error:  # rules of operations meet what no tracing makes
            raise FormatError(f"The exported program is damaged: {type(error).__name__}: {error}") from None
        self._checked.add(id(closed.jaxpr))

    def _equation(self, bound: list[Var]) -> Eqn:
        """An equation, but for its results."""
        r, name = self._reader, self.text()
        primitive = PRIMITIVES.get(name)
        if primitive is None:
            r.fail(f"there is no operation {name!r}")
        source, operands = self.source(), self._atoms(bound)
        kinds = kinds_of(name)
        params: dict[str, Any] = {}
        for wanted in sorted(kinds):
            found, value = self.text(), self._value()
            if found != wanted or not fits(kinds[wanted], value):
                r.fail(f"{name} has {found}={value!r} for {wanted}")
            params[wanted] = value
        return Eqn(primitive, operands, (), params, source, eqn_effects(primitive, params))

    def _atoms(self, bound: list[Var]) -> list[Atom]:
        return self._reader.many(lambda: self._atom(bound))

    def _atom(self, bound: list[Var]) -> Atom:
        number = self._reader.below(len(bound) + 1, "variable")
        if number:
            return bound[number - 1]
        aval = self.type()
        if aval.shape or not isinstance(aval.dtype, np.dtype):
            self._reader.fail(f"a literal is of type {aval.str_short()}")
        return Literal(self._elements(aval)[0], aval)

    def _value(self) -> Any:
        return self._reader.inside(self._parameter)

    def _parameter(self) -> Any:
        """The value of a parameter."""
        r = self._reader
        tag = TAGS[r.below(len(TAGS), "kind of parameter")]
        if tag in ("none", "false", "true"):
            return {"none": None, "false": False, "true": True}[tag]
        if tag == "integer":
            return r.integer()
        if tag in ("real", "complex"):
            return r.real() if tag == "real" else complex(r.real(), r.real())
        if tag == "text":
            return self.text()
        if tag == "tuple":
            return tuple(r.many(self._value))
        if tag == "dtype":
            return self._dtype()
        if tag == "number":
            aval = self.type()
            if aval.shape or not isinstance(aval.dtype, np.dtype):
                r.fail(f"a number is of type {aval.str_short()}")
            return self._elements(aval)[0]
        if tag == "program":
            return self.program()
        name = self.text()
        if tag == "enum":
            return self._among(self._among(ENUMS, name).__members__, self.text())
        if tag == "record":
            kind, fields = self._among(RECORDS, name), r.many(self._value)
            try:
                return kind(*fields)
            except TypeError:
                r.fail(f"a {name} has {len(fields)} fields")
        if tag == "primitive":
            return self._among({ge.name: ge, le.name: le}, name)
        return self._generator(name)

    def _among(self, table: Any, name: str) -> Any:
        if name not in table:
            self._reader.fail(f"there is no {name!r} in {', '.join(table)}")
        return table[name]


_SMALL = frozenset((*dtypes.SMALL_SIGNED, *dtypes.SMALL_UNSIGNED))
_DTYPES = {d.name: d for d in dtypes.ALL_DTYPES} | {"float0": dtypes.float0}


def _element_size(dtype: Any) -> int:
    return max(getattr(dtype, "itemsize", 8), 1)
