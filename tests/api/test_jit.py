"""jit: signatures and their cache, static arguments, donation, nesting, threads, and failures."""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


def equal(actual: Any, expected: Any, rtol: float = 1e-6) -> None:
    leaves, structure = anima.tree.flatten(actual)
    wanted, expected_structure = anima.tree.flatten(expected)
    assert structure == expected_structure
    for a, e in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=1e-7)


class Counted:
    """A function that counts how often its Python code runs, that is, how often it is traced."""

    def __init__(self, fun: Callable[..., Any]):
        self.fun = fun
        self.traces = 0
        functools.update_wrapper(self, fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.traces += 1
        return self.fun(*args, **kwargs)


# ---------------------------------------------------------------- results

def test_results_have_the_types_of_eager_ones() -> None:
    def f(x: Any, y: Any) -> Any:
        return {"sum": x + y, "less": x < y, "int": jnp.arange(3), "weak": y * 2, "none": None, "py": 3,
                "t": (x.astype(int),)}

    x = np.float32([1.5, -2.0])
    eager, compiled = f(jnp.asarray(x), 2.0), anima.jit(f)(x, 2.0)
    equal(compiled, eager)
    for a, b in zip(anima.tree.leaves(compiled), anima.tree.leaves(eager), strict=True):
        b = jnp.asarray(b)
        assert isinstance(a, anima.Array) and (a.shape, a.dtype) == (b.shape, b.dtype)
    assert anima.jit(lambda v: v * 2)(3.0).weak_type and not anima.jit(lambda v: v * 2)(np.float32(3)).weak_type
    assert anima.jit(lambda: None)() is None and anima.jit(lambda: ())() == ()


class Point(NamedTuple):
    x: Any
    y: Any


def test_pytrees_in_and_out() -> None:
    f = anima.jit(lambda p, d, empty=(): (Point(p.y, p.x), {"k": [d["k"][0] * 2, None]}, empty))
    equal(f(Point(1.0, 2.0), {"k": (3.0,)}), (Point(2.0, 1.0), {"k": [6.0, None]}, ()))
    assert isinstance(f(Point(1.0, 2.0), {"k": (3.0,)})[0], Point)


def test_results_do_not_share_memory_with_arguments() -> None:
    x = np.ones(4, np.float32)
    out = anima.jit(lambda v: (v, v.reshape(2, 2)))(x)
    x[:] = 7
    equal(out, (np.ones(4), np.ones((2, 2))))
    out = anima.jit(lambda v: (v, v))(jnp.zeros(3))
    out[0].delete()
    equal(out[1], np.zeros(3))


@pytest.mark.parametrize("make", [
    lambda a: a, lambda a: a[::2], lambda a: a.T, lambda a: a[::-1], lambda a: np.asfortranarray(a),
                                  lambda a: a[:, 1:3],
    lambda a: np.broadcast_to(a[0], (4, 6)), lambda a: a.astype(">f4"), lambda a: a.astype(np.float64),
                                  lambda a: a[1:1],
])
def test_numpy_arguments_of_every_layout(make: Callable[[np.ndarray], np.ndarray]) -> None:
    a = make(np.arange(24, dtype=np.float32).reshape(4, 6))
    equal(anima.jit(lambda v: v * 2 + 1)(a), a * 2 + 1)


def test_misaligned_memory() -> None:
    raw = np.zeros(17, np.uint8)[1:].view(np.float32)
    equal(anima.jit(lambda v: v + 1)(raw), np.ones(4))


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_constants_in_any_order_of_memory(make: Any) -> None:
    turned = np.arange(6.0, dtype="f4").reshape(2, 3).T
    for x in (turned, np.asfortranarray(np.ones((4, 5), "f4")), np.arange(9.0, dtype="f4")[::2]):
        constant = make(x)
        np.testing.assert_array_equal(anima.jit(lambda y, c=constant: y + c)(jnp.zeros(x.shape)), x)


def test_constants_alike_are_one() -> None:
    """A NumPy array that a function uses twice; not zeros of another sign or type."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    closed = anima.make_jaxpr(lambda v: (x @ v).sum() + jnp.asarray(x.copy()).sum() + (x @ v).max())(x[0])
    assert len(closed.consts) == 1
    zero, least = np.zeros(3, np.float32), np.array([0.0, -0.0, 0.0], np.float32)
    others = (zero, least, zero.astype(np.int32), zero[:, None], zero.astype(np.float16), zero.view(np.int32))
    closed = anima.make_jaxpr(lambda v: [v + jnp.asarray(z).reshape(3) for z in others])(x[0])
    assert len(closed.consts) == 5
    signs = anima.jit(lambda v: [jnp.copysign(v, jnp.asarray(z)) for z in others[:2]])(x[0])
    np.testing.assert_array_equal(signs, [[0, 1, 2], [0, -1, 2]])


def test_constants_are_kept_as_they_were() -> None:
    table = np.arange(3.0, dtype=np.float32)
    f = anima.jit(lambda x: x + table)
    equal(f(1.0), table + 1)
    table[:] = 100
    equal(f(1.0), np.arange(3.0) + 1)


# ---------------------------------------------------------------- the cache

def test_traced_once_per_signature() -> None:
    f = Counted(lambda x, k=0: x)
    g = anima.jit(f)

    def grows(call: Callable[[], Any], by: int) -> None:
        before = f.traces
        call()
        assert f.traces == before + by

    grows(lambda: g(1.0), 1)
    grows(lambda: g(2.0), 0)
    grows(lambda: g(np.float32(1)), 1)  # not weakly typed
    grows(lambda: g(jnp.float32(1)), 0)
    grows(lambda: g(np.ones((), np.float32)), 0)
    grows(lambda: g(np.float64(1)), 0)  # float32 while 64-bit types are off
    grows(lambda: g(1), 1)
    grows(lambda: g(True), 1)
    grows(lambda: g(np.ones(3, np.float32)), 1)
    grows(lambda: g(np.ones(4, np.float32)), 1)
    grows(lambda: g(np.ones(3, np.float16)), 1)
    grows(lambda: g(np.ones((3, 1), np.float32)), 1)
    grows(lambda: g([1.0]), 1)
    grows(lambda: g((1.0,)), 1)
    grows(lambda: g({"a": 1.0}), 1)
    grows(lambda: g({"b": 1.0}), 1)
    grows(lambda: g({"a": 5.0}), 0)
    grows(lambda: g(None), 1)
    grows(lambda: g(1.0, k=1.0), 1)
    grows(lambda: g(1.0, 1.0), 1)  # by position: another signature
    assert g._cache_size() == f.traces
    g.clear_cache()
    assert g._cache_size() == 0
    grows(lambda: g(1.0), 1)


def test_options_are_part_of_the_signature() -> None:
    f = Counted(lambda x: x * 2)
    g = anima.jit(f)
    assert g(1).dtype == np.int32
    with anima.enable_x64(True):
        assert g(1).dtype == np.int64
        assert g(np.float64(1)).dtype == np.float64
    assert g(1).dtype == np.int32 and f.traces == 3


def test_keyword_order_does_not_matter() -> None:
    f = Counted(lambda **kw: kw["a"] - kw["b"])
    g = anima.jit(f)
    equal((g(a=3.0, b=1.0), g(b=1.0, a=3.0)), (2.0, 2.0))
    assert f.traces == 1
    h = anima.jit(f, static_argnames=("a", "b"))
    h.trace(a=3.0, b=1.0), h.trace(b=1.0, a=3.0)
    assert f.traces == 2


class Scale:
    """Callable objects that are equal if they compute the same."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.traces = 0

    def __call__(self, x: Any) -> Any:
        self.traces += 1
        return x * self.factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and self.factor == other.factor

    def __hash__(self) -> int:
        return hash(self.factor)


def test_a_function_that_is_jitted_again_is_not_traced_again() -> None:
    f = Counted(lambda x, y=1.0: x * y)
    for _ in range(3):
        equal(anima.jit(f)(2.0), 2.0)
    assert f.traces == 1
    for options in ({"static_argnums": 1}, {"keep_unused": True}, {"inline": True}, {"donate_argnums": 1}):
        anima.jit(f, **options)(2.0), anima.jit(f, **options)(3.0)
    assert f.traces == 5
    a, b = anima.jit(f), anima.jit(f)
    a.clear_cache()
    equal(b(2.0), 2.0)
    assert f.traces == 6 and a._cache_size() == b._cache_size() == 1
    anima.clear_caches()
    equal(anima.jit(f)(2.0), 2.0)
    assert f.traces == 7


def test_equal_functions_are_traced_once() -> None:
    one, same, other = Scale(2.0), Scale(2.0), Scale(3.0)
    for f in (one, same, other):
        equal(anima.jit(f)(2.0), 2.0 * f.factor)
    assert (one.traces, same.traces, other.traces) == (1, 0, 1)
    p = functools.partial(one, 5.0)
    equal([anima.jit(p)() for _ in range(2)], [10.0, 10.0])
    assert one.traces == 2


def test_functions_without_hash_equality_or_weak_references() -> None:
    class NoHash(Scale):
        __hash__ = None  # type: ignore[assignment]

    class NoEquality(Scale):
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = Scale.__hash__

    class NoWeak:
        __slots__ = ()

        def __call__(self, x: Any) -> Any:
            return x * 2.0

    for kind in (NoHash(2.0), NoEquality(2.0), NoEquality(2.0), NoWeak(), abs):
        equal(anima.jit(kind)(3.0), kind(3.0))


def test_programs_go_with_their_function() -> None:
    """Those of functions that a program refers to go when there are many of them."""
    class Token:
        pass

    def made() -> tuple[Any, Any]:
        token = Token()

        def f(x: Any, token: Token = token) -> Any:
            return x + 1

        anima.jit(f)(1.0)
        return weakref.ref(f), weakref.ref(token)

    refs = [made() for _ in range(3)]
    gc.collect()
    assert all(ref() is None for pair in refs for ref in pair)


def test_failures_are_not_cached() -> None:
    state = {"fail": True}

    @anima.jit
    def f(x: Any) -> Any:
        if state["fail"]:
            raise RuntimeError("not now")
        return x + 1

    with pytest.raises(RuntimeError, match="not now"):
        f(1.0)
    assert f._cache_size() == 0
    state["fail"] = False
    equal(f(1.0), 2.0)


# ---------------------------------------------------------------- static arguments

def test_static_argnums_and_argnames() -> None:
    def power(x: Any, n: int, *, scale: int = 1) -> Any:
        for _ in range(n - 1):
            x = x * x
        return x * scale

    for f in (anima.jit(power, static_argnums=1), anima.jit(power, static_argnames="n"),
              anima.jit(power, static_argnums=(1,), static_argnames=("scale",)), anima.jit(power, static_argnums=-1),
              functools.partial(anima.jit, static_argnums=1)(power)):
        equal(f(3.0, 2), 9.0)
        equal(f(3.0, 3), 81.0)
    by_name = anima.jit(power, static_argnames=("n", "scale"))
    equal(by_name(3.0, n=2), 9.0)
    equal(by_name(x=3.0, n=2, scale=5), 45.0)
    equal(by_name(3.0, 2, scale=5), 45.0)


def test_static_values_are_compared_by_value_and_type() -> None:
    f = Counted(lambda x, s: x * (2 if s is True else 3))
    g = anima.jit(f, static_argnums=1)
    equal((g(1.0, True), g(1.0, 1), g(1.0, 1.0)), (2.0, 3.0, 3.0))
    assert f.traces == 3
    g(1.0, True), g(2.0, 1)
    assert f.traces == 3
    g(1.0, "text"), g(1.0, "te" + "xt"), g(1.0, ("a", 2)), g(1.0, ("a", 2)), g(1.0, None)
    assert f.traces == 6

    @dataclasses.dataclass(frozen=True)
    class Config:
        n: int

    g(1.0, Config(1)), g(1.0, Config(1)), g(1.0, Config(2))
    assert f.traces == 8


def test_static_callables_and_dtypes() -> None:
    f = anima.jit(lambda fun, x, dtype: fun(x).astype(dtype), static_argnums=(0, 2))
    equal(f(jnp.sin, 0.5, jnp.float16), np.float16(np.sin(0.5)), 1e-3)
    assert f(jnp.cos, 0.5, "int32").dtype == np.int32


def test_errors_of_static_arguments() -> None:
    with pytest.raises(ValueError, match=r"[Nn]on-hashable static arg"):
        anima.jit(lambda x, n: x, static_argnums=1)(1.0, [1, 2])
    with pytest.raises(ValueError, match=r"[Nn]on-hashable static arg"):
        anima.jit(lambda x, n: x, static_argnums=1)(1.0, jnp.arange(2))
    with pytest.raises(ValueError, match=r"static_argnums=\(3,\)"):
        anima.jit(lambda x: x, static_argnums=3)(1.0)
    with pytest.raises(ValueError, match=r"invalid argnames {'q'}"):
        anima.jit(lambda x: x, static_argnames="q")(1.0)
    with pytest.raises(anima.errors.ConcretizationTypeError):
        anima.jit(lambda n: anima.jit(lambda x, k: x, static_argnums=1)(1.0, n))(3)
    with pytest.raises(TypeError, match="static_argnums"):
        anima.jit(lambda x: x, static_argnums="x")


# ---------------------------------------------------------------- what can be jitted

def test_methods() -> None:
    class Model:
        def __init__(self, k: float):
            self.k = k

        @functools.partial(anima.jit, static_argnums=0)
        def double(self, x: Any) -> Any:
            return self.k * x

        @staticmethod
        @anima.jit
        def static(x: Any) -> Any:
            return x + 1

        @classmethod
        def build(cls, x: Any) -> Any:
            return cls(float(anima.jit(lambda v: v + 1)(x)))

        @anima.jit
        def __call__(self, x: Any) -> Any:
            return x

    equal((Model(2.0).double(3.0), Model(5.0).double(3.0), Model.static(1.0)), (6.0, 15.0, 2.0))
    assert Model.build(1.0).k == 2.0
    bound = Model(4.0)
    equal(anima.jit(lambda x: bound.k * x)(2.0), 8.0)
    equal(anima.jit(bound.double)(2.0), 8.0)


def test_partials_lambdas_callables_and_builtins() -> None:
    equal(anima.jit(functools.partial(lambda a, b, c: a * b + c, 2.0, c=1.0))(3.0), 7.0)
    equal(anima.jit(functools.partial(jnp.add, 1))(2), 3)
    equal(anima.jit(jnp.sin)(0.5), np.sin(0.5))
    equal(anima.jit(jnp.maximum)(1.0, 2.0), 2.0)

    class Callable:
        def __call__(self, x: Any) -> Any:
            return x * 3

    equal(anima.jit(Callable())(2.0), 6.0)

    @anima.jit
    def documented(x: Any) -> Any:
        """A docstring."""
        return x

    assert documented.__name__ == "documented" and documented.__doc__ == "A docstring."
    assert documented.__wrapped__(2.0) == 2.0

    @anima.jit(static_argnames="n")
    def with_options(x: Any, n: int) -> Any:
        return x * n

    equal(with_options(2.0, n=4), 8.0)


def test_attributes_of_a_function_come_along() -> None:
    def f(x: Any) -> Any:
        return x + 1

    f.units, f.fun, f.lower = "metres", "shadowed", 1  # type: ignore[attr-defined]
    jitted = anima.jit(f)
    assert jitted.units == "metres"
    assert jitted.lower(1).kernel_count == 1
    assert anima.jit(anima.vmap(anima.grad(jnp.add)))(np.ones(3), np.ones(3)).tolist() == [1, 1, 1]
    assert anima.jit(jitted).__wrapped__ is jitted
    assert jitted(1) == 2


def test_arrays_that_loops_close_over_are_copied_once() -> None:
    x, ones = np.arange(6.0, dtype=np.float32), np.ones(6, np.float32)

    def loop(c: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, c: c * x, c)

    def f(c: Any) -> Any:
        first, second = loop(c), loop(c)
        x[0] = 7  # a program has what it saw
        third = loop(c)
        x[0] = 0
        return first, second, third

    consts = anima.make_jaxpr(f)(ones).consts
    assert [float(c[0]) for c in consts] == [0, 7]
    first, second, third = anima.jit(f)(ones)
    equal(first, x**2)
    equal(second, x**2)
    equal(third, np.array([49, *x[1:] ** 2]))
    x[1] = np.nan
    assert np.isnan(anima.jit(lambda c: (loop(c), loop(c)))(ones)[1][1])


def test_defaults_and_variadics() -> None:
    f = anima.jit(lambda x, y=2.0, *rest, k=3.0, **more: x + y + sum(rest) + k + sum(more.values()))
    equal((f(1.0), f(1.0, 5.0), f(1.0, 2.0, 3.0, 4.0), f(1.0, k=0.0, z=7.0)), (6.0, 9.0, 13.0, 10.0))


# ---------------------------------------------------------------- nesting

def test_nested_jits_are_one_program() -> None:
    inner = anima.jit(lambda x: jnp.sin(x) * 2)

    @anima.jit
    def outer(x: Any) -> Any:
        return inner(x) + inner(x + 1)

    equal(outer(0.5), 2 * np.sin(0.5) + 2 * np.sin(1.5))
    assert str(anima.make_jaxpr(outer)(0.5)).count("pjit") >= 2
    assert inner._cache_size() == 1


def test_closures_over_tracers() -> None:
    """jit inside grad inside vmap, each closing over what is traced outside."""
    @anima.jit
    def f(x: Any) -> Any:
        inner = anima.jit(lambda y: x * y + jnp.sum(x))
        return anima.grad(lambda z: inner(z) * anima.jit(lambda: z * x)())(x)

    def plain(x: float) -> float:
        return (x * x + x) * x + x * x * x  # d/dz (x z + x)(z x) at z = x

    equal(f(2.0), plain(2.0))
    equal(anima.vmap(f)(np.float32([1.0, 2.0])), np.array([plain(1.0), plain(2.0)]))
    equal(anima.vmap(anima.jit(anima.vmap(lambda a: anima.jit(lambda b: a * b)(a))))(np.ones((2, 3), "f4") * 3),
          np.full((2, 3), 9.0))
    scale = anima.jit(lambda x: anima.jit(lambda ys: [y * x for y in ys])([x, 2.0]))
    equal(scale(3.0), [9.0, 6.0])


def test_a_closure_is_not_kept_from_one_trace_to_the_next() -> None:
    jitted: list[Any] = []

    def f(x: Any) -> Any:
        if not jitted:
            jitted.append(anima.jit(lambda y: y * x))
        return jitted[0](2.0)

    equal(anima.grad(f)(3.0), 2.0)
    with pytest.raises(anima.errors.UnexpectedTracerError):
        anima.grad(f)(4.0)  # x of the first trace


def test_inline() -> None:
    f = anima.jit(lambda x: jnp.sin(x) * 2, inline=True)
    equal(anima.jit(lambda x: f(x) + 1)(0.5), 2 * np.sin(0.5) + 1)
    assert "pjit" not in str(anima.make_jaxpr(lambda x: f(x) + 1)(0.5))


def test_keep_unused() -> None:
    for keep in (False, True):
        f = anima.jit(lambda x, y: x * 2, keep_unused=keep)
        equal(f(3.0, np.ones(5)), 6.0)
        assert len(f.lower(3.0, np.ones(5)).compile().in_avals[0]) == 2


def test_derivatives_of_jitted_functions() -> None:
    @anima.jit
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(w @ x) ** 2), {"w": w}

    w, x = np.float32([[0.1, 0.2], [0.3, -0.4]]), np.float32([1.0, 2.0])
    (value, aux), g = anima.jit(anima.value_and_grad(loss, has_aux=True))(w, x)
    (value2, aux2), g2 = anima.value_and_grad(loss.__wrapped__, has_aux=True)(w, x)
    equal((value, aux, g), (value2, aux2, g2), 1e-5)
    equal(anima.jit(anima.hessian(lambda v: loss(w, v)[0]))(x), anima.hessian(lambda v: loss.__wrapped__(w, v)[0])(x),
          1e-4)


