"""Random steps of convolutions, windows, Fourier transforms, and linear algebra of batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima import lax
from anima.scipy.linalg import expm
from tests.laws.random_operations import Builder
from tests.op_records import INTS

LAYOUTS = {1: (("NCH", "OIH", "NCH"), ("NHC", "HIO", "NHC"), ("HNC", "IOH", "CNH")),
           2: (("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("HCNW", "WIOH", "CWHN"))}


def known(x: Any) -> Any:
    """NaN as 0: whether it is multiplied by what pads and dilates, and how LAPACK treats it, is nobody's law."""
    return jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), x)


def convolution(b: Builder) -> None:
    """Convolutions of any layout, strides, dilations, padding and groups, of whole numbers and of floats."""
    r = b.rng
    rank = r.choice((1, 1, 2))
    dtype = b.dtype(("int32", "int8", "float32", "float32", "float64", "complex64", "bfloat16"))
    whole = dtype in INTS
    layout = r.choice(LAYOUTS[rank])
    groups, inputs, outputs = r.choice((1, 1, 2, 3)), r.choice((0, 1, 2, 3, 8)), r.choice((1, 2, 3, 8))
    by_feature = r.random() < 0.7
    batch = r.choice((0, 1, 2, 3)) * (1 if by_feature else groups)
    sizes = {"N": batch, "C": inputs * (groups if by_feature else 1)}
    taps = {"I": inputs, "O": outputs * groups}
    for axis in "HW"[:rank]:
        sizes[axis], taps[axis] = r.choice((1, 2, 3, 7, 8, 9, 17)), r.choice((1, 1, 2, 3, 5))
    several = {"window_strides": (1, 1, 2, 3), "lhs_dilation": (1, 1, 1, 2), "rhs_dilation": (1, 1, 2)}
    options: dict[str, Any] = {name: tuple(r.choice(among) for _ in range(rank)) for name, among in several.items()}
    least = 0 if 1 in (sizes["H"], sizes.get("W")) else -1
    given = [(r.randint(least, 3), r.randint(least, 3)) for _ in range(rank)]
    options["padding"] = r.choice(["SAME", "VALID", given, given, given])
    if isinstance(options["padding"], str):
        options["lhs_dilation"] = (1,) * rank
    options["feature_group_count" if by_feature else "batch_group_count"] = groups
    shapes = [tuple(counts[axis] for axis in letters) for counts, letters in zip((sizes, taps), layout, strict=False)]
    terms = max(1, math.prod(taps.values()) // max(1, taps["O"]))
    if dtype == "bfloat16" and terms > 20:
        return
    x, w = (b.need(shape, dtype, exact=whole) for shape in shapes)

    def run(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(known(x), known(w), dimension_numbers=layout, **options)

    label = f"conv[{layout}, {options}]"
    if whole:
        b.add(label, run, [x, w], True)
    else:
        bound = 1 / math.sqrt(terms)
        b.rounded(label, run, [b.tame(x, -bound, bound), b.tame(w, -bound, bound)])


def transposed(b: Builder) -> None:
    """Convolutions transposed, patches, and NumPy's own."""
    r, dtype = b.rng, b.dtype(("float32", "float64"))
    x = b.tame(b.need((2, r.choice((1, 4, 9)), 3), dtype, exact=False), -1, 1)
    w = b.tame(b.need((r.choice((1, 2, 3)), 3, 2), dtype, exact=False), -0.3, 0.3)
    stride, mode = r.choice((1, 2, 3)), r.choice(("full", "same", "valid"))
    runs: dict[str, Callable[[Any, Any], Any]] = {
        "transpose": lambda x, w: lax.conv_transpose(x, w, (stride,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")),
        "patches": lambda x, w: lax.conv_general_dilated_patches(x, (2,), (stride,), "SAME",
                                                                 dimension_numbers=("NHC", "HIO", "NHC")),
        "convolve": lambda x, w: jnp.convolve(x.ravel(), w.ravel(), mode),
        "correlate": lambda x, w: jnp.correlate(x.ravel(), w.ravel(), mode)}
    kind = r.choice(sorted(runs))
    b.rounded(f"{kind}[{stride}, {mode}]", lambda x, w: runs[kind](known(x), known(w)), [x, w])


def _ends(dtype: str) -> tuple[float, float]:
    """What is below and above all numbers."""
    if dtype in INTS:
        info = jnp.iinfo(dtype)
        return info.min, info.max
    return -np.inf, np.inf


def pooling(b: Builder) -> None:
    """Sums and extremes of windows of any sizes, strides, dilations and padding."""
    r = b.rng
    k = b.some(lambda t: 0 < len(t.shape) < 4 and t.dtype in (*INTS, "float32", "float64") and t.size < 1000)
    t = b.types[k]
    kind = r.choice(("sum", "max", "min"))
    options = {name: tuple(r.choice(among) for _ in t.shape) for name, among in (
        ("window_dimensions", (1, 2, 3)), ("window_strides", (1, 1, 2)), ("base_dilation", (1, 1, 2)),
        ("window_dilation", (1, 1, 2)))}
    padding = [(r.randint(0, 2), r.randint(0, 2)) for _ in t.shape]
    whole = t.dtype in INTS
    least = np.array(_ends(t.dtype)[kind == "min"]).astype(t.dtype) if kind != "sum" else np.zeros((), t.dtype)
    combine = {"sum": lax.add, "max": lax.max, "min": lax.min}[kind]

    def run(x: Any) -> Any:
        return lax.reduce_window(x, least, combine, padding=padding, **options) + 0  # the sign of a zero is free

    label = f"reduce_window[{kind}, {options}, {padding}]"
    if t.exact and (whole or kind != "sum"):
        b.add(label, run, [k], True)
    else:
        share = 0.3 if kind == "sum" else 1.0
        b.rounded(label, run, [b.tame(k, -share, share)])


def spectrum(b: Builder) -> None:
    """Fourier transforms along one axis or two, of any size, cut or filled up."""
    r = b.rng
    kind = r.choice(("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "rfftn", "fftshift"))
    real = kind in ("rfft", "ihfft", "rfftn")
    dtype = b.dtype(("float32", "float64") if real else ("float32", "complex64", "complex128"))
    shape = r.choice([(1,), (5,), (8,), (3, 4), (2, 9), (0, 4), (2, 3, 4)])
    norm = r.choice(("ortho", "ortho", "forward"))
    axis, n = r.randrange(len(shape)), r.choice((None, None, 1, 4, 7))
    if shape[axis] == 0 or (kind in ("irfft", "hfft") and shape[axis] == 1 and n is None) or (
            len(shape) == 1 and kind in ("fft2",)) or (0 in shape and kind in ("fft2", "rfftn")):
        return
    x = b.tame(b.need(shape, dtype, exact=False), -1, 1)
    transform = getattr(jnp.fft, kind)
    runs: dict[str, Callable[[Any], Any]] = {
        "fft2": lambda x: transform(x, norm=norm), "rfftn": lambda x: transform(x, norm=norm),
        "fftshift": lambda x: jnp.fft.ifftshift(jnp.fft.fft(jnp.fft.fftshift(x, axis), axis=axis, norm=norm), axis)}
    run = runs.get(kind, lambda x: transform(x, n, axis, norm))
    label = f"{kind}[{n}, {axis}, {norm}]"

    def bounded(x: Any) -> Any:
        return run(known(x)) / math.sqrt(math.prod(shape) + 7)

    b.rounded(label, bounded, [x])


def batches(b: Builder) -> None:
    """Functions of stacks of matrices whose results are unique, real and complex."""
    r = b.rng
    n, lead = r.choice((1, 2, 3, 4, 5)), r.choice([(), (0,), (1,), (3,), (2, 2)])
    dtype = b.dtype(("float32", "float64", "complex64"))
    x = b.tame(b.need((*lead, n, n), dtype, exact=False), -1, 1)
    power = r.choice((-1, 0, 2, 3))

    def near_one(x: Any) -> Any:
        return known(x) / (6 * n) + jnp.eye(n, dtype=x.dtype)

    def symmetric(x: Any) -> Any:
        x = near_one(x)
        return (x + jnp.conj(jnp.matrix_transpose(x))) / 2

    def rebuilt(x: Any) -> Any:
        w, v = jnp.linalg.eigh(symmetric(x))
        return (v * jnp.exp(w)[..., None, :].astype(v.dtype)) @ jnp.conj(jnp.matrix_transpose(v))

    runs: dict[str, Callable[[Any], Any]] = {
        "qr": lambda x: jnp.abs(jnp.linalg.qr(near_one(x), mode="r")), "pinv": lambda x: jnp.linalg.pinv(near_one(x)),
        "power": lambda x: jnp.linalg.matrix_power(near_one(x), power), "expm": lambda x: expm(near_one(x)),
        "slogdet": lambda x: jnp.linalg.slogdet(near_one(x))[1], "eigh": rebuilt,
        "cholesky": lambda x: jnp.linalg.cholesky(symmetric(x)),
        "solve": lambda x: jnp.linalg.solve(near_one(x), near_one(jnp.matrix_transpose(x))),
        "lu": lambda x: lax.linalg.lu(near_one(x) + 2 * jnp.eye(n, dtype=x.dtype))[0],
        "lstsq": lambda x: jnp.linalg.lstsq(near_one(x), near_one(x)[:, :1])[0] if not lead else x,
        "tridiagonal": lambda x: lax.linalg.tridiagonal_solve(
            _off(x, -1), jnp.ones_like(x[..., 0]) * 2, _off(x, 1), near_one(x)) if n > 1 else x,
        "norm": lambda x: jnp.linalg.norm(near_one(x), axis=(-2, -1))}
    kind = r.choice(sorted(runs))
    b.rounded(f"batches.{kind}[{lead}]", runs[kind], [x], smooth=kind not in ("qr", "eigh"))



def _off(x: Any, k: int) -> Any:
    """A diagonal beside the main one, at full length: 0 where there is none."""
    flat = jnp.diagonal(known(x), k, -2, -1) / 4
    zero = jnp.zeros_like(x[..., 0, :1])
    return jnp.concatenate([zero, flat] if k < 0 else [flat, zero], -1)


SIGNALS: tuple[Callable[[Builder], None], ...] = (convolution,) * 2 + (transposed, pooling, spectrum, batches)
