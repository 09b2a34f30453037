"""Calls of the library outside of `jit`, on small arrays and on large ones, beside NumPy where it has the same, and
beside JAX where it is installed.

    python -m benchmarks.eager [WORD ...]       only the rows that have one of the words
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

import anima
from benchmarks.harness import HAVE_JAX, Case, report

if HAVE_JAX:
    import jax

WARM = 0.1  # seconds: functions that are called often are compiled after 0.01 s of it
CALLS = """
x + y; x - 1; x * 2.5; x / y; x // y; x % y; x ** 2; x ** 0.5; -x; abs(x); x @ y; x > y; n >> 1; x[0]; x[1:5]
x[::2, 1:]
x[i]; x.at[0].set(1.0); x.at[i].add(1.0); x.T; x.reshape(-1); x.astype(jnp.int32); x.sum(); x.mean(0); x.std(); x.max()
x.argmax(); x.cumsum(); float(x[0, 0]); jnp.zeros((3, 3)); jnp.arange(10); jnp.linspace(0, 1, 10); jnp.eye(4)
jnp.asarray([1.0, 2.0]); jnp.sin(x); jnp.exp(x); jnp.tanh(x); jnp.hypot(x, y); jnp.maximum(x, 0); jnp.where(x > 0, x, 0)
jnp.clip(x, -1, 1); jnp.mod(x, 3); jnp.gcd(n, 6); jnp.isclose(x, y); jnp.concatenate([x, y]); jnp.stack([v, u])
jnp.split(x, 4); jnp.moveaxis(t, 0, -1); jnp.roll(v, 1); jnp.pad(x, 1); jnp.take(v, i); jnp.searchsorted(u, v)
jnp.bincount(i); jnp.sort(v); jnp.argsort(v); jnp.median(v); jnp.quantile(v, 0.3); jnp.cov(x); jnp.diff(v)
jnp.gradient(v)
jnp.interp(v, jnp.sort(u), v); jnp.convolve(v, u[:5]); jnp.cross(x[:, :3], y[:, :3]); jnp.outer(v, u); jnp.kron(q, q)
jnp.einsum("ij,kj->ik", x, y); jnp.dot(v, u); linalg.norm(v); linalg.inv(s); linalg.solve(s, v[:16]); linalg.det(s)
n / n; jnp.sin(n); jnp.arctan2(n, n); jnp.nanmedian(v); jnp.i0(v); jnp.poly(q); jnp.unwrap(v); jnp.polymul(v, u[:5])
linalg.slogdet(s); linalg.cholesky(s); linalg.qr(x); linalg.svd(x); linalg.eigh(s); jnp.fft.rfft(v); jnp.fft.fft2(x)
nn.relu(x); nn.softmax(x); nn.gelu(x); nn.one_hot(i, 16); nn.logsumexp(x); random.split(key); random.fold_in(key, 3)
random.normal(key, (10,)); random.uniform(key); random.randint(key, (5,), 0, 10); random.bernoulli(key)
random.permutation(key, 10); random.choice(key, 10, (3,)); random.categorical(key, x); random.gamma(key, 2.0)
special.erf(x); special.gammaln(p); special.ndtr(x); special.betaln(p, p); special.i0(x); stats.norm.logpdf(x)
special.gamma(p); special.comb(p, 1.5); special.erfinv(u * 0.1); matrices.lu(s); matrices.expm(s * 0.01)
matrices.cho_solve(matrices.cho_factor(s), v[:16]); matrices.lu_solve(matrices.lu_factor(s), v[:16])
matrices.solve_triangular(s, v[:16]); matrices.sqrtm(s); matrices.polar(s); matrices.block_diag(q, q)
lax.linalg.eigh(s); lax.linalg.qr(x); random.split(raw); random.normal(raw, (10,)); random.uniform(raw, (10,))
stats.rankdata(v); signal.convolve(v, u[:5]); ndimage.map_coordinates(x, [v, u], 1)
stats.norm.cdf(x); stats.gamma.logpdf(p, 2.0); stats.beta.logpdf(p * 0.01, 2.0, 3.0); lax.dynamic_slice(v, (3,), (4,))
lax.top_k(v, 5); lax.fori_loop(0, 10, lambda k, a: a + 1.0, v); lax.scan(lambda a, b: (a + b, a), 0.0, v)
m.grad(lambda a: jnp.sum(jnp.sin(a) ** 2))(v); m.jvp(jnp.sin, (v,), (u,)); m.vjp(jnp.tanh, v)[1](u)
m.vmap(jnp.dot)(x, y); m.jacfwd(jnp.sin)(q[0]); m.hessian(lambda a: (a ** 3).sum())(q[0])
m.tree.map(lambda a, b: a - 0.1 * b, tree, tree); m.device_put(host)
"""

LARGE = """
X + 1; X * Y + X; jnp.exp(X); jnp.tanh(X) * 2 + X; X.sum(); X.mean(); X.var(); X.reshape(1000, -1).sum(0); X.cumsum()
linalg.norm(X); nn.softmax(X.reshape(-1, 100)); jnp.sort(X); jnp.histogram(X, 50); X.at[I].add(1.0); H + 1; H * H + H
jnp.exp(H); H.sum(); jnp.clip(H, 0, 1); jnp.where(H > 0, H, 0); B * B + B; B.mean(); N.reshape(1000, -1).sum(0)
N.reshape(1000, -1)[:, :500] @ N.reshape(1000, -1)[:500, :500]; jnp.exp(C); C / (C + 1); Q.reshape(1000, -1) @ Q[:2000]
"""  # X, Y: 2e6 of float32; H: float16; B: bfloat16; C: complex64; N: int32; Q: int8; I are places


def names(m: Any) -> dict[str, Any]:
    """What the calls are about, in a library."""
    rng = np.random.default_rng(0)
    jnp = m.numpy

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape).astype(np.float32))

    x, y, v, u = normal(16, 16), normal(16, 16), normal(64), normal(64)
    large = normal(2_000_000)
    scipy = {part: importlib.import_module(f"{m.__name__}.scipy.{part}")
             for part in ("linalg", "ndimage", "signal", "special", "stats")}
    return {"m": m, "jnp": jnp, "lax": m.lax, "nn": m.nn, "random": m.random, **scipy, "matrices": scipy["linalg"],
            "linalg": jnp.linalg,
            "x": x, "y": y, "v": v, "u": jnp.sort(u), "p": abs(x) + 0.1, "q": normal(3, 3), "t": normal(4, 8, 8),
            "s": x @ x.T + 16 * jnp.eye(16), "i": jnp.asarray(rng.integers(0, 16, 20)), "n": jnp.arange(64),
            "X": large, "Y": normal(2_000_000), "H": large.astype("float16"), "B": large.astype("bfloat16"),
            "C": large + 1j * large, "N": (large * 9).astype("int32"), "Q": (large * 9).astype("int8"),
            "I": jnp.asarray(rng.integers(0, 1000, 200_000)), "key": m.random.key(0), "raw": m.random.PRNGKey(0),
            "tree": {"a": x, "b": [v, u]}, "host": np.ones(4, np.float32)}


def run(call: CodeType, m: Any, scope: dict[str, Any]) -> Callable[[], Any]:
    fun = eval(call, scope)
    return fun if m is anima else lambda: m.block_until_ready(fun())  # Anima's results are there when it returns


def by_numpy(call: CodeType, scope: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """The same text where NumPy has what it says."""
    own = {name: np.asarray(x) for name, x in scope.items()
           if name not in ("key", "raw") and isinstance(x, anima.Array)}
    fun = eval(call, {"jnp": np, "linalg": np.linalg, **own})
    try:
        fun()
    except (AttributeError, NameError, TypeError):
        return {}
    return {"numpy": fun}


def cases(words: list[str]) -> list[Case]:
    libraries = {"anima": anima, **({"jax": jax} if HAVE_JAX else {})}
    scopes = {who: names(m) for who, m in libraries.items()}
    texts = [t.strip() for t in (CALLS + LARGE).replace("\n", ";").split(";") if t.strip()]
    found = []
    for text in texts:
        if not words or any(w in text for w in words):
            call = compile(f"lambda: {text}", text, "eval")
            found.append(Case(text, {who: run(call, m, scopes[who]) for who, m in libraries.items()}
                              | by_numpy(call, scopes["anima"]), warm=WARM))
    return found


def main(words: list[str] | None = None) -> None:
    report(cases(words or []), "Calls outside of jit")


if __name__ == "__main__":
    main(sys.argv[1:])
