"""Programs whose outlines are in `outlines.txt`: near every condition under which a pass acts, on both sides of it.

Sizes are written as numbers, not as the compiler's constants: a constant that changes, changes an outline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from anima import lax
from anima.ops.threefry import threefry2x32_p
from tests.compiler import test_hoist_near as near, test_overwrite as overwrite

Programs = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def whole(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Small whole numbers: sums of them are the same in every order."""
    return (np.arange(np.prod(shape, dtype=int)) * 7 % 5 - 2).reshape(shape).astype(dtype)


def cheap(x: Any, n: int) -> Any:
    """`n` operations of cost 1."""
    for k in range(n):
        x = x + k if k % 2 else jnp.maximum(x, k)
    return x


def shapes(n: int, limit: str, program: Callable[[int], tuple[Callable[..., Any], tuple[Any, ...]]]) -> Programs:
    """A program of sizes n - 1, n and n + 1."""
    return {f"{limit} {k}": program(k) for k in (n - 1, n, n + 1)}


X, Y, V = whole(12, 20), whole(12, 20)[::-1].copy(), whole(20)
LINE, BIG = whole(33), whole(64, 80)


# ---------------------------------------------------------------- what goes to memory, which roots share a kernel

def steep(x: Any) -> Any:
    return jnp.exp(-x * x)


WORDS = np.arange(4, dtype=np.uint32)


def words(x: Any) -> list[Any]:
    return threefry2x32_p.bind(x, x, x, x)


