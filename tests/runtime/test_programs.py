"""Programs that another process compiled: the same results without the compiler, and never another program's."""

from __future__ import annotations

import itertools
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.api.pjit import pjit_p
from anima.compiler.machine import store
from anima.core import digest as digests
from anima.core.digest import digest
from anima.core.jaxpr import ClosedJaxpr, Eqn
from anima.experimental import checkify
from anima.runtime import programs
from anima.runtime.executable import Executable
from anima.runtime.programs import StoredExecutable

PROCESS = """
import sys
import numpy as np, anima, anima.numpy as jnp
from anima import lax
rng = np.random.default_rng(0)
x = jnp.asarray(rng.standard_normal((24, 16)), jnp.float32)

def loss(w):
    h = anima.nn.gelu(x @ w)
    return jnp.mean(anima.nn.log_softmax(h) ** 2) + jnp.sum(jnp.linalg.cholesky(w.T @ w + jnp.eye(16)))

def walk(key):
    def step(c, k):
        c = c + anima.random.normal(k, (3,))
        return c, jnp.sort(c)
    return lax.scan(step, jnp.zeros(3), anima.random.split(key, 5))

w = x.T @ x / 24
results = [anima.jit(anima.value_and_grad(loss))(w), anima.jit(walk)(anima.random.key(3)),
           anima.jit(lambda a: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2, a))(jnp.ones(8))]
print([np.asarray(leaf).tobytes().hex() for leaf in anima.tree.leaves(results)])
print("anima.compiler.driver" in sys.modules, "llvmlite" in sys.modules)
"""


def test_a_second_process_does_not_compile(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANIMA_ENABLE_COMPILATION_CACHE", "1")
    monkeypatch.setenv("ANIMA_CHECK", "0")
    monkeypatch.setenv("ANIMA_CACHE_DIR", str(tmp_path / "cache"))
    first, second = (subprocess.run([sys.executable, "-c", PROCESS], check=True, capture_output=True, text=True,
                                    timeout=120).stdout.splitlines() for _ in range(2))
    assert first[0] == second[0]
    assert first[1] == "True True"
    own = sys.platform == "linux" and platform.machine() == "x86_64"  # where machine code is linked without LLVM
    assert second[1] == ("False False" if own else "False True")


@pytest.fixture
def kinds(on_disk: pathlib.Path, unchecked: None, monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """Of each program asked for, the class of its executable."""
    found: list[type] = []
    original = programs.executable_of

    def executable_of(*args: Any) -> Any:
        made = original(*args)
        found.append(type(made))
        return made

    monkeypatch.setattr(programs, "executable_of", executable_of)
    return found


def twice(kinds: list[type], fun: Callable[..., Any], *args: Any) -> tuple[list[type], list[Any]]:
    """The results of a function jitted in two processes, as it were."""
    start, results = len(kinds), []
    for _ in range(2):
        anima.clear_caches()
        results.append(anima.jit(fun)(*args))
        store.flush()
    return kinds[start:], results


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("fun", [
    lambda x: jnp.tanh(x) @ x.T + 1.0, lambda x: anima.grad(lambda y: jnp.sum(anima.nn.relu(y) ** 3))(x),
    lambda x: jnp.linalg.solve(x @ x.T + jnp.eye(3), x), lambda x: (x, x[::-1], jnp.arange(3)),
    lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), lambda x: anima.vmap(jnp.cumsum)(x),
    lambda x: x * jnp.asarray(np.arange(4.0, dtype=np.float32)) + np.float32(np.pi)])
def test_the_second_time_it_is_read(kinds: list[type], fun: Callable[..., Any]) -> None:
    used, (one, two) = twice(kinds, fun, X)
    assert used == [Executable, StoredExecutable]
    anima.tree.map(np.testing.assert_array_equal, one, two)


def test_programs_that_differ_are_different(kinds: list[type]) -> None:
    table = np.arange(4.0, dtype=np.float32)
    funs: list[Callable[..., Any]] = [
        lambda x: x * 2.0, lambda x: x * -2.0, lambda x: x * 0.0, lambda x: x * -0.0, lambda x: 2.0 * x,
        lambda x: x * table, lambda x: x * (table + 1), lambda x: x.sum(0), lambda x: x.sum(1), lambda x: jnp.sin(x),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c + x, x), lambda x: lax.fori_loop(0, 4, lambda i, c: c + x, x),
        lambda x: x.astype(np.float16), lambda x: (x, x), lambda x: (x, x + 0)]
    known = [digest(anima.make_jaxpr(fun)(X)) for fun in funs]
    known += [digest(anima.make_jaxpr(lambda x: x * 2.0)(y)) for y in (X.T, X.astype(np.int32), X[0, 0])]
    assert None not in known and len({*known}) == len(known)
    assert digest(anima.make_jaxpr(lambda y: y * 2.0)(X)) == known[0]
    for fun in funs:
        anima.clear_caches()
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), anima.jit(fun)(X), fun(X))
    assert {*kinds} == {Executable}


