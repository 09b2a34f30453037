"""Checks of functions of matrices: compiled code against eager, derivatives against differences."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import anima
from anima.core import dtypes


def matrix(shape: tuple[int, ...], dtype: Any = "float64", seed: str = "") -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(f"{shape}{seed}".encode()))
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def h(x: Any) -> np.ndarray:
    return np.asarray(x).conj().swapaxes(-1, -2)


def positive(shape: tuple[int, ...], dtype: Any = "float64") -> np.ndarray:
    a = matrix(shape, dtype)
    return (a @ h(a) + np.eye(shape[-1]) * 2).astype(dtype)


def tolerance(dtype: Any) -> float:
    return 5e-5 if np.dtype(dtype).itemsize // (1 + (np.dtype(dtype).kind == "c")) == 4 else 1e-11


def close(got: Any, want: Any, dtype: Any) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance(dtype), atol=tolerance(dtype))


def both(fun: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    """The results, after a look at those of compiled code (signs of vectors and all)."""
    eager, compiled = (anima.tree.leaves(f(*args)) for f in (fun, anima.jit(fun)))
    for a, b in zip(eager, compiled, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        close(b, a, a.dtype) if a.dtype.kind in "fc" else np.testing.assert_array_equal(b, a)
    return [np.asarray(x) for x in eager]


def check_slope(fun: Callable[..., Any], x: np.ndarray, what: str, rtol: float = 1e-5) -> None:
    t, step = matrix(x.shape, x.dtype, "direction"), 1e-6
    outs, slopes = anima.jvp(fun, (x,), (t,))
    above, below = anima.tree.leaves(fun(x + step * t)), anima.tree.leaves(fun(x - step * t))
    for out, slope, a, b in zip(*map(anima.tree.leaves, (outs, slopes)), above, below, strict=True):
        if dtypes.issubdtype(out.dtype, np.inexact):
            difference = (np.asarray(a) - np.asarray(b)) / (2 * step)
            scale = max(1, np.abs(difference).max())
            np.testing.assert_allclose(slope, difference, rtol=rtol, atol=rtol * scale, err_msg=what)
        else:
            assert slope.dtype == dtypes.float0


def check_derivatives(fun: Callable[..., Any], x: np.ndarray, name: str, rtol: float = 1e-5) -> None:
    """Tangents, and tangents of tangents, are differences; gradients are the transposes; compiled ones the same."""
    check_slope(fun, x, name, rtol)
    t = matrix(x.shape, x.dtype, "fixed")
    check_slope(lambda x: anima.jvp(fun, (x,), (t,))[1], x, f"second order of {name}", rtol)
    slopes = anima.jvp(fun, (x,), (t,))[1]
    same, pull = anima.vjp(fun, x)
    cts = anima.tree.map(lambda o: matrix(o.shape, o.dtype, "cotangent") if dtypes.issubdtype(o.dtype, np.inexact)
                         else np.zeros(o.shape, dtypes.float0), same)
    (grad,) = pull(cts)
    pairs = [(c, s) for c, s in zip(*map(anima.tree.leaves, (cts, slopes)), strict=True) if c.dtype != dtypes.float0]
    pairing = sum(np.sum(np.asarray(c) * np.asarray(s)).real for c, s in pairs)
    np.testing.assert_allclose(np.sum(np.asarray(grad) * t).real, pairing, rtol=1e-8, atol=1e-8)
    (compiled,) = anima.jit(lambda x: anima.vjp(fun, x)[1](cts))(x)
    np.testing.assert_allclose(compiled, grad, rtol=1e-7, atol=1e-7)
