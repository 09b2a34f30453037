"""What reverse mode stores of each step of a loop: little, and what is computed again has the same bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.control import residuals
from anima.core.jaxpr import Literal
from anima.util import clear_all

VECTOR = np.linspace(0.1, 0.9, 100, dtype=np.float32)


def stored(step: Callable[..., Any], init: Any = VECTOR, xs: Any = None, loop: str = "scan") -> list[str]:
    """The types of what the gradient of a loop stores of each step, with respect to the carry and a factor `w`."""
    def run(init: Any, w: Any) -> Any:
        if loop == "while":
            return lax.while_loop(lambda c: c[1] < 7, lambda c: (step(c[0], w), c[1] + 1), (init, 0))[0]
        return lax.scan(lambda c, x: (step(c, w) if xs is None else step(c, w, x), None), init, xs, length=7)[0]

    def loss(init: Any, w: Any) -> Any:
        return sum(jnp.sum(leaf) for leaf in anima.tree.leaves(run(init, w)))

    first = next(e for e in anima.make_jaxpr(anima.grad(loss, (0, 1)))(init, np.float32(0.7)).eqns
                 if e.primitive.name in ("scan", "tape_while"))
    if loop == "while":
        tapes = [v.aval.dtype for v in first.outvars if v.aval.dtype.name[:5] == "tape<"]
        return [dtype.element.str_short(short_dtypes=True) for dtype in tapes[1:]]
    body = first.params["jaxpr"]
    return [a.str_short(short_dtypes=True) for a in body.out_avals[first.params["num_carry"]:]]


def lorenz(s: Any, w: Any) -> Any:
    """A step of Runge-Kutta 4."""
    def f(x: Any, y: Any, z: Any) -> Any:
        return 10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z

    def after(h: Any, k: Any) -> Any:
        return [a + h * b for a, b in zip(s, k, strict=True)]

    k1 = f(*s)
    k2 = f(*after(0.005, k1))
    k3 = f(*after(0.005, k2))
    k4 = f(*after(0.01, k3))
    return tuple(a + 0.01 / 6 * (p + 2 * q + 2 * r + t) for a, p, q, r, t in zip(s, k1, k2, k3, k4, strict=True))


CASES: list[tuple[str, Callable[..., Any], list[str]]] = [
    ("linear", lambda c, w: 3.0 * c + 1.0, []),
    ("carry alone", lambda c, w: c + 0.1 * (c * c - c) * c, ["f32[100]"]),
    ("what derivatives compute again", lambda c, w: jnp.sin(c) + w * jnp.cos(c), ["f32[100]"] * 2),
    ("a mask", lambda c, w: jnp.where(c > 0.5, 2.0 * c, c - 1.0), ["bool[100]"]),
    ("not what is broadcast", lambda c, w: c * jnp.tanh(c[0]), ["f32[100]", "f32[]"]),
    ("the results of functions", lambda c, w: jnp.exp(jnp.tanh(c)), ["f32[100]"] * 2),
]


@pytest.mark.parametrize("loop", ["scan", "while"])
@pytest.mark.parametrize(("step", "want"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_is_stored(step: Callable[..., Any], want: list[str], loop: str) -> None:
    assert sorted(stored(step, loop=loop)) == sorted(want)


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_integrators_store_their_state_and_what_is_needed_first(loop: str) -> None:
    assert stored(lorenz, (VECTOR, VECTOR, VECTOR), loop=loop) == ["f32[100]"] * 3
    assert len(stored(lorenz, (1.0, 2.0, 3.0), loop=loop)) == 6  # scalars: chains of operations are short


def test_xs_unchanged_carries_and_ys_are_at_hand() -> None:
    xs = np.ones((7, 100), np.float32)
    assert stored(lambda c, w, x: c + w * (x * x - x) * 2.0, xs=xs) == []
    assert stored(lambda c, w: (c[0] * jnp.sin(c[1]), c[1]), (VECTOR, VECTOR)) == ["f32[100]"]

    def loss(c: Any) -> Any:
        last, ys = lax.scan(lambda c, _: (c * c, c), c, None, length=7)
        return jnp.sum(last) + jnp.sum(ys)

    first = next(e for e in anima.make_jaxpr(anima.grad(loss))(VECTOR).eqns if e.primitive.name == "scan")
    assert [v.aval.shape for v in first.outvars] == [(100,), (7, 100)]


def test_the_cut_is_the_cheapest() -> None:
    """Of random programs, against all choices of what to store."""
    for seed in range(40):
        rng = np.random.default_rng(seed)

        def program(a: Any, b: Any, rng: Any = rng) -> list[Any]:
            known = [a, jnp.sin(a), b]
            for _ in range(6):
                x, y = (known[k] for k in rng.integers(0, len(known), 2))
                operation = [jnp.add, lambda x, y: x * jnp.ones(80), lambda x, y: jnp.exp(x), jnp.greater][
                    rng.integers(0, 4)]
                known.append(operation(x, y).astype(np.float32))
            return [known[k] for k in rng.integers(0, len(known), 4)]

        jaxpr = anima.make_jaxpr(program)(np.float32(0.5), np.ones(80, np.float32)).jaxpr
        wanted = [v for v in jaxpr.outvars if not isinstance(v, Literal)]
        free = {*jaxpr.constvars}
        found = residuals._cheapest(jaxpr, free, wanted)
        variables = [v for v in (*jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars)) if v not in free]
        best = min(price(jaxpr, free, set(some), wanted) for some in itertools.chain.from_iterable(
            itertools.combinations(variables, n) for n in range(4)))
        assert price(jaxpr, free, found, wanted) <= best
        assert price(jaxpr, free, found, wanted) < float("inf")


def price(jaxpr: Any, free: Any, kept: Any, wanted: Any) -> float:
    """Of bytes stored and operations computed again; infinite for what cannot be."""
    eqns, read = residuals._program(jaxpr, {*free, *kept}, wanted)
    made = {v for e in eqns for v in e.outvars} | set(read)
    if any(v not in made for v in wanted) or any(
            isinstance(v, type(wanted[0])) and v not in made for e in eqns for v in e.invars):
        return float("inf")
    total = sum(v.aval.size * v.aval.dtype.itemsize * residuals.PER_BYTE for v in kept)
    for e in eqns:
        cost = residuals.cost_again(e)
        total += float("inf") if cost is None else cost * e.outvars[0].aval.size
    return total


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("step", [lorenz, lambda c, w: tuple(jnp.where(x > w, x * x - w / (1.0 + x), -x) for x in c)])
def test_what_is_computed_again_has_the_same_bits(step: Callable[..., Any], jit: bool,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients() -> Any:
        def loss(c: Any, w: Any) -> Any:
            last, _ = lax.while_loop(lambda s: s[1] < 9, lambda s: (step(s[0], w), s[1] + 1), (c, 0))
            return sum(jnp.sum(x) for x in lax.scan(lambda c, _: (step(c, w), None), last, None, length=11)[0])

        clear_all()
        gradient = anima.grad(loss, (0, 1))
        return anima.tree.map(np.asarray, (anima.jit(gradient) if jit else gradient)(
            (VECTOR, VECTOR + 1.0, VECTOR - 0.5), np.float32(0.3)))

    got = gradients()
    monkeypatch.setattr(residuals, "CHEAP", -1)
    want = gradients()
    anima.tree.map(np.testing.assert_array_equal, got, want)
    clear_all()


@pytest.mark.parametrize("loop", ["scan", "while"])
@pytest.mark.parametrize("types", [("float32", "int32"), ("int32", "uint32"), ("float16", "bfloat16"),
                                   ("int8", "uint8")])
def test_numbers_of_two_types_and_the_same_bytes_are_two(types: tuple[str, str], loop: str) -> None:
    """What a body computes twice is one value, but not two zeros whose successors differ."""
    def body(c: Any, w: Any, types: Any) -> Any:
        a, b = (jnp.full(4, 0, d) for d in types)
        a, b = ((x - x.dtype.type(1)).astype(np.float32) * 1e-9 + c for x in (a, b))
        return a * jnp.sin(w * c) + b

    def run(w: Any, types: Any, looped: bool) -> Any:
        c = jnp.ones(4, np.float32) * w
        if not looped:
            for _ in range(3):
                c = body(c, w, types)
        elif loop == "scan":
            c = lax.scan(lambda c, _: (body(c, w, types), None), c, None, length=3)[0]
        else:
            c = lax.while_loop(lambda s: s[1] < 3, lambda s: (body(s[0], w, types), s[1] + 1), (c, 0))[0]
        return jnp.sum(c)

    for order in (types, types[::-1]):
        want = anima.grad(run)(0.3, order, False)
        np.testing.assert_allclose(anima.grad(run)(0.3, order, True), want, rtol=1e-5)


# Carries that are counted on, for which only the number of the step is needed; and others that almost are.
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "k + 2": lambda k, j: k + 2, "2 + k": lambda k, j: 2 + k, "k - 3": lambda k, j: k - 3, "3 - k": lambda k, j: 3 - k,
    "k + k": lambda k, j: k + k, "k - k": lambda k, j: k - k, "k * 3": lambda k, j: k * 3, "-k": lambda k, j: -k,
    "j": lambda k, j: j, "k + j": lambda k, j: k + j, "j + 1": lambda k, j: j + 1, "1 - j": lambda k, j: 1 - j,
    "7": lambda k, j: jnp.full_like(k, 7), "k": lambda k, j: k, "~k": lambda k, j: ~k,
    "k or more": lambda k, j: jnp.where(k > j, k, k + 1), "k + 100": lambda k, j: k + 100}


@pytest.mark.parametrize("loop", ["scan", "while"])
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8"])
def test_counters_and_what_is_almost_one(dtype: str, loop: str) -> None:
    def body(c: Any) -> Any:
        x, ks = c
        x = x + 1e-3 * sum(jnp.sin(x * (k.astype(np.float32) * 0.1 + n)) for n, k in enumerate(ks))
        return x, [f(k, ks[(n + 5) % len(ks)]) for n, (f, k) in enumerate(zip(CHANGES.values(), ks, strict=True))]

    def run(x: Any, looped: bool) -> Any:
        c = x, [jnp.asarray(np.array(n, dtype)) for n in range(len(CHANGES))]
        if not looped:
            for _ in range(6):
                c = body(c)
        elif loop == "scan":
            c = lax.scan(lambda c, _: (body(c), None), c, None, length=6)[0]
        else:
            c = lax.while_loop(lambda s: s[1] < 6, lambda s: (body(s[0]), s[1] + 1), (c, 0))[0]
        return jnp.sum(c[0])

    x = np.linspace(0.1, 0.4, 3, dtype=np.float32)
    want = anima.grad(lambda x: run(x, False))(x)
    np.testing.assert_allclose(anima.jit(anima.grad(lambda x: run(x, True)))(x), want, rtol=1e-5)
