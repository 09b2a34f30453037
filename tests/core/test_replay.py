"""Tapes of functions: what is played for other arrays is what the function gives for them, or there is no tape."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core import replay
from anima.runtime import calling

Pair = namedtuple("Pair", "first second")
RNG = np.random.default_rng(0)
KEPT = jnp.asarray(RNG.normal(size=(3, 4)).astype(np.float32))

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "in order": lax.sub, "exchanged": lambda x, y: lax.sub(y, x), "one twice": lambda x, y: lax.sub(x, x),
    "the other twice": lambda x, y: lax.atan2(y, y), "the first alone": lambda x, y: lax.neg(x),
    "the second alone": lambda x, y: lax.neg(y), "a constant behind": lambda x, y: lax.sub(x, KEPT),
    "a constant in front": lambda x, y: lax.sub(KEPT, y), "of NumPy's": lambda x, y: lax.add(x, np.float32(2)),
    "a number": lambda x, y: lax.mul(y, 2.5), "nothing": lambda x, y: KEPT, "the first": lambda x, y: x,
    "the second": lambda x, y: y, "both": lambda x, y: (y, x), "one more": lambda x, y: [x, lax.add(x, y), y],
    "one step twice": lambda x, y: (lax.sub(x, y), lax.sub(x, y)), "named": lambda x, y: Pair(lax.exp(y), x),
    "one of one": lambda x, y: (lax.sub(y, x),), "steps": lambda x, y: lax.sub(lax.mul(y, x), lax.sub(y, x)),
    "what is made twice": lambda x, y: (lambda z: (z, z))(lax.sub(y, x)), "none": lambda x, y: (),
    "several results": lambda x, y: lax.top_k(lax.sub(y, x), 2), "sorted": lambda x, y: lax.sort((y, x), num_keys=1),
    "moved": lambda x, y: lax.sub(lax.transpose(y, (1, 0)), lax.transpose(x, (1, 0))),
    "a sum of what is moved": lambda x, y: lax.reduce_sum(lax.transpose(lax.sub(y, x), (1, 0)), (0, 1)),
    "branches": lambda x, y: lax.select(lax.gt(x, y), y, x), "a dictionary": lambda x, y: {"a": lax.sub(x, y)},
    "nested": lambda x, y: (lax.neg(x), (y,)), "no array": lambda x, y: (lax.neg(x), 2),
    "looks": lambda x, y: lax.sub(x, y) if float(x[0, 0]) > 0 else y,
    "looks at what it made": lambda x, y: x if bool(lax.gt(x, y)[0, 0]) else y,
    "one in another": lambda x, y: jnp.where(x > 0, jnp.clip(y, -1, 1), jnp.stack([x, y])[1])}


def arrays(seed: int, weak: bool = False) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=(3, 4)).astype(np.float32)) for _ in range(2)]


def equal(found: Any, wanted: Any) -> None:
    assert anima.tree.structure(found) == anima.tree.structure(wanted) and type(found) is type(wanted)
    for a, b in zip(anima.tree.leaves(found), anima.tree.leaves(wanted), strict=True):
        assert str(getattr(a, "aval", a)) == str(getattr(b, "aval", b))
        assert (np.asarray(a).tobytes() == np.asarray(b).tobytes() and a is not b) or a is b
        assert not isinstance(a, anima.Array) or not np.asarray(a).flags.writeable


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_tape_is_the_function(name: str) -> None:
    calling._module()  # so that what is one loop becomes native code
    fun = FUNCTIONS[name]
    for first in (0, 1):
        given = arrays(first)
        out, tape, _ = replay.record(fun, given, given, {})
        equal(out, fun(*given))
        if tape is None:
            assert name in ("nothing", "a dictionary", "nested", "no array", "looks", "looks at what it made")
            continue
        for seed in range(4):
            others = arrays(seed)
            equal(tape(*others), fun(*others))
            equal(tape(*others[::-1]), fun(*others[::-1]))
            equal(tape(others[0], others[0]), fun(others[0], others[0]))
        others[1].delete()
        try:
            wanted = fun(*others)
        except RuntimeError:
            assert tape(*others) is NotImplemented
        else:
            found = tape(*others)
            assert found is NotImplemented or found is wanted or name == "both" or type(found) is type(wanted)


def test_who_is_who_is_known() -> None:
    """Also where an array is given twice when the tape is made."""
    x, y = arrays(0)
    first, tape, _ = replay.record(lax.sub, [x, x], (x, x), {})
    equal(first, lax.sub(x, x))
    assert tape is not None
    equal(tape(x, y), lax.sub(x, y))
    equal(tape(x, x), first)
    _, tape, _ = replay.record(lambda a, b: lax.sub(b, a), [x, x], (x,), {"b": x})
    assert tape is not None
    equal(tape(x, y), lax.sub(y, x))


def test_large_constants_are_not_kept() -> None:
    for size, keeps in ((replay._MOST_KEPT // 4, True), (replay._MOST_KEPT // 4 + 1, False)):
        large = jnp.ones(size, np.float32)
        x = jnp.ones(1)
        _, tape, _ = replay.record(lambda x, large=large: lax.mul(large, lax.broadcast_in_dim(x, large.shape, (0,))),
                                   [x], (x,), {})
        assert (tape is not None) == keeps


def test_what_is_made_of_constants_alone_is_one() -> None:
    large, x = jnp.ones(replay._MOST_KEPT), jnp.ones(1)
    _, tape, _ = replay.record(lambda x: lax.add(x, lax.exp(lax.slice(large, (0,), (1,)))), [x], (x,), {})
    assert tape is not None and tape.kept == 4
    equal(tape(x), lax.add(x, lax.exp(x)))
