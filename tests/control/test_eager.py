"""Control flow outside of jit: compiled once however often its functions are made anew, or Python's own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core import intern, kept
from anima.core.intern import interned
from anima.extend.core import Primitive
from anima.ops.index import dynamic_slice_p
from anima.runtime import executable

Fun = Callable[..., Any]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the programs that are compiled, found again in memory or not."""
    made: list[str] = []
    init = executable.Executable.__init__

    def counted(self: Any, program: Any, *args: Any) -> None:
        made.append(program.name)
        init(self, program, *args)

    monkeypatch.setattr(executable.Executable, "__init__", counted)
    return made


def scan(x: Any) -> Any:
    return lax.scan(lambda c, t: (jnp.sin(c) * t + x, c), x, jnp.arange(9.0) / 9)[0]


def while_(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, jnp.sin(c[1]) + x), (0, x))[1]


def fori(x: Any) -> Any:
    return lax.fori_loop(0, 7, lambda i, c: jnp.sin(c) + i * x, x)


def cond(x: Any) -> Any:
    return lax.cond(x > 0.5, lambda x: fori(x), lambda x: jnp.cos(x), x)


def mapped(x: Any) -> Any:
    return lax.map(lambda t: jnp.sin(t * x), jnp.arange(5.0)).sum()


def nested(x: Any) -> Any:
    return lax.scan(lambda c, t: (lax.fori_loop(0, 3, lambda i, d: jnp.sin(d) + t, c), c), x, jnp.arange(4.0))[0]


WAYS: dict[str, Callable[[Fun], Fun]] = {
    "plain": lambda f: f, "vmap": anima.vmap, "grad": anima.grad, "vmap grad": lambda f: anima.vmap(anima.grad(f)),
    "jvp": lambda f: lambda x: anima.jvp(f, (x,), (x,))[1], "hessian": anima.hessian}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fun", [scan, while_, fori, cond, mapped, nested], ids=lambda f: f.__name__)
def test_a_second_call_compiles_nothing_and_agrees_with_jit(fun: Fun, way: str, compilations: list[str]) -> None:
    x = jnp.linspace(0.1, 0.9, 4) if "vmap" in way else jnp.float32(0.8)
    f = WAYS[way](fun)
    first = f(x)
    assert compilations
    compilations.clear()
    again = f(x)
    assert compilations == []
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first, anima.jit(f)(x), rtol=1e-5, atol=1e-6)


def test_equal_programs_are_one_and_others_are_not() -> None:
    def traced(number: Any, dtype: str = "float32") -> Any:
        return interned(anima.make_jaxpr(lambda x: x * number)(np.ones(2, dtype)))

    first = traced(2.0)
    assert traced(2.0) is first
    assert traced(3.0) is not first
    assert traced(2.0, "float16") is not first
    assert traced(0.0) is not traced(-0.0)
    array, other = jnp.ones(2), jnp.ones(2)
    assert traced(array) is traced(array)
    assert traced(array) is not traced(other)
    with anima.enable_x64(True):  # an option that programs are compiled by
        assert traced(2.0) is not first


@pytest.mark.parametrize("other", [True, 1.0, np.int32(1), np.float32(1), np.bool_(True)], ids=repr)
def test_parameters_that_are_equal_but_not_the_same_make_other_programs(other: Any) -> None:
    primitive = Primitive("numbered")
    primitive.def_abstract_eval(lambda x, **_: x)

    def traced(make: Callable[[Any], Any], number: Any) -> Any:
        return interned(anima.make_jaxpr(lambda x: primitive.bind(x, k=make(number)))(np.ones(2)))

    for make in (lambda k: k, lambda k: (k, 2), lambda k: ((0, (k,)),)):
        assert traced(make, 1) is traced(make, 1)
        assert traced(make, other) is traced(make, other)
        assert traced(make, 1) is not traced(make, other)


def test_numbers_of_the_same_bytes_are_of_their_types() -> None:
    def traced(index: Any) -> Any:
        return interned(anima.make_jaxpr(lambda x: dynamic_slice_p.bind(x, index, slice_sizes=(1,)))(jnp.arange(4.0)))

    assert traced(np.int32(-1)) is traced(np.int32(-1))
    assert traced(np.int32(-1)) is not traced(np.uint32(2**32 - 1))


def test_programs_with_callbacks_keep_their_functions_and_are_not_kept() -> None:
    def program(say: Fun) -> Any:
        return anima.make_jaxpr(lambda x: anima.debug.callback(say, x))(1.0)

    first = program(print)
    assert interned(first) is first
    again = program(print)
    assert interned(again) is again


