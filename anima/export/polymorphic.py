"""Exported functions for sizes that are not known.

    x = ShapeDtypeStruct(symbolic_shape("n, 3"), "float32");   exported = export(jit(jnp.transpose))(x)
    exported.out_avals == (ShapedArray(float32[3,n]),);        exported.call(jnp.ones((7, 3))).shape == (3, 7)

The function is exported at a few points, sizes that may be; `Family` makes of these programs one for the sizes of a
call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from anima import errors, tree
from anima.api.points import POINTS, Fit, Tried, at_points, fit_shape, is_symbolic, symbolic_sizes
from anima.config import config
from anima.core.avals import ShapedArray
from anima.core.dims import Size, SymbolicDim, here
from anima.core.format import FormatError, Reader, Writer
from anima.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs
from anima.core.trace import aval_of
from anima.errors import JaxprTypeError
from anima.export.exported import MOST_VJPS, Exported, read_chain, written
from anima.export.family import Family, same_program, same_results
from anima.export.reading import Programs
from anima.export.symbolic import SymbolicScope, parse
from anima.export.writing import exportable

FAMILY = b"ANIMASYM"
_KEPT = 32  # programs of a function, by sizes


class SymbolicExported(Exported):
    """An exported function for sizes that are not known: `Exported` says what can be done with it.

    Attributes:
      in_avals, out_avals: types with such sizes in their shapes.
      members: the function as it is exported for each of the `points`, values of the variables.
      seen: sizes that were computed while it was traced.
    """

    def __init__(
        self,
        members: Sequence[Exported],
        points: Sequence[Mapping[str, int]],
        in_shapes: Sequence[Sequence[Size]],
        seen: Sequence[SymbolicDim],
        get_vjp: Callable[[], SymbolicExported | None] | None = None,
    ) -> None:
        first = members[0]
        if any((m.in_tree, m.out_tree) != (first.in_tree, first.out_tree) for m in members):
            raise errors.InconclusiveDimensionOperation(
                f"The structure of the result of {first.fun_name} depends on the values of sizes that are not known."
            )
        self.members, self.points = tuple(members), tuple(points)
        self.seen = tuple(dict.fromkeys([*symbolic_sizes(in_shapes), *seen]))
        self.scope = self.seen[0].scope
        self._fit = Fit(self.points, self.seen)
        in_avals = [a.update(shape=tuple(shape)) for a, shape in zip(first.in_avals, in_shapes, strict=True)]
        outs = zip(*(m.out_avals for m in members), strict=True)
        out_avals = [same[0].update(shape=fit_shape(self._fit, [a.shape for a in same])) for same in outs]
        self._family = Family([m.jaxpr for m in members], self._fit)
        self._at: dict[tuple[int, ...], Exported] = {}
        super().__init__(
            first.fun_name,
            first.in_tree,
            in_avals,
            first.out_tree,
            out_avals,
            first.jaxpr,
            first.platforms,
            first.disabled_safety_checks,
            get_vjp,
            first.cut,
        )

    @property
    def names(self) -> list[str]:
        """The variables."""
        return sorted(self.points[0])

    @errors.api_boundary
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """As `Exported.call`, with arguments of any sizes that fit; ValueError for others."""
        leaves, in_tree = tree.flatten((args, kwargs))
        if in_tree != self.in_tree:
            return super().call(*args, **kwargs)  # which says so
        return self.at(self._solved([aval_of(x).shape for x in leaves])).call(*args, **kwargs)

    def at(self, values: Mapping[str, int]) -> Exported:
        """The function for values of the variables."""
        key = tuple(int(values[name]) for name in self.names)
        if key not in self._at:
            known = dict(zip(self.names, key, strict=True))
            try:
                closed = self._family.at(known)
            except (JaxprTypeError, ZeroDivisionError) as error:
                raise ValueError(f"Function '{self.fun_name}' has no program for the sizes {known}: {error}") from None

            def known_avals(avals: Sequence[ShapedArray]) -> list[ShapedArray]:
                return [a.update(shape=tuple(_at(n, known) for n in a.shape)) for a in avals]

            if len(self._at) >= _KEPT:
                del self._at[next(iter(self._at))]
            self._at[key] = Exported(
                self.fun_name,
                self.in_tree,
                known_avals(self.in_avals),
                self.out_tree,
                known_avals(self.out_avals),
                closed,
                self.platforms,
                self.disabled_safety_checks,
                self._vjp_at(known),
                self.cut,
            )
        return self._at[key]

    def check(self, values: Mapping[str, int], given: Exported | Exception) -> None:
        """InconclusiveDimensionOperation if the function that was traced for sizes, or its error, tells otherwise than
        the program for them. That there is none is for calls to say."""
        try:
            found = self.at(values)
        except (ValueError, NotImplementedError):
            return
        if isinstance(given, Exception):
            what = f"gives an error there: {given}"
        elif [(a.shape, a.dtype) for a in found.out_avals] != [(a.shape, a.dtype) for a in given.out_avals]:
            what = f"gives {', '.join(a.str_short() for a in given.out_avals)} there"
        else:
            own = Family([given.jaxpr] * len(self.points), self._fit).at(values)  # as that of any point is written
            if same_program(found.jaxpr, own) or same_results(found.jaxpr, own):
                return
            what = "is another program there"
        raise errors.InconclusiveDimensionOperation(
            f"Function '{self.fun_name}' depends on the values of sizes that are not known: what it is for "
            f"{dict(self.points[0])} is wrong for {dict(values)}, as it {what}. Compute sizes from those of the "
            "arguments by +, -, *, //, %, max_dim and min_dim, or say what holds as constraints of the symbolic "
            "shape."
        ) from (given if isinstance(given, Exception) else None)

    def _vjp_at(self, known: Mapping[str, int]) -> Callable[[], Exported | None]:
        def vjp() -> Exported | None:
            found = self._get_vjp()
            return None if found is None else found.at(known)  # type: ignore[attr-defined]

        return vjp

    def _exported_vjp(self) -> Exported:
        shapes = [a.shape for a in (*self.in_avals, *self.out_avals)]
        return SymbolicExported([m.vjp() for m in self.members], self.points, shapes, self.seen)

    # ---------------------------------------------------------------- sizes of a call

    def _solved(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The values of the variables for arguments of these shapes: one variable after the other, of linear sizes."""
        places: list[tuple[str, Size, int]] = []
        for k, (aval, shape) in enumerate(zip(self.in_avals, shapes, strict=True)):
            if len(aval.shape) != len(shape):
                raise ValueError(
                    f"Rank mismatch for {self._argument(k)}: expected {_text(aval.shape)} and called with "
                    f"{tuple(shape)}"
                )
            places += [
                (f"{self._argument(k)}.shape[{d}]", n, int(m))
                for d, (n, m) in enumerate(zip(aval.shape, shape, strict=True))
            ]
        found: dict[str, int] = {}
        left = [p for p in places if isinstance(p[1], SymbolicDim)]
        while waiting := [p for p in left if p[1].names() - found.keys()]:
            solved = next(((place, one) for place in waiting if (one := _linear(place[1], found)) is not None), None)
            if solved is None:
                names = sorted(set().union(*(p[1].names() for p in waiting)) - found.keys())
                self._mismatch(
                    f"Cannot solve for values of dimension variables {', '.join(names)}: only sizes that are "
                    "linear in one variable can be solved",
                    found,
                    why="",
                )
            (where, size, value), (name, slope, rest) = solved
            found[name], remainder = divmod(value - rest, slope)
            if remainder:
                self._mismatch(
                    f"Division had remainder {remainder} when computing the value of '{name}' from {where} (= "
                    f"{value}), which is {size}",
                    found,
                )
            if found[name] < 1:
                self._mismatch(
                    f"Expected value >= 1 for dimension variable '{name}', from {where} (= {value}), which is {size}",
                    found,
                )
        for where, size, value in places:
            if _at(size, found) != value:
                self._mismatch(
                    f"Found inconsistency between dimension size {where} (= {value}) and the specification "
                    f"'{size}' (= {_at(size, found)})",
                    found,
                )
        if missing := [n for n in self.names if n not in found]:
            self._mismatch(f"No shape of an argument tells the sizes {', '.join(missing)}", found)
        for limit in self.scope.limits:
            if limit.at(found) < 0:
                self._mismatch(
                    f"They do not match the symbolic shape constraints "
                    f"{', '.join(self.scope.constraints)}: '{limit}' is negative",
                    found,
                )
        return found

    def check_solvable(self) -> None:
        """ValueError if the shapes of arguments do not tell the values of all variables."""
        self._solved([[_at(n, self.points[0]) for n in a.shape] for a in self.in_avals])

    def _mismatch(self, problem: str, found: Mapping[str, int],
                  why: str = "Input shapes do not match the polymorphic shapes specification. ") -> NoReturn:
        wanted = ", ".join(f"{self._argument(k)}.shape = {_text(a.shape)}" for k, a in enumerate(self.in_avals))
        known = ", ".join(f"{name} = {n}" for name, n in found.items() if n > 0)
        raise ValueError(f"{why}{problem}. The specifications are {wanted}{f'; so {known}' if known else ''}.")

    # ---------------------------------------------------------------- bytes

    @errors.api_boundary
    def serialize(self, vjp_order: int = 0) -> bytes:
        """As `Exported.serialize`."""
        chain: list[SymbolicExported] = [self]
        if not 0 <= vjp_order < MOST_VJPS:
            raise ValueError(f"vjp_order is from 0 to {MOST_VJPS - 1}, got {vjp_order}.")
        for _ in range(vjp_order):
            chain.append(chain[-1].vjp())  # type: ignore[arg-type]
        head = Writer()
        _write_texts(head, self.scope.constraints)
        _write_texts(head, map(str, self.seen))
        head.natural(len(chain))
        for exported in chain:
            head.natural(len(exported.in_avals))
            for aval in exported.in_avals:
                _write_texts(head, map(str, aval.shape))
        _write_texts(head, self.names)
        head.natural(len(self.points))
        for point in self.points:
            for name in self.names:
                head.natural(point[name])
        with config.held(self._options):
            return written(FAMILY, list(zip(*(e.members for e in chain), strict=True)), head)


