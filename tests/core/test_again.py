"""What is remembered of operations and functions: the second, third and hundredth call give what the first gave."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, random
from anima.core import replay, ways
from anima.core.trace import EVAL
from anima.numpy import elementwise
from anima.ops.family import ELEMENTWISE
from anima.runtime import calling, single

RNG = np.random.default_rng(0)
SHAPES = [((), ()), ((1,), (1,)), ((17,), (17,)), ((3, 5), (5,)), ((3, 5), (3, 1)), ((3, 1), (1, 5)), ((4,), ()),
          ((), (4,)), ((2, 3, 4), (3, 1)), ((2, 3, 4), (2, 1, 4)), ((2, 3, 4, 2), (2, 3, 4, 1)), ((0, 3), (3,)),
          ((1, 1), (7, 1)), ((600, 500), (500,)), ((600, 1), (600, 500))]


@pytest.fixture(autouse=True)
def loaded() -> None:
    calling._module()  # else native code waits for more calls


@pytest.fixture
def x64() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    values = RNG.integers(-9, 9, shape) if np.dtype(dtype).kind in "ib" else RNG.normal(0, 3, shape)
    return np.abs(values).astype(dtype) if np.dtype(dtype).kind == "u" else np.asarray(values).astype(dtype)


def same(found: Any, wanted: Any) -> None:
    assert (found.dtype, found.shape, found.weak_type) == (wanted.dtype, wanted.shape, wanted.weak_type)
    assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


def generally(fun: Callable[..., Any], *args: Any) -> Any:
    """`fun(*args)` with nothing remembered."""
    EVAL.forget()
    return fun(*args)


# ---------------------------------------------------------------- loops of NumPy's

OPERATORS = [lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: x < y,
             lambda x, y: x == y, jnp.add, jnp.arctan2, jnp.fmod, jnp.maximum, jnp.power]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1", "i8", "?"])
def test_two_operands(shapes: tuple[Any, Any], dtype: str, x64: None) -> None:
    x, y = (jnp.asarray(numbers(s, dtype)) for s in shapes)
    for fun in OPERATORS:
        if (dtype == "?" and fun is OPERATORS[1]) or (dtype[0] != "f" and fun is jnp.power):
            continue
        first = generally(fun, x, y)
        for _ in range(4):
            same(fun(x, y), first)
            same(fun(x + 0 if dtype != "?" else x, y), first)  # other arrays of these types


@pytest.mark.parametrize("name", [n for n, p in ELEMENTWISE.items() if p.as_ufunc is not None])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u4", "i2", "?", "c8", "bfloat16", "f2"])
def test_operations_that_are_loops(name: str, dtype: str, x64: None) -> None:
    primitive = ELEMENTWISE[name]
    kind = jnp.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    with np.errstate(all="ignore"):
        args = [jnp.asarray(numbers((3, 17), "f4").astype(kind)) for _ in primitive.operands]
        special = jnp.asarray(np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40]).astype(kind))
    params = {"y": 2} if name == "integer_pow" else {}
    for given in (args, [special] * len(args)):
        try:
            first = generally(lambda *a: primitive.bind(*a, **params), *given)
        except TypeError:
            return  # not for such numbers
        for _ in range(4):
            same(primitive.bind(*given, **params), first)
    assert dtype != "f4" or name in ("and", "or", "xor", "not") or any(
        key[0] is primitive and not isinstance(way, ways.Same) for key, way in EVAL.known.ways._found.items())


@pytest.mark.parametrize("number", [0, 1, -3, 2**24, 2**24 + 1, 2**31 - 1, 2**40, 2**70, True, 0.1, -0.0, 1e300,
                                    float("nan"), float("inf"), 1j, np.float32(0.1), np.int8(3), np.float64(0.1)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u1", "?", "bfloat16"])
def test_python_numbers(number: Any, dtype: str, x64: None) -> None:
    x = jnp.asarray([0, 1, 3]).astype(dtype)
    for fun in (lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a / b, jnp.minimum):
        for args in ((x, number), (number, x), (x[0], number)):
            try:
                first = generally(fun, *args)
            except (TypeError, OverflowError) as error:
                for _ in range(3):
                    with pytest.raises(type(error)):
                        fun(*args)
                continue
            for _ in range(4):
                same(fun(*args), first)


def test_numbers_of_one_class_are_each_themselves() -> None:
    x = jnp.arange(3.0)
    for n in range(50):
        assert (x + n).tolist() == [n, n + 1, n + 2] and (x * (n / 2)).tolist() == [0, n / 2, n]


def test_products() -> None:
    for m, k, n in itertools.product((1, 2, 17), repeat=3):
        x, y = jnp.asarray(numbers((m, k), "f4")), jnp.asarray(numbers((k, n), "f4"))
        for fun in (lambda a, b: a @ b, jnp.matmul, jnp.dot, lambda a, b: lax.dot(a, b, precision="highest")):
            first = generally(fun, x, y)
            for _ in range(5):
                same(fun(x, y), first)
        z = jnp.asarray(numbers((n, k), "f4"))
        for _ in range(4):
            np.testing.assert_allclose(jnp.einsum("mk,nk->mn", x, z), np.asarray(x) @ np.asarray(z).T, 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u4", "u1", "?", "f2"])
def test_sums(dtype: str, x64: None) -> None:
    """Along the first axes and the last ones, as many as NumPy adds up in pairs and as it does not."""
    for shape in ((), (1,), (2,), (7,), (9,), (129,), (8193,), (1, 2), (5, 3), (32, 32), (1000, 3), (3, 1000),
                  (17, 129), (2, 3, 4), (7, 1, 9), (0, 3), (3, 0), (64, 64, 5)):
        x = jnp.asarray(numbers(shape, dtype) * (1 if dtype in "u1?" else 0.37)).astype(dtype)
        for axes in {tuple(range(k)) for k in range(len(shape) + 1)} | {
                tuple(range(k, len(shape))) for k in range(len(shape))}:
            for fun in (lambda x, axes=axes: x.sum(axes), lambda x, axes=axes: lax.reduce_sum_p.bind(x, axes=axes)):
                try:
                    first = generally(fun, x)
                except TypeError:
                    assert dtype == "?"
                    continue
                for _ in range(8):
                    same(fun(x), first)
    assert single._sums_as_expected(single._module())


def test_a_deleted_array_is_named() -> None:
    x, y = jnp.arange(4.0), jnp.arange(4.0)
    for _ in range(5):
        x + y, jnp.sum(x), jnp.where(x > 0, x, y)
    x.delete()
    for fun in (lambda: x + y, lambda: y + x, lambda: jnp.sum(x), lambda: jnp.where(y > 0, x, y)):
        with pytest.raises(RuntimeError, match="has been deleted"):
            fun()


def test_options_hold_at_once() -> None:
    x, b = jnp.ones((3, 4)), jnp.ones(4)
    for _ in range(5):
        x + b, jnp.log(b), jnp.sum(x), jnp.where(b > 0, 1, b)
    with anima.numpy_rank_promotion("raise"):
        for _ in range(4):
            with pytest.raises(ValueError, match="rank"):
                x + b
    with anima.numpy_rank_promotion("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            x + b
        assert len(caught) == 4
    with anima.debug_nans(True):
        for _ in range(4):
            with pytest.raises(FloatingPointError):
                jnp.log(b - 2)
    with anima.transfer_guard("disallow"), pytest.raises(RuntimeError, match="Disallowed"):
        x + 1
    assert (x + b).shape == (3, 4)


def test_what_a_thread_learns_is_not_for_others_with_other_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """One applies something after another has, and before that is noted."""
    x, b = jnp.ones((3, 4)), jnp.ones(4)

    def strictly(fun: Callable[[], Any]) -> list[Any]:
        found: list[Any] = []

        def work() -> None:
            with anima.numpy_rank_promotion("raise"):
                try:
                    found.append(fun())
                except ValueError as error:
                    found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found

    def interrupted(*args: Any, original: Callable[..., Any] = elementwise.remember) -> Any:
        strictly(lambda: lax.neg(b))
        return original(*args)

    monkeypatch.setattr(elementwise, "remember", interrupted)
    for _ in range(4):
        assert (x + b).shape == jnp.add(x, b).shape == (3, 4)
    for fun in (lambda: x + b, lambda: jnp.add(x, b)):
        assert type(strictly(fun)[0]) is ValueError


def test_threads() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        for k in range(300):
            n = (seed * 7 + k) % 23 + 1
            x = jnp.arange(n * 1.0)
            if float(jnp.sum((x + k) * 2)) != n * (n - 1) + 2.0 * k * n:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---------------------------------------------------------------- tapes

X, Y, I = numbers((3, 4), "f4"), numbers((3, 4), "f4"), np.array([2, 0, 1], np.int32)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": lambda x, y, i: jnp.where(x > 0, x, y),
    "where 0": lambda x, y, i: jnp.where(x > 0, 0, y),
    "clip": lambda x, y, i: jnp.clip(x, -1, y),
    "std": lambda x, y, i: jnp.std(x, axis=1, ddof=1),
    "mean": lambda x, y, i: jnp.mean(x, axis=(0, 1), keepdims=True),
    "sum": lambda x, y, i: x.sum(0),
    "max": lambda x, y, i: jnp.max(x, axis=-1),
    "argmax": lambda x, y, i: x.argmax(1),
    "any": lambda x, y, i: (x > 1).any(),
    "cumsum": lambda x, y, i: jnp.cumsum(x),
    "norm": lambda x, y, i: jnp.linalg.norm(x, axis=0),
    "einsum": lambda x, y, i: jnp.einsum("ij,ij->i", x, y),
    "stack": lambda x, y, i: jnp.stack([x, y]),
    "outer": lambda x, y, i: jnp.outer(x, y),
    "take": lambda x, y, i: x[i],
    "slices": lambda x, y, i: x[1:, ::2],
    "last": lambda x, y, i: x[-1],
    "mixed": lambda x, y, i: x[i, 1:],
    "none": lambda x, y, i: x[None, ..., 0],
    "softmax": lambda x, y, i: anima.nn.softmax(x),
    "split": lambda x, y, i: jnp.concatenate(jnp.split(x, 2, 1)[::-1]),
    "linspace": lambda x, y, i: jnp.linspace(x, y, 5),
    "floor": lambda x, y, i: x // y,
    "mod": lambda x, y, i: i % 2,
    "pad": lambda x, y, i: jnp.pad(x, 1, constant_values=-0.0),
    "roll": lambda x, y, i: jnp.roll(x, 1, 0),
    "sort": lambda x, y, i: jnp.sort(x, axis=0),
    "repeat": lambda x, y, i: jnp.repeat(x, 2, axis=1),
    "cross": lambda x, y, i: jnp.cross(x[:, :3], y[:, :3]),
    "tril": lambda x, y, i: jnp.tril(x),
    "meshgrid": lambda x, y, i: jnp.meshgrid(i, i)[1],
    "one_hot": lambda x, y, i: anima.nn.one_hot(i, 4),
    "power": lambda x, y, i: jnp.abs(x) ** 2.5,
    "isclose": lambda x, y, i: jnp.isclose(x, y, atol=1.0),
    "divmod": lambda x, y, i: divmod(x, y)[0],
    "median": lambda x, y, i: jnp.median(x, axis=1),
    "interp": lambda x, y, i: jnp.interp(y[0], jnp.arange(3.0), x[:, 0])}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other values than those that the tape was recorded with; after it was compiled, too."""
    fun = FUNCTIONS[name]
    given = [(X, Y, I), (Y, X, I[::-1].copy()), (np.zeros_like(X), -Y, np.array([-1, 7, 0], np.int32)), (X, X, I)]
    arrays = [[*map(jnp.asarray, g)] for g in given]
    with anima.disable_jit():  # nothing is compiled, and options of their own have tapes of their own
        wanted = [fun(*a) for a in arrays]
    for _ in range(4):
        for a, w in zip(arrays, wanted, strict=True):
            same(fun(*a), w)
    monkeypatch.setattr("anima.api.eager._WORTH", 0.0)
    for _ in range(3):
        for a, w in zip(arrays, wanted, strict=True):
            same(fun(*a), w)


