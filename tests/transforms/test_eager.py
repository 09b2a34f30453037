"""Derivatives outside of jit: what a call does again is known, and its results have the bits that they had at first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.transforms import eager
from anima.transforms.linearize import linearize_flat

X = jnp.linspace(-1.0, 2.0, 6).reshape(2, 3)
W = jnp.linspace(-0.5, 0.5, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """Nothing ran before."""
    anima.clear_caches()


class Runs:
    """Counts how often functions are linearised operation by operation, and from the middle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = self.left = 0
        linear, leave = eager._Linear.__init__, eager._AgainTrace.leave

        def made(this: Any, *args: Any) -> None:
            self.made += 1
            linear(this, *args)

        def left(this: Any) -> None:
            self.left += 1
            leave(this)

        monkeypatch.setattr(eager._Linear, "__init__", made)
        monkeypatch.setattr(eager._AgainTrace, "leave", left)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """How often what happens in the test."""
    return Runs(monkeypatch)


def bits(tree: Any) -> list[Any]:
    """What is to be the same: types and bytes of all arrays."""
    return [(x.shape, str(x.dtype), getattr(x, "weak_type", None), np.asarray(x).tobytes())
            for x in anima.tree.leaves(tree)]


def one_by_one(fun: Callable[..., Any], args: Sequence[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`fun(*args)` without anything that was known of derivatives."""
    with monkeypatch.context() as patch:
        patch.setattr("anima.api.autodiff.linearize_again", linearize_flat)
        return fun(*args)


def layer(w: Any, x: Any) -> Any:
    return (jnp.tanh(x @ w + 1) ** 2).mean()


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "layer": (layer, (W, X)),
    "logits": (lambda w, x: -anima.nn.log_softmax(x @ w)[:, 1].sum() + anima.nn.logsumexp(x @ w), (W, X)),
    "rules of the library": (lambda x: jnp.logaddexp(x, x * x).sum() + jnp.sinc(x).sum()
                                       + anima.nn.relu6(x).sum(), (X,)),
    "number": (lambda x: jnp.sin(x) * x ** 3 / (1 + x * x), (2.0,)),
    "weak": (lambda x: x ** 2.5 + 2 * x, (3.0,)),
    "the argument": (lambda x: x, (2.0,)),
    "its sum": (lambda x: x.sum(), (X,)),
    "a constant": (lambda x: jnp.float32(3.0), (X,)),
    "twice the same": (lambda x: (x * x + x).sum(), (X,)),
    "two of one": (lambda x, y: (x * y).sum(), (X, X)),
    "masks": (lambda x: jnp.where(x > 0, x, jnp.exp(x)).sum(), (X,)),
    "steps": (lambda x: (jnp.floor(x) * x + jnp.sign(x)).sum(), (X,)),
    "stopped": (lambda x: (lax.stop_gradient(x) * x).sum(), (X,)),
    "relu": (lambda x: anima.nn.relu(x).sum(), (X,)),
    "softmax": (lambda x: -anima.nn.log_softmax(x)[:, 1].sum(), (X,)),
    "norm": (lambda x: jnp.linalg.norm(x), (X,)),
    "solve": (lambda a: jnp.linalg.solve(a @ a.T + jnp.eye(2), jnp.ones(2)).sum(), (X,)),
    "sorted": (lambda x: (jnp.sort(x, axis=1) * jnp.arange(3.0)).sum(), (X,)),
    "largest": (lambda x: (lax.top_k(x, 2)[0] * lax.top_k(x, 2)[1]).sum(), (X,)),
    "indices": (lambda x: x[1, ::2].sum() * x[0, 1] + x[jnp.array([0, 0])].sum(), (X,)),
    "updates": (lambda x: (x.at[0].set(2 * x[1]).at[:, 1].add(1.0) ** 2).sum(), (X,)),
    "jit inside": (lambda x: anima.jit(lambda x: jnp.sin(x) * 2)(x).sum() * x.sum(), (X,)),
    "scan inside": (lambda x: lax.scan(lambda c, r: (c * r.sum() + r[0], c), x[0, 0] * 2, x)[0], (X,)),
    "cond inside": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x).sum(), (X,)),
    "vmap inside": (lambda x: anima.vmap(lambda r: (r * r.sum()).max())(x).sum(), (X,)),
    "grad inside": (lambda x: anima.grad(lambda y: (y ** 3).sum())(x).sum() * x.sum(), (X,)),
    "convolution": (lambda x: jnp.convolve(x[0], x[1]).sum(), (X,)),
    "half": (lambda x: (x.astype(jnp.bfloat16) * 3).sum().astype(jnp.float32), (X,)),
    "complex": (lambda x: jnp.abs(jnp.fft.fft(x * (1 + 2j))).sum(), (X,)),
    "cumulative": (lambda x: (jnp.cumsum(x, 1) * jnp.cumprod(x, 0)).sum(), (X,)),
    "random": (lambda x: (x * anima.random.normal(anima.random.key(0), x.shape)).sum(), (X,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fun, args = FUNCTIONS[name]
    gradient = anima.value_and_grad(fun, argnums=tuple(range(len(args))))
    expected = bits(one_by_one(gradient, args, monkeypatch))
    for _ in range(6):
        assert bits(gradient(*args)) == expected


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_values_of_the_same_types(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fun, args = FUNCTIONS[name]
    gradient = anima.value_and_grad(fun)
    for k in range(5):
        values = [x * 1.5 + k - 2 for x in args]
        assert bits(gradient(*values)) == bits(one_by_one(gradient, values, monkeypatch)), k


def test_what_is_known_is_not_made_again(runs: Runs) -> None:
    gradient = anima.grad(layer, argnums=(0, 1))
    for _ in range(5):
        gradient(W, X)
    assert (runs.made, runs.left) == (1, 0)


@pytest.mark.parametrize("name", ["relu", "logits", "softmax", "rules of the library"])
def test_rules_of_the_library_are_known(name: str, runs: Runs) -> None:
    fun, args = FUNCTIONS[name]
    for _ in range(4):
        anima.grad(fun)(*args)
    assert (runs.made, runs.left) == (1, 0)


def test_rules_of_users_are_asked_in_each_call() -> None:
    asked = []

    @anima.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        asked.append(1)
        return f(*primals), tangents[0] * len(asked)

    assert [float(anima.grad(f)(1.0)) for _ in range(3)] == [1.0, 2.0, 3.0]


def test_python_decides_in_each_call(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls part ways where values have it so, and come back."""
    def fun(x: Any) -> Any:
        y = jnp.sin(x) * 2
        y = jnp.exp(y) if y > 0 else y * x
        while abs(y) < 10:
            y = y * 3
        return y if abs(y) < 20 else jnp.log(jnp.abs(y))

    gradient = anima.grad(fun)
    values = [0.3, -0.2, 0.3, 1.0, 5.0, -0.2, 0.3, 1.0, 5.0, 2.0, 2.5] * 2
    assert [bits(gradient(x)) for x in values] == [bits(one_by_one(gradient, (x,), monkeypatch)) for x in values]
    assert runs.left and runs.made > 2


def test_constants_may_be_others_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands without tangents are looked at in each call: one that was two, or was another's number."""
    one, two = jnp.float32(2.0), jnp.float32(3.0)
    pairs = [(one, one), (one, one), (one, two), (two, one), (two, two), (one, two)] * 2

    def gradient(a: Any, b: Any) -> Any:
        return anima.grad(lambda x: ((x + 2) ** a * b + a * x * jnp.where(x > 0, a, b)).sum())(X)

    assert [bits(gradient(*p)) for p in pairs] == [bits(one_by_one(gradient, p, monkeypatch)) for p in pairs]


def test_exponents_that_are_numbers() -> None:
    """The derivative of x**y at 0 depends on what y is."""
    for _ in range(2):
        for y, expected in ((0.0, 0.0), (1.0, 1.0), (2.0, 0.0), (0.0, 0.0), (1.0, 1.0)):
            for _ in range(3):
                assert anima.grad(lambda x, y=y: lax.pow(x, y))(0.0) == expected


def test_aux_and_pytrees(runs: Runs) -> None:
    def fun(tree: Any, scale: float) -> Any:
        y = tree["a"] * tree["b"][0] * scale
        return y.sum(), {"y": y, "word": "text", "number": 3, "mask": y > 0}

    for scale in (1.0, 2.0, 3.0, 4.0):
        (value, aux), grads = anima.value_and_grad(fun, has_aux=True)({"a": X, "b": (X + 1,)}, scale)
        assert aux["word"] == "text" and aux["number"] == 3 and aux["mask"].dtype == bool
        np.testing.assert_array_equal(aux["y"], X * (X + 1) * scale)
        np.testing.assert_array_equal(grads["a"], (X + 1) * scale)
        assert value == aux["y"].sum()
    assert runs.made == 1


def test_pull_linearize_and_jacobians(monkeypatch: pytest.MonkeyPatch) -> None:
    def fun(x: Any, n: Any) -> Any:
        return jnp.sin(x) * n, x.sum(0)

    def run(x: Any) -> Any:
        outs, pull = anima.vjp(fun, x, 3)
        cts = (x, x[0]), (2 * x, x[1]), (x, x[1])
        _, push = anima.linearize(lambda x: fun(x, 3.0), x)
        return (outs, [pull(ct) for ct in cts], [push(x), push(2 * x)], anima.jacrev(fun)(x, 2.0),
                anima.hessian(lambda x: jnp.prod(jnp.cos(x)))(x),
                anima.grad(anima.grad(lambda s: s ** 4 * jnp.sin(s)))(0.5))

    expected = bits(one_by_one(run, (X,), monkeypatch))
    for _ in range(4):
        assert bits(run(X)) == expected


def test_shapes_types_and_options_are_told_apart() -> None:
    gradient = anima.grad(lambda x: (jnp.tanh(x) * 2).sum())
    for _ in range(3):
        for x in (X, X[0], X.T, X.astype(jnp.float16), jnp.float32(1.0), 1.0):
            got = gradient(x)
            assert got.shape == np.shape(x) and got.dtype == getattr(x, "dtype", np.float32)
        with anima.enable_x64(True):
            assert gradient(np.linspace(0.0, 1.0, 3)).dtype == np.float64
            assert gradient(1.0).dtype == np.float64


def test_effects_and_errors_come_in_each_call() -> None:
    seen: list[float] = []

    def fun(x: Any) -> Any:
        y = jnp.sin(x)
        anima.debug.callback(lambda v: seen.append(float(v)), y)
        if y > 0.9:
            raise ValueError("too large")
        return y * 2

    for _ in range(3):
        seen.clear()
        assert anima.grad(fun)(0.5) == 2 * jnp.cos(0.5)
        with pytest.raises(ValueError, match="too large"):
            anima.grad(fun)(1.5)
        np.testing.assert_allclose(seen, np.sin([0.5, 1.5]), rtol=1e-6)


def test_values_that_outlive_a_call_are_refused() -> None:
    kept: list[Any] = []

    def fun(x: Any) -> Any:
        y = x * 2
        if kept:
            y = y + kept[0]
        else:
            kept.append(y)
        return y.sum()

    anima.grad(lambda x: (x * 2).sum())(X)
    anima.grad(fun)(X)
    for _ in range(2):
        with pytest.raises(anima.errors.UnexpectedTracerError):
            anima.grad(fun)(X)


def test_numbers_of_what_is_differentiated_are_still_refused() -> None:
    for _ in range(4):
        with pytest.raises(anima.errors.ConcretizationTypeError, match="differentiated"):
            anima.grad(lambda x: float(jnp.sin(x)) * x)(1.0)
        assert anima.grad(lambda x: float(jnp.floor(jnp.sin(x) * 3)) * x)(1.0) == 2.0


def test_large_results_are_not_kept(runs: Runs) -> None:
    x = jnp.linspace(0.0, 1.0, 1 << 19)
    gradient = anima.grad(lambda x: (jnp.sin(x) * x).sum())
    for _ in range(3):
        np.testing.assert_allclose(gradient(x), np.cos(x) * x + np.sin(x), rtol=1e-5)
    assert runs.made == 0


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_MOST_STEPS", 20)
    for n in range(1, 60):
        assert anima.grad(lambda x, n=n: lax.integer_pow(jnp.sin(x), n).sum())(1.0) > 0
        assert eager._Step.count <= 21


def test_threads() -> None:
    """Many first calls at once, of functions that begin alike."""
    expected = {k: anima.jit(anima.grad(lambda x, k=k: (jnp.sin(x) ** k * x).sum()))(X) for k in range(2, 6)}
    found: list[tuple[int, Any]] = []

    def run(k: int) -> None:
        found.extend((k, anima.grad(lambda x: (jnp.sin(x) ** k * x).sum())(X)) for _ in range(20))

    threads = [threading.Thread(target=run, args=(2 + i % 4,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 160
    for k, got in found:
        np.testing.assert_allclose(got, expected[k], rtol=1e-5)


def test_invalid_results_are_found() -> None:
    gradient = anima.grad(lambda x: jnp.sqrt(x).sum())
    for _ in range(3):
        gradient(jnp.ones(3))
    with anima.debug_nans(True), pytest.raises(FloatingPointError):
        anima.grad(lambda x: jnp.log(x).sum())(jnp.array([-1.0]))
    assert np.isinf(gradient(jnp.zeros(1))[0])


def test_caches_that_are_cleared_meanwhile() -> None:
    """By the function itself, and by other threads, at any time."""
    def fun(x: Any, clear: bool) -> Any:
        y = jnp.sin(x) * 2
        if clear:
            anima.clear_caches()
        return (jnp.cos(y) * jnp.arange(3.0)).sum()

    expected = anima.grad(fun)(X, False)
    for clear in (False, False, True, False, True, False, False):
        np.testing.assert_array_equal(anima.grad(fun)(X, clear), expected)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.extend(anima.grad(fun)(X, False) for _ in range(50)))
               for _ in range(4)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        anima.clear_caches()
    for t in threads:
        t.join()
    assert len(found) == 200 and all(bits(g) == bits(expected) for g in found)


def test_what_rules_recall_is_no_part_of_programs() -> None:
    """Loops outside of jit tell programs by all that rules in them consist of."""
    x = jnp.arange(6.0)
    for _ in range(3):
        anima.grad(lambda x: jnp.logaddexp(x, 2 * x).sum())(x)
    total, _ = lax.scan(lambda a, b: (anima.vmap(jnp.logaddexp)(a, b), None), x[:2], x.reshape(3, 2))
    np.testing.assert_allclose(total[0], np.logaddexp.reduce([0.0, 0.0, 2.0, 4.0]), rtol=1e-6)