# ---------------------------------------------------------------- donation

def test_donated_arrays_are_deleted() -> None:
    f = anima.jit(lambda x, y: x + y, donate_argnums=0)
    x, y = jnp.arange(3.0), jnp.ones(3)
    equal(f(x, y), np.arange(3.0) + 1)
    assert x.is_deleted() and not y.is_deleted()
    with pytest.raises(RuntimeError, match="deleted"):
        x + 1
    with pytest.raises(RuntimeError, match="deleted"):
        f(x, y)
    assert "deleted" in repr(x)


def test_donation_by_name_of_trees_and_negative_numbers() -> None:
    state = {"a": jnp.ones(2), "b": [jnp.zeros(3)]}
    out = anima.jit(lambda s, x: (anima.tree.map(lambda v: v + x, s)), donate_argnums=(0,))(state, 2.0)
    equal(out, {"a": np.full(2, 3.0), "b": [np.full(3, 2.0)]})
    assert state["a"].is_deleted() and state["b"][0].is_deleted()
    named = jnp.ones(2)
    anima.jit(lambda x, y: x + y, donate_argnames="y")(1.0, y=named)
    assert named.is_deleted()
    named = jnp.ones(2)
    anima.jit(lambda x, y: x + y, donate_argnames=("y",))(1.0, named)
    assert named.is_deleted()
    last = jnp.ones(2)
    anima.jit(lambda x, y: x + y, donate_argnums=-1)(1.0, last)
    assert last.is_deleted()


