"""The Python array API's extensions `linalg` and `fft`, more arguments of its functions, and special values.

As `test_array_api.py`: array-api-strict is the reference; what it takes is run and compiled, and compared.
"""

from __future__ import annotations

from typing import Any

import array_api_strict as xp
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.config import config
from tests.numpy.test_array_api import COMPLEX, FLOATS, INTEGERS, check, leaves, values

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.filterwarnings("ignore::RuntimeWarning"),
              pytest.mark.filterwarnings("ignore::UserWarning")]

NUMBERS = [*INTEGERS, *FLOATS, *COMPLEX]
Call = tuple[list[str], list[tuple[int, ...]], list[str]]
CALLS: list[Call] = [
    (["bool", *NUMBERS], [(2, 3), (3, 1, 2), (2, 0, 3)], [
        "any(x, axis=0, keepdims=True)", "all(x, axis=-1)", "count_nonzero(x, axis=0)", "flip(x, axis=(0,))",
        "roll(x, (1, 2), axis=(0, -1))", "expand_dims(x, axis=-x.ndim - 1)", "stack((x, x), axis=x.ndim)",
        "moveaxis(x, (0,), (-1,))", "broadcast_arrays(x, xp.zeros((2, *x.shape)))", "tile(x, ())", "tile(x, (0,))",
        "tile(x, (2,) * (x.ndim + 1))", "repeat(x, 0)", "asarray(x, dtype=x.dtype)",
        "triu(x, k=2)", "matrix_transpose(x)", "where(xp.ones(x.shape, dtype=xp.bool), x, x)"]),
    ([*INTEGERS, *FLOATS], [(2, 3), (3, 1, 2)], [
        "max(x, axis=(0,))", "argmax(x, axis=0, keepdims=True)", "sort(x, axis=0, descending=True, stable=True)",
        "clip(x)", "clip(x, xp.asarray(1, dtype=x.dtype), xp.asarray(3, dtype=x.dtype))", "maximum(x, 1)",
        "minimum(2, x)", "less(x, 1)", "floor_divide(x, 2)", "remainder(7, xp.abs(x) + xp.asarray(1, dtype=x.dtype))"]),
    (NUMBERS, [(2, 3), (3, 0, 2), (2, 1, 3)], [
        "sum(x, axis=(0, -1))", "sum(x, dtype=xp.complex128)", "prod(x, axis=0, keepdims=True)", "sum(x, axis=())",
        "cumulative_sum(x, axis=0, include_initial=True)", "diff(x, n=2, axis=-1)", "diff(x, n=0)", "subtract(3, x)",
        "diff(x, axis=0, append=x)", "tensordot(x, x, axes=((0,), (0,)))", "linalg.vecdot(x, x, axis=-1)",
        "linalg.outer(xp.reshape(x, (-1,)), xp.reshape(x, (-1,)))", "linalg.trace(x)",
        "linalg.trace(x, offset=1, dtype=xp.complex128)", "linalg.diagonal(x, offset=-1)", "linalg.diagonal(x)",
        "linalg.matmul(x, xp.matrix_transpose(x))"]),
    ([*FLOATS, *COMPLEX], [(2, 3), (4, 1, 3)], [
        "mean(x, axis=(0,), keepdims=True)", "divide(1, x + 10)", "linalg.vector_norm(x)",
        "linalg.vector_norm(x, axis=-1, ord=1)", "linalg.vector_norm(x, ord=float('inf'), keepdims=True)",
        "linalg.vector_norm(x, axis=(0,), ord=3)", "linalg.vector_norm(x, ord=0)", "linalg.vector_norm(x, ord=-1)",
        "linalg.cross(x, x[..., ::-1])", "linalg.matrix_norm(x)", "linalg.matrix_norm(x, ord='nuc')",
        "linalg.matrix_norm(x, ord=2, keepdims=True)", "linalg.matrix_norm(x, ord=-1)", "linalg.svdvals(x)",
        "linalg.matrix_norm(x, ord=float('inf'))", "linalg.pinv(x)", "linalg.pinv(x, rtol=0.1)",
        "linalg.matrix_rank(x, rtol=0.5)"]),
    (FLOATS, [(2, 3), (5, 1, 3)], [
        "std(x, axis=0, correction=0.5, keepdims=True)", "var(x, axis=(0,))", "atan2(x, 1)", "copysign(2, x)",
        "hypot(x, 2)", "logaddexp(x, 1)", "fft.rfft(x, n=5, norm='ortho')", "fft.rfftn(x)", "fft.rfftn(x, axes=(0,))",
        "fft.ihfft(x)", "fft.rfft(x, axis=0, norm='forward')"]),
    (COMPLEX, [(2, 3), (5, 1, 4)], [
        "fft.fft(x, n=6)", "fft.fft(x, axis=0, norm='ortho')", "fft.ifft(x, n=2, norm='forward')", "fft.fftn(x)",
        "fft.fftn(x, axes=(0,), s=(3,))", "fft.ifftn(x)", "fft.irfft(x, n=5)", "fft.irfft(x)", "fft.hfft(x, n=5)",
        "fft.irfftn(x, axes=(-1,), s=(4,))", "fft.fftshift(x)", "fft.ifftshift(x, axes=0)", "multiply(x, 1 + 2j)",
        "where(xp.real(x) > 0, x, 1j)", "log2(x)", "log10(x)"]),
    ([*FLOATS, *COMPLEX], [(3, 3), (2, 4, 4), (0, 0), (0, 3, 3)], [
        "linalg.det(s)", "linalg.inv(s)", "linalg.slogdet(s)", "linalg.matrix_power(s, 3)", "linalg.solve(s, s)",
        "linalg.matrix_power(s, -2)", "linalg.matrix_power(s, 0)", "linalg.eigvalsh(h)", "linalg.cholesky(p)",
        "linalg.cholesky(p, upper=True)", "linalg.eigh(h).eigenvalues", "linalg.svd(s).S",
        "abs(linalg.qr(s, mode='complete').R)"])]


