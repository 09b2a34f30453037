"""What people filed as slow: layouts, lookups, segments, stencils, small matrices under vmap, eager operations.

    python -m benchmarks.kernels [WORD ...]      only the rows whose names have one of the words
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import anima
import anima.scipy.linalg
from benchmarks.harness import HAVE_TORCH, measure, print_row
from benchmarks.routines import Routine, linear, normal

if HAVE_TORCH:
    import torch

Function = Callable[..., Any]
RNG = np.random.default_rng(0)
F32, I32 = np.float32, np.int32


def integers(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape).astype(I32)


# ---------------------------------------------------------------- layouts


def layouts() -> Iterator[Routine]:
    tall, four = normal(4096, 1024), normal(32, 128, 16, 64)
    yield Routine("transpose of 4096x1024", (tall,), lambda m: lambda x: x.T,
                  lambda x: np.ascontiguousarray(x.T), lambda x: x.t().contiguous())
    yield Routine("transpose of 1000x1000", (normal(1000, 1000),), lambda m: lambda x: x.T,
                  lambda x: np.ascontiguousarray(x.T), lambda x: x.t().contiguous())
    yield Routine("transpose of 4096x1024 int8", (integers(100, 4096, 1024).astype(np.int8),), lambda m: lambda x: x.T,
                  lambda x: np.ascontiguousarray(x.T), lambda x: x.t().contiguous())
    for order in ((0, 2, 1, 3), (0, 2, 3, 1), (3, 2, 1, 0)):
        yield Routine(f"permute of 32x128x16x64 to {order}", (four,), lambda m, o=order: lambda x: x.transpose(o),
                      lambda x, o=order: np.ascontiguousarray(x.transpose(o)),
                      lambda x, o=order: x.permute(o).contiguous())
    yield Routine("cross of 10000", (normal(10_000, 3), normal(10_000, 3)), lambda m: m.numpy.cross, np.cross,
                  lambda x, y: torch.linalg.cross(x, y))


# ---------------------------------------------------------------- lookups and segments


def by_pixels(count: int) -> dict[str, Any]:
    return {"by": lambda m: lambda i: m.numpy.zeros(count, m.numpy.int32).at[i].add(1),
            "numpy": partial(np.bincount, minlength=count), "torch": lambda i: torch.bincount(i, minlength=count)}


def k_means(module: Any) -> Function:
    """One step: the nearest of 64 centres, and their new places."""
    jnp = module.numpy

    def step(x: Any, c: Any) -> Any:
        near = jnp.argmin((c * c).sum(1) - 2 * x @ c.T, axis=1)
        total = jnp.zeros_like(c).at[near].add(x)
        return total / jnp.maximum(jnp.zeros(len(c), c.dtype).at[near].add(1.0), 1.0)[:, None]

    return step


def lookups() -> Iterator[Routine]:
    table, ids = normal(50_000, 128), integers(50_000, 1024, 32)
    yield Routine("embedding and sum", (table, ids), lambda m: lambda t, i: t[i].sum(1), lambda t, i: t[i].sum(1),
                  lambda t, i: torch.nn.functional.embedding_bag(i, t, mode="sum"))
    yield Routine("embedding", (table, ids), lambda m: lambda t, i: t[i], lambda t, i: t[i],
                  lambda t, i: torch.nn.functional.embedding(i, t))
    yield Routine("gradient of embedding", (table, ids), lambda m: m.grad(lambda t, i: (t[i].sum(1)**2).sum()))
    for count in (256, 65_536):
        yield Routine(f"histogram of 1e6 into {count}", (integers(count, 1_000_000),), **by_pixels(count))
    yield Routine("k-means by scatter", (normal(20_000, 16), normal(64, 16)), k_means)


# ---------------------------------------------------------------- stencils, filters, small features


def diffusion(module: Any) -> Function:
    """The gradient of 20 steps of a three-dimensional stencil."""
    roll, lax = module.numpy.roll, module.lax

    def loss(x: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            around = sum(roll(x, s, axis) for axis in range(3) for s in (1, -1))
            return x + 0.1 * (around - 6.0 * x), None

        return (lax.scan(step, x, None, length=20)[0] ** 2).sum()

    return module.grad(loss)


def total_variation(module: Any) -> Function:
    jnp = module.numpy
    return module.grad(lambda x: sum(jnp.abs(jnp.diff(x, axis=a)).sum() for a in range(3)))


def logistic(module: Any) -> Function:
    jnp = module.numpy
    return module.grad(lambda w, x, y: jnp.log1p(jnp.exp(-y * (x @ w))).mean())


def stencils() -> Iterator[Routine]:
    yield Routine("gradient of a stencil 48^3, 20 steps", (normal(48, 48, 48),), diffusion)
    yield Routine("gradient of total variation 192^3", (normal(192, 192, 192),), total_variation)
    yield Routine("convolve of 100000 by 100", (normal(100_000), normal(100)),
                  lambda m: lambda x, k: m.numpy.convolve(x, k, mode="same"), partial(np.convolve, mode="same"))
    yield Routine("logistic gradient 10000x5", (normal(5), normal(10_000, 5), np.sign(normal(10_000))), logistic)


# ---------------------------------------------------------------- matrices


def robot(module: Any, joints: int = 35) -> Function:
    """The mass matrix of a chain of joints, from products of 4x4 matrices."""
    jnp = module.numpy

    def mass(q: Any) -> Any:
        pose, poses = jnp.eye(4), []
        for k in range(joints):
            c, s = jnp.cos(q[k]), jnp.sin(q[k])
            if k % 2:
                turn = jnp.array([[c, -s, 0, 0.1], [s, c, 0, 0], [0, 0, 1, 0.2], [0, 0, 0, 1]])
            else:
                turn = jnp.array([[c, 0, s, 0.1], [0, 1, 0, 0], [-s, 0, c, 0.2], [0, 0, 0, 1]])
            pose = pose @ turn
            poses.append(pose)
        places = jnp.stack([p[:3, 3] for p in poses])
        axes = jnp.stack([p[:3, 2] for p in poses])
        arms = places[None, :, :] - places[:, None, :]
        jacobian = jnp.cross(axes[:, None, :], arms) * (jnp.arange(joints)[:, None] <= jnp.arange(joints))[..., None]
        return jnp.einsum("ikc,jkc->ij", jacobian, jacobian)

    return mass


def small_matrices() -> Iterator[Routine]:
    yield Routine("inv of 20000 x 4x4", (normal(20_000, 4, 4),), **linear("inv"))
    for n, count in ((16, 1000), (32, 256)):
        a = normal(count, n, n)
        positive = (a @ a.swapaxes(1, 2) + np.eye(n, dtype=F32)).astype(F32)
        yield Routine(f"cholesky of {count} x {n}x{n}", (positive,), **linear("cholesky"))
        yield Routine(f"eigh of {count} x {n}x{n}", (positive,), **linear("eigh"))
    yield Routine("svd of 200x100", (normal(200, 100),), lambda m: partial(m.numpy.linalg.svd, full_matrices=False),
                  partial(np.linalg.svd, full_matrices=False), lambda x: torch.linalg.svd(x, full_matrices=False))
    yield Routine("mass matrix of 35 joints", (normal(35),), robot)
    yield Routine("mass matrix of 35 joints, 256 lanes", (normal(256, 35),), lambda m: m.vmap(robot(m)))
    small = [integers(200, 512, 512).astype(np.int8) for _ in range(2)]
    yield Routine("int8 product 512", tuple(small), lambda m: lambda a, b: m.lax.dot(
        a, b, preferred_element_type=m.numpy.int32), None, lambda a, b: torch._int_mm(a, b))
    yield Routine("int8 product 512, int8 result", tuple(small), lambda m: lambda a, b: a @ b)
    yield Routine("complex product 256", tuple((normal(256, 256) + 1j * normal(256, 256)).astype(np.complex64)
                                               for _ in range(2)), lambda m: m.numpy.matmul, np.matmul,
                  lambda a, b: a @ b)


# ---------------------------------------------------------------- loops


def lorenz(module: Any, steps: int = 1000) -> Function:
    """Runge-Kutta 4 for the Lorenz system in lanes."""
    jnp = module.numpy

    def slope(s: Any) -> Any:
        x, y, z = s[0], s[1], s[2]
        return jnp.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z])

    def run(s: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            h = 0.01
            k1 = slope(s)
            k2 = slope(s + h / 2 * k1)
            k3 = slope(s + h / 2 * k2)
            k4 = slope(s + h * k3)
            return s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return module.lax.scan(step, s, None, length=steps)[0]

    return module.vmap(run)


def lstm(module: Any) -> Function:
    """The gradient of a loss of a long short-term memory by its weights."""
    jnp, lax = module.numpy, module.lax

    def sigmoid(x: Any) -> Any:
        return 1.0 / (1.0 + jnp.exp(-x))

    def loss(weights: Any, xs: Any) -> Any:
        w, u, b = weights

        def step(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
            c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
            h = sigmoid(o) * jnp.tanh(c)
            return (h, c), None

        zero = jnp.zeros((xs.shape[1], u.shape[0]), xs.dtype)
        return (lax.scan(step, (zero, zero), xs)[0][0] ** 2).sum()

    return lambda w, u, b, xs: module.grad(loss)((w, u, b), xs)


def lstm_by_torch(w: Any, u: Any, b: Any, xs: Any) -> Any:
    cell = lstm_cell(w, u, b)
    cell.zero_grad()
    loss = (cell(xs)[1][0] ** 2).sum()
    loss.backward()
    return loss


def lstm_cell(w: Any, u: Any, b: Any, kept: dict[int, Any] = {}) -> Any:  # noqa: B006
    if 0 not in kept:
        kept[0] = torch.nn.LSTM(w.shape[0], u.shape[0])
    return kept[0]


def switching(module: Any) -> Function:
    branches = [lambda x: x + 1.0, lambda x: x * 2.0, lambda x: x * x, lambda x: -x]
    return module.vmap(lambda i, x: module.lax.switch(i, branches, x))


def sieve(module: Any, n: int = 100_000) -> Function:
    """The primes below n: a traced remainder strikes the multiples of each number."""
    jnp, lax = module.numpy, module.lax

    def run(alive: Any) -> Any:
        number = jnp.arange(alive.shape[0])
        return lax.fori_loop(2, 318, lambda k, a: a & ((number % k != 0) | (number == k)), alive)

    return run


def newton(module: Any) -> Function:
    """A short while over small vectors."""
    jnp, lax = module.numpy, module.lax

    def run(x: Any) -> Any:
        def body(s: Any) -> Any:
            k, y = s
            return k + 1, y - 0.5 * (y * y - x) / y

        return lax.while_loop(lambda s: (s[0] < 20) & (jnp.abs(s[1] * s[1] - x).sum() > -1.0), body,
                              (0, jnp.ones_like(x)))[1].sum()

    return run


def beam(module: Any, width: int = 8, words: int = 1000) -> Function:
    """Beam search over a table of transitions."""
    jnp, lax = module.numpy, module.lax

    def run(table: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            scores, last = carry
            new = (scores[:, None] + table[last]).reshape(-1)
            scores, at = lax.top_k(new, width)
            return (scores, at % words), (at // words, at % words)

        return lax.scan(step, (jnp.zeros(width), jnp.arange(width)), None, length=50)

    return run


def likelihood(module: Any) -> Function:
    """Of data under a Gaussian process: a dense matrix of each row, its factor, a solution."""
    jnp = module.numpy

    def one(t: Any, y: Any) -> Any:
        matrix = jnp.exp(-(t[:, None] - t) ** 2) + 0.1 * jnp.eye(t.shape[0])
        factor = jnp.linalg.cholesky(matrix)
        solved = module.scipy.linalg.solve_triangular(factor, y, lower=True)
        return 0.5 * solved @ solved + jnp.log(jnp.diag(factor)).sum()

    return one


def kalman(module: Any, n: int = 24) -> Function:
    """A filter whose matrices have n rows, over a sequence of eight measurements each."""
    jnp, lax = module.numpy, module.lax

    def run(ys: Any) -> Any:
        f, q, r, h = 0.9 * jnp.eye(n) + 0.01, 0.1 * jnp.eye(n), 0.5 * jnp.eye(8), jnp.eye(8, n)

        def step(carry: Any, y: Any) -> Any:
            mean, p = f @ carry[0], f @ carry[1] @ f.T + q
            s, left = h @ p @ h.T + r, y - h @ mean
            gain = jnp.linalg.solve(s, h @ p).T
            return (mean + gain @ left, p - gain @ s @ gain.T), left @ left

        return lax.scan(step, (jnp.zeros(n), jnp.eye(n)), ys)[1].sum()

    return run


def mapped(module: Any, make: Callable[[Any], Function], gradient: bool = False) -> Function:
    one = module.grad(make(module)) if gradient else make(module)
    return lambda *rows: module.lax.map(lambda row: one(*row), rows)


def competing(module: Any, steps: int = 100) -> Function:
    """Lotka and Volterra's equations for several kinds, by Runge-Kutta 4, in lanes."""
    def run(x: Any, a: Any) -> Any:
        def slope(x: Any) -> Any:
            return x * (1.0 - a @ x)

        def step(x: Any, _: Any) -> Any:
            h = 0.05
            k1 = slope(x)
            k2 = slope(x + h / 2 * k1)
            k3 = slope(x + h / 2 * k2)
            k4 = slope(x + h * k3)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return module.lax.scan(step, x, None, length=steps)[0]

    return module.vmap(run, (0, None))