def changes(closed: ClosedJaxpr) -> Iterator[ClosedJaxpr]:
    """The program with two operands of one equation exchanged, inner programs' too, in every way there is; the
    variables are the same."""
    jaxpr = closed.jaxpr
    for number, eqn in enumerate(jaxpr.eqns):
        for i, j in itertools.combinations(range(len(eqn.invars)), 2):
            a, b = eqn.invars[i], eqn.invars[j]
            if a is not b and a.aval == b.aval:
                invars = [b if k == i else a if k == j else v for k, v in enumerate(eqn.invars)]
                yield put(closed, number, eqn.replace(invars=invars))
        for name, value in eqn.params.items():
            if isinstance(value, ClosedJaxpr):
                for inner in changes(value):
                    yield put(closed, number, eqn.replace(params={**eqn.params, name: inner}))


def put(closed: ClosedJaxpr, number: int, eqn: Eqn) -> ClosedJaxpr:
    """The program with another equation of this number."""
    eqns = list(closed.jaxpr.eqns)
    eqns[number] = eqn
    return ClosedJaxpr(closed.jaxpr.replace(eqns=eqns), closed.consts)


def step(x: Any, y: Any) -> Any:
    z = lax.scan(lambda c, a: (c * a - y, c - a), x, y)[0] - y
    return lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) - lax.cond(c[0] > y[0], lambda a: a - x, lambda a: x - a, c), z)


def test_where_operands_stand_tells_programs_apart() -> None:
    base = anima.make_jaxpr(step)(np.ones(3), np.ones(3))
    every = [base, *changes(base)]
    assert len(every) > 10
    assert len({digest(p) for p in every}) == len(every)


@pytest.mark.parametrize("times", [2, 3])
def test_programs_of_the_same_variables_are_told_apart(times: int) -> None:
    # Transformations make new programs of old ones' variables, and both may stand in one program.
    base = anima.make_jaxpr(lambda x, y: (x * 2.0) - (y + 1.0))(np.ones(3), np.ones(3))
    parts = [base, *changes(base)]

    def calls(*closed: ClosedJaxpr) -> ClosedJaxpr:
        return anima.make_jaxpr(lambda x, y: [pjit_p.bind(x, y, jaxpr=c, name="f", inline=False) for c in closed])(
            np.ones(3), np.ones(3))

    every = [calls(*chosen) for chosen in itertools.product(parts, repeat=times)]
    assert len({digest(p) for p in every}) == len(every) == len(parts) ** times