def run(call: str, module: Any, x: Any) -> list[Any]:
    """`s` is far from singular, `h` Hermitian, `p` positive definite."""
    names = {"xp": module, "x": x, "linalg": module.linalg}
    if x.ndim > 1 and x.shape[-1] == x.shape[-2]:
        names["s"] = s = x + 5 * module.eye(x.shape[-1], dtype=x.dtype)
        flipped = module.matrix_transpose(s)
        names["h"] = h = s + (module.conj(flipped) if "complex" in str(x.dtype) else flipped)
        names["p"] = module.matmul(h, h) + module.eye(x.shape[-1], dtype=x.dtype)
    return leaves(eval(f"xp.{call}", names))


@pytest.mark.parametrize("call, dtypes, shapes", [(c, d, s) for d, s, calls in CALLS for c in calls])
def test_call(call: str, dtypes: list[str], shapes: list[tuple[int, ...]]) -> None:
    for dtype in dtypes:
        compared = 0
        for shape in shapes:
            x = values(shape, dtype)
            try:
                want = run(call, xp, xp.asarray(x))
            except (ValueError, TypeError, IndexError):
                continue
            compared += 1
            check(run(call, jnp, jnp.asarray(x)), want, f"{call} of {dtype}{list(shape)}")
            if shape == shapes[0] and dtype in dtypes[-2:]:
                compiled = anima.jit(lambda x: run(call, jnp, x))(x)
                check(compiled, want, f"jit of {call} of {dtype}{list(shape)}")
        assert compared, f"the reference takes none of the shapes of {dtype} in {call}"


REALS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.0, 1e300, -1e300, 1e-310, np.inf, -np.inf, np.nan]
UNARY = ["abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "expm1", "floor",
         "isfinite", "isinf", "isnan", "log", "log1p", "log2", "log10", "negative", "positive", "reciprocal", "round",
         "signbit", "sin", "sinh", "square", "sqrt", "tan", "tanh", "trunc"]
BINARY = ["add", "atan2", "copysign", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "logaddexp",
          "multiply", "nextafter", "not_equal", "pow", "subtract"]


def same(got: Any, want: np.ndarray, message: str) -> None:
    got = np.asarray(got)
    np.testing.assert_allclose(got, want, rtol=1e-5 if want.dtype == np.float32 else 1e-12, err_msg=message)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]), err_msg=message)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype: str) -> None:
    """Infinities, NaNs, subnormal numbers, and the signs of zeros."""
    with np.errstate(all="ignore"):
        x = np.array(REALS).astype(dtype)
        a, b = np.repeat(x, len(x)), np.tile(x, len(x))
    for names, args in ((UNARY, (x,)), (BINARY, (a, b))):
        for name in names:
            with np.errstate(all="ignore"):
                want = np.asarray(getattr(xp, name)(*map(xp.asarray, args)))
            fun = getattr(jnp, name)
            for way, f in (("", fun), ("jit of ", anima.jit(fun))):
                with config.option("flush_subnormals")(False):  # else what is made of exponentials has none
                    got = f(*map(jnp.asarray, args))
                if want.dtype == bool:
                    np.testing.assert_array_equal(got, want, err_msg=way + name)
                else:
                    same(got, want, way + name)


def test_logarithms_of_complex_infinities() -> None:
    """The parts of the logarithm are divided, each by itself."""
    x = np.array([complex(a, b) for a in (0.0, -0.0, 2.0, -np.inf, np.inf) for b in (0.0, -0.0, 1.0, np.inf)])
    for name in ("log2", "log10"):
        with np.errstate(all="ignore"):
            want = np.asarray(getattr(xp, name)(xp.asarray(x)))
        for f in (getattr(jnp, name), anima.jit(getattr(jnp, name))):
            got = np.asarray(f(x))
            np.testing.assert_allclose(got.real, want.real, rtol=1e-12)
            np.testing.assert_allclose(got.imag, want.imag, rtol=1e-12)


def test_an_axis_that_is_not_there() -> None:
    for call in (lambda: jnp.expand_dims(jnp.ones((2, 3)), axis=5), lambda: jnp.sum(jnp.ones(3), axis=-2)):
        for kind in (IndexError, ValueError):
            with pytest.raises(kind, match="is out of bounds for array of dimension"):
                call()