def _write_texts(w: Writer, texts: Iterable[str]) -> None:
    texts = list(texts)
    w.natural(len(texts))
    for text in texts:
        w.text(text)


def _same(derivative: SymbolicExported | None) -> SymbolicExported | None:
    return derivative


def read_family(reader: Reader, programs: Programs) -> SymbolicExported:
    """A function for sizes that are not known, of a file."""
    try:
        scope = SymbolicScope(reader.many(reader.text))
        seen = [parse(text, scope) for text in reader.many(reader.text)]
        shapes = reader.many(lambda: reader.many(lambda: [parse(t, scope) for t in reader.many(reader.text)]))
        names = reader.many(reader.text)
        points = reader.many(lambda: {name: reader.natural() for name in names})
        chains = [read_chain(reader, programs) for _ in points]
        if not chains or not shapes or any(len(chain) != len(shapes) for chain in chains) or not names:
            reader.fail("there are other functions than sizes of them")
        found: SymbolicExported | None = None
        for members, own in zip(reversed(list(zip(*chains, strict=True))), reversed(shapes), strict=True):
            found = SymbolicExported(
                members,
                points,
                own,
                [s for s in seen if isinstance(s, SymbolicDim)],
                partial(_same, found),
            )
    except FormatError:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:  # sizes that no shape has
        raise FormatError(f"The exported program is damaged: {error}") from None
    assert found is not None
    return found