@pytest.mark.parametrize("name", ["cholesky", "det", "eigh", "eigvalsh", "inv", "qr", "slogdet", "solve"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4, 4), (16, 16), (17, 17), (0, 0), (3, 0, 0)], ids=str)
def test_linear_algebra_has_the_bits_that_it_has_inside_of_jit(name: str, shape: tuple[int, ...]) -> None:
    a = jnp.asarray(RNG.normal(size=shape).astype("f4"))
    a = a @ a.mT + jnp.eye(shape[-1])
    args = (a, a[..., :1]) if name == "solve" else (a,)
    fun = getattr(jnp.linalg, name)
    wanted = anima.tree.leaves(anima.jit(fun)(*args))
    for _ in range(3):
        for found, w in zip(anima.tree.leaves(fun(*args)), wanted, strict=True):
            same(found, w)


def test_one_array_as_two_arguments() -> None:
    x, y = jnp.asarray(X), jnp.asarray(Y)
    for order in ((x, x), (x, y), (y, y), (y, x)):
        for _ in range(4):
            found, (a, b) = jnp.where(order[0] > 0, *order), map(np.asarray, order)
            np.testing.assert_array_equal(found, np.where(a > 0, a, b))
            np.testing.assert_array_equal(jnp.outer(*order), np.outer(*order))


