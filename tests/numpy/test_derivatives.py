"""Derivatives at special points (0, ties, ends of domains, infinities), to order two, against mpmath.

Every smooth elementwise function of the public faces is in a table with its mpmath counterpart; one that is not
in it, and not among those with kinks by intention, fails a test.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mpmath
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, nn

INF, NAN = math.inf, math.nan
FACES = (jnp, nn, lax)
mpf = mpmath.mpf
Wanted = tuple[float | None, float | None]  # the first and the second derivative; None: not defined, or not tested
POINTS = (0.0, -0.0, 1e-9, -1e-9, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 30.0, -30.0)


@dataclass(frozen=True)
class Smooth:
    """A function, where it is smooth, and its (first, second) derivatives at the ends, by their limits."""

    exact: Callable[..., Any]
    low: float = -INF
    high: float = INF
    ends: dict[Any, tuple[float, ...]] = field(default_factory=dict)


def _softplus(x: Any) -> Any:
    return mpmath.log1p(mpmath.exp(x))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _i0e(x: Any) -> Any:
    return mpmath.besseli(0, x) * mpmath.exp(-abs(x))


def _i1e(x: Any) -> Any:
    return mpmath.besseli(1, x) * mpmath.exp(-abs(x))


def _sinc(x: Any) -> Any:
    return mpmath.sinc(mpmath.pi * x)


def _squareplus(x: Any) -> Any:
    return (x + mpmath.sqrt(x * x + 4)) / 2


def _gelu(x: Any) -> Any:
    return x * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpf("0.044715") * x**3))) / 2


UNARY: dict[str, Smooth] = {
    "exp": Smooth(mpmath.exp, ends={-INF: (0, 0), INF: (INF, INF)}),
    "exp2": Smooth(lambda x: mpf(2) ** x, ends={-INF: (0, 0), INF: (INF, INF)}),
    "expm1": Smooth(mpmath.expm1, ends={-INF: (0, 0), INF: (INF, INF)}),
    "log": Smooth(mpmath.log, 0, ends={0.0: (INF, -INF), INF: (0, 0)}),
    "log2": Smooth(lambda x: mpmath.log(x, 2), 0, ends={0.0: (INF, -INF), INF: (0, 0)}),
    "log10": Smooth(mpmath.log10, 0, ends={0.0: (INF, -INF), INF: (0, 0)}),
    "log1p": Smooth(mpmath.log1p, -1, ends={-1.0: (INF, -INF), INF: (0, 0)}),
    "sqrt": Smooth(mpmath.sqrt, 0, ends={0.0: (INF, -INF), INF: (0, 0)}),
    "rsqrt": Smooth(lambda x: 1 / mpmath.sqrt(x), 0, ends={0.0: (-INF, INF), INF: (0, 0)}),
    "cbrt": Smooth(lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), ends={0.0: (INF,), INF: (0, 0)}),
    "square": Smooth(lambda x: x * x, ends={INF: (INF, 2), -INF: (-INF, 2)}),
    "reciprocal": Smooth(lambda x: 1 / x, ends={0.0: (-INF, INF), INF: (0, 0)}),
    "negative": Smooth(lambda x: -x, ends={INF: (-1, 0)}),
    "deg2rad": Smooth(mpmath.radians, ends={INF: (math.pi / 180, 0)}),
    "rad2deg": Smooth(mpmath.degrees, ends={INF: (180 / math.pi, 0)}),
    "sin": Smooth(mpmath.sin), "cos": Smooth(mpmath.cos), "tan": Smooth(mpmath.tan),
    "arcsin": Smooth(mpmath.asin, -1, 1, {1.0: (INF, INF), -1.0: (INF, -INF)}),
    "arccos": Smooth(mpmath.acos, -1, 1, {1.0: (-INF, -INF), -1.0: (-INF, INF)}),
    "arctan": Smooth(mpmath.atan, ends={INF: (0,), -INF: (0,)}),
    "sinh": Smooth(mpmath.sinh, ends={INF: (INF, INF), -INF: (INF, -INF)}),
    "cosh": Smooth(mpmath.cosh, ends={INF: (INF, INF), -INF: (-INF, INF)}),
    "tanh": Smooth(mpmath.tanh, ends={INF: (0, 0), -INF: (0, 0)}),
    "arcsinh": Smooth(mpmath.asinh, ends={INF: (0,), -INF: (0,)}),
    "arccosh": Smooth(mpmath.acosh, 1, ends={1.0: (INF, -INF), INF: (0, 0)}),
    "arctanh": Smooth(mpmath.atanh, -1, 1, {1.0: (INF, INF), -1.0: (INF, -INF)}),
    "sinc": Smooth(_sinc),
    "i0": Smooth(lambda x: mpmath.besseli(0, x)),
    "sigmoid": Smooth(_sigmoid, ends={INF: (0, 0), -INF: (0, 0)}),
    "softplus": Smooth(_softplus, ends={INF: (1, 0), -INF: (0, 0)}),
    "log_sigmoid": Smooth(lambda x: -_softplus(-x), ends={INF: (0, 0), -INF: (1, 0)}),
    "silu": Smooth(lambda x: x * _sigmoid(x)),
    "mish": Smooth(lambda x: x * mpmath.tanh(_softplus(x))),
    "gelu": Smooth(_gelu),
    "squareplus": Smooth(_squareplus),
    "log1mexp": Smooth(lambda x: mpmath.log(1 - mpmath.exp(-x)), 0, ends={0.0: (INF, -INF), INF: (0, 0)}),
    "erf": Smooth(mpmath.erf, ends={INF: (0,), -INF: (0,)}),
    "erfc": Smooth(mpmath.erfc, ends={INF: (0,), -INF: (0,)}),
    "erf_inv": Smooth(mpmath.erfinv, -1, 1, {1.0: (INF, INF), -1.0: (INF, -INF)}),
    "lgamma": Smooth(lambda x: mpmath.log(abs(mpmath.gamma(x))), 0, ends={INF: (INF, 0)}),
    "digamma": Smooth(mpmath.digamma, 0, ends={INF: (0, 0)}),
    "bessel_i1e": Smooth(_i1e, ends={0.0: (0.5,), 1e-9: (0.5,), -1e-9: (0.5,)}),  # exp(-|x|) bends it
}
# Kinks by intention, or jumps, and what is made of such: their derivatives are tested by their own names.
KINKED = {"abs", "absolute", "fabs", "relu", "relu6", "elu", "celu", "selu", "leaky_relu", "hard_tanh", "hard_sigmoid",
          "hard_silu", "hard_swish", "soft_sign", "sparse_plus", "sparse_sigmoid", "bessel_i0e", "spacing", "maximum",
          "minimum", "max", "min", "fmax", "fmin", "mod", "remainder", "fmod", "rem", "copysign", "clip", "clamp",
          "heaviside"}

BINARY: dict[str, Smooth] = {
    "add": Smooth(lambda x, y: x + y), "subtract": Smooth(lambda x, y: x - y), "multiply": Smooth(lambda x, y: x * y),
    "divide": Smooth(lambda x, y: x / y),
    "power": Smooth(lambda x, y: x**y, 0),
    "hypot": Smooth(mpmath.hypot, ends={(0.0, 0.0): (0.5, 0.5), (INF, 1.0): (1, 0), (1.0, -INF): (0, -1)}),
    "logaddexp": Smooth(lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y)), ends={
        (-INF, -INF): (0.5, 0.5), (INF, INF): (0.5, 0.5), (INF, 0.0): (1, 0), (0.0, -INF): (1, 0),
        (-INF, INF): (0, 1)}),
    "logaddexp2": Smooth(lambda x, y: mpmath.log(mpf(2) ** x + mpf(2) ** y, 2), ends={
        (-INF, -INF): (0.5, 0.5), (INF, INF): (0.5, 0.5), (INF, 0.0): (1, 0), (0.0, -INF): (1, 0)}),
    "arctan2": Smooth(mpmath.atan2),
}
# Functions of which only the last operand varies: the first ones' values.
LAST: dict[str, tuple[tuple[tuple[float, ...], ...], Smooth]] = {
    "igamma": (((1.0,), (2.0,), (3.0,), (2.5,)), Smooth(lambda a, x: mpmath.gammainc(a, 0, x, regularized=True), 0)),
    "igammac": (((1.0,), (2.0,), (3.0,), (2.5,)), Smooth(lambda a, x: mpmath.gammainc(a, x, regularized=True), 0)),
    "betainc": (((1.0, 1.0), (2.0, 1.0), (1.0, 3.0), (3.0, 2.0)),
                Smooth(lambda a, b, x: mpmath.betainc(a, b, 0, x, regularized=True), 0, 1)),
    "zeta": (((2.0,), (3.5,)), Smooth(mpmath.zeta, 0)),
    "polygamma": (((0.0,), (1.0,), (2.0,)), Smooth(lambda m, x: mpmath.psi(int(m), x), 0)),
}


def public(name: str) -> Callable[..., Any]:
    return next(getattr(face, name) for face in FACES if hasattr(face, name))


def orders(f: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """First and second derivatives of a function of one number: reverse, forward, and each of each."""
    def forward(g: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: anima.jvp(g, (x,), (jnp.ones_like(x),))[1]

    return lambda x: [anima.grad(f)(x), forward(f)(x), anima.grad(anima.grad(f))(x), forward(forward(f))(x),
                      forward(anima.grad(f))(x), anima.grad(forward(f))(x)]


def check(name: str, f: Callable[[Any], Any], points: list[float], wanted: list[Wanted]) -> None:
    """All ways to the derivatives, batched, eager and compiled, and one by one."""
    x = np.array(points)
    each = anima.vmap(orders(f))
    for way, got in (("eager", each(x)), ("compiled", anima.jit(each)(x)),
                     ("single", [np.stack(v) for v in zip(*[orders(f)(p) for p in x], strict=True)])):
        for order, values in enumerate(np.asarray(g) for g in got):
            for p, value, want in zip(points, values, wanted, strict=True):
                expected = want[0 if order < 2 else 1]
                if expected is not None:
                    np.testing.assert_allclose(value, expected, rtol=2e-9, atol=1e-13,
                                               err_msg=f"{name}, {way}, way {order} of derivatives, at {p}")


def slope(exact: Callable[..., Any], at: tuple[float, ...], order: int | tuple[int, ...]) -> float:
    """A derivative by mpmath, at more digits than it loses by differences."""
    with mpmath.workdps(60):
        point = tuple(map(mpf, at))
        value = mpmath.diff(exact, point if len(point) > 1 else point[0], order)
        return float(mpmath.re(value))


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, x64: None) -> None:
    s = UNARY[name]
    inside = [p for p in POINTS if s.low < p < s.high and p not in s.ends]
    wanted: list[Wanted] = [(slope(s.exact, (p,), 1), slope(s.exact, (p,), 2)) for p in inside]
    wanted += [(values[0], values[1] if len(values) > 1 else None) for values in s.ends.values()]
    check(name, public(name), [*inside, *s.ends], wanted)


# Where a function's definition, which is followed, loses digits: near its zeros, and of a sum of opposite terms.
KEPT = {"sinc": (-0.8, 0.8), "gelu": (-1.0, INF), "squareplus": (-1.0, INF)}


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
@pytest.mark.parametrize("name", UNARY)
def test_values_everywhere(name: str, dtype: Any, x64: None) -> None:
    """Within 4 ulp, eager and compiled, on either side of each place where a method begins."""
    s, f = UNARY[name], public(name)
    low, high = KEPT.get(name, (s.low, s.high))
    sizes = np.geomspace(1e-7, 60, 50)
    x = np.concatenate([np.linspace(-3, 3, 121), sizes, -sizes, 1 + sizes]).astype(dtype)
    x = np.unique(x[(x > low) & (x < high) & (x != 0)])
    with mpmath.workdps(80):
        want = [s.exact(mpf(float(v))) for v in x]
    for way in (f, anima.jit(f)):
        for at, value, exact in zip(x, np.asarray(way(x)), want, strict=True):
            if abs(exact) < 1e30:
                ulp = np.spacing(np.abs(np.asarray(float(exact), dtype)))
                assert abs(mpf(float(value)) - exact) <= 4 * mpf(float(ulp)), (at, value, exact)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, x64: None) -> None:
    s, f = BINARY[name], public(name)
    points = [(x, y) for x, y in itertools.product((0.0, 1.0, -1.0, 2.0, 0.5), repeat=2) if x > s.low]
    if name in ("divide", "arctan2", "hypot"):
        points = [p for p in points if p[1] != 0 or (name == "hypot" and p[0] != 0)]
    if name == "arctan2":  # across its jump mpmath has no differences
        points = [(1.0, 0.0), (-2.0, 0.0), *(p for p in points if p[0] != 0 or p[1] > 0)]
    gradient, hessian = anima.grad(f, (0, 1)), anima.hessian(f, (0, 1))
    arrays = [np.array(v) for v in zip(*points, strict=True)]
    first, second = ([np.asarray(v) for v in anima.tree.leaves(anima.jit(anima.vmap(g))(*arrays))]
                     for g in (gradient, hessian))
    for i, (x, y) in enumerate(points):
        want = [slope(s.exact, (x, y), o) for o in ((1, 0), (0, 1), (2, 0), (1, 1), (1, 1), (0, 2))]
        for got in ([v[i] for v in (*first, *second)], anima.tree.leaves([gradient(x, y), hessian(x, y)])):
            np.testing.assert_allclose(got, want, rtol=2e-9, atol=1e-12, err_msg=f"{name} {x} {y}")
    for point, want_first in s.ends.items():
        np.testing.assert_array_equal(np.array(gradient(*point)), want_first, err_msg=f"{name} {point}")
        tangents = [anima.jvp(f, point, t)[1] for t in ((1.0, 0.0), (0.0, 1.0))]
        np.testing.assert_array_equal(np.array(tangents), want_first, err_msg=f"{name} {point}")


@pytest.mark.parametrize("name", LAST)
def test_last_operand(name: str, x64: None) -> None:
    parameters, s = LAST[name]
    for first in parameters:
        def f(x: Any, first: tuple[float, ...] = first) -> Any:
            return public(name)(*[jnp.full_like(x, v) for v in first], x)

        inside = [p for p in (0.25, 0.5, 0.75, 1.5, 4.0) if s.low < p < s.high]
        fixed = (0,) * len(first)
        wanted: list[Wanted] = [(slope(s.exact, (*first, p), (*fixed, 1)), slope(s.exact, (*first, p), (*fixed, 2)))
                                for p in inside]
        ends = ends_of(name, first)
        check(f"{name} {first}", f, [*inside, *ends], [*wanted, *ends.values()])  # type: ignore[list-item]


def ends_of(name: str, first: tuple[float, ...]) -> dict[float, tuple[float, float]]:
    """Both derivatives at the ends of the domain: those of a density and its slope."""
    if name in ("igamma", "igammac"):
        sign = 1.0 if name == "igamma" else -1.0
        return {0.0: _power_ends(first[0] - 1, -1, sign * math.gamma(first[0])), INF: (0.0, 0.0)}
    if name == "betainc":
        (a, b), size = first, math.gamma(first[0]) * math.gamma(first[1]) / math.gamma(sum(first))
        return {0.0: _power_ends(a - 1, 1 - b, size), 1.0: _power_ends(b - 1, 1 - a, size, -1)}
    return {}


def _power_ends(power: float, other: float, size: float = 1.0, direction: float = 1.0) -> tuple[float, float]:
    """x^power (1 + other x + ...) / size at 0, and its derivative, of x that goes in a direction."""
    value = 1.0 if power == 0 else 0.0 if power > 0 else INF
    change = other if power == 0 else 1.0 if power == 1 else 0.0 if power > 1 else INF
    return value / size, direction * change / size


@pytest.mark.parametrize("face", FACES, ids=lambda f: f.__name__)
def test_every_smooth_function_is_in_the_table(face: Any) -> None:
    args = np.float32([0.4, 0.3, 0.45, 0.35]), np.float32([0.7, 0.6, 0.52, 0.8])
    known = {id(getattr(f, n)) for n in (*UNARY, *BINARY, *LAST, *KINKED) for f in FACES if hasattr(f, n)}
    # What records the same equations is the same function, under the names of several faces.
    recorded = {str(anima.make_jaxpr(public(n))(*args[:1 + (n in BINARY)])) for n in (*UNARY, *BINARY)}
    for name, f in inspect.getmembers(face, callable):
        if name.startswith("_") or isinstance(f, type) or id(f) in known:
            continue
        for count in (1, 2):
            if is_smooth_elementwise(f, args[:count]):
                assert str(anima.make_jaxpr(f)(*args[:count])) in recorded, f"{face.__name__}.{name}"


def is_smooth_elementwise(f: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether it maps each element by itself, with a slope that is neither 0 nor that of the identity."""
    try:
        out = f(*args)
        if getattr(out, "shape", None) != args[0].shape or out.dtype != np.float32:
            return False
        jacobian = np.asarray(anima.jacfwd(f)(*args))
    except Exception:  # it wants something else than arrays of numbers
        return False
    diagonal = np.diag(jacobian)
    return bool(np.array_equal(np.diag(diagonal), jacobian) and diagonal.any() and not np.array_equal(out, args[0]))