def test_custom_rules_are_found_again_and_can_be_replaced(compilations: list[str]) -> None:
    @anima.custom_jvp
    def f(x: Any) -> Any:
        return x * 2

    f.defjvps(lambda t, y, x: t * 3)

    def total(x: Any) -> Any:
        return lax.scan(lambda c, _: (f(c), anima.nn.relu(c)), x, length=2)[0]

    assert float(anima.grad(total)(1.0)) == 9.0
    compilations.clear()
    assert float(anima.grad(total)(1.0)) == 9.0 and not compilations
    f.defjvps(lambda t, y, x: t * 5)
    assert float(anima.grad(total)(1.0)) == 25.0


def test_a_bounded_number_of_programs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intern, "_KEPT", 3)
    monkeypatch.setattr(intern, "_programs", type(intern._programs)())
    programs = [anima.make_jaxpr(lambda x, k=k: x * k)(1.0) for k in (1.5, 2.5, 3.5, 4.5)]
    for p in programs[:3]:
        interned(p)
    interned(programs[0])  # the latest, now
    interned(programs[3])
    assert list(intern._programs.values()) == [programs[2], programs[0], programs[3]]


def test_choices_without_loops_compile_nothing(compilations: list[str]) -> None:
    out = lax.cond(True, lambda x: x * 2, jnp.sin, 3.0)
    assert float(out) == 6.0 and not compilations


def test_choices_over_lanes_and_with_loops_are_compiled(compilations: list[str]) -> None:
    x = jnp.linspace(-1.0, 1.0, 6)
    out = anima.vmap(lambda x: lax.cond(x > 0, jnp.exp, jnp.sin, x))(x)
    np.testing.assert_allclose(out, np.where(x > 0, np.exp(x), np.sin(x)), rtol=1e-6)
    assert compilations == ["cond"]
    lax.switch(1, [jnp.sin, fori], jnp.float32(1.0))
    assert compilations == ["cond", "switch"]


# ---------------------------------------------------------------- disable_jit


@pytest.fixture
def python() -> Any:
    with anima.disable_jit():
        yield


def test_bodies_see_the_values_of_every_step(python: None) -> None:
    seen: list[tuple[Any, ...]] = []

    def body(c: Any, x: Any) -> Any:
        seen.append((float(c), float(x)))
        return c + x, c * x

    last, ys = lax.scan(body, 1.0, jnp.arange(3.0), reverse=True)
    assert seen == [(1.0, 2.0), (3.0, 1.0), (4.0, 0.0)]
    assert float(last) == 4.0
    np.testing.assert_array_equal(ys, [0.0, 3.0, 2.0])

    steps: list[int] = []
    assert int(lax.while_loop(lambda c: c < 3, lambda c: (steps.append(int(c)), c + 1)[1], 0)) == 3
    assert int(lax.fori_loop(2, 5, lambda i, c: (steps.append(int(i)), c + [0, 0, 1, 2, 3][i])[1], 0)) == 6
    assert steps == [0, 1, 2, 2, 3, 4]
    np.testing.assert_array_equal(lax.map(lambda x: x * [1, 2, 3][int(x)], jnp.arange(3)), [0, 2, 6])


def test_only_the_branch_taken_is_called(python: None, capsys: pytest.CaptureFixture[str]) -> None:
    def say(name: str) -> Fun:
        return lambda x: (print(name, float(x)), x + 1)[1]

    assert float(lax.cond(False, say("true"), say("false"), 2.0)) == 3.0
    assert float(lax.switch(7, [say("zero"), say("one")], 4.0)) == 5.0
    assert capsys.readouterr().out == "false 2.0\none 4.0\n"
    lax.cond(True, lambda x: x, lambda x: (x, x), 2.0)  # the other one is not even traced


def test_the_users_own_exception_from_step_2(python: None) -> None:
    def body(i: Any, c: Any) -> Any:
        if i == 2:
            raise KeyError("step 2")
        return c + i

    with pytest.raises(KeyError, match="step 2"):
        anima.jit(lambda x: lax.fori_loop(0, 5, body, x))(1.0)


