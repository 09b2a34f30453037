"""Fourier transforms: `lax.fft` and `numpy.fft` against NumPy, their derivatives, and compiled calls in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.driver import lower
from anima.compiler.ir.interpret import run as interpret
from anima.compiler.lowering import fourier
from anima.runtime import callbacks, threads

NAMES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SIZES = (1, 2, 3, 8, 15, 17, 64)


def data(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(len(shape) + sum(shape))
    x = rng.standard_normal(shape)
    real = name.startswith(("rfft", "ihfft"))
    return x.astype(dtype) if real else (x + 1j * rng.standard_normal(shape)).astype(f"complex{2 * int(dtype[5:])}")


def close(actual: Any, expected: np.ndarray, dtype: str) -> None:
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    size = np.sqrt(np.sum(np.abs(expected) ** 2)) if expected.size else 0
    np.testing.assert_allclose(actual, expected, rtol=0, atol=float(size * np.finfo(dtype).eps * 8))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_one_axis(name: str, dtype: str) -> None:
    with anima.enable_x64(True):
        ours, numpy = getattr(jnp.fft, name), getattr(np.fft, name)
        for size in SIZES:
            for n in (None, 1, size + 3):
                for norm in (None, "ortho", "forward"):
                    x = data(name, (2, size), dtype)
                    wanted = numpy(x, n, -1, norm) if n or size > 1 or name not in ("irfft", "hfft") else None
                    if wanted is None:
                        continue  # of 0 elements
                    got = ours(x, n, -1, norm)
                    assert got.dtype == (dtype if np.isrealobj(wanted) else f"complex{2 * int(dtype[5:])}")
                    close(got, wanted, dtype)
            x = data(name, (size, 3), dtype)
            if size > 1:
                close(ours(x, axis=0), numpy(x, axis=0), dtype)


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes(name: str) -> None:
    ours, numpy = getattr(jnp.fft, name), getattr(np.fft, name)
    x = data(name, (3, 4, 5), "float32")
    for given in ({}, {"s": (2, 7), "axes": (-2, -1)}, {"axes": (0, 1)}, {"axes": (2, 0), "norm": "ortho"}):
        for f in (ours, anima.jit(lambda v, given=given: ours(v, **given))):
            got = f(x, **given) if f is ours else f(x)
            close(got, numpy(x.astype("f8" if np.isrealobj(x) else "c16"), **given), "float32")


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("kind", list(lax.FftType))
def test_compiled_is_eager(kind: lax.FftType, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long transforms are pocketfft's, to the bit; others are loops of the program."""
    if not inside:
        monkeypatch.setattr(fourier, "LONGEST", 0)
        monkeypatch.setattr(fourier, "LONGEST_PRIME", 0)
    same = close_to if inside else np.testing.assert_array_equal
    for shape, lengths in (((4, 6), (6,)), ((3, 4, 8), (4, 8)), ((130, 129), (129,)), ((2, 1), (1,)), ((0, 4), (4,))):
        last = lengths[-1] // 2 + 1 if kind == lax.FftType.IRFFT else lengths[-1]
        x = data("rfft" if kind == lax.FftType.RFFT else "fft", (*shape[:-1], last), "float32")

        def f(x: Any, lengths: Any = lengths) -> Any:
            return lax.fft(x, kind, lengths)

        same(np.asarray(anima.jit(f)(x)), np.asarray(f(x)))
        loops = anima.jit(f).lower(x)
        assert ("callback" in loops.loops) == (bool(x.size) and not inside)
    for lengths in ((5,), (2, 6), (34,)):
        half = lengths[-1] // 2 + 1 if kind == lax.FftType.IRFFT else lengths[-1]
        program = lower(anima.make_jaxpr(lambda x, n=lengths: lax.fft(x * 2, kind, n))(
            x := data("rfft" if kind == lax.FftType.RFFT else "fft", (3, *lengths[:-1], half), "float32")))
        (got,) = interpret(program.loops, [x])
        want = np.asarray(lax.fft(x * 2, kind, lengths))
        same(got.reshape(want.shape), want)


def close_to(actual: np.ndarray, expected: np.ndarray) -> None:
    close(actual, expected, "float32")


@pytest.mark.parametrize("length", [240, 257])
def test_operands_stay_as_they_are_and_threads_do_not_matter(length: int) -> None:
    x = data("fft", (300, length), "float32")
    before = x.copy()
    f = anima.jit(lambda x: (lax.fft(x, "fft", (length,)), x + 1, lax.fft(x, "IFFT", (300, length))))
    results = []
    for count in (1, 2, 3):
        threads.set_num_threads(count)
        results.append([np.asarray(o) for o in f(x)])
    threads.set_num_threads(None)
    outs = results[0]
    assert np.array_equal(x, before) and np.array_equal(outs[1], before + 1)
    close(outs[0], np.asarray(lax.fft(x, "FFT", (length,))), "float32")
    assert all(np.array_equal(a, b) for others in results for a, b in zip(outs, others, strict=True))


def test_calls_read_and_write_the_memory_of_their_own_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier, "LONGEST_PRIME", 0)
    fft = anima.jit(lambda x: jnp.fft.fft(x))
    assert "callback" in fft.lower(np.ones(1009, "complex64")).loops
    xs = [np.random.default_rng(k).standard_normal(1009).astype("complex64") for k in range(callbacks._VIEWS + 9)]
    kept = [fft(x) for x in xs]  # each in another place: more than are remembered
    for _ in range(2):
        for x, y in zip(xs, kept, strict=True):
            np.testing.assert_allclose(y, np.fft.fft(x), rtol=1e-4, atol=1e-3)
            np.testing.assert_array_equal(fft(x), y)  # in memory that is used again


