"""Solvers for users, compiled before they run where nothing is being traced; `platform_dependent`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np

from anima import errors, tree
from anima.api.devices import default_backend
from anima.control import linear_solve
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import Traced, close, eval_numpy, trace_pytrees
from anima.core.trace import aval_of
from anima.lax.control import _compiled
from anima.transforms.call import ProgramCall


@wraps(linear_solve.custom_linear_solve)
def custom_linear_solve(matvec: Callable[[Any], Any], b: Any, solve: Callable[[Callable[[Any], Any], Any], Any],
                        transpose_solve: Callable[[Callable[[Any], Any], Any], Any] | None = None,
                        symmetric: bool = False, has_aux: bool = False) -> Any:
    return _compiled("custom_linear_solve", b, lambda b: linear_solve.custom_linear_solve(
        matvec, b, solve, transpose_solve, symmetric, has_aux))


@wraps(linear_solve.custom_root)
def custom_root(f: Callable[[Any], Any], initial_guess: Any, solve: Callable[[Callable[[Any], Any], Any], Any],
                tangent_solve: Callable[[Callable[[Any], Any], Any], Any], has_aux: bool = False) -> Any:
    return _compiled("custom_root", initial_guess, lambda guess: linear_solve.custom_root(
        f, guess, solve, tangent_solve, has_aux))


class Named(ProgramCall):
    """`jaxpr(*args)`, an operation of the user's by name, version and attributes."""

    def eval(self, *args: np.ndarray, jaxpr: ClosedJaxpr, **params: Any) -> list[np.ndarray]:
        return eval_numpy(jaxpr, args)


composite_p = Named("composite")


def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """A function as one named operation of programs: those who read them see its name, and may know a better way.

    Args:
      decomposition: what the operation does: a function of arrays; keyword arguments are attributes, taken by value.
      name, version: what the operation is called.

    Differs from JAX: it can be differentiated and mapped, as its decomposition can.

    >>> lax.composite(lambda x, *, power: x ** power, "my.power")(jnp.arange(3.0), power=2)
    Array([0., 1., 4.], dtype=float32)
    """
    if not callable(decomposition):
        raise TypeError(f"Expected a callable value, got {decomposition!r}")

    @wraps(decomposition)
    @errors.api_boundary
    def call(*args: Any, **attributes: Any) -> Any:
        leaves, in_tree = tree.flatten(args)
        jaxpr, consts, out_tree = trace_pytrees(partial(decomposition, **attributes), in_tree,
                                                list(map(aval_of, leaves)), Traced(name, by="composite"))
        closed, consts = close(jaxpr, consts)
        outs = composite_p.bind(*consts, *leaves, jaxpr=closed, name=name, version=int(version),
                                attributes=tuple(sorted(attributes.items())))
        return tree.unflatten(out_tree, outs)

    return call


def platform_dependent(*args: Any, default: Callable[..., Any] | None = None,
                       **per_platform: Callable[..., Any]) -> Any:
    """`per_platform[platform](*args)` for the platform that programs run on, `default(*args)` where it has no branch.

    Differs from JAX: only the branch that is taken is traced.

    Raises:
      NotImplementedError: where there is neither.

    >>> lax.platform_dependent(2.0, cpu=lambda x: x + 1, cuda=lambda x: x * 10)
    3.0
    """
    platform = {"gpu": "cuda"}.get(default_backend(), default_backend())
    branch = per_platform.get(platform, default)
    if branch is None:
        platforms = tuple((p,) for p in per_platform)
        raise NotImplementedError(f"MLIR translation rule for primitive 'platform_index(platforms={platforms})' not "
                                  f"found for platform {platform}")
    return branch(*args)
