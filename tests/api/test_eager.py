"""What is remembered of calls outside of `jit` is found again for equal calls alone.

Calls that differ from each other in one thing (a type, a weak type, a number that is equal and another, a name, how
many arguments there are, an option) are made in turn, over and over: each gives what it gives where nothing is
remembered, bit for bit.
"""

from __future__ import annotations

import random as chance
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random
from anima.api import eager
from anima.config import config
from anima.core.trace import EVAL
from anima.runtime import calling

Call = Callable[[], Any]
ERRORS = (TypeError, ValueError, IndexError, OverflowError, ArithmeticError, RuntimeError, NotImplementedError)


def bits(value: np.ndarray) -> bytes:
    """Those of the elements, with one NaN for all."""
    return np.where(value == value, value, np.full_like(value, np.nan)).tobytes() if value.dtype.kind in "fcV" else (
        value.tobytes())


def outcome(call: Call) -> tuple[Any, ...]:
    """The types and bits of all results, or the error; and the warnings, but those of NumPy's casts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        try:
            out = call()
        except ERRORS as error:
            return type(error).__name__, *sorted({w.category.__name__ for w in caught})
    leaves, structure = anima.tree.flatten(out)
    found = [(type(x).__name__, str(x.aval), bits(np.asarray(x))) for x in leaves]
    return str(structure), *found, *sorted({w.category.__name__ for w in caught})


def alone(call: Call, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """The outcome where nothing is remembered."""
    with monkeypatch.context() as patch:
        patch.setattr(type(EVAL), "learns", lambda self, key: False)
        EVAL.forget()
        return outcome(call)


def check(calls: dict[str, Call], monkeypatch: pytest.MonkeyPatch, rounds: int = 4) -> None:
    calling._module()  # else native code waits for more calls
    wanted = {name: alone(call, monkeypatch) for name, call in calls.items()}
    names = [*calls]
    for seed in range(rounds):
        chance.Random(seed).shuffle(names)
        for name in names:
            assert outcome(calls[name]) == wanted[name], name


X = np.array([[1.5, -0.0, np.nan], [0.0, -2.5, np.inf]], np.float32)
C = np.array([[True, False, True], [False, False, True]])
with anima.enable_x64(False):
    A, B, M = jnp.asarray(X), jnp.asarray(X[::-1] * 3), jnp.asarray(C)
    V = jnp.asarray(np.array([3.0, 1.0, 2.0], np.float32))
    SCALAR, WEAK = jnp.asarray(np.float32(2)), jnp.asarray(2.0)
    OF_TYPES = {f"{d} {s}": jnp.asarray(np.arange(np.prod(s)).reshape(s)).astype(d)
                for d in ("float32", "int32", "bool", "float16", "bfloat16", "complex64", "uint8")
                for s in ((2, 3), (3, 2), (6,), (1, 3))}
    OF_TYPES |= {"strong": SCALAR, "weak": WEAK, "weak int": jnp.asarray(2), "flag": jnp.asarray(True)}

NUMBERS: list[Any] = [0, 1, True, False, 0.0, -0.0, 1.0, -1, 1j, complex(1, -0.0), complex(1, 0.0), complex(-0.0, 1),
                      complex(0.0, 1), complex(-0.0, -0.0), 0j, float("nan"), float("inf"), None, np.float32(1),
                      np.int32(1), np.bool_(True), np.float32(-0.0), "1", (1,), [1], (True,), (1.0,), 2**31, 2**40]
PLACES: list[Any] = [0, 1, True, False, None, ..., (0, 1), (0, True), (0, False), (True, 1), (0, None), (0,), (1, 0),
                     slice(1), slice(True), slice(0, 1), slice(None, None, 2), slice(None, None, -1), (slice(1), 0),
                     (0, slice(1)), (..., 0), (0, ...), 0.0, 1.0, (0.0, 1), np.int32(1), np.bool_(True), -1, (-1, 1),
                     ((0, 1),), ((False, True),), [0, 1], [False, True], [True, False], 7]
ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}), ((0,), {}), ((1,), {}), ((True,), {}), ((None,), {}), ((1.0,), {}), (((0, 1),), {}), (((1, 0),), {}),
    (((0,),), {}), (((True,),), {}), ((-1,), {}), ((), {"axis": 0}), ((), {"axis": 1}), ((), {"axis": (0, 1)}),
    ((), {"keepdims": True}), ((), {"keepdims": 1}), ((), {"keepdims": False}), ((), {"dtype": np.int32}),
    ((), {"dtype": np.float32}), ((), {"dtype": "float16"}), ((), {"dtype": bool}), ((), {"ddof": 1}),
    ((), {"ddof": 0}), ((), {"ddof": 1.0}), ((), {"ddof": 0.5}), ((), {"correction": 1}), ((), {"initial": 1}),
    ((), {"initial": 1.0}), ((), {"initial": -0.0}), ((), {"where": M}), ((), {"where": M[:, ::-1]}),
    ((), {"where": True}), ((), {"axis": 1, "keepdims": True}), ((), {"keepdims": True, "axis": 1}),
    ((1,), {"keepdims": True}), ((1, None), {"keepdims": True}), ((), {"axis": 1, "initial": 1}),
    ((), {"initial": 1, "axis": 1, "where": M}), ((0,), {"ddof": 1}), ((1,), {"ddof": 0})]
REDUCING = [jnp.sum, jnp.std, jnp.mean, jnp.max, jnp.argmax, jnp.any, jnp.prod, jnp.cumsum, jnp.ptp,
            jnp.count_nonzero]


@pytest.mark.parametrize("fun, compiles", [*((f, False) for f in REDUCING), *((f, True) for f in REDUCING[:2]),
                                           (jnp.argmax, True)], ids=lambda f: getattr(f, "__name__", str(f)))
def test_arguments_by_place_and_name(fun: Any, compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiles:
        monkeypatch.setattr("anima.api.eager._WORTH", 0.0)
    calls: dict[str, Call] = {f"{a} {k}": (lambda a=a, k=k: fun(B, *a, **k)) for a, k in ARGUMENTS}
    calls |= {name: (lambda x=x: fun(x)) for name, x in OF_TYPES.items()}
    check(calls, monkeypatch)


BESIDE: dict[str, Callable[[Any], Any]] = {
    "where": lambda n: jnp.where(M, A, n), "where, first": lambda n: jnp.where(M, n, A),
    "clip": lambda n: jnp.clip(A, n), "clip, above": lambda n: jnp.clip(A, None, n),
    "full": lambda n: jnp.full_like(A, n),
    "add": lambda n: A + n, "subtract": lambda n: n - A, "power": lambda n: V ** n,
    "maximum": lambda n: jnp.maximum(A, n),
    "pad": lambda n: jnp.pad(V, 1, constant_values=n), "pad by": lambda n: jnp.pad(V, n),
    "roll": lambda n: jnp.roll(A, n),
    "roll along": lambda n: jnp.roll(A, 1, n), "sum from": lambda n: jnp.sum(A, initial=n),
    "nan to": lambda n: jnp.nan_to_num(A, nan=n), "equal": lambda n: jnp.isclose(A, B, atol=n),
    "repeat": lambda n: jnp.repeat(V, n), "line": lambda n: jnp.linspace(V, n, 3), "set": lambda n: A.at[0].set(n),
    "divmod": lambda n: divmod(B, n), "hypot": lambda n: jnp.hypot(V, n), "expand": lambda n: jnp.expand_dims(A, n),
    "take": lambda n: jnp.take(A, n), "quantile": lambda n: jnp.quantile(V, n),
    "select": lambda n: jnp.select([M], [A], n)}


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("compiles", [False, True])
def test_numbers_that_are_equal_and_others(name: str, compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiles:
        monkeypatch.setattr("anima.api.eager._WORTH", 0.0)
    fun, given = BESIDE[name], [*NUMBERS, SCALAR, WEAK, A[0, 0], V]
    if name in ("pad by", "repeat"):
        given = [n for n in given if type(n) is not int or n < 9]
    check({f"{k} {n!r}": (lambda n=n: fun(n)) for k, n in enumerate(given)}, monkeypatch)


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Call] = {f"{p!r}": (lambda p=p: B[p]) for p in PLACES}
    calls |= {f"{p!r} of {name}": (lambda x=x, p=p: x[p]) for p in (0, True, (0, 1)) for name, x in OF_TYPES.items()}
    calls |= {f"set {p!r}": (lambda p=p: B.at[p].set(7)) for p in PLACES}
    check(calls, monkeypatch)


TWO = [jnp.add, jnp.subtract, jnp.greater, jnp.true_divide, jnp.where, jnp.outer, jnp.arctan2, jnp.copysign, jnp.dot,
       jnp.cross, jnp.isclose, jnp.float_power]


@pytest.mark.parametrize("fun", TWO, ids=lambda f: f.__name__)
def test_two_arrays(fun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all pairs of types, in both orders, and the same array twice."""
    given = {name: x for name, x in OF_TYPES.items() if " (3, 2)" not in name and "uint8" not in name}
    if fun is jnp.where:
        calls: dict[str, Call] = {f"{a}, {b}": (lambda x=x, y=y: jnp.where(M, x, y)) for a, x in given.items()
                                  for b, y in given.items()}
    else:
        calls = {f"{a}, {b}": (lambda x=x, y=y: fun(x, y)) for a, x in given.items() for b, y in given.items()}
    check(calls, monkeypatch, rounds=3)


