"""Operations made of others, under a name and parameters of their own, which readers of programs know.

    tile_p = Composed("tile", lambda x, *, reps: sh.tile(x, reps))

`fun(*operands, **parameters)` says what they are made of; every rule follows from its program, and the compiler puts
that in place of the operation. What differentiating or batching makes of it are the operations that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, work_of
from anima.core.primitive import Linear, Primitive, Work, Zero
from anima.core.stage import eval_jaxpr, eval_numpy, trace_to_jaxpr
from anima.core.trace import aval_of
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import fill
from anima.transforms.transpose import backward
from anima.transforms.vmap import batch_jaxpr
from anima.util import weak_cache


class Composed(Primitive):
    """`fun(*operands, **parameters)`, an array, or a sequence of arrays with `multiple_results`."""

    cost = 10.0

    def __init__(self, name: str, fun: Callable[..., Any], multiple_results: bool = False):
        super().__init__(name)
        self.fun, self.multiple_results = fun, multiple_results

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program that an application stands for."""
        return _program(self, tuple(avals), tuple(sorted(params.items())))

    def infer(self, *avals: ShapedArray, **params: Any) -> Any:
        outs = self.body(params, avals).out_avals
        return outs if self.multiple_results else outs[0]

    def eval(self, *args: np.ndarray, **params: Any) -> Any:
        return self.eval_extended([ShapedArray(a.shape, a.dtype) for a in args], args, params)

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        outs = eval_numpy(self.body(params, avals), args)
        return outs if self.multiple_results else outs[0]

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return work_of(self.body(params, avals))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        new, mask = jvp_jaxpr(self._of(primals, params), tuple(not isinstance(t, Zero) for t in tangents))
        found = eval_jaxpr(new.jaxpr, new.consts, *primals, *(t for t in tangents if not isinstance(t, Zero)))
        outs = found[: len(mask)]
        moved = fill(mask, found[len(mask):], outs)
        return (outs, moved) if self.multiple_results else (outs[0], moved[0])

    def transpose(self, ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        program = self._of(args, params)
        return backward(program.jaxpr, program.consts, args, ct if self.multiple_results else [ct])

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        avals = [a if d is None else a.update(shape=a.shape[:d] + a.shape[d + 1:])
                 for a, d in zip(map(aval_of, args), dims, strict=True)]
        new, out_dims = batch_jaxpr(self.body(params, avals), size, tuple(dims))
        outs = eval_jaxpr(new.jaxpr, new.consts, *args)
        return (outs, out_dims) if self.multiple_results else (outs[0], out_dims[0])

    def _of(self, args: Sequence[Any], params: dict[str, Any]) -> ClosedJaxpr:
        return self.body(params, [a.aval if isinstance(a, Linear) else aval_of(a) for a in args])


@weak_cache
def _program(primitive: Composed, avals: tuple[ShapedArray, ...], params: tuple[tuple[str, Any], ...]) -> ClosedJaxpr:
    def run(*xs: Any) -> Sequence[Any]:
        out = primitive.fun(*xs, **dict(params))
        return out if primitive.multiple_results else [out]

    return ClosedJaxpr(*trace_to_jaxpr(run, avals))
