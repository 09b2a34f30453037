"""Which random keys a program uses up, and whether it uses one twice.

    { lambda ; a:key<fry>[]. let b:u32[3] = random_bits a; c:u32[3] = random_bits a in (b, c) }      KeyReuseError

Each key has a number, wherever it is moved to: operations that move elements are run on the numbers. What draws from
keys (`uses_keys`) uses them up; what gives other keys (`fold_in`, `clone`) makes new numbers. A loop's body is gone
through twice, as its second step would be; of branches, each uses up what it does. Numbers of elements at places that
are not known stay unknown, and are not looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from anima import errors
from anima.config import config
from anima.control.cond import Cond
from anima.control.scan import Scan
from anima.control.while_loop import WhileLoop
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Literal, Var, subjaxprs
from anima.core.primitive import Primitive
from anima.core.source import Source, here
from anima.core.trace import EVAL, aval_of
from anima.transforms.vmap import BatchTracer
from anima.util import split_list

_UNKNOWN = -1
Numbers = np.ndarray | None  # of an array of keys; None for other arrays


def is_keys(aval: Any) -> bool:
    """Whether a type is that of an array of random keys."""
    return isinstance(getattr(aval, "dtype", None), dtypes.KeyDType)


def used_up(closed: ClosedJaxpr, name: str) -> list[np.ndarray | None]:
    """Of each argument of a program that is an array of keys: which of them it uses up.

    Raises:
      KeyReuseError: if it uses one twice; the message has both lines.
    """
    checker = _KeyChecker(name)
    args = [checker.new(a) for a in closed.in_avals]
    checker.run(closed, args)
    return [None if a is None else np.isin(a, list(checker.used)) for a in args]


class _KeyOrigin:
    """Keys that were made together: by what each was used, as a number in `by`, counted from 1."""

    def __init__(self, size: int) -> None:
        self.used = np.zeros(size, np.int32)
        self.by: list[tuple[str, Source | None]] = []


class _KeyNumbers(NamedTuple):
    """An array of keys outside of programs: of each, the number of its origin, above its place there; the origins."""

    key: weakref.ref[Any]
    numbers: np.ndarray
    origins: dict[int, _KeyOrigin]


_known: dict[int, _KeyNumbers] = {}  # by identity
_origins = count()
_BITS = 32                      # of a place
_FIX = ("Two draws from one key are not independent.\nFix: key, subkey = anima.random.split(key), and a new subkey for "
        "each draw; anima.random.clone(key) where the same numbers are wanted again.")


def _remember(key: Any, numbers: np.ndarray, origins: dict[int, _KeyOrigin]) -> _KeyNumbers:
    number = id(key)
    _known[number] = found = _KeyNumbers(weakref.ref(key, lambda _: _known.pop(number, None)), numbers, origins)
    return found


def _of(key: Any) -> _KeyNumbers:
    """What is known of keys; those that nobody has seen are an origin of their own."""
    found = _known.get(id(key))
    if found is None or found.key() is not key:
        aval, number = aval_of(key), next(_origins)
        places = np.arange(aval.size, dtype=np.int64).reshape(aval.shape)
        found = _remember(key, (number << _BITS) + places, {number: _KeyOrigin(aval.size)})
    return found


def use(key: Any, name: str, which: Any = True) -> None:
    """Records that `name` used a typed key up, or `which` of an array of keys; with `config.debug_key_reuse`,
    KeyReuseError if one of them was before.

    Keys are told apart as Python objects, traced ones too, and by what was moved where (`k[0]`); raw keys are not seen.
    """
    if not config.debug_key_reuse:
        return
    while isinstance(key, BatchTracer):  # each lane has another one
        which, key = np.expand_dims(np.broadcast_to(which, key.aval.shape), key.dim), key.stack
    known = _of(key)
    taken = known.numbers[np.broadcast_to(which, known.numbers.shape)]
    places = [(origin, taken[taken >> _BITS == number] & (1 << _BITS) - 1) for number, origin in known.origins.items()]
    for origin, own in places:
        before = int(origin.used[own].max(initial=0))
        if before:
            by, source = origin.by[before - 1]
            raise errors.KeyReuseError(f"{name} was given a key that has been used before, by {by} at {source}. {_FIX}")
    for origin, own in places:
        if own.size:
            origin.by.append((name, here()))
            origin.used[own] = len(origin.by)


def moved(primitive: Primitive, args: Sequence[Any], params: dict[str, Any], out: Any) -> None:
    """Records which keys are where in the result of an operation that moves elements, outside of programs."""
    given: list[np.ndarray] = []
    origins: dict[int, _KeyOrigin] = {}
    for x in args:
        if is_keys(aval_of(x)):
            known = _of(x)
            given.append(known.numbers)
            origins |= known.origins
        else:
            given.append(np.asarray(x))
    _remember(out, np.asarray(primitive.eval(*given, **params)), origins)


EVAL.moved_keys = moved


def use_all(keys: Sequence[Any], name: str, which: Sequence[np.ndarray | None]) -> None:
    """Records that a program used up arguments, as `used_up` says."""
    for key, some in zip(keys, which, strict=True):
        if some is not None and some.any():
            use(key, name, some)


class _KeyChecker:
    """The keys that were used up so far, each with the equation that did."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.used: dict[int, Eqn] = {}
        self.numbers = count()

    def new(self, aval: ShapedArray) -> Numbers:
        """Numbers for keys that nobody has used."""
        if not is_keys(aval):
            return None
        return np.array([next(self.numbers) for _ in range(aval.size)], np.int64).reshape(aval.shape)

    def run(self, closed: ClosedJaxpr, args: Sequence[Numbers]) -> list[Numbers]:
        """Goes through a program; the numbers of its results."""
        env: dict[Var, Numbers] = dict(zip(closed.jaxpr.invars, args, strict=True))
        env.update((v, self.new(v.aval)) for v in closed.jaxpr.constvars)

        def read(atom: Atom) -> Numbers:
            return None if isinstance(atom, Literal) else env.get(atom)

        for eqn in closed.eqns:
            if any(is_keys(v.aval) for v in (*eqn.invars, *eqn.outvars)) or any(subjaxprs(eqn.params)):
                env.update(zip(eqn.outvars, self.equation(eqn, list(map(read, eqn.invars))), strict=True))
        return list(map(read, closed.jaxpr.outvars))

    def equation(self, eqn: Eqn, given: Sequence[Numbers]) -> Sequence[Numbers]:
        primitive = eqn.primitive
        if primitive.uses_keys:
            self.use(eqn, given)
        elif isinstance(primitive, Cond):
            return self.branches(eqn, given)
        elif isinstance(primitive, Scan):
            return self.scan(eqn, given)
        elif isinstance(primitive, WhileLoop):
            return self.loop(eqn, given)
        elif primitive.body is not None and not primitive.on_words:
            return self.run(primitive.body(eqn.params, [a.aval for a in eqn.invars]), given)
        elif primitive.moves and sum(x is not None for x in given) == len(given):
            return [np.asarray(primitive.eval(*given, **eqn.params))]
        elif primitive.moves:
            return [None if not is_keys(v.aval) else np.full(v.aval.shape, _UNKNOWN) for v in eqn.outvars]
        return [self.new(v.aval) for v in eqn.outvars]

    def use(self, eqn: Eqn, given: Sequence[Numbers]) -> None:
        for numbers in given:
            for number in () if numbers is None else set(numbers.reshape(-1).tolist()) - {_UNKNOWN}:
                before = self.used.setdefault(number, eqn)
                if before is not eqn:
                    self.refuse(eqn, before)

    def refuse(self, eqn: Eqn, before: Eqn) -> None:
        again = f"again, by {eqn.primitive} at {eqn.source}" if before.source != eqn.source else "again there"
        raise errors.KeyReuseError(
            f"In {self.name}, a key is used up by {before.primitive} at {before.source}, and {again}. {_FIX}")

    def refuse_loop(self, eqn: Eqn, by: Eqn) -> None:
        raise errors.KeyReuseError(
            f"In {self.name}, the body of {eqn.primitive} at {eqn.source} uses up the same key in each step, by "
            f"{by.primitive} at {by.source}.\nFix: one key for each step, anima.random.split(key, steps), or "
            "anima.random.fold_in(key, step); anima.random.clone(key) where the same numbers are wanted.")

    def branches(self, eqn: Eqn, given: Sequence[Numbers]) -> Sequence[Numbers]:
        before, total = dict(self.used), dict(self.used)
        found = []
        for branch in eqn.params["branches"]:
            self.used = dict(before)
            found.append(self.run(branch, given[1:]))
            total = self.used | total
        self.used = total
        return [self.new(v.aval) if one is None or any(not np.array_equal(one, other) for other in others) else one
                for v, one, *others in zip(eqn.outvars, *found, strict=True)]

    def twice(self, eqn: Eqn, body: ClosedJaxpr, consts: Sequence[Numbers], carry: Sequence[Numbers],
              xs: Sequence[Sequence[Numbers]]) -> list[Numbers]:
        """A loop's body, once for each of the `xs`: two times, or less. The results of the last time."""
        outs: list[Numbers] = []
        before = dict(self.used)
        for elements in xs:
            own = _KeyChecker(self.name)
            own.used, own.numbers = dict(before), self.numbers
            outs = own.run(body, [*consts, *carry, *elements])
            for number, by in own.used.items():
                if number not in before and number in self.used:
                    self.refuse_loop(eqn, by)
            self.used.update(own.used)
            carry = outs[:len(carry)]
        return outs

    def scan(self, eqn: Eqn, given: Sequence[Numbers]) -> Sequence[Numbers]:
        p = eqn.params
        consts, carry, xs = split_list(list(given), [p["num_consts"], p["num_carry"]])
        steps = min(p["length"], 2)
        elements = [[None if x is None else x[k] for x in xs] for k in range(steps)]
        outs = self.twice(eqn, p["jaxpr"], consts, carry, elements)
        for x in xs:  # what one step does to its element, each does to its own
            if x is not None and steps:
                where = np.isin(x[0], list(self.used))
                for number in x[:, where].reshape(-1).tolist():
                    self.used.setdefault(number, eqn)
        carried = [a if b is None or not steps or np.array_equal(a, b) else self.new(v.aval)  # type: ignore[arg-type]
                   for v, a, b in zip(eqn.outvars, carry, outs[:len(carry)] or carry, strict=False)]
        return [*carried, *(self.new(v.aval) for v in eqn.outvars[len(carry):])]

    def loop(self, eqn: Eqn, given: Sequence[Numbers]) -> Sequence[Numbers]:
        p = eqn.params
        cond, consts, carry = split_list(list(given), [p["cond_nconsts"], p["body_nconsts"]])
        outs = self.twice(eqn, p["body_jaxpr"], consts, carry, [[], []])
        self.twice(eqn, p["cond_jaxpr"], cond, [], [carry, outs[:len(carry)]])
        return [a if b is None or np.array_equal(a, b) else self.new(v.aval)  # type: ignore[arg-type]
                for v, a, b in zip(eqn.outvars, carry, outs, strict=False)]
