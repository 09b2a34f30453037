"""Functions under checkpoint that read and write references from outside: differentiated as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
from anima import checkpoint_policies as policies, lax, new_ref, numpy as jnp
from anima.ref import Ref, swap

X = np.float32(1.5)


@anima.custom_vjp
def stash(r: Ref, x: Any) -> Any:
    return x


stash.defvjp(lambda r, x: (x, r), lambda r, g: (r.addupdate(g, 0), (None, g))[1])


def reads(r: Ref, x: Any) -> Any:
    return jnp.sin(x * r[0]) * r[1]


def writes(r: Ref, x: Any) -> Any:
    y = jnp.sin(x * r[0])
    r[0] = r[0] * 2.0
    r.addupdate(1.0, 1)
    return jnp.cos(y) * r[0] + swap(r, 1, lax.stop_gradient(y))


def scans(r: Ref, x: Any) -> Any:
    def body(c: Any, k: Any) -> Any:
        c = jnp.sin(c * r[k]) + x
        r[k] += lax.stop_gradient(c)
        return c, c * r[1 - k]

    c, ys = lax.scan(body, x, jnp.array([0, 1, 0]))
    return c + ys.sum()


def repeats(r: Ref, x: Any) -> Any:
    def body(s: Any) -> Any:
        r[0] += 1.0
        return s[0] + 1, jnp.sin(s[1] * r[0])

    return lax.while_loop(lambda s: s[0] < 3, body, (0, x))[1]


def branches(r: Ref, x: Any) -> Any:
    return lax.cond(x > 1.0, lambda: jnp.sin(x) * swap(r, 0, 5.0), lambda: x * r[1])


def calls(r: Ref, x: Any) -> Any:
    return jnp.sin(anima.jit(writes)(r, x)) + anima.checkpoint(writes)(r, x)


def makes(r: Ref, x: Any) -> Any:
    own = new_ref(x * r[0])
    own[...] = jnp.sin(own[...]) * r[1]
    r[0] = 3.0
    return own[...] * r[0]


def stashes(r: Ref, x: Any) -> Any:
    return jnp.sin(stash(r, jnp.sin(x) * r[1]))


USES = (reads, writes, scans, repeats, branches, calls, makes, stashes)
TRANSFORMED: dict[str, Callable[..., Any]] = {
    "value_and_grad": anima.value_and_grad, "jit of grad": lambda f: anima.jit(anima.grad(f)),
    "grad of jit": lambda f: anima.grad(anima.jit(f)), "vjp": lambda f: lambda x: anima.vjp(f, x)[1](x),
    "in a loop": lambda f: anima.grad(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0])}


def _outcome(transform: Callable[..., Any], use: Callable[..., Any]) -> list[Any]:
    r = new_ref(jnp.array([0.5, 2.0]))
    return [*anima.tree.leaves(transform(lambda x: use(r, x))(X)), r[...]]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_as_without_checkpoint(name: str, use: Callable[..., Any]) -> None:
    expected = _outcome(TRANSFORMED[name], use)
    for policy in (None, policies.everything_saveable, policies.save_only_these_names("none")):
        got = _outcome(TRANSFORMED[name], anima.checkpoint(use, policy=policy))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("transform", [anima.hessian, anima.jacfwd, lambda f: lambda x: anima.linearize(f, x)[1](x),
                                       lambda f: lambda x: anima.vmap(anima.grad(f))(jnp.stack([x, 2 * x]))])
def test_read_by_other_transformations(transform: Callable[..., Any]) -> None:
    for a, b in zip(_outcome(transform, anima.checkpoint(reads)), _outcome(transform, reads), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_what_was_read_counts() -> None:
    r = new_ref(2.0)
    _, pull = anima.vjp(anima.checkpoint(lambda x: jnp.sin(x) * r[...]), X)
    r[...] = 5.0
    np.testing.assert_allclose(pull(1.0)[0], 2 * np.cos(X), rtol=1e-6)


def test_nothing_else_is_kept() -> None:
    def f(x: Any) -> Any:
        for _ in range(5):
            x = jnp.sin(x) * jnp.cos(x)
        r[...] = lax.stop_gradient(x)
        return x

    r = new_ref(jnp.zeros(3))
    kept = anima.ad_checkpoint.saved_residuals(anima.checkpoint(f), jnp.ones(3))
    assert [aval.shape for aval, _ in kept] == [(3,)] and len(anima.ad_checkpoint.saved_residuals(f, jnp.ones(3))) > 5
