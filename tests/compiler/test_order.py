"""Sorting by vectors: the routine `order` on arrays that end at a page that nobody may touch, and programs with it.

Inputs are those that are hard for quicksort: alike, in order, of few values, and made against the choice of what it
parts by.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import Buffer, Call, Program, statements
from anima.compiler.lowering.order import FEW, IN_LANES, PIECE, SHORTEST
from anima.compiler.machine.native import host
from anima.compiler.machine.target import Target, target_of
from anima.compiler.products.order import PIECES, exchanges
from anima.runtime.executable import compile_program
from tests.compiler.fences import Fenced
from tests.compiler.stages import check_threads, lowered

RNG = np.random.default_rng(5)
WORDS = {"u32": np.uint32, "u64": np.uint64}
LEAST = 3 * 512  # integers of a row in pieces
vectors = pytest.mark.skipif(not host().compresses, reason="this machine does not move lanes together")
posix = pytest.mark.skipif(os.name != "posix", reason="protects pages")


def without() -> Target:
    """This machine, but for what the routine takes."""
    features = [f"-{f[1:]}" if f[1:].startswith("avx512") else f for f in host().features.split(",")]
    return target_of(host().triple, host().cpu, ",".join(features))


def looked_at(n: int) -> np.ndarray:
    """The places of the integers of 32 bits, of n, from which one is chosen to part by: nine vectors of them."""
    return np.arange(9)[:, None] * ((n - 16) >> 3) + np.arange(16)


def chosen(x: np.ndarray) -> Any:
    """That integer."""
    x = np.median(x.reshape(3, 3, 16), axis=0)
    x = np.median(x, axis=0)
    for by in (5, 1):
        x = np.median([x, np.roll(x, -by), np.roll(x, -2 * by)], axis=0)
    return x[0]


def against(n: int) -> np.ndarray:
    """Integers of which the smallest parts there can be are parted first: those looked at are the largest."""
    x, places, most = np.zeros(n, np.uint64), np.arange(n), 10 * n
    while len(places) > 200:
        here = places[np.unique(looked_at(len(places)))]
        fresh = here[x[here] == 0]
        x[fresh] = most - np.arange(len(fresh))
        most -= len(fresh)
        places = places[x[places] <= chosen(x[places[looked_at(len(places))]].astype(float))]
    return x


SHAPES: dict[str, Callable[[int], np.ndarray]] = {
    "random": lambda n: RNG.integers(0, 2**64 - 1, n, np.uint64, endpoint=True),
    "small": lambda n: RNG.integers(0, 200, n, np.uint64),
    "two values": lambda n: RNG.integers(0, 2, n, np.uint64) * np.uint64(2**64 - 1),
    "none": lambda n: np.zeros(n, np.uint64), "all": lambda n: np.full(n, 2**64 - 1, np.uint64),
    "sorted": lambda n: np.arange(n, dtype=np.uint64), "reversed": lambda n: np.arange(n, dtype=np.uint64)[::-1],
    "organ pipe": lambda n: np.minimum(np.arange(n), np.arange(n)[::-1]).astype(np.uint64),
    "teeth": lambda n: (np.arange(n) % 17).astype(np.uint64),
    "mostly one": lambda n: np.where(RNG.random(n) < 0.95, np.uint64(7), RNG.integers(0, 2**64 - 1, n, np.uint64)),
    "powers": lambda n: np.uint64(1) << (np.arange(n, dtype=np.uint64) * np.uint64(7) % np.uint64(64)),
    "against": against}


def agrees(word: str, rows: int, n: int, pieces: int, values: list[np.ndarray]) -> None:
    """In memory that ends, or begins, where nothing may be touched."""
    size = rows * n
    buffers = [b for name in "abc" for b in (Buffer(f"{name}0", word, size, "input", donated=True),
                                             Buffer(name, word, size, "output", alias=f"{name}0"))]
    call = Call("order", (word, rows, n, pieces, "a", 0, "b", 0, "c", 0))
    code = compile_program(Program("order", tuple(buffers), (call,)))
    for value, at_end in itertools.product(values, (True, False)):
        fence, given = Fenced(), value.astype(WORDS[word])
        arrays = [fence.array(given, at_end) for _ in range(3)]
        code(arrays)
        np.testing.assert_array_equal(arrays[2].reshape(rows, n), np.sort(given.reshape(rows, n)))


@vectors
@posix
@pytest.mark.parametrize("word", WORDS)
def test_every_short_length(word: str) -> None:
    """Of no columns of the network to all of them, and of what is parted once or twice."""
    for n in (*range(1, 71), *range(120, 140), 255, 256, 257, 400):
        agrees(word, 3, n, 0, [SHAPES[kind](3 * n) for kind in ("random", "small", "reversed", "all")])


@vectors
@posix
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("word", WORDS)
def test_hard_rows(word: str, kind: str) -> None:
    for n, pieces in ((1000, 0), (4099, 0), (30000, 0), (LEAST, 1), (20003, 1), (2 * PIECE + 1, 1)):
        agrees(word, 1, n, pieces, [SHAPES[kind](n)])
    agrees(word, 3, 5001, 1, [SHAPES[kind](3 * 5001)])


@vectors
def test_what_is_against_it_is() -> None:
    """Of what is parted, nearly all is on one side, over and over."""
    x = against(20000)
    for _ in range(100):
        x, before = x[x <= chosen(x[looked_at(len(x))].astype(float))], len(x)
        assert len(x) > before - 150


def test_the_network_sorts() -> None:
    """By the principle of zeros and ones."""
    for n in (2, 4, 8):
        for bits in itertools.product((0, 1), repeat=n):
            x = list(bits)
            for i, j in exchanges(n):
                x[i], x[j] = min(x[i], x[j]), max(x[i], x[j])
            assert x == sorted(bits)


# ---------------------------------------------------------------- programs

EXTREMES = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.5, -1.5)


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Of the whole range, many alike, and extreme ones."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        x = (RNG.normal(size=shape) * 1000).astype(dtype)
        return np.where(RNG.random(shape) < 0.4, RNG.choice(np.array(EXTREMES, dtype), shape), x)
    info = np.iinfo(kind)
    x = RNG.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.where(RNG.random(shape) < 0.3, RNG.choice(np.array((info.min, info.max, 0, 1), dtype), shape), x)


def calls(function: Callable[..., Any], *args: np.ndarray, target: Target | None = None) -> int:
    """How many calls of the routine a program has."""
    found = statements(*lowered(function, *args, target=target).loops.body)
    return sum(isinstance(s, Call) and s.routine == "order" for s in found)


@vectors
def test_where_it_is_used() -> None:
    x = np.zeros((1, SHORTEST), np.float32)
    rows = np.zeros((FEW, IN_LANES), np.float32)
    for fits, given in ((1, x), (0, x[:, 1:]), (1, rows), (0, rows[:, 1:]), (1, rows[1:, 1:]), (1, x.astype(np.int32)),
                        (0, x.astype(np.int16)), (0, x.astype(np.complex64))):
        assert calls(lambda x: jnp.sort(x), given) == fits
    assert calls(lambda x: jnp.argsort(x), x) == 1
    assert calls(lambda x: lax.sort((x, x), dimension=1, num_keys=2), x) == 2  # one for each key
    assert calls(lambda x: jnp.sort(x), x, target=without()) == 0


def both(x: Any) -> Any:
    places = lax.broadcasted_iota("int32", x.shape, x.ndim - 1)
    return (lax.sort(x, dimension=x.ndim - 1), *lax.sort((x, -places, places), dimension=x.ndim - 1, num_keys=1)[:2])


SIZES = [(SHORTEST,), (SHORTEST + 1,), (FEW, IN_LANES), (FEW - 1, IN_LANES - 1), (3, 2, 1001), (PIECE - 1,), (PIECE,),
         (2, 2 * PIECE), (PIECES, 3000), (6 * PIECE,)]


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "float64", "int64", "uint64"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_as_any_other_way(shape: tuple[int, ...], dtype: str) -> None:
    """The same bits with and without it, and what NumPy's stable sort gives."""
    with anima.enable_x64(True):
        x = numbers(shape, dtype)
        order = np.argsort(x, -1, kind="stable")
        want = np.take_along_axis(x, order, -1)
        found = []
        for target in (host(), without()):
            code = compile_program(lowered(both, x, target=target).loops, target=target)
            got, values, places = (y.reshape(shape) for y in code([x.reshape(-1)]))
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(-places, order)
            np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(want), np.signbit(want) & ~np.isnan(want))
            found.append([y.tobytes() for y in (got, values, places)])
        assert found[0] == found[1]


@pytest.mark.parametrize("n", [2000, PIECE + 5, 6 * PIECE])
def test_any_number_of_threads(n: int) -> None:
    x = numbers((n,), "float32")
    rows = x[:n // 9 * 9].reshape(9, -1)
    check_threads(anima.jit(lambda x, rows: (jnp.sort(x), jnp.argsort(x), jnp.median(x), jnp.sort(rows))), x, rows)


def test_along_another_axis_and_within_loops() -> None:
    x = numbers((1200, 3), "float32")
    np.testing.assert_array_equal(anima.jit(lambda x: jnp.sort(x, axis=0))(x), np.sort(x, axis=0))
    found = anima.jit(lambda x: lax.map(lambda y: jnp.argsort(y * 2), x.T))(x)
    np.testing.assert_array_equal(found, np.argsort(x.T, axis=-1, kind="stable"))


def test_the_interpreter_knows_it() -> None:
    x = numbers((2 * SHORTEST,), "float32")
    program = lowered(lambda x: [jnp.sort(x), jnp.argsort(x)], x).loops
    ordered, places = run(program, [x])
    np.testing.assert_array_equal(ordered, np.sort(x))
    np.testing.assert_array_equal(places, np.argsort(x, kind="stable"))