def test_a_program_that_shares_variables_with_an_outer_one_has_names_of_its_own() -> None:
    def calling(number: int) -> ClosedJaxpr:
        """f(a, b) = g(v), sin(v), where v is a or b, and is the parameter of g as well."""
        outer = anima.make_jaxpr(lambda a, b: [pjit_p.bind((a, b)[number], jaxpr=negative, name="g", inline=False),
                                               jnp.sin((a, b)[number])])(np.ones(3), np.ones(3))
        call, var = outer.jaxpr.eqns[0], outer.jaxpr.invars[number]
        return put(outer, 0, call.replace(params={**call.params, "jaxpr": of_parameter(negative, var)}))

    negative = anima.make_jaxpr(lambda x: -x)(np.ones(3))
    assert digest(calling(0)) != digest(calling(1))


def of_parameter(closed: ClosedJaxpr, var: Any) -> ClosedJaxpr:
    """A program of one parameter and one equation, with this variable as its parameter."""
    jaxpr, (eqn,) = closed.jaxpr, closed.jaxpr.eqns
    return ClosedJaxpr(jaxpr.replace(invars=[var], eqns=[eqn.replace(invars=[var])]), closed.consts)


def test_names_are_those_of_the_outer_program_where_an_inner_one_is_unknown() -> None:
    @anima.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))
    mesh = anima.make_mesh((1,), ("x",), axis_types=(anima.sharding.AxisType.Auto,))

    @anima.shard_map(mesh=mesh, in_specs=anima.P("x"), out_specs=anima.P("x"))
    def g(a: Any) -> Any:
        return anima.jvp(lambda b: (f(b), b * 2)[1], (a,), (a,))[1]  # what is known to this process alone is not used

    x = np.arange(3, dtype=np.float32)
    assert digest(anima.make_jaxpr(lambda a: g(a + 1) * a)(x)) is not None
    np.testing.assert_array_equal(anima.jit(g)(x), 2 * x)


def test_options_tell_programs_apart(kinds: list[type]) -> None:
    assert twice(kinds, lambda x: x @ x.T, X)[0] == [Executable, StoredExecutable]
    with anima.default_matmul_precision("highest"):
        assert twice(kinds, lambda x: x @ x.T, X)[0] == [Executable, StoredExecutable]


