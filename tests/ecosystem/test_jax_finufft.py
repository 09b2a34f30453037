"""jax-finufft: Fourier transforms of points anywhere. Its operations are handlers of XLA's convention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_finufft import nufft1, nufft2

M, N = 500, 32
FREQUENCIES = np.arange(-N // 2, N // 2)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def points() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    x, c = rng.uniform(0, 2 * np.pi, M), rng.standard_normal(M) + 1j * rng.standard_normal(M)
    return jnp.asarray(x), jnp.asarray(c)


def direct(c: Any, x: Any) -> Any:
    return (c[:, None] * jnp.exp(1j * x[:, None] * FREQUENCIES)).sum(0)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_transforms_of_points_anywhere(run: Any) -> None:
    x, c = points()
    f = run(lambda c, x: nufft1(N, c, x, eps=1e-10, iflag=1))(c, x)
    np.testing.assert_allclose(f, direct(c, x), atol=1e-6)
    back = run(lambda f, x: nufft2(f, x, eps=1e-10, iflag=-1))(f, x)
    np.testing.assert_allclose(back, (f * jnp.exp(-1j * x[:, None] * FREQUENCIES)).sum(1), atol=1e-5)
    single = run(lambda c, x: nufft1(N, c, x))(c.astype("complex64"), x.astype("float32"))
    assert single.dtype == np.complex64
    np.testing.assert_allclose(single, f, atol=1e-2)


def test_derivatives_and_lanes_of_transforms() -> None:
    x, c = points()
    slope = jax.grad(lambda x: jnp.abs(nufft1(N, c, x, eps=1e-10)).sum())
    want = jax.grad(lambda x: jnp.abs(direct(c, x)).sum())
    np.testing.assert_allclose(jax.jit(slope)(x), want(x), atol=1e-5)
    np.testing.assert_allclose(slope(x), want(x), atol=1e-5)
    lanes = jax.jit(jax.vmap(lambda x: nufft1(N, c, x, eps=1e-10)))(jnp.stack([x, 0.5 * x]))
    np.testing.assert_allclose(lanes, [direct(c, x), direct(c, 0.5 * x)], atol=1e-6)
