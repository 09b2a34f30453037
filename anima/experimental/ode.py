"""Ordinary differential equations with steps of adapted length, and gradients by the adjoint equation.

    odeint(lambda y, t: -y, 1.0, jnp.array([0.0, 1.0]))   ->   [1.0, exp(-1)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima import errors, lax, tree
from anima.api.autodiff import vjp
from anima.api.mapping import vmap
from anima.core import dtypes
from anima.core.trace import aval_of
from anima.custom_derivatives import closure_convert, custom_vjp
from anima.flatten_util import ravel_pytree
from anima.names import access
from anima.ops.broadcast import as_array
from anima.util import calling

_Field = Callable[..., Any]  # (y, t, *args) -> dy/dt, on flat arrays

# Dormand and Prince, 1980: stages, differences between its results of order 5 and 4, continuous extension.
_TIMES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
_DENSE = (-12715105075 / 11282082432, 0.0, 87487479700 / 32700410799, -10690763975 / 1880347072,
          701980252875 / 199316789632, -1453857185 / 822651844, 69997945 / 29380423)
_SAFETY, _LEAST, _MOST = 0.9, 0.2, 10.0  # of the length of a step, relative to that of the one before


@errors.api_boundary
def odeint(func: Callable[..., Any], y0: Any, t: Any, *args: Any, rtol: float = 1.4e-8, atol: float = 1.4e-8,
           mxstep: float = np.inf, hmax: float = np.inf) -> Any:
    """Solves dy/dt = func(y, t, *args) from y(t[0]) = y0.

    Args:
      func: the right-hand side, of the structure, shapes and dtypes of y.
      y0: an array of floats or complex numbers, or a pytree of them.
      t: float[n], times at which the solution is wanted, all ascending or all descending.
      *args: arrays and pytrees of them, for `func`.
      rtol, atol: the error of a step is kept below `atol + rtol |y|`, in the root mean square.
      mxstep: the most steps between two times.
      hmax: the longest step.

    Returns:
      The solution at the times: y with a leading axis of size n. NaN from where steps became too many or too short.

    Raises:
      TypeError: for a y0 of integers, arguments that are no arrays, or a `func` whose result is not like y.

    Derivatives with respect to y0, t, args and what `func` closes over, of any order, in reverse mode: they cost the
    solution of an equation of twice the size, backwards in time.

    Source: Dormand and Prince, "A family of embedded Runge-Kutta formulae", 1980; Hairer, Norsett and Wanner, "Solving
    Ordinary Differential Equations I", 2nd ed. 1993, sections II.4 to II.6; Chen, Rubanova, Bettencourt and Duvenaud,
    "Neural ordinary differential equations", 2018.
    Differs from JAX: times may descend; what was not reached is NaN.

    >>> odeint(lambda y, t, k: -k * y, 1.0, jnp.array([0.0, 1.0, 2.0]), 2.0, rtol=1e-6, atol=1e-6).round(4)
    Array([1.    , 0.1353, 0.0183], dtype=float32)
    """
    for leaf in tree.leaves(args):
        try:
            aval_of(leaf)
        except TypeError:
            raise TypeError(f"odeint: the arguments of func must be arrays or numbers, got {leaf!r}.") from None
    y0 = tree.map(as_array, y0)
    for leaf in tree.leaves(y0):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(f"odeint: y0 must be of floats or complex numbers, got {leaf.aval.str_short()}.")
    times = jnp.asarray(t, dtypes.canonicalize_dtype(float) if not jnp.issubdtype(aval_of(t).dtype, jnp.floating)
                        else None)
    start, unravel = ravel_pytree(y0)
    structure = tree.structure(y0)
    with calling("odeint", func, ("y", "t", *(f"args[{k}]" for k in range(len(args))))):
        converted, consts = closure_convert(func, y0, times[0], *args)

    def field(y: Any, time: Any, *given: Any) -> Any:
        slope = converted(unravel(y), time, *given)
        if tree.structure(slope) != structure:
            raise TypeError(f"odeint: func must return what y is, {structure}, but returned {tree.structure(slope)}.")
        flat = ravel_pytree(slope)[0].astype(y.dtype)
        if flat.shape != y.shape:
            shapes = tree.map(jnp.shape, y0), tree.map(jnp.shape, slope)
            raise TypeError(f"odeint: func must return what y is, of the shapes {shapes[0]}, but returned {shapes[1]}.")
        return flat

    leaves, args_tree = tree.flatten((*args, *consts))
    out = _solve(_Flat(field, args_tree), (rtol, atol, mxstep, hmax), start, times, *map(as_array, leaves))
    return vmap(unravel)(out)


class _Flat:
    """A field as a function of the leaves of its arguments."""

    def __init__(self, field: _Field, args_tree: Any) -> None:
        self.field, self.args_tree = field, args_tree

    def __call__(self, y: Any, time: Any, *leaves: Any) -> Any:
        return self.field(y, time, *tree.unflatten(self.args_tree, leaves))


# ---------------------------------------------------------------- forward

@partial(custom_vjp, nondiff_argnums=(0, 1))
def _solve(field: _Field, control: tuple[float, ...], y0: Any, times: Any, *args: Any) -> Any:
    """The solution at all times, y0 first."""
    rtol, atol, mxstep, hmax = control
    way = jnp.where(times[-1] < times[0], -1, 1).astype(times.dtype)

    def slope(y: Any, s: Any) -> Any:  # in times that ascend
        return field(y, way * s, *args) * way.astype(y.dtype)

    def reach(state: tuple[Any, ...], target: Any) -> tuple[tuple[Any, ...], Any]:
        def go_on(loop: tuple[Any, ...]) -> Any:
            count, _, _, _, now, length, _ = loop
            return (now < target) & (count < mxstep) & (now + length > now)

        def advance(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            count, dense, y, f, now, length, before = loop
            new_y, new_f, error, new_dense = _step(slope, y, f, now, length)
            ratio = _norm(error / (atol + rtol * jnp.maximum(jnp.abs(y), jnp.abs(new_y))))
            accepted = ratio <= 1
            factor = _SAFETY * jnp.where(ratio > 0, ratio, 1e-10) ** -0.2
            factor = jnp.where(jnp.isfinite(ratio), jnp.clip(factor, _LEAST, jnp.where(accepted, _MOST, 1.0)), _LEAST)
            new = (new_dense, new_y, new_f, now + length, before)
            kept = [jnp.where(accepted, a, b) for a, b in zip(new[:4], (dense, y, f, now), strict=True)]
            return (count + 1, *kept, jnp.minimum(length * factor.astype(length.dtype), hmax),
                    jnp.where(accepted, now, before))

        _, dense, y, f, now, length, before = lax.while_loop(go_on, advance, (0, *state))
        span = now - before
        where = jnp.where(span > 0, (target - before) / jnp.where(span > 0, span, 1), 0).astype(dense.dtype)
        found = jnp.where(now < target, jnp.nan, _between(dense, where))
        return (dense, y, f, now, length, before), found

    s = way * times
    f0 = slope(y0, s[0])
    length = jnp.minimum(_first_length(slope, y0, f0, s[0], rtol, atol), hmax)
    still = jnp.stack([y0, *[jnp.zeros_like(y0)] * 4])
    _, later = lax.scan(reach, (still, y0, f0, s[0], length, s[0]), s[1:])
    return jnp.concatenate([y0[None], later])


def _norm(x: Any) -> Any:
    """The root mean square."""
    return jnp.sqrt(jnp.sum(jnp.real(x * jnp.conj(x))) / max(x.size, 1))


def _first_length(slope: _Field, y: Any, f: Any, now: Any, rtol: float, atol: float) -> Any:
    """A step of about the error that is allowed (Hairer et al., section II.4)."""
    scale = atol + rtol * jnp.abs(y)
    size, change = _norm(y / scale), _norm(f / scale)
    small = (size < 1e-5) | (change < 1e-5)
    guess = jnp.where(small, 1e-6, 0.01 * size / jnp.where(small, 1, change)).astype(now.dtype)
    bend = _norm((slope(y + guess.astype(y.dtype) * f, now + guess) - f) / scale) / guess
    most = jnp.maximum(change, bend)
    flat = most <= 1e-15
    length = jnp.where(flat, jnp.maximum(1e-6, guess * 1e-3), (0.01 / jnp.where(flat, 1, most)) ** 0.2)
    return jnp.minimum(100 * guess, length).astype(now.dtype)


def _step(slope: _Field, y: Any, f: Any, now: Any, length: Any) -> tuple[Any, Any, Any, Any]:
    """(y and its slope after a step, the error, coefficients of what is between)."""
    h = length.astype(y.dtype)
    slopes = [f]
    for part, weights in zip(_TIMES, _STAGES, strict=True):
        new_y = y + h * _sum(weights, slopes)
        slopes.append(slope(new_y, now + part * length))
    error = h * _sum(_ERROR, slopes)
    change = new_y - y
    bend = h * f - change
    return new_y, slopes[-1], error, jnp.stack([y, change, bend, change - h * slopes[-1] - bend,
                                                h * _sum(_DENSE, slopes)])


def _sum(weights: Sequence[float], slopes: Sequence[Any]) -> Any:
    return sum(w * k for w, k in zip(weights, slopes, strict=True) if w)


def _between(dense: Any, where: Any) -> Any:
    """The solution within a step, `where` in [0, 1] (Hairer et al., section II.6)."""
    y, change, bend, third, fourth = dense
    rest = 1 - where
    return y + where * (change + rest * (bend + where * (third + rest * fourth)))


# ---------------------------------------------------------------- backward

def _forward(field: _Field, control: tuple[float, ...], y0: Any, times: Any, *args: Any) -> tuple[Any, Any]:
    out = _solve(field, control, y0, times, *args)
    return out, (out, times, args)


def _backward(field: _Field, control: tuple[float, ...], residuals: Any, ct: Any) -> tuple[Any, ...]:
    """The adjoint of the solution, solved backwards from each time to the one before."""
    ys, times, args = residuals
    moves = [jnp.issubdtype(x.dtype, jnp.inexact) for x in args]

    def only(values: Sequence[Any]) -> list[Any]:
        return [v for v, m in zip(values, moves, strict=True) if m]

    def adjoint(state: Any, time: Any, *args: Any) -> Any:
        y, ct_y, _ = state

        def moving(y: Any, *inexact: Any) -> Any:
            given = iter(inexact)
            return field(y, time, *(next(given) if m else x for x, m in zip(args, moves, strict=True)))

        f, pull = vjp(moving, y, *only(args))
        back_y, *back_args = pull(ct_y)
        return f, -back_y, [-b for b in back_args]

    def earlier(state: Any, given: Any) -> tuple[Any, Any]:
        ct_y, ct_args = state
        y, time, before, ct_here = given
        slope = field(y, time, *args)
        ct_y = ct_y + ct_here
        start, unravel = ravel_pytree((y, ct_y, ct_args))

        def flat(state: Any, time: Any, *args: Any) -> Any:
            return ravel_pytree(adjoint(unravel(state), time, *args))[0]

        end = _solve(flat, control, start, jnp.stack([time, before]), *args)[1]
        _, ct_y, ct_args = unravel(end)
        return (ct_y, ct_args), _inner(ct_here, slope)

    zero = jnp.zeros_like(ys[0]), [jnp.zeros_like(x) for x in only(args)]
    (ct_y, ct_args), ct_times = lax.scan(earlier, zero, (ys[1:], times[1:], times[:-1], ct[1:]), reverse=True)
    ct_start = -_inner(ct_y, field(ys[0], times[0], *args))
    found = iter(ct_args)
    return (ct_y + ct[0], jnp.concatenate([ct_start[None], ct_times]).astype(times.dtype),
            *(next(found) if m else np.zeros(x.shape, dtypes.float0) for x, m in zip(args, moves, strict=True)))


def _inner(ct: Any, slope: Any) -> Any:
    return jnp.real(jnp.sum(ct * slope))


_solve.defvjp(_forward, _backward)

globals().update(access(__name__, globals()))
