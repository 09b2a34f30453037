"""Programs of the kinds that people filed as slow on CPUs since JAX 0.4.32: orbits, neurons, robots, filters, loops.

Each program is a function of a module with JAX's names; it gives a function and its arguments. As a script, this
measures what its standard input asks for, in a process of one library. What the programs are modelled on: JAX's
issues 26021 (robots), 26145 (neurons), 36799 (matrices in scans, small solves), 37465 (differences of volumes), 40150
(scans over many scalars), 25190 (long while loops), 25808 (transforms), and jnkepler's 18 (orbits).
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import seconds

Program = Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]
F32, F64 = np.float32, np.float64


# ---------------------------------------------------------------- orbits


def bodies(m: Any, steps: int = 2000) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Four bodies by leapfrog: the distance of two at the end."""
    jnp, lax = m.numpy, m.lax
    masses = np.array([1.0, 1e-3, 3e-4, 5e-5])

    def pull(x: Any) -> Any:
        d = x[None] - x[:, None]
        r2 = (d * d).sum(-1) + jnp.eye(4)
        return (masses[None, :, None] * d / (r2 * jnp.sqrt(r2))[..., None]).sum(1)

    def end(x: Any, v: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            x, v = state
            v = v + 0.005 * pull(x)
            x = x + 0.01 * v
            return (x, v + 0.005 * pull(x)), None

        (x, _), _ = lax.scan(step, (x, v), None, length=steps)
        return ((x[1] - x[2]) ** 2).sum()

    angle = np.array([0.0, 0.3, 2.1, 4.4])
    radius = np.array([0.0, 1.0, 1.7, 2.6])
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle), 0.01 * angle], 1)
    speed = np.where(radius > 0, 1 / np.sqrt(np.maximum(radius, 1e-9)), 0.0)
    return end, (x, np.stack([-speed * np.sin(angle), speed * np.cos(angle), 0 * angle], 1))


