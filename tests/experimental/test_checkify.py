"""`experimental.checkify`: every promise about checks, under every transformation."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.experimental import checkify
from anima.runtime.tapes import recording

F32 = jnp.float32
ALL = checkify.all_checks


def first_line(error: checkify.Error) -> str | None:
    """The message without the lines that say where."""
    text = error.get()
    return None if text is None else "\n".join(s for s in text.split("\n") if not s.startswith("  at "))


def told(f: Callable[..., Any], *args: Any, errors: Any = ALL) -> str | None:
    """What is told of a function, which must be the same compiled, outside of and inside of what checks it."""
    eager, out = checkify.checkify(f, errors=errors)(*args)
    for run in (anima.jit(checkify.checkify(f, errors=errors)), checkify.checkify(anima.jit(f), errors=errors)):
        error, other = run(*args)
        assert error.get() == eager.get()
        for a, b in zip(anima.tree.leaves(out), anima.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    return first_line(eager)


# ---------------------------------------------------------------- the user's checks

def positive(x: Any) -> Any:
    checkify.check(x > 0, "{} is not positive, nor is {y}", x, y=-x * 0)
    return jnp.sqrt(x) * 2


FAILED = "-1.0 is not positive, nor is 0.0 (`check` failed)"


def test_message_has_the_values_and_the_line() -> None:
    line = inspect.getsourcelines(positive)[1] + 1
    error, out = checkify.checkify(positive)(F32(-1.0))
    assert error.get() == (f"{FAILED}\n  at test_checkify.py:{line}, in positive:   "
                           'checkify.check(x > 0, "{} is not positive, nor is {y}", x, y=-x * 0)')
    assert np.isnan(out)
    assert str(error) == repr(error) == f"Error({error.get()})"
    with pytest.raises(checkify.JaxRuntimeError, match=r"-1\.0 is not positive") as info:
        error.throw()
    assert isinstance(info.value, ValueError)
    assert isinstance(error.get_exception(), next(iter(checkify.user_checks)))


def test_no_error() -> None:
    error, out = checkify.checkify(positive)(F32(4.0))
    assert error.get() is None and error.get_exception() is None and out == 4.0
    error.throw()
    assert repr(error) == "Error(None)"
    checkify.init_error.throw()
    assert checkify.init_error.get() is None and not anima.tree.leaves(checkify.init_error)


def test_nothing_to_check_has_no_state() -> None:
    error, _ = checkify.checkify(jnp.log)(F32(-1.0))
    assert error.get() is None and not anima.tree.leaves(error)


@pytest.mark.parametrize("message,args,named,expected", [
    ("plain", (), {}, "plain"),
    ("{:.3f}", (np.float32(1.5),), {}, "1.500"),
    ("{x:>6}", (), {"x": np.int32(3)}, "     3"),
    ("{:.1f}", (np.arange(3.0, dtype=np.float32),), {}, "[0.0 1.0 2.0]"),
    ("{} {}", (np.arange(3), np.bool_(True)), {}, "[0 1 2] True"),
    ("{a[0]} of {b[k]}", (), {"a": (np.int32(1), np.int32(2)), "b": {"k": np.float32(0.5)}}, "1 of 0.5"),
])
def test_formats(message: str, args: Any, named: Any, expected: str) -> None:
    def f(flag: Any, args: Any, named: Any) -> None:
        checkify.check(flag, message, *args, **named)

    args, named = anima.tree.map(jnp.asarray, (args, named))
    assert told(f, jnp.bool_(False), args, named) == f"{expected} (`check` failed)"
    assert told(f, jnp.bool_(True), args, named) is None


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_messages_with_random_keys(implementation: str) -> None:
    keys = anima.random.split(anima.random.key(3, impl=implementation))

    def f(keys: Any, x: Any) -> Any:
        checkify.check(x > 0, "{keys[k]} of {x}", x=x, keys={"k": keys})
        return x

    expected = f"{keys} of -1.0 (`check` failed)"
    for g in (f, anima.jit(f)):
        error, _ = checkify.checkify(g)(keys, F32(-1.0))
        assert error.get().startswith(expected)
        assert told(g, keys, F32(1.0)) is None
    error, _ = anima.vmap(checkify.checkify(f))(keys, F32([-1.0, 1.0]))
    assert f"{keys[0]} of -1.0" in error.get() and str(keys[1]) not in error.get()


def test_wrong_arguments() -> None:
    for pred in (0, 1.0, jnp.ones(3) > 0, jnp.int32(1)):
        with pytest.raises(TypeError, match="check takes a scalar pred as argument"):
            checkify.check(pred, "no")
    for value in (1, "text", 2.5):
        with pytest.raises(TypeError, match="need to be PyTrees of arrays, but got"):
            checkify.check(True, "{}", value)
    with pytest.raises(TypeError, match="check_error takes an Error as argument"):
        checkify.check_error(3)  # type: ignore[arg-type]


def test_outside_of_programs_a_check_raises() -> None:
    checkify.check(True, "fine")
    checkify.check(jnp.float32(1.0) > 0, "fine")
    checkify.debug_check(False, "nobody looks")
    with pytest.raises(checkify.JaxRuntimeError, match="broken 3"):
        checkify.check(False, "broken {}", jnp.int32(3))
    with pytest.raises(checkify.JaxRuntimeError, match=r"-1\.0 is not positive"):
        anima.grad(positive)(-F32(1.0))
    with pytest.raises(checkify.JaxRuntimeError, match=r"-2\.0 is not positive"):
        anima.vmap(positive)(jnp.array([1.0, -2.0, -3.0]))


COMPILED: list[Callable[..., Any]] = [
    anima.jit(positive), anima.grad(anima.jit(positive)), lambda x: anima.vmap(anima.jit(positive))(x[None]),
    lambda x: lax.scan(lambda c, _: (positive(c), None), x, None, length=2),
    lambda x: lax.while_loop(lambda c: c < 1, positive, x),
    anima.jit(lambda x: lax.cond(x > 0, positive, jnp.sin, x))]


@pytest.mark.parametrize("f", COMPILED, ids=range(len(COMPILED)))
def test_compiled_without_checkify_is_an_error(f: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"(?s)Cannot abstractly evaluate a checkify.check which was not "
                                         "functionalized.*in positive"):
        f(F32(1.0))


def test_debug_check_does_nothing_in_compiled_code() -> None:
    @anima.jit
    def f(x: Any) -> Any:
        checkify.debug_check(x > 0, "negative {}", x)
        return lax.fori_loop(0, 2, lambda i, s: (checkify.debug_check(s > 0, "s"), s + 1)[1], x)

    assert f(F32(-5.0)) == -3.0
    assert first_line(checkify.checkify(f)(F32(-5.0))[0]) == "negative -5.0 (`check` failed)"


def test_what_is_not_asked_for_is_not_checked() -> None:
    def f(x: Any) -> Any:
        checkify.check(x > 0, "negative")
        return jnp.log(x)

    assert told(f, F32(-1.0), errors=checkify.div_checks) is None
    assert told(f, F32(-1.0), errors=checkify.nan_checks) == "nan generated by primitive: log."
    assert told(f, F32(-1.0), errors=checkify.user_checks) == "negative (`check` failed)"
    assert checkify.float_checks | checkify.index_checks == checkify.automatic_checks
    assert checkify.automatic_checks | checkify.user_checks == checkify.all_checks


def test_arguments_that_are_no_arrays_stay_what_they_are() -> None:
    def f(x: Any, how: str, *, n: int) -> Any:
        assert how == "up" and type(n) is int
        checkify.check(n > 0, "n")
        return x * n

    error, out = checkify.checkify(f)(jnp.arange(2), "up", n=3)
    assert error.get() is None and out.tolist() == [0, 3]


KINDS: dict[str, Callable[[Any], Any]] = {
    "user": lambda i: checkify.check(i < 5, "check of {i}", i=i), "index": lambda i: jnp.arange(3.0)[i],
    "slice": lambda i: lax.dynamic_slice(jnp.ones(4), (i,), (4,)),
    "rows": lambda i: jnp.ones((2, 2))[jnp.stack([0 * i, i])],
    "division": lambda i: 1 / (i - 7.0), "nan": lambda i: jnp.log(5.0 - i),
    "loop": lambda i: lax.fori_loop(0, 2, lambda k, c: (checkify.check(k < 1, "step {k}", k=k), c)[1], i),
    "branch": lambda i: lax.cond(i > 3, lambda: jnp.ones(6)[i], lambda: 1.0),
    "call": anima.jit(lambda i: jnp.zeros(5)[i])}


@pytest.mark.parametrize("names", [*itertools.permutations(KINDS, 2), tuple(KINDS), tuple(KINDS)[::-1]])
def test_failures_are_told_in_the_order_of_the_program(names: tuple[str, ...]) -> None:
    i = jnp.int32(7)
    alone, *_ = checkify.checkify(KINDS[names[0]], errors=ALL)(i)
    together = checkify.checkify(lambda i: [KINDS[name](i) for name in names], errors=ALL)
    for f in (together, anima.jit(together)):
        assert first_line(f(i)[0]) == first_line(alone) is not None


def test_the_first_failure_is_told() -> None:
    def f(x: Any, i: Any) -> Any:
        checkify.check(x > -10, "one {}", x)
        y = jnp.log(x)
        checkify.check(x > 0, "two {}", x + 0.5)
        return y + jnp.arange(3.0)[i]

    assert told(f, F32(-11.0), jnp.int32(7)) == "one -11.0 (`check` failed)"
    assert told(f, F32(-1.0), jnp.int32(7)) == "nan generated by primitive: log."
    assert told(f, F32(0.0), jnp.int32(7)) == "two 0.5 (`check` failed)"
    assert told(f, F32(1.0), jnp.int32(7)).startswith("out-of-bounds")  # type: ignore[union-attr]
    assert told(f, F32(1.0), jnp.int32(2)) is None


def test_what_tells_of_failures_is_compiled_when_one_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    original = recording.executable_of
    monkeypatch.setattr(recording, "executable_of", lambda closed, name, *rest: (
        names.append(name), original(closed, name, *rest))[1])
    f = anima.jit(checkify.checkify(lambda x: jnp.sum(jnp.log(x) * jnp.sin(x)), errors=checkify.nan_checks))
    assert f(jnp.ones(7))[0].get() is None and "later" not in names
    assert "primitive: log" in f(-jnp.ones(7))[0].get()
    assert "primitive: sin" in f(jnp.full(7, jnp.inf, jnp.float32))[0].get()
    assert names.count("later") == 1 and f(jnp.ones(7))[0].get() is None
    lanes = anima.vmap(checkify.checkify(lambda x: jnp.log(x) + 1, errors=checkify.nan_checks))
    assert "at mapped index 1: nan" in anima.jit(lanes)(jnp.array([1.0, -1.0, 2.0]))[0].get()
    assert names.count("later") == 1  # where all lanes compute all branches, it is part of the program


# ---------------------------------------------------------------- loops and branches

def sums(x: Any) -> Any:
    def step(total: Any, a: Any) -> Any:
        checkify.check(total < 3, "{t} is too much at {a}", t=total, a=a)
        return total + a, total * a

    return lax.scan(step, x, jnp.arange(5.0))


def counted(n: Any) -> Any:
    def going(i: Any) -> Any:
        checkify.check(i < 4, "condition {}", i)
        return i < n

    def step(i: Any) -> Any:
        checkify.check(i != 1, "step {}", i)
        return i + 2

    return lax.while_loop(going, step, n % 2)


def branches(x: Any) -> Any:
    def above(x: Any) -> Any:
        checkify.check(x < 5, "above {x}", x=x)
        return x * 2

    def below(x: Any) -> Any:
        checkify.check(x > -5, "below {} {}", x, x.astype(int))
        return jnp.log(-x)

    return lax.cond(x > 0, above, below, x)


def chosen(i: Any) -> Any:
    x = F32(-1.0)
    return lax.switch(i, [lambda x: x, lambda x: (checkify.check(x > 0, "one {}", x), x)[1], jnp.log], x)


def fori(n: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, s: (checkify.check(s < 3, "{s} at {i}", s=s, i=i), s + i)[1], jnp.int32(0))


def arrays_in_loops(x: Any) -> Any:
    def step(v: Any, k: Any) -> Any:
        checkify.check(jnp.all(v < 3), "{} in step {}", v, k)
        return v + 1, None

    return lax.scan(step, x, jnp.arange(4))[0]


PROGRAMS = [
    (sums, F32(0.0), "3.0 is too much at 3.0"), (sums, F32(-20.0), None),
    (sums, F32(5.0), "5.0 is too much at 0.0"),
    (counted, jnp.int32(2), None), (counted, jnp.int32(8), "condition 4"), (counted, jnp.int32(3), "step 1"),
    (branches, F32(1.0), None), (branches, F32(6.0), "above 6.0"), (branches, F32(-1.0), None),
    (branches, F32(-6.0), "below -6.0 -6"), (branches, F32(0.0), None),
    (chosen, jnp.int32(0), None), (chosen, jnp.int32(1), "one -1.0"), (chosen, jnp.int32(9), "nan"),
    (fori, jnp.int32(3), None), (fori, jnp.int32(9), "3 at 3"),
    (arrays_in_loops, jnp.zeros(2), "[3. 3.] in step 3"), (arrays_in_loops, jnp.array([-9.0, 1.0]), "[-7.  3.] in"),
]


@pytest.mark.parametrize("f,x,expected", PROGRAMS, ids=[f"{f.__name__}-{x}" for f, x, _ in PROGRAMS])
def test_loops_and_branches(f: Callable[..., Any], x: Any, expected: str | None) -> None:
    found = told(f, x)
    assert found is None if expected is None else found is not None and found.startswith(expected)


@pytest.mark.parametrize("f", [sums, counted, branches, chosen, fori, positive], ids=lambda f: f.__name__)
def test_lanes_are_told_apart(f: Callable[..., Any]) -> None:
    values = [-6, -1, 0, 1, 2, 3, 4, 6, 9] if f in (branches, sums, positive) else [0, 1, 2, 3, 8]
    xs = jnp.asarray(values, jnp.float32 if f in (branches, sums, positive) else jnp.int32)
    single = [first_line(checkify.checkify(f, errors=ALL)(x)[0]) for x in xs]
    expected = "\n".join(f"at mapped index {k}: {text}" for k, text in enumerate(single) if text)
    for run in (anima.vmap(checkify.checkify(f, errors=ALL)), anima.jit(anima.vmap(checkify.checkify(f, errors=ALL))),
                anima.vmap(anima.jit(checkify.checkify(f, errors=ALL)))):
        error, out = run(xs)
        assert first_line(error) == expected
        if expected:
            with pytest.raises(checkify.JaxRuntimeError, match="at mapped index"):
                error.throw()
    for a, b in zip(anima.tree.leaves(out), anima.tree.leaves(anima.tree.map(
            lambda *ys: jnp.stack(ys), *[checkify.checkify(f)(x)[1] for x in xs])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_lanes_of_lanes() -> None:
    error, _ = anima.vmap(anima.vmap(checkify.checkify(positive)))(jnp.array([[1.0, -1.0], [2.0, 3.0]]))
    assert first_line(error) == f"at mapped index 0, 1: {FAILED}"
    assert list(error.get_exception().error_mapping) == [(0, 1)]  # type: ignore[union-attr]


def test_mapped_inside_the_first_lane_is_told() -> None:
    f = anima.vmap(positive)
    assert told(f, jnp.array([1.0, -1.0, -2.0])) == FAILED
    assert told(f, jnp.array([1.0, 1.0, 2.0])) is None
    assert told(anima.vmap(anima.vmap(positive)), jnp.array([[1.0, 2.0], [-1.0, 3.0]])) == FAILED
    assert told(f, jnp.zeros(0)) is None
    assert told(anima.vmap(branches), jnp.array([1.0, -1.0])) is None


def test_loops_carry_one_bit() -> None:
    """Nothing of messages is carried where nothing fails: a second loop finds out in case."""
    loops = [e for e in anima.make_jaxpr(checkify.checkify(sums, errors=ALL))(0.0).eqns if e.primitive.name == "scan"]
    assert [v.aval.str_short() for v in loops[0].params["jaxpr"].jaxpr.invars] == ["bool[]", "float32[]", "float32[]"]


def test_effects_happen_once() -> None:
    seen: list[float] = []

    def f(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            anima.debug.callback(lambda v: seen.append(float(v)), c)
            return jnp.log(c), None

        return lax.scan(step, x, None, length=3)[0]

    error, _ = anima.jit(checkify.checkify(f, errors=ALL))(F32(1.5))
    assert first_line(error) == "nan generated by primitive: log." and len(seen) == 3


# ---------------------------------------------------------------- derivatives

@anima.custom_jvp
def with_jvp(x: Any) -> Any:
    checkify.check(x > 0, "with_jvp {x}", x=x)
    return jnp.sqrt(x)


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), tangents[0] * 3.0))


@anima.custom_vjp
def with_vjp(x: Any) -> Any:
    checkify.check(x > 0, "with_vjp {x}", x=x)
    return jnp.sqrt(x)


with_vjp.defvjp(lambda x: (with_vjp(x), x), lambda x, ct: (ct * 5.0,))


@anima.custom_batching.custom_vmap
def with_vmap(x: Any) -> Any:
    checkify.check(x > 0, "with_vmap {x}", x=x)
    return jnp.sqrt(x)


@with_vmap.def_vmap
def _(size: int, batched: Any, x: Any) -> Any:
    return jnp.sqrt(x) * 10, True


DIFFERENTIABLE: list[tuple[Callable[..., Any], str, float]] = [
    (positive, "-1.0 is not", 0.5), (with_jvp, "with_jvp -1.0", 3.0), (with_vjp, "with_vjp -1.0", 5.0),
    (with_vmap, "with_vmap -1.0", 0.25), (anima.checkpoint(positive), "-1.0 is not", 0.5),
    (anima.checkpoint(lambda x: with_jvp(x)), "with_jvp -1.0", 3.0),
    (lambda x: lax.scan(lambda c, _: (positive(c), None), x, None, length=1)[0], "-1.0 is not", 0.5),
    (lambda x: lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, positive(c[1])), (0, x))[1], "-1.0 is", 0.5),
    (lambda x: lax.cond(x < 9, positive, jnp.sin, x), "-1.0 is not", 0.5)]


@pytest.mark.parametrize("f,message,slope", DIFFERENTIABLE, ids=range(len(DIFFERENTIABLE)))
def test_derivatives_on_either_side(f: Callable[..., Any], message: str, slope: float) -> None:
    user = checkify.user_checks

    def inside(x: Any) -> Any:
        return checkify.checkify(anima.grad(f), errors=user)(x)

    def outside(x: Any) -> Any:
        grad, error = anima.grad(lambda x: checkify.checkify(f, errors=user)(x)[::-1], has_aux=True)(x)
        return error, grad

    def linear(x: Any) -> Any:
        (error, _), (_, tangent) = anima.jvp(checkify.checkify(f, errors=user), (x,), (F32(1.0),))
        return error, tangent

    for run in (inside, outside, *(() if f is with_vjp else (linear,))):
        for way in (run, anima.jit(run)):
            error, value = way(F32(-1.0))
            assert first_line(error).startswith(message)  # type: ignore[union-attr]
            error, value = way(F32(4.0))
            assert error.get() is None and np.allclose(value, slope)
    error, _ = anima.vmap(outside)(jnp.array([4.0, -1.0]))
    assert first_line(error).startswith(f"at mapped index 1: {message}")  # type: ignore[union-attr]


def test_second_derivatives() -> None:
    error, value = checkify.checkify(anima.grad(anima.grad(lambda x: sums(x)[0] ** 3)), errors=ALL)(F32(-20.0))
    assert error.get() is None and np.allclose(value, -60.0)
    error, value = checkify.checkify(anima.hessian(lambda x: jnp.sqrt(x).sum()), errors=ALL)(jnp.array([1.0, 0.0]))
    assert first_line(error) == "division by zero"


def test_rules_of_mapped_functions_stay() -> None:
    error, out = anima.vmap(checkify.checkify(with_vmap))(jnp.array([4.0, -1.0]))
    assert out[0] == 20.0 and first_line(error) == "at mapped index 1: with_vmap -1.0 (`check` failed)"


def test_a_check_of_a_rule_alone_is_refused() -> None:
    @anima.custom_jvp
    def f(x: Any) -> Any:
        checkify.check(x > 0, "f")
        return x

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        checkify.check(primals[0] < 9, "only in the rule {}", primals[0])
        return primals[0], tangents[0]

    with pytest.raises(NotImplementedError, match="A check in a rule of the function f"):
        anima.grad(lambda x: checkify.checkify(f)(x)[1])(F32(1.0))
    assert told(anima.grad(f), F32(10.0)) == "only in the rule 10.0 (`check` failed)"


# ---------------------------------------------------------------- errors as values

def test_errors_go_through_jit_and_become_checks_again() -> None:
    error, _ = checkify.checkify(positive)(F32(-1.0))
    assert first_line(anima.jit(lambda e: e)(error)) == FAILED
    with pytest.raises(checkify.JaxRuntimeError, match=r"-1\.0 is not positive"):
        checkify.check_error(error)
    with pytest.raises(ValueError, match="not functionalized"):
        anima.jit(checkify.check_error)(error)
    assert told(lambda e: checkify.check_error(e), error) == FAILED
    with pytest.raises(anima.errors.ConcretizationTypeError, match="check_error"):
        anima.jit(lambda e: e.get())(error)


def test_nested() -> None:
    def outer(x: Any) -> Any:
        error, y = checkify.checkify(positive, errors=ALL)(x)
        checkify.check_error(error)
        return y

    assert told(outer, F32(-1.0), errors=checkify.user_checks) == FAILED
    assert told(outer, F32(-1.0), errors=checkify.index_checks) is None
    assert told(outer, F32(4.0)) is None
    assert told(lambda xs: lax.scan(lambda c, x: (c + outer(x), None), 0.0, xs)[0], jnp.array([1.0, -1.0, -2.0]),
                errors=checkify.user_checks) == FAILED


def test_errors_of_lanes_become_checks_again() -> None:
    def f(xs: Any) -> Any:
        error, ys = anima.vmap(anima.vmap(checkify.checkify(positive)))(xs)
        checkify.check_error(error)
        return ys

    assert told(f, jnp.array([[1.0, 2.0], [3.0, -1.0], [-2.0, 1.0]]), errors=checkify.user_checks) == FAILED
    assert told(f, jnp.ones((2, 2)), errors=checkify.user_checks) is None
    assert told(f, jnp.ones((0, 2)), errors=checkify.user_checks) is None
    with pytest.raises(checkify.JaxRuntimeError, match=r"(?s)at mapped index 1, 1: .*at mapped index 2, 0: "):
        f(jnp.array([[1.0, 2.0], [3.0, -1.0], [-2.0, 1.0]]))


def test_errors_of_steps() -> None:
    def f(xs: Any) -> Any:
        return lax.scan(lambda c, x: (c, checkify.checkify(positive)(x)[0]), 0.0, xs)[1]

    assert first_line(anima.jit(f)(jnp.array([1.0, -1.0, 3.0]))) == f"at mapped index 1: {FAILED}"


def test_twice_inside() -> None:
    """Checks do not fail because of what other checks compute."""
    inner = checkify.checkify(lambda x, i: x[i], errors=ALL)
    assert told(lambda x, i: inner(x, i)[1], jnp.arange(3.0), jnp.array([0, 2])) is None
    assert told(lambda x, i: inner(x, i)[1], jnp.arange(3.0), jnp.array([0, 3])).startswith("out-of")  # type: ignore


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("fails", ["body 0", "body 1", "body 2", "cond 0", "cond 1", None])
def test_each_check_of_a_loop_tells_its_own_failure(fails: str | None, brief: bool) -> None:
    """However many checks, with however many values, there are in its body and in its condition."""
    def some(name: str, step: Any, wanted: Any, values: int) -> None:
        given = {f"v{k}": step + k for k in range(values)}
        text = f"{name} " + " ".join(f"{{{k}}}" for k in given)
        checkify.check((step < 3) | (wanted != NAMES.index(name)), text, **given)

    def f(wanted: Any) -> Any:
        def cond(step: Any) -> Any:
            some("cond 0", step, wanted, 1)
            some("cond 1", step, wanted, 0)
            return step < 6

        def body(step: Any) -> Any:
            for k, values in enumerate((0, 2, 0)):
                some(f"body {k}", step, wanted, values)
            return step + 1

        return lax.while_loop(cond, body, jnp.int32(0))

    checked = checkify.checkify(f)
    error, _ = (anima.jit(checked) if brief else checked)(jnp.int32(-1 if fails is None else NAMES.index(fails)))
    text = error.get()
    values = {"body 1": "3 4", "cond 0": "3"}.get(fails or "", "")
    assert text is None if fails is None else text.startswith(f"{fails} {values}")


NAMES = ["body 0", "body 1", "body 2", "cond 0", "cond 1"]
