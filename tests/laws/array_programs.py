"""Random programs that change arrays element by element, slice by slice and as a whole, in loops and branches.

    ("for", 3, "am", 0, (("put", "a", 2, "b", 5), ("cond", 1, (("swap", "a", 0, 4),), ())))

State is two vectors `a` and `b`, a matrix `m` and a number `k`. Steps read what others write, before and after;
indices are negative, too large, or depend on the values. All arithmetic is exact, so that results of every way to run
a program have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import anima.numpy as jnp
from anima import lax, vmap

State = dict[str, Any]
Steps = tuple[Any, ...]

ROWS = 3


def mixed(x: Any, y: Any) -> Any:
    """An elementwise operation whose results are exact and stay small."""
    if x.dtype == bool:
        return x ^ ~y
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.where(jnp.abs(x.real) < 64, y - x * 2, x * 0.5)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.where(jnp.abs(x) < 64, y - x * 2, x * 0.5)
    return y - x * 3


def lower(x: Any, y: Any) -> Any:
    """The lesser one; of complex numbers that whose real part is."""
    return jnp.where(x.real < y.real, x, y) if jnp.issubdtype(x.dtype, jnp.complexfloating) else jnp.minimum(x, y)


def index(s: State, which: int, n: int) -> Any:
    """An index for an axis of `n`: of several kinds, some outside."""
    def value() -> Any:
        element = s["a"][1 % s["a"].shape[0]]
        return lax.convert_element_type(jnp.abs(element).astype(jnp.float32) % 7, jnp.int32)

    k = s["k"]
    kinds = (lambda: k, lambda: k + 1, lambda: -k - 1, lambda: k * 3 % max(n, 1), lambda: 0, lambda: -1,
             lambda: n // 2, lambda: n + 1, lambda: -n - 2, lambda: k - 1, value)
    return kinds[which]()


Leaf = Callable[..., dict[str, Any]]
LEAVES: dict[str, Leaf] = {}


def leaf(fun: Leaf) -> Leaf:
    LEAVES[fun.__name__.strip("_")] = fun
    return fun


def at(s: State, name: str, i: int) -> Any:
    """A function of an array: a view of it at an index, to be updated."""
    return s[name].at[index(s, i, s[name].shape[0])]


def read(s: State, name: str, j: int) -> Any:
    """An element of a vector, the first of a row."""
    row = s[name][index(s, j, s[name].shape[0])]
    return row if not row.shape else row[index(s, (j * 5) % 11, row.shape[0])]


@leaf
def _put(s: State, x: str, i: int, y: str, j: int) -> State:
    return {x: at(s, x, i).set(mixed(read(s, y, j), read(s, x, i)))}


@leaf
def _clip(s: State, x: str, i: int, y: str, j: int) -> State:
    return {x: at(s, x, i).set(read(s, y, j), mode="clip")}


@leaf
def _least(s: State, x: str, i: int, y: str, j: int) -> State:
    if jnp.issubdtype(s[x].dtype, jnp.complexfloating) or s[x].dtype == bool:
        return {x: at(s, x, i).set(lower(read(s, y, j), read(s, x, j)))}
    return {x: at(s, x, i).min(read(s, y, j))}


@leaf
def _swap(s: State, x: str, i: int, y: str, j: int) -> State:
    t, u = read(s, x, i), read(s, x, j)
    return {x: at(s | {x: at(s, x, i).set(u)}, x, j).set(t)}


@leaf
def _late(s: State, x: str, i: int, y: str, j: int) -> State:
    """Reads an array after its update."""
    new = at(s, x, i).set(read(s, y, j))
    s2 = s | {x: new}
    other = "b" if x == "a" else "a"
    return {x: new, other: at(s, other, j).set(mixed(read(s, x, i), read(s2, x, j)))}


@leaf
def _compare(s: State, x: str, i: int, y: str, j: int) -> State:
    """Reads all of an array after its update."""
    new = at(s, x, i).set(read(s, y, j))
    return {x: mixed(new, s[x])}


@leaf
def _keep(s: State, x: str, i: int, y: str, j: int) -> State:
    """The other vector becomes an updated copy."""
    other = "b" if x == "a" else "a"
    source = x if x != "m" else "b"
    return {other: at(s, source, i).set(read(s, y, j))}


@leaf
def _depends(s: State, x: str, i: int, y: str, j: int) -> State:
    """An index that is known after the update, and an element from before it."""
    new = at(s, x, i).set(read(s, y, j))
    where = jnp.abs(read(s | {x: new}, x, i)).astype(jnp.float32).astype(jnp.int32) % s[x].shape[0]
    return {x: new.at[where].set(s[x][where])}


@leaf
def _window(s: State, x: str, i: int, y: str, j: int) -> State:
    n = s[x].shape[0]
    size = (max(n // 3, 1), *s[x].shape[1:])
    rest = [0] * (s[x].ndim - 1)
    old = lax.dynamic_slice(s[x], [index(s, j, n), *rest], size)
    return {x: lax.dynamic_update_slice(s[x], mixed(old, old), [index(s, i, n), *rest])}


@leaf
def _many(s: State, x: str, i: int, y: str, j: int) -> State:
    """Several elements at once, some of them twice or nowhere."""
    n = s[x].shape[0]
    into, out_of = (jnp.array([index(s, (k + d) % 11, n) for d in range(5)]) for k in (i, j))
    return {x: s[x].at[into].set(s[x][out_of])}


@leaf
def _lanes(s: State, x: str, i: int, y: str, j: int) -> State:
    """Lanes that read one array, some of them at the same place."""
    n = s[x].shape[0]
    out_of = jnp.array([index(s, (j + d * i) % 11, n) for d in range(n)])
    return {x: mixed(s[x], vmap(lambda k: (lax.dynamic_index_in_dim(s[x], k, 0, False), s[x][k])[i % 2])(out_of))}


@leaf
def _shift(s: State, x: str, i: int, y: str, j: int) -> State:
    return {x: s[x].at[1:].set(s[x][:-1]) if i % 2 else s[x].at[:-1].set(mixed(s[x][1:], s[x][:-1]))}


@leaf
def _odd(s: State, x: str, i: int, y: str, j: int) -> State:
    half = s[x][1::2]
    return {x: s[x].at[:2 * half.shape[0]:2].set(half)}


@leaf
def _turn(s: State, x: str, i: int, y: str, j: int) -> State:
    return {x: (s[x][::-1], jnp.roll(s[x], 1, 0), jnp.concatenate([s[x][2:], s[x][:2]]),
                jnp.where((jnp.arange(s[x].shape[-1]) == index(s, j, 3)), s[x][::-1], s[x]))[i % 4]}


@leaf
def _whole(s: State, x: str, i: int, y: str, j: int) -> State:
    other = s[y] if s[y].shape == s[x].shape else s[x]
    return {x: mixed(s[x], other), **({"k": s["k"] + 1} if i == 3 else {})}


@leaf
def _rename(s: State, x: str, i: int, y: str, j: int) -> State:
    return ({"a": s["b"], "b": s["a"]}, {"a": s["b"], "b": mixed(s["a"], s["b"])}, {"a": s["b"]},
            {"b": at(s, "a", j).set(read(s, "b", j)), "a": s["b"]},
            {"a": at(s, "b", j).set(read(s, "a", j)), "b": at(s, "a", j).set(read(s, "b", j))})[i % 5]


@leaf
def _cross(s: State, x: str, i: int, y: str, j: int) -> State:
    """A row and a column of the matrix against all of it."""
    m, row, column = s["m"], index(s, i, ROWS), index(s, j, s["m"].shape[1])
    if i % 2:
        return {"m": m.at[row, column].set(m[column, row])}
    return {"m": mixed(lower(m, m[row][None, :]), m[:, column][:, None])}


@leaf
def _columns(s: State, x: str, i: int, y: str, j: int) -> State:
    m = s["m"]
    width = m.shape[1]
    changed = m.at[:, index(s, i, width)].set(m[:, index(s, j, width)])
    return {"m": changed, "a": at(s, "a", i).set(m[0, index(s, j, width)])}


@leaf
def _largest(s: State, x: str, i: int, y: str, j: int) -> State:
    total = jnp.max(s[x].real) if s[x].dtype != bool else jnp.any(s[x])
    return {x: at(s, x, i).set(total.astype(s[x].dtype))}


@dataclass(frozen=True)
class Program:
    """Steps that take a state to a state."""

    steps: Steps

    def __call__(self, a: Any, b: Any, m: Any) -> tuple[Any, ...]:
        s = _run(self.steps, {"a": jnp.asarray(a), "b": jnp.asarray(b), "m": jnp.asarray(m), "k": jnp.int32(0)})
        return tuple(s[name] for name in sorted(s))


def _run(steps: Steps, s: State) -> State:
    for name, *given in steps:
        s = s | (LEAVES[name](s, *given) if name in LEAVES else CONTROL[name](s, *given))
    return s


def _for(s: State, trips: int, carried: str, start: int, steps: Steps) -> State:
    """A loop that carries some of the arrays, and reads the others as they are; one may start as another is."""
    initial = {x: s[x] for x in carried} | ({"a": s["b"]} if start == 1 and "a" in carried else {})

    def body(i: Any, c: State) -> State:
        new = _run(steps, s | c | {"k": i})
        return {x: new[x] for x in carried}

    return lax.fori_loop(0, trips, body, initial)


def _scan(s: State, trips: int, carried: str, start: int, steps: Steps) -> State:
    """Rows of what goes in are those of the matrix, what comes out goes there."""
    def body(c: State, given: Any) -> tuple[State, Any]:
        row, k = given
        before = s | c | {"k": k}
        before["b"] = before["b"].at[0].set(row[0]) if start else before["b"]
        new = _run(steps, before)
        return {x: new[x] for x in carried}, (new["m"][start % ROWS] if start < 2 else before["a"][:1], new["a"])

    c, (rows, vectors) = lax.scan(body, {x: s[x] for x in carried}, (s["m"], jnp.arange(ROWS)), reverse=start == 2)
    return c | {"a": vectors[trips % ROWS]} | ({"m": mixed(rows, s["m"])} if start < 2 else {})


def _while(s: State, trips: int, carried: str, start: int, steps: Steps) -> State:
    """Goes on for as long as an element says."""
    initial = {x: s[x] for x in carried} | {"k": jnp.int32(0)}

    def go_on(c: State) -> Any:
        return (c["k"] < trips) & (read(s | c, "a" if start == 0 else "m", 1) != read(s | c, "b", 0))

    def body(c: State) -> State:
        new = _run(steps, s | c)
        return {x: new[x] for x in carried} | {"k": c["k"] + 1}

    return lax.while_loop(go_on, body, initial) | {"k": s["k"]}


def _cond(s: State, which: int, yes: Steps, no: Steps) -> State:
    chosen = read(s, "a", which).real > read(s, "b", which).real if s["a"].dtype != bool else read(s, "a", which)
    names = ("a", "b", "m")

    def branch(steps: Steps) -> Callable[[Any], Any]:
        def run(given: Any) -> Any:
            new = _run(steps, s | given)
            return {x: new[x] for x in names}

        return run

    return lax.cond(chosen, branch(yes), branch(no), {x: s[x] for x in names})


def _switch(s: State, which: int, *branches: Steps) -> State:
    taken = [lambda c, steps=steps: {x: y for x, y in _run(steps, s | c).items() if x != "k"} for steps in branches]
    return lax.switch(index(s, which, 3), taken, {x: s[x] for x in ("a", "b", "m")})


CONTROL: dict[str, Callable[..., State]] = {"for": _for, "scan": _scan, "while": _while, "cond": _cond,
                                            "switch": _switch}


def programs() -> st.SearchStrategy[Program]:
    """Programs of up to four steps, loops and branches up to three deep."""
    names, where, few = st.sampled_from("abm"), st.integers(0, 10), st.integers(0, 4)
    carried = st.sampled_from(["a", "ab", "abm", "am", "bm", "ba"])
    leaves = st.tuples(st.sampled_from(sorted(LEAVES)), names, where, names, where)

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        steps = st.lists(inner, min_size=1, max_size=3).map(tuple)
        loops = st.tuples(st.sampled_from(["for", "for", "scan", "while"]), few, carried, st.integers(0, 2), steps)
        return st.one_of(leaves, loops, loops, st.tuples(st.just("cond"), where, steps, steps),
                         st.tuples(st.just("switch"), where, steps, steps, st.just(())))

    return st.lists(st.recursive(leaves, nested, max_leaves=6), min_size=1, max_size=3).map(
        lambda steps: Program((("for", 3, "abm", 0, tuple(steps)),)))


def start(dtype: Any, size: int, seed: int, lead: tuple[int, ...] = ()) -> tuple[np.ndarray, ...]:
    """Vectors of `size` and a matrix, of small whole numbers."""
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(0, 2 if dtype == "bool" else 9, (*lead, *shape)).astype(dtype)
                 for shape in ((size,), (size,), (ROWS, size)))
