"""Checks: assertions about values that a program has when it gets there, and what is known of those that failed.

    check[debug=False] a b        a: the number of the site that fails, or -1; b: a value that its message speaks of

Where nothing is traced, a check that fails raises. In a program it is an effect, which `checkify` makes an error
state: the number of the first site that failed (-1: none), and slots for the values of its message. Only one failure
is ever told, so that sites share slots: the k-th value of a type has the k-th slot of that type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from anima import errors, tree
from anima.control.effects import FORMATTER
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, Jaxpr, Var
from anima.core.primitive import Primitive
from anima.core.source import Source
from anima.core.trace import aval_of
from anima.ops.broadcast import broadcast, iota, scalar, zeros
from anima.ops.elementwise import add, ge, lt, min as lower, or_, select_n
from anima.ops.index import dynamic_index_in_dim
from anima.ops.reduce import reduce_min
from anima.transforms.vmap import move_to

CHECK = "Check"  # the effect
_CODE = np.dtype(np.int32)


class JaxException(Exception):
    """A failure that a program reports in its results."""


class FailedCheckError(JaxException):
    """A `check` of the user's failed."""


class NaNError(JaxException):
    """An operation made a NaN."""


class DivisionByZeroError(JaxException):
    """Something was divided by zero."""


class OOBError(JaxException):
    """An index was out of bounds."""


class BatchedError(JaxException):
    """Failures of some lanes: `error_mapping` has them by index."""

    def __init__(self, error_mapping: dict[tuple[int, ...], JaxException]):
        super().__init__("\n".join(f"at mapped index {', '.join(map(str, index))}: {error}"
                                   for index, error in error_mapping.items()))
        self.error_mapping = error_mapping


class SomeError(JaxException):
    """Among the kinds of checks that are asked for: tell only whether something may have failed.

    A program that tells this is followed by one that finds out what, in case: nothing else is carried through loops,
    and a NaN is looked for only where it cannot be seen later.
    """


class JaxRuntimeError(ValueError):
    """A check failed."""


class Site(NamedTuple):
    """A check in a program: the format of its message, the structure and the types of what goes into it."""

    kind: type[JaxException]
    text: str
    source: Source | None
    structure: Any
    avals: tuple[ShapedArray, ...]


class ErrorLayout(NamedTuple):
    """The sites of a program, by number, and the slots of its error state."""

    sites: tuple[Site, ...] = ()
    slots: tuple[ShapedArray, ...] = ()

    @property
    def size(self) -> int:
        """How many values an error state has: none where nothing can fail."""
        return 1 + len(self.slots) if self.sites else 0

    def places(self, avals: Iterable[ShapedArray]) -> list[int]:
        """The slots of values of these types; numbers past the last for those that have none."""
        free: dict[Any, list[int]] = {}
        for k, aval in enumerate(self.slots):
            free.setdefault((aval.shape, aval.dtype), []).append(k)
        new = count(len(self.slots))
        taken: Counter[Any] = Counter()
        found = []
        for aval in avals:
            key = aval.shape, aval.dtype
            own = free.get(key, [])
            found.append(own[taken[key]] if taken[key] < len(own) else next(new))
            taken[key] += 1
        return found

    def plus(self, other: ErrorLayout) -> ErrorLayout:
        """The sites of both, and the slots that they share."""
        if SOME in (self, other):
            return SOME
        more = [a for a, k in zip(other.slots, self.places(other.slots), strict=True) if k >= len(self.slots)]
        return ErrorLayout((*self.sites, *other.sites), (*self.slots, *more))

    def error(self, code: int, slots: Sequence[Any]) -> JaxException:
        """The failure of a site, with the values of its slots."""
        site = self.sites[code]
        values = [ConcreteArray(np.asarray(slots[k], a.dtype), a)
                  for k, a in zip(self.places(site.avals), site.avals, strict=True)]
        args, kwargs = tree.unflatten(site.structure, values)
        text = FORMATTER.vformat(site.text, args, kwargs)
        return site.kind(text if site.source is None else f"{text}\n  {errors.line_of(site.source)}")

    def no_error(self) -> list[Any]:
        """The state before anything failed."""
        if self is SOME:
            return [scalar(False, np.dtype(bool))]
        return [scalar(-1, _CODE), *map(zeros, self.slots)]

    def widened(self, part: ErrorLayout, offset: int, values: Sequence[Any]) -> list[Any]:
        """The state of a part, whose sites begin at number `offset`, as a state of the whole."""
        if not part.sites:
            return self.no_error()
        if part is SOME:
            return list(values)
        own = dict(zip(self.places(part.slots), values[1:], strict=True))
        return [shifted(values[0], offset), *(own[k] if k in own else zeros(a) for k, a in enumerate(self.slots))]


def shifted(code: Any, offset: int) -> Any:
    """The number of a site among others, of which `offset` come before."""
    return select_n(lt(code, scalar(0, _CODE)), add(code, scalar(offset, _CODE)), code) if offset else code


SOME = ErrorLayout((Site(SomeError, "some check failed", None, tree.structure(((), {})), ()),))