def test_donation_spares_numpy_arrays_and_tracers() -> None:
    x = np.ones(3, np.float32)
    f = anima.jit(lambda v: v * 2, donate_argnums=0)
    equal(f(x), np.full(3, 2.0))
    equal(x, np.ones(3))
    equal(anima.jit(lambda v: f(v) + v)(x), np.full(3, 3.0))
    equal(anima.vmap(f)(jnp.ones(3)), np.full(3, 2.0))


def test_in_place_updates_of_donated_arrays() -> None:
    step = anima.jit(lambda x, i: x.at[i].add(1.0), donate_argnums=0)
    x = jnp.zeros(5)
    for i in range(10):
        x = step(x, i % 5)
    equal(x, np.full(5, 2.0))


def test_static_and_donated_are_exclusive() -> None:
    with pytest.raises(ValueError, match=r"static_argn.*donate_argn.*cannot intersect"):
        anima.jit(lambda x: x, static_argnums=0, donate_argnums=0)(1.0)


# ---------------------------------------------------------------- modes

def test_disable_jit() -> None:
    f = Counted(lambda x: x * 2)
    g = anima.jit(f)
    seen = []
    h = anima.jit(lambda x: seen.append(float(x)) or x)
    with anima.disable_jit():
        g(1.0), g(1.0)
        h(3.0)
    assert f.traces == 2 and g._cache_size() == 0 and seen == [3.0]
    with pytest.raises(anima.errors.ConcretizationTypeError):
        h(3.0)