FUSED: Programs = {
    **shapes(6, "cheap, used by two kernels", lambda n: (lambda x: [cheap(x, n).sum(0), cheap(x, n).T], (X,))),
    **shapes(6, "cheap, used twice, moved", lambda n: (lambda x: cheap(x, n)[::-1] + cheap(x, n), (X,))),
    **shapes(6, "cheap, repeated along columns", lambda n: (lambda x, v: x - cheap(v, n), (X, V))),
    **shapes(3, "padded, read often", lambda n: (
        lambda x: sum(jnp.pad(x + 1, 2)[k:k + 33] * (k + 1) for k in range(n)), (LINE,))),
    **shapes(3, "cropped, read often", lambda n: (
        lambda x: sum(lax.pad(x + 1, np.float32(0), [(-2, -2, 0)])[k:k + 20] * (k + 1) for k in range(n)), (LINE,))),
    **shapes(3, "joined, then read backwards", lambda n: (
        lambda x: jnp.concatenate([x + k for k in range(n)])[::-2] * 3, (LINE,))),
    **shapes(4, "joined, of costly parts", lambda n: (
        lambda x: jnp.concatenate([steep(x) + k for k in range(n)])[::-2] * 3, (LINE,))),
    **shapes(40, "joined, of many parts", lambda n: (
        lambda x: jnp.concatenate([x[:2] * k for k in range(n)]) + 1, (LINE,))),
    **shapes(40, "moved often", lambda n: (lambda x: [rolled(x, n), rolled(x, n).T + 1], (whole(5, 7),))),
    **shapes(24, "results", lambda n: (lambda x: [x + k for k in range(n)], (V,))),
    **shapes(4096, "apart, small", lambda n: (lambda x, y: [x + 1, y * 2], (whole(n), whole(n)))),
    **shapes(4096, "apart, the second sums", lambda n: (lambda x, y: [x + 1, y.sum()], (whole(n), whole(n)))),
    **shapes(1024, "in boxes and summed", lambda n: (
        lambda x, y: (jnp.concatenate([x, y]) * 2).sum(), (whole(n - 5), whole(5)))),
    **shapes(1024, "in boxes, beside a sum", lambda n: (
        lambda x, y: [(z := jnp.concatenate([x, y]) + 1), (z * z).sum()], (whole(n - 5), whole(5)))),
    **{f"gathered {n}": (lambda x, i: steep(x)[i], (whole(100), np.arange(n, dtype=np.int32) % 100))
       for n in (1, 100, 150, 151, 300)},
    **{f"spread {n}": (lambda v, n=n: jnp.broadcast_to(steep(v)[:, None], (20, n)) + 1, (V,)) for n in (1, 2, 3)},
    **{f"spread in front {n}": (lambda v, n=n: jnp.broadcast_to(steep(v), (n, 20)) + 1, (V,)) for n in (1, 2, 3)},
    "softmax": (lambda x: (e := jnp.exp(x - x.max(1, keepdims=True))) / e.sum(1, keepdims=True), (X,)),
    "softmax over columns": (lambda x: (e := jnp.exp(x - x.max(0, keepdims=True))) / e.sum(0, keepdims=True), (X,)),
    "softmax over all": (lambda x: (e := jnp.exp(x - x.max())) / e.sum(), (X,)),
    "softmax of three dimensions": (lambda x: (e := jnp.exp(x - x.max((0, 2), keepdims=True)))
                                    / e.sum((0, 2), keepdims=True), (whole(4, 5, 12),)),
    "sums over two axes": (lambda x: [x.sum(0), x.sum(1), (x * 2).sum(0), (x + 1).sum(1)], (X,)),
    "a sum of a sum": (lambda x: [x.sum(1).sum(), x.sum(1) * 2, x.sum(0).max()], (X,)),
    "a sum beside what it is of": (lambda x: [(e := steep(x)), e.sum(1), e.T, e.sum()], (X,)),
    "what needs a sum of other rows": (lambda x: x - x.sum(1)[::-1][:, None], (X,)),
    "what needs a sum of its column": (lambda x: x - x.sum(1)[:, None] + x.sum(0), (X,)),
    "a square, sums turned": (lambda x: x - x.sum(1), (whole(20, 20),)),
    "rows, then a product, then rows": (lambda x: (r := x - x.max(1, keepdims=True)) + (r @ r.T).sum() * r, (X,)),
    "what a kernel between keeps apart": (lambda x: [(y := steep(x)) + jnp.cumsum(y, 0), y * 2, jnp.sort(y, 1)], (X,)),
    "a short axis": (lambda x: [x.sum(1), x.max(1), (x - x.sum(1, keepdims=True)) * 2], (whole(50, 3),)),
    "a short axis in front": (lambda x: [x.sum(0), (x - x.sum(0)) * 2], (whole(3, 50),)),
    "a sum of a turned array": (lambda x, y: (x.T + y.reshape(20, 12)).sum(0), (X, Y)),
    "sums of nothing": (lambda x: [x.sum(1), x.sum(0), x.sum()], (whole(0, 3),)),
    "one element": (lambda x: [steep(x), steep(x)[::-1], x.sum()], (whole(1),)),
    "views": (lambda x: [steep(x).reshape(5, 48), steep(x).reshape(-1)[None], steep(x)], (X,)),
    "a view that is read elsewhere": (lambda x: (v := steep(x).reshape(20, 12))[::-1] + v, (X,)),
    "a view of an argument": (lambda x: [x.reshape(20, 12), x.reshape(20, 12).T + 1], (X,)),
    "rolled": (lambda x: jnp.roll(x, 3, 0) + jnp.roll(x, -2, 1), (BIG,)),
    "rolled, and summed": (lambda x: [(y := jnp.roll(x, 1, 0) + jnp.roll(x, 1, 1)), (y * y).sum()], (BIG,)),
    "rolled, small, and summed": (lambda x: [(y := jnp.roll(x, 1, 0) + jnp.roll(x, 1, 1)), (y * y).sum()], (X,)),
    "edges twice": (lambda x: (p := jnp.pad(x, 1, "edge"))[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:], (X,)),
    "padded inside": (lambda x: lax.pad(x, np.float32(9), [(1, 2, 1), (0, 0, 0)]) + 1, (X,)),
    "padded by less than nothing": (lambda x: lax.pad(x + 1, np.float32(9), [(-1, 2, 0), (3, -2, 0)]) * 2, (X,)),
    "every other of joined": (lambda x, y: jnp.concatenate([x, y], 1)[:, ::2] + 1, (X, Y)),
    "joined, turned": (lambda x, y: jnp.concatenate([x, y], 1).T + 1, (X, Y)),
    "joined columns of rows": (lambda v: jnp.stack([v, v + 1], 1).reshape(-1) * 2, (V,)),
    "joined in two dimensions": (lambda x, y: jnp.block([[x, y], [y, x + 1]]) * 2, (X, Y)),
    "random bits": (lambda k: anima.random.bits(k, (8,)), (np.array([1, 2], np.uint32),)),
    "random bits, an odd number": (lambda k: anima.random.uniform(k, (9, 3)) * 2, (np.array([1, 2], np.uint32),)),
    "random bits, summed": (lambda k: anima.random.uniform(k, (8, 4)).sum(1), (np.array([1, 2], np.uint32),)),
    "random bits, all summed": (lambda k: anima.random.bits(k, (8,)).sum(), (np.array([1, 2], np.uint32),)),
    "random bits, the largest of an odd number": (lambda k: anima.random.bits(k, (9,)).max(),
                                                  (np.array([1, 2], np.uint32),)),
    "halves of a block": (lambda x: [jnp.concatenate(words(x)) + x[0], jnp.concatenate(words(x)[::-1]) + x[0],
                                     jnp.concatenate([words(x)[0][:3], words(x)[1][:3]])], (WORDS,)),
    "halves of two blocks": (lambda x: [jnp.concatenate([words(x)[0], words(x + x[0])[0]]) + x[0],
                                        jnp.concatenate([words(x)[0], x * 3]),
                                        jnp.concatenate([x + x[0], words(x)[1]])], (WORDS,)),
    "halves that are turned": (lambda x: [jnp.concatenate([words(x)[0][::-1], words(x)[1]]) * 2,
                                          jnp.concatenate([words(x)[0][1:], words(x)[1][:3]])], (WORDS,)),
    "halves and one of them": (lambda x: [jnp.concatenate(w := words(x)), w[0][::-1] + 1], (WORDS,)),
    "random bits twice": (lambda k: (u := anima.random.bits(k, (8,))) + u[::-1], (np.array([1, 2], np.uint32),)),
    "operands of routines": (lambda x, y: [jnp.cumsum(steep(x), 0), jnp.sort(steep(y), 1), steep(x) @ y.T], (X, Y)),
    "operands of routines, used again": (lambda x, y: [(e := steep(x)), jnp.cumsum(e, 0), jnp.sort(e, 1), e @ y.T],
                                         (X, Y)),
    "operands of indices": (lambda x, i: [steep(x)[i], steep(x).at[i].set(1), x[i * 2 % 5]],
                            (X, np.array([1, 3], np.int32))),
    "the largest": (lambda x: [jnp.argmax(x, 1), jnp.argmin(steep(x), 0), jnp.argmax(x)], (X,)),
    "the largest few": (lambda x: [lax.top_k(x, 3), lax.top_k(x, 64)[0], lax.top_k(x, 65)], (whole(2, 80),)),
    "powers": (lambda x: [x ** 0.5, x ** 1.5, x ** -0.5, x ** 2.5, x ** 0.25], (np.abs(V),)),
    "polynomials": (lambda x: [jnp.sin(x)[::-1] + jnp.sin(x), jnp.sqrt(x * x)[::-1] + jnp.sqrt(x * x)], (X,)),
    **{f"large, {n} functions": (lambda x, n=n: sum(jnp.sin(x + k) for k in range(n)), (V,)) for n in (20, 30, 60)},
    **{f"large, {n} powers": (lambda x, n=n: sum(jnp.arctan2(x, x + k) for k in range(n)), (V,)) for n in (20, 24, 30)},
    **{f"large, {n} arrays": (lambda *xs: sum(xs) * 2, (V,) * n) for n in (100, 230, 240, 400)},
}


