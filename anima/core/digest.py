"""A program's digest: equal for programs that compile to the same code, in this process and in others.

    digest(make_jaxpr(f)(x))      32 bytes; None for a program of which something is known to this process alone

Variables count by their order, parameters and constants by value; where in whose source something was asked for does
not count. A parameter that is a Python function has no value to compare: of an equation with one, the program that it
stands for counts instead, and where there is none (a callback, an operation of the user's), there is no digest.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal
from anima.core.primitive import Primitive

LARGEST = 1 << 20  # bytes of constants, of which a digest and a copy in a file cost less than to compile again
_FOREIGN = ("anima.extend",)  # modules whose primitives are the user's


class Unknown(Exception):
    """Something that is known to this process alone."""


def digest(closed: ClosedJaxpr) -> bytes | None:
    """32 bytes that tell a program from all that are compiled otherwise; None where nothing does."""
    if sum(getattr(c, "nbytes", 0) for c in closed.consts) > LARGEST:
        return None
    writer = _TextWriter()
    try:
        writer.program(closed)
    except (Unknown, RecursionError):
        return None
    return hashlib.sha256("\n".join(writer.out).encode()).digest()


class _TextWriter:
    """The text of a program."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.names: dict[Any, str] = {}  # of the variables of the program that is being written
        self.count = 0  # of all that were named
        self.types: dict[int, tuple[Any, str]] = {}  # by identity: texts of types

    def program(self, closed: ClosedJaxpr) -> None:
        for const in closed.consts:
            self.out.append(self.value(const))
        self.jaxpr(closed.jaxpr)

    def jaxpr(self, jaxpr: Jaxpr) -> None:
        """A program has names of its own: what it shares variables with, an outer one too, keeps its names."""
        out, outer = self.out, self.names
        self.names = {}
        try:
            for var in (*jaxpr.constvars, None, *jaxpr.invars):
                out.append("in" if var is None else self.define(var))
            for eqn in jaxpr.eqns:
                self.equation(eqn)
                out.append(" ".join([self.atom(a) for a in eqn.invars]))
                out.append(" ".join([self.define(v) for v in eqn.outvars]))
            out.append("out " + " ".join([self.atom(a) for a in jaxpr.outvars]))
        finally:
            self.names = outer  # the outer program goes on where this one is Unknown

    def define(self, var: Any) -> str:
        self.names[var] = name = str(self.count)
        self.count += 1
        return f"{name}:{self.type(var.aval)}"

    def atom(self, atom: Any) -> str:
        if type(atom) is Literal:
            return f"{np.asarray(atom.val).tobytes().hex()}:{self.type(atom.aval)}"
        return self.names[atom]

    def type(self, aval: Any) -> str:
        known = self.types.get(id(aval))
        if known is None:
            if type(aval) is not ShapedArray:
                raise Unknown
            known = self.types[id(aval)] = aval, f"{self.dtype(aval.dtype)}{aval.shape}{aval.weak_type}"
        return known[1]

    def dtype(self, dtype: Any) -> str:
        if isinstance(dtype, np.dtype):
            return dtype.name
        if type(dtype) is dtypes.KeyDType and dtype.tag in ("fry", "rbg", "urbg"):
            return repr((dtype.name, dtype.base.name, dtype.element_shape))
        raise Unknown

    def equation(self, eqn: Eqn) -> None:
        """The operation and its parameters, or the program that it stands for."""
        primitive, start = eqn.primitive, len(self.out)
        kind = type(primitive)
        try:
            if not kind.__module__.startswith("anima.") or kind.__module__.startswith(_FOREIGN):
                raise Unknown
            self.out.append(f"{primitive.name} {kind.__qualname__}")
            for name, value in eqn.params.items():
                self.out.append(f"{name}={self.value(value)}")
        except Unknown:
            if primitive.body is None or primitive.on_words:
                raise
            del self.out[start:]
            self.out.append("call")
            self.program(primitive.body(eqn.params, [v.aval for v in eqn.invars]))

    def value(self, value: Any) -> str:
        write = _VALUES.get(type(value))
        if write is not None:
            return write(self, value)
        if isinstance(value, (enum.Enum, np.dtype, np.generic, np.ndarray, Primitive, dtypes.ExtendedDType)):
            return self.other(value)
        kind = type(value)
        if type(getattr(value, "dtype", None)) is dtypes.KeyDType:  # a generator: known by the type of its keys
            return self.dtype(value.dtype)
        fields = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", None)
        if fields is None or not kind.__module__.startswith("anima."):
            raise Unknown
        return f"{kind.__qualname__}({', '.join([self.value(getattr(value, name)) for name in fields])})"

    def other(self, value: Any) -> str:
        if isinstance(value, enum.Enum):
            if not type(value).__module__.startswith("anima."):
                raise Unknown
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, (np.dtype, dtypes.ExtendedDType)):
            return self.dtype(value)
        if isinstance(value, Primitive):
            if not type(value).__module__.startswith("anima.") or type(value).__module__.startswith(_FOREIGN):
                raise Unknown
            return value.name
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise Unknown
        return f"{self.dtype(array.dtype)}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"

    def inner(self, value: ClosedJaxpr | Jaxpr) -> str:
        """A program that stands in a parameter: of variables of its own."""
        self.out.append("begin")
        if type(value) is ClosedJaxpr:
            self.program(value)
        else:
            self.jaxpr(value)  # type: ignore[arg-type]
        self.out.append("end")
        return "program"

    def items(self, value: Sequence[Any]) -> str:
        return f"{type(value).__name__}[{', '.join([self.value(v) for v in value])}]"

    def array(self, value: ConcreteArray) -> str:
        return f"{self.type(value.aval)} {self.other(value.elements())}"


_plain: Callable[[_TextWriter, Any], str] = lambda writer, value: repr(value)  # noqa: E731
_VALUES: dict[type, Callable[[_TextWriter, Any], str]] = {
    **dict.fromkeys((type(None), bool, int, str, bytes, float, complex), _plain),
    tuple: _TextWriter.items, list: _TextWriter.items, ConcreteArray: _TextWriter.array,
    ClosedJaxpr: _TextWriter.inner, Jaxpr: _TextWriter.inner, ShapedArray: _TextWriter.type,
    dict: lambda writer, value: writer.items([x for pair in value.items() for x in pair])}
