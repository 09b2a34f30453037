"""Convolutions, trends and spectra against SciPy, compiled, batched and differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.signal

import anima
import anima.numpy as jnp
import anima.scipy.signal as signal

RNG = np.random.default_rng(0)
SHAPES = (((40,), (7,)), ((7,), (40,)), ((1,), (1,)), ((6, 9), (3, 2)), ((3, 2), (6, 9)), ((5, 4, 6), (2, 3, 3)),
          ((20, 20), (9, 9)), ((4, 4), (4, 4)))


def draw(*shape: int, dtype: str = "f8") -> np.ndarray:
    x = RNG.standard_normal(shape)
    return (x + 1j * RNG.standard_normal(shape) if dtype[0] == "c" else x).astype(dtype)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate", "fftconvolve"])
def test_convolutions(name: str, mode: str, x64: None) -> None:
    ours, theirs = getattr(signal, name), getattr(scipy.signal, name)
    for first, second in SHAPES:
        for dtype in ("f8", "c16"):
            a, b = draw(*first, dtype=dtype), draw(*second, dtype=dtype)
            np.testing.assert_allclose(ours(a, b, mode), theirs(a, b, mode), atol=1e-12)
        if name != "fftconvolve":
            np.testing.assert_allclose(ours(a, b, mode, "fft"), theirs(a, b, mode), atol=1e-12)
    np.testing.assert_allclose(anima.jit(lambda a, b: ours(a, b, mode))(a, b), theirs(a, b, mode), atol=1e-12)
    if len(a.shape) == 2 and name != "fftconvolve":
        ours, theirs = getattr(signal, name + "2d"), getattr(scipy.signal, name + "2d")  # "same" begins elsewhere
        np.testing.assert_allclose(ours(a, b, mode), theirs(a, b, mode), atol=1e-12)


@pytest.mark.parametrize("name", ["convolve", "correlate", "fftconvolve"])
def test_convolutions_of_numbers_are_products(name: str) -> None:
    for mode in ("full", "same", "valid"):
        np.testing.assert_allclose(getattr(signal, name)(2, 3 + 1j, mode), getattr(scipy.signal, name)(2, 3 + 1j, mode))


def test_convolution_along_some_axes(x64: None) -> None:
    a, b = draw(3, 8, 5), draw(3, 4, 1)
    for mode in ("full", "same", "valid"):
        np.testing.assert_allclose(signal.fftconvolve(a, b, mode, axes=1), scipy.signal.fftconvolve(a, b, mode, axes=1),
                                   atol=1e-12)


def test_convolutions_are_bilinear(x64: None) -> None:
    a, b, ct = draw(9), draw(4), draw(12)
    for f in (signal.convolve, signal.fftconvolve):
        slope = anima.grad(lambda a, f=f: jnp.sum(f(a, b) * ct))(a)
        np.testing.assert_allclose(slope, scipy.signal.correlate(ct, b, "valid"), atol=1e-12)
        twice = anima.jacfwd(anima.grad(lambda b, f=f: jnp.sum(f(a, b) ** 2)))(b)
        matrix = np.stack([scipy.signal.convolve(a, e) for e in np.eye(4)], 1)
        np.testing.assert_allclose(twice, 2 * matrix.T @ matrix, atol=1e-11)
        np.testing.assert_allclose(anima.vmap(f, (None, 0))(a, jnp.stack([b, 2 * b]))[1], f(a, 2 * b), atol=1e-12)


def test_integers_become_floats() -> None:
    assert signal.convolve(jnp.arange(4), jnp.arange(3)).tolist() == [0.0, 0.0, 1.0, 4.0, 7.0, 6.0]


def test_trends(x64: None) -> None:
    x = draw(3, 20)
    for given in ({}, {"type": "constant"}, {"axis": 0}, {"bp": 7}, {"bp": [2, 4, 5]}):
        np.testing.assert_allclose(signal.detrend(x, **given), scipy.signal.detrend(x, **given), atol=1e-13)
    assert np.asarray(signal.detrend(x[:, :1])).tolist() == [[0.0]] * 3
    slope = anima.jacrev(signal.detrend)(x[0])
    np.testing.assert_allclose(slope, scipy.signal.detrend(np.eye(20), axis=0), atol=1e-13)


SPECTRA: list[dict[str, Any]] = [
    {"nperseg": 16}, {"nperseg": 15}, {"nperseg": 16, "noverlap": 4, "nfft": 20}, {"nperseg": 16, "window": "boxcar"},
    {"nperseg": 16, "window": ("tukey", 0.5), "fs": 10.0}, {"window": np.ones(10), "nperseg": 10},
    {"nperseg": 16, "detrend": "linear"}, {"nperseg": 16, "return_onesided": False}, {"nperseg": 2, "axis": 0},
    {"nperseg": 17, "window": "hamming"}, {"nperseg": 16, "window": "blackman"}, {"nperseg": 1, "noverlap": 0}]


@pytest.mark.parametrize("options", SPECTRA, ids=str)
def test_spectra(options: dict[str, Any], x64: None) -> None:
    x, y = draw(2, 100), draw(2, 100)
    for name, args in (("stft", (x,)), ("welch", (x,)), ("csd", (x, y))):
        got, want = getattr(signal, name)(*args, **options), getattr(scipy.signal, name)(*args, **options)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, atol=1e-12)
    compiled = anima.jit(lambda x: signal.stft(x, **options))(x)
    np.testing.assert_allclose(compiled[2], scipy.signal.stft(x, **options)[2], atol=1e-12)


def test_averages_and_scalings(x64: None) -> None:
    x, y = draw(200), draw(150)
    for options in ({"average": "median"}, {"scaling": "spectrum"}, {"average": "mean", "detrend": False}):
        np.testing.assert_allclose(signal.welch(x, nperseg=32, **options)[1],
                                   scipy.signal.welch(x, nperseg=32, **options)[1], rtol=1e-10)
        np.testing.assert_allclose(signal.csd(x, y, nperseg=32, **options)[1],
                                   scipy.signal.csd(x, y, nperseg=32, **options)[1], rtol=1e-8)
    np.testing.assert_allclose(signal.csd(x, None, nperseg=32)[1], scipy.signal.csd(x, x, nperseg=32)[1], rtol=1e-10)


@pytest.mark.parametrize("boundary", ["even", "odd", "constant", "zeros", None])
def test_boundaries(boundary: str | None, x64: None) -> None:
    x = draw(2, 70)
    got, want = (f.stft(x, nperseg=16, boundary=boundary) for f in (signal, scipy.signal))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-13)


@pytest.mark.parametrize("options", [{"nperseg": 16}, {"nperseg": 15, "noverlap": 10},
{"nperseg": 16, "fs": 5.0}], ids=str)
def test_signals_come_back(options: dict[str, Any], x64: None) -> None:
    x = draw(2, 64)
    spectra = signal.stft(x, **options)[2]
    times, back = signal.istft(spectra, **options)
    want = scipy.signal.istft(np.asarray(spectra), **options)[1]
    np.testing.assert_allclose(back, want, atol=1e-12)
    np.testing.assert_allclose(back[:, :64], x, atol=1e-12)
    np.testing.assert_allclose(times, scipy.signal.istft(np.asarray(spectra), **options)[0])
    moved = jnp.moveaxis(spectra, -1, 0)
    np.testing.assert_allclose(signal.istft(moved, time_axis=0, freq_axis=2, **options)[1], want.T, atol=1e-12)
    two = signal.stft(x, return_onesided=False, **options)[2]
    np.testing.assert_allclose(signal.istft(two, input_onesided=False, **options)[1].real, want, atol=1e-12)


X = jnp.ones((2, 40))
ERRORS: list[tuple[Callable[[], Any], type[Exception]]] = [
    (lambda: signal.convolve(X, X[0]), ValueError), (lambda: signal.convolve(X, X, "x"), ValueError),
    (lambda: signal.convolve(X[:, :0], X), ValueError), (lambda: signal.convolve(X, jnp.ones((3, 2))), ValueError),
    (lambda: signal.convolve(X, X, method="x"), ValueError), (lambda: signal.convolve2d(X[0], X[0]), ValueError),
    (lambda: signal.convolve2d(X, X, boundary="wrap"), NotImplementedError),
    (lambda: signal.fftconvolve(X, X, axes=(0, 0)), ValueError),
    (lambda: signal.fftconvolve(X, X.T, mode="valid"), ValueError),  # each is larger along one axis
    (lambda: signal.fftconvolve(X, X.T, mode="valid", axes=(1, 0)), ValueError),
    (lambda: signal.detrend(X, type="x"), ValueError), (lambda: signal.detrend(X, bp=99), ValueError),
    (lambda: signal.detrend(X, overwrite_data=True), NotImplementedError),
    (lambda: signal.stft(X, nperseg=0), ValueError),
    (lambda: signal.stft(X, nperseg=8, nfft=4), ValueError),
    (lambda: signal.stft(X, nperseg=8, noverlap=8), ValueError),
    (lambda: signal.stft(X, nperseg=8, boundary="x"), ValueError),
    (lambda: signal.stft(X, window=np.ones(99)), ValueError),
    (lambda: signal.welch(X, nperseg=8, scaling="x"), ValueError),
    (lambda: signal.welch(X, nperseg=8, average="x"), ValueError),
    (lambda: signal.csd(X, X[:, None, :3], nperseg=2, axis=0), ValueError), (lambda: signal.istft(X[0]), ValueError),
    (lambda: signal.istft(X, time_axis=0, freq_axis=0), ValueError)]


@pytest.mark.parametrize("call, error", ERRORS)
def test_errors(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_warnings_about_sizes_and_sides() -> None:
    with pytest.warns(UserWarning, match="greater than input length"):
        signal.welch(X)
    with pytest.warns(UserWarning, match="return_onesided=False"):
        signal.welch(X + 0j, nperseg=8)