@pytest.mark.parametrize("fun", [scan, while_, fori, cond, mapped, nested], ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_python_computes_the_same(fun: Fun, way: str) -> None:
    x = jnp.linspace(0.1, 0.9, 4) if "vmap" in way else jnp.float32(0.8)
    f = WAYS[way](fun)
    with anima.disable_jit():
        found = f(x)
    np.testing.assert_allclose(found, anima.jit(f)(x), rtol=1e-5, atol=1e-6)


def test_lanes_that_choose_for_themselves_still_run(python: None) -> None:
    n = jnp.arange(4)
    np.testing.assert_array_equal(anima.vmap(lambda n: lax.while_loop(lambda c: c < n, lambda c: c + 2, 0))(n),
                                  [0, 2, 2, 4])
    np.testing.assert_array_equal(anima.vmap(lambda n: lax.cond(n > 1, lambda n: n, lambda n: -n, n))(n),
                                  [0, -1, 2, 3])

    def late(n: Any) -> Any:  # the predicate is the same for all lanes in the first step only
        return lax.while_loop(lambda c: c[0] + c[1] < 4, lambda c: (c[0] + 1, n), (0, 0))[0]

    np.testing.assert_array_equal(anima.vmap(late)(n), [4, 3, 2, 1])


def test_results_are_those_of_a_program(python: None) -> None:
    last, ys = lax.scan(lambda c, x: (c, {"y": (x, 7)}), 1.0, jnp.zeros((3, 2)))
    assert isinstance(last, anima.Array) and last.weak_type
    assert ys["y"][0].shape == (3, 2) and ys["y"][1].shape == (3,)
    none = lax.scan(lambda c, x: (c, x + 1.5), 1.0, jnp.zeros((0, 2)))[1]
    assert none.shape == (0, 2) and none.dtype == jnp.float32
    with pytest.raises(TypeError, match="boolean scalar"):
        lax.while_loop(lambda c: c, lambda c: c, 1)


def test_branches_that_close_over_one_array_in_two_places() -> None:
    table = np.arange(4)

    def doubled(x: Any) -> Any:  # the array is where a loop begins, and what its body closes over
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, table + s[1]), (x, table))[1].sum() + x

    def run(x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, x: lax.switch(i, (doubled, lambda x: x + table[1]), x), x)

    assert float(run(1.0)) == float(anima.jit(run)(1.0)) == 1 + 3 * 6 + 1
    assert float(anima.grad(run)(1.0)) == 1.0


def test_loops_read_what_their_functions_read_now() -> None:
    weight: Any = 1.0

    def body(c: Any, _: Any) -> Any:
        return c + weight, None

    assert lax.scan(body, 0.0, length=3)[0] == 3 and lax.fori_loop(0, 3, lambda i, c: body(c, i)[0], 0.0) == 3
    weight = jnp.float32(2.0)
    assert lax.scan(body, 0.0, length=3)[0] == 6 and lax.fori_loop(0, 3, lambda i, c: body(c, i)[0], 0.0) == 6


@pytest.fixture
def in_the_place_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "remembers", True)


@pytest.mark.usefixtures("in_the_place_of_jax")
def test_functions_of_loops_are_called_once_for_equal_types() -> None:
    calls: list[str] = []

    def body(c: Any, x: Any) -> Any:
        calls.append("scan")
        return c + x, c * x

    def step(k: Any, c: Any) -> Any:
        calls.append("fori")
        return c * k

    def going(c: Any) -> Any:
        calls.append("while")
        return c < 10

    def more(c: Any) -> Any:
        return c + 1

    for k in range(3):
        assert lax.scan(body, float(k), jnp.arange(3.0))[0] == k + 3
        assert lax.fori_loop(1, 4, step, 2 + k) == 6 * (2 + k)
        assert lax.while_loop(going, more, k) == 10
    assert sorted(calls) == ["fori", "scan", "while"]
    calls.clear()
    assert lax.scan(body, 0, jnp.arange(3))[0] == 3 and lax.scan(body, 0, jnp.arange(4))[0] == 6
    assert lax.fori_loop(1, 5, step, 1) == 24
    np.testing.assert_array_equal(lax.scan(body, 0.0, jnp.arange(3.0), reverse=True)[1], [0, 2, 0])
    assert calls == ["scan"]  # of integers; other lengths, bounds and orders are the same step


@pytest.mark.usefixtures("in_the_place_of_jax")
def test_what_is_remembered_of_loops_is_of_their_functions() -> None:
    class Model:
        def __init__(self, weight: float) -> None:
            self.weight = weight

        def step(self, c: Any, _: Any) -> Any:
            return c + self.weight, None

    model = Model(1.0)
    assert lax.scan(model.step, 0.0, length=3)[0] == 3
    model.weight = 2.0
    assert lax.scan(model.step, 0.0, length=3)[0] == 6      # a method is a new function at each use
    for w in (1.0, 2.0, jnp.array(3.0)):
        assert lax.scan(lambda c, _, w=w: (c + w, None), 0.0, length=2)[0] == 2 * w

    weight: list[Any] = [None]

    def body(c: Any, _: Any) -> Any:
        return c * weight[0], None

    def power(w: Any) -> Any:
        weight[0] = w                                       # a tracer, of each gradient another one
        return lax.scan(body, 1.0, length=2)[0]

    assert [float(anima.grad(power)(w)) for w in (2.0, 3.0)] == [4.0, 6.0]

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, c: Any, _: Any) -> Any:
            return c + 1, None

    assert lax.scan(Unhashable(), 0, length=3)[0] == 3


@pytest.mark.usefixtures("in_the_place_of_jax")
def test_functions_of_loops_are_let_go() -> None:
    def body(c: Any, _: Any, big: Any = jnp.ones(5)) -> Any:
        return c + big.sum(), None

    assert lax.scan(body, 0.0, length=2)[0] == 10
    left = weakref.ref(body)
    del body
    gc.collect()
    assert left() is None
