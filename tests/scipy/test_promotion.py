"""No function of `scipy` or `numpy.fft` promotes types or ranks of its own, and none widens float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.scipy import cluster, fft, integrate, interpolate, ndimage, optimize, signal, special as sp
from anima.scipy.sparse import linalg
from anima.scipy.spatial.transform import Rotation, Slerp

REFUSED = (TypeError, ValueError, NotImplementedError)
X = np.linspace(0.2, 2.0, 12, dtype=np.float32)
M, U, C = X.reshape(3, 4), X / 3, (X + 1j * X).astype(np.complex64)
EYE = np.eye(12, dtype=np.float32) * 2
Call = Callable[[], Any]
CALLS: dict[str, Call] = {
    **{f"special.{n}": lambda n=n: getattr(sp, n)(U) for n in (
        "dawsn", "entr", "erf", "erfcx", "erfinv", "exp1", "expi", "expit", "factorial", "fresnel", "gamma", "gammaln",
        "gammasgn", "i0", "i1", "log_ndtr", "log_softmax", "loggamma", "logit", "ndtr", "ndtri", "sici", "softmax",
        "spence", "wofz", "logsumexp")},
    **{f"special.{n}": lambda n=n: getattr(sp, n)(X + 1, U) for n in (
        "beta", "betaln", "boxcox", "boxcox1p", "comb", "expn", "gammainc", "kl_div", "owens_t", "poch", "rel_entr",
        "xlogy", "xlog1py", "zeta")},
    **{f"complex {n}": lambda n=n: getattr(sp, n)(C) for n in ("wofz", "erfcx", "gamma", "loggamma", "expit")},
    "polygamma": lambda: sp.polygamma(jnp.arange(12), X), "multigammaln": lambda: sp.multigammaln(X + 4, 3),
    "bessel_jn": lambda: sp.bessel_jn(M, v=3), "hyp1f1": lambda: sp.hyp1f1(X, X, X),
    "hyp2f1": lambda: sp.hyp2f1(X, X, X, U),
    "sph_harm_y": lambda: sp.sph_harm_y(jnp.array([2]), jnp.array([1]), X[:1], X[:1], n_max=3),
    "hyp1f1 in a": lambda: anima.grad(lambda a: sp.hyp1f1(a, X, X).sum())(X),
    "boxcox in lmbda": lambda: anima.grad(lambda a: sp.boxcox(X, a).sum())(X),
    "bessel_jn in z": lambda: anima.grad(lambda z: sp.bessel_jn(z, v=2).sum())(X),
    "dct": lambda: fft.dct(M), "idct": lambda: fft.idctn(M, norm="ortho"), "dct of C": lambda: fft.dct(C),
    **{f"fft.{n}": lambda n=n: getattr(jnp.fft, n)(M, norm="ortho") for n in ("fft", "rfft", "ihfft", "fft2", "rfftn")},
    "irfft": lambda: jnp.fft.irfft(C), "hfft": lambda: jnp.fft.hfft(C), "fftshift": lambda: jnp.fft.fftshift(M),
    "rfft in x": lambda: anima.grad(lambda v: jnp.abs(jnp.fft.rfft(v)).sum())(X),
    "convolve": lambda: signal.convolve(X, U[:3]), "correlate2d": lambda: signal.correlate2d(M, M[:2, :2]),
    "fftconvolve": lambda: signal.fftconvolve(M, M[:2, :2], "same"), "detrend": lambda: signal.detrend(M, bp=2),
    "stft": lambda: signal.stft(M, nperseg=2)[2], "welch": lambda: signal.welch(M, nperseg=4)[1],
    "csd": lambda: signal.csd(M, M + 1, nperseg=2, average="median")[1],
    "istft": lambda: signal.istft(signal.stft(M, nperseg=2)[2])[1],
    "images": lambda: ndimage.map_coordinates(M, [X[:3], X[:3]], 1, "reflect"),
    "images of integers": lambda: ndimage.map_coordinates(jnp.arange(12).reshape(3, 4), [X[:3], X[:3]], 1),
    "grids": lambda: interpolate.RegularGridInterpolator((X[:3], X[:4]), M[..., None])((X, U)),
    "vq": lambda: cluster.vq.vq(M, M[:2]), "trapezoid": lambda: integrate.trapezoid(M, X[:4]),
    "bfgs": lambda: optimize.minimize(lambda v: jnp.sum((v - 1) ** 2), X[:3], method="BFGS")[:6],
    "lbfgs": lambda: optimize.minimize(lambda v: jnp.sum((v - 1) ** 4), X[:3],
                                       method="l-bfgs-experimental-do-not-rely-on-this")[:5],
    "cg": lambda: linalg.cg(EYE, X), "bicgstab": lambda: linalg.bicgstab(EYE, X, M=lambda v: v * 2),
    "gmres": lambda: linalg.gmres(EYE.astype(np.complex64), C, solve_method="incremental")[0],
    **{n: lambda n=n: getattr(Rotation.from_quat(M), n)() for n in (
        "as_quat", "as_matrix", "as_mrp", "as_rotvec", "inv", "magnitude", "mean")},
    "as_euler": lambda: Rotation.from_quat(M).as_euler("ZXZ", degrees=True),
    "apply": lambda: Rotation.from_quat(M).apply(M[0, :3]),
    "from_euler": lambda: Rotation.from_euler("xyz", M[:, :3], True),
    "product": lambda: Rotation.from_quat(M) * Rotation.from_quat(M[0]),
    "from_matrix": lambda: Rotation.from_matrix(Rotation.from_quat(M).as_matrix()),
    "from_rotvec": lambda: Rotation.from_rotvec(M[:, :3], degrees=True),
    "from_mrp": lambda: Rotation.from_mrp(M[:, :3]),
    "Slerp": lambda: Slerp.init(X[:3], Rotation.from_quat(M))(X)}


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with anima.enable_x64(True), anima.numpy_dtype_promotion("strict"), anima.numpy_rank_promotion("raise"):
        yield


@pytest.mark.parametrize("name", CALLS)
def test_types_and_ranks_are_those_given(name: str) -> None:
    for leaf in anima.tree_util.tree_leaves(CALLS[name]()):
        assert leaf.dtype not in (np.float64, np.complex128)


# What is not of 16 bits.
WIDE = {*(f"special.{n}" for n in ("log_ndtr", "ndtr", "ndtri", "spence")), "sph_harm_y", "fft.rfft", "fft.ihfft",
        "fft.rfftn", "rfft in x", "fftconvolve", "stft", "welch", "csd", "istft", "cg", "bicgstab", "mean"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [n for n in CALLS if n not in ("bfgs", "lbfgs")])
def test_small_types_lose_no_more_digits_than_they_have(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {k: np.asarray(globals()[k]) for k in "XMU"}
    rounded = {k: np.asarray(jnp.asarray(x).astype(dtype)) for k, x in given.items()}
    results = []
    for operands in ({k: x.astype("f4") for k, x in rounded.items()}, rounded):
        for k, x in operands.items():
            monkeypatch.setitem(globals(), k, x)
        if name in WIDE and operands is rounded:
            with pytest.raises(REFUSED):
                CALLS[name]()
            return
        results.append(anima.tree_util.tree_leaves(CALLS[name]()))
    for want, got in zip(*results, strict=True):
        assert got.dtype.itemsize <= want.dtype.itemsize
        scale = max(1, np.abs(np.asarray(want)).max(initial=0))
        np.testing.assert_allclose(np.asarray(got, "c16"), want, rtol=0, atol=6 * float(jnp.finfo(dtype).eps) * scale)
