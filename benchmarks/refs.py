"""What references cost: as accumulators beside the functional form, and updated in loops.

    python -m benchmarks.refs

Every function has a result besides what it does to a reference: that is what can be waited for, where calls return
before they are done (`block_until_ready` of a reference waits for nothing in JAX).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from benchmarks.harness import HAVE_JAX, Case, report

if HAVE_JAX:
    import jax
    import jax.numpy as xnp


def accumulation(m: Any, np_like: Any) -> dict[str, Callable[[], Any]]:
    """Gradients of a layer over 16 batches: added to references, and to a carry."""
    rng = np.random.default_rng(0)
    weights = np_like.asarray(rng.normal(size=(512, 512)).astype(np.float32))
    batches = np_like.asarray(rng.normal(size=(16, 32, 512)).astype(np.float32))
    total = m.new_ref(np_like.zeros_like(weights))

    def loss(w: Any, x: Any) -> Any:
        return np_like.sum(np_like.tanh(x @ w))

    def on_ref(w: Any, total: Any, batches: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            m.vjp(lambda w: loss(w, x), w)[1].with_refs(total)(np_like.ones(()))
            return carry, None

        return m.lax.scan(step, 0, batches)[0]

    def functional(w: Any, total: Any, batches: Any) -> Any:
        return m.lax.scan(lambda total, x: (total + m.grad(loss)(w, x), None), total, batches)[0]

    jitted, plain = m.jit(on_ref), m.jit(functional, donate_argnums=1)
    state = [np_like.zeros_like(weights)]

    def carry() -> Any:
        state[0] = m.block_until_ready(plain(weights, state[0], batches))
        return state[0]

    return {"gradients of 16 batches, added to a reference":
                lambda: m.block_until_ready(jitted(weights, total, batches)),
            "gradients of 16 batches, added to a carry": carry}


def updates(m: Any, np_like: Any) -> dict[str, Callable[[], Any]]:
    """Updates of one number of a million."""
    size = 1_000_000
    r = m.new_ref(np_like.zeros(size))
    many = m.jit(lambda r: m.lax.fori_loop(0, 10_000, lambda i, c: (r.addupdate(1.0, i * 97 % size), c)[1], 0))
    one = m.jit(lambda r: (r.addupdate(1.0, 5), 0)[1])
    return {"10,000 updates of one number of a million": lambda: m.block_until_ready(many(r)),
            "a call that updates one number of a million": lambda: m.block_until_ready(one(r))}


def cases() -> list[Case]:
    contestants = {"anima": (anima, jnp)}
    if HAVE_JAX:
        contestants["jax"] = (jax, xnp)
    runs = {who: accumulation(*modules) | updates(*modules) for who, modules in contestants.items()}
    return [Case(name, {who: found[name] for who, found in runs.items()}) for name in runs["anima"]]


def show() -> None:
    report(cases(), "References")


if __name__ == "__main__":
    show()
