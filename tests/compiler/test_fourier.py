"""Fourier transforms as loops: every length, in rows and in columns, alone and in lanes, accurate to the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.driver import lower
from anima.compiler.lowering import fourier
from anima.compiler.lowering.butterfly import PRIMES, factors, longer, roots, smooth
from anima.runtime.executable import compile_program
from anima.test_util import check_grads
from tests.compiler.test_emit import NARROW

KINDS = ("FFT", "IFFT", "RFFT", "IRFFT")
LONG = (135, 176, 243, 256, 257, 360, 500, 509, 1000, 1001, 1024, 2048, 4096, 4099, 5000, 8192, 16384)
REAL = {"complex64": "float32", "complex128": "float64"}


def operand(kind: str, batch: tuple[int, ...], n: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(n)
    shape = (*batch, n // 2 + 1 if kind == "IRFFT" else n)
    if kind == "RFFT":
        return rng.standard_normal(shape).astype(REAL[dtype])
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def reference(kind: str, x: np.ndarray, n: int) -> np.ndarray:
    """The transform in double precision or better, by definition where that is affordable."""
    if n > 256:
        wide = x.astype(np.clongdouble if np.iscomplexobj(x) else np.longdouble)
        return getattr(np.fft, kind.lower())(wide, **({"n": n} if kind == "IRFFT" else {}))
    wide = x.astype(np.clongdouble)
    if kind == "IRFFT":
        wide[..., 0] = wide[..., 0].real
        if n % 2 == 0:
            wide[..., -1] = wide[..., -1].real
        wide = np.concatenate((wide, wide[..., 1:(n + 1) // 2][..., ::-1].conj()), -1)
    re, im = roots(np.outer(np.arange(n), np.arange(n)), n)
    out = wide @ (re + 1j * (im if kind in ("FFT", "RFFT") else -im))
    out = out if kind in ("FFT", "RFFT") else out / n
    return out.real if kind == "IRFFT" else out[..., :n // 2 + 1] if kind == "RFFT" else out


def check(got: Any, want: np.ndarray, dtype: str, n: int) -> None:
    """The error grows with the logarithm of the length."""
    got = np.asarray(got)
    assert got.shape == want.shape and got.dtype == (dtype if np.iscomplexobj(want) else REAL[dtype])
    error = np.sqrt(np.sum(np.abs(got - want) ** 2) / max(np.sum(np.abs(want) ** 2), np.finfo(dtype).tiny))
    assert error <= np.finfo(dtype).eps * ((0.6 if smooth(n) else 1.1) + 0.1 * np.log2(n))


def compiled(kinds: tuple[str, ...], n: int) -> Any:
    return anima.jit(lambda *xs: [lax.fft(x, kind, (n,)) for x, kind in zip(xs, kinds, strict=True)])


@pytest.mark.parametrize("first", range(1, 129, 16))
def test_every_length(first: int) -> None:
    """20 rows are more than there are lanes. All kinds are made of one transform: longer rows have some of them."""
    for n in range(first, first + 16):
        kinds = KINDS if n < 33 else ("FFT", "IRFFT") if n % 4 < 2 else ("IFFT", "RFFT")
        kinds = kinds if n < 65 else kinds[n // 4 % 2:][:1]
        xs = [operand(kind, (20,), n, "complex64") for kind in kinds]
        f = compiled(kinds, n)
        assert "callback" not in f.lower(*xs).loops
        for kind, x, got in zip(kinds, xs, f(*xs), strict=True):
            check(got, reference(kind, x, n), "complex64", n)


@pytest.mark.parametrize("n", [*range(1, 34), 64, 97, 105, 128])
def test_double_precision(n: int) -> None:
    with anima.enable_x64(True):
        kinds = KINDS if n < 17 else KINDS[:1] + KINDS[2:]
        xs = [operand(kind, (3, 3), n, "complex128") for kind in kinds]
        for kind, x, got in zip(kinds, xs, compiled(kinds, n)(*xs), strict=True):
            check(got, reference(kind, x, n), "complex128", n)


@pytest.mark.parametrize("n", LONG)
def test_long(n: int) -> None:
    for dtype in ("complex64", "complex128"):
        with anima.enable_x64(dtype == "complex128"):
            kinds = ("FFT", "IRFFT") if n % 2 else ("IFFT", "RFFT")
            xs = [operand(kind, (), n, dtype) for kind in kinds]
            for kind, x, got in zip(kinds, xs, compiled(kinds, n)(*xs), strict=True):
                check(got, reference(kind, x, n), dtype, n)


@pytest.mark.parametrize("n", [315, 512, 1000, 2000])
def test_large_arrays(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read in another order computes the same."""
    xs = [operand(kind, (2,), n, "complex64") for kind in KINDS]
    near = compiled(KINDS, n)(*xs)
    monkeypatch.setattr(fourier, "_FAR", 0)
    for a, b in zip(near, compiled(KINDS, n)(*xs), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 2, 3, 8, 15, 16, 17, 40])