def test_reentrancy() -> None:
    """A function that calls itself, and one that calls jit while it is traced."""
    @anima.jit
    def countdown(x: Any) -> Any:
        return countdown(x[1:]) + x[0] if x.shape[0] > 1 else x[0]

    equal(countdown(np.arange(5.0)), 10.0)
    assert countdown._cache_size() == 5

    @anima.jit
    def outer(x: Any) -> Any:
        concrete = anima.jit(lambda: jnp.arange(4).sum())()
        return x + concrete

    equal(outer(1.0), 7.0)


def test_threads_share_a_jitted_function() -> None:
    f = anima.jit(lambda x, k: jnp.sum(jnp.sin(x) * k) + jnp.max(x))

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            x, k = rng.normal(size=rng.integers(1, 6)).astype(np.float32), np.float32(rng.normal())
            np.testing.assert_allclose(f(x, k), np.sum(np.sin(x) * k) + x.max(), rtol=1e-4, atol=1e-4)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
    assert f._cache_size() == 5


def test_threads_trace_apart() -> None:
    """Tracing in one thread does not disturb another one that waits in the middle of it."""
    inside, go = threading.Event(), threading.Event()
    results: dict[str, Any] = {}

    def slow(x: Any) -> Any:
        inside.set()
        assert go.wait(10)
        return x * 2

    def first() -> None:
        results["first"] = anima.jit(slow)(3.0)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    results["eager"] = jnp.sin(1.0) + 1
    results["second"] = anima.jit(lambda x: anima.grad(jnp.sin)(x))(0.5)
    go.set()
    thread.join(10)
    equal(results, {"first": 6.0, "eager": np.sin(1.0) + 1, "second": np.cos(0.5)})