def _at(size: Size, values: Mapping[str, int]) -> int:
    return int(size.at(values)) if isinstance(size, SymbolicDim) else int(size)


def _text(shape: Sequence[Size]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _linear(size: SymbolicDim, found: Mapping[str, int]) -> tuple[str, int, int] | None:
    """(variable, its factor, the rest) of a size that is linear in the only variable that is not found yet."""
    names = size.names() - found.keys()
    if len(names) != 1:
        return None
    (name,) = names
    try:
        a, b, c = (int(size.at({**found, name: n})) for n in (1, 2, 5))
    except ZeroDivisionError:
        return None
    linear = all(
        not atom.parts or name not in set().union(*(p.names() for p in atom.parts if isinstance(p, SymbolicDim)))
        for monomial, _ in size.terms
        for atom, _ in monomial
    )
    return (name, b - a, 2 * a - b) if linear and b != a and c - b == 3 * (b - a) else None


def _see(closed: ClosedJaxpr | Jaxpr) -> None:
    """Has the programs made that operations stand for, so that the sizes in them are known to their point."""
    for eqn in closed.eqns:
        for part in exportable(eqn):
            for program in subjaxprs(part.params):
                _see(program)


def export_at_points(
    do_export: Callable[..., Exported], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SymbolicExported:
    """A function, which `do_export` exports for known sizes, exported for those of its arguments.

    Raises:
      InconclusiveDimensionOperation: where the program depends on the values of sizes.
      ValueError: for sizes of several scopes, or that cannot be.
    """
    def shapes_of(member: Exported) -> list[Sequence[Size]]:
        return [x.shape if is_symbolic(x) else aval.shape
                for x, aval in zip(tree.leaves((args, kwargs)), member.in_avals, strict=True)]

    def check(tried: Tried) -> None:
        """Refuses what is another program for each size soon."""
        if len({(e.out_tree, len(e.jaxpr.eqns)) for e in tried.found}) > 1:
            SymbolicExported(tried.found, [p.values for p in tried.points], shapes_of(tried.found[0]), tried.seen)

    def at_sizes(*args: Any, **kwargs: Any) -> Exported:
        member = do_export(*args, **kwargs)
        with here(None):  # as `Family` asks for these programs
            _see(member.jaxpr)
        return member

    tried = at_points(at_sizes, args, kwargs, check)
    members = tried.found
    shapes = shapes_of(members[0])
    points, seen = [p.values for p in tried.points], tried.seen

    def family_of(numbers: Sequence[int]) -> SymbolicExported:
        return SymbolicExported([members[k] for k in numbers], [points[k] for k in numbers], shapes, seen)

    special: list[int] = []  # points whose programs are others, as where what is done to one element is left out
    try:
        exported = family_of(range(len(points)))
    except errors.InconclusiveDimensionOperation:
        kept = list(range(POINTS))
        exported = family_of(kept)
        for k in range(POINTS, len(points)):
            try:
                exported = family_of([*kept, k])
                kept.append(k)
            except errors.InconclusiveDimensionOperation:
                special.append(k)
    for k in special:
        exported.check(points[k], members[k])
    for point, other in [*tried.failed, *tried.further]:
        exported.check(point.values, other)
    exported.check_solvable()
    return exported