def escape(module: Any, steps: int = 100) -> Function:
    """For each point of the plane, the steps for which z * z + c stays near: of Mandelbrot's set, all."""
    jnp = module.numpy

    def run(x: Any, y: Any) -> Any:
        def step(_: Any, s: Any) -> Any:
            a, b, n = s
            new, other = a * a - b * b + x, 2 * a * b + y
            near = new * new + other * other < 4
            return jnp.where(near, new, a), jnp.where(near, other, b), n + near
        return module.lax.fori_loop(0, steps, step, (0 * x, 0 * y, jnp.zeros(x.shape, jnp.int32)))[2]

    return run


def loops() -> Iterator[Routine]:
    yield Routine("Lorenz in 256 lanes, 1000 steps", (normal(256, 3),), lorenz)
    kinds = np.abs(normal(6, 6)) / 6
    yield Routine("six kinds in 100 lanes, 100 steps", (np.abs(normal(100, 6)), kinds), competing)
    yield Routine("six kinds in 1000 lanes, 100 steps", (np.abs(normal(1000, 6)), kinds), competing)
    y, x = np.mgrid[-1.5:1.5:600j, -2:1:800j].astype(F32)
    yield Routine("steps of 600x800 points, 100", (x, y), escape)
    n = 128
    weights = (normal(n, 4 * n) * 0.05, normal(n, 4 * n) * 0.05, np.zeros(4 * n, F32))
    yield Routine("LSTM gradient 64 steps 32x128", (*weights, normal(64, 32, n)), lstm, None, lstm_by_torch)
    yield Routine("switch in 100000 lanes", (integers(4, 100_000), normal(100_000)), switching)
    yield Routine("sieve by remainders", (np.ones(100_000, bool),), sieve)
    short = np.abs(normal(8)) + 1
    yield Routine("while over 8, 20 steps", (short,), newton)
    yield Routine("gradient of while over 8, 20 steps", (short,), lambda m: (
        m.grad(newton(m)) if m is anima else m.jacfwd(newton(m))))
    yield Routine("gradients of while, 1000 lanes", (np.abs(normal(1000, 8)) + 1,), lambda m: (
        m.vmap(m.grad(newton(m))) if m is anima else m.vmap(m.jacfwd(newton(m)))))
    yield Routine("beam search", (normal(1000, 1000),), beam)
    processes = normal(64, 120), normal(64, 120)
    yield Routine("map of 64 Gaussian processes", processes, partial(mapped, make=likelihood))
    yield Routine("map of 64 gradients of them", processes, partial(mapped, make=likelihood, gradient=True))
    yield Routine("map of 32 Kalman filters", (normal(32, 100, 8),), partial(mapped, make=kalman))