@pytest.mark.parametrize("fun", [*(f for f in TWO if f is not jnp.where), jnp.maximum, jnp.hypot,
                                 lambda x, y: jnp.where(M, x, y), lambda x, y: x - y,
                                 lambda x, y: jnp.clip(x, y, 2), lambda x, y: jnp.linspace(x, y, 3),
                                 lambda x, y: jnp.stack([x, y]), lambda x, y: jnp.divmod(x, y)[1]])
@pytest.mark.parametrize("compiles", [False, True])
def test_one_array_twice_and_then_two(fun: Any, compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is remembered from before is of other functions than these: the first calls are of one array."""
    anima.clear_caches()
    if compiles:
        monkeypatch.setattr("anima.api.eager._WORTH", 0.0)
    one, other = (jnp.asarray(np.sin(np.arange(6, dtype=np.float32) * n).reshape(2, 3) + n) for n in (1, 2))
    if fun in (jnp.dot, jnp.cross):
        one, other = one[0], other[1]
    pairs = [(one, one), (one, other), (other, other), (other, one)]
    wanted = [alone(lambda pair=pair: fun(*pair), monkeypatch) for pair in pairs]
    assert len(set(wanted)) > 1
    for _ in range(2):
        for pair, want in zip(pairs, wanted, strict=True):
            for _ in range(4):
                assert outcome(lambda pair=pair: fun(*pair)) == want


FORMS: dict[str, Callable[..., Any]] = {
    "transposed": lambda x: jnp.swapaxes(x, 0, 1), "moved": lambda x: jnp.moveaxis(x, 0, 1), "flip": jnp.flip,
    "ravel": lambda x: jnp.ravel(x, order="F"), "diagonal": jnp.diagonal,
    "broadcast": lambda x: jnp.broadcast_to(x, (4, 2, 3)),
    "steps": lambda x: x[:, ::2], "real": jnp.real, "same": lambda x: jnp.reshape(x, (2, 3)), "turned": jnp.rot90,
    "atleast": jnp.atleast_2d, "astype": lambda x: x.astype(np.float32), "squeeze": lambda x: jnp.squeeze(x[None], 0)}


@pytest.mark.parametrize("name", FORMS)
def test_results_are_arrays_like_any_other(name: str) -> None:
    """In memory of their own, row-major, which nobody can write to; and what was given stays as it was."""
    fun, x = FORMS[name], jnp.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    before = np.array(x)
    for _ in range(5):
        out = fun(x)
        value = np.asarray(out)
        assert out.dtype == value.dtype and out.shape == value.shape == out.aval.shape
        assert not value.flags.writeable and value.flags.c_contiguous
        np.testing.assert_array_equal(anima.jit(lambda y: y * 2, donate_argnums=0)(fun(x) + 0), value * 2)
        np.testing.assert_array_equal(x, before)
    moved = anima.jit(lambda y: y + 1, donate_argnums=0)
    for _ in range(3):
        out = fun(x)
        wanted = np.asarray(out) + 1
        if out is not x:
            np.testing.assert_array_equal(moved(out), wanted)
        np.testing.assert_array_equal(x, before)


OPTIONS: dict[str, list[Any]] = {
    "enable_x64": [True], "numpy_dtype_promotion": ["strict"], "numpy_rank_promotion": ["raise", "warn"],
    "debug_nans": [True], "debug_infs": [True], "disable_jit": [True], "no_execution": [True],
    "threefry_partitionable": [not config.threefry_partitionable], "default_prng_impl": ["rbg"],
    "high_dynamic_range_gumbel": [True], "random_seed_offset": [3], "check_static_indices": [True]}
UNDER_OPTIONS: dict[str, Call] = {
    "sum": lambda: jnp.sum(OF_TYPES["int32 (2, 3)"]), "log": lambda: jnp.log(A - 3), "add": lambda: A + V,
    "mixed": lambda: A + OF_TYPES["int32 (2, 3)"], "where": lambda: jnp.where(M, A, 1), "over": lambda: V / 0,
    "count": lambda: jnp.arange(3) + 1, "std": lambda: jnp.std(V), "place": lambda: V[2], "beyond": lambda: V[5],
    "clip": lambda: jnp.clip(V, 0, 1.5), "wide": lambda: jnp.asarray(np.arange(2.0)) * 2,
    "one hot": lambda: anima.nn.one_hot(jnp.asarray(np.array([0, 2], np.int32)), 3),
    "uniform": lambda: random.uniform(random.key(7), (3,)), "normal": lambda: random.normal(random.key(7), (3,)),
    "gumbel": lambda: random.gumbel(random.key(7), (3,)), "bits": lambda: random.bits(random.key(7), (3,)),
    "split": lambda: random.key_data(random.split(random.key(7), 3)),
    "randint": lambda: random.randint(random.key(7), (3,), 0, 9),
    "fold": lambda: random.key_data(random.fold_in(random.key(7), 3))}


def test_options_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a `with` and for good, from any option to any other."""
    settings = [(name, value) for name, others in OPTIONS.items() for value in (config.read(name), *others)]
    wanted = {}
    for name, value in settings:
        with config.option(name)(value):
            wanted |= {(name, value, call): alone(UNDER_OPTIONS[call], monkeypatch) for call in UNDER_OPTIONS}
    for seed in range(3):
        chance.Random(seed).shuffle(settings)
        for name, value in settings:
            with config.option(name)(value):
                for call in UNDER_OPTIONS:
                    for _ in range(2):
                        assert outcome(UNDER_OPTIONS[call]) == wanted[name, value, call], (name, value, call)


K = random.key(5)
ONE, MANY = np.float32(0.5), jnp.asarray(np.array([0.25, 0.5, 0.75], np.float32))
DRAWS: list[Callable[[Any], Any]] = [
    lambda k: random.normal(k), lambda k: random.normal(k, ()), lambda k: random.normal(k, (3,)),
    lambda k: random.normal(k, [3]), lambda k: random.normal(k, (3, 1)), lambda k: random.normal(k, dtype="float16"),
    lambda k: random.normal(k, (3,), "float16"), lambda k: random.normal(k, (3,), complex),
    lambda k: random.uniform(k, (3,)), lambda k: random.uniform(k, (3,), minval=0),
    lambda k: random.uniform(k, (3,), None, 0),
    lambda k: random.uniform(k, (3,), None, 0.0, 2), lambda k: random.uniform(k, (3,), None, 0.0, 2.0),
    lambda k: random.uniform(k, (3,), maxval=0.5), lambda k: random.uniform(k, (3,), maxval=ONE),
    lambda k: random.uniform(k, (3,), maxval=MANY), lambda k: random.uniform(k, (3,), minval=-0.0, maxval=MANY),
    lambda k: random.bernoulli(k), lambda k: random.bernoulli(k, 0.5), lambda k: random.bernoulli(k, MANY),
    lambda k: random.bernoulli(k, 0.25, (3,)), lambda k: random.bernoulli(k, 0.25, (3,), mode="high"),
    lambda k: random.randint(k, (3,), 0, 9), lambda k: random.randint(k, (3,), 0, 9, "uint8"),
    lambda k: random.randint(k, (3,), 0, np.int8(9)), lambda k: random.randint(k, (3,), 0, 300, "uint8"),
    lambda k: random.randint(k, (3,), False, True), lambda k: random.randint(k, (3,), np.array([0, 1, 2]), 9),
    lambda k: random.choice(k, 5), lambda k: random.choice(k, 5, (2,)), lambda k: random.choice(k, 5, (2,), False),
    lambda k: random.choice(k, 5, (2,), 0), lambda k: random.choice(k, MANY), lambda k: random.choice(k, MANY, (2,)),
    lambda k: random.choice(k, 3, (2,), True, MANY), lambda k: random.choice(k, 3, (2,), False, MANY),
    lambda k: random.gumbel(k, (3,)), lambda k: random.gumbel(k, (3,), mode="high"), lambda k: random.gamma(k, 2),
    lambda k: random.gamma(k, 2.0), lambda k: random.gamma(k, MANY), lambda k: random.gamma(k, 2, (3,)),
    lambda k: random.permutation(k, 3), lambda k: random.permutation(k, MANY), lambda k: random.poisson(k, 2),
    lambda k: random.poisson(k, 2.0), lambda k: random.poisson(k, 2.0, (3,)),
    lambda k: random.poisson(k, 2.0, (3,), "uint8"),
    lambda k: random.categorical(k, MANY), lambda k: random.categorical(k, MANY, 0),
    lambda k: random.categorical(k, MANY, -1, (4,)),
    lambda k: random.categorical(k, MANY, shape=(2,), replace=False), lambda k: random.truncated_normal(k, -1, 1),
    lambda k: random.truncated_normal(k, -1.0, 1.0), lambda k: random.truncated_normal(k, -1, MANY)]


WARNING: dict[str, tuple[str, Call]] = {
    "a type that there is not": ("numpy_dtype_promotion", lambda: jnp.sum(A, dtype="float64")),
    "a cast": ("numpy_dtype_promotion", lambda: A.astype("float64")),
    "like another": ("numpy_dtype_promotion", lambda: jnp.full_like(A, 1, dtype="int64")),
    "no integers": ("numpy_dtype_promotion", lambda: anima.nn.one_hot(V, 3)),
    "complex": ("numpy_dtype_promotion", lambda: OF_TYPES["complex64 (6,)"].astype("float32")),
    "ranks": ("numpy_rank_promotion", lambda: jnp.where(A > 0, A, V)),
    "ranks, one operation": ("numpy_rank_promotion", lambda: jnp.hypot(A, V)),
    "a raw key": ("legacy_prng_key", lambda: random.fold_in(random.PRNGKey(0), 1))}


@pytest.mark.parametrize("name", WARNING)
def test_warnings_are_given_every_time(name: str) -> None:
    calling._module()  # else native code waits for more calls
    option, call = WARNING[name]
    with config.option(option)("standard" if option == "numpy_dtype_promotion" else "warn"):
        for _ in range(8):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
            assert caught and all(w.filename == __file__ for w in caught)


def test_nothing_is_traced_where_nothing_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is to be compiled by now goes the way that it went so far, until it may be."""
    monkeypatch.setattr(eager, "_WORTH", 0.0)
    anima.clear_caches()
    x = jnp.asarray(np.linspace(-1, 1, 6001, dtype=np.float32))
    wanted = np.clip(np.asarray(x), -0.5, 0.25).tobytes()
    for no_tracing in (True, False, True):
        with config.option("no_tracing")(no_tracing):
            for _ in range(4):
                assert np.asarray(jnp.clip(x, -0.5, 0.25)).tobytes() == wanted


def test_samplers_in_turn() -> None:
    wanted = [outcome(lambda draw=draw: anima.jit(draw)(K)) for draw in DRAWS]
    for seed in range(2):
        order = [*range(len(DRAWS))]
        chance.Random(seed).shuffle(order)
        for n in order:
            assert outcome(lambda n=n: DRAWS[n](K)) == wanted[n], n


GOOD, BAD = (jnp.asarray(np.array(v, np.float32)) for v in ([1.0, 2.0, 3.0], [-1.0, 0.0, np.inf]))
CHECKED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "log": ("debug_nans", lambda x: jnp.log(x) * 2), "where": ("debug_nans", lambda x: jnp.where(x > 5, x, x - x)),
    "std": ("debug_nans", lambda x: jnp.std(x)), "over": ("debug_infs", lambda x: jnp.divide(1, x)),
    "sum": ("debug_infs", lambda x: jnp.sum(x)), "clip": ("debug_infs", lambda x: jnp.clip(x, 0)),
    "norm": ("debug_infs", lambda x: jnp.linalg.norm(x)), "mean": ("debug_infs", jnp.mean)}


@pytest.mark.parametrize("name", CHECKED)
def test_what_is_found_the_first_time_is_found_every_time(name: str) -> None:
    """Though it was fine for the values of the calls before."""
    option, fun = CHECKED[name]
    for _ in range(5):
        fun(GOOD)
        fun(BAD)
    with config.option(option)(True):
        for _ in range(2):
            for _ in range(6):
                fun(GOOD)
            for _ in range(6):
                with pytest.raises(FloatingPointError):
                    fun(BAD)


L, N = (jnp.asarray(np.random.default_rng(k).normal(size=(33, 40)).astype(np.float32)) for k in (1, 2))
ROUNDED: dict[str, Call] = {
    "trace": lambda: jnp.trace(L, 1), "einsum": lambda: jnp.einsum("ij,ij->", L, N),
    "rows": lambda: jnp.einsum("ij->j", L),
    "einsum, moved": lambda: jnp.einsum("ij,kj->ki", L, N), "tensordot": lambda: jnp.tensordot(L, N, ((0, 1), (0, 1))),
    "average": lambda: jnp.average(L, 0, N[:, 0]), "norm": lambda: jnp.linalg.norm(L, axis=(0, 1)),
    "columns": lambda: jnp.linalg.norm(L, axis=0), "cov": lambda: jnp.cov(L[:5]), "vdot": lambda: jnp.vdot(L, N),
    "moved": lambda: jnp.sum(jnp.moveaxis(L, 0, 1)), "var": lambda: jnp.var(L, 0), "cumsum": lambda: jnp.cumsum(L, 0),
    "product": lambda: jnp.matmul(L.T, N), "percentile": lambda: jnp.percentile(L, 30, 0),
    "inner": lambda: jnp.inner(L, N),
    "convolve": lambda: jnp.convolve(L[0], N[0]), "turned": lambda: jnp.mean(jnp.rot90(L), 1),
    "outer": lambda: jnp.outer(L, N)}


def test_sums_are_rounded_alike_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    check(ROUNDED, monkeypatch, rounds=5)


def test_programs_that_are_forgotten_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """More kinds of calls than are remembered give what each gave."""
    key = random.key(3)
    wants = [np.asarray(random.normal(key, (n,))) for n in range(1, 8)]
    monkeypatch.setattr(eager, "_MOST_KNOWN", 2)
    for _ in range(2):
        for n, want in enumerate(wants, 1):
            np.testing.assert_array_equal(random.normal(key, (n,)), want)


@pytest.mark.parametrize("call", [lambda x: x.reshape(-1), lambda x: x[1:], lambda x: x[None], lambda x: x[0],
                                  lambda x: x[..., 1:2, :]], ids=range(5))
def test_large_views_stay_views(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code would copy them."""
    monkeypatch.setattr(eager, "_WORTH", 0.0)
    large, small = jnp.zeros((2, eager._VIEW)), jnp.zeros((2, 5))
    for _ in range(8):
        assert np.may_share_memory(call(large)._value, large._value)
        assert call(small).shape == call(np.zeros((2, 5))).shape


def test_indices_that_are_equal_and_others() -> None:
    x = jnp.arange(12.0).reshape(3, 4)
    for _ in range(6):
        for index, shape in ((1, (4,)), (True, (1, 3, 4)), (slice(0, 1), (1, 4)), (slice(False, True), (1, 4)),
                             (slice(None), (3, 4)), ((1, 0), ()), ((True, 0), (1, 4)), ((1, False), (0, 4)),
                             ((slice(0, 1), 0), (1,)), ((0, None), (1, 4)), (None, (1, 3, 4)), (..., (3, 4))):
            assert x[index].shape == np.asarray(x)[index].shape == shape, index


def test_deleted_operands_of_calls_that_are_known() -> None:
    call = lambda x: jnp.sort(x[1:].reshape(-1))
    for _ in range(200):
        call(jnp.zeros((3, 4)))
    gone = jnp.zeros((3, 4))
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        call(gone)


# ---------------------------------------------------------------- numbers that change

TAKE_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "clip": lambda x, s: jnp.clip(x, -1.0, s), "clip both": lambda x, s: jnp.clip(x, min=-s, max=s),
    "where": lambda x, s: jnp.where(x > s, s, x), "isclose": lambda x, s: jnp.isclose(x, s, rtol=0.5),
    "allclose": lambda x, s: jnp.allclose(x, s, atol=s), "floor_divide": lambda x, s: x // s,
    "reflected": lambda x, s: s // (x + 9), "remainder": lambda x, s: jnp.remainder(x, s),
    "fmod": lambda x, s: jnp.fmod(x, s), "divmod": lambda x, s: divmod(x, s)[1], "fmax": jnp.fmax,
    "heaviside": jnp.heaviside, "copysign": lambda x, s: jnp.copysign(x, -s), "append": jnp.append, "dot": jnp.dot,
    "hypot": jnp.hypot, "logical_and": jnp.logical_and, "searchsorted": lambda x, s: jnp.searchsorted(jnp.sort(x), s),
    "digitize": lambda x, s: jnp.digitize(s, jnp.sort(x)), "take": lambda x, s: jnp.take(x, int(s)),
    "true_divide": lambda x, s: jnp.true_divide(x, s)}


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "uint8"])
@pytest.mark.parametrize("name", TAKE_NUMBERS)
def test_numbers_that_change_are_what_they_were(name: str, dtype: str) -> None:
    call = TAKE_NUMBERS[name]
    for size in (33, 6000):
        x = jnp.asarray(np.random.default_rng(0).normal(size=size) * 4).astype(dtype)
        for kind in (float, int):
            for k in range(3 * eager._CHANGING):
                number = kind(0.1 + 0.7 * k) + (kind is int)
                got = call(x, number)
                with anima.disable_jit():
                    want = call(x, number)
                assert (got.dtype, got.weak_type, got.shape) == (want.dtype, want.weak_type, want.shape)
                np.testing.assert_array_equal(np.asarray(got).astype(complex), np.asarray(want).astype(complex))


def test_numbers_that_change_become_operands() -> None:
    met: list[Any] = []

    def body(x: Any, low: Any, high: Any = 9) -> Any:
        met.append((low, high))
        return anima.lax.clamp(low * jnp.ones_like(x), x, high * jnp.ones_like(x))

    fun, x = eager.of_numbers(body), jnp.arange(8.0)
    for k in range(40):
        assert fun(x, k, high=k + 0.5).tolist() == np.clip(np.arange(8.0), k, k + 0.5).tolist()
    assert eager._CHANGING < len(met) < 3 * eager._CHANGING and not isinstance(met[-1][0], int)  # then, a tape
    met.clear()
    fun = eager.repeated(body)
    for k in range(40):
        fun(x, k)
    assert len(met) == 40 and met[-1] == (39, 9)