def test_arguments_that_are_equal_and_not_the_same() -> None:
    x = jnp.zeros((2, 2))
    for _ in range(4):
        assert jnp.full_like(x, 1).dtype == np.float32
        assert jnp.where(x == 0, 0.0, 1.0).tolist() == [[0, 0], [0, 0]]
        assert np.signbit(jnp.where(x == 0, -0.0, 1.0)).all() and not np.signbit(jnp.where(x == 0, 0.0, 1.0)).any()
        assert x[0, 1].shape == () and x[0, True].shape == (1, 2) and x[False].shape == (0, 2, 2) and x[0].shape == (2,)
        assert jnp.where(True, x, 1).dtype == np.float32 and jnp.clip(x, 1).tolist() == jnp.clip(x, True).tolist()
        with pytest.raises(TypeError):
            jnp.sum(x, axis=1.0)
        assert jnp.sum(x, axis=1).shape == (2,)


def test_what_looks_into_an_array_has_no_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anima.api.eager._WORTH", 0.0)
    for values in ([1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]):
        mask, x = jnp.asarray(np.array(values, bool)), jnp.arange(3.0)
        for _ in range(4):
            assert x[mask].tolist() == np.arange(3.0)[np.array(values, bool)].tolist()
            assert jnp.repeat(x, jnp.asarray(values)).tolist() == np.repeat(np.arange(3.0), values).tolist()


