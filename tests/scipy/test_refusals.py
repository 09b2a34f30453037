"""What SciPy's functions refuse, and what they make of arrays without elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.interpolate
import scipy.linalg
import scipy.ndimage
import scipy.signal

import anima
import anima.numpy as jnp
from anima.scipy import cluster, fft, interpolate, linalg, ndimage, optimize, signal, sparse, special, stats
from anima.scipy.spatial import transform

V, M, I3, C = jnp.arange(1.0, 4.0), jnp.ones((2, 3)), jnp.eye(3), 1j * jnp.ones(3)
KDE = stats.gaussian_kde(jnp.array([[0.0, 1, 2, 4], [1.0, 0, 2, 1]]))
LINE = stats.gaussian_kde(V)
REFUSED: list[tuple[str, type[Exception], str]] = [
    ("linalg.eigh_tridiagonal(V, V[1:], select='x')", ValueError, "select must have a value in"),
    ("linalg.eigh_tridiagonal(V, V[1:], select='i', select_range=(2, 1))", ValueError, "empty index range"),
    ("linalg.eigh_tridiagonal(V.astype('float16'), V[1:].astype('float16'))", TypeError, "Only float32, float64"),
    ("linalg.rsf2csf(I3, jnp.eye(4))", ValueError, "array shapes must match"),
    ("linalg.polar(V)", ValueError, "must be a 2-D array"),
    ("linalg.hessenberg(V)", TypeError, "rank at least 2"), ("linalg.expm(M)", ValueError, "square matrix"),
    ("linalg.expm(I3.astype('float16'))", TypeError, "float16 is not supported"),
    ("linalg.expm_frechet(I3, jnp.eye(2))", ValueError, "to be the same shape"),
    ("linalg.expm_frechet(I3, M)", ValueError, "expected E to be a"),
    ("linalg.expm_frechet(I3, I3, method='x')", ValueError, "Unknown method 'x'"),
    ("linalg.sqrtm(I3, 2)", NotImplementedError, "blocksize must be 1"),
    ("linalg.funm(M, jnp.exp)", ValueError, "square"),
    ("linalg.convolution_matrix(V[:0], 2)", ValueError, "len(a) must be at least 1"),
    ("linalg.convolution_matrix(V, 0)", ValueError, "n must be a positive integer"),
    ("linalg.convolution_matrix(V, 2, 'x')", ValueError, "mode must be one of"),
    ("linalg.fiedler_companion(V[:0])", ValueError, "nonzero length"),
    ("linalg.leslie(V[:1], V[:0])", ValueError, "must be at least 2"), ("linalg.hadamard(4, bool)", TypeError, "bool"),
    ("linalg.hadamard(6)", ValueError, "power of 2"), ("linalg.hankel(1.0)", ValueError, "c must be at least 1-dim"),
    ("linalg.hankel(V, 1.0)", ValueError, "r must be at least 1-dim"), ("linalg.hilbert(-1)", TypeError, "negative"),
    ("linalg.helmert(0)", ValueError, "positive integer"), ("linalg.pascal(2, 'x')", ValueError, "kind to be one of"),
    ("linalg.dft(2, dtype='float32')", ValueError, "must be a complex"),
    ("linalg.dft(2, 'x')", ValueError, "scale must"),
    ("linalg.lu_solve((M, jnp.arange(2)), V)", ValueError, "square matrices"),
    ("linalg.lu_solve(linalg.lu_factor(I3), V, 3)", ValueError, "must be 0, 1, or 2"),
    ("linalg.lu_solve(linalg.lu_factor(I3), V[:2])", ValueError, "inconsistent sizes"),
    ("linalg.cho_solve((I3, True), V[:2])", ValueError, "inconsistent sizes"),
    ("linalg.solve_triangular(I3, V, 3)", ValueError, "Invalid 'trans' value 3"),
    ("linalg.solve_triangular(I3, 1.0)", ValueError, "inconsistent sizes"),
    ("linalg.solve(I3, V, assume_a='x')", ValueError, "Expected assume_a to be one of"),
    ("linalg.solve_sylvester(I3, I3, M)", ValueError, "Incompatible shapes"),
    ("linalg.solve_sylvester(I3, I3, I3, method='x')", ValueError, "Unrecognized method x"),
    ("optimize.minimize(lambda x: x, V, method='BFGS')", (ValueError, TypeError), ""),
    ("optimize.minimize(lambda x: x.sum(), I3, method='BFGS')", ValueError, "x0 must be a vector"),
    ("optimize.minimize(jnp.sum, V, method='x')", ValueError, "Method x not recognized"),
    ("optimize.minimize(jnp.sum, V, [1], method='BFGS')", TypeError, "must be a tuple"),
    ("signal.fftconvolve(V, M)", ValueError, "same dimensionality"),
    ("signal.fftconvolve(M, jnp.ones((3, 2)), axes=[1])", ValueError, "incompatible shapes"),
    ("signal.fftconvolve(M, M, axes=[0, -2])", ValueError, "unique"),
    ("signal.fftconvolve(V, V, 'x')", ValueError, "mode"),
    ("signal.convolve(V, V[:0])", ValueError, "zero-size"), ("signal.convolve(V, V, method='x')", ValueError, "method"),
    ("signal.convolve(M, M.T)", ValueError, "must be smaller than the other"),
    ("signal.convolve(V, M)", ValueError, "dim"),
    ("signal.convolve2d(M, M, fillvalue=1)", NotImplementedError, "fillvalue=0"),
    ("signal.correlate2d(M, M, boundary='wrap')", NotImplementedError, "boundary"),
    ("signal.convolve2d(V, V)", ValueError, "2-dimensional"),
    *((f"signal.{f}(V, {o})", ValueError, t) for f in ("stft", "welch") for o, t in (
        ("window=M, nperseg=3", "window must be 1-D"), ("window=V, nperseg=2", "different from length of window"),
        ("window=jnp.ones(4), nperseg=4", "longer than input"), ("nperseg=0", "positive"), ("nperseg=-1", "positive"),
        ("nperseg=2, noverlap=2", "noverlap must be less"), ("nperseg=3, nfft=2", "nfft must be greater"))),
    ("signal.stft(V, nperseg=2, boundary='x')", ValueError, "Unknown boundary"),
    ("signal.welch(V, nperseg=2, scaling='x')", ValueError, "Unknown scaling"),
    ("signal.welch(V, nperseg=2, average='x')", ValueError, "average must be"),
    ("signal.csd(jnp.ones((2, 4)), jnp.ones((3, 4)), nperseg=2)", ValueError, "broadcast"),
    *((f"signal.istft(jnp.ones((3, 4)) + 0j, {o})", ValueError, t) for o, t in (
        ("nperseg=0", "positive"), ("nperseg=4, noverlap=4", "noverlap"), ("window=M, nperseg=4", "1-D"),
        ("window=V, nperseg=4", "length of 4"), ("nperseg=4, nfft=3", "greater than or equal"),
        ("time_axis=0, freq_axis=0", "differing"))),
    ("signal.istft(V)", ValueError, "at least 2d"), ("signal.detrend(V, type='x')", ValueError, "Trend type"),
    ("signal.detrend(V, bp=-1)", ValueError, "Breakpoints"), ("signal.detrend(V, bp=4)", ValueError, "Breakpoints"),
    ("signal.detrend(V, overwrite_data=True)", NotImplementedError, "overwrite_data"),
    ("special.log_ndtr(V, -1)", ValueError, "non-negative"), ("special.log_ndtr(V, 31)", ValueError, "<= 30"),
    ("special.log_ndtr(V, 1.0)", TypeError, "integer"), ("special.hyp2f1(V, V, V, C)", TypeError, "complex"),
    ("special.bessel_jn(C, v=1)", TypeError, "complex"), ("special.zeta(V)", NotImplementedError, "Riemann"),
    ("special.factorial(V, exact=True)", NotImplementedError, "exact"),
    ("special.bernoulli(-1)", ValueError, "non-neg"),
    ("special.polygamma(1.5, V)", ValueError, "integer type"), ("special.fresnel(C)", NotImplementedError, "complex"),
    ("special.gammasgn(C)", ValueError, "complex"),
    ("special.entr(C)", ValueError, "complex"), ("stats.rankdata(V, 'x')", ValueError, "unknown method"),
    ("stats.mode(V, nan_policy='x')", ValueError, "Illegal nan_policy"),
    ("stats.mode(V, nan_policy='omit')", NotImplementedError, "omit"),
    ("stats.sem(V, nan_policy='x')", ValueError, "x is"),
    ("stats.gaussian_kde(C)", NotImplementedError, "complex"), ("stats.gaussian_kde(V[:1])", ValueError, "multiple"),
    ("stats.gaussian_kde(V, weights=M)", ValueError, "one-dimensional"),
    ("KDE(jnp.ones((2, 1, 1)))", ValueError, "two dim"),
    ("stats.gaussian_kde(V, weights=V[:2])", ValueError, "of length n"),
    ("KDE(jnp.ones((3, 2)))", ValueError, "dimension 3"),
    ("stats.gaussian_kde(V, bw_method='x')", ValueError, "bw_method"),
    ("KDE(jnp.ones((4, 1)))", ValueError, "dimension 4"),
    ("KDE.integrate_gaussian(V, I3)", ValueError, "mean does not"),
    ("LINE.integrate_box_1d(V, 1)", ValueError, "scalars"),
    ("KDE.integrate_gaussian(V[:2], I3)", ValueError, "covariance does not"),
    ("KDE.integrate_box_1d(0, 1)", ValueError, "1D pdfs"), ("KDE.integrate_kde(LINE)", ValueError, "not the same"),
    ("stats.multinomial.logpmf(V, 3, V)", ValueError, "integer type"),
    ("stats.dirichlet.logpdf(V, I3)", ValueError, "one-dimensional"),
    ("stats.dirichlet.logpdf(V[:1], V)", ValueError, "x"),
    ("anima.grad(lambda a: stats.beta.logcdf(0.3, a, 2.0))(1.0)", NotImplementedError, "in a and b"),
    ("fft.dct(V, type=3)", NotImplementedError, "type 2"), ("fft.dct(V, norm='x')", ValueError, "not implemented"),
    ("fft.dct(V, n=0)", ValueError, "invalid number"), ("fft.dctn(M, axes=[0, 0])", ValueError, "repeated axis"),
    ("fft.dctn(M, s=[2], axes=[0, 1])", ValueError, "same length"),
    ("cluster.vq.vq(M, M[:, :1])", ValueError, "features"),
    ("cluster.vq.vq(M[:, :1], M)", ValueError, "features"),
    ("ndimage.map_coordinates(V, [V], 3)", NotImplementedError, "or"),
    ("sparse.linalg.cg(jnp.ones((3, 4)), V)", ValueError, "square matrix"),
    ("sparse.linalg.cg(I3[None], V)", ValueError, "sq"),
    ("interpolate.RegularGridInterpolator((V,), V)(jnp.ones((2, 2)))", ValueError, "dimension"),
    ("interpolate.RegularGridInterpolator((V, V), V)", ValueError, "but values has 1"),
    ("transform.Slerp.init(V, I3)", TypeError, "Rotation"),
    ("transform.Rotation.from_euler('xx', V[:2])", ValueError, "diff"),
    ("transform.Rotation.from_euler('xyz', V[:2])", ValueError, "to have 3"),
]
SCOPE = {"anima": anima, "jnp": jnp, "V": V, "M": M, "I3": I3, "C": C, "KDE": KDE, "LINE": LINE, "cluster": cluster,
         "fft": fft, "interpolate": interpolate, "linalg": linalg, "ndimage": ndimage, "optimize": optimize,
         "signal": signal, "sparse": sparse, "special": special, "stats": stats, "transform": transform}


@pytest.mark.parametrize("call, error, text", REFUSED, ids=[r[0] for r in REFUSED])
def test_refused(call: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        eval(call, SCOPE)
    assert text in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_arrays_without_elements(x64: None) -> None:
    """Results have the shapes and types of others."""
    none = jnp.zeros((2, 0, 0))
    for out in (linalg.expm(none), linalg.inv(none), linalg.sqrtm(none), linalg.solve(none, none),
                linalg.cho_solve((none, True), none), linalg.solve_sylvester(none, none, none),
                linalg.lu_solve((none, jnp.zeros((2, 0), int)), none)):
        assert out.shape == (2, 0, 0)
    assert linalg.toeplitz(V[:0]).shape == linalg.circulant(V[:0]).shape == (0, 0)
    assert linalg.expm_frechet(none, none)[1].shape == (2, 0, 0)
    for axis, shape in ((0, (3,)), (1, (0,)), (None, ())):
        found = stats.mode(jnp.zeros((0, 3)), axis=axis)
        assert found.mode.shape == found.count.shape == shape
        assert (found.count == 0).all() and np.isnan(found.mode).all()
    assert stats.rankdata(jnp.zeros((0, 3)), axis=1).shape == (0, 3)
    for name in ("stft", "welch"):
        got, want = (getattr(m, name)(np.zeros((2, 0))) for m in (signal, scipy.signal))
        assert [g.shape for g in got] == [w.shape for w in want]
    assert signal.fftconvolve(V[:0], V).shape == signal.fftconvolve(V, V[:0]).shape == (0,)
    np.testing.assert_array_equal(signal.fftconvolve(M, M + 1, axes=[]), M * (M + 1))


def test_points_are_vectors_or_columns() -> None:
    at = jnp.array([0.5, 1.5])
    assert KDE(at).tolist() == KDE(at[:, None]).tolist() == KDE(at[None]).tolist()
    batch: Any = np.stack([2.0 * np.eye(2), 4.0 * np.eye(2)])
    for solve in (linalg.cho_solve, linalg.lu_solve):
        factor = linalg.cho_factor if solve is linalg.cho_solve else linalg.lu_factor
        pieces = factor(batch) if solve is linalg.lu_solve else (factor(batch)[0], factor(batch)[1])
        np.testing.assert_allclose(solve(pieces, np.ones((2, 2))), [[0.5, 0.5], [0.25, 0.25]])


def test_distributions_of_numbers_in_the_place_of_vectors() -> None:
    got = stats.multivariate_normal.logpdf(V, jnp.float32(1.0), jnp.float32(4.0))
    np.testing.assert_allclose(got, stats.norm.logpdf(V, 1.0, 2.0), rtol=1e-6)
    assert np.exp(stats.multinomial.logpmf(np.array([1, 2]), 3, np.array([0.5, 0.5]))) == pytest.approx(0.375)
    assert anima.jit(stats.multinomial.pmf)(np.array([1, 2]), 3, np.array([0.5, 0.5])) == pytest.approx(0.375)


def test_edges_of_functions_of_matrices() -> None:
    """Vectors, matrices of one number and of none, and numbers that are too large."""
    a = np.float32([[1, 2], [3, 4], [5, 7]])
    for c, mode in ((np.float32([1, 2]), "left"), (np.float32([1, 2, 3]), "right")):
        for got, want in zip(linalg.qr_multiply(a, c, mode), scipy.linalg.qr_multiply(a, c, mode), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    one = np.float32([[2]])
    for got, want in zip(linalg.rsf2csf(one, one / 2), scipy.linalg.rsf2csf(one, one / 2), strict=True):
        assert got.dtype == np.complex64
        np.testing.assert_array_equal(got, want)
    assert linalg.fiedler_companion(jnp.ones(1)).size == scipy.linalg.fiedler_companion([1.0]).size == 0
    for large in (linalg.pascal(600), linalg.pascal(1100, "lower")):
        assert np.isinf(large).any() and np.asarray(large)[5, 1] in (5, 6)
    inverse = np.asarray(linalg.invpascal(600, "lower"))
    assert {np.inf, -np.inf} <= set(inverse.ravel()) and not np.isnan(inverse).any()


def test_points_of_one_axis_and_complex_images() -> None:
    grid = np.arange(4.0)
    values = grid ** 2
    for method in ("linear", "nearest"):
        got = interpolate.RegularGridInterpolator((grid,), values, method)(np.array([0.25, 1.5, 2.75]))
        want = scipy.interpolate.RegularGridInterpolator((grid,), values, method)(np.array([0.25, 1.5, 2.75]))
        np.testing.assert_allclose(got, want)
    places = [np.array([0.5, 2.25])]
    image = np.arange(4) * (1 + 2j)
    np.testing.assert_allclose(ndimage.map_coordinates(image, places, 1),
                               scipy.ndimage.map_coordinates(image, places, order=1), rtol=1e-6)


def test_inverse_of_segments_without_a_boundary() -> None:
    x = np.random.default_rng(0).normal(size=70)
    spectra = scipy.signal.stft(x, window="hamming", nperseg=16)[2]
    for given in (True, False):
        got, want = (f.istft(spectra, window="hamming", nperseg=16, boundary=given) for f in (signal, scipy.signal))
        np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
