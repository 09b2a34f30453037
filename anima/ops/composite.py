"""Primitives that are defined by a program of other operations.

`program` is what eager mode runs on NumPy and what the compiler puts in the primitive's place; being a primitive gives
it a name in jaxprs, and rules of its own for derivatives and batches.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive
from anima.core.stage import eval_numpy, trace_to_jaxpr
from anima.core.trace import EVAL, under
from anima.util import cleared


class Composite(Primitive):
    """Subclasses write `program(*args, **params)` with one result, and `jvp` and `batch`."""

    def program(self, *args: Any, **params: Any) -> Any:
        raise self._missing("The program")

    def infer(self, *avals: ShapedArray, **params: Any) -> Any:
        return self.body(params, avals).out_avals[0]

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program for these types."""
        return _traced(self, tuple(a.update(weak_type=False) for a in avals), tuple(params.items()))

    def eval(self, *args: np.ndarray, **params: Any) -> Any:
        return eval_numpy(self.body(params, [ShapedArray(x.shape, x.dtype) for x in args]), args)[0]


@functools.lru_cache(maxsize=1024)
def _traced(primitive: Composite, avals: tuple[ShapedArray, ...], params: tuple[tuple[str, Any], ...]) -> ClosedJaxpr:
    jaxpr, consts = under(EVAL, trace_to_jaxpr, lambda *xs: [primitive.program(*xs, **dict(params))], list(avals))
    return ClosedJaxpr(jaxpr, consts)


cleared(_traced.cache_clear)
