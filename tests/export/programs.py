"""Functions to export, with arguments: one for each kind of thing that a program may consist of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import anima
import anima.numpy as jnp
from anima import lax, nn, random

Case = tuple[Callable[..., Any], tuple[Any, ...]]
X = jnp.asarray(np.linspace(-1.0, 2.0, 12, dtype=np.float32).reshape(3, 4))
A = jnp.eye(4) * 3.0 + jnp.asarray(np.cos(np.arange(16.0, dtype=np.float32)).reshape(4, 4))
SPD = A @ A.T


@anima.custom_jvp
def cube(x: Any) -> Any:
    return x * x * x


@cube.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return cube(*primals), 100.0 * tangents[0]  # no derivative of a cube: it shows whose rule was exported


@anima.custom_vjp
def root(x: Any) -> Any:
    return jnp.sqrt(x * x + 1.0)


root.defvjp(lambda x: (root(x), x), lambda x, ct: (ct * 7.0 * x,))


def newton(x: Any) -> Any:
    return lax.while_loop(lambda s: jnp.max(jnp.abs(s * s - x)) > 1e-3, lambda s: 0.5 * (s + x / s), x + 1.0)


def loop(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = lax.cond(jnp.sum(row) > 0, jnp.sin, lambda c: c * 0.5, carry + row)
        return carry, {"row": jnp.max(carry), "cube": cube(carry)}

    return lax.scan(step, X[0], x)


def drawn(seed: Any) -> Any:
    first, second = random.split(random.key(seed))
    return random.normal(first, (3,)), random.gamma(second, 2.5, (2,)), random.fold_in(first, 3), random.bits(
        second, (2, 2), "uint8")


def convolved(x: Any) -> Any:
    image = x.reshape(1, 3, 4, 1)
    kernel = jnp.asarray(np.arange(12, dtype=np.float32).reshape(2, 3, 1, 2))
    out = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return out, lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")


SMOOTH: dict[str, Case] = {
    "products": (lambda x, a: nn.softmax(x @ a) + jnp.einsum("ij,ij->i", x, x)[:, None], (X, A)),
    "indexing": (lambda x: x.at[jnp.array([0, 2])].add(2.0)[::-1, jnp.array([3, 0])] + x[1:, :2].sum(), (X,)),
    "loop": (loop, (X,)),
    "while": (newton, (jnp.abs(X) + 1.0,)),
    "rules": (lambda x: root(cube(x)), (X,)),
    "remat": (anima.checkpoint(lambda x: jnp.sin(jnp.sin(x)) * x), (X,)),
    "linalg": (lambda a, b: (jnp.linalg.cholesky(b), jnp.linalg.solve(a, b), *jnp.linalg.eigh(b),
                             jnp.linalg.slogdet(a)[1], jnp.linalg.inv(a)), (A, SPD)),
    "factors": (lambda a: (*jnp.linalg.qr(a), *jnp.linalg.svd(a)), (A,)),
    "fft": (lambda x: jnp.abs(jnp.fft.rfft2(x)) + jnp.fft.ifft(x).real[:, :3], (X,)),
    "convolution": (convolved, (X,)),
    "sorting": (lambda x: (jnp.sort(x, 1), jnp.median(x), lax.top_k(x, 2)[0], jnp.cumsum(x, 1), jnp.cumprod(x)), (X,)),
    "special": (lambda x: lax.lgamma(x + 3) + lax.erf(x) + jnp.power(x + 2, 1.5) + lax.digamma(x + 3), (X,)),
    "mixed": (lambda tree, n, scale=2.0: {"x": tree["x"] * scale * n, "n": n + 1, "none": None}, (
        {"x": X, "unused": (X, [X])}, jnp.arange(4))),
    "solver": (lambda a, b: lax.custom_linear_solve(
        lambda v: a @ v, b, lambda _, v: jnp.linalg.solve(a, v), lambda _, v: jnp.linalg.solve(a.T, v)), (SPD, X[0])),
}
ROUGH: dict[str, Case] = {
    "random": (drawn, (7,)),
    "keys": (lambda key: random.split(key, 3), (random.key(1),)),
    "rbg": (lambda key: random.uniform(key, (5,)), (random.key(1, impl="rbg"),)),
    "complex": (lambda x: (jnp.linalg.eig(x)[0], jnp.conj(x) * (1 + 2j)), (A.astype("complex64"),)),
    "integers": (lambda n: (n // 3, n % 3, n << 1, ~n, lax.population_count(n), jnp.argmax(n), n > 2), (
        jnp.arange(9),)),
    "small": (lambda x: [x.astype(d) for d in ("bfloat16", "float16", "float8_e4m3fn", "int4", "uint4", "bool")], (
        jnp.asarray([0.0, 1.0, 3.0]),)),
    "folds": (lambda x: (lax.reduce(x, 1.0, lambda a, b: a * b + 1.0, (1,)), jnp.tile(x, 2), jnp.histogram(x)[0]), (
        X,)),
    "empty": (lambda x: (x, jnp.sum(x), jnp.zeros((0, 3))), (jnp.zeros((2, 0)),)),
    "nothing": (lambda: (), ()),
}
CASES = SMOOTH | ROUGH
DTYPES = ["bool", "int2", "int4", "uint4", "int8", "uint16", "int32", "bfloat16", "float16", "float32", "complex64",
          "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"]


def constant(name: str) -> np.ndarray:
    """A constant of a dtype, with the least and the largest integers among its elements."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    values = np.asarray([[0.0, 1.0, 2.0], [1.0, 0.5, 4.0]])
    if name == "int2":
        values = values.astype(np.int8).astype(dtype).astype(np.float32)  # 2 and 4 are not among these
    return np.asarray(values > 0) if name == "bool" else values.astype(dtype)
