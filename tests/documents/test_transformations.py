"""What the documents say of transformations, control flow and checkpointing beside their tables: cells and claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

# ---------------------------------------------------------------- notes (000)


def test_a_jitted_step_in_a_python_loop() -> None:
    traced = []

    @anima.jit
    def do_expensive_jitted_thing(x: Any) -> Any:
        traced.append(1)
        return jnp.sqrt(x) + 1

    x = jnp.float32(100.0)
    while x > 3.0:
        x = do_expensive_jitted_thing(x)
    assert len(traced) == 1 and 2.5 < float(x) <= 3.0


BRANCHES = [
    ("cond", lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), lambda x: np.sin(x) if x[0] > 0 else np.cos(x)),
    ("select", lambda x: lax.select(x > 0, jnp.sin(x), jnp.cos(x)), lambda x: np.where(x > 0, np.sin(x), np.cos(x))),
    ("switch", lambda x: lax.switch(jnp.argmax(x), [jnp.sin, jnp.cos, jnp.tanh], x),
     lambda x: [np.sin, np.cos, np.tanh][np.argmax(x)](x)),
    ("where", lambda x: jnp.where(x > 0, jnp.sin(x), jnp.cos(x)), lambda x: np.where(x > 0, np.sin(x), np.cos(x))),
    ("piecewise", lambda x: jnp.piecewise(x, [x < 0, x > 1], [jnp.sin, jnp.cos, 0.5]),
     lambda x: np.piecewise(x, [x < 0, x > 1], [np.sin, np.cos, 0.5])),
    ("numpy select", lambda x: jnp.select([x < 0, x > 1], [jnp.sin(x), jnp.cos(x)], 0.5),
     lambda x: np.select([x < 0, x > 1], [np.sin(x), np.cos(x)], 0.5)),
]


@pytest.mark.parametrize("fun, expected", [b[1:] for b in BRANCHES], ids=[b[0] for b in BRANCHES])
def test_branches_on_values_that_jit_does_not_know(fun: Any, expected: Any) -> None:
    jitted = anima.jit(fun)
    for x in ([-0.5, 2.0, 0.25], [0.5, -0.5, 3.0]):
        values = np.array(x, np.float32)
        np.testing.assert_allclose(jitted(values), expected(values), rtol=2e-6)
    assert jitted._cache_size() == 1


def test_logical_functions_compute_both_sides_and_can_be_jitted(capsys: pytest.CaptureFixture[str]) -> None:
    def seen(x: Any, name: str) -> Any:
        anima.debug.print(name)
        return x

    @anima.jit
    def both(x: Any) -> Any:
        return jnp.logical_and(seen(x > 1, "left"), seen(x > 2, "right")), jnp.logical_or(x > 1, x > 2)

    assert [bool(b) for b in both(0.0)] == [False, False] and [bool(b) for b in both(1.5)] == [False, True]
    assert capsys.readouterr().out.split() == ["left", "right"] * 2     # the left alone would have decided


def test_map_is_vmap_one_batch_at_a_time() -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append(x.shape)
        return x * 2.0

    x = jnp.arange(10.0)
    for size in (1, 3, 5, 10, 100):
        np.testing.assert_array_equal(lax.map(f, x, batch_size=size), 2 * np.arange(10.0))
        np.testing.assert_array_equal(anima.vmap(f)(x), lax.map(f, x))
    assert set(seen) == {()}


def test_a_static_argument_is_compiled_again_for_each_new_value() -> None:
    traced = []

    def f(x: Any, myarg: str) -> Any:
        traced.append(myarg)
        return getattr(jnp, myarg)(x)

    jitted = anima.jit(f, static_argnames=["myarg"])
    for name in ("sin", "cos", "sin", "cos", "sin"):
        np.testing.assert_allclose(jitted(1.0, myarg=name), getattr(np, name)(1.0), rtol=1e-6)
    assert traced == ["sin", "cos"] and jitted._cache_size() == 2


# ---------------------------------------------------------------- memory, checkpoints (000)


def step(c: Any, _: Any) -> Any:
    for _ in range(8):
        c = jnp.sin(c)
    return c, None


def temporaries(body: Any, length: int, grad: bool) -> int:
    def loss(x: Any) -> Any:
        return jnp.sum(lax.scan(body, x, None, length=length)[0])

    run = anima.jit(anima.grad(loss) if grad else loss)
    return run.lower(jnp.ones(1000)).compile().memory_analysis().temp_size_in_bytes


def test_scan_keeps_every_step_for_the_way_back_and_nothing_going_forward() -> None:
    one = 4 * 1000
    assert temporaries(step, 100, grad=False) <= 4 * one
    short, long = temporaries(step, 50, grad=True), temporaries(step, 100, grad=True)
    assert 1.8 * short < long < 2.2 * short     # O(n)
    assert long >= 8 * 100 * one                # each operation of each step


def test_a_checkpointed_body_keeps_its_argument_only() -> None:
    checkpointed = temporaries(anima.checkpoint(step), 100, grad=True)
    assert checkpointed < 1.2 * 100 * 4000 < temporaries(step, 100, grad=True) / 6


@pytest.mark.parametrize("decorate", [anima.checkpoint, anima.remat])
def test_intermediates_are_stored_unless_checkpointed(decorate: Any) -> None:
    def f(x: Any) -> Any:
        y = jnp.exp(x + 2)
        return jnp.exp(y + 2)

    kept = anima.ad_checkpoint.saved_residuals(f, 1.0)
    assert [origin.split(" from ")[0] for _, origin in kept] == ["output of exp", "output of exp"]
    assert [origin for _, origin in anima.ad_checkpoint.saved_residuals(decorate(f), 1.0)] == ["from the argument x"]
    np.testing.assert_allclose(anima.grad(decorate(f))(-2.0), anima.grad(f)(-2.0), rtol=1e-6)


# ---------------------------------------------------------------- On Learning JAX (001)


def test_a_model_that_is_closed_over_may_go_after_the_first_call() -> None:
    weights = jnp.arange(3.0)

    def bert(x: Any) -> Any:
        return x @ weights

    model: Any = bert

    @anima.jit
    def fn(x: Any) -> Any:
        return model(x)

    assert fn(jnp.ones(3)) == 3.0
    model = None
    assert fn(2 * jnp.ones(3)) == 6.0           # the same shape: not traced again
    with pytest.raises(TypeError, match="not callable"):
        fn(jnp.ones((2, 3)))


def test_argnums() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x * y ** 2

    assert anima.grad(fn)(2.0, 3.0) == 9.0
    assert anima.grad(fn, argnums=1)(2.0, 3.0) == 12.0
    assert [float(g) for g in anima.grad(fn, argnums=(1, 0))(2.0, 3.0)] == [12.0, 9.0]


def test_programs_are_found_again_by_the_structure_of_pytrees() -> None:
    traced = []

    @anima.jit
    def total(params: Any) -> Any:
        traced.append(1)
        return sum(p["W"].sum() + p["b"].sum() for p in params)

    layer = {"W": jnp.ones((2, 2)), "b": jnp.ones(2)}
    assert total([layer]) == 6.0 and total([anima.tree.map(lambda x: 2 * x, layer)]) == 12.0 and len(traced) == 1
    assert total([layer, layer]) == 12.0 and total((layer,)) == 6.0 and len(traced) == 3


# ---------------------------------------------------------------- Sharp Bits (002): structured control flow


def test_cond_cell() -> None:
    def cond(pred: Any, true_fun: Any, false_fun: Any, operand: Any) -> Any:
        return true_fun(operand) if pred else false_fun(operand)

    operand = jnp.array([0.])
    for pred, shown in ((True, "Array([1.], dtype=float32)"), (False, "Array([-1.], dtype=float32)")):
        for version in (lax.cond, cond):
            assert repr(version(pred, lambda x: x+1, lambda x: x-1, operand)) == shown


def test_loop_cells() -> None:
    def while_loop(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
        val = init_val
        while cond_fun(val):
            val = body_fun(val)
        return val

    def fori_loop(start: int, stop: int, body_fun: Any, init_val: Any) -> Any:
        val = init_val
        for i in range(start, stop):
            val = body_fun(i, val)
        return val

    cell = (lambda x: x < 10), (lambda x: x + 1), 0
    assert repr(lax.while_loop(*cell)) == "Array(10, dtype=int32, weak_type=True)" and while_loop(*cell) == 10
    cell = 0, 10, (lambda i, x: x + i), 0
    assert repr(lax.fori_loop(*cell)) == "Array(45, dtype=int32, weak_type=True)" and fori_loop(*cell) == 45


def test_select_is_a_batched_cond_and_where_its_face() -> None:
    pred, x, y = jnp.array([True, False, True]), jnp.arange(3.0), -jnp.ones(3)
    each = jnp.stack([lax.cond(p, lambda a, b: a, lambda a, b: b, a, b) for p, a, b in zip(pred, x, y, strict=True)])
    for result in (lax.select(pred, x, y), jnp.where(pred, x, y), jnp.select([pred], [x], y),
                   anima.vmap(lambda p, a, b: lax.cond(p, lambda a, b: a, lambda a, b: b, a, b))(pred, x, y)):
        np.testing.assert_array_equal(result, each)
    assert "select_n" in str(anima.make_jaxpr(jnp.where)(pred, x, y))


DIFFERENTIABLE = [  # construct, also with grad where the documents have "fwd" only
    ("cond", lambda x: lax.cond(x > 0, lambda x: x ** 2, lambda x: -x, x), 4.0),
    ("while_loop", lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, 1.0))[1], 12.0),
    ("fori_loop static", lambda x: lax.fori_loop(0, 3, lambda i, c: c * x, 1.0), 12.0),
    ("scan", lambda x: lax.scan(lambda c, y: (c * x + 0 * y, None), 1.0, jnp.arange(3.0))[0], 12.0),
]


@pytest.mark.parametrize("fun, slope", [d[1:] for d in DIFFERENTIABLE], ids=[d[0] for d in DIFFERENTIABLE])
def test_which_constructs_are_differentiable(fun: Any, slope: float) -> None:
    np.testing.assert_allclose(anima.jvp(fun, (2.0,), (1.0,))[1], slope, rtol=1e-6)
    np.testing.assert_allclose(anima.grad(fun)(2.0), slope, rtol=1e-6)
    np.testing.assert_allclose(anima.jit(anima.grad(fun))(2.0), slope, rtol=1e-6)


@pytest.mark.parametrize("transform", [anima.jit, anima.vmap, lambda f: anima.jit(anima.grad(f))],
                         ids=["jit", "vmap", "jit grad"])
def test_dynamic_shapes_do_not_go_through_transforms(transform: Any) -> None:
    def nansum(x: Any) -> Any:
        return x[~jnp.isnan(x)].sum()

    x = jnp.array([[1, 2, jnp.nan, 3, 4]])
    assert nansum(x) == 10.0
    with pytest.raises(anima.errors.NonConcreteBooleanIndexError, match="Array boolean indices must be concrete"):
        transform(nansum)(x)


