"""The cross product of operands and arguments against SciPy: ends of domains, parameters that are none, sizes 0 to 3,
ties, NaN, odd and even lengths.

A row of the table is a call with holes; see `tests/grids.py`. Operands are float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.cluster.vq
import scipy.fft
import scipy.integrate
import scipy.interpolate
import scipy.linalg
import scipy.ndimage
import scipy.signal
import scipy.special
import scipy.stats

import anima
import anima.scipy
from anima.scipy import fft, integrate, interpolate, linalg, ndimage, signal, special, stats
from anima.scipy.cluster import vq
from tests.grids import Row, check_row

RNG = np.random.default_rng(0)
NAN, INF = np.nan, np.inf
NUMBERS = np.array([-3.7, -1.0, -0.4, -0.0, 0.0, 1e-9, 0.3, 0.5, 1.0, 1.5, 2.0, 5.0, 17.0, 30.0, NAN])
SYMMETRIC = np.array([[2.0, 1, 0], [1, 3, -1], [0, -1, 1]])
OPERANDS = {
    "f_all": NUMBERS, "f_pos": NUMBERS[5:-1], "f_unit": np.array([0.0, 0.2, 0.5, 0.9, 1.0]),
    "f_counts": np.array([-1.0, 0, 0.5, 1, 2, 3, NAN]), "f_line": np.array([-2.5, -0.5, 0.0, 0.2, 0.7, 1.0, 2.5, NAN]),
    "counts": np.arange(-2.0, 9), "n": np.arange(5)[:, None], "big": np.array([25.0, 60.0]),
    "f0": np.zeros(0), "f1": np.array([2.0]), "f2": np.array([1.0, -3]), "f3": np.array([1.0, 4, -2]),
    "f5": np.array([3.0, 1, 3, 1, 2]), "f34": RNG.integers(-2, 3, (3, 4)).astype(float),
    "c3": np.array([1 + 2j, -1j, 3]),
    "c_cut": np.array([complex(re, im) for re in (-2.5, -0.5, 0.5, 2.5) for im in (0.0, -0.0, 1e-9, 0.75)]),
    "f_3d": np.random.default_rng(1).integers(-2, 3, (2, 4, 3)).astype(float),
    "f_nan": np.array([NAN, 1, NAN, 1, NAN, 0]), "f_nans": np.array([[NAN, 1, NAN], [-1.0, NAN, -1]]),
    "i5": np.array([2, 0, 2, 2, 0]), "i34": RNG.integers(0, 3, (3, 4)),
    "f_s": SYMMETRIC, "f_a": RNG.standard_normal((3, 3)), "c_a": RNG.standard_normal((3, 3)) + 1j, "f_eye": np.eye(3),
    "f_jordan": np.array([[4.0, 1, 0], [0, 4, 2], [0, 0, 1]]), "f_00": np.zeros((0, 0)), "f_11": np.array([[4.0]]),
    "f_x": RNG.standard_normal(100), "f_y": RNG.standard_normal(90), "f_2x": RNG.standard_normal((2, 60)),
    "f_at": np.array([[2.75, 0.75, 2.75, -1.25, 9.75], [3.5, 1.5, 3.6, 8.75, -0.25]]), "f_k": RNG.standard_normal(6),
    "f_image": RNG.standard_normal((4, 5)), "i_image": RNG.integers(-9, 9, (4, 5)),
}
FLAGS = ["False", "True"]
PLACES = [0, 1, 2, -1, -2, -3]  # of an array of three axes: what exchanges two looks right for fewer
REALS = [-1.0, 0.0, 0.4, 1.0, 2.5, "np.nan"]
SEGMENTS = {"size": [15, 16], "nfft": ["None", 20, 21]}
ROWS: list[Row] = [
    *((f"special.{f}(f_all)", {}) for f in (
        "gammasgn", "entr", "expit", "i0e", "i1e", "ndtr", "factorial", "sici", "fresnel", "gammaln")),
    *((f"special.{f}(f_all[:, None], f_all)", {}) for f in ("xlogy", "rel_entr", "kl_div", "owens_t")),
    *((f"special.{f}(f_pos[:, None], f_pos)", {}) for f in (
        "beta", "betaln", "gammainc", "gammaincc", "xlog1py", "boxcox", "boxcox1p", "poch")),
    ("special.betainc(f_pos[:, None, None], f_pos[:, None], f_unit)", {}),
    ("special.zeta(f_pos[4:, None] + 1e-3, f_pos)", {}),
    ("special.expn(n, f_pos)", {}),
    ("special.polygamma(n, f_pos)", {}),
    ("special.comb({n}, {k}, repetition={r})", {"n": ["counts[2:, None]", 0, 4], "k": ["counts[2:]", 0, 2],
                                                "r": FLAGS}),
    ("special.comb({n}, {k})", {"n": ["counts[:, None]", "f_pos[2:, None]"], "k": ["counts", 0.5]}),
    ("special.multigammaln({a}, {d})", {"a": [1.7, "f_pos[5:]"], "d": [1, 2, 3]}),
    ("special.bernoulli({n})", {"n": [2, 3, 4, 9, 30]}),
    *((f"special.{f}({{z}})", {"z": ["c3", "c_cut", "-c_cut"]}) for f in ("loggamma", "wofz")),
    ("special.logit({x})", {"x": ["f_unit", "f_all"]}),
    ("special.hyp1f1({a}, {b}, {x})", {"a": [-2, 0.5, 3], "b": [0.5, 2.5], "x": ["f_all[:-4]"]}),
    ("special.hyp2f1({a}, {b}, {c}, {x})", {"a": [-2, 0.5], "b": [1.5, -1], "c": [2.5, 0.5],
                                            "x": ["f_unit[:-1]", "-f_unit"]}),
    ("special.sph_harm_y({n}, {m}, {t}, f3)", {"n": ["np.int32([0, 1, 2])", "np.int32([3, 3, 3])",
                                                     "np.int32([-1, 1, 2])"],
                                               "t": ["abs(f3) / 2"],
                                               "m": ["np.int32([0, 0, 0])", "np.int32([-1, 1, 2])",
                                                     "np.int32([-2, -3, 0])"]}),
    ("special.logsumexp({a}, axis={axis}, b={b}, keepdims={k}, return_sign={s})", {
        "a": ["f34", "30 * f34"], "axis": ["None", 0, -1, "(0, 1)"], "b": ["None", "f34", "abs(f34)"], "k": FLAGS,
        "s": FLAGS}),
    ("special.{name}({a}, axis={axis})", {"name": ["softmax", "log_softmax"], "a": ["f34", "1e3 * f34"],
                                          "axis": ["None", 0, -1, "(0, 1)"]}),
    # Distributions: every combination of parameters, valid or not.
    *((f"stats.{d}({x}, {{a}})", {"a": REALS}) for d, x in (
        ("gamma.logpdf", "f_line"), ("gamma.cdf", "f_line"), ("gamma.sf", "f_line"), ("chi2.pdf", "f_line"),
        ("pareto.logpdf", "f_line"), ("t.pdf", "f_line"), ("gennorm.cdf", "f_line"), ("vonmises.pdf", "f_line"),
        ("bernoulli.pmf", "f_counts"), ("geom.pmf", "f_counts"), ("poisson.pmf", "f_counts"),
        ("poisson.cdf", "f_counts"))),
    *((f"stats.{d}({x}, {{a}}, {{b}})", {"a": REALS, "b": REALS}) for d, x in (
        ("beta.pdf", "f_line"), ("beta.cdf", "f_line"), ("beta.sf", "f_line"), ("truncnorm.pdf", "f_line"),
        *((f"truncnorm.{f}", "f_line") for f in ("cdf", "sf", "logcdf", "logsf")), ("norm.sf", "f_line"),
        ("cauchy.cdf", "f_line"), ("laplace.cdf", "f_line"), ("logistic.sf", "f_line"), ("expon.cdf", "f_line"),
        ("uniform.pdf", "f_line"), ("uniform.cdf", "f_line"))),
    *((f"stats.{d}(f_counts, {{n}}, {{p}})", {"n": [-1, 0, 2, 2.5, 5], "p": REALS})
      for d in ("binom.pmf", "nbinom.pmf")),
    ("stats.betabinom.pmf(f_counts, {n}, {a}, {b})", {"n": [-1, 0, 2, 2.5, 5], "a": [-1, 0, 2, "np.nan"],
                                                      "b": [-1, 0, 0.5]}),
    *((f"stats.{d}.{f}(big)", {}) for d in ("gumbel_r", "gumbel_l") for f in ("logsf", "logcdf", "logpdf")),
    ("stats.multinomial.pmf({x}, {n}, {p})", {
        "x": ["np.array([1, 2, 0])", "np.array([3, 0, 0])", "np.array([-1, 4, 0])"], "n": [3, 0],
        "p": [f"np.array([{p}])" for p in (
            "0.2, 0.3, 0.5", "0, 0.5, 0.5", "1.0, 0, 0", "1.2, -0.2, 0.0", "1.5, 0, 0")]}),
    ("stats.dirichlet.logpdf({x}, {a})", {
        "x": ["np.array([0.2, 0.3, 0.5])", "np.array([0.2, 0.3])", "np.array([[0.1, 0.4], [0.5, 0.2]])"],
        "a": ["np.array([0.5, 1.5, 2.5])", "np.array([3.0, 1.0, 1.0])"]}),
    ("stats.mode({a}, axis={axis}, keepdims={k})", {
        "a": ["f5", "f34", "i34", "i5", "f1", "f_nan", "f_nans"], "k": FLAGS,
        "axis": ["None", 0, 1, -1]}),
    ("stats.rankdata({a}, '{method}', axis={axis})", {
        "a": ["f5", "f34", "i34", "f1", "f_nan"], "method": ["average", "min", "max", "dense", "ordinal", "no"],
        "axis": ["None", 0, 1, -1]}),
    ("stats.sem({a}, axis={axis}, ddof={ddof}, nan_policy='{policy}')", {
        "a": ["f5", "f34", "i34", "f_nan"], "axis": ["None", 0, -1], "ddof": [0, 1, 2],
        "policy": ["propagate", "omit"]}),
    # Matrices.
    ("linalg.toeplitz({c}, {r})", {"c": ["f1", "f3", "c3"], "r": ["None", "f1", "f2", "c3"]}),
    ("linalg.hankel({c}, {r})", {"c": ["f1", "f3", "c3"], "r": ["None", "f1", "f2", "c3"]}),
    ("linalg.{name}({c})", {"name": ["circulant", "companion", "fiedler", "fiedler_companion"],
                            "c": ["f2", "f3", "f5", "c3"]}),
    ("linalg.leslie({f}, {s})", {"f": ["f1", "f2", "f3"], "s": ["f1", "f2", "f0"]}),
    ("linalg.convolution_matrix({a}, {n}, '{mode}')", {"a": ["f0", "f1", "f3", "c3", "f5"], "n": [0, 1, 2, 3, 4, 7],
                                                       "mode": ["full", "same", "valid", "no"]}),
    ("linalg.{name}({n})", {"name": ["hilbert", "invhilbert", "pascal", "invpascal"], "n": [1, 2, 3, 6]}),
    ("linalg.{name}({n}, '{kind}')", {"name": ["pascal", "invpascal"], "n": [1, 2, 5],
                                      "kind": ["symmetric", "lower", "upper", "no"]}),
    ("linalg.hadamard({n})", {"n": [-2, 0, 1, 2, 3, 8]}),
    ("linalg.helmert({n}, {full})", {"n": [1, 2, 5], "full": FLAGS}),
    ("linalg.dft({n}, {scale})", {"n": [1, 2, 3, 8], "scale": ["None", "'sqrtn'", "'n'", "'no'"]}),
    ("linalg.block_diag({a}, {b})", {"a": ["f_a", "f3", "f_11", "f_00"], "b": ["c_a", "f2", "f_11"]}),
    ("linalg.{name}({a})", {"name": ["expm", "det"], "a": ["f_a", "c_a", "f_eye", "f_jordan", "0 * f_a", "40 * f_s",
                                                           "f_11"]}),
    ("linalg.expm_frechet({a}, {e}, method={m}, compute_expm={c})", {
        "a": ["f_a", "c_a"], "e": ["f_s", "c_a"], "m": ["None", "'SPS'", "'blockEnlarge'", "'no'"], "c": FLAGS}),
    ("linalg.sqrtm({a})", {"a": ["c_a", "f_eye", "f_jordan", "f_s", "f_11"]}),
    ("linalg.funm({a}, {f})", {"a": ["f_a", "c_a", "f_s", "f_11", "f_eye"],
                               "f": ["lambda x: x * x", "lambda x: 2 * x"]}),
    ("linalg.solve({a}, {b}, lower={lower}, assume_a='{kind}')", {
        "a": ["f_s", "f_s + 3 * f_eye"], "b": ["f3", "f34", "c3"], "lower": FLAGS,
        "kind": ["gen", "sym", "her", "pos"]}),
    ("linalg.solve_triangular({a}, {b}, trans={trans}, lower={lower}, unit_diagonal={unit})", {
        "a": ["f_s", "c_a"], "b": ["f3", "f34"], "trans": [0, 1, 2, "'T'"], "lower": FLAGS, "unit": FLAGS}),
    ("linalg.lu_solve(lib.linalg.lu_factor({a}), {b}, trans={trans})", {"a": ["f_s", "c_a"], "b": ["f3", "f34"],
                                                                        "trans": [0, 1, 2, 3]}),
    # Signals.
    ("signal.{name}({a}, {b}, '{mode}', '{method}')", {
        "name": ["convolve", "correlate"], "a": ["f1", "f2", "f5", "c3"], "b": ["f1", "f2", "f5", "c3"],
        "mode": ["full", "same", "valid", "no"], "method": ["direct", "fft"]}),
    ("signal.fftconvolve({a}, {b}, '{mode}', axes={axes})", {
        "a": ["f_image"], "b": ["f34", "f_image[:1]"], "mode": ["full", "valid"],
        "axes": ["None", 0, -1, "[0, 1]"]}),
    ("signal.{name}({a}, {b}, '{mode}')", {"name": ["convolve2d", "correlate2d"], "a": ["f_image", "f_11"],
                                           "b": ["f_image[:2, :3]", "f_11", "f_a"], "mode": ["full", "same", "valid"]}),
    ("signal.detrend({a}, axis={axis}, type='{type}', bp={bp})", {
        "a": ["f_2x", "f_x", "f_2x.T"], "axis": [0, -1], "type": ["linear", "constant"], "bp": [0, 1, "[1, 7]", 500]}),
    *(("signal.welch({a}, fs={fs}, nperseg={size}, nfft={nfft}, noverlap={o}, average='{average}', "
       "scaling='{scaling}')", {"fs": [2.0], **more}) for more in (
        {**SEGMENTS, "a": ["f_x", "f_2x"], "o": ["None", 3], "average": ["mean"], "scaling": ["density"]},
        {"size": [15], "nfft": [20], "a": ["f_2x"], "o": ["None", 3], "average": ["mean", "median"],
         "scaling": ["density", "spectrum"]})),
    *(("signal.csd(f_x, f_y, nperseg={size}, nfft={nfft}, detrend={d}, return_onesided={one}, average='{average}')",
       more) for more in ({**SEGMENTS, "d": ["False"], "one": FLAGS, "average": ["mean"]},
                          {"size": [16], "nfft": [21], "d": ["False", "'linear'"], "one": FLAGS,
                           "average": ["mean", "median"]})),
    *(("signal.stft({a}, nperseg={size}, nfft={nfft}, noverlap={o}, boundary={b}, padded={p})", more) for more in (
        {**SEGMENTS, "a": ["f_x", "f_2x"], "o": ["None", 3], "b": ["'zeros'"], "p": ["True"]},
        {"size": [15, 16], "nfft": [21], "a": ["f_2x"], "o": [3],
         "b": ["None", "'zeros'", "'even'", "'odd'", "'constant'"], "p": FLAGS})),
    ("signal.istft(lib.signal.stft(f_2x, fs=2.0, nperseg={size}, nfft={nfft}, noverlap={o})[2], fs=2.0, "
     "nperseg={size}, nfft={nfft}, noverlap={o})[1]", {**SEGMENTS, "o": ["None", 3]}),
    ("fft.{name}({a}, n={n}, norm={norm})", {
        "name": ["dct", "idct"], "a": ["f1", "f2", "f3", "f5", "f34", "c3", "i5"], "n": ["None", 1, 2, 4, 7, 0],
        "norm": ["None", "'ortho'"]}),
    ("fft.{name}(f34, s={s}, axes={axes}, norm={norm})", {
        "name": ["dctn", "idctn"], "s": ["None", "[3]", "[2, 5]"], "axes": ["None", "[0]", "[-1]", "[1, 0]"],
        "norm": ["None", "'ortho'"]}),
    ("ndimage.map_coordinates({x}, {at}, order={order}, mode='{mode}')", {
        "x": ["f_image", "i_image"], "at": ["f_at", "f_at - 0.5"], "order": [0, 1],
        "mode": ["nearest", "mirror", "reflect"]}),
    ("interpolate.RegularGridInterpolator({grid}, {v}, '{method}', False, {fill})({at})", {
        "grid": ["(f_unit[:4], f_unit)"], "v": ["f_image", "i_image"], "method": ["linear", "nearest"],
        "fill": ["None", "np.nan", 7.0],
        "at": ["np.array([[0.1, 1.0], [0.9, 0.0], [0.91, 0.5]])", "np.zeros((2, 1, 2))",
               "np.zeros((2, 3))", "(0.3, 0.7)", "(f_unit[:4, None] * 0.9, f_unit)"]}),
    ("vq.vq({obs}, {codes})", {"obs": ["f34", "f_image", "f5", "f_a", "f34[:, :1]"],
                               "codes": ["f34[:2]", "f_s", "f34[:, :1]", "f3", "f_image[:1] + 1"]}),
    ("integrate.trapezoid({y}, {x}, dx={dx}, axis={axis})", {"y": ["f34"], "x": ["None", "f34", "f1"],
                                                             "dx": [1.0, 0.5], "axis": [0, -1]}),
    # Every axis of three.
    ("stats.{f}, axis={axis})", {"axis": ["None", *PLACES], "f": [
        "mode(f_3d, keepdims=True", "mode(f_3d", "sem(f_3d", "sem(f_3d, keepdims=True", "sem(f_3d, nan_policy='omit'",
        *(f"rankdata(f_3d, '{m}'" for m in ("average", "min", "max", "dense", "ordinal"))]}),
    ("special.{f}(f_3d, axis={axis})", {"f": ["logsumexp", "softmax", "log_softmax"],
                                        "axis": ["None", *PLACES, "(0, 2)", "(2, 1)", "(-3, 1)"]}),
    ("special.logsumexp(f_3d, axis={axis}, b=f_3d, keepdims={k}, return_sign=True)", {
        "axis": [*PLACES, "(0, 2)"], "k": FLAGS}),
    ("signal.{f}, axis={axis})", {"axis": PLACES, "f": ["detrend(f_3d", "detrend(f_3d, type='constant'",
                                                        "detrend(f_3d, bp=[1]"]}),
    ("signal.{f}(f_3d, nperseg=2, axis={axis})", {"axis": PLACES, "f": ["welch", "stft"]}),
    ("signal.csd(f_3d, f_3d[::-1], nperseg=2, axis={axis})", {"axis": PLACES}),
    ("signal.fftconvolve(f_3d, f_3d[:, :2, :2], '{mode}', axes={axes})", {
        "mode": ["full", "same", "valid"], "axes": ["None", "[1, 2]", "[2, 1]", "[-1, -2]", "1", "[0, 1]"]}),
    ("signal.{name}(f_3d, f_3d[:, 1:3, :1], '{mode}')", {"name": ["convolve", "correlate"],
                                                         "mode": ["full", "same", "valid"]}),
    ("fft.{name}(f_3d, n={n}, axis={axis})", {"name": ["dct", "idct"], "n": ["None", 2, 5], "axis": PLACES}),
    ("fft.{name}(f_3d, s={s}, axes={axes})", {"name": ["dctn", "idctn"], "s": ["None", "[2, 5]"],
                                              "axes": ["None", "[0, 2]", "[2, 0]", "[-2, -3]", "[1, 2]"]}),
    ("integrate.trapezoid(f_3d, {x}, axis={axis})", {"x": ["None", "f_3d"], "axis": PLACES}),
    ("ndimage.map_coordinates(f_3d, f_3d[:1].repeat(3, 0) * {by}, order={order}, mode='{mode}')", {
        "by": [1, 1.3], "order": [0, 1], "mode": ["nearest", "mirror", "reflect"]}),
]
KNOWN = ("linalg.funm", "special.bernoulli", "linalg.solve(", "special.sph_harm_y")


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """64-bit types on."""
    with anima.enable_x64(True):
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=[r[0] for r in ROWS])
def test_every_combination_is_as_in_scipy(row: Row) -> None:
    ours = SimpleNamespace(fft=fft, integrate=integrate, interpolate=interpolate, linalg=linalg, ndimage=ndimage,
                           signal=signal, special=special, stats=stats, vq=vq)
    theirs = SimpleNamespace(**{name: getattr(scipy, name) for name in vars(ours) if name != "vq"},
                             vq=scipy.cluster.vq)
    check_row(row, theirs, ours, OPERANDS, KNOWN, rtol=1e-9, atol=1e-11)
