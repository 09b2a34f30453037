"""Special functions against SciPy and mpmath: values, types, derivatives to order 2, compiled and batched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.special

import anima
import anima.numpy as jnp
import anima.scipy.special as sp

# Arguments of ordinary sizes, and where functions have zeros, limits and ends.
REAL = (-3.7, -2.0, -0.4, -0.0, 0.0, 0.3, 0.5, 1.0, 1.46, 2.5, 9.0, 30.0, np.inf, -np.inf, np.nan)
UNIT = (-0.1, 0.0, 1e-6, 0.2, 0.3, 0.4999999, 0.5, 0.500001, 0.7, 0.8, 1.0, 1.5)
GAMMAS = tuple(v for v in REAL if v != -np.inf)  # where SciPy's have values of their own
UNARY: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("entr", "erf", "erfc", "erfcx", "dawsn", "expit", "i0e", "i1e", "log_ndtr", "ndtr"), REAL),
    **dict.fromkeys(("gamma", "gammaln", "loggamma"), GAMMAS), "digamma": tuple(v for v in REAL if v not in (0, -2)),
    **dict.fromkeys(("i0", "i1"), REAL[:-3]), **dict.fromkeys(("logit", "ndtri", "erfinv"), UNIT),
    "exp1": tuple(v for v in REAL if not v < 0), "expi": tuple(v for v in REAL if abs(v) < np.inf or v != v),
    "spence": REAL[:-3], "factorial": (0.0, 1.0, 2.5, 20.0, -3.0)}
PAIRS = {
    "beta": ((0.3, 2.5), (4.0, 1e-3), (150.0, 0.5)),
    "betaln": ((0.3, 2.5), (4.0, 1e-3), (1.0, 1.0), (1.0, 3.0), (1500.0, 1e5), (-0.5, 2.0)),
    "boxcox": ((0.3, 2.0), (2.5, 0.0), (2.5, -1.5), (0.0, 2.0), (4.0, 1e-9)),
    "comb": ((5, 2), (10.5, 3), (3, 5), (60, 30)),
    "boxcox1p": ((0.3, 2.0), (1e-6, 0.5), (2.5, 0.0)), "gammainc": ((0.5, 2.0), (3.0, 0.1)),
    "gammaincc": ((0.5, 2.0), (3.0, 0.1)),
    "kl_div": ((0.3, 0.3), (0.0, 2.0), (1.0, 0.0), (-1.0, 2.0), (2.0, 3.0), (9.0, 2.0)),
    "owens_t": ((0.5, 2.0), (-1.0, 0.3), (3.0, -4.0), (0.0, 1.0), (20.0, 0.1)),
    "poch": ((0.5, 2.0), (-2.5, 3.0), (-2.0, 1.0), (7.0, -2.5), (1e5, 0.5)),
    "rel_entr": ((0.3, 0.3), (0.0, 2.0), (1.0, 0.0), (-1.0, 2.0), (2.0, 2.0001)),
    "xlogy": ((0.0, 0.0), (2.0, 3.0), (-1.0, 2.0)), "xlog1py": ((0.0, -1.0), (2.0, 1e-9)),
    "zeta": ((2.0, 1.0), (1.5, 0.3)), "expn": ((1, 0.5), (2, 3.0), (0, 0.2), (5, 20.0), (30, 0.1), (2, 0.0))}


def agree(got: Any, want: Any, rtol: float) -> None:
    got, want = np.asarray(got), np.asarray(want)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=0 if got.dtype == np.float64 else 1e-30)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_bessel_functions_near_zero(dtype: str) -> None:
    """J_1 of tiny numbers is half of them, J_2 an eighth of their squares."""
    with anima.enable_x64(dtype == "float64"):
        z = np.asarray([0.0, 1e-200, 1e-40, 1e-25, 1e-16, 1e-7, 1e-3, 0.5, 9.0], dtype)
        want = [scipy.special.jv(k, z.astype("f8")) for k in range(4)]
        np.testing.assert_allclose(sp.bessel_jn(z, v=3), np.asarray(want).astype(dtype),
                                   rtol=20 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps ** 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str, dtype: str) -> None:
    with anima.enable_x64(dtype == "float64"), np.errstate(all="ignore"):
        x = np.array(UNARY[name], dtype)
        got = getattr(sp, name)(x)
        assert got.dtype == dtype
        want = getattr(scipy.special, name)(x.astype("f8"))
        rtol = 4e-7 if dtype == "float32" else 1e-13 if name == "log_ndtr" else 4e-15  # SciPy's is less accurate
        agree(got, want.astype(dtype), rtol)
        if dtype == "float32":  # compiled code computes in float64 there too
            agree(anima.jit(getattr(sp, name))(x), got, 4e-7)
        assert getattr(sp, name)(x[:0].reshape(0, 2)).shape == (0, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two_numbers(name: str, dtype: str) -> None:
    with anima.enable_x64(dtype == "float64"), np.errstate(all="ignore"):
        a, b = np.array(PAIRS[name], dtype).T
        got = getattr(sp, name)(a, b)
        assert got.dtype == dtype
        first = a.astype(int) if name == "expn" else a.astype("f8")
        want = getattr(scipy.special, name)(first, b.astype("f8"))
        agree(got, want.astype(dtype), 4e-14 if dtype == "float64" else 2e-6)
        if dtype == "float64":
            agree(anima.jit(getattr(sp, name))(a, b), got, 4e-14)
        assert getattr(sp, name)(a[:, None], b).shape == (len(a), len(a))
        agree(anima.vmap(getattr(sp, name), (None, 0))(a[0], b), getattr(sp, name)(a[0], b), 1e-6)


def _several(x: Any) -> list[Any]:
    return [*sp.sici(x), *sp.fresnel(x), *sp.bessel_jn(x, v=3), sp.multigammaln(x + 2, 3), sp.polygamma(2, x + 1),
            sp.betainc(1.5, 2.5, x / 40), sp.hyp1f1(1.2, 2.3, x), sp.hyp1f1(1.2, 2.3, -x),
            sp.hyp2f1(1.2, 0.7, 2.3, x / 40), sp.hyp2f1(1.2, 0.7, 2.3, -x), sp.gammasgn(-x)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_with_more_arguments_or_results(dtype: str) -> None:
    with anima.enable_x64(dtype == "float64"):
        x = np.array([0.2, 1.0, 2.5, 7.5, 21.5], dtype)
        s, y = scipy.special, x.astype("f8")
        wanted = [*s.sici(y), *s.fresnel(y), *(s.jv(k, y) for k in range(4)), s.multigammaln(y + 2, 3),
                  s.polygamma(2, y + 1), s.betainc(1.5, 2.5, y / 40), s.hyp1f1(1.2, 2.3, y), s.hyp1f1(1.2, 2.3, -y),
                  s.hyp2f1(1.2, 0.7, 2.3, y / 40), s.hyp2f1(1.2, 0.7, 2.3, -y), s.gammasgn(-y)]
        for found in (_several(x), *([anima.jit(_several)(x)] if dtype == "float32" else [])):
            for got, want in zip(found, wanted, strict=True):
                assert got.dtype == dtype
                np.testing.assert_allclose(got, want, rtol=2e-13 if dtype == "float64" else 2e-5)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers(dtype: str) -> None:
    with anima.enable_x64(True):
        parts = np.array([-25.5, -3.2, -0.3, 0.0, 0.7, 4.1, 12.0])
        z = (parts[:, None] + 1j * parts * 0.9).astype(dtype)
        wide = z.astype("c16")
        tolerance = 2e-13 if dtype == "complex128" else 4e-5
        for got, want in ((sp.wofz(z[:, 2:]), scipy.special.wofz(wide[:, 2:])),
                          (sp.erfcx(z[2:]), scipy.special.erfcx(wide[2:])),
                          (sp.loggamma(z + 0.1), scipy.special.loggamma(wide + 0.1)),
                          (sp.gamma(z + 0.1), scipy.special.gamma(wide + 0.1)),
                          (sp.expit(z), 1 / (1 + np.exp(-wide)))):
            assert got.dtype == dtype
            finite = np.isfinite(want) & (np.abs(want) < (1e300 if dtype == "complex128" else 1e30))
            small = np.abs(want) < (0 if dtype == "complex128" else 1e-30)
            error = np.abs(np.asarray(got) - want) / np.where(small, 1, np.abs(want))
            assert np.all(error[finite] < tolerance * np.maximum(1, np.abs(wide[:, :want.shape[1]]).max()))
        slope = anima.grad(sp.wofz, holomorphic=True)(np.complex128(0.3 + 0.4j))
        np.testing.assert_allclose(slope, 2j / np.sqrt(np.pi) - 2 * (0.3 + 0.4j) * scipy.special.wofz(0.3 + 0.4j))


def test_spherical_harmonics() -> None:
    with anima.enable_x64(True):
        n, m = (np.array(v) for v in zip(*((n, m) for n in range(5) for m in range(-n - 1, n + 2)), strict=True))
        theta, phi = np.linspace(0, np.pi, len(n)), np.linspace(-3, 6, len(n))
        want = scipy.special.sph_harm_y(n, m, theta, phi)
        np.testing.assert_allclose(sp.sph_harm_y(n, m, theta, phi), want, atol=1e-14)
        compiled = anima.jit(sp.sph_harm_y, static_argnames="n_max")(n, m, theta, phi, n_max=6)
        np.testing.assert_allclose(compiled, want, atol=1e-14)
        slope = anima.grad(lambda t: jnp.sum(sp.sph_harm_y(jnp.array([3]), jnp.array([2]), t, jnp.array([0.4])).real))
        exact = (scipy.special.sph_harm_y(3, 2, 0.5 + 1e-6, 0.4) - scipy.special.sph_harm_y(3, 2, 0.5 - 1e-6, 0.4)).real
        np.testing.assert_allclose(slope(jnp.array([0.5]))[0], exact / 2e-6, rtol=1e-8)


def test_bernoulli_numbers() -> None:
    with anima.enable_x64(True):
        np.testing.assert_allclose(sp.bernoulli(30), [float(mp.bernoulli(n)) for n in range(31)])
        assert sp.bernoulli(0).tolist() == [1.0] and np.isinf(sp.bernoulli(300)[300])


Exact = Callable[[Any], Any]
SLOPES: dict[str, tuple[Callable[[Any], Any], Exact, tuple[float, ...]]] = {
    "entr": (sp.entr, lambda x: -x * mp.log(x), (0.3, 1.0)),
    "logit": (sp.logit, lambda x: mp.log(x / (1 - x)), (0.3, 0.9)),
    "xlogy": (lambda x: sp.xlogy(x, 1 + x), lambda x: x * mp.log(1 + x), (0.3, 2.0)),
    "xlog1py at 0": (lambda x: sp.xlog1py(x, x - 0.5), lambda x: x * mp.log(0.5 + x), (0.0, 2.0)),
    "rel_entr": (lambda x: sp.rel_entr(x, x * x), lambda x: x * mp.log(1 / x), (0.3, 1.0)),
    "kl_div": (lambda x: sp.kl_div(x, x * x), lambda x: x * mp.log(1 / x) - x + x * x, (0.3, 1.0)),
    "boxcox": (lambda l: sp.boxcox(2.5, l), lambda l: (mp.mpf("2.5") ** l - 1) / l, (0.5, -2.0, 3.0, -30.0)),
    "gamma": (sp.gamma, mp.gamma, (0.5, 3.0, -1.5)),
    "beta": (lambda x: sp.beta(x, 2 * x), lambda x: mp.beta(x, 2 * x), (0.5, 2.0)),
    "betaln": (lambda x: sp.betaln(x, 2 * x), lambda x: mp.log(mp.beta(x, 2 * x)), (0.5, 2.0)),
    "poch": (lambda x: sp.poch(x, 2 * x), lambda x: mp.rf(x, 2 * x), (0.5, 2.0)),
    "comb": (lambda x: sp.comb(7.5, x), lambda x: mp.binomial(7.5, x), (0.5, 2.0)),
    "erfcx": (sp.erfcx, lambda x: mp.exp(x * x) * mp.erfc(x), (-1.0, 0.0, 0.5, 1.5, 5.0, 100.0)),
    "dawsn": (sp.dawsn, lambda x: mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x), (-1.0, 0.5, 5.0, 20.0)),
    "log_ndtr": (sp.log_ndtr, lambda x: mp.log(mp.ncdf(x)), (-20.0, -1.0, 0.0, 2.0, 6.0)),
    "ndtri": (sp.ndtri, lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1), (0.1, 0.97)),
    "expi": (sp.expi, mp.ei, (-1.0, 0.37250741078, 8.0)),
    "expn": (lambda x: sp.expn(2, x), lambda x: mp.expint(2, x), (0.5, 3.0)),
    "sici": (lambda x: sp.sici(x)[0], mp.si, (0.2, 2.0, 7.0)), "ci": (lambda x: sp.sici(x)[1], mp.ci, (0.2, 7.0)),
    "spence": (sp.spence, lambda x: mp.polylog(2, 1 - x), (0.3, 1.01, 1.9)),
    "hyp1f1": (lambda a: sp.hyp1f1(a, a * a, a / 2), lambda a: mp.hyp1f1(a, a * a, a / 2), (1.5, 2.0)),
    "hyp2f1": (lambda c: sp.hyp2f1(1.2, c, 2 * c, 0.4), lambda c: mp.hyp2f1(1.2, c, 2 * c, 0.4), (0.5, 1.3)),
    "bessel": (lambda x: sp.bessel_jn(x, v=2)[2], lambda x: mp.besselj(2, x), (0.5, 12.0))}


@pytest.mark.parametrize("name", SLOPES)
def test_derivatives_to_order_two(name: str, x64: None) -> None:
    function, exact, points = SLOPES[name]
    orders = (anima.grad(function), anima.grad(anima.grad(function)))
    with mp.workdps(40):
        wanted = [[float(mp.re(mp.diff(exact, mp.mpf(x), k))) for x in points] for k in (1, 2)]
    for derivative, want in zip(orders, wanted, strict=True):
        np.testing.assert_allclose([float(derivative(x)) for x in points], want, rtol=2e-11)
        np.testing.assert_allclose(anima.jit(anima.vmap(derivative))(jnp.array(points)), want, rtol=2e-11)


# Where the formulas of derivatives are 0/0: function, point, first and second derivative.
AT_POINTS = [
    (sp.spence, 1.0, -1.0, 0.5), (lambda x: sp.sici(x)[0], 0.0, 1.0, 0.0),
    (lambda l: sp.boxcox(np.e, l), 0.0, 0.5, 1 / 3),
    (sp.dawsn, 0.0, 1.0, 0.0), (sp.i1, 0.0, 0.5, 0.0), (lambda x: sp.bessel_jn(x, v=1)[1], 0.0, 0.5, 0.0),
    (lambda x: sp.bessel_jn(x, v=0)[0], 0.0, 0.0, -0.5), (lambda x: sp.xlogy(x, x + 1), 0.0, 0.0, 2.0),
    (lambda x: sp.fresnel(x)[0], 0.0, 0.0, 0.0),
    (lambda x: sp.fresnel(x)[1], 300.0, 1.0, 0.0), (sp.entr, 0.0, np.inf, -np.inf),
    (sp.entr, 1e-200, -np.log(1e-200) - 1, -1e200), (sp.entr, np.inf, -np.inf, 0.0),
    (sp.i1, 1e-30, 0.5, 0.0), (anima.grad(anima.grad(sp.i1)), 1e-30, 0.375, 0.0), (sp.i1e, 1e-30, 0.5, -1.0),
    (anima.grad(sp.i1e), -1e-30, 1.0, 1.875),
    (lambda x: sp.hyp2f1(1.0, 2.0, 3.0, x), 0.0, 2 / 3, 1.0), (lambda x: sp.log_ndtr(x), 50.0, 0.0, 0.0)]


@pytest.mark.parametrize("function, x, first, second", AT_POINTS)
def test_derivatives_at_special_points(function: Any, x: float, first: float, second: float, x64: None) -> None:
    np.testing.assert_allclose(anima.grad(function)(x), first, atol=1e-15)
    np.testing.assert_allclose(anima.jit(anima.grad(anima.grad(function)))(x), second, atol=1e-15, rtol=1e-12)


ERRORS = [
    (lambda: sp.ndtr(1), TypeError), (lambda: sp.log_ndtr(1.0, 2.5), TypeError),
    (lambda: sp.log_ndtr(1.0, 31), ValueError),
    (lambda: sp.ndtri(jnp.float16(1)), TypeError), (lambda: sp.spence(1), TypeError), (lambda: sp.expi(1j), ValueError),
    (lambda: sp.dawsn(1j), ValueError), (lambda: sp.hyp1f1(1, 2, 1j), ValueError),
    (lambda: sp.fresnel(1j), NotImplementedError),
    (lambda: sp.zeta(2.0), NotImplementedError), (lambda: sp.factorial(3, exact=True), NotImplementedError),
    (lambda: sp.polygamma(1.5, 2.0), ValueError), (lambda: sp.bernoulli(-1), ValueError),
    (lambda: sp.bernoulli(1.0), TypeError),
    (lambda: sp.bessel_jn(1.0, v=1.5), TypeError), (lambda: sp.bessel_jn(1j, v=1), TypeError),
    (lambda: sp.gammaln(1j), TypeError),
    (lambda: sp.log_softmax(jnp.ones(2), 0), TypeError), (lambda: sp.xlogy([1], 1), TypeError),
    (lambda: sp.sph_harm_y(jnp.array([1]), jnp.array([1]), 0.1, 0.2, diff_n=1), NotImplementedError)]


@pytest.mark.parametrize("call, error", ERRORS)
def test_errors(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_types() -> None:
    assert sp.gammaln(2).weak_type and not sp.gamma(2).weak_type and sp.comb(4, 2).weak_type
    assert sp.entr(jnp.float16(0.3)).dtype == np.float16 and sp.erfcx(jnp.bfloat16(1)).dtype == jnp.bfloat16
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(sp.softmax(x).sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(sp.log_softmax(x, axis=1), scipy.special.log_softmax(np.asarray(x), axis=1), rtol=1e-6)
    want = scipy.special.logsumexp(np.asarray(x), axis=0, b=2.0)
    np.testing.assert_allclose(sp.logsumexp(x, axis=0, b=2.0), want, rtol=1e-6)


SECOND = {  # derivatives in x of derivatives in a
    "igamma": (lambda a, x: anima.grad(sp.gammainc)(a, x), lambda a, x: mp.diff(
        lambda b: mp.exp(-x) * x ** (b - 1) / mp.gamma(b), a)),
    "igammac": (lambda a, x: anima.grad(sp.gammaincc)(a, x), lambda a, x: -mp.diff(
        lambda b: mp.exp(-x) * x ** (b - 1) / mp.gamma(b), a)),
    "random_gamma_grad": (anima.lax.random_gamma_grad, lambda a, x: mp.diff(lambda z: -mp.diff(
        lambda b: mp.gammainc(b, 0, z, regularized=True), a) / (mp.exp(-z) * z ** (a - 1) / mp.gamma(a)), x)),
}


@pytest.mark.parametrize("name", SECOND)
def test_mixed_derivatives_of_incomplete_gamma_functions(name: str, x64: None) -> None:
    function, exact = SECOND[name]
    for a, x in ((0.6, 0.3), (2.5, 1.7), (4.0, 9.0)):
        with mp.workdps(30):
            want = float(exact(mp.mpf(a), mp.mpf(x)))
        for run in (lambda f: f, anima.jit):
            np.testing.assert_allclose(run(anima.grad(function, 1))(a, x), want, rtol=1e-9)


@pytest.mark.parametrize("function", [sp.xlogy, sp.xlog1py])
def test_products_with_logarithms_of_nan(function: Any) -> None:
    assert jnp.isnan(function(0.0, jnp.nan)) and jnp.isnan(anima.grad(function, 1)(0.0, jnp.nan))


@pytest.mark.parametrize("gap", [1e-15, 1e-12, 1e-8, 1e-4, 0.1, 0.3, 0.6])
def test_entropies_of_neighbours_keep_their_digits(gap: float, x64: None) -> None:
    for p, q in ((0.3, 0.3 * (1 + gap)), (7.0 * (1 + gap), 7.0), (0.5, 0.5 * (1 - gap))):
        with mp.workdps(60):
            exact = mp.mpf(p) * mp.log(mp.mpf(p) / mp.mpf(q))
            want = float(exact), float(exact - mp.mpf(p) + mp.mpf(q))
        np.testing.assert_allclose([sp.rel_entr(p, q), sp.kl_div(p, q)], want, rtol=4e-15)


def test_relative_entropies_of_nothing_have_slopes() -> None:
    """Where both are 0 there is no NaN: labels of one class beside a class that is certain not to be."""
    for function, slopes in ((sp.rel_entr, (0.0, 0.0)), (sp.kl_div, (-1.0, 1.0))):
        assert tuple(map(float, anima.grad(function, (0, 1))(0.0, 0.0))) == slopes
        assert np.isfinite(float(anima.grad(anima.grad(lambda p, f=function: f(p, p)))(0.0)))


@pytest.mark.parametrize("degrees", [0, 1, 2, 9])
def test_associated_legendre_functions(degrees, x64):
    z = np.array([-1.0, -0.9, 0.0, 0.3, 0.999999, 1.0])
    with np.errstate(all="ignore"):
        want = [[scipy.special.assoc_legendre_p_all(degrees, degrees, v, diff_n=1)[k, :, :degrees + 1].T for v in z]
                for k in (0, 1)]
    values, slopes = sp.lpmn(degrees, degrees, z)
    np.testing.assert_allclose(values, np.stack(want[0], -1), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(slopes, np.stack(want[1], -1), rtol=1e-8, atol=1e-8)
    k, l = np.indices((degrees + 1, degrees + 1))[:, :, :, None]
    normal = anima.jit(lambda z: sp.lpmn_values(degrees, degrees, z, is_normalized=True))(z)
    np.testing.assert_allclose(normal, scipy.special.sph_harm_y(l, k, np.arccos(z), 0).real * (k <= l), atol=1e-12)


def test_associated_legendre_functions_refuse():
    z = np.ones(2, np.float32)
    for kind, fun in ((NotImplementedError, lambda: sp.lpmn(2, 3, z)), (ValueError, lambda: sp.lpmn(1, 1, z[None])),
                      (TypeError, lambda: sp.lpmn_values(1, 1, np.arange(2), True)),
                      (ValueError, lambda: sp.lpmn_values(-1, -1, z, True)), (TypeError, lambda: sp.lpmn(1., 1., z))):
        with pytest.raises(kind, match=r"lpmn|integer"):
            fun()


@pytest.mark.parametrize("a, b", [(5e-324, 2.0), (1e-310, 1e-310), (1e-281, 1e299), (1e-279, 1e-281), (9.99, 10.01),
                                  (10.0, 10.0), (10.000001, 3.0), (1e299, 1e299), (1e-5, 1e17), (0.3, 9.8),
                                  (1.0, 1e-309)])
def test_betaln_at_the_ends_of_its_formulas(a: float, b: float, x64: None) -> None:
    with mp.workdps(400):
        want = float(mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(mp.mpf(a) + mp.mpf(b)))
    for x, y in ((a, b), (b, a)):
        for function in (sp.betaln, anima.jit(sp.betaln)):
            np.testing.assert_allclose(function(x, y), want, rtol=2e-15, atol=4e-15)  # some are differences


@pytest.mark.parametrize("function, exact, points", [
    (sp.log_ndtr, lambda x: mp.log(mp.ncdf(x)) if x < 5 else mp.log1p(-mp.ncdf(-x)),
     (-1e8, -1000.0, -39.0, -38.0, -27.1, -5e-324, 0.0, 0.5, 8.0, 38.0, 39.5, 41.0)),
    (sp.ndtr, mp.ncdf, (-38.4, -37.0, -1e-300, 0.0, 9.0)),
    (sp.erfcx, lambda x: mp.exp(x * x) * mp.erfc(x), (-26.0, -1e-20, 0.0, 26.9, 27.1, 300.0, 1e150))])
def test_the_normal_distribution_far_out(function: Any, exact: Exact, points: tuple[float, ...], x64: None) -> None:
    def log_of_far(x: float) -> Any:
        return -mp.mpf(x)**2 / 2 - mp.log(-x * mp.sqrt(2 * mp.pi)) - 1 / mp.mpf(x)**2

    with mp.workdps(700):
        wanted = [1 / (x * np.sqrt(np.pi)) if x > 1e100 else float(log_of_far(x) if x < -1e4 else exact(mp.mpf(x)))
                  for x in points]
    for values in (function(jnp.array(points)), anima.jit(function)(jnp.array(points))):
        np.testing.assert_allclose(values, wanted, rtol=4 * 2.3e-16, atol=5e-324)
    ends = jnp.array([-np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(function(ends), anima.jit(function)(ends))
