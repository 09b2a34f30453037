"""Taylor mode: `jet` against nested `jvp`, against mpmath's series, and under every other transformation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import factorial
from typing import Any

import mpmath
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core.primitive import Primitive
from anima.experimental import jet as module
from anima.experimental.jet import jet, zero_series
from anima.sharding import Mesh, PartitionSpec as P
from tests.op_records import ELEMENTWISE, Case, Record
from tests.op_records_structural import STRUCTURAL

SMOOTH = [pytest.param(r, d, id=f"{r.name}-{d}") for r in ELEMENTWISE + STRUCTURAL for d in ("float64", "complex128")
          if d in r.dtypes and r.orders == 2 and r.name != "reduce_precision"]  # it rounds: not linear


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def nested(fun: Callable[..., Any], primals: Sequence[Any], series: Sequence[Any]) -> tuple[Any, list[list[Any]]]:
    """What `jet` gives, by as many nested `jvp` in the parameter of the curve; results as flat lists."""
    order = len(series[0])

    def along(s: Any) -> list[Any]:
        points = [x + sum(c * s ** k / factorial(k) for k, c in enumerate(cs, 1)) if len(cs) else x
                  for x, cs in zip(primals, series, strict=True)]
        return anima.tree.leaves(fun(*points))

    levels, current = [], along
    for _ in range(order):
        current = partial(lambda f, s: anima.jvp(f, (s,), (jnp.ones(()),))[1], current)
        levels.append(current(jnp.zeros(())))
    return along(jnp.zeros(())), [list(terms) for terms in zip(*levels, strict=True)]


def curve(rng: np.random.Generator, x: np.ndarray, order: int) -> list[np.ndarray]:
    """Derivatives of a random curve through x."""
    out = [rng.normal(size=x.shape) + 1j * rng.normal(size=x.shape) * (x.dtype.kind == "c") for _ in range(order)]
    return [np.asarray(t if x.dtype.kind == "c" else t.real).astype(x.dtype) for t in out]


def same(got: Any, expected: Any, tolerance: float = 1e-9) -> None:
    got, expected = anima.tree.leaves(got), anima.tree.leaves(expected)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * (1 + np.max(np.abs(b), initial=0)))


def check(fun: Callable[..., Any], primals: Sequence[Any], order: int = 4, tolerance: float = 1e-9) -> None:
    """`jet` agrees with nested `jvp` along a random curve."""
    rng = np.random.default_rng(order)
    series = [curve(rng, np.asarray(x), order) for x in primals]
    value, terms = jet(fun, primals, series)
    want, want_terms = nested(fun, primals, series)
    same(value, want, tolerance)
    same(terms, want_terms, tolerance)


# ---------------------------------------------------------------- every operation

def moving_part(record: Record, case: Case, name: str) -> tuple[Callable[..., list[Any]], list[np.ndarray]]:
    """The operation as a function of the operands that can be differentiated, and these."""
    args, params = record.draw(case, name), case.params_for(name)
    moving = [k for k, a in enumerate(args) if a.dtype.kind in "fc" and k not in record.constant]

    def fun(*xs: Any) -> list[Any]:
        full: list[Any] = list(map(jnp.asarray, args))
        for k, x in zip(moving, xs, strict=True):
            full[k] = x
        out = record.primitive.bind(*full, **params)
        outs = out if record.primitive.multiple_results else [out]
        return [y for y in outs if jnp.issubdtype(y.dtype, jnp.inexact)]

    return fun, [args[k] for k in moving]


@pytest.mark.parametrize("record,name", SMOOTH)
def test_every_operation(record: Record, name: str) -> None:
    cases = [c for c in record.cases_for(name) if c.plain]
    for case in cases[:4]:
        fun, args = moving_part(record, case, name)
        if args and all(a.size for a in args):
            order = 4 if len(args) == 1 and args[0].size == 1 else 3
            check(fun, args, order, 1e-7)


@pytest.mark.parametrize("fun", [
    jnp.linalg.cholesky, jnp.linalg.inv, jnp.linalg.det, lambda a: jnp.linalg.solve(a, a[0] * a[1]),
    lambda a: jnp.linalg.eigh(a)[0], lambda a: jnp.linalg.qr(a), lambda a: jnp.linalg.svd(a, compute_uv=False),
    lambda a: jnp.linalg.slogdet(a)[1]])
def test_linear_algebra(fun: Callable[..., Any]) -> None:
    a = np.random.default_rng(0).normal(size=(3, 3))
    check(lambda x: fun(x @ x.T + 3 * jnp.diag(jnp.arange(1.0, 4.0))), [a], 3)


MPMATH = {
    "sin": (jnp.sin, mpmath.sin), "exp": (jnp.exp, mpmath.exp), "log": (jnp.log, mpmath.log),
    "tan": (jnp.tan, mpmath.tan), "atan": (jnp.arctan, mpmath.atan), "sqrt": (jnp.sqrt, mpmath.sqrt),
    "tanh": (jnp.tanh, mpmath.tanh), "erf": (lax.erf, mpmath.erf), "asin": (jnp.arcsin, mpmath.asin),
    "pow": (lambda x: x ** 2.5, lambda x: x ** 2.5),
    "x^x": (lambda x: x ** x, lambda x: x ** x),
    "quotient": (lambda x: jnp.cos(x) / (1 + x * x), lambda x: mpmath.cos(x) / (1 + x * x))}


@pytest.mark.parametrize("name", MPMATH)
def test_coefficients_of_mpmath(name: str) -> None:
    fun, exact = MPMATH[name]
    order, x = 12, 0.7
    value, terms = jet(fun, (x,), ([1.0] + [0.0] * (order - 1),), factorial_scaled=False)
    with mpmath.workdps(40):
        want = [float(c) for c in mpmath.taylor(exact, x, order)]
    np.testing.assert_allclose([value, *terms], want, rtol=1e-11)


def test_polynomials_end() -> None:
    value, terms = jet(lambda x: x ** 3, (2.0,), ([1.0, 0.0, 0.0, 0.0],))
    assert [float(value), *map(float, terms)] == [8, 12, 12, 6, 0]
    value, terms = jet(lambda x: x ** 2.0, (0.0,), ([1.0, 0.0, 0.0],))  # a recurrence that divides by x would fail
    assert [float(value), *map(float, terms)] == [0, 0, 2, 0]


# ---------------------------------------------------------------- cost

class Identity(Primitive):
    """Counts how often it is applied; its rule applies it to a tangent, and to what it was applied to."""

    calls = 0

    def infer(self, x: Any) -> Any:
        return x

    def eval(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        return x

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self.bind(*primals), self.bind(*tangents)


class Decay(Identity):
    """exp(-x), by a rule in terms of itself."""

    def eval(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        return np.exp(-x)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self.bind(*primals), -tangents[0] * self.bind(*primals)


def test_linear_operations_are_applied_once_to_each_coefficient() -> None:
    identity = Identity("identity")
    _, terms = jet(identity.bind, (jnp.ones(3),), ([jnp.full(3, float(k)) for k in range(1, 7)],))
    assert identity.calls == 7
    assert [float(t[0]) for t in terms] == [1, 2, 3, 4, 5, 6]


def test_a_rule_that_uses_its_result_is_a_recurrence() -> None:
    decay = Decay("decay")
    _, terms = jet(decay.bind, (jnp.zeros(()),), ([1.0] + [0.0] * 9,))
    assert decay.calls == 1
    assert [float(t) for t in terms] == pytest.approx([(-1) ** k for k in range(1, 11)])


def test_cost_is_polynomial() -> None:
    """A function with a custom rule that calls it again, several times: these are all the same series."""
    calls = []

    @anima.custom_jvp
    def f(x: Any) -> Any:
        calls.append(x)
        return jnp.exp(x)

    @f.defjvp
    def f_jvp(primals: Any, tangents: Any) -> Any:
        return f(*primals), (f(*primals) + f(*primals) - f(*primals)) * tangents[0]

    _, terms = jet(f, (0.0,), ([1.0] + [0.0] * 6,))
    assert [float(t) for t in terms] == pytest.approx([1.0] * 7)
    assert len(calls) < 10


# ---------------------------------------------------------------- control flow and calls

def newton(x: Any) -> Any:
    """The square root of x, by steps until it is found."""
    return lax.while_loop(lambda y: jnp.abs(y * y - x) > 1e-12, lambda y: 0.5 * (y + x / y), x)


def recurrence(x: Any, y: Any) -> Any:
    """A scan with constants, a carry that becomes a series on the way, integers, and results that are constants."""
    def step(carry: Any, inputs: Any) -> Any:
        a, b, n = carry
        c, k = inputs
        return (jnp.sin(a) * c + y, a * 0.5 + b, n + 1), (a * b, k * 2, n)

    return lax.scan(step, (x, jnp.zeros(()), 0), (jnp.stack([x, y, x * y]), jnp.arange(3.0)), reverse=True)


CONTROL: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "cond": (lambda x, y: lax.cond(x > 0, lambda x, y: (jnp.sin(x) * y, 1.0), lambda x, y: (y, x), x, y), [0.3, 0.7]),
    "switch": (lambda x: lax.switch(2, [jnp.sin, jnp.cos, lambda x: x * x * x], x), [0.3]),
    "scan": (lambda x, y: anima.tree.map(lambda v: v.astype(float), recurrence(x, y)), [0.3, 0.7]),
    "while": (lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.exp(c[1]) * 0.1 + x), (0, x))[1],
              [0.3]),
    "while by value": (newton, [2.0]),
    "fori": (lambda x: lax.fori_loop(0, 4, lambda i, c: c * x + i, 1.0), [0.3]),
    "map": (lambda x: lax.map(lambda a: jnp.sin(a) * x, jnp.arange(3.0) * x), [0.3]),
    "associative_scan": (lambda x: lax.associative_scan(jnp.multiply, x + jnp.arange(4.0)), [0.3]),
    "jit": (lambda x: anima.jit(lambda a: (jnp.sin(a) * x, 2.0))(x * x), [0.3]),
    "checkpoint": (anima.checkpoint(lambda x: jnp.sin(jnp.sin(x))), [0.3]),
    "relu": (lambda x: anima.nn.relu(x) * anima.nn.softplus(x), [0.3]),
    "logsumexp": (lambda x: anima.nn.logsumexp(x * jnp.arange(3.0)), [0.3]),
    "in scan": (lambda x: lax.scan(lambda c, _: (sum(jet(jnp.sin, (c,), ([x, 0.1],))[1]), None), x, None, 3)[0], [0.3]),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow(name: str) -> None:
    fun, args = CONTROL[name]
    check(fun, [np.float64(x) for x in args])


def test_newton_iteration_of_a_series() -> None:
    _, terms = jet(newton, (2.0,), ([1.0, 0.0, 0.0],))
    np.testing.assert_allclose(terms, jet(jnp.sqrt, (2.0,), ([1.0, 0.0, 0.0],))[1], rtol=1e-6)


def test_reverse_mode_of_loops_has_a_jet() -> None:
    for fun in (newton, lambda x: recurrence(x, x)[0][0], anima.checkpoint(jnp.sin)):
        check(anima.grad(fun), [np.float64(2.0)], 3, 1e-8)


def test_custom_rules_are_respected() -> None:
    @anima.custom_jvp
    def twice(x: Any, y: Any) -> Any:
        return x * y

    twice.defjvps(lambda t, out, x, y: 2 * t * jnp.sin(y), None)
    check(lambda x: twice(x * x, x), [np.float64(0.3)])

    @anima.custom_vjp
    def cube(x: Any) -> Any:
        return x ** 3

    cube.defvjp(lambda x: (x ** 3, x), lambda x, ct: (ct * 0,))
    assert [float(t) for t in jet(cube, (1.0,), ([1.0, 0.0],))[1]] == [3, 6]  # the function's own: as in JAX


def test_effects_happen_once(capsys: pytest.CaptureFixture[str]) -> None:
    def fun(x: Any) -> Any:
        anima.debug.print("x = {}", x)
        return x * x

    jet(fun, (2.0,), ([1.0, 0.0, 0.0],))
    assert capsys.readouterr().out == "x = 2.0\n"


def test_what_has_no_derivative_says_so() -> None:
    def callback(x: Any) -> Any:
        return anima.pure_callback(np.sin, jnp.zeros(()), x)

    with pytest.raises(ValueError, match="do not support JVP"):
        jet(callback, (1.0,), ([1.0],))
    with pytest.raises(NotImplementedError, match="in a is not implemented"):
        jet(lambda a: lax.igamma_grad_a(a, 2.0), (1.0,), ([1.0],))


# ---------------------------------------------------------------- other transformations

def mlp(params: Any, x: Any) -> Any:
    for w, b in params:
        x = jnp.tanh(w @ x + b)
    return x


def make_mlp() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return [(jnp.asarray(rng.normal(size=(3, 3))), jnp.asarray(rng.normal(size=3))) for _ in range(2)], jnp.ones(3)


def test_mlp() -> None:
    params, x = make_mlp()
    check(partial(mlp, params), [np.asarray(x)])
    check(lambda w: mlp([(w, x), (w @ w, x)], x), [np.asarray(params[0][0])])


def test_jit_vmap_and_grad_of_jet() -> None:
    params, x = make_mlp()

    def taylor(params: Any, x: Any, v: Any) -> Any:
        return jet(partial(mlp, params), (x,), ([v, v * v, None],))[1]

    want = taylor(params, x, x)
    same(anima.jit(taylor)(params, x, x), want)
    stack = jnp.stack([x, 2 * x])
    same(anima.vmap(taylor, (None, 0, 0))(params, stack, stack), [
        jnp.stack(pair) for pair in zip(want, taylor(params, 2 * x, 2 * x), strict=True)])

    def loss(jetted: bool, params: Any) -> Any:
        if jetted:
            terms = taylor(params, x, x)
        else:
            terms = nested(partial(mlp, params), [x], [[x, x * x, x * 0]])[1][0]
        return sum(jnp.sum(t ** 2) for t in terms)

    same(anima.jit(anima.grad(partial(loss, True)))(params), anima.grad(partial(loss, False))(params))


def test_jet_of_grad_and_of_jet() -> None:
    params, x = make_mlp()
    check(anima.grad(lambda x: jnp.sum(mlp(params, x) ** 2)), [np.asarray(x)], 3)
    check(lambda x: jet(jnp.sin, (x * x,), ([x, x],)), [np.float64(0.3)], 3)
    check(anima.vmap(lambda x: jnp.sin(x) * x), [np.asarray(x)], 3)
    check(lambda x: anima.jvp(jnp.sin, (x,), (x,)), [np.float64(0.3)], 3)


def test_taylor_method_of_an_ordinary_differential_equation() -> None:
    """The coefficients of y' = f(y), one after the other, and a step with them: the pendulum's energy is kept."""
    def f(y: Any) -> Any:
        return {"angle": y["speed"], "speed": -jnp.sin(y["angle"])}

    def step(y: Any, h: float, order: int = 12) -> Any:
        terms = anima.tree.map(lambda d: [d], f(y))
        for _ in range(order - 1):
            first, rest = jet(f, (y,), (terms,))
            terms = {name: [first[name], *rest[name]] for name in y}
        return {name: y[name] + sum(c * h ** k / factorial(k) for k, c in enumerate(terms[name], 1)) for name in y}

    y = {"angle": jnp.asarray(1.0), "speed": jnp.asarray(0.0)}
    jitted = anima.jit(partial(step, h=0.25))
    for _ in range(8):
        y = jitted(y)
    want = mpmath.odefun(lambda t, v: [v[1], -mpmath.sin(v[0])], 0, [1, 0])(2)
    np.testing.assert_allclose([y["angle"], y["speed"]], [float(v) for v in want], rtol=1e-11)


# ---------------------------------------------------------------- arguments and results

def test_trees_zeros_and_integers() -> None:
    def fun(tree: Any, n: Any, z: Any) -> Any:
        return {"out": (tree["a"] ** n * z, n), "constant": 3.0}

    value, terms = jet(fun, ({"a": 2.0, "b": 1.0}, 2, 5.0), ({"a": [1.0, None], "b": None}, zero_series, zero_series))
    assert float(value["out"][0]) == 20
    assert [float(t) for t in terms["out"][0]] == [20, 10]
    assert [float(t) for t in terms["constant"]] == [0, 0] and [int(t) for t in terms["out"][1]] == [0, 0]
    assert float(jet(lambda x, n: x * n, (2.0, 3), ([1.0], [0]))[1][0]) == 3


def test_scale_of_the_terms() -> None:
    assert [float(t) for t in jet(jnp.exp, (0.0,), ([1.0, 0.0, 0.0],))[1]] == pytest.approx([1, 1, 1])
    unscaled = jet(jnp.exp, (0.0,), ([1.0, 0.0, 0.0],), factorial_scaled=False)[1]
    assert [float(t) for t in unscaled] == pytest.approx([1, 1 / 2, 1 / 6])


def test_types_are_those_of_the_function() -> None:
    for dtype in ("float16", "bfloat16", "float32", "complex64"):
        value, terms = jet(lambda x: jnp.sin(x) / x, (jnp.ones(3, dtype),), ([jnp.ones(3, dtype), 0.0],))
        assert {t.dtype for t in (value, *terms)} == {jnp.dtype(dtype)} and terms[1].shape == (3,)
    assert jet(lambda x: x * 2, (jnp.ones(2),), ([],))[1] == []


@pytest.mark.parametrize("args,kind,text", [
    ((jnp.sin, 1.0, ([1.0],)), TypeError, "primals to be a tuple or a list"),
    ((3, (1.0,), ([1.0],)), TypeError, "expects a callable"),
    ((jnp.sin, (1.0,), ()), ValueError, "1 primals but 0 series"),
    ((jnp.add, (1.0, 2.0), ([1.0], [1.0, 2.0])), ValueError, r"inconsistent lengths .*\[1, 2\] terms"),
    ((jnp.sin, (1.0,), (None,)), ValueError, "no argument has terms"),
    ((jnp.sin, (1.0,), (1.0,)), TypeError, "list of its derivatives"),
    ((jnp.sin, (1.0,), ([1j],)), TypeError, "must be of its dtype, got c"),
    ((jnp.sin, (1.0,), ([np.ones(2)],)), ValueError, "must have its shape, got float64\\[2\\]"),
    ((lambda n: n * 2.0, (1,), ([1],)), TypeError, "no derivatives but zero"),
    ((lambda d: d, ({"a": 1.0},), ({"b": [1.0]},)), ValueError, "must have its tree structure")])
def test_errors(args: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        jet(*args)


def test_it_is_where_jax_has_it() -> None:
    assert anima.experimental.jet.jet is jet and module.zero_series is zero_series
    assert repr(zero_series) == "zero_series"


@pytest.mark.parametrize("number", [float, complex, lambda x: x.item(), lambda x: x.tolist()])
@pytest.mark.parametrize("derive", [lambda f: jet(f, (1.5,), ([1.0],)), lambda f: anima.jvp(f, (1.5,), (1.0,)),
                                    lambda f: anima.grad(f)(1.5)], ids=["jet", "jvp", "grad"])
def test_python_numbers_would_lose_derivatives(derive: Callable[..., Any], number: Callable[[Any], Any]) -> None:
    with pytest.raises(anima.errors.ConcretizationTypeError, match="would lose its derivative"):
        derive(lambda x: number(x) * x)


def test_what_is_known_may_decide() -> None:
    """Steps of a function have no derivative: its pieces do, compared, truncated or counted."""
    def pieces(x: Any) -> Any:
        return x * x * int(x) if x > 1 else -x

    for at, want in ((2.5, [10.0, 4.0]), (0.5, [-1.0, 0.0])):
        assert [float(s) for s in jet(pieces, (at,), ([1.0, 0.0],))[1]] == want


@pytest.mark.parametrize("specs", [P("x"), P()], ids=str)
def test_programs_over_meshes_have_jets(specs: P) -> None:
    def fun(x: Any, y: Any) -> Any:
        return jnp.sin(x) * y, y + 1, jnp.cos(y)

    mesh = Mesh(np.array(anima.devices()[:1]), ("x",))
    mapped = anima.shard_map(fun, mesh=mesh, in_specs=(specs, specs), out_specs=(specs, specs, specs))
    x, y, t = np.array([0.5, 1.0]), np.array([2.0, 3.0]), np.array([1.0, -1.0])
    for series in (([t, x], [x, t]), ([t, t], zero_series)):
        for a, b in zip(*(anima.tree.leaves(jet(f, (x, y), series)) for f in (mapped, fun)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_values_that_outlive_their_jets() -> None:
    kept: list[Any] = []
    jet(lambda x: kept.append(x) or x, (2.0,), ([1.0],))  # type: ignore[func-returns-value]
    with pytest.raises(anima.errors.UnexpectedTracerError, match="while the Taylor series of a function was being"):
        kept[0] + 1