def test_programs_are_freed() -> None:
    def make() -> weakref.ref:
        table = jnp.arange(1000.0)
        f = anima.jit(lambda x: x + table)
        f(1.0)
        anima.grad(lambda x: f(x).sum())(1.0)
        return weakref.ref(f)

    gone = make()
    import gc
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------- failures leave everything usable

def test_exceptions_leave_everything_usable() -> None:
    class Mine(Exception):
        pass

    def fail(x: Any) -> Any:
        raise Mine("from inside")

    for transform in (anima.jit, anima.grad, anima.vmap, lambda f: anima.jit(anima.vmap(anima.grad(f))), anima.hessian,
                      lambda f: lambda x: anima.jvp(f, (x,), (x,)), lambda f: lambda x: lax.cond(True, f, f, x),
                      lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)):
        with pytest.raises(Mine, match="from inside"):
            transform(fail)(jnp.ones(3))
        equal(jnp.ones(2) + 1, np.full(2, 2.0))  # eager again
        equal(anima.jit(lambda x: x + 1)(1.0), 2.0)
        equal(anima.grad(jnp.sin)(0.0), 1.0)


def test_wrong_calls_fail_before_and_after() -> None:
    f = anima.jit(lambda x, y: x + y)
    for _ in range(2):
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            f(1.0)
        with pytest.raises(TypeError, match="takes 2 positional arguments but 3"):
            f(1.0, 2.0, 3.0)
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            f(1.0, 2.0, z=3.0)
        with pytest.raises(TypeError, match=r"problematic value is of type <class 'str'>.*at path y"):
            f(1.0, "two")
        with pytest.raises(TypeError, match=r"at path x\['a'\]\[1\]|at path x\[.a.\]\[1\]"):
            f({"a": [1, "b"]}, 1.0)
        with pytest.raises(TypeError, match="incompatible shapes"):
            f(np.ones(2), np.ones(3))
        equal(f(1.0, 2.0), 3.0)
    with pytest.raises(TypeError, match="not a valid Anima type"):
        anima.jit(lambda x: "hello")(1.0)
    with pytest.raises(TypeError, match="Expected a callable value, got 3"):
        anima.jit(3)
    with pytest.raises(OverflowError, match="too large"):
        anima.jit(lambda x: x)(2**40)

    def generator(x: Any) -> Any:
        yield x

    with pytest.raises(TypeError, match="generator"):
        anima.jit(generator)