# Conventions ---------------------------------------------------------------------------------------

AT_KINKS: list[tuple[str, Callable[[Any], Any], float, float]] = [
    ("abs", jnp.abs, 0.0, 1.0), ("sign", jnp.sign, 0.0, 0.0), ("relu", nn.relu, 0.0, 0.0),
    ("relu6", nn.relu6, 6.0, 0.0),
    ("elu", nn.elu, 0.0, 1.0), ("celu", nn.celu, 0.0, 1.0), ("leaky_relu", nn.leaky_relu, 0.0, 1.0),
    ("hard_tanh", nn.hard_tanh, 1.0, 1.0), ("soft_sign", nn.soft_sign, 0.0, 1.0),
    ("sparse_plus", nn.sparse_plus, 1.0, 1.0),
    ("sparse_sigmoid", nn.sparse_sigmoid, -1.0, 0.25), ("clip", lambda x: jnp.clip(x, 0.0, 1.0), 0.0, 0.5),
    ("clip above", lambda x: jnp.clip(x, 0.0, 1.0), 1.0, 0.5), ("clamp", lambda x: lax.clamp(0.0, x, 1.0), 0.0, 0.0),
    ("maximum", lambda x: jnp.maximum(x, 2.0), 2.0, 0.5), ("x**0.", lambda x: x**0.0, 0.0, 0.0),
    ("x**1.", lambda x: x**1.0, 0.0, 1.0), ("x**2", lambda x: x**2, 0.0, 0.0), ("x**.5", lambda x: x**0.5, 0.0, INF),
    ("0**x", lambda x: jnp.power(0.0, x), 2.0, 0.0), ("copysign", lambda x: jnp.copysign(x, -1.0), 2.0, -1.0),
    ("frexp", lambda x: jnp.frexp(x)[0], 3.0, 0.25), ("ldexp", lambda x: jnp.ldexp(x, 3), 0.0, 8.0)]


