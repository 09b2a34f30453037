"""The checks of derivatives: they pass what is right, and fail what is wrong by more than the tolerance of its type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.test_util import check_close, check_grads, check_jvp, check_vjp

SMOOTH: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (jnp.sin, (0.5,)), (lambda x, y: (x * y, {"a": jnp.exp(x)}), (0.3, jnp.ones(3))),
    (lambda d: d["x"] @ d["y"], ({"x": np.arange(3.0), "y": np.ones((3, 2))},)),
    (lambda x: x.real * jnp.sin(x), (np.array([0.5 + 1j, 2 - 0.3j]),)), (lambda x: x[:0], (np.ones(3),)),
    (lambda x: (x, 7), (1.5,))]


@pytest.mark.parametrize("modes", ["fwd", "rev", ("fwd", "rev")])
@pytest.mark.parametrize("f, args", SMOOTH)
def test_right_ones_pass(f: Callable[..., Any], args: tuple[Any, ...], modes: Any, x64: None) -> None:
    check_grads(f, args, 2, modes, atol=1e-4, rtol=1e-4)
    check_jvp(f, lambda p, t: anima.jvp(f, p, t), args)
    check_vjp(f, lambda *p: anima.vjp(f, *p), args)


def scaled(factor: float) -> Any:
    """The identity with a derivative that is wrong by a factor."""
    f = anima.custom_jvp(lambda x: x * jnp.ones((), x.dtype))
    f.defjvp(lambda p, t: (p[0], t[0] * jnp.asarray(factor, t[0].dtype)))
    return f


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 1e-1), ("float16", 1e-2), ("float32", 2e-3),
                                              ("float64", 1e-5), ("complex64", 1e-3), ("complex128", 1e-5)])
def test_tolerances(dtype: str, tolerance: float, x64: None) -> None:
    x = jnp.zeros((3,), dtype)  # so that differences are exact
    for factor, passes in ((1 + 0.5 * tolerance, True), (1 + 3 * tolerance, False)):
        f = scaled(factor)
        for check in (partial(check_jvp, f, partial(anima.jvp, f), (x,)), partial(check_vjp, f, partial(anima.vjp, f),
                                                                                  (x,))):
            if passes:
                check()
            else:
                with pytest.raises(AssertionError):
                    check()


def test_tolerances_by_type() -> None:
    """Keys are types, dtypes or names; types that are not there have the default."""
    for by_type in ({jnp.float32: 0.3}, {"float32": 0.3, "float64": 0.0}, {np.dtype("float32"): 0.3}):
        check_grads(scaled(1.1), (0.5,), 1, atol=by_type, rtol=by_type)
        check_close(jnp.ones(2), 1.2 * jnp.ones(2), rtol=by_type, atol={})
    for without in ({}, {jnp.float16: 0.3}, {jnp.float32: 1e-3}):
        with pytest.raises(AssertionError):
            check_grads(scaled(1.1), (0.5,), 1, atol=without, rtol=without)


@pytest.mark.parametrize("modes, text", [("fwd", "JVP tangent"), ("rev", "VJP cotangent projection")])
def test_wrong_ones_fail(modes: str, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_grads(scaled(1.1), (0.5,), 1, modes)
    wrong_later = anima.custom_jvp(jnp.sin)  # right to the first order, not to the second
    wrong_later.defjvp(lambda p, t: (wrong_later(p[0]), scaled(1.2)(jnp.cos(p[0])) * t[0]))
    check_grads(wrong_later, (0.5,), 1, modes)
    with pytest.raises(AssertionError, match="of"):
        check_grads(wrong_later, (0.5,), 2, modes)


def test_integers_do_not_move() -> None:
    check_grads(lambda x, n: x * n, (np.ones(2), 3), 1)


def test_wrong_values_and_structures_fail() -> None:
    with pytest.raises(AssertionError, match="hello primal"):
        check_jvp(jnp.sin, lambda p, t: anima.jvp(jnp.cos, p, t), (0.5,), err_msg="hello")
    with pytest.raises(AssertionError, match="structures differ"):
        check_vjp(lambda x: (x, x), lambda x: anima.vjp(lambda v: v, x), (0.5,))
    with pytest.raises(AssertionError, match="shapes differ"):
        check_vjp(lambda x: x, lambda x: anima.vjp(lambda v: v[None], x), (0.5,))
    with pytest.raises(ValueError, match="modes"):
        check_grads(jnp.sin, (0.5,), 1, modes=["forward"])