class _Part(NamedTuple):
    """What may have failed at one point of a program: whether, the number of the site, and what goes into slots."""

    failed: Any
    code: Any
    places: list[int]
    values: Sequence[Any]


class ErrorState:
    """What is known of failures while a program is gone through; `values` are the number and the slots.

    One of the layout `SOME` stays so, whatever is merged: its only value is whether anything failed. Of others, which
    failure was the first is found out when somebody asks: going back from the last, each takes the place of later ones.
    """

    def __init__(self, layout: ErrorLayout = ErrorLayout(), values: Sequence[Any] = (), brief: bool = False):
        self.layout, self._known = layout, list(values)
        self._parts: list[_Part] = []  # since then
        self.brief = brief or layout is SOME

    @property
    def values(self) -> list[Any]:
        """The number of the first site that failed, or -1, and the slots; nothing where nothing can fail."""
        if self._parts:
            if self._known:
                self._parts.insert(0, self._part(self._known, list(range(len(self._known) - 1)), 0))
            code: Any = scalar(-1, _CODE)
            slots: dict[int, Any] = {}
            for part in reversed(self._parts):
                code = select_n(part.failed, code, part.code)
                for place, value in zip(part.places, part.values, strict=True):
                    slots[place] = select_n(part.failed, slots[place], value) if place in slots else value
            self._known, self._parts = [code, *(slots[k] for k in range(len(slots)))], []
        return self._known

    def fail(self, failed: Any, site: Site, values: Sequence[Any]) -> None:
        """A check of one site, which failed if `failed`."""
        if self.brief:
            return self.merge(SOME, [failed])
        number, places = len(self.layout.sites), self.layout.places(site.avals)
        self.layout = self.layout.plus(ErrorLayout((site,), site.avals))
        self._parts.append(_Part(failed, scalar(number, _CODE), places, values))

    def _part(self, values: Sequence[Any], places: list[int], offset: int) -> _Part:
        failed = ge(values[0], scalar(0, _CODE))
        return _Part(failed, add(values[0], scalar(offset, _CODE)) if offset else values[0], places, values[1:])

    def merge(self, layout: ErrorLayout, values: Sequence[Any], offset: int | None = None) -> None:
        """What happened next: kept if nothing failed before. Its sites are new ones, or begin at number `offset`."""
        if not layout.sites:
            return
        if self.brief:
            failed = values[0] if layout is SOME else ge(values[0], scalar(0, _CODE))
            self.layout, self._known = SOME, [or_(self._known[0], failed) if self._known else failed]
            return
        places = self.layout.places(layout.slots)
        if offset is None:
            offset = len(self.layout.sites)
            self.layout = self.layout.plus(layout)
        self._parts.append(self._part(values, places, offset))

    def take(self, layout: ErrorLayout, outs: Sequence[Any]) -> list[Any]:
        """Merges the state that a program's results begin with; the others."""
        self.merge(layout, outs[:layout.size])
        return list(outs[layout.size:])


class Check(Primitive):
    """Fails if the first operand is not negative; with `debug`, in functions that `checkify` transforms only."""

    multiple_results = True

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        return frozenset((CHECK,))

    def infer(self, code: ShapedArray, *slots: ShapedArray, layout: ErrorLayout, debug: bool) -> list[ShapedArray]:
        return []

    def eval(self, code: np.ndarray, *slots: np.ndarray, layout: ErrorLayout, debug: bool) -> list[np.ndarray]:
        if code >= 0 and not debug:
            raise JaxRuntimeError(str(layout.error(int(code), slots)))
        return []

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """Nothing, for `debug`: compiled code has no checks. ValueError for others."""
        if params["debug"]:
            return ClosedJaxpr(Jaxpr([], list(map(Var, avals)), [], []))
        source = params["layout"].sites[0].source
        where = f"\n  {errors.line_of(source)}" if source else ""
        raise ValueError("Cannot abstractly evaluate a checkify.check which was not functionalized. This probably "
                         "means that a `check` was staged (by jit, scan, cond, ...) without functionalizing it through "
                         f"`checkify.checkify`.{where}")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return self.bind(*primals, **params), []

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        """The first lane that fails."""
        if size:
            lane = first_where(ge(move_to(args[0], dims[0], 0, size), scalar(0, _CODE)))[1]
            self.bind(*(x if d is None else part(x, lane, d) for x, d in zip(args, dims, strict=True)), **params)
        return [], []


check_p = Check("check")


def first_where(flags: Any) -> tuple[Any, Any]:
    """Whether any of a vector of bools holds, and the number of the first that does (their count, if none does)."""
    (size,) = flags.shape
    last = scalar(size, _CODE)
    first = reduce_min(select_n(flags, broadcast(last, (size,)), iota(_CODE, size)), (0,))
    return lt(first, last), first


def part(x: Any, place: Any, axis: int = 0) -> Any:
    """The part of an array at `place`, or the last one."""
    last = scalar(aval_of(x).shape[axis] - 1, _CODE)
    return dynamic_index_in_dim(x, lower(place, last), axis, keepdims=False, allow_negative_indices=False)