def test_errors_come_again() -> None:
    x = jnp.zeros((2, 3))
    for _ in range(5):
        for fun, kind in ((lambda: jnp.sum(x, axis=2), ValueError), (lambda: jnp.stack([x, x[0]]), ValueError),
                          (lambda: x[0, 0, 0], IndexError), (lambda: jnp.split(x, 2, axis=1), ValueError)):
            with pytest.raises(kind):
                fun()


def test_gradients_and_maps_of_what_has_a_tape() -> None:
    x = jnp.asarray(X)
    for _ in range(5):
        jnp.std(x), jnp.where(x > 0, x, 0)
    np.testing.assert_allclose(anima.grad(lambda x: jnp.where(x > 0, x, 0).sum())(x), X > 0)
    assert anima.vmap(jnp.std)(x).shape == (3,)
    assert str(anima.make_jaxpr(lambda x: jnp.sum(x))(x)).count("reduce_sum") == 1


def test_a_recording_that_fails_leaves_nothing_behind() -> None:
    def fun(x: Any) -> Any:
        raise KeyError("no")

    with pytest.raises(KeyError):
        replay.record(fun, [jnp.ones(3)], (jnp.ones(3),), {})
    x = jnp.ones(3)
    assert [float(jnp.sum(x)) for _ in range(5)] == [3.0] * 5


