"""Updates in place: which programs copy no array in a loop, and that those which almost may do without are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.loops import For, If, Kernel, Stmt, While
from tests.compiler.stages import lowered

SIZES = (1, 2, 8, 9, 17, 1000)
TABLE = np.arange(40, dtype=np.float32)


def copies(stmts: tuple[Stmt, ...], inside: bool = False) -> Iterator[Kernel]:
    """The kernels inside of loops that do nothing but copy."""
    for s in stmts:
        match s:
            case For(body=body):
                yield from copies(body, True)
            case While(before=before, body=body):
                yield from copies((*before, *body), True)
            case If(then=then, orelse=orelse):
                yield from copies((*then, *orelse), inside)
            case Kernel(name="copy") if inside:
                yield s


def loop(body: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.fori_loop(0, 5, body, x)


def check(fun: Callable[..., Any], *args: Any) -> None:
    """Functions that are asked about again are compiled once."""
    args = anima.device_put(args)
    got = anima.jit(fun)(*args)
    with anima.disable_jit():
        want = fun(*args)
    anima.tree.map(lambda g, w: np.testing.assert_array_equal(np.asarray(g), np.asarray(w)), got, want)


def swap(i: Any, a: Any) -> Any:
    t = a[i]
    return a.at[i].set(a[-i]).at[-i].set(t)


def late(i: Any, a: Any) -> Any:
    new = a.at[i].set(0)
    return new.at[i + 1].set(a[i] + 1)


def inner(i: Any, a: Any) -> Any:
    return lax.fori_loop(0, 3, lambda j, a: a.at[j].set(a[i] + a[j + 1]), a.at[i].add(1))


def search(i: Any, a: Any) -> Any:
    return lax.while_loop(lambda s: (s[1] > 0) & (s[0][s[1]] < 9), lambda s: (s[0].at[s[1]].set(s[0][s[1] - 1]),
                                                                              s[1] - 1), (a, i))[0]


def branch(i: Any, a: Any) -> Any:
    return lax.cond(a[i] > 3, lambda a: a.at[i].set(a[i + 1] * 2), lambda a: a, a)


def switch(i: Any, a: Any) -> Any:
    return lax.switch(i, [lambda a: a, lambda a: a.at[0].set(a[-1]), lambda a: a.at[i].set(1).at[i + 1].add(a[0])], a)


def stepped(i: Any, a: Any) -> Any:
    return (a * 2 + 1).at[i].set(a[i - 1]) - 1


def largest(i: Any, a: Any) -> Any:
    return a.at[i].set(jnp.max(a) - a[i])


def viewed(i: Any, a: Any) -> Any:
    return a.reshape(-1, 1).at[i].set(a[i - 1]).reshape(a.shape)


def window(i: Any, a: Any) -> Any:
    size = max(a.shape[0] // 4, 1)
    return lax.dynamic_update_slice(a, lax.dynamic_slice(a, (i + 2,), (size,)) + 1, (i,))


def several(i: Any, a: Any) -> Any:
    return a.at[jnp.array([0, 2, 1]) + i].add(a[jnp.array([1, 1, 0]) + i])


def paths(i: Any, a: Any) -> Any:
    return jnp.minimum(a, a[i % a.shape[0]][None] + a[0])


IN_PLACE = [swap, late, inner, search, branch, switch, stepped, largest, viewed, window, several, paths]


@pytest.mark.parametrize("body", IN_PLACE, ids=lambda f: f.__name__)
def test_no_copies(body: Any) -> None:
    x = np.arange(1000, dtype=np.float32) % 7
    stages = lowered(loop(body), x)
    assert not list(copies(stages.loops.body)) and stages.loops.arena < x.nbytes / 2
    for size in SIZES:
        for dtype in (np.float32, np.int16):
            check(loop(body), (np.arange(size) % 7).astype(dtype))


def vectors(body: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.fori_loop(0, 4, lambda i, s: body(i, *s), (x, x * 2 + 1))


def compare(i: Any, a: Any) -> Any:
    return a.at[i].set(a[i + 1] + 1) - a


def depends(i: Any, a: Any) -> Any:
    new = a.at[i].set(i)
    return new.at[new[i].astype(int)].set(a[i] + a[new[i].astype(int)])


def twice(i: Any, a: Any) -> Any:
    return jnp.maximum(a.at[i].set(9), a.at[i + 1].set(8))


def both(i: Any, a: Any) -> Any:
    return lax.fori_loop(0, 3, lambda j, c: c.at[j].set(a[j - 1] + 1), a)


def rows(i: Any, a: Any) -> Any:
    return lax.scan(lambda c, x: (c.at[i].set(x), c[0]), a, a)[0]


def constant(i: Any, a: Any) -> Any:
    table = jnp.asarray(TABLE)
    return a + (table.at[i].set(a[0])[3] + table[i]).astype(a.dtype)


def shifted(i: Any, a: Any) -> Any:
    return jnp.concatenate([a[1:], a[:1] + 1])


def turned(i: Any, a: Any) -> Any:
    return jnp.where(a > a[::-1], a, a[::-1] + 1)


def other_branch(i: Any, a: Any) -> Any:
    return lax.cond(a[i] > 3, lambda a: a.at[i].set(a[i + 1] * 2) + a, lambda a: a[::-1], a)


def in_two_places(i: Any, a: Any) -> Any:
    return lax.cond(a[i] > 3, lambda a, b: a.at[i].set(1) + b[::-1], lambda a, b: b, a, a)


def retyped(i: Any, a: Any) -> Any:
    bits = lax.bitcast_convert_type(a, {2: np.int16, 4: np.int32}[a.dtype.itemsize])
    return a.at[i].set(a[0] + 1) + bits[i].astype(a.dtype) % 5


def most(i: Any, a: Any) -> Any:
    """What is read before has almost as many elements as the array."""
    size = max(a.shape[0] - 1, 1)
    part = lax.dynamic_slice(a, (i,), (size,)) + 1
    return lax.dynamic_update_slice(a.at[0].set(part[-1]), part, (1 - i,))


ALMOST = [compare, depends, twice, both, rows, constant, shifted, turned, other_branch, in_two_places, retyped, most]


@pytest.mark.parametrize("body", ALMOST, ids=lambda f: f.__name__)
@pytest.mark.parametrize("size", SIZES)
def test_near_misses(body: Any, size: int) -> None:
    check(loop(body), np.arange(size, dtype=np.float32) % 7)
    check(loop(body), (np.arange(size) % 7).astype(np.int16))


SEVERAL = [
    lambda i, a, b: (b, a),
    lambda i, a, b: (b, a.at[i].set(b[i])),
    lambda i, a, b: (b.at[i].set(a[i]), a.at[i].set(b[i])),
    lambda i, a, b: (a.at[i].set(b[i]), a),
    lambda i, a, b: (a.at[i].set(b[i]), a[::-1]),
    lambda i, a, b: (b, b),
    lambda i, a, b: (a + b, a.at[i].set(b[i])),
    lambda i, a, b: (a.at[i].set(1), a.at[i].set(2)),
    lambda i, a, b: (a.at[i].set(b[i + 1]), b.at[i].set(a[i + 1])),
    lambda i, a, b: lax.cond(i % 2, lambda a, b: (b, a), lambda a, b: (a.at[i].set(b[0]), b.at[i].set(a[0])), a, b),
    lambda i, a, b: lax.switch(2 - i, [lambda a, b: (b, b), lambda a, b: (a, b)], a, b),
    lambda i, a, b: lax.switch(i, [lambda a, b: (b, b.at[0].set(a[0])), lambda a, b: (a[::-1], b)], a, b),
    lambda i, a, b: lax.fori_loop(0, 3, lambda j, s: (s[1].at[j].set(s[0][i]), s[0]), (a, b)),
    lambda i, a, b: lax.fori_loop(0, 3, lambda j, s: (s[1], s[0].at[j].add(1)), (a, a)),
    lambda i, a, b: (lax.fori_loop(0, 3, lambda j, c: c.at[j].set(a[j + 1] + c[j - 1]), b), a),
]


@pytest.mark.parametrize("body", SEVERAL)
@pytest.mark.parametrize("size", SIZES)
def test_several_carries(body: Any, size: int) -> None:
    check(vectors(body), np.arange(size, dtype=np.float32) % 7)
    lanes = jnp.arange(3 * size, dtype=np.float32).reshape(3, size) % 5
    got = anima.jit(anima.vmap(vectors(body)))(lanes)
    with anima.disable_jit():
        want = [vectors(body)(lane) for lane in lanes]
    for k in range(2):
        np.testing.assert_array_equal(np.asarray(got[k]), np.stack([np.asarray(w[k]) for w in want]))


@pytest.mark.parametrize("size", SIZES)
def test_rows_that_go_in_and_come_out(size: int) -> None:
    def step(a: Any, x: Any) -> Any:
        new = a.at[1].set(x[-1])
        changed = x.at[0].set(a[0])
        return new, (a, changed, changed.at[1].set(new[1]), x)

    check(lambda a, xs: lax.scan(step, a, xs), np.arange(size, dtype=np.float32),
          np.arange(4 * size, dtype=np.float32).reshape(4, size))


def test_what_is_given_stays() -> None:
    x = np.arange(1000, dtype=np.float32)
    placed = anima.device_put(x)
    check(lambda x: (loop(swap)(x), x[3]), placed)
    np.testing.assert_array_equal(np.asarray(placed), x)


@pytest.mark.parametrize("donated", [(), (0,)])
def test_one_update_copies_no_more_than_the_argument(donated: tuple[int, ...]) -> None:
    x = np.arange(1000, dtype=np.float32)
    for fun in (lambda y: y.at[3].set(y[2]), lambda y: late(3, y), swap_at_top):
        made = lowered(lambda x, f=fun: f(jnp.sort(x)), x)
        assert not any(isinstance(s, Kernel) and s.name == "copy" for s in made.loops.body) or made.loops.arena < 4000
        given = lowered(fun, x, donated=donated)
        assert sum(isinstance(s, Kernel) and s.name == "copy" for s in given.loops.body) == 1 - len(donated)
        check(lambda x, f=fun: f(jnp.sort(x)), x)
        check(fun, x)


def swap_at_top(a: Any) -> Any:
    return swap(3, a)


@pytest.mark.parametrize("body", [swap, late, window, branch, inner, several, twice], ids=lambda f: f.__name__)
def test_gradients_see_old_values(body: Any) -> None:
    with anima.enable_x64(True):
        x = jnp.linspace(0.5, 4.0, 17)
        gradient = anima.grad(lambda x: (loop(lambda i, a: jnp.sin(body(i, a)))(x) * jnp.arange(17.0)).sum())
        got = anima.jit(gradient)(x)
        with anima.disable_jit():
            np.testing.assert_allclose(got, gradient(x), rtol=1e-12)


# Steps of walks: carries that are places in tables.


def step_of_a_walk(k: Any, table: Any) -> Any:
    return table[k]


def step_by_a_column(k: Any, table: Any) -> Any:
    return jnp.take_along_axis(table.reshape(-1, 1), k[:, None], 0)[:, 0] + (k > 3)


def step_beside_itself(k: Any, table: Any) -> Any:
    return (2 * table[k] + table[(k + 1) % table.size] + k) % table.size


def step_backwards(k: Any, table: Any) -> Any:
    return table[k[::-1]]


def step_over_a_neighbour(k: Any, table: Any) -> Any:
    return table[jnp.roll(k, 1)]


def step_in_itself(k: Any, table: Any) -> Any:
    return k[k % k.size]


def step_by_pairs(k: Any, table: Any) -> Any:
    square = jnp.broadcast_to(table, (2, table.size))
    return square[k % 2, k]


def step_of_one_for_all(k: Any, table: Any) -> Any:
    return jnp.broadcast_to(table[k[-1]], k.shape) + 0 * k


WALKS = [step_of_a_walk, step_by_a_column, step_beside_itself, step_backwards, step_over_a_neighbour, step_in_itself,
         step_by_pairs, step_of_one_for_all]


@pytest.mark.parametrize("step", WALKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("size", SIZES)
def test_walks(step: Callable[[Any, Any], Any], size: int) -> None:
    rng = np.random.default_rng(size)
    table, k = (rng.integers(0, 37, n).astype(np.int32) for n in (37, size))
    check(lambda k, table: lax.fori_loop(0, 5, lambda i, k: step(k, table), k), k, table)
    check(lambda k, table: lax.fori_loop(0, 3, lambda i, k: anima.vmap(step, (0, None))(k, table), k),
          np.stack([k, (k + 1) % 37]), table)


def test_walks_need_no_second_array() -> None:
    k, table = np.arange(1000, dtype=np.int32) % 37, np.arange(37, dtype=np.int32)
    for step in WALKS[:3]:
        stages = lowered(lambda k, t, step=step: lax.fori_loop(0, 5, lambda i, k: step(k, t), k), k, table)
        assert not list(copies(stages.loops.body)), step.__name__


BRANCHES: dict[str, Callable[[Any, Any], Any]] = {
    "new and old": lambda x, y: (x.at[0].add(y[0]), x),
    "old and new": lambda x, y: (x, x.at[0].set(y[0])),
    "old twice": lambda x, y: (x.at[0].multiply(y[0]), x * 1),
    "old reversed": lambda x, y: (x.at[:].max(y), x[::-1]),
    "old reshaped": lambda x, y: (lax.dynamic_update_slice(x, y[:1], (0,)), x.reshape(1, -1)[0]),
    "two updates": lambda x, y: (x.at[0].add(y[0]), x.at[-1].add(1)),
    "one after the other": lambda x, y: (x.at[0].add(y[0]).at[-1].multiply(2), x.at[0].add(y[0])),
    "both": lambda x, y: (x.at[0].add(y[0]), y.at[0].add(x[0]) - y),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("branch", BRANCHES)
def test_branches_that_give_what_they_update(branch: str, size: int) -> None:
    """Small results are values, which are made of arrays at a branch's end."""
    there, other = BRANCHES[branch], lambda x, y: (y, x)
    x, y = np.arange(1, size + 1, dtype=np.float32), np.arange(size, dtype=np.float32) * 3 + 7

    def either(x: Any, y: Any, k: Any) -> Any:
        return lax.cond(k == 0, there, other, x, y)

    def one_of_three(x: Any, y: Any, k: Any) -> Any:
        return lax.switch(k, [there, other, lambda x, y: there(y, x)], x, y)

    def nested(x: Any, y: Any, k: Any) -> Any:
        return lax.cond(k < 2, lambda x, y: lax.cond(k == 0, there, other, x, y), lambda x, y: (x, y), x, y)

    def closed(x: Any, y: Any, k: Any) -> Any:
        return lax.cond(k == 0, lambda: there(x, y), lambda: (x, y))

    for choose in (either, one_of_three, nested, closed):
        for fun in (
                choose,
                lambda x, y, k, choose=choose: (lambda a, b: a - 2 * b)(*choose(x, y, k)),
                lambda x, y, k, choose=choose: lax.scan(
                    lambda s, i: (choose(*s, (k + i) % 3), s[0]), (x, y), np.arange(4))):
            for k in range(3):
                check(fun, x, y, k)