def test_columns(kind: str, columns: int) -> None:
    """Axes before the last, with fewer columns than lanes, as many, and more."""
    shape = (2, 12, columns)
    last = columns // 2 + 1 if kind == "IRFFT" else columns
    x = operand(kind, shape[:2], columns, "complex64")[..., :last]
    name = kind.lower() + "n"
    given = {"s": shape[1:]} if kind == "IRFFT" else {}
    want = getattr(np.fft, name)(x.astype(np.complex128 if np.iscomplexobj(x) else np.float64), axes=(1, 2), **given)
    check(anima.jit(lambda x: lax.fft(x, kind, shape[1:]))(x), want, "complex64", 12 * columns)
    got = anima.jit(lambda x: jnp.fft.fft(x, axis=0))(x)
    check(got, np.fft.fft(x.astype(np.complex128), axis=0), "complex64", 2)


def test_three_axes_one_of_them_prime() -> None:
    shape = (6, 17, 10)
    x = operand("FFT", (3, *shape[:2]), shape[2], "complex64")
    got = anima.jit(lambda x: lax.fft(lax.fft(x, "FFT", shape), "IFFT", shape))(x)
    check(got, x.astype(np.complex128), "complex64", 6 * 17 * 10)


def test_in_loops_without_callbacks() -> None:
    x = operand("FFT", (), 64, "complex64")
    f = anima.jit(lambda x: lax.scan(lambda c, _: (jnp.fft.fft(c) * 0.125, jnp.sum(jnp.abs(c))), x, None, length=8))
    assert "callback" not in f.lower(x).loops
    found, totals = f(x)
    check(found, x.astype(np.complex128), "complex64", 64 ** 4)
    np.testing.assert_allclose(totals[::4], np.abs(x).sum(), rtol=1e-5)
    update = anima.jit(lambda x: lax.fori_loop(0, 2, lambda _, c: jnp.fft.fft2(c) / 8, x), donate_argnums=0)
    y = operand("FFT", (8,), 8, "complex64")
    turned = np.roll(y[::-1, ::-1], (1, 1), (0, 1))  # where two transforms take it
    check(update(jnp.array(y)), turned.astype(np.complex128), "complex64", 64)


@pytest.mark.parametrize("n", [1, 2, 7, 12, 17])
def test_derivatives(n: int) -> None:
    with anima.enable_x64(True):
        x = operand("RFFT", (2,), n, "complex128")
        check_grads(anima.jit(lambda x: jnp.abs(jnp.fft.rfft(x)) ** 2), (x,), 2, rtol=1e-6, atol=1e-5)
        check_grads(anima.jit(lambda x: jnp.fft.irfft(jnp.fft.fft(x), n) ** 2), (x,), 2, rtol=1e-6, atol=1e-5)


def test_mapped_is_a_loop() -> None:
    x = operand("FFT", (3, 4), 18, "complex64")
    got = anima.jit(anima.vmap(anima.vmap(jnp.fft.fft, 0), 1, 1))(x)
    check(got, np.fft.fft(x.astype(np.complex128)), "complex64", 18)


@pytest.mark.parametrize("n", [6, 31, 60, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_machines_with_narrow_vectors(kind: str, n: int) -> None:
    x = operand(kind, (18,), n, "complex64")
    loops = lower(anima.make_jaxpr(lambda x: lax.fft(x, kind, (n,)))(x), target=NARROW).loops
    want = reference(kind, x, n)
    (got,) = compile_program(loops, None, NARROW)([x])
    check(got.reshape(want.shape), want, "complex64", n)


def test_special_numbers_stay_in_their_row() -> None:
    for n in (8, 12, 17):
        x = operand("FFT", (40,), n, "complex64")
        x[7, 3], x[21, 0] = np.nan, np.inf
        got = np.asarray(anima.jit(jnp.fft.fft)(x))
        assert np.array_equal(np.isfinite(got).all(1), ~np.isin(np.arange(40), (7, 21)))
        assert not np.isfinite(got[[7, 21]]).any()


def test_limits() -> None:
    """What is longer is called."""
    def calls(n: int) -> bool:
        return "callback" in anima.jit(jnp.fft.fft).lower(np.zeros(n, np.complex64)).loops

    assert not calls(fourier.LONGEST) and calls(2 * fourier.LONGEST)
    prime = next(n for n in range(fourier.LONGEST_PRIME + 1, fourier.LONGEST) if not smooth(n))
    assert calls(prime)


def test_passes_multiply_to_the_length() -> None:
    for n in range(1, 2000):
        for stride in (1, 16):
            if smooth(n):
                found, cost = factors(n, stride, 16)
                assert np.prod(found) == n and cost >= 0 and all(r <= 8 or r in PRIMES for r in found)
            else:
                assert 2 * n - 1 <= longer(n, stride, 16) < 4 * n and smooth(longer(n, stride, 16))


def test_roots_of_unity_are_exact_to_the_last_digit() -> None:
    numbers = np.arange(-9, 480)
    re, im = (part.astype(np.float64) for part in roots(numbers, 240))
    whole = np.exp(-2j * np.pi * np.longdouble(1) * (numbers % 240).astype(np.longdouble) / 240)
    np.testing.assert_allclose(re, whole.real, rtol=0, atol=3e-16)
    np.testing.assert_allclose(im, whole.imag, rtol=0, atol=3e-16)
    assert set(re[numbers % 60 == 0]) | set(im[numbers % 60 == 0]) == {0.0, 1.0, -1.0}