@pytest.mark.parametrize("n", [1, 4, 5])
def test_real_derivatives_follow_from_the_matrix(n: int) -> None:
    with anima.enable_x64(True):
        matrix = np.fft.rfft(np.eye(n), axis=0)
        jacobian = anima.jacfwd(jnp.fft.rfft)(jnp.zeros(n))
        np.testing.assert_allclose(jacobian, matrix, atol=1e-14)
        x = data("fft", (n // 2 + 1,), "float64")
        slope = anima.grad(lambda z: jnp.sum(jnp.fft.irfft(z, n) * jnp.arange(1.0, n + 1)))(x)
        unit = np.array([np.fft.irfft(e, n) @ np.arange(1.0, n + 1) - 1j * (np.fft.irfft(1j * e, n)
                                                                            @ np.arange(1.0, n + 1))
                         for e in np.eye(n // 2 + 1)])
        np.testing.assert_allclose(slope, unit, atol=1e-13)


@pytest.mark.parametrize("kind, lengths, shape", [
    *((kind, (0,), (3, 0)) for kind in ("FFT", "IFFT", "RFFT", "IRFFT")), ("IRFFT", (0,), (3, 1)),
    ("FFT", (0, 3), (0, 3)), ("IFFT", (2, 0), (2, 0)), ("RFFT", (0, 3), (2, 0, 3)), ("RFFT", (4, 0), (4, 0)),
    ("IRFFT", (0, 4), (0, 3))])
def test_transforms_of_nothing_have_derivatives(kind: str, lengths: tuple[int, ...], shape: tuple[int, ...]) -> None:
    def f(x: Any) -> Any:
        return jnp.sum(jnp.abs(lax.fft(x, kind, lengths)) ** 2)

    x = jnp.zeros(shape, np.float32 if kind == "RFFT" else np.complex64)
    for derived in (anima.grad(f), anima.vmap(anima.grad(f)), lambda x: anima.jvp(f, (x,), (x,))[1] + x):
        for run in (derived, anima.jit(derived)):
            np.testing.assert_array_equal(run(x[None]), np.zeros((1, *shape)))


def test_batched_along_any_axis() -> None:
    x = data("fft", (3, 4, 5), "float32")
    for axis in range(3):
        got = anima.vmap(jnp.fft.fft2, axis, axis)(x)
        want = np.stack([np.fft.fft2(s) for s in np.moveaxis(x, axis, 0)], axis)
        close(got, want, "float32")


ERRORS = [
    (lambda x: lax.fft(x, "FFT", (3,)), ValueError, "minor dimensions must be equal"),
    (lambda x: lax.fft(x, "IRFFT", (9,)), ValueError, "minor dimensions"),
    (lambda x: lax.fft(x, "FFT", (1, 2, 4)), ValueError, "at least as many input dimensions"),
    (lambda x: lax.fft(x, "DCT", (4,)), ValueError, "Unknown FFT type"),
    (lambda x: lax.fft(x, 1, (4,)), TypeError, "Unknown FFT type"),
    (lambda x: lax.fft(x + 0j, "RFFT", (4,)), ValueError, "only real valued inputs"),
    (lambda x: jnp.fft.rfft(x.astype(jnp.float16)), ValueError, "float32 or float64"),
    (lambda x: jnp.fft.fft(x, 0), ValueError, "positive"), (lambda x: jnp.fft.fft(x, norm="x"), ValueError, "norm"),
    (lambda x: jnp.fft.fft(x, axis=(0,)), ValueError, "multiple axes"),
    (lambda x: jnp.fft.fft(x, 2.5), TypeError, "integer"), (lambda x: jnp.fft.fft([1.0]), TypeError, "ndarray"),
    (lambda x: jnp.fft.fftn(x, (2,), (0, 1)), ValueError, "different lengths"),
    (lambda x: jnp.fft.fftn(x, axes=(0, 0)), ValueError, "repeated axes"),
    (lambda x: jnp.fft.fft2(x, axes=(0,)), ValueError, "only supports 2 axes"),
    (lambda x: jnp.fft.fftfreq([3]), ValueError, "only takes an int"),
    (lambda x: jnp.fft.rfftfreq(3, x), ValueError, "single value"),
    (lambda x: jnp.fft.rfftfreq(3, dtype=bool), TypeError, "bool"),
]


@pytest.mark.parametrize("call, error, text", ERRORS)
def test_errors(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(jnp.ones((2, 4)))


def test_frequencies_and_shifts() -> None:
    for n in (0, 1, 4, 5, 16):
        np.testing.assert_allclose(jnp.fft.rfftfreq(n, 0.5) if n else np.zeros(0), np.fft.rfftfreq(n, 0.5) if n else [])
        if n:
            np.testing.assert_allclose(jnp.fft.fftfreq(n, 2), np.fft.fftfreq(n, 2), rtol=1e-6)
    for dtype in ("int8", "int32", int, "bfloat16", "complex64"):
        out = jnp.fft.rfftfreq(5, 2, dtype=dtype)
        assert out.dtype == (dtype if dtype in ("bfloat16", "complex64") else "float32")
        np.testing.assert_allclose(out.astype(complex), [0, 0.1, 0.2], rtol=4e-3)
    x = np.arange(12.0).reshape(3, 4).astype("f4")
    for axes in (None, 0, (0, 1), ()):
        assert np.array_equal(jnp.fft.fftshift(x, axes), np.fft.fftshift(x, axes))
        assert np.array_equal(jnp.fft.ifftshift(x, axes), np.fft.ifftshift(x, axes))