# ---------------------------------------------------------------- histories: what is kept, and what comes of it

History = tuple[Any, Any]


def delayed(step: Callable[[Any, Any, Any], Any], set_first: bool, put: str
            ) -> Callable[[History, Any], tuple[History, Any]]:
    """A step whose value is written into its history, and made of that, either before the other."""
    def kept(rows: Any, x: Any, i: Any) -> Any:
        row = x[None] if put == "slice" else x
        return lax.dynamic_update_slice_in_dim(rows, row, i, 0) if put == "slice" else getattr(rows.at[i], put)(x)

    def body(carry: History, i: Any) -> tuple[History, Any]:
        rows, x = carry
        if set_first:
            new = kept(rows, x, i)
            return (new, step(rows, x, i)), None
        later = step(rows, x, i)
        return (kept(rows, x, i), later), None

    return body


STEPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a row": lambda rows, x, i: x * 0.5 + rows[(7 * i) % rows.shape[0]],
    "two rows": lambda rows, x, i: x * 0.5 + rows[i] - rows[i + 2],
    "all rows": lambda rows, x, i: x * 0.5 + rows.max(0),
    "a single element": lambda rows, x, i: x * 0.5 + rows[i, 1],
    "a column": lambda rows, x, i: x * 0.5 + rows[:, 0].max(),
    "nothing": lambda rows, x, i: x * 0.5,
}


@pytest.mark.parametrize("put", ["set", "add", "slice"])
@pytest.mark.parametrize("set_first", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_histories_are_not_copied(name: str, set_first: bool, put: str) -> None:
    rows, x = np.arange(600, dtype=np.float32).reshape(150, 4) % 7, np.arange(4, dtype=np.float32)

    def run(rows: Any, x: Any) -> Any:
        return lax.scan(delayed(STEPS[name], set_first, put), (rows, x), jnp.arange(9))[0]

    check(run, rows, x)
    program = lowered(run, rows, x).loops
    assert not list(copies(program.body))
    assert all(b.size < rows.size for b in program.buffers if b.role == "temp")
