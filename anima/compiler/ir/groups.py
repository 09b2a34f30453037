"""A fused program: which equations become kernels, and which are folded into those that use them.

    map f32[4096,1024]:        e = exp b
    reduce f32[4096,1024] over (1): c = reduce_max a; f = reduce_sum e; g = div e f'
    call:                      h = dot_general g w

A group's `roots` are computed by one kernel; every other equation is folded into its consumers. Of the
roots' results those in `Fused.stored` are written to memory, the others are known inside the group only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from anima.core.avals import Shape
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Var

A = TypeVar("A", bound=Atom)
LARGE = 3000     # instructions, about, of one kernel, and of what is folded into one equation: code generation
                 # takes more than twice the time for a function of twice the size
LOAD = 12        # instructions for an array that is read: to pass its address, too
MOST_BOXES = 40  # kernels for the parts of concatenations and paddings; a concatenation of more is computed as a
                 # whole, each part by itself
PIECES = 4       # elements, in the mean, of parts that are: looking for them costs more than to store them
TURNS = 16       # most elements of rows that are put together from vectors of each


def home_of(views: Mapping[Var, Var], atom: A) -> A | Var:
    """The variable whose memory holds `atom`, where `views` are those of others under a different shape."""
    found: A | Var = atom
    while type(found) is Var and found in views:
        found = views[found]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Equations that one kernel computes.

    map     results of one shape, `shape`
    reduce  reductions over `axes` of operands of shape `shape`, with results of that shape or of the rows'
    call    one equation with a lowering of its own
    `flat` says that every array read is of the shape `shape` or a scalar, element by element. `cuts` are, by
    dimension, places where concatenations and paddings begin and end: kernels are made for the boxes between;
    those on both sides of the only cut share a loop if the group is `paired` (their elements come from one block).
    `reads` are variables that it loads, `moved` those of them that it loads elsewhere than at the index of the
    result being computed (all others may share a result's memory).
    `size` is how many instructions one element takes, about.
    """

    kind: Literal["map", "reduce", "call"]
    roots: tuple[Eqn, ...]
    shape: Shape = ()
    axes: tuple[int, ...] = ()
    flat: bool = False
    cuts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    paired: bool = False
    reads: tuple[Var, ...] = ()
    moved: frozenset[Var] = frozenset()
    size: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """A program cut into groups, in an order in which they can run.

    `producers` has the equations that can be computed at one index; `views` the variables that are
    another one's memory under a different shape. `over` has results and the operands over whose memory they may be
    written, those of later groups first. `inner` has the programs of loops and branches, cut into groups as well.
    """

    closed: ClosedJaxpr
    groups: tuple[Group, ...]
    producers: dict[Var, Eqn]
    views: dict[Var, Var]
    stored: frozenset[Var]
    over: dict[Var, Var] = field(default_factory=dict)
    inner: dict[Eqn, tuple[Fused, ...]] = field(default_factory=dict)

    def home(self, var: Var) -> Var:
        """The variable whose memory holds `var`."""
        return home_of(self.views, var)

    @property
    def results(self) -> set[Var]:
        """The variables whose memory holds what the program returns."""
        return {self.home(v) for v in self.closed.jaxpr.outvars if type(v) is Var}