def kepler(m: Any, steps: int = 500) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Two planets: half steps of their pull on each other between steps along Kepler's orbits, by Newton's method."""
    jnp, lax = m.numpy, m.lax
    mu, masses, dt = 1.0, np.array([1e-4, 3e-4]), 0.05

    def drift(x: Any, v: Any) -> tuple[Any, Any]:
        r0 = jnp.sqrt((x * x).sum())
        a = 1 / (2 / r0 - (v * v).sum() / mu)
        n = jnp.sqrt(mu / a**3)
        ec, es = 1 - r0 / a, (x * v).sum() / (n * a * a)

        def newton(_: Any, e: Any) -> Any:
            f = e - ec * jnp.sin(e) + es * (1 - jnp.cos(e)) - n * dt
            return e - f / (1 - ec * jnp.cos(e) + es * jnp.sin(e))

        e = lax.fori_loop(0, 5, newton, n * dt)
        s, c = jnp.sin(e), jnp.cos(e)
        r = a * (1 - ec * c + es * s)
        f, g = 1 - a / r0 * (1 - c), dt + (s - e) / n
        return f * x + g * v, -jnp.sqrt(mu * a) / (r * r0) * s * x + (1 - a / r * (1 - c)) * v

    def kick(x: Any, v: Any) -> Any:
        d = x[1] - x[0]
        d = d / ((d * d).sum()) ** 1.5
        return v + 0.5 * dt * jnp.stack([masses[1] * d, -masses[0] * d])

    def end(x: Any, v: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            x, v = state
            x, v = m.vmap(drift)(x, kick(x, v))
            return (x, kick(x, v)), x[:, 0]

        (x, _), seen = lax.scan(step, (x, v), None, length=steps)
        return (x * x).sum() + (seen * seen).mean()

    return end, (np.array([[1.0, 0.0, 0.0], [0.0, 1.6, 0.02]]), np.array([[0.0, 1.02, 0.0], [-0.8, 0.0, 0.0]]))


# ---------------------------------------------------------------- neurons


def neuron(m: Any, steps: int = 1000, parts: int = 16) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A cable of Hodgkin and Huxley's membrane: exponential steps of gates, an implicit one of voltages."""
    jnp, lax = m.numpy, m.lax
    dt, couple = 0.025, 2.0

    def rates(v: Any) -> Any:
        def ratio(x: Any, y: Any) -> Any:
            return jnp.where(jnp.abs(x / y) < 1e-6, y, x / (jnp.exp(x / y) - 1.0))
        return ((0.1 * ratio(-(v + 40), 10.0), 4 * jnp.exp(-(v + 65) / 18)),
                (0.07 * jnp.exp(-(v + 65) / 20), 1 / (1 + jnp.exp(-(v + 35) / 10))),
                (0.01 * ratio(-(v + 55), 10.0), 0.125 * jnp.exp(-(v + 65) / 80)))

    def solve(low: Any, diagonal: Any, right: Any) -> Any:
        def down(carry: Any, row: Any) -> Any:
            d, y = carry
            off, diag, r = row
            w = off / d
            d, y = diag - w * off, r - w * y
            return (d, y), (d, y)

        one = jnp.ones_like(diagonal[0])
        _, (d, y) = lax.scan(down, (one, 0 * one), (low, diagonal, right))

        def up(x: Any, row: Any) -> Any:
            off, d, y = row
            x = (y - off * x) / d
            return x, x

        return lax.scan(up, 0 * one, (jnp.append(low[1:], 0.0), d, y), reverse=True)[1]

    low = np.full(parts, -couple * dt)
    low[0] = 0.0
    joined = np.full(parts, 2 * couple * dt)
    joined[[0, -1]] = couple * dt

    def loss(conductances: Any, current: Any) -> Any:
        g_na, g_k, g_leak = conductances

        def step(state: Any, now: Any) -> Any:
            v, gates = state
            new = []
            for x, (a, b) in zip(gates, rates(v), strict=True):
                rest = a / (a + b)
                new.append(rest + (x - rest) * jnp.exp(-dt * (a + b)))
            mm, h, n = new
            na, k = g_na * mm**3 * h, g_k * n**4
            total = na + k + g_leak
            inward = na * 50 - k * 77 - g_leak * 54.4 + jnp.zeros(parts).at[0].set(now)
            v = solve(low, 1 + joined + dt * total, v + dt * inward)
            return (v, tuple(new)), v[-1]

        start = (jnp.full(parts, -65.0), tuple(jnp.full(parts, x) for x in (0.05, 0.6, 0.32)))
        _, seen = lax.scan(step, start, current)
        return ((seen + 65.0) ** 2).mean()

    current = np.where((np.arange(steps) > 100) & (np.arange(steps) < 500), 80.0, 0.0)
    return loss, (np.array([120.0, 36.0, 0.3])[:, None] * np.ones(parts), current)


# ---------------------------------------------------------------- robots


def robot(m: Any, joints: int = 35) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The mass matrix of a chain: frames one after another, Jacobians of the links' centres, their products."""
    jnp = m.numpy
    masses, offset = np.linspace(1.0, 2.0, joints), np.array([0.1, 0.0, 0.05])
    below = np.tril(np.ones((joints, joints)))

    def rotation(angle: Any, axis: int) -> Any:
        c, s, o, i = jnp.cos(angle), jnp.sin(angle), jnp.zeros_like(angle), jnp.ones_like(angle)
        rows = ([[i, o, o], [o, c, -s], [o, s, c]], [[c, o, s], [o, i, o], [-s, o, c]],
                [[c, -s, o], [s, c, o], [o, o, i]])
        return jnp.stack([jnp.stack(row) for row in rows[axis]])

    def mass_matrix(q: Any) -> Any:
        turn, at = jnp.eye(3), jnp.zeros(3)
        places, axes = [], []
        for j in range(joints):
            at = at + turn @ offset
            axes.append(turn[:, j % 3])
            places.append(at)
            turn = turn @ rotation(q[j], j % 3)
        place, axis = jnp.stack(places), jnp.stack(axes)
        arms = place[:, None] + 0.5 * offset - place[None]
        jacobians = jnp.cross(axis[None], arms) * below[..., None]
        return jnp.einsum("l,lik,ljk->ij", masses, jacobians, jacobians)

    return mass_matrix, (np.linspace(-1.0, 1.0, joints),)