# ---------------------------------------------------------------- attention


def attention(module: Any, **options: Any) -> Function:
    return lambda q, k, v: module.nn.dot_product_attention(q, k, v, **options)


def attention_by_torch(q: Any, k: Any, v: Any, **options: Any) -> Any:
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    return torch.nn.functional.scaled_dot_product_attention(*heads, **options)


def attentions() -> Iterator[Routine]:
    """Scores of all pairs of positions, (batch, positions, heads, features)."""
    for shape in ((8, 128, 8, 64), (2, 1024, 8, 64), (4, 2048, 8, 32)):
        arrays = normal(*shape), normal(*shape), normal(*shape)
        name = "x".join(map(str, shape))
        yield Routine(f"attention {name}", arrays, attention, None, attention_by_torch)
        yield Routine(f"causal attention {name}", arrays, partial(attention, is_causal=True), None,
                      partial(attention_by_torch, is_causal=True))
    x, w = normal(5000, 3), normal(5000)
    yield Routine("kernel of 5000 points by a vector", (x, w), pairs, None, pairs_by_torch)


def pairs(module: Any) -> Function:
    jnp = module.numpy

    def run(x: Any, w: Any) -> Any:
        squares = (x * x).sum(1)
        return jnp.exp(-0.5 * (squares[:, None] + squares - 2.0 * x @ x.T)) @ w

    return run