# ---------------------------------------------------------------- samplers

SAMPLERS: dict[str, Callable[..., Any]] = {
    "normal": lambda k, n: random.normal(k, (n,)),
    "uniform": lambda k, n: random.uniform(k, (n,), minval=-2.0, maxval=0.5),
    "bits": lambda k, n: random.bits(k, (n,), "uint8"),
    "randint": lambda k, n: random.randint(k, (n,), 0, n),
    "bernoulli": lambda k, n: random.bernoulli(k, 0.3, (n,)),
    "exponential": lambda k, n: random.exponential(k, (n,)),
    "gumbel": lambda k, n: random.gumbel(k, (n,)),
    "truncated": lambda k, n: random.truncated_normal(k, -1.0, 2.0, (n,)),
    "gamma": lambda k, n: random.gamma(k, 2.5, (n,)),
    "gamma 2": lambda k, n: random.gamma(k, 2, (n,)),
    "poisson": lambda k, n: random.poisson(k, 3.0, (n,)),
    "permutation": lambda k, n: random.permutation(k, n),
    "choice": lambda k, n: random.choice(k, n, (n,)),
    "categorical": lambda k, n: random.categorical(k, jnp.zeros((n, 4))),
    "split": lambda k, n: random.key_data(random.split(k, n)),
    "fold_in": lambda k, n: random.key_data(random.fold_in(k, n)),
    "raw": lambda k, n: random.split(random.key_data(k), n),
    "orthogonal": lambda k, n: random.orthogonal(k, min(n, 5)),
    "list": lambda k, n: random.normal(k, [n, 2]),
    "complex": lambda k, n: random.normal(k, (n,), complex)}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("n", [1, 17])
def test_samplers_give_the_same_bits_eagerly_and_compiled(name: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = SAMPLERS[name]
    for seed in (0, 1):
        key = random.key(seed)
        wanted = anima.jit(draw, static_argnums=1)(key, n)
        for _ in range(3):
            same(draw(key, n), wanted)
        with monkeypatch.context() as patch:
            patch.setattr("anima.api.eager._WORTH", 0.0)
            for _ in range(4):
                same(draw(key, n), wanted)


def test_samplers_of_many_numbers_and_bad_ones() -> None:
    key = random.key(0)
    for scale in np.linspace(0.5, 2, 8):
        drawn = random.truncated_normal(key, -float(scale), float(scale), (100,))
        assert np.abs(drawn).max() <= scale
    for _ in range(3):
        with pytest.raises(TypeError):
            random.normal(key, (2.5,))
        with pytest.raises(ValueError, match="larger sample"):
            random.choice(key, 3, (5,), replace=False)
        with pytest.raises(ValueError, match="float"):
            random.normal(key, (2,), int)
        assert random.permutation(key, jnp.int32(5)).shape == (5,)


@pytest.mark.parametrize("numbers", [(), (float,)])
def test_only_so_many_ways_are_remembered(numbers: tuple[type, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many operations there are; each is known from its second time on, until there are too many."""
    monkeypatch.setattr(ways, "_MOST_KNOWN", 4)
    sort, aval = lax.sort_p, jnp.ones(3).aval
    assert sort.as_ufunc is None
    known = ways.Ways(None, True)
    for k in range(40):
        for _ in range(2):
            assert known.get(k) is None
            known.meet(k, sort, {}, [aval], aval, numbers)
        assert known.get(k) is not None and len(known._found) <= 4 and len(known._met) <= 4
        if numbers:
            assert known.get(k)(1.0) is NotImplemented