@pytest.mark.parametrize("leak, use", [
    (lambda box: anima.jit(lambda x: (box.append(x + 1), x)[1])(1.0), lambda x: x + 1),
    (lambda box: anima.grad(lambda x: (box.append(x), x * 2)[1])(1.0), lambda x: anima.jit(lambda y: y + x)(1.0)),
    (lambda box: anima.vmap(lambda x: (box.append(x), x)[1])(jnp.ones(3)), lambda x: jnp.sin(x)),
    (lambda box: anima.jit(lambda x: (box.append(x), x)[1])(1.0), lambda x: anima.grad(lambda y: x * y)(1.0)),
    (lambda box: anima.jvp(lambda x: (box.append(x), x)[1], (1.0,), (1.0,)),
     lambda x: anima.vmap(lambda y: x * y)(jnp.ones(2))),
])
def test_leaked_tracers_are_recognised(leak: Callable[[list], Any], use: Callable[[Any], Any]) -> None:
    box: list[Any] = []
    leak(box)
    with pytest.raises(anima.errors.UnexpectedTracerError, match="escape the scope"):
        use(box[0])
    equal(anima.jit(lambda x: x + 1)(1.0), 2.0)


def test_shapes_of_leaks_can_be_looked_at() -> None:
    box: list[Any] = []
    anima.jit(lambda x: (box.append(x), x)[1])(jnp.ones((2, 3)))
    assert box[0].shape == (2, 3) and box[0].dtype == np.float32 and "float32[2,3]" in repr(box[0])