def test_what_is_of_this_process_is_not_kept(kinds: list[type]) -> None:
    def called(x: Any) -> Any:
        return anima.pure_callback(lambda y: np.asarray(y) + 1, x, x)

    own = anima.extend.core.Primitive("own")
    own.def_abstract_eval(lambda x: x)
    own.def_lowering(lambda x: x + 1)
    square = anima.extend.core.elementwise("tests_programs_square", np.square, lambda x: x * x, jvp=[None])
    for fun in (called, square):
        assert twice(kinds, fun, X)[0] == [Executable, Executable]
    assert twice(kinds, own.bind, X)[0] == [Executable, StoredExecutable]  # by what it is made of
    own.def_lowering(lambda x: x + 2)
    used, results = twice(kinds, own.bind, X)
    assert used == [Executable, StoredExecutable]
    np.testing.assert_array_equal(results, [X + 2, X + 2])
    large = np.ones(digests.LARGEST // 4 + 1, np.float32)
    assert twice(kinds, lambda x: x.sum() + large, X)[0] == [Executable, Executable]


def test_what_is_compiled_under_a_profile_is_not_kept(kinds: list[type], tmp_path: pathlib.Path) -> None:
    """It has places where it says what time it is; and what was kept has none, and is not taken."""
    fun = anima.jit(lambda x: x @ x.T + 3)
    for under_profile in (False, True, False, True):
        anima.clear_caches()
        if under_profile:
            with anima.profiler.trace(str(tmp_path / "profile")):
                np.testing.assert_array_equal(fun(X), X @ X.T + 3)
        else:
            np.testing.assert_array_equal(fun(X), X @ X.T + 3)
        store.flush()
    assert kinds[:4] == [Executable, Executable, StoredExecutable, Executable]


def test_donation(kinds: list[type]) -> None:
    step = anima.jit(lambda x: x + 1.0, donate_argnums=0)
    for kind in (Executable, StoredExecutable):
        anima.clear_caches()
        given = jnp.asarray(X) * 1
        np.testing.assert_array_equal(step(given), X + 1)
        assert given.is_deleted() and kinds[-1] is kind
        store.flush()
    keep = anima.jit(lambda x: x + 1.0)
    keep(given := jnp.asarray(X) * 1)
    assert not given.is_deleted()


@pytest.mark.parametrize("order", [*itertools.permutations([(), (0,), (1,), (0, 1)], 2)], ids=str)
def test_programs_write_over_what_is_donated_and_nothing_else(kinds: list[type],
                                                              order: tuple[tuple[int, ...], ...]) -> None:
    """One function, donating this and that, compiled and from the disk: never what others still see."""
    def step(x: Any, y: Any) -> Any:
        return x + y, y * 2.0

    for donated, kind in itertools.product(order, (Executable, StoredExecutable)):
        anima.clear_caches()
        for seen in (False, True):
            given = [jnp.asarray(X) * 1, jnp.asarray(X) * 3]
            views = [np.asarray(x) for x in given] if seen else []
            one, two = anima.jit(step, donate_argnums=donated)(*given)
            np.testing.assert_array_equal(one, 4 * X)
            np.testing.assert_array_equal(two, 6 * X)
            for view, want in zip(views, (X, 3 * X), strict=bool(views)):
                np.testing.assert_array_equal(view, want)
            assert [x.is_deleted() for x in given] == [k in donated for k in range(2)]
            for k in {0, 1} - {*donated}:
                np.testing.assert_array_equal(given[k], (1 + 2 * k) * X)
        assert kinds[-1] is kind
        store.flush()


# Programs that call what is of this process, or may.
CALLING: dict[str, tuple[Callable[..., Any], Any]] = {
    "a long Fourier transform": (lambda x: jnp.fft.fft(x).real, np.ones((1 << 18) + 1, np.float32)),
    "a product and LAPACK": (lambda x: jnp.linalg.eigh(x.T @ x)[0], X),
    "a gradient of a loop of unknown length": (anima.grad(lambda x: lax.while_loop(
        lambda c: c.sum() < 100, lambda c: c * c + 1, x).sum()), X),
    "a print in a loop": (lambda x: lax.fori_loop(0, 2, lambda i, c: (anima.debug.print("{}", i), c * 2)[1], x), X),
    "a callback in a branch": (lambda x: lax.cond(x[0, 0] > 5, lambda y: anima.pure_callback(
        lambda z: np.asarray(z) + 1, X, y), jnp.sin, x), X)}


@pytest.mark.parametrize("name", CALLING)
def test_programs_that_call_do_so_the_second_time(kinds: list[type], name: str,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    fun, x = CALLING[name]
    _, (one, two) = twice(kinds, fun, x)
    np.testing.assert_array_equal(one, two)
    with anima.disable_jit():
        np.testing.assert_allclose(one, fun(x), rtol=1e-4, atol=1e-2)
    said = capsys.readouterr().out.splitlines()
    assert said == (["0", "1"] * 3 if "print" in name else [])


def test_programs_that_are_compiled_when_they_are_called(kinds: list[type]) -> None:
    def logs(x: Any, i: Any) -> Any:
        return lax.fori_loop(0, 3, lambda k, s: s + jnp.log(x[i[k]]), 0.0)

    def two(x: Any, i: Any) -> Any:  # two such programs, one in a branch, and a third in a loop
        first = checkify.checkify(logs, errors=checkify.all_checks)(x, i)
        second = lax.cond(i[0] > 0, lambda: checkify.checkify(logs, errors=checkify.nan_checks)(-x, i)[0]._pred,
                          lambda: jnp.bool_(False))
        return first, second, lax.map(lambda a: checkify.checkify(logs, errors=checkify.all_checks)(a * x, i)[0],
                                      jnp.array([1.0, -1.0]))

    x, i = jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 5, 1])
    used, (one, other) = twice(kinds, two, x, i)
    assert used[0] is Executable and StoredExecutable in used
    for (error, _), flag, lanes in (one, other):
        assert "index 5 is out of bounds" in error.get() and bool(flag)
        assert list(map(len, lanes.get().split("at mapped index")))[1:] and "nan generated" in lanes.get()


