"""Primitives that are defined by a program of other operations.

`program` is what eager mode runs on NumPy and what the compiler puts in the primitive's place; being a primitive gives
it a name and parameters in jaxprs. Rules for derivatives and batches are its own, or those of its program:
`transforms/composed.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from anima.config import config
from anima.core.avals import ShapedArray
from anima.core.dims import Point, point_of
from anima.core.jaxpr import ClosedJaxpr, work_of
from anima.core.primitive import Primitive, Work
from anima.core.stage import eval_numpy, trace_to_jaxpr
from anima.core.trace import EVAL, under
from anima.util import cleared


class Composite(Primitive):
    """Subclasses have `program(*args, **params)`, whose result is an array, or a sequence with `multiple_results`."""

    def program(self, *args: Any, **params: Any) -> Any:
        raise self._missing("The program")

    def trace(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program for these types, made anew."""
        def run(*xs: Any) -> Sequence[Any]:
            out = self.program(*xs, **params)
            return out if self.multiple_results else [out]

        return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, run, list(avals)))

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program for these types."""
        given = tuple(avals), tuple(sorted(params.items()))
        return _traced(self, *given, config.trace_key(), point_of(*given))

    def infer(self, *avals: ShapedArray, **params: Any) -> Any:
        outs = self.body(params, avals).out_avals
        return outs if self.multiple_results else outs[0]

    def eval(self, *args: np.ndarray, **params: Any) -> Any:
        return self.eval_extended([ShapedArray(x.shape, x.dtype) for x in args], args, params)

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        outs = eval_numpy(self.body(params, avals), args)
        return outs if self.multiple_results else outs[0]

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return work_of(self.body(params, avals))


@functools.lru_cache(maxsize=1024)
def _traced(primitive: Composite, avals: tuple[ShapedArray, ...], params: tuple[tuple[str, Any], ...],
            options: Hashable, point: Point | None) -> ClosedJaxpr:
    with config.held(options):
        return primitive.trace(dict(params), avals)


cleared(_traced.cache_clear)