def test_debug_nans_names_the_operation() -> None:
    with anima.debug_nans(True):
        with pytest.raises(FloatingPointError, match=r"nan.* div"):
            anima.jit(lambda x: x / x)(jnp.float32(0))
        with pytest.raises(FloatingPointError, match=r"nan.* log"):
            jnp.log(jnp.float32(-1.0))
        equal(anima.jit(lambda x: x / 2)(jnp.float32(1)), 0.5)
    assert np.isnan(anima.jit(lambda x: x / x)(jnp.float32(0)))
    with anima.debug_infs(True), pytest.raises(FloatingPointError, match="inf"):
        anima.jit(lambda x: 1 / x)(jnp.float32(0))


def test_eval_shape_of_a_jitted_function_knows_its_static_arguments() -> None:
    f = anima.jit(lambda x, n: jnp.ones(n) * x, static_argnums=1)
    assert anima.eval_shape(f, 1.0, 3).shape == (3,)
    assert anima.eval_shape(f, anima.ShapeDtypeStruct((), "float32"), 3).shape == (3,)


@pytest.mark.parametrize("options", [{"donate_argnums": 5}, {"donate_argnums": (0, -3)}, {"donate_argnames": "z"}])
def test_what_is_donated_are_arguments(options: Any) -> None:
    with pytest.raises(ValueError, match="donate_arg"):
        anima.jit(lambda x, y: x + y, **options)
    assert anima.jit(lambda *xs: xs[0] + 1, donate_argnums=5)(1.0) == 2.0