def pairs_by_torch(x: Any, w: Any) -> Any:
    squares = (x * x).sum(1)
    return torch.exp(-0.5 * (squares[:, None] + squares - 2.0 * x @ x.T)) @ w


# ---------------------------------------------------------------- streams


def streams() -> Iterator[Routine]:
    rows = normal(4096, 1024)
    yield Routine("x + 1 of 4e6", (rows,), lambda m: lambda x: x + 1, lambda x: x + 1, lambda x: x + 1)
    yield Routine("tanh of 4e6", (rows,), lambda m: m.numpy.tanh, np.tanh, lambda x: torch.tanh(x))
    yield Routine("argmax of rows of 1024", (rows,), lambda m: lambda x: m.numpy.argmax(x, 1), lambda x: x.argmax(1),
                  lambda x: x.argmax(1))
    yield Routine("sum of columns 4096x1024", (rows,), lambda m: lambda x: x.sum(0), lambda x: x.sum(0),
                  lambda x: x.sum(0))
    yield Routine("(1 - x) ** 2.0 + x ** 3.0 of 1e6", (normal(1_000_000),),
                  lambda m: lambda x: (1 - x) ** 2.0 + x ** 3.0, None, lambda x: (1 - x) ** 2.0 + x ** 3.0)
    yield Routine("softmax of rows of 1024", (rows,), lambda m: lambda x: m.nn.softmax(x), None,
                  lambda x: torch.softmax(x, -1))


