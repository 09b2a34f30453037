"""Mapped loops whose lanes run on their own, and branches in lanes, against the same one lane after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.loops import Assign, If, Let, Mutable, Store, While, statements
from anima.compiler.scheduling.choices import without_branches
from anima.control.lanes import on_their_own
from anima.core.trace import aval_of
from tests.compiler.loop_programs import f, i, k, op, serial, v, vector, x_at
from tests.compiler.results import same_for_threads

RNG = np.random.default_rng(8)
LANES = (0, 1, 2, 15, 16, 17, 33, 70)


def swapping(s: Any, x: Any) -> Any:
    """Takes a vector apart and puts it together; gives something of each step."""
    a, b, c = s
    s = jnp.stack([b * 0.5 + x, c - a * 0.25, a + 1])
    return s, (s[0], s[1:])


def rotating(s: Any, x: Any) -> Any:
    return (s[1], (s[0] + x) % 7 if s[0].dtype.kind == "i" else jnp.sin(s[0] + x)), s[0] + s[1]


def branching(s: Any, x: Any) -> Any:
    s = lax.cond(s[0] > x, lambda s: jnp.stack([s[1], s[0] * 0.5]), lambda s: s + 1, s)
    return s, lax.switch(jnp.int32(s[0]) % 3, [lambda s: s[0], lambda s: s[1] * 2, lambda s: s.sum()], s)


STEPS: dict[str, tuple[Callable[..., Any], Any]] = {
    "swapping": (swapping, np.float32([0.1, 0.2, 0.3])), "rotating": (rotating, (np.float32(0.5), np.float32(1))),
    "integers": (rotating, (np.int32(3), np.int32(5))), "branching": (branching, np.float32([0.5, 2])),
}


def scanned(name: str, reverse: bool = False) -> Callable[[Any, Any], Any]:
    step, start = STEPS[name]
    return lambda a, xs: lax.scan(step, anima.tree.map(lambda x: x + a.astype(x.dtype), start), xs, reverse=reverse)


def one_by_one(fun: Callable[..., Any], *args: Any) -> Any:
    return anima.tree.map(lambda *parts: np.stack(parts), *(fun(*lane) for lane in zip(*args, strict=True)))


@pytest.mark.parametrize("reverse", (False, True))
@pytest.mark.parametrize("name", STEPS)
def test_scans_in_lanes(name: str, reverse: bool) -> None:
    fun = scanned(name, reverse)
    for lanes in LANES:
        a, xs = (RNG.integers(0, 3, shape).astype(np.float32) for shape in ((lanes,), (lanes, 9)))
        if name == "integers":
            xs = xs.astype(np.int32)
        got = anima.jit(anima.vmap(fun))(a, xs)
        if not lanes:
            assert all(x.shape[0] == 0 for x in anima.tree.leaves(got))
            continue
        anima.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, one_by_one(anima.jit(fun), a, xs))


def test_loops_in_lanes_are_one_kernel_and_those_of_sequences_far_apart_are_not() -> None:
    def kernels(length: int) -> str:
        args = np.ones(20, np.float32), np.ones((20, length), np.float32)
        return str(anima.jit(anima.vmap(scanned("rotating"))).lower(*args).loops)

    assert "kernel lanes" in kernels(1000)
    assert "kernel lanes" not in kernels(1024)


def test_gradients_and_lanes_of_lanes() -> None:
    def loss(a: Any, xs: Any) -> Any:
        return sum(jnp.sum(x * x) for x in anima.tree.leaves(scanned("swapping")(a, xs)))

    a, xs = RNG.normal(size=(17,)).astype(np.float32), RNG.normal(size=(17, 9)).astype(np.float32)
    for transform in (anima.grad, anima.jacfwd, lambda fun: anima.jacfwd(anima.grad(fun))):
        got = anima.jit(anima.vmap(transform(loss)))(a, xs)
        np.testing.assert_allclose(got, one_by_one(anima.jit(transform(loss)), a, xs), rtol=1e-4)
    twice = anima.jit(anima.vmap(anima.vmap(loss, (None, 0)), (0, None)))(a, xs)
    np.testing.assert_allclose(twice, [[loss(x, y) for y in xs] for x in a], rtol=1e-5)


def test_what_lanes_share_and_what_they_have() -> None:
    table, a = RNG.normal(size=5).astype(np.float32), RNG.normal(size=33).astype(np.float32)

    def fun(table: Any, a: Any) -> Any:
        return lax.scan(lambda s, x: (jnp.stack([s[1] * x, s[0] + a]), None), jnp.ones(2), table)[0]

    got = anima.jit(anima.vmap(fun, (None, 0)))(table, a)
    np.testing.assert_allclose(got, [fun(table, x) for x in a], rtol=1e-5)
    named = anima.vmap(lambda x: lax.scan(lambda s, _: (s + lax.psum(s, "i")[::-1], None), x, None, length=3)[0],
                       axis_name="i")
    x = RNG.normal(size=(5, 2)).astype(np.float32)
    want = x
    for _ in range(3):
        want = want + want.sum(0)[::-1]
    np.testing.assert_allclose(anima.jit(named)(x), want, rtol=1e-4)


def test_lanes_are_the_same_for_any_number_of_threads() -> None:
    a, xs = RNG.normal(size=1001).astype(np.float32), RNG.normal(size=(1001, 300)).astype(np.float32)
    same_for_threads(anima.vmap(scanned("branching")), a, xs)


# ---------------------------------------------------------------- branches


@pytest.mark.parametrize("dtype", ("int8", "int32", "float16", "float32", "float64", "complex64", "bool"))
def test_switches_in_lanes(dtype: str) -> None:
    branches = [lambda x: (x, x), lambda x: (x * x, x), lambda x: (x[::-1] | x if dtype == "bool" else x + x[::-1], x)]
    with anima.enable_x64(True):
        for lanes in LANES:
            i = RNG.integers(-2, 5, lanes).astype(np.int32)
            x = jnp.asarray(RNG.integers(0, 9, (lanes, 3))).astype(dtype)
            got = anima.jit(anima.vmap(lambda i, x: lax.switch(i, branches, x)))(i, x)
            for n in range(lanes):
                for y, want in zip(got, branches[min(max(i[n], 0), 2)](x[n]), strict=True):
                    np.testing.assert_array_equal(y[n], want)


def test_branches_that_would_divide_by_zero_or_take_long_stay_branches() -> None:
    x = np.int32([0, 1, 2, 0, 5])
    fun = anima.jit(anima.vmap(lambda x: lax.cond(x > 0, lambda x: 10 // x, lambda x: -1, x)))
    np.testing.assert_array_equal(fun(x), [-1, 10, 5, -1, 2])
    costly = anima.jit(anima.vmap(lambda x: lax.cond(x > 0, lambda x: lax.fori_loop(
        0, 50, lambda _, y: jnp.sin(y), x), lambda x: x, x)))
    assert "if" in str(costly.lower(np.ones(100, np.float32)).loops)


def test_blocks_as_choices() -> None:
    positive = op("gt", v("a"), k(0.0), dtype="bool")
    small = op("lt", v("a"), k(1.0), dtype="bool")
    inner = If(small, (Assign("s", f("mul", v("s"), k(2.0))),))
    loop = vector("j", 64, Let("a", x_at(i("j"))), Mutable("s", "f32", k(0.0)),
                  If(positive, (Assign("s", v("a")), inner), (Store("y", i("j"), v("a")),)), Store("z", i("j"), v("s")))
    found = without_branches(loop)
    assert found is not None
    assert not any(isinstance(s, If) for s in statements(found))
    for refused in (serial("n", 3, Assign("s", v("a"))), While((), positive, ()), Let("b", x_at(v("n", "index")))):
        assert without_branches(vector("j", 64, If(positive, (refused,)))) is None
    assert without_branches(vector("j", 64, serial("n", 3, If(positive, (Let("b", x_at(i("n"))),))))) is not None
    assert without_branches(vector("j", 64, If(positive, tuple(
        Let(f"b{n}", f("tan", v("a"))) for n in range(9))))) is None


NUMBER, PAIR = np.float32(1), np.ones(2, np.float32)
CONDITIONS: dict[str, tuple[Any, list[Any], tuple[Any, ...], int, bool]] = {
    "elements moved": (lambda s: jnp.stack([s[1], s[0]]), [PAIR], (), 3, True),
    "elements moved in a function": (anima.jit(lambda s: jnp.stack([s[1], s[0]])), [PAIR], (), 3, True),
    "in a branch": (lambda s: lax.cond(s[0] > 0, lambda s: jnp.stack([s[1], s[0]]), lambda s: s, s), [PAIR], (), 3,
                    True),
    "one element moved": (lambda x: x.reshape(1)[0] + 1, [NUMBER], (), 3, False),
    "one row moved": (lambda x: x.reshape(1, 1) * 2, [np.ones(1, np.float32)], (), 3, False),
    "nothing moved": (lambda s: s * 2, [PAIR], (), 3, False),
    "a sum": (lambda s: s * s.sum(), [PAIR], (), 3, False),
    "a sum and a broadcast": (lambda s: s - jnp.broadcast_to(s.sum(), (2,)), [PAIR], (), 3, True),
    "eight": (lambda s: jnp.roll(s, 1), [np.ones(8, np.float32)], (), 3, True),
    "nine": (lambda s: jnp.roll(s, 1), [np.ones(9, np.float32)], (), 3, False),
    "nine on the way": (lambda s: jnp.concatenate([s, s[:1]])[::-1][:8], [np.ones(8, np.float32)], (), 3, False),
    "a product": (lambda s: jnp.stack([s[1], s @ s]), [PAIR], (), 3, False),
    "sorted": (lambda s: jnp.sort(s)[::-1], [PAIR], (), 3, False),
    "printed": (lambda s: (anima.debug.print("{}", s[0]), jnp.stack([s[1], s[0]]))[1], [PAIR], (), 3, False),
    "a sequence": (lambda c, x: c + x, [NUMBER, NUMBER], (NUMBER,), 3, True),
    "a sequence of 256 bytes": (lambda c, x: c + x, [NUMBER, NUMBER], (NUMBER,), 64, True),
    "a sequence of 512 bytes": (lambda c, x: c + x, [NUMBER, NUMBER], (NUMBER,), 128, False),
    "a sequence of 508 bytes": (lambda c, x: c + x, [NUMBER, NUMBER], (NUMBER,), 127, True),
    "a sequence of pairs": (lambda c, x: c + x, [PAIR, PAIR], (PAIR,), 64, False),
    "two sequences": (lambda c, x, y: c + x * y, [NUMBER] * 3, (NUMBER, NUMBER), 64, True),
    "two, one of them too long": (lambda c, x, y: c + x * y.sum(), [NUMBER, NUMBER, PAIR], (NUMBER, PAIR), 64, False)}


@pytest.mark.parametrize("name", CONDITIONS)
def test_on_both_sides_of_every_condition(name: str) -> None:
    step, args, sequences, length, wanted = CONDITIONS[name]
    closed = anima.make_jaxpr(step)(*args)
    assert on_their_own(closed, [aval_of(x) for x in sequences], length) == wanted


def test_what_no_step_changes_is_not_mapped() -> None:
    """Where lanes take another number of steps, too: `out_axes` may say so."""
    def run(w: Any, x: Any, count: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < count, lambda c: (c[0] + 1, c[1] @ c[2], c[2]), (0, x, w))[1:]

    w, x = 2 * jnp.eye(2), jnp.ones((4, 2))
    for wrap in (lambda f: f), anima.jit:
        powers, kept = wrap(anima.vmap(run, in_axes=(None, 0, 0), out_axes=(0, None)))(w, x, jnp.arange(4))
        np.testing.assert_array_equal(powers, 2.0 ** np.arange(4)[:, None] * np.ones(2))
        np.testing.assert_array_equal(kept, w)
    mapped = anima.vmap(run, in_axes=(0, 0, 0))(jnp.stack([w] * 4), x, jnp.arange(4))
    assert mapped[1].shape == (4, 2, 2)
