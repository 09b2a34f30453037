"""Solvers for users, compiled before they run where nothing is being traced; `platform_dependent`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from anima.api.devices import default_backend
from anima.control import linear_solve
from anima.lax.control import _compiled


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


def platform_dependent(*args: Any, default: Callable[..., Any] | None = None,
                       **per_platform: Callable[..., Any]) -> Any:
    """`per_platform[platform](*args)` for the platform that programs run on, `default(*args)` where it has no branch.

    Differs from JAX: only the branch that is taken is traced.

    Raises:
      NotImplementedError: where there is neither.

    >>> lax.platform_dependent(2.0, cpu=lambda x: x + 1, cuda=lambda x: x * 10)
    3.0
    """
    branch = per_platform.get(default_backend(), default)
    if branch is None:
        platforms = tuple((p,) for p in per_platform)
        raise NotImplementedError(f"MLIR translation rule for primitive 'platform_index(platforms={platforms})' not "
                                  f"found for platform {default_backend()}")
    return branch(*args)
