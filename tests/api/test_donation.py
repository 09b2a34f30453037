"""Donation: results in the memory of donated arguments, which nothing else sees."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

SIZES = [1, 5, 17, 1000, 300_000]  # the last is more than a block of recycled memory, and runs on threads


def fresh(n: int) -> Any:
    return jnp.arange(float(n)) * 1


PROGRAMS: dict[str, Any] = {
    "elementwise": lambda x: 2 * x + 1,
    "update": lambda x: x.at[0].set(x[-1] + 7),
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c.at[i % c.size].add(c[i - 1]), x),
    "branch": lambda x: lax.cond(x[0] > 0, lambda x: x + 1, lambda x: x - 1, x),
    "branch with an update": lambda x: lax.cond(x[-1] < 4, lambda x: x.at[0].add(x[-1]), lambda x: x, x),
    "branches with updates": lambda x: lax.switch(1, [lambda x: x * 2, lambda x: x.at[-1].set(x[0] + x[-1]),
                                                      lambda x: x[::-1]], x),
    "scan": lambda x: lax.scan(lambda c, _: (c * 0.5 + 1, None), x, None, length=3)[0],
}


@pytest.mark.parametrize("name", ["elementwise", "update", "branch", "branch with an update", "branches with updates",
                                  "scan"])
@pytest.mark.parametrize("size", SIZES)
def test_results_are_in_the_memory_of_donated_arguments(name: str, size: int) -> None:
    f = anima.jit(PROGRAMS[name], donate_argnums=0)
    x, want = fresh(size), fresh(size)
    place = x.unsafe_buffer_pointer()
    for _ in range(3):
        y = f(x)
        assert x.is_deleted() and y.unsafe_buffer_pointer() == place
        x, want = y, PROGRAMS[name](want)
    np.testing.assert_allclose(x, want, rtol=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seen", [
    np.asarray, lambda x: np.asarray(x)[:1], lambda x: x.reshape(1, -1), lambda x: np.asarray(x.reshape(-1, 1))[::2]],
    ids=["array", "slice of it", "reshaped", "slice of a view"])
def test_memory_that_others_see_is_left_alone(name: str, size: int, seen: Any) -> None:
    f = anima.jit(PROGRAMS[name], donate_argnums=0)
    f(fresh(size))
    x = f(fresh(size))
    view = seen(x)
    before, want = np.array(view), np.array(PROGRAMS[name](jnp.array(x)))
    np.testing.assert_allclose(f(x), want, rtol=1e-6)
    assert x.is_deleted()
    np.testing.assert_array_equal(np.array(view), before)
@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
def test_what_users_own_is_left_alone() -> None:
    f = anima.jit(lambda x, y: (x + y, x * y), donate_argnums=(0, 1))
    mine, other = np.arange(5, dtype=np.float32), np.float32(3)
    for _ in range(2):
        total, product = f(mine, other)
        np.testing.assert_array_equal(mine, np.arange(5))
        np.testing.assert_array_equal(total, mine + 3)
        np.testing.assert_array_equal(product, mine * 3)


def test_an_argument_of_another_program_is_not_written_over_twice() -> None:
    swap = anima.jit(lambda x, y: (y + 0, x + 0), donate_argnums=(0, 1))
    x, y = fresh(9), fresh(9) + 1
    a, b = swap(x, y)
    np.testing.assert_array_equal(a, np.arange(9) + 1)
    np.testing.assert_array_equal(b, np.arange(9))
    assert len({a.unsafe_buffer_pointer(), b.unsafe_buffer_pointer()}) == 2


@pytest.mark.parametrize("size", SIZES)
def test_another_shape_of_the_same_memory(size: int) -> None:
    f = anima.jit(lambda x: (x.reshape(1, -1), x[:0]), donate_argnums=0)
    for _ in range(2):
        x = fresh(size)
        seen = np.asarray(x)
        y, _ = f(x)
        assert y.shape == (1, size) and not np.shares_memory(np.asarray(y), seen) and x.is_deleted()
        np.testing.assert_array_equal(y[0], np.arange(size))


def test_arguments_of_a_call_that_failed_are_gone() -> None:
    def fail(_: Any) -> None:
        raise ValueError("no")

    def fun(x: Any) -> Any:
        y = x.at[0].set(5.0)
        anima.debug.callback(fail, y[0])
        return y + 1

    f = anima.jit(fun, donate_argnums=0)
    x = fresh(5)
    with pytest.raises(ValueError, match="no"):
        f(x)
    if not x.is_deleted():  # nothing was written
        np.testing.assert_array_equal(x, np.arange(5))


@pytest.mark.parametrize("size", [64, 300_000])
def test_one_of_several_threads_gets_the_memory(size: int) -> None:
    f = anima.jit(PROGRAMS["loop"], donate_argnums=0)
    want = np.asarray(f(fresh(size)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(20):
            x, results, refused = fresh(size), [], []
            together = threading.Barrier(4)

            def call(x: Any = x, results: list[Any] = results, refused: list[Any] = refused,
                     together: threading.Barrier = together) -> None:
                together.wait()
                try:
                    results.append(f(x))
                except RuntimeError as error:
                    refused.append(error)

            threads = [threading.Thread(target=call) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert (len(results), len(refused)) == (1, 3)
            np.testing.assert_array_equal(results[0], want)
    finally:
        sys.setswitchinterval(interval)


def test_arguments_that_a_program_does_not_take_stay() -> None:
    f = anima.jit(PROGRAMS["elementwise"], donate_argnums=0)
    f(fresh(5))
    for other in (jnp.arange(5), jnp.ones((5, 1)), anima.random.key(0)):
        kept = str(other)
        try:
            f(other)
        except TypeError:
            assert str(other) == kept


def test_the_analysis_of_memory_tells() -> None:
    f = anima.jit(lambda x, y: x.at[0].set(y), donate_argnums=0)
    assert f.lower(fresh(100), 1.0).compile().memory_analysis().alias_size_in_bytes == 400
    assert anima.jit(f.fun).lower(fresh(100), 1.0).compile().memory_analysis().alias_size_in_bytes == 0


@pytest.mark.parametrize("fun, given, unusable", [
    (lambda x: x.sum(), [(3,)], "float32[3]"),
    (lambda x, y: (x.sum(), y), [(3,), (5,)], "float32[3]"),
    (lambda x, y: x + y, [(4,), (4,)], "float32[4]"),  # one of the two takes the result's place
    (lambda x: x.reshape(3, 2), [(2, 3)], None),
    (lambda x, y: y + 1, [(2, 3), (4,)], None),  # what is not used is no waste
])
def test_memory_that_no_result_can_use(fun: Any, given: list[tuple[int, ...]], unusable: str | None) -> None:
    """A warning at the user's line, once for each way to compile it."""
    args = [jnp.ones(shape) for shape in given]
    jitted = anima.jit(fun, donate_argnums=tuple(range(len(args))))
    for use in (jitted.lower, jitted):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use(*args)
        assert [f"not usable: {unusable}." in str(w.message) and w.filename == __file__ for w in caught] == (
            [] if unusable is None else [True])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jitted(*[jnp.ones(shape) for shape in given])


