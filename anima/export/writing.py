"""Programs to bytes: tables of texts, types, places, constants and programs; each names entries of earlier ones.

    tables = Tables();  number = tables.program(closed);  tables.write(writer)

An equation whose operation is not of the closed table (`primitives.py`) is written as a call of the program that it
stands for; one that stands for none cannot be exported.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.api.pjit import pjit_p
from anima.control.tape import TapeDType
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.dims import Dim
from anima.core.format import Writer
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var
from anima.core.primitive import Primitive
from anima.core.source import Source
from anima.core.trace import Tracer, aval_of, numpy_value
from anima.export.primitives import RECORDS, TAGS, fits, is_exported, kinds_of, name_in_file
from anima.random.implementation import Implementation, of_dtype
from anima.random.primitives import random_unwrap_p, random_wrap_p, words_aval
from anima.util import deeper

WHY = {  # operations that are not exported
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_to_all", "axis_index", "pbroadcast", "ppermute",
                     "pvary", "reduce_scatter"), "it is about a mapped axis that the program is inside of"),
    **dict.fromkeys(("exchange", "group_index"), "it speaks with the other processes of this run"),
    **dict.fromkeys(("blocked_cholesky", "blocked_lu", "blocked_orthogonal", "blocked_reflections", "blocked_solve",
                     "count_digits", "lapack", "move_by_digit", "running", "runs", "substitution", "tile_product"),
                    "only the compiler makes it"),
    **dict.fromkeys(("addupdate", "empty_ref", "free_ref", "freeze", "get", "new_ref", "swap"),
                    "it is about a reference that lives outside of the program"),
    "custom_lin": "only a whole derivative can be; export the function, and serialize it with vjp_order=1",
    "stage": "programs have no such equation",
    **dict.fromkeys(("ffi_call", "ffi_elementwise"), "it is at an address of this process"),
    **dict.fromkeys(("pure_callback", "io_callback", "debug_callback", "debug_print"), "it calls Python")}


class Tables:
    """What programs consist of, each thing once, by number."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._types: dict[ShapedArray, int] = {}
        self._sources: dict[Source, int] = {}
        self._constants: dict[int, tuple[int, Any]] = {}
        self._programs: dict[int, tuple[int, Any]] = {}
        self._written = {"types": Writer(), "sources": Writer(), "constants": Writer(), "programs": Writer()}

    def write(self, out: Writer) -> None:
        """All tables, those first that others name entries of."""
        out.natural(len(self._texts))
        for text in self._texts:
            out.text(text)
        sizes = map(len, (self._types, self._sources, self._constants, self._programs))
        for size, table in zip(sizes, self._written.values(), strict=True):
            out.natural(size)
            out.append(table)

    # ---------------------------------------------------------------- entries

    def text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def type(self, aval: ShapedArray) -> int:
        """The number of an array's type."""
        if aval not in self._types:
            w = Writer()
            self._dtype(w, aval.dtype)
            w.flag(aval.weak_type)
            w.natural(len(aval.shape))
            for n in aval.shape:
                w.natural(n)
            self._types[aval] = len(self._types)
            self._written["types"].append(w)
        return self._types[aval]

    def _dtype(self, w: Writer, dtype: Any) -> None:
        if isinstance(dtype, TapeDType):
            element = self.type(dtype.element)
            w.natural(2)
            w.natural(element)
            w.natural(self.text(dtype.tag))
        elif isinstance(dtype, dtypes.KeyDType):
            w.natural(1)
            w.natural(self.text(of_dtype(dtype).name))
        elif isinstance(dtype, np.dtype) and (dtype in dtypes.ALL_DTYPES or dtype == dtypes.float0):
            w.natural(0)
            w.natural(self.text("float0" if dtype == dtypes.float0 else dtype.name))
        else:
            raise NotImplementedError(f"Arrays of dtype {dtype} cannot be exported.")

    def source(self, source: Source | None) -> int:
        """The number of a place in the user's program, of which the name of the file is kept; 0 is none."""
        if source is None:
            return 0
        if source not in self._sources:
            w = self._written["sources"]
            w.natural(self.text(os.path.basename(source.file)))
            w.natural(max(source.line, 0))
            w.natural(self.text(source.function))
            self._sources[source] = len(self._sources)
        return self._sources[source] + 1

    def _constant(self, value: Any) -> int:
        if id(value) not in self._constants:
            if isinstance(value, Tracer):
                raise TypeError(f"A program that closes over a value of another trace cannot be exported: {value}.")
            aval = aval_of(value)
            if isinstance(aval.dtype, TapeDType):
                raise NotImplementedError("A tape, which belongs to one run of a loop, cannot be exported.")
            w = self._written["constants"]
            w.natural(self.type(aval))
            w.data(dtypes.element_bytes(numpy_value(value, words_aval(aval))))
            self._constants[id(value)] = len(self._constants), value
        return self._constants[id(value)][0]

    # ---------------------------------------------------------------- programs

    def program(self, closed: ClosedJaxpr) -> int:
        """The number of a program, after those that it holds."""
        if id(closed) not in self._programs:
            with deeper():
                written = self._body(closed)
            self._programs[id(closed)] = len(self._programs), closed
            self._written["programs"].append(written)
        return self._programs[id(closed)][0]

    def _body(self, closed: ClosedJaxpr) -> Writer:
        """Constants, arguments, equations, results: a variable's number is its place among those that are bound."""
        jaxpr, w = closed.jaxpr, Writer()
        numbers: dict[Var, int] = {}
        w.natural(len(closed.consts))
        for value, var in zip(closed.consts, jaxpr.constvars, strict=True):
            w.natural(self._constant(value))
            w.natural(self.type(var.aval))
            numbers[var] = len(numbers)
        w.natural(len(jaxpr.invars))
        for var in jaxpr.invars:
            w.natural(self.type(var.aval))
            numbers[var] = len(numbers)
        simple = [e for eqn in jaxpr.eqns for e in exportable(eqn)]
        w.natural(len(simple))
        for eqn in simple:
            self._equation(w, eqn, numbers)
        self._atoms(w, jaxpr.outvars, numbers)
        return w

    def _equation(self, w: Writer, eqn: Eqn, numbers: dict[Var, int]) -> None:
        w.natural(self.text(name_in_file(eqn.primitive)))
        w.natural(self.source(eqn.source))
        self._atoms(w, eqn.invars, numbers)
        kinds = kinds_of(name_in_file(eqn.primitive))
        # Some parameters have defaults, which equations may leave out.
        given = {k: plain(v) for k, v in eqn.params.items()}
        for name in sorted(given.keys() | kinds.keys()):
            value = given.get(name)
            if name not in kinds or not fits(kinds[name], value):
                raise NotImplementedError(f"{_asked(eqn)} has the parameter {name}={value!r}, which cannot be "
                                          "exported.")
            w.natural(self.text(name))
            self._value(w, value)
        w.natural(len(eqn.outvars))
        for var in eqn.outvars:
            w.natural(self.type(var.aval))
            numbers[var] = len(numbers)

    def _atoms(self, w: Writer, atoms: Sequence[Atom], numbers: dict[Var, int]) -> None:
        w.natural(len(atoms))
        for atom in atoms:
            if isinstance(atom, Literal):
                w.natural(0)
                w.natural(self.type(atom.aval))
                w.data(dtypes.element_bytes(np.asarray(atom.val, atom.aval.dtype)))
            else:
                w.natural(numbers[atom] + 1)

    def _value(self, w: Writer, value: Any) -> None:
        """The value of a parameter, after what it is."""
        def tag(name: str) -> None:
            w.natural(TAGS.index(name))

        if value is None or isinstance(value, bool):
            tag("none" if value is None else str(value).lower())
        elif isinstance(value, enum.Enum):
            tag("enum")
            w.natural(self.text(type(value).__name__))
            w.natural(self.text(value.name))
        elif isinstance(value, int):
            tag("integer")
            w.integer(value)
        elif type(value) in (float, complex):
            tag(type(value).__name__.replace("float", "real"))
            for part in (value,) if type(value) is float else (value.real, value.imag):
                w.real(part)
        elif isinstance(value, str):
            tag("text")
            w.natural(self.text(value))
        elif isinstance(value, (np.dtype, dtypes.ExtendedDType)):
            tag("dtype")
            self._dtype(w, value)
        elif isinstance(value, np.generic):
            tag("number")
            w.natural(self.type(ShapedArray((), value.dtype)))
            w.data(dtypes.element_bytes(np.asarray(value)))
        elif type(value) in RECORDS.values():
            tag("record")
            w.natural(self.text(type(value).__name__))
            self._values(w, value)
        elif isinstance(value, tuple):
            tag("tuple")
            self._values(w, value)
        elif isinstance(value, ClosedJaxpr):
            number = self.program(value)
            tag("program")
            w.natural(number)
        else:
            tag("primitive" if isinstance(value, Primitive) else "generator")
            w.natural(self.text(value.name))

    def _values(self, w: Writer, values: tuple[Any, ...]) -> None:
        w.natural(len(values))
        for value in values:
            self._value(w, value)