@pytest.mark.parametrize("name, f, at, want", AT_KINKS, ids=[k[0] for k in AT_KINKS])
def test_conventions_at_kinks(name: str, f: Callable[[Any], Any], at: float, want: float, x64: None) -> None:
    check(name, f, [at], [(want, None)])


def _weighted(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(f(x) * jnp.arange(1.0, 1 + f(x).size).reshape(f(x).shape))


OF_ARRAYS: list[tuple[Callable[[Any], Any], list[float], list[float]]] = [
    (jnp.max, [2.0, 2.0, 1.0], [0.5, 0.5, 0.0]), (jnp.min, [0.0, -0.0], [0.5, 0.5]), (jnp.prod, [0.0, 3.0], [3.0, 0.0]),
    (jnp.prod, [0.0, 0.0], [0.0, 0.0]), (jnp.cumprod, [3.0, 0.0, 2.0], [1.0, 24.0, 0.0]),
    (jnp.var, [2.0, 2.0], [0.0, 0.0]), (jnp.std, [2.0, 2.0], [NAN, NAN]), (jnp.linalg.norm, [0.0, 0.0], [NAN, NAN]),
    (jnp.sort, [2.0, 2.0, 1.0], [2.0, 3.0, 1.0]), (jnp.median, [2.0, 2.0, 1.0], [1.0, 0.0, 0.0]),
    (nn.softmax, [-INF, 0.0], [0.0, 0.0]), (nn.logsumexp, [-INF, 0.0], [0.0, 1.0]),
    (nn.logsumexp, [3.0, 3.0], [0.5, 0.5]), (nn.log_softmax, [-INF, 0.0], [1.0, -1.0]),
    (lax.cummax, [-INF, 0.0, 1.0], [1.0, 2.0, 3.0]), (lax.cummin, [INF, 0.0], [1.0, 2.0]),
    (lax.cummax, [NAN, 1.0], [1.0, 0.0]), (lambda x: lax.cummax(x, reverse=True), [1.0, 0.0, -INF], [1.0, 2.0, 3.0]),
    (jnp.nansum, [NAN, 1.0], [0.0, 1.0]), (jnp.nanmax, [NAN, 1.0, 1.0], [0.0, 0.5, 0.5])]


@pytest.mark.parametrize("f, x, want", OF_ARRAYS, ids=[str(i) for i in range(len(OF_ARRAYS))])
def test_conventions_of_arrays(f: Callable[[Any], Any], x: list[float], want: list[float], x64: None) -> None:
    g = anima.grad(_weighted(f))
    got = g(np.array(x)), anima.jit(g)(np.array(x)), anima.vmap(g)(np.array([x, x]))[1]
    for values in got:
        np.testing.assert_allclose(values, want, rtol=1e-12)


def test_running_sum_of_exponentials_from_nothing(x64: None) -> None:
    x = np.array([-INF, 0.0, 1.0])
    s = 1 / (1 + np.exp(-1.0))
    for f in (anima.hessian(_weighted(lax.cumlogsumexp)), anima.jit(anima.hessian(_weighted(lax.cumlogsumexp)))):
        bend = 3 * s * (1 - s)
        np.testing.assert_allclose(f(x), [[0, 0, 0], [0, bend, -bend], [0, -bend, bend]], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("q", [0.25, 1.0, 6.5, 40.0])
@pytest.mark.parametrize("x", [1.0625, 2.0, 3.5, 17.0, 60.0])
def test_zeta_in_its_exponent(x: float, q: float) -> None:
    f = anima.scipy.special.zeta
    with anima.enable_x64(True), mpmath.workdps(60):
        first, second = anima.grad(f), anima.jit(anima.grad(anima.grad(f)))
        both = anima.grad(anima.grad(f), 1)
        np.testing.assert_allclose(first(x, q), float(mpmath.zeta(x, q, 1)), rtol=4e-15)
        np.testing.assert_allclose(second(x, q), float(mpmath.zeta(x, q, 2)), rtol=4e-15)
        expected = -mpmath.zeta(x + 1, q) - x * mpmath.zeta(x + 1, q, 1)
        np.testing.assert_allclose(both(x, q), float(expected), rtol=2e-14)


@pytest.mark.parametrize("divisor", [0.0, -0.0, 2.0, INF])
def test_quotients_without_fraction_are_flat(divisor: float) -> None:
    x = jnp.array([-3.0, 0.0, 2.5])
    for whole in (lambda x, y: x // y, lambda x, y: jnp.divmod(x, y)[0]):
        for k in (0, 1):
            slopes = anima.grad(lambda x, y, whole=whole: jnp.sum(whole(x, y)), k)(x, jnp.full(3, divisor))
            np.testing.assert_array_equal(slopes, np.zeros(3))


def test_known_values_are_trimmed_under_differentiation() -> None:
    x = jnp.array([0.0, 2.0, 3.0, 0.0])
    np.testing.assert_array_equal(anima.grad(lambda x: jnp.sum(jnp.trim_zeros(x) ** 2))(x), [0, 4, 6, 0])