# ---------------------------------------------------------------- outside of jit


def four_layers(tanh: Function) -> Function:
    def run(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = tanh(x @ w)
        return x

    return run


def layer_gradient(module: Any) -> Function:
    jnp = module.numpy
    return module.grad(lambda w, b, x: (jnp.tanh(x @ w + b) ** 2).sum(), argnums=(0, 1))


def layer_gradient_by_torch(w: Any, b: Any, x: Any) -> Any:
    w.requires_grad_(True)
    b.requires_grad_(True)
    return torch.autograd.grad((torch.tanh(x @ w + b) ** 2).sum(), (w, b))


def eager() -> Iterator[Routine]:
    """Single operations: what a call of each costs, and large arrays."""
    x, w, b = normal(32, 64), normal(64, 64) / 8, normal(64)
    routine = partial(Routine, eager=True)
    yield routine("x + 1, eager", (normal(4),), lambda m: lambda x: x + 1, lambda x: x + 1, lambda x: x + 1)
    yield routine("x @ w + b, eager", (x, w, b), lambda m: lambda x, w, b: x @ w + b, lambda x, w, b: x @ w + b,
                  lambda x, w, b: x @ w + b)
    yield routine("four layers of 32x64, eager", (x, w), lambda m: four_layers(m.numpy.tanh), four_layers(np.tanh),
                  four_layers(lambda x: torch.tanh(x)))
    yield routine("gradient of a layer, eager", (w, b, x), layer_gradient, None, layer_gradient_by_torch)
    yield routine("tanh(x) * 2 + x of 2e6, eager", (normal(2_000_000),), lambda m: lambda x: m.numpy.tanh(x) * 2 + x,
                  lambda x: np.tanh(x) * 2 + x, lambda x: torch.tanh(x) * 2 + x)
    yield routine("selu of 1e6, eager", (normal(1_000_000),), lambda m: m.nn.selu, None,
                  lambda x: torch.nn.functional.selu(x))


def routines() -> Iterator[Routine]:
    for group in (layouts, lookups, stencils, small_matrices, loops, attentions, streams, eager):
        yield from (replace(routine, limited=group in (layouts, streams)) for routine in group())


def main(words: list[str] | None = None) -> None:
    print("median of each; N x = takes N times as long as Anima")
    for routine in routines():
        if not words or any(w in routine.name for w in words):
            case = routine.case()
            print_row(case.name, measure(case))


if __name__ == "__main__":
    main(sys.argv[1:])
