"""Checks of derivatives against finite differences, for tests of functions that are differentiated.

    >>> check_grads(lambda x: anima.numpy.sin(x) ** 2, (0.5,), order=2)

A check takes one random direction: the derivative along it is compared with a central difference, and, in reverse mode,
the products of the direction with a cotangent, on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import errors as _errors, tree
from anima.api.autodiff import jvp, vjp
from anima.core import dtypes
from anima.core.trace import aval_of
from anima.ops.broadcast import as_array

_EPS = 1e-4
_TOLERANCES = {"bfloat16": 1e-1, "float16": 1e-2, "float32": 2e-3, "float64": 1e-5, "complex64": 1e-3,
               "complex128": 1e-5}
_Tolerance = float | Mapping[Any, float] | None  # a mapping has one for each of some types


def _value(x: Any) -> np.ndarray:
    return np.asarray(as_array(x))


def _is_inexact(x: np.ndarray) -> bool:
    return dtypes.issubdtype(x.dtype, np.inexact)


def _random_like(rng: np.random.RandomState, x: Any) -> np.ndarray:
    """A direction: normal numbers of the type of `x`; what cannot change has none (float0)."""
    aval = aval_of(x)
    if not dtypes.issubdtype(aval.dtype, np.inexact):
        return np.zeros(aval.shape, dtypes.float0)
    draw = np.asarray(rng.randn(*aval.shape))
    if dtypes.issubdtype(aval.dtype, np.complexfloating):
        draw = draw + 1j * rng.randn(*aval.shape)
    return draw.astype(aval.dtype)


def _shifted(x: np.ndarray, direction: np.ndarray, step: float) -> np.ndarray:
    return np.asarray(x + direction * np.asarray(step, x.dtype)) if _is_inexact(x) else x


def _numeric_jvp(f: Callable[..., Any], args: Any, directions: Any, eps: float) -> Any:
    """The derivative of `f` along `directions`, by a central difference."""
    ahead, behind = (f(*tree.map(lambda x, v, s=step: _shifted(_value(x), v, s), args, directions))
                     for step in (eps, -eps))

    def slope(a: Any, b: Any) -> np.ndarray:
        a, b = _value(a), _value(b)
        return (a - b) * np.asarray(0.5 / eps, a.dtype) if _is_inexact(a) else np.zeros(a.shape, dtypes.float0)

    return tree.map(slope, ahead, behind)


def _allowed(values: Sequence[Any], given: _Tolerance) -> float:
    """The tolerance for arrays, the largest of their types: as given, or what these allow where nothing is."""
    if given is not None and not isinstance(given, Mapping):
        return given
    known = {**_TOLERANCES, **{dtypes.name(dtypes.np_dtype(t)): number for t, number in (given or {}).items()}}
    return max((known.get(dtypes.name(v.dtype), 0.0) for v in values), default=0.0)


def check_close(xs: Any, ys: Any, atol: _Tolerance = None, rtol: _Tolerance = None, err_msg: str = "") -> None:
    """AssertionError unless the leaves of two trees agree, to the tolerances of their types if none are given."""
    got_leaves, got_tree = tree.flatten(xs)
    want_leaves, want_tree = tree.flatten(ys)
    assert got_tree == want_tree, f"{err_msg}: structures differ: {got_tree} and {want_tree}"
    for x, y in zip(got_leaves, want_leaves, strict=True):
        a, b = np.asarray(x), np.asarray(y)
        assert a.shape == b.shape, f"{err_msg}: shapes differ: {a.shape} and {b.shape}"
        if a.dtype == dtypes.float0 or b.dtype == dtypes.float0:
            assert a.dtype == b.dtype, f"{err_msg}: dtypes differ: {a.dtype} and {b.dtype}"
            continue
        wide = np.result_type(*(np.complex128 if v.dtype.kind == "c" else np.float64 for v in (a, b)))
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), atol=_allowed((a, b), atol),
                                   rtol=_allowed((a, b), rtol), err_msg=err_msg)


def _product(xs: Any, ys: Any) -> Any:
    """The real inner product of two trees, in double precision."""
    total = 0.0
    for x, y in zip(tree.leaves(xs), tree.leaves(ys), strict=True):
        if dtypes.float0 not in (x.dtype, y.dtype):
            wide = np.complex128 if dtypes.issubdtype(x.dtype, np.complexfloating) else np.float64
            total += np.real(np.vdot(x.astype(wide), y.astype(wide)))
    return total


def check_jvp(f: Callable[..., Any], f_jvp: Callable[..., Any], args: Sequence[Any], atol: _Tolerance = None,
              rtol: _Tolerance = None, eps: float = _EPS, err_msg: str = "") -> None:
    """Checks a derivative in forward mode against finite differences of `f`, along one random direction.

    Args:
      f: a function of arrays and pytrees of them.
      f_jvp: `(args, tangents) -> (result, tangent of the result)`.
      args: the point.
      atol, rtol: tolerances, or mappings from dtypes to such; by default those that the type of each number allows.
      eps: the step of the differences.
      err_msg: goes before what did not agree.

    Raises:
      AssertionError: where the result or its tangent is not that of `f`.

    >>> check_jvp(anima.numpy.sin, lambda p, t: anima.jvp(anima.numpy.sin, p, t), (1.0,))
    """
    directions = tree.map(partial(_random_like, np.random.RandomState(0)), tuple(args))
    out, tangent = f_jvp(tuple(args), directions)
    message = f"{err_msg} primal" if err_msg else "primal"
    check_close(tree.map(_value, out), tree.map(_value, f(*args)), atol, rtol, message)
    check_close(tree.map(np.asarray, tangent), _numeric_jvp(f, tuple(args), directions, eps), atol, rtol,
                 f"{err_msg} tangent" if err_msg else "tangent")


def check_vjp(f: Callable[..., Any], f_vjp: Callable[..., Any], args: Sequence[Any], atol: _Tolerance = None,
              rtol: _Tolerance = None, eps: float = _EPS, err_msg: str = "") -> None:
    """Checks a derivative in reverse mode against finite differences of `f`; `f_vjp(*args) -> (result, function)`.

    Other arguments and errors as of `check_jvp`.

    >>> check_vjp(anima.numpy.sin, lambda x: anima.vjp(anima.numpy.sin, x), (1.0,))
    """
    rng = np.random.RandomState(0)
    out, pull = f_vjp(*args)
    values = tree.map(_value, out)
    check_close(values, tree.map(_value, f(*args)), atol, rtol, f"{err_msg} primal" if err_msg else "primal")
    directions = tree.map(partial(_random_like, rng), tuple(args))
    moved = _numeric_jvp(f, tuple(args), directions, eps)
    weights = tree.map(partial(_random_like, rng), values)
    found = pull(tree.map(lambda w: w if w.dtype == dtypes.float0 else np.conj(w), weights))
    back = tree.map(lambda x: np.conj(np.asarray(x)) if np.asarray(x).dtype != dtypes.float0 else np.asarray(x),
                    tuple(found))
    np.testing.assert_allclose(
        _product(directions, back), _product(moved, weights), atol=_allowed(tree.leaves(values), atol),
        rtol=_allowed(tree.leaves(values), rtol), err_msg=f"{err_msg} cotangent projection" if err_msg else
        "cotangent projection")


def check_grads(f: Callable[..., Any], args: Sequence[Any], order: int, modes: str | Sequence[str] = ("fwd", "rev"),
                atol: _Tolerance = None, rtol: _Tolerance = None, eps: float | None = None) -> None:
    """Checks the derivatives of `f` up to `order` in forward and reverse mode, in all their combinations.

    Args:
      modes: "fwd", "rev", or both.
      f, args, atol, rtol, eps: as of `check_jvp`.

    Raises:
      AssertionError: where a derivative does not agree with finite differences.

    >>> check_grads(anima.numpy.tanh, (0.3,), order=2, modes="rev")
    """
    wanted = {modes} if isinstance(modes, str) else set(modes)
    if not wanted <= {"fwd", "rev"}:
        raise ValueError(f"check_grads: modes are 'fwd' and 'rev', got {modes!r}")
    step = _EPS if eps is None else eps

    def reverse(g: Callable[..., Any], *xs: Any) -> Any:
        out, pull = vjp(g, *xs)
        return pull(out)

    def check(g: Callable[..., Any], xs: tuple[Any, ...], order: int, before: str) -> None:
        if "fwd" in wanted:
            message = f"JVP of {before}" if before else "JVP"
            check_jvp(g, partial(jvp, g), xs, atol, rtol, step, message)
            if order > 1:
                check(partial(jvp, g), (xs, xs), order - 1, message)
        if "rev" in wanted:
            message = f"VJP of {before}" if before else "VJP"
            check_vjp(g, partial(vjp, g), xs, atol, rtol, step, message)
            if order > 1:
                check(partial(reverse, g), xs, order - 1, message)

    check(f, tuple(tree.map(as_array, tuple(args))), order, "")


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only
