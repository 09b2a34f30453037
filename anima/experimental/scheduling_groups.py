"""Parts of a program under a name, for readers of programs: here they are run as what they consist of.

    { lambda ; a. let b = xla_metadata_call[jaxpr={ lambda ; c. let d = sin c in (d,) } scheduling_group=g] a in (b,) }
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from anima import errors, tree
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import Traced, close, eval_numpy, trace_pytrees
from anima.core.trace import aval_of
from anima.names import access
from anima.transforms.call import ProgramCall
from anima.util import fun_name, wraps


class _Group(ProgramCall):
    """`jaxpr(*args)`, with notes."""

    def eval(self, *args: np.ndarray, jaxpr: ClosedJaxpr, **notes: Any) -> list[np.ndarray]:
        return eval_numpy(jaxpr, args)


xla_metadata_call_p = _Group("xla_metadata_call")


def scheduling_group(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for functions whose operations are one group, of this name.

    >>> scheduling_group(name="g")(lambda x: x + 1)(jnp.float32(1))
    Array(2., dtype=float32)
    """
    return xla_metadata_call(scheduling_group=name)


def xla_metadata_call(f: Callable[..., Any] | None = None, **meta: Any) -> Callable[..., Any]:
    """A function whose operations are one call in programs, with notes; without `f`, a decorator.

    Args:
      f: a function of pytrees of arrays.
      meta: the notes, by name: parameters of the equation.
    """
    if f is None:
        return partial(xla_metadata_call, **meta)
    fun = f

    @wraps(fun)
    @errors.api_boundary
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        traced = Traced(fun_name(fun), by="xla_metadata_call")
        jaxpr, consts, out_tree = trace_pytrees(lambda args, kwargs: fun(*args, **kwargs), in_tree,
                                                list(map(aval_of, leaves)), traced)
        closed, outer = close(jaxpr, consts)
        return tree.unflatten(out_tree, xla_metadata_call_p.bind(*outer, *leaves, jaxpr=closed, **meta))

    return call


globals().update(access(__name__, globals()))
