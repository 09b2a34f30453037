"""Operations made of others, under a name and parameters of their own, which readers of programs know.

    tile_p = Composed("tile", lambda x, *, reps: sh.tile(x, reps))

`fun(*operands, **parameters)` says what they are made of; every rule follows from its program, and the compiler puts
that in place of the operation. What differentiating or batching makes of it are the operations that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Linear, Zero
from anima.core.stage import eval_jaxpr
from anima.core.trace import aval_of
from anima.ops.composite import Composite
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import fill
from anima.transforms.transpose import backward
from anima.transforms.vmap import batch_jaxpr


class Composed(Composite):
    """`fun(*operands, **parameters)`, an array, or a sequence of arrays with `multiple_results`."""

    cost = 10.0

    def __init__(self, name: str, fun: Callable[..., Any], multiple_results: bool = False):
        super().__init__(name)
        self.program, self.multiple_results = fun, multiple_results  # type: ignore[method-assign]

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
