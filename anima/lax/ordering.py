"""What a program does besides computing results: values that it must compute, tokens, a hidden generator.

    >>> anima.make_jaxpr(lambda x: (lax.dce_sink(x), x + 1)[1])(1.0)
    { lambda ; a:f32[]. let
        dce_sink[prevent_mlir_dce=False] a
        b:f32[] = add a 1.0
      in (b,) }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import tree
from anima.api.effects import io_callback
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import Shape, ShapedArray
from anima.core.trace import aval_of
from anima.ops import shape as sh
from anima.transforms.composed import Composed
from anima.transforms.vmap import move_to


class _Sink(Composed):
    """No results, and never dropped."""

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        return frozenset(("IO" if params["prevent_mlir_dce"] else "Sink",))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return self.bind(*primals, **params), []

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        return self.bind(*(move_to(x, d, 0, size) for x, d in zip(args, dims, strict=True)), **params), []


def _sunk(*values: Any, prevent_mlir_dce: bool) -> list[Any]:
    if prevent_mlir_dce:
        io_callback(lambda *_: None, None, *values)
    return []


dce_sink_p = _Sink("dce_sink", _sunk, multiple_results=True)


def dce_sink(val: Any, *, prevent_mlir_dce: bool = False) -> None:
    """Keeps the arrays of a pytree among what a recorded program computes, though nothing there uses them.

    With `prevent_mlir_dce`, compiled code computes them, too.
    """
    for leaf in tree.leaves(val):
        dce_sink_p.bind(leaf, prevent_mlir_dce=bool(prevent_mlir_dce))


# A token orders what has no operands in common. Effects stay in program order here; so a token holds nothing.
_TOKEN = ShapedArray((0,), np.dtype(np.bool_))


def _token(*tokens: Any) -> Any:
    return sh.full(_TOKEN.shape, False, _TOKEN.dtype)


create_token_p = Composed("create_token", _token)
after_all_p = Composed("after_all", _token)


def create_token(_: Any = None) -> Array:
    """A token with nothing before it; the argument is not used."""
    return create_token_p.bind()


def after_all(*operands: Any) -> Array:
    """A token after all of these; TypeError for what is no token."""
    for x in operands:
        if not isinstance(x, Array) or x.aval != _TOKEN:
            raise TypeError(f"Arguments to after_all must be tokens, got {x!r}.")
    return after_all_p.bind(*operands)


_generator = np.random.default_rng()


def _uniform(a: Any, b: Any, shape: Shape) -> np.ndarray:
    low, high = np.asarray(a), np.asarray(b)
    if low.dtype.kind in "iu":
        return np.asarray(_generator.integers(low, high, shape), low.dtype)
    drawn = np.asarray(low + (high - low) * _generator.random(shape), low.dtype)
    return np.minimum(drawn, np.nextafter(high, low))  # what was rounded to `b`


class _RngUniform(Composed):
    """Each application draws anew."""

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        return frozenset(("IO",))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Differentiation")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Batching (vmap)")


def _drawn(a: Any, b: Any, *, shape: Shape) -> Any:
    return io_callback(lambda low, high: _uniform(low, high, shape), ShapedArray(shape, a.dtype), a, b)


rng_uniform_p = _RngUniform("rng_uniform", _drawn)


def rng_uniform(a: Any, b: Any, shape: Any) -> Array:
    """Random numbers between the scalars `a` and `b`, without `b`, of a generator that no key determines.

    For programs that can be repeated, batched and differentiated, see `anima.random`.

    Raises:
      TypeError: for a dtype that is neither float nor int.
      ValueError: for operands of two dtypes, or that are no scalars.
    """
    first, second = aval_of(a), aval_of(b)
    if first.dtype != second.dtype:
        raise ValueError(f"rng_uniform: a and b must have one dtype, got {first.str_short()} and {second.str_short()}.")
    if first.shape or second.shape:
        raise ValueError(f"rng_uniform: a and b must be scalars, got {first.str_short()} and {second.str_short()}.")
    if not dtypes.issubdtype(first.dtype, np.integer) and not dtypes.issubdtype(first.dtype, np.floating):
        raise TypeError(f"rng_uniform: a and b must be floats or ints, got {first.str_short()}.")
    return rng_uniform_p.bind(a, b, shape=sh.as_shape(shape))
