"""Cosine transforms against SciPy, their inverses and derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.fft

import anima
import anima.numpy as jnp
import anima.scipy.fft as fft


@pytest.mark.parametrize("norm", [None, "backward", "ortho"])
@pytest.mark.parametrize("name", ["dct", "idct"])
def test_one_axis(name: str, norm: str | None) -> None:
    with anima.enable_x64(True):
        rng = np.random.default_rng(0)
        for size in (1, 2, 3, 8, 9):
            x = rng.standard_normal((2, size))
            for n in (None, 1, size + 2):
                want = getattr(scipy.fft, name)(x, n=n, norm=norm)
                got = getattr(fft, name)(x, n=n, norm=norm)
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
            compiled = anima.jit(lambda x: getattr(fft, name)(x, axis=0, norm=norm))(x)
            np.testing.assert_allclose(compiled, getattr(scipy.fft, name)(x, axis=0, norm=norm), rtol=1e-12,
                                       atol=1e-13)


@pytest.mark.parametrize("name", ["dctn", "idctn"])
def test_several_axes(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((3, 4, 5)).astype("f4")
    for given in ({}, {"axes": (0, 2)}, {"s": (2, 6), "axes": (1, 2)}, {"s": (6, 2)}, {"norm": "ortho"}):
        want = getattr(scipy.fft, name)(x.astype("f8"), **given)
        np.testing.assert_allclose(getattr(fft, name)(x, **given), want, rtol=2e-5, atol=2e-5)


def test_types_inverse_and_derivative() -> None:
    x = jnp.arange(6.0)
    np.testing.assert_allclose(fft.idct(fft.dct(x)), x, atol=1e-5)
    assert fft.dct(x.astype(jnp.float16)).dtype == jnp.float32 and fft.dct(jnp.arange(3)).dtype == jnp.float32
    z = x + 2j * x
    np.testing.assert_allclose(fft.dct(z), np.asarray(fft.dct(x)) * (1 + 2j), rtol=1e-5)
    np.testing.assert_allclose(anima.jacrev(fft.dct)(x), scipy.fft.dct(np.eye(6), axis=0), atol=1e-5)
    np.testing.assert_allclose(anima.jacfwd(anima.jacrev(lambda x: fft.dct(x) ** 2))(x)[2],
                               2 * np.outer(*[scipy.fft.dct(np.eye(6), axis=0)[2]] * 2), atol=1e-4)
    np.testing.assert_allclose(anima.vmap(fft.dct, 1)(jnp.ones((4, 3))), fft.dct(jnp.ones((3, 4))), atol=1e-6)


@pytest.mark.parametrize("call, error", [
    (lambda x: fft.dct(x, 3), NotImplementedError), (lambda x: fft.dct(x, norm="forward"), ValueError),
    (lambda x: fft.dct(x, n=0), ValueError), (lambda x: fft.dctn(x, axes=(0, 0)), ValueError),
    (lambda x: fft.dctn(x, s=(2,), axes=(0, 1)), ValueError), (lambda x: fft.dct([1.0]), TypeError)])
def test_errors(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(jnp.ones((2, 3)))