def rolled(x: Any, n: int) -> Any:
    for k in range(n):
        x = x[::-1] if k % 2 else x[:, ::-1]
        x = jnp.where(x > 100, 0, x)
    return x


# ---------------------------------------------------------------- updates and copies

UPDATES: Programs = {
    "of an argument": (lambda x: x.at[3].set(1), (X,)),
    "of a result": (lambda x: [(y := x + 1), y.at[3].set(1)], (X,)),
    "of a dying value": (lambda x: jnp.cumsum(x, 0).at[3].set(1) * 2, (X,)),
    "of a value that is read after": (lambda x: [(y := jnp.cumsum(x, 0)).at[3].set(1), y[::-1] + 1], (X,)),
    "of a value that is read before": (lambda x: [(y := jnp.cumsum(x, 0)).at[3].set(y[2] + 1), y[1].sum()], (X,)),
    **{f"after 1/{n} of it is read": (lambda x, n=n: (
        y := jnp.cumsum(x)).at[0].set(9).at[1:1 + 40 // n].add(steep(y[:40 // n])), (whole(40),)) for n in (3, 4, 5)},
    "after one element is read": (lambda x: (y := jnp.cumsum(x)).at[0].set(9) * y[3], (whole(40),)),
    "two of one value": (lambda x: [(y := jnp.cumsum(x)).at[0].set(9), y.at[1].set(8)], (V,)),
    "one after another": (lambda x: jnp.cumsum(x).at[0].set(9).at[1].add(8).at[::2].mul(3), (V,)),
    "of a constant": (lambda i: jnp.asarray(X).at[i].set(1), (np.int32(3),)),
    "a constant and its update": (lambda i: [(c := jnp.asarray(X)).at[i].set(1), c + 1], (np.int32(3),)),
    "by itself": (lambda x: (y := jnp.cumsum(x)).at[2:12].set(y[:10]), (V,)),
    "by itself, one element": (lambda x: (y := jnp.cumsum(x)).at[2].set(y[3] * 2), (V,)),
    "by itself, whole": (lambda x: (y := jnp.cumsum(x)).at[:].set(y[::-1]), (V,)),
    "of a view": (lambda x: [(y := jnp.cumsum(x)).reshape(4, 5).at[1].set(0), y.sum()], (V,)),
    "of one element of one": (lambda x: jnp.cumsum(x).at[0].set(x[0] * 2), (whole(1),)),
    "as large as the array": (lambda x: lax.dynamic_update_slice(jnp.cumsum(x), x, (0,)), (V,)),
    "an argument as a result": (lambda x: [x, x + 1, x], (X,)),
    "one value as two results": (lambda x: [(y := jnp.cumsum(x)), y, y.reshape(4, 5)], (V,)),
    "a chain of large values": (lambda x: jnp.cumsum(jnp.cumsum(jnp.cumsum(jnp.cumsum(x))[::-1])[::-1])[::-1],
                                (whole(1000),)),
    "values of other sizes": (lambda x: [jnp.cumsum(jnp.cumsum(x)[:500]).sum(), jnp.cumsum(jnp.cumsum(x[::2])).sum()],
                              (whole(1000),)),
    "values of other types": (lambda x: jnp.cumsum(jnp.cumsum(x).astype("int32")).astype("float32")[::-1],
                              (whole(1000),)),
    "turned twice": (lambda x: (jnp.cumsum(x.T + 1, 0).T + jnp.cumsum(x, 1))[::-1], (BIG,)),
}


# ---------------------------------------------------------------- control flow

def loop(step: Callable[[Any, Any], Any], trips: int = 5) -> Callable[..., Any]:
    return lambda x: lax.fori_loop(0, trips, step, x)


def rotated(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return loop(lambda k, c: c * 2 - jnp.flip(c)), (whole(n),)


def picked(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return loop(lambda k, c: jnp.stack([c[(3 * j + 1) % n] - c[j] for j in range(n)])), (whole(n),)


def indexed(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return loop(lambda k, c: c.at[k].add(1) - 1), (whole(n),)


def written_out(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def step(k: Any, c: Any) -> Any:
        for j in range(n):
            c = jnp.cumsum(c) - jnp.flip(c) * j
        return c
    return loop(step), (whole(6),)


def lanes(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(x: Any, s: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < s, lambda c: (c[0] + 1, jnp.cumsum(c[1]) % 7), (0, x))
    return anima.vmap(run), (whole(3, n), np.array([0, 2, 1], np.int32))


def carry_of(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def step(c: Any, x: Any) -> Any:
        return tuple(c[(k + 1) % n] + x for k in range(n)), c[0]
    return (lambda c, xs: lax.scan(step, c, xs)), (tuple(np.float32(k) for k in range(n)), V)


def small_values(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """As many elements of small arrays, taken apart, in the body of a loop."""
    def step(k: Any, c: Any) -> Any:
        return jnp.stack([c[1], c[0] - c[2], c[2], c[3]])

    def body(k: Any, c: Any) -> Any:
        for _ in range(n):
            c = step(k, c)
        return c
    return loop(body), (whole(4),)


CONTROL: Programs = {
    **shapes(64, "turned", rotated), **shapes(8, "turned", rotated), **shapes(8, "picked", picked),
    **shapes(64, "indexed", indexed), "indexed 2": indexed(2), "picked 3": picked(3), "turned 2": rotated(2),
    **{f"written out {n}": written_out(n) for n in (1, 8, 16, 24, 32, 48)},
    **{f"small values {n}": small_values(n) for n in (1, 10, 30)},
    **{f"lanes {n}": lanes(n) for n in (1, 2, 8, 64, 65, 160, 180, 260, 600)},
    "a carry of 1": carry_of(1), "a carry of 4": carry_of(4),
    "scan, no carry": (lambda xs: lax.scan(lambda c, x: (c, x[::-1] * 2), None, xs)[1], (X,)),
    "scan, reversed": (lambda xs: lax.scan(lambda c, x: (c + x, c * x), xs[0], xs, reverse=True), (X,)),
    "scan, no steps": (lambda c, xs: lax.scan(lambda c, x: (c + x, c), c, xs), (V, whole(0, 20))),
    "scan in a scan": (lambda xs: lax.scan(lambda c, x: lax.scan(lambda d, y: (d + y, d * y), c, x), np.float32(0), xs),
                       (X,)),
    "scan of rows of rows": (lambda xs: lax.scan(lambda c, x: lax.scan(lambda d, y: (d + y, d[::-1]), c, x), xs[0, 0],
                                                 xs, reverse=True), (whole(3, 4, 5),)),
    "rows as they are": (lambda xs: lax.scan(lambda c, x: (x, (c, x)), xs[0], xs), (X,)),
    "rows as matrices": (lambda xs: lax.scan(lambda c, x: (x.reshape(4, 5), c.T), xs[0].reshape(4, 5), xs), (X,)),
    "sorted rows": (lambda xs: lax.scan(lambda c, x: (jnp.sort(c + x), jnp.sort(x)), xs[0], xs), (X,)),
    "constants as results": (lambda xs: lax.scan(lambda c, x: (jnp.zeros(20), (1.0, jnp.ones(20), c)), xs[0], xs),
                             (X,)),
    "exchanged": (lambda x, y: lax.fori_loop(0, 3, lambda k, s: (s[1], s[0] + 1), (x, y)), (V, V * 2)),
    "exchanged, small": (lambda x, y: lax.fori_loop(0, 3, lambda k, s: (s[1], s[0] + 1), (x, y)), (V[:3], V[3:6])),
    "while": (lambda x: lax.while_loop(lambda s: s.sum() < 100, lambda s: s * s + 1, x), (V,)),
    "while, of scalars": (lambda n: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (0, 1.0)),
                          (np.int32(3),)),
    "while, an array beside": (lambda n, x: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1][::-1] + 1),
                                                           (0, x)), (np.int32(3), V)),
    "cond": (lambda p, x: lax.cond(p, lambda x: x + 1, lambda x: x[::-1], x), (True, V)),
    "cond, of scalars": (lambda p, x: lax.cond(p, lambda x: (x[0], x.sum()), lambda x: (x[1], 2.0), x), (False, V)),
    "cond, nothing": (lambda p, x: lax.cond(p, lambda x: (x, x), lambda x: (x, x + 1), x), (True, V)),
    "cond of empty": (lambda p, x: lax.cond(p, lambda x: (x, x.sum()), lambda x: (x + 1, 2.0), x), (True, V[:0])),
    "switch": (lambda i, x: lax.switch(i, [lambda x: x + 1, lambda x: x * 2, lambda x: x, lambda x: x.at[i].set(0)], x),
               (np.int32(2), V)),
    "cond in a loop": (lambda x: lax.fori_loop(0, 6, lambda k, c: lax.cond(
        k % 2 == 0, lambda c: c.at[k].add(1), lambda c: c, c), x), (V,)),
    "cond of small arrays in a loop": (lambda x: lax.fori_loop(0, 6, lambda k, c: lax.cond(
        k % 2 == 0, lambda c: jnp.stack([c[1], c[0] - c[2], c[2]]), lambda c: c * 2, c), x), (V[:3],)),
    "loop in a cond": (lambda p, x: lax.cond(p, loop(lambda k, c: c + c[::-1]), lambda x: x, x), (True, V[:4])),
    "loop in a loop": (loop(lambda k, c: lax.fori_loop(0, k, lambda j, d: d.at[j].add(d[k]), c)), (V,)),
    "loops after each other": (lambda x: loop(lambda k, c: c + k)(loop(lambda k, c: c[::-1] * 2)(x)), (V[:4],)),
    "a loop of what is read elsewhere": (lambda x: [loop(lambda k, c: c - c[::-1])(x), x + 1], (V[:4],)),
    "a sum in a loop": (lambda x, w: loop(lambda k, c: (c @ w).clip(-3, 3))(x), (V[:10], whole(10, 10))),
    "a division in lanes": (anima.vmap(loop(lambda k, c: c // (k + 2) + c % 3)), (whole(4, 3, dtype="int32"),)),
    "an unknown division in lanes": (anima.vmap(loop(lambda k, c: c // (c[::-1] + 9))), (whole(4, 3, dtype="int32"),)),
    "a branch in lanes": (lambda xs: lax.map(lambda x: lax.cond(x[0] > 0, lambda: x[::-1], lambda: x + 1), xs),
                          (whole(6, 3),)),
    "an index in lanes": (anima.vmap(lambda i, x: lax.fori_loop(0, 3, lambda k, c: c.at[i].add(c[k]), x)),
                          (np.array([0, 2, 9], np.int32), whole(3, 5))),
    "the gradient of a while": (anima.grad(lambda x: lax.while_loop(
        lambda s: s[1].sum() < 100, lambda s: (s[0] + 1, s[1] * s[1] + 1), (0, x))[1].sum()), (V[:6],)),
    "the gradient of a while, of scalars": (anima.grad(lambda x: lax.while_loop(
        lambda s: s < 100, lambda s: s * s + 1, x)), (np.float32(1),)),
    "the gradient of a while in a while": (anima.grad(lambda x: lax.while_loop(
        lambda s: s.sum() < 100, lambda s: s * lax.while_loop(lambda t: t.sum() < 20, lambda t: t * t + 1, s),
        x).sum()), (V[:6],)),
    "the gradient of a scan": (anima.grad(lambda x, w: lax.scan(
        lambda h, r: (jnp.tanh(r @ w + h), h), jnp.zeros(4), x)[0].sum(), (0, 1)), (whole(5, 3), whole(3, 4))),
}


def constants(m: int, n: int) -> Callable[..., Any]:
    """A loop whose condition reads `m` arrays from outside, and its body `n` others."""
    def run(x: Any) -> Any:
        first, others = [x[::-1] * k for k in range(m)], [jnp.cumsum(x) + k for k in range(n)]
        return lax.while_loop(lambda s: s[1] < 5 + sum(a[s[1]] * 0 for a in first),
                              lambda s: (s[0].at[s[1]].add(sum(a[s[1]] for a in others)), s[1] + 1), (x, 0))[0]
    return run


IN_LOOPS: Programs = {
    **{f"{over} by way of {by}": (loop(lambda k, c, by=by: jnp.cumsum(c[::-1].astype(by)).astype(c.dtype)),
                                  (whole(20, dtype=over),))
       for over in ("int16", "float32", "int32") for by in ("int16", "float32", "int32") if over != by},
    **{f"{n} readers": (loop(lambda k, c, n=n: c.at[k].set(9).at[k + 1].set(sum(c[j] * c[j + k] for j in range(n)))),
                        (whole(20),)) for n in (1, 2, 3)},
    **{f"{n} large readers": (loop(lambda k, c, n=n: c.at[k].set(sum(jnp.cumsum(c[j:])[k] for j in range(n)))),
                              (whole(20),)) for n in (1, 2, 3)},
    **{f"while, {m} constants and {n}": (constants(m, n), (whole(20),)) for m in range(3) for n in range(4)},
    **{f"scan, {n} constants": (lambda x, n=n: lax.scan(
        lambda c, k: (c.at[k].add(sum(x[j:][k] for j in range(n))), c[k]), x * 2, jnp.arange(5)), (whole(20),))
       for n in range(3)},
    **{f"read {n} of {size}, then written": (loop(lambda k, c, n=n: (new := c.at[k].set(0)).at[:n].add(
        lax.dynamic_slice(c, (k,), (n,)) * 2 + new[0])), (whole(size),)) for size in (19, 20, 21) for n in (4, 5, 6)},
    "a reader of a reader": (loop(lambda k, c: c.at[k].set((t := c[:5] + 1)[k % 5] + (t * 2)[::-1][k % 5])), (V,)),
    "a view of what is written over": (loop(lambda k, c: c.at[k].set((c.reshape(4, 5)[k % 4] * 2).sum())), (V,)),
    "an update given the array itself": (loop(lambda k, c: lax.dynamic_update_slice(c, c, (k,))), (V,)),
    "an update given a view of the array": (loop(lambda k, c: c.reshape(4, 5).at[:, k % 5].set(
        c.reshape(4, 5)[:, 0]).reshape(-1)), (V,)),
}


# ---------------------------------------------------------------- what leaves loops

def flat(*shape: int) -> np.ndarray:
    """An array that takes no memory, for programs that are not run."""
    return np.broadcast_to(np.float32(0), shape)


def stacked(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return (lambda x, y: lax.scan(lambda c, r: (c + 1, jnp.outer(r[:n], y[:2])), np.float32(0), x)), (
        whole(5, 9), whole(3))


def ahead(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return (lambda x, w: lax.scan(lambda c, r: (c * 2 + r @ w, None), jnp.zeros(1024), x)[0]), (
        flat(n, 2), flat(2, 1024))


def summed(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def step(c: Any, x: Any) -> Any:
        return (c[0] + jnp.outer(c[1], x), c[1] * x.sum()), None
    return (lambda x: lax.scan(step, (jnp.zeros((1 << 10, 9)), jnp.ones(1 << 10)), x)[0]), (flat(n, 9),)


def after(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return (lambda h, w: lax.scan(lambda h, _: (h * 2, h @ w), h, None, length=n)), (flat(1024), flat(1024, 512))


def narrow(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A product of n elements for each of its result's."""
    return (lambda h, w: lax.scan(lambda h, _: (h[::-1] * 2, h @ w), h, None, length=3)), (
        whole(2 * n), whole(2 * n, 2))


def sums(m: int, k: int, n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Sums of products (m, k) @ (k, n), of which the first factor depends on the step's carry."""
    def step(c: Any, x: Any) -> Any:
        return (c[0] + c[1] @ x, c[1] * x[0, 0]), None
    return (lambda x: lax.scan(step, (jnp.zeros((m, n)), jnp.ones((m, k))), x)[0]), (whole(4, k, n),)


def table(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return (lambda x: lax.fori_loop(0, 5, lambda k, c: c + jnp.sum(x[:, None] - np.arange(n, dtype=np.float32)),
                                    np.float32(0))), (whole(7),)


HOISTED: Programs = {
    **shapes(4, "a table", table), **shapes(4, "narrow", narrow),
    **{f"sums of {m} {k} {n}": sums(m, k, n) for m, k, n in ((6, 1, 2), (4, 4, 2), (4, 2, 2), (4, 3, 2))},
    "of a vector's part": stacked(3),
    "while, in its condition": (lambda x, a: lax.while_loop(lambda s: s.sum() < (a * a).sum() + 50, lambda s: s + 1, x),
                                (V, V)),
    "while, in both": (lambda x, a: lax.while_loop(lambda s: s.sum() < (a * a).sum() + 50, lambda s: s + a * a, x),
                       (V, V + 3)),
    "a chain": (lambda x, a: loop(lambda k, c: c + (a * 2 + 1).sum() * k)(x), (V, V)),
    "a chain through moves": (lambda x, a: loop(lambda k, c: c + (a[::-1] * 2)[::-1] * k)(x), (V, V)),
    "moves alone": (lambda x, a: loop(lambda k, c: c + a[::-1].reshape(4, 5).T.reshape(-1))(x), (V, V)),
    "nested": (lambda x, a: loop(lambda k, c: loop(lambda j, d: d + a * a + a * k)(c))(x), (V, V)),
    "of a branch": (lambda x, a: loop(lambda k, c: c + lax.cond(a[0] > 0, lambda: a * a, lambda: a) * a)(x), (V, V)),
    "two results of one": (lambda x, a: loop(lambda k, c: c + jnp.sort(a) * k + jnp.sort(a)[0])(x), (V, V)),
    "one step": (lambda x, a: loop(lambda k, c: c + a * a, 1)(x), (V, V)),
    "functions of functions": (lambda x, a: anima.jit(lambda b: anima.jit(lambda c: c + jnp.asarray(V))(b) * 2)(x) + a,
                               (V, V)),
}
LIMITS: Programs = {  # 2^26 bytes are stacked, one step less and more
    **shapes(1 << 14, "ahead", ahead), **shapes(1 << 14, "summed", summed), **shapes(1 << 14, "after", after),
}
NEAR: Programs = {
    **{f.__name__: (loop(f), (whole(17) + 2,)) for f in (*overwrite.IN_PLACE, *overwrite.ALMOST)},
    **{f"{f.__name__}, small": (loop(f), (whole(7) + 2,)) for f in (*overwrite.IN_PLACE, *overwrite.ALMOST)},
    **{f"several {k}": (overwrite.vectors(f), (whole(17) + 2,)) for k, f in enumerate(overwrite.SEVERAL)},
    **{f"several {k}, small": (overwrite.vectors(f), (whole(3) + 2,)) for k, f in enumerate(overwrite.SEVERAL)},
    **{name: (lambda s, xs, w, f=f: lax.scan(lambda s, x: f(s, x, w), s, xs), (whole(3), whole(5, 3), whole(3, 3)))
       for name, f in near.STEPS.items()},
    **{f"{length} steps": (lambda s, xs, w: lax.scan(lambda s, x: (s + x @ w + w @ w[0], w @ x), s, xs), (
        whole(3), whole(length, 3), whole(3, 3))) for length in (0, 1, 2, 3)},
    **{f"outer: {name}": (lambda g, s, xs, f=f: lax.scan(lambda c, x: (f(*c, x), None), (g, s), xs)[0],
                          (whole(3, 3), whole(3), whole(5, 3))) for name, f in near.OUTER.items()},
    **{f"invariant: {name}": (lambda s, a, f=f: lax.fori_loop(0, 4, lambda k, s: f(k, s, a), s), (whole(3), whole(3)))
       for name, f in near.BODIES.items()},
}

THEMES = {"fused": FUSED, "updates": UPDATES, "control": CONTROL, "in loops": IN_LOOPS, "hoisted": HOISTED,
          "limits": LIMITS, "near": NEAR}
LOWERED_ONLY = ("limits", "near")  # too large to run, and run elsewhere