def robots(m: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """256 of them."""
    one, (q,) = robot(m)
    return m.vmap(one), (q + np.linspace(0, 1, 256)[:, None],)


# ---------------------------------------------------------------- filters


def kalman(m: Any, steps: int = 1000) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The log-likelihood of a series, by a filter with four states and two observations."""
    jnp, lax = m.numpy, m.lax
    see = np.eye(2, 4, dtype=F32)

    def likelihood(move: Any, noise: Any, series: Any) -> Any:
        def step(state: Any, y: Any) -> Any:
            x, p = state
            x, p = move @ x, move @ p @ move.T + 0.1 * jnp.eye(4, dtype=F32)
            s = see @ p @ see.T + noise * jnp.eye(2, dtype=F32)
            gain = jnp.linalg.solve(s, see @ p).T
            gone = y - see @ x
            value = -0.5 * (gone @ jnp.linalg.solve(s, gone) + jnp.log(jnp.linalg.det(s)))
            return (x + gain @ gone, p - gain @ see @ p), value

        return lax.scan(step, (jnp.zeros(4, F32), jnp.eye(4, dtype=F32)), series)[1].sum()

    rng = np.random.default_rng(0)
    move = (0.95 * np.eye(4) + 0.05 * rng.normal(size=(4, 4))).astype(F32)
    return likelihood, (move, F32(0.5), rng.normal(size=(steps, 2)).astype(F32))


def beliefs(m: Any, steps: int = 2000) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A hierarchy of Gaussian beliefs about a series, kept in dictionaries of scalars."""
    jnp, lax = m.numpy, m.lax

    def surprise(parameters: Any, series: Any) -> Any:
        def step(nodes: Any, u: Any) -> Any:
            low, high = nodes["low"], nodes["high"]
            v = jnp.exp(parameters["coupling"] * high["mean"] + parameters["tonic"])
            expected = 1.0 / (1.0 / low["precision"] + v)
            error = u - low["mean"]
            precision = expected + parameters["input"]
            mean = low["mean"] + parameters["input"] / precision * error
            w = v * expected
            change = (1.0 / precision + (mean - low["mean"]) ** 2) * expected - 1.0
            above = 1.0 / (1.0 / high["precision"] + jnp.exp(parameters["volatility"]))
            grown = above + 0.5 * parameters["coupling"] ** 2 * w * (w + jnp.maximum((2 * w - 1) * change, 0.0))
            moved = high["mean"] + 0.5 * parameters["coupling"] * w / grown * change
            cost = 0.5 * (jnp.log(2 * math.pi / expected) + expected * error**2)
            return {"low": {"mean": mean, "precision": precision}, "high": {"mean": moved, "precision": grown}}, cost

        one = jnp.ones((), series.dtype)
        start = {name: {"mean": 0 * one, "precision": one} for name in ("low", "high")}
        return lax.scan(step, start, series)[1].sum()

    series = np.cumsum(np.random.default_rng(0).normal(size=steps) * 0.1).astype(F32)
    return surprise, ({"coupling": F32(1), "tonic": F32(-3), "input": F32(10), "volatility": F32(-4)}, series)


# ---------------------------------------------------------------- loops


def leaves(m: Any, count: int = 60, steps: int = 614) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A scan over many scalars, each pulled by its neighbours."""
    jnp, lax = m.numpy, m.lax

    def loss(xs: Any, gain: Any) -> Any:
        def step(xs: Any, _: Any) -> Any:
            new = [x + 0.01 * (gain * jnp.tanh(xs[i - 1]) - x * jnp.cos(xs[(i + 1) % count])) for i, x in enumerate(xs)]
            return new, None

        return sum(x * x for x in lax.scan(step, xs, None, length=steps)[0])

    return loss, ([F32(x) for x in np.linspace(-1, 1, count)], F32(0.7))


def matrices(m: Any, steps: int = 1000) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """3x3 matrices, multiplied up along a scan."""
    jnp, lax = m.numpy, m.lax

    def total(turns: Any) -> Any:
        def step(a: Any, t: Any) -> Any:
            a = a @ t
            return a, a[0, 0]

        return lax.scan(step, jnp.eye(3, dtype=turns.dtype), turns)[1].sum()

    angles = np.linspace(0, 3, steps)
    c, s, o = np.cos(angles), np.sin(angles), 0 * angles
    return total, (np.stack([c, -s, o, s, c, o, o, o, o + 1], 1).reshape(-1, 3, 3),)


def solves(m: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """10,000 systems of 4x4, and the sum of their solutions' squares."""
    rng = np.random.default_rng(0)
    a = (rng.normal(size=(10_000, 4, 4)) + 4 * np.eye(4)).astype(F32)
    return lambda a, b: (m.numpy.linalg.solve(a, b) ** 2).sum(), (a, rng.normal(size=(10_000, 4, 1)).astype(F32))


def differences(m: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The sum of squared differences of neighbours in a volume."""
    jnp = m.numpy
    x = np.random.default_rng(0).normal(size=(160, 160, 160)).astype(F32)
    return lambda x: sum((jnp.diff(x, axis=i) ** 2).sum() for i in range(3)), (x,)


def long_while(m: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A million steps that read an array one element at a time."""
    jnp, lax = m.numpy, m.lax

    def run(table: Any) -> Any:
        last = table.max()
        return lax.while_loop(lambda u: u[0] < last, lambda u: (jnp.maximum(u[0], table[u[1]]), u[1] + 1), (0, 0))[1]

    return run, (np.arange(1_000_000, dtype=np.int32),)


def transform(m: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    return m.numpy.fft.fftn, ((rng.normal(size=(128,) * 3) + 1j * rng.normal(size=(128,) * 3)).astype(np.complex64),)


PROGRAMS: dict[str, tuple[Program, bool, bool]] = {  # (the program, float64, whether its gradient is a row, too)
    "four bodies, 2000 steps": (bodies, True, True),
    "two planets by Kepler's steps": (kepler, True, True),
    "neuron of 16 parts, 1000 steps": (neuron, True, True),
    "mass matrix of 35 joints": (robot, True, False),
    "mass matrices of 256 robots": (robots, True, False),
    "Kalman filter, 1000 steps": (kalman, False, True),
    "beliefs in dictionaries, 2000 steps": (beliefs, False, True),
    "scan over 60 scalars": (leaves, False, True),
    "scan over 3x3 matrices": (matrices, True, True),
    "10,000 solves of 4x4": (solves, False, True),
    "squared differences of a volume": (differences, False, True),
    "while of a million steps": (long_while, False, False),
    "transform of 128^3": (transform, False, False),
}


def made(m: Any, name: str, gradient: bool) -> tuple[Callable[[], Any], float, float]:
    """One run of a program, the seconds of its definition and first call, and a number that its result comes to."""
    program, x64, _ = PROGRAMS[name]
    m.config.update("jax_enable_x64", x64)
    fun, args = program(m)
    np.ones(1 << 25)  # a virtual machine may have to fetch memory from its host: not whoever happens to come first
    start = time.perf_counter()
    compiled, args = m.jit(m.grad(fun) if gradient else fun), m.device_put(args)
    result = m.block_until_ready(compiled(*args))
    first = time.perf_counter() - start
    value = float(sum(np.abs(np.asarray(x)).sum() for x in m.tree_util.tree_leaves(result)))
    return lambda: m.block_until_ready(compiled(*args)), first, value


def serve(library: str) -> None:
    """Answers lines of JSON: [name, gradient] makes a program, [] measures it."""
    if library == "numba":
        numba_programs = importlib.import_module("benchmarks.filed.by_numba")
        make = numba_programs.made
    else:
        m = importlib.import_module(library)
        importlib.import_module(f"{library}.numpy")
        m.block_until_ready(m.jit(lambda x: x + 1)(1.0))  # what any first call loads is not a program's

        def make(name: str, gradient: bool) -> Any:
            return made(m, name, gradient)

    run: Callable[[], Any] | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked:
            answer = make(*asked)
            run, *found = answer if answer is not None else (None,)
        else:
            assert run is not None
            found = [seconds(run)]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
