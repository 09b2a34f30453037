"""Totals of places in memory that many updates in a row go to: the segments of a sum, the rows of a sparse matrix.

    if place != here:
      sum := out[place]
      here := place
    sum := sum + value
    out[place] = sum

Without it each update waits until memory has what the one before it wrote. Where places change often, the branch would
be foreseen worse than the total is found in memory.
"""

from __future__ import annotations

from anima.compiler.ir.loops import INDEX, Const, Expr, Load, Op, Store, affine
from anima.compiler.lowering.array import Scope, constant


class Run:
    """The totals of the place that was updated last, `count` elements, in registers."""

    def __init__(self, scope: Scope, dtype: str, count: int = 1):
        self.scope, self.here = scope, scope.var(Const(-1, INDEX), "a")
        self.sums = [scope.var(constant(0, dtype)) for _ in range(count)]

    def move(self, memory: str, place: Expr) -> None:
        """Updates that follow are of a place of memory."""
        self.place, self.memory = self.scope.let(place, self.scope.depth, "n"), memory
        with self.scope.when(self.scope.let(Op("ne", (self.place, self.here), "bool"), self.scope.depth)):
            for j, total in enumerate(self.sums):
                self.scope.assign(total, Load(memory, affine(j, (self.place, 1)), total.dtype))
            self.scope.assign(self.here, self.place)

    def update(self, op: str, value: Expr, j: int = 0) -> None:
        """Combines an element with a value."""
        total = self.sums[j]
        new = self.scope.let(Op(op, (self.scope.read(total), value), total.dtype), self.scope.depth)
        self.scope.assign(total, new)
        self.scope.emit(Store(self.memory, affine(j, (self.place, 1)), new))