def plain(value: Any) -> Any:
    """A parameter's value with tuples for lists, and Python's own integers."""
    if isinstance(value, (np.bool_, np.integer)) and type(value).__module__ == "numpy":
        return value.item()
    if type(value) is Dim:
        return int(value)
    if type(value) in (tuple, list):
        return tuple(map(plain, value))
    return value


# ---------------------------------------------------------------- equations of the closed table


def exportable(eqn: Eqn) -> list[Eqn]:
    """The equations of the closed table that an equation stands for. NotImplementedError where there are none."""
    primitive = eqn.primitive
    if is_exported(primitive):
        return [eqn]
    if primitive.body is None or primitive.effects_of(eqn.params):
        why = WHY.get(primitive.name, "it is no operation of Anima's own, and stands for no program")
        raise NotImplementedError(f"{_asked(eqn)} cannot be exported: {why}.")
    body = primitive.body(eqn.params, [v.aval for v in eqn.invars])
    if not primitive.on_words:
        return [_call(eqn, body, eqn.invars, eqn.outvars)]
    before, operands = [], []
    for atom in eqn.invars:
        if isinstance(atom.aval.dtype, dtypes.KeyDType):
            words = Var(words_aval(atom.aval))
            before.append(Eqn(random_unwrap_p, [atom], [words], {}, eqn.source))
            atom = words
        operands.append(atom)
    (out,) = eqn.outvars
    if not isinstance(out.aval.dtype, dtypes.KeyDType):
        return [*before, _call(eqn, body, operands, [out])]
    made = Var(words_aval(out.aval))
    impl: Implementation = of_dtype(out.aval.dtype)
    return [*before, _call(eqn, body, operands, [made]), Eqn(random_wrap_p, [made], [out], {"impl": impl}, eqn.source)]


def _call(eqn: Eqn, body: ClosedJaxpr, operands: Sequence[Atom], results: Sequence[Var]) -> Eqn:
    """A call of a program by the name of the operation that it is."""
    from_call = eqn.params.get("name")
    name = from_call if isinstance(from_call, str) else eqn.primitive.name
    return Eqn(pjit_p, list(operands), list(results), {"jaxpr": body, "name": name, "inline": False}, eqn.source)


def _asked(eqn: Eqn) -> str:
    return f"The operation '{eqn.primitive.name}'{f' at {eqn.source}' if eqn.source else ''}"