def test_stored_programs_can_be_looked_at(kinds: list[type]) -> None:
    def fun(x: Any) -> Any:
        return jnp.exp(x).sum(1)

    twice(kinds, fun, X)
    anima.clear_caches()
    compiled = anima.jit(fun).lower(X).compile()
    assert type(compiled.executable) is StoredExecutable
    assert "exp" in compiled.as_text() and "define void @entry" in compiled.executable.llvm
    assert compiled.executable.asm and compiled.cost_analysis()["operations"] > 0
    memory = compiled.memory_analysis()
    assert memory.generated_code_size_in_bytes > 0
    assert memory.peak_memory_in_bytes == X.nbytes + 4 * X.shape[0] + memory.temp_size_in_bytes
    blob = anima.experimental.serialize_executable.serialize(compiled)
    np.testing.assert_array_equal(anima.experimental.serialize_executable.deserialize_and_load(*blob)(X), compiled(X))


def test_what_looks_at_the_compiler_sees_it(kinds: list[type], monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    def fun(x: Any) -> Any:
        return jnp.log1p(x * x)

    twice(kinds, fun, X)
    monkeypatch.setenv("ANIMA_SHOW", "loops")
    anima.clear_caches()
    anima.jit(fun)(X)
    assert kinds[-1] is Executable and "kernel" in capsys.readouterr().err


@pytest.mark.parametrize("change", [lambda b: b"", lambda b: b[:len(b) // 2], lambda b: b[:-1] + bytes([b[-1] ^ 128]),
                                    lambda b: b[:2000] + bytes([b[2000] ^ 4]) + b[2001:]])
def test_damaged_programs_are_compiled_again(kinds: list[type], on_disk: pathlib.Path,
                                             change: Callable[[bytes], bytes]) -> None:
    def fun(x: Any) -> Any:
        return jnp.sinh(x) @ x.T

    _, (one, _) = twice(kinds, fun, X)
    for path in on_disk.iterdir():
        path.write_bytes(change(path.read_bytes()))
    used, (two, three) = twice(kinds, fun, X)
    assert used == [Executable, StoredExecutable]
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)


def test_programs_of_other_generators_and_selections_differ() -> None:
    """What a parameter names counts: a generator of random numbers, an operation, an element of an enum."""
    def bits(impl: str) -> Any:
        return lambda words: anima.random.bits(anima.random.wrap_key_data(words, impl=impl), (3,))

    def slopes(init: float, op: Any) -> Any:
        return anima.grad(lambda x: lax.reduce_window(x, init, op, (2,), (1,), "VALID").sum())

    words, x = np.zeros(4, np.uint32), np.arange(4.0, dtype=np.float32)
    every = [anima.make_jaxpr(f)(a) for f, a in (
        (bits("rbg"), words), (bits("unsafe_rbg"), words), (bits("threefry2x32"), words[:2]),
        (slopes(-np.inf, lax.max), x), (slopes(np.inf, lax.min), x),
        (lambda x: lax.fft(x, "FFT", (4,)), x.astype(complex)), (lambda x: lax.fft(x, "IFFT", (4,)), x.astype(complex)),
        (lambda x: lax.reduce_precision(x, 5, 2), x), (lambda x: lax.reduce_precision(x, 2, 5), x))]
    known = [digest(p) for p in every]
    assert None not in known and len(set(known)) == len(every)
    assert digest(anima.make_jaxpr(bits("rbg"))(words)) == known[0]
