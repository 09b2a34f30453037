"""References under every transformation, in loops, branches and calls; compiled, in place; what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
from anima import freeze, lax, new_ref, numpy as jnp
from anima.core.jaxpr import ClosedJaxpr, subjaxprs
from anima.ref import Ref, swap
from anima.transforms.discharge import without_refs

X = np.array([0.5, 1.5, -0.7, 0.2], np.float32)


def program(jaxpr: str) -> str:
    return "\n".join(line.strip() for line in jaxpr.strip().splitlines())


# ---------------------------------------------------------------- what is recorded


def test_programs_are_printed_as_the_documents_print_them() -> None:
    def f(r: Ref, k: Any) -> Any:
        r[k] = 1.0
        r[1:3] += 2.0
        r.addupdate(3.0, 1)
        before = swap(r, -1, 4.0)
        s = new_ref(r[...])
        s.at[1:][0] = before
        return freeze(s)

    assert program(str(anima.make_jaxpr(f)(new_ref(X), 1))) == program("""
        { lambda ; a:Ref{f32[4]} b:i32[]. let
        a[b] <- 1.0
        c:f32[2] <- a[1:3]
        d:f32[2] = add c 2.0
        a[1:3] <- d
        a[1] += 3.0
        e:f32[], a[-1] <- a[-1], 4.0
        f:f32[4] <- a[...]
        g:Ref{f32[4]} = new_ref f
        g[1:][0] <- e
        h:f32[4] = freeze g
        in (h,) }""")


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit])
def test_methods_of_references_and_views(wrap: Callable[..., Any]) -> None:
    def f(r: Ref) -> Any:
        r.set(r.get(1) + 1.0, 0)
        view = r.at[1:]
        view.set(2.0, -1)
        return r.swap(5.0, 2), view.swap(7.0, (0,)), view.get(), r.get()

    r = new_ref(X)
    for got, expected in zip(wrap(f)(r), (-0.7, 1.5, [7.0, 5.0, 2.0], [2.5, 7.0, 5.0, 2.0]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    r.set(0.5)
    np.testing.assert_array_equal(r.swap(jnp.arange(4.0)), [0.5] * 4)
    np.testing.assert_array_equal(r.get(), range(4))


def test_places_are_printed() -> None:
    def f(r: Ref, k: Any) -> Any:
        return r[..., 0], r[::2, -1], r[None, 1:], r.at[k].at[:, 1:][0], r.at[1:][k, 0], r[0:0, 1], r[k, ::-1], r[:]

    lines = str(anima.make_jaxpr(f)(new_ref(jnp.zeros((3, 4))), jnp.array([0, 1]))).splitlines()[1:-1]
    assert [line.split("<- ")[1] for line in lines] == [
        "a[:,0]", "a[::2,-1]", "a[None,1:,:]", "a[b,:][:,1:][0,:]", "a[1:,:][b,0]", "a[:0,1]", "a[b,3::-1]", "a[...]"]


def test_loops_and_calls_take_references() -> None:
    r = new_ref(X)
    jaxpr = anima.make_jaxpr(lambda: lax.fori_loop(0, 3, lambda i, c: (r.addupdate(1.0, i), c)[1], 0))()
    assert str(jaxpr).startswith("{ lambda a:Ref{f32[4]}; . let")
    (loop,) = jaxpr.eqns
    assert loop.primitive.name == "scan" and str(loop.invars[0].aval) == "Ref{float32[4]}"
    assert loop.params["num_consts"] == 1 and jaxpr.effects
    (call,) = anima.make_jaxpr(anima.jit(lambda r: r[...] * 2))(r).eqns
    assert call.primitive.name == "pjit" and str(call.invars[0].aval) == "Ref{float32[4]}"


# ---------------------------------------------------------------- loops, branches, calls


def count_up(r: Ref, n: Any, kind: str) -> Any:
    def body(i: Any) -> Any:
        r[i % 4] = r[i % 4] * 2 + i
        return r[0]

    if kind == "fori":
        return lax.fori_loop(0, n, lambda i, s: s + body(i), 0.0)
    if kind == "scan":
        return jnp.sum(lax.scan(lambda c, i: (c, body(i)), 0, jnp.arange(n))[1])
    if kind == "while":  # the condition reads what the body writes
        return lax.while_loop(lambda c: (c[0] < n) & (r[3] < 1e6), lambda c: (c[0] + 1, c[1] + body(c[0])), (0, 0.0))[1]
    return jnp.sum(lax.map(body, jnp.arange(n)))


@pytest.mark.parametrize("kind", ("fori", "scan", "while", "map"))
@pytest.mark.parametrize("jitted", (False, True))
def test_loops(kind: str, jitted: bool) -> None:
    expected, total = X.copy(), 0.0
    for i in range(6):
        expected[i % 4] = expected[i % 4] * 2 + i
        total += expected[0]
    r = new_ref(X)
    run = anima.jit(count_up, static_argnums=(1, 2)) if jitted else count_up
    np.testing.assert_allclose(run(r, 6, kind), total, rtol=1e-6)
    np.testing.assert_allclose(r[...], expected, rtol=1e-6)


def test_a_loop_of_unknown_length() -> None:
    r = new_ref(X)
    run = anima.jit(lambda r, n: lax.fori_loop(0, n, lambda i, c: (r.addupdate(1.0, i), c)[1], 0))
    for n in (3, 0, 4):
        run(r, n)
    np.testing.assert_allclose(r[...], X + [2, 2, 2, 1], rtol=1e-6)


@pytest.mark.parametrize("size", (0, 1, 3))
@pytest.mark.parametrize("reverse", (False, True))
def test_slices_of_a_reference(size: int, reverse: bool) -> None:
    def f(r: Ref, xs: Any) -> Any:
        def body(c: Any, pair: Any) -> Any:
            row, x = pair
            row[...] = row[...] * x + c
            return c + row[0], row[1]

        return lax.scan(body, 0.0, (r, xs), reverse=reverse)

    rows = np.arange(2.0 * size, dtype=np.float32).reshape(size, 2)
    factors = np.arange(1.0, size + 1, dtype=np.float32)
    expected, c = rows.copy(), 0.0
    for k in range(size)[::-1 if reverse else 1]:
        expected[k] = expected[k] * factors[k] + c
        c += expected[k, 0]
    for run in (f, anima.jit(f)):
        r = new_ref(rows)
        last, ys = run(r, factors)
        np.testing.assert_array_equal(r[...], expected)
        np.testing.assert_array_equal(ys, expected[:, 1])
        assert last == c


@pytest.mark.parametrize("jitted", (False, True))
def test_branches(jitted: bool) -> None:
    def f(r: Ref, s: Ref, k: Any) -> Any:
        return lax.switch(k, [lambda: swap(r, 0, 9.0), lambda: r.at[1:][0] + s[0], lambda: s.addupdate(1.0, 0) or 0.0])

    run = anima.jit(f) if jitted else f
    r, s = new_ref(X), new_ref(X)
    assert [float(run(r, s, k)) for k in (0, 1, 2, 0)] == [0.5, 2.0, 0.0, 9.0]
    np.testing.assert_array_equal(r[...], [9.0, *X[1:]])
    np.testing.assert_array_equal(s[...], [1.5, *X[1:]])


def test_calls_and_closures() -> None:
    r = new_ref(X)

    @anima.jit
    def outer(x: Any, box: dict[str, Ref]) -> Any:
        @anima.jit
        def inner(y: Any) -> Any:
            r[0] += y
            box["s"][1] = r[0]
            return r[0]

        return inner(x) + inner(2 * x)

    s = new_ref(jnp.zeros(2))
    for _ in range(2):
        r[0] = 0.5
        assert outer(1.0, {"s": s}) == 1.5 + 3.5
    assert outer._cache_size() == 1
    assert (float(r[0]), float(s[1])) == (3.5, 3.5)
    with anima.disable_jit():
        assert outer(1.0, {"s": s}) == 4.5 + 6.5


def test_what_was_lowered_runs_on_references() -> None:
    r = new_ref(X)
    compiled = anima.jit(lambda r, y: swap(r, 0, y)).lower(r, 1.0).compile()
    assert (float(compiled(r, 5.0)), float(compiled(r, 6.0)), float(r[0])) == (0.5, 5.0, 6.0)
    with pytest.raises(TypeError, match=r"compiled with Ref\{float32\[4\]\} and called with float32\[4\]"):
        compiled(X, 5.0)


def test_nothing_changes_where_a_call_fails() -> None:
    r = new_ref(X)
    with anima.debug_nans(True), pytest.raises(FloatingPointError):
        anima.jit(lambda r: r.addupdate(jnp.log(r[2]), 0))(r)
    np.testing.assert_array_equal(r[...], X)


# ---------------------------------------------------------------- in place


def updates(r: Ref, n: Any) -> None:
    def body(i: Any, c: Any) -> Any:
        k = (i * 7919) % r.size
        lax.cond(i % 2 == 0, lambda: r.addupdate(1.0, k), lambda: r.at[10:].addupdate(0.0, 0) if False else None)
        r[k] = r[k] * 2.0
        return c

    lax.fori_loop(0, n, body, 0)


def test_compiled_updates_are_in_place() -> None:
    size = 1_000_000
    r, run = new_ref(jnp.zeros(size)), anima.jit(updates)
    memory = run.lower(r, 1).compile().memory_analysis()
    assert memory.alias_size_in_bytes == memory.output_size_in_bytes == 4 * size
    assert memory.temp_size_in_bytes < 1000
    run(r, 1)
    where = r.unsafe_buffer_pointer()
    seconds = []
    for n in (1, 1000):
        best = 1.0
        for _ in range(5):
            start = time.perf_counter()
            run(r, n)
            best = min(best, time.perf_counter() - start)
        seconds.append(best)
    assert r.unsafe_buffer_pointer() == where
    assert seconds[1] < 0.02, "a thousand steps take as long as a thousand copies"
    assert "kernel copy" not in run.lower(r, 1).loops


IN_PLACE: dict[str, Callable[..., Any]] = {
    "place": lambda r: r.addupdate(1.0, (0, 5)), "row": lambda r: swap(r, 2, r[1]),
    "positions": lambda r: r.addupdate(1.0, (jnp.array([1, 1]), jnp.array([0, 2]))),
    "view": lambda r: r.at[1:].at[:, 2:].addupdate(1.0, (0, 1)),
    "slices": lambda r: lax.scan(lambda c, row: (row.addupdate(1.0, 3), (c, None))[1], 0, r),
    "slices, backwards": lambda r: lax.scan(lambda c, row: (row.addupdate(1.0, 3), (c, None))[1], 0, r, reverse=True),
    "lanes": lambda r: anima.vmap(lambda row: row.addupdate(1.0, 3))(r),
    "loops of lanes": lambda r: anima.vmap(lambda row: lax.fori_loop(
        0, 10, lambda i, c: (row.addupdate(1.0, i), c)[1], 0))(r),
    "condition": lambda r: lax.while_loop(lambda i: r[0, i] < 1, lambda i: (r.addupdate(1.0, (0, i)), i + 1)[1], 0),
    "calls": lambda r: lax.fori_loop(0, 9, lambda i, c: (anima.jit(lambda r, i: r.addupdate(1.0, i))(r, i), c)[1], 0),
    "branches": lambda r: lax.fori_loop(0, 9, lambda i, c: (lax.cond(
        r[0, i] > 0, lambda: r.addupdate(1.0, (1, i)), lambda: r.addupdate(2.0, (0, i))), c)[1], 0)}


@pytest.mark.parametrize("name", IN_PLACE)
def test_every_way_of_writing_is_in_place(name: str) -> None:
    rows, columns = 4, 10_000
    r = new_ref(jnp.zeros((rows, columns)))
    memory = anima.jit(IN_PLACE[name]).lower(r).compile().memory_analysis()
    assert memory.alias_size_in_bytes == 4 * rows * columns
    assert memory.temp_size_in_bytes < 4 * columns + 100


def test_a_reference_made_inside_needs_no_copies() -> None:
    def f(x: Any) -> Any:
        r = new_ref(x)
        lax.fori_loop(0, 100, lambda i, c: (r.addupdate(1.0, i), c)[1], 0)
        return freeze(r)

    memory = anima.jit(f).lower(jnp.zeros(10_000)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 1000


def test_loops_outside_of_jit_are_compiled_once() -> None:
    r = new_ref(jnp.zeros(4))
    seen = []
    for _ in range(3):
        lax.fori_loop(0, 3, lambda i, c: (r.addupdate(1.0, i), c)[1], 0)
        seen.append(r.unsafe_buffer_pointer())
    assert len(set(seen)) == 1
    np.testing.assert_array_equal(r[...], [3, 3, 3, 0])


# ---------------------------------------------------------------- derivatives


def with_ref(x: Any) -> Any:
    r = new_ref(x)
    r[...] = jnp.sin(r[...]) * 2
    r[0] += x[1] ** 2
    lax.fori_loop(0, 3, lambda i, c: (r.addupdate(r[i] * r[3], i + 1), c)[1], 0)
    lax.cond(x[2] > 0, lambda: None, lambda: r.addupdate(x[2] * x[0], 2))
    return jnp.sum(freeze(r) ** 2)


def without_ref(x: Any) -> Any:
    r = jnp.sin(x) * 2
    r = r.at[0].add(x[1] ** 2)
    for i in range(3):
        r = r.at[i + 1].add(r[i] * r[3])
    return jnp.sum(jnp.where(x[2] > 0, r, r.at[2].add(x[2] * x[0])) ** 2)


TRANSFORMED: tuple[Callable[..., Any], ...] = (
    lambda f: f, anima.grad, lambda f: anima.jit(anima.grad(f)), lambda f: anima.grad(anima.jit(f)), anima.hessian,
    lambda f: anima.jit(anima.hessian(f)), lambda f: anima.grad(anima.checkpoint(f)),
    lambda f: lambda x: anima.jvp(f, (x,), (x,)), lambda f: lambda x: anima.linearize(f, x)[1](x),
    lambda f: lambda x: anima.vmap(f)(jnp.stack([x, 2 * x])),
    lambda f: anima.jit(lambda x: anima.vmap(anima.grad(f))(jnp.stack([x, 2 * x]))),
    lambda f: lambda x: anima.grad(lambda x: jnp.sum(anima.vmap(anima.jit(f))(jnp.stack([x, 2 * x]))))(x))


@pytest.mark.parametrize("transform", TRANSFORMED)
def test_transformed_as_the_function_without_references(transform: Callable[..., Any]) -> None:
    got, expected = transform(with_ref)(X), transform(without_ref)(X)
    for a, b in zip(anima.tree.leaves(got), anima.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


def plumbed(x: Any, r: Ref, loop: bool) -> Any:
    def body(c: Any, k: Any) -> Any:
        c = c * jnp.sin(r[k]) + r[k]
        r[k] = lax.stop_gradient(c) + 1.0
        return c, c

    if loop:
        last, ys = lax.scan(body, x, jnp.array([0, 1, 0, 1]))
        return last + jnp.sum(ys)
    total = 0.0
    for k in (0, 1, 0, 1):
        x, y = body(x, k)
        total = total + y
    return x + total


@pytest.mark.parametrize("transform", (
    anima.value_and_grad, lambda f: anima.jit(anima.value_and_grad(f), static_argnums=2),
    lambda f: lambda x, r, n: anima.jvp(lambda x: f(x, r, n), (x,), (1.0,))))
def test_a_reference_that_is_not_differentiated(transform: Callable[..., Any]) -> None:
    start = np.array([0.5, 0.7], np.float32)
    refs = [new_ref(start), new_ref(start)]
    value, slope = transform(plumbed)(0.3, refs[0], True)
    expected, expected_slope = anima.value_and_grad(plumbed)(0.3, refs[1], False)
    np.testing.assert_allclose((value, slope), (expected, expected_slope), rtol=1e-5)
    np.testing.assert_allclose(refs[0][...], refs[1][...], rtol=1e-6)


@anima.custom_vjp
def stash(r: Ref, x: Any) -> Any:
    return x


stash.defvjp(lambda r, x: (x, r), lambda r, g: (r.addupdate(g), (None, g))[1])

closed_over = new_ref(jnp.zeros(4))


@anima.custom_vjp
def tap(x: Any) -> Any:
    return x


tap.defvjp(lambda x: (x, None), lambda _, g: (closed_over.addupdate(g), (g,))[1])

LOOPS: dict[str, Callable[..., Any]] = {
    "none": lambda f, x: f(f(f(x))),
    "scan": lambda f, x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0],
    "while": lambda f, x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x))[1],
    "cond": lambda f, x: lax.cond(x[0] > 0, lambda: f(f(f(x))), lambda: x),
    "call": lambda f, x: anima.jit(f)(f(f(x)))}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("transform", TRANSFORMED[1:4])
def test_backward_passes_write(loop: str, transform: Callable[..., Any]) -> None:
    r = new_ref(jnp.zeros(4))
    closed_over[...] = 0.0
    gradient = transform(lambda x: jnp.sum(LOOPS[loop](lambda c: stash(r, tap(jnp.sin(c))), x)))(X)
    x, slopes = X.astype(np.float64), []
    for _ in range(3):
        slopes.append(np.cos(x))
        x = np.sin(x)
    np.testing.assert_allclose(gradient, np.prod(slopes, axis=0), rtol=1e-5)
    stashed = 1 + slopes[2] + slopes[2] * slopes[1]
    np.testing.assert_allclose(r[...], stashed, rtol=1e-5)
    np.testing.assert_allclose(closed_over[...], stashed, rtol=1e-5)


def test_backward_passes_write_to_slices() -> None:
    def f(x: Any, rows: Ref, scales: Any) -> Any:
        def body(c: Any, row: Any) -> Any:
            c = stash(row[0], jnp.sin(c * row[1]))
            return c, c

        last, ys = lax.scan(body, x, (rows, scales))
        return jnp.sum(last) + jnp.sum(ys)

    scales = np.array([1.0, 0.5, 2.0], np.float32)
    rows = [new_ref(jnp.zeros((3, 4))) for _ in range(2)]
    got = anima.grad(f, argnums=(0, 2))(X, rows[0], scales)
    jitted = anima.jit(anima.grad(f, argnums=(0, 2)))(X, rows[1], scales)
    x, ct = X, np.zeros(4, np.float32)
    values = [x := np.sin(x * s) for s in scales]
    for k in (2, 1, 0):
        ct = ct + (2.0 if k == 2 else 1.0)
        np.testing.assert_allclose(rows[0][k], ct, rtol=1e-5)
        ct = ct * np.cos((values[k - 1] if k else X) * scales[k]) * scales[k]
    np.testing.assert_allclose(got[0], ct, rtol=1e-5)
    np.testing.assert_allclose(rows[1][...], rows[0][...], rtol=1e-5)
    for a, b in zip(got, jitted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@anima.custom_vjp
def tripled(x: Any) -> Any:
    r = new_ref(x)
    r[...] *= 1.0
    return freeze(r)


tripled.defvjp(lambda x: (x, None), lambda _, g: (g * 3.0,))


@pytest.mark.parametrize("transform", TRANSFORMED[1:4])
def test_rules_of_custom_derivatives_are_kept(transform: Callable[..., Any]) -> None:
    def f(x: Any) -> Any:
        r = new_ref(x)
        lax.fori_loop(0, 2, lambda i, c: (anima.ref.set(r, ..., tripled(r[...])), c)[1], 0)
        return jnp.sum(freeze(r))

    np.testing.assert_allclose(transform(f)(X), np.full(4, 9.0))
    np.testing.assert_allclose(anima.vmap(transform(f))(jnp.stack([X, X])), np.full((2, 4), 9.0))
    np.testing.assert_allclose(transform(lambda x: jnp.sum(anima.vmap(f)(x)))(jnp.stack([X, X])), np.full((2, 4), 9.0))


def summed(a: Any, b: Any) -> Any:
    r = new_ref(a)
    r.addupdate(b)
    return freeze(r)


@anima.custom_batching.custom_vmap
def own_batching(x: Any) -> Any:
    return summed(x, 1.0)


own_batching.def_vmap(lambda size, batched, x: (x * 3, True))


@anima.custom_jvp
def own_tangent(x: Any) -> Any:
    return summed(x, x)


own_tangent.defjvp(lambda primals, tangents: (own_tangent(*primals), summed(tangents[0], 2 * tangents[0])))

INSIDE: dict[str, tuple[Callable[..., Any], Any]] = {
    "reduce": (lambda x: lax.reduce(x, np.float32(0), lambda a, b: summed(a, b * b), (0,)), np.sum(X**2)),
    "associative_scan": (lambda x: lax.associative_scan(summed, x), np.cumsum(X)),
    "custom_linear_solve": (lambda x: lax.custom_linear_solve(lambda v: summed(v, v), x, lambda m, b: b / 2), X / 2),
    "linear_transpose": (lambda x: anima.linear_transpose(lambda x: summed(x, 2 * x), x)(x)[0], 3 * X),
    "of a call": (lambda x: anima.linear_transpose(anima.jit(lambda x: summed(x, 2 * x)), x)(x)[0], 3 * X),
    "custom_vmap": (lambda x: own_batching(x) + anima.vmap(own_batching)(x), 4 * X + 1),
    "custom_jvp": (lambda x: anima.jvp(own_tangent, (x,), (x,))[1], 3 * X),
    "grad of custom_jvp": (lambda x: anima.grad(lambda x: jnp.sum(own_tangent(x)))(x), np.full(4, 3.0))}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("jitted", (False, True))
def test_made_inside_of_any_operation(name: str, jitted: bool) -> None:
    f, expected = INSIDE[name]
    np.testing.assert_allclose((anima.jit(f) if jitted else f)(X), expected, rtol=1e-6)


def test_references_as_accumulators_of_gradients() -> None:
    def loss(w: dict[str, Any], x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w["a"]) * w["b"])

    w = {"a": jnp.ones((3, 2)) / 3, "b": jnp.arange(2.0)}
    batches = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    grads = anima.tree.map(lambda x: new_ref(jnp.zeros_like(x)), w)

    @anima.jit
    def accumulate(w: Any, grads: Any, batches: Any) -> None:
        def step(c: Any, x: Any) -> Any:
            got, gx = anima.vjp(loss, w, x)[1].with_refs(grads, None)(1.0)
            assert all(repr(g) == "GradRef()" for g in got.values()) and gx.shape == x.shape
            return c, None

        lax.scan(step, 0, batches)

    for _ in range(2):
        accumulate(w, grads, batches)
    expected = anima.grad(lambda w: sum(loss(w, x) for x in batches))(w)
    for name, value in expected.items():
        np.testing.assert_allclose(grads[name][...], 2 * value, rtol=1e-5)
    with pytest.raises(ValueError, match="cannot be added to a reference"):
        anima.vjp(loss, w, batches[0])[1].with_refs(grads, new_ref(0.0))


def test_tangents_of_references_are_references() -> None:
    def f(r: Ref) -> Any:
        r[...] = r[...] ** 2
        return jnp.sum(r[...])

    for run in (anima.jvp, anima.jit(anima.jvp, static_argnums=0)):
        a, b = new_ref(X), new_ref(jnp.ones(4))
        value, slope = run(f, (a,), (b,))
        np.testing.assert_allclose((value, slope), (np.sum(X**2), np.sum(2 * X)), rtol=1e-6)
        np.testing.assert_allclose((a[...], b[...]), (X**2, 2 * X), rtol=1e-6)


# ---------------------------------------------------------------- vmap


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("jitted", (False, True))
def test_batched_references(axis: int, jitted: bool) -> None:
    def f(r: Ref, k: Any, x: Any) -> Any:
        lax.cond(x > 0, lambda: r.addupdate(x, k), lambda: None)
        lax.while_loop(lambda i: i < k, lambda i: (r.addupdate(1.0, 0), i + 1)[1], 0)
        return r[k]

    start, ks = np.zeros((4, 3), np.float32), np.array([0, 2, 1, 2])
    r = new_ref(start if axis == 0 else start.T)
    mapped = anima.vmap(f, in_axes=(axis, 0, 0))
    got = (anima.jit(mapped) if jitted else mapped)(r, ks, X)
    expected = start.copy()
    for row, k, x in zip(expected, ks, X, strict=True):
        row[k] += max(x, 0)
        row[0] += k
    np.testing.assert_allclose(r[...], expected if axis == 0 else expected.T, rtol=1e-6)
    np.testing.assert_allclose(got, expected[np.arange(4), ks], rtol=1e-6)


def test_results_that_are_references() -> None:
    made = anima.vmap(lambda x: new_ref(x * 2), out_axes=1)(jnp.ones((2, 3)))
    assert isinstance(made, Ref) and made.shape == (3, 2)
    made[0] = 0.0
    (value, aux), _ = anima.value_and_grad(lambda x: (x, {"kept": new_ref(x), "name": "a"}), has_aux=True)(1.5)
    aux["kept"][...] += 1.0
    assert float(aux["kept"][...]) == 2.5 and float(value) == 1.5


def test_unbatched_references_are_read() -> None:
    r = new_ref(X)
    np.testing.assert_array_equal(anima.vmap(lambda k: r[k])(np.array([2, 0])), X[[2, 0]])
    np.testing.assert_array_equal(anima.vmap(lambda r, y: r[0] + y, in_axes=(None, 0))(r, X), X[0] + X)


# ---------------------------------------------------------------- what is refused


BOX: list[Any] = []
REFUSED: tuple[tuple[Callable[[Ref], Any], type[Exception], str], ...] = (
    (lambda r: anima.jit(lambda r: r)(r), ValueError, r"traced for jit returned .*\nIt was the argument r of"),
    (lambda r: anima.jit(lambda x: new_ref(x))(X), ValueError, r"cannot be returned.*\nIt was made at test_refs\.py"),
    (lambda r: lax.cond(True, lambda: r, lambda: r), ValueError, "traced for cond returned a mutable array"),
    (lambda r: lax.scan(lambda c, _: (c, None), r, None, length=2), ValueError, "traced for scan returned"),
    (lambda r: lax.fori_loop(0, 2, lambda i, c: c, r), ValueError, r"test_refs\.py:\d+ traced for fori_loop returned"),
    (lambda r: lax.while_loop(lambda c: c[0] < 1, lambda c: c, r), ValueError, "traced for while_loop returned"),
    (lambda r: anima.checkpoint(lambda x: new_ref(x))(1.0), ValueError, "traced for checkpoint returned"),
    (lambda r: anima.vmap(lambda x: r)(X), ValueError, "transformed by vmap returned a mutable array"),
    (lambda r: anima.grad(lambda x: r)(1.0), ValueError, "returned a mutable array"),
    (lambda r: anima.eval_shape(new_ref, X), ValueError, "cannot be returned"),
    (lambda r: anima.jit(lambda a, b: None)(r, r), ValueError, r"Ref\{float32\[4\]\} appeared at both a and b"),
    (lambda r: anima.vmap(lambda a, b: None)(r, r), ValueError, "appeared at both"),
    (lambda r: lax.scan(lambda c, _: (None, None), (r, r), None, length=1), ValueError, "appeared at both"),
    (lambda r: anima.jit(lambda a: a[0] + r[0])(r), ValueError, "both closed over and passed as the argument a"),
    (lambda r: lax.cond(True, lambda a: a[0], lambda a: r[0], r), ValueError, "appeared at both"),
    (lambda r: lax.fori_loop(0, 2, lambda i, c: (anima.jit(lambda a: a[0] + r[0])(r), c)[1], 0), ValueError,
     "both closed over and passed"),
    (lambda r: anima.jit(lambda r: freeze(r))(r), ValueError, "made outside of"),
    (lambda r: anima.jit(lambda: freeze(r))(), ValueError, "made outside of"),
    (lambda r: anima.grad(lambda x: freeze(r)[0] * x)(1.0), ValueError, "made outside of"),
    (lambda r: anima.vmap(lambda x: freeze(r)[0] * x)(X), ValueError, "made outside of"),
    (lambda r: anima.jit(lambda x: [s := new_ref(x), freeze(s), s[0]])(X), RuntimeError, r"was frozen at test_refs"),
    (lambda r: lax.while_loop(lambda i: (r.addupdate(1.0, 0), i < 2)[1], lambda i: i + 1, 0), ValueError,
     "condition of a while_loop writes"),
    (lambda r: (anima.jit(lambda x: BOX.append(new_ref(x)))(X), BOX.pop()[0]), anima.errors.UnexpectedTracerError,
     r"It was made at test_refs\.py"),
    (lambda r: (anima.vmap(lambda x: (BOX.append(new_ref(x)), x)[1])(X), BOX.pop()[...]),
     anima.errors.UnexpectedTracerError, r"It was made at test_refs\.py"),
    (lambda r: anima.grad(lambda r: r[0])(r), ValueError, "only arrays have gradients"),
    (lambda r: anima.grad(lambda x: (r.addupdate(x, 0), x)[1])(1.0), ValueError,
     r"an addupdate operation with a differentiated value on a non-differentiated .*\n?.*test_refs"),
    (lambda r: anima.grad(anima.jit(lambda x: (r.addupdate(x, 0), x)[1]))(1.0), ValueError, "differentiated value on"),
    (lambda r: anima.jvp(lambda x: swap(r, 0, x), (1.0,), (1.0,)), ValueError, "a set/swap operation with a diff"),
    (lambda r: anima.vmap(lambda x: r.addupdate(x, 0))(X), ValueError, "vmapped value on an unbatched"),
    (lambda r: anima.vmap(lambda k: swap(r, k, 1.0))(np.arange(2)), ValueError, "vmapped value on an unbatched"),
    (lambda r: anima.vmap(lambda k: swap(r, 0, 1.0))(np.arange(2)), ValueError, "vmapped value on an unbatched"),
    (lambda r: anima.vmap(lambda x: lax.fori_loop(0, 2, lambda i, c: (r.addupdate(x, i), c)[1], 0))(X), ValueError,
     "vmapped value on an unbatched"),
    (lambda r: anima.vmap(lambda x: lax.cond(x > 0, lambda: r.addupdate(1.0, 0), lambda: None))(X), ValueError,
     "vmapped value on an unbatched"),
    (lambda r: anima.vmap(lambda n: lax.while_loop(lambda i: i < n, lambda i: (swap(r, 0, i), i + 1)[1], 0.0))(X),
     ValueError, "vmapped value on an unbatched"),
    (lambda r: anima.grad(lambda x: jnp.sum(anima.vmap(lambda r, x: lax.scan(
        lambda c, _: (stash(r, c), None), x, None, length=2)[0])(r, x)))(X), NotImplementedError, "mapped by vmap"),
    (lambda r: anima.grad(lambda x: stash(new_ref(X), X * x).sum())(1.0), NotImplementedError, "Make it outside"),
    (lambda r: lax.custom_linear_solve(lambda v: r[...] * v, X, lambda m, b: b), ValueError,
     "to a primitive: custom_linear_solve"),
)


@pytest.mark.parametrize("use,error,message", REFUSED, ids=[m for *_, m in REFUSED])
def test_refused(use: Callable[[Ref], Any], error: type[Exception], message: str) -> None:
    r = new_ref(X)
    with pytest.raises(error, match=message):
        use(r)
    np.testing.assert_array_equal(r[...], X)


def test_operands_that_join_a_choice_or_a_loop_are_counted() -> None:
    """What is closed over becomes an operand of the program: each is said to be linear, or not."""
    def f(x: Any) -> Any:
        r, s = new_ref(x), new_ref(2 * x)

        def step(c: Any, k: Any) -> tuple[Any, Any]:
            lax.cond(k > 1, lambda: r.addupdate(c), lambda: s.addupdate(c))
            return c * r[...].sum(), s[...]

        c, ys = lax.scan(step, x[0], jnp.arange(3.0))
        lax.switch(jnp.argmax(x), [lambda c: swap(s, 0, c), lambda c: swap(r, 1, c)], c)
        return c, ys, freeze(r), freeze(s)

    seen = []

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if "linear" in eqn.params:
                seen.append(eqn.primitive.name)
                assert len(eqn.params["linear"]) == len(eqn.invars) - (eqn.primitive.name == "cond")
            for inner in subjaxprs(eqn.params):
                walk(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)

    for fun in (f, anima.jit(f)):
        closed = anima.make_jaxpr(fun)(X)
        walk(closed.jaxpr)
        walk(without_refs(closed).jaxpr)
    assert {"scan", "cond"} <= {*seen}