MESH_CASES: list[tuple[Any, str | None, dict[str, Any], list[bool]]] = [  # what, where arguments lie, and which go
    (lambda x: x + 1, "x", {}, [True]), (lambda x: x + 1, "whole", {}, [True]), (lambda x: x.sum(), "x", {}, [False]),
    (lambda x: x.sum(), None, {}, [False]), (lambda x: x.reshape(4, 4) + 1, "whole", {}, [True]),
    (lambda x: x > 0, "x", {}, [False]), (lambda x: x.astype("int32"), "x", {}, [True]),
    (lambda x, y: y + 1, "x", {}, [False, False]), (lambda x, y: y + 1, "x", {"keep_unused": True}, [True, False]),
    (lambda x, y: y + 1, None, {"keep_unused": True}, [True, False]),
    (lambda x, y: x + y, "whole", {"donate_argnums": (0, 1)}, [True, False]),
    (lambda x: jnp.concatenate([x, x]), "x", {}, [False]), (lambda x: (x, x + 1), "x", {}, [True]),
    (lambda x: x + 1, "x", {"out_shardings": "whole"}, [False]), (lambda x: x + 1, "x", {"out_shardings": "x"}, [True]),
    (lambda x: x + 1, None, {"out_shardings": "x"}, [False]),
    (lambda x: x + 1, None, {"out_shardings": "whole"}, [True]),
]


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("case", range(len(MESH_CASES)))
def test_donated_arrays_go_where_results_have_as_many_bytes_on_each_device(case: int) -> None:
    """As in JAX 0.10.2, on one device and on eight; what is left is as it was."""
    fun, lies, options, gone = MESH_CASES[case]
    mesh = anima.make_mesh((8,), ("x",), axis_types=(anima.sharding.AxisType.Auto,))
    places = {"x": anima.NamedSharding(mesh, anima.P("x")), "whole": anima.NamedSharding(mesh, anima.P())}
    options = {"donate_argnums": 0, **{k: places.get(v, v) if isinstance(v, str) else v for k, v in options.items()}}
    f, host = anima.jit(fun, **options), np.arange(16, dtype=np.float32)
    want = fun(*[jnp.asarray(host)] * len(gone))
    for _ in range(3):
        args = [jnp.arange(16.0) if lies is None else anima.device_put(host, places[lies]) for _ in gone]
        found = f(*args)
        assert [a.is_deleted() for a in args] == gone
        for a, b in zip(anima.tree.leaves(found), anima.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(a, b)
        for a in args:
            assert a.is_deleted() or np.array_equal(a, host)
    compiled_args = [jnp.arange(16.0) if lies is None else anima.device_put(host, places[lies]) for _ in gone]
    f.lower(*compiled_args).compile()(*compiled_args)
    assert [a.is_deleted() for a in compiled_args] == gone


def test_what_is_donated_by_its_place_is_so_by_its_name() -> None:
    f = anima.jit(lambda x, *, y=0: x + y, donate_argnums=0)
    x = fresh(5)
    assert f.lower(x=x).args_info[1]["x"].donated
    f(x=x, y=1)
    assert x.is_deleted()
    g = anima.jit(lambda x, /, **others: x + others["x"], donate_argnums=0)
    x, other = fresh(5), fresh(5)
    g(x, x=other)
    assert x.is_deleted() and not other.is_deleted()
