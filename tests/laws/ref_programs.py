"""Random programs on mutable references, and the same on arrays of NumPy's, which are mutable themselves.

A program is a list of statements on one or two arrays of `SIZE` numbers. Statements write, add or swap at places
(numbers, counters of loops, slices, arrays of positions), and stand in loops, branches and calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import anima
from anima import lax, numpy as jnp

SIZE = 6
Place = Callable[[Any], Any]     # of the counter of the innermost loop
Statement = Callable[[Any], None]  # of what the interpreter knows: `Machine`


class Machine:
    """The arrays, and how to run what is not a statement on them."""

    def __init__(self, arrays: list[Any]):
        self.arrays = arrays
        self.counter: Any = 0

    def sin(self, x: Any) -> Any:
        return np.sin(x)

    def where(self, k: int, place: Any, add: Any) -> None:
        np.add.at(self.arrays[k], place, add)

    def loop(self, kind: str, count: int, body: Statement) -> None:
        before = self.counter
        for self.counter in range(count):
            body(self)
        self.counter = before

    def choose(self, test: Callable[[Any], Any], first: Statement, second: Statement) -> None:
        (first if test(self) else second)(self)

    def call(self, body: Statement) -> None:
        body(self)


class RefMachine(Machine):
    """The same on references."""

    def sin(self, x: Any) -> Any:
        return jnp.sin(x)

    def where(self, k: int, place: Any, add: Any) -> None:
        self.arrays[k].addupdate(add, place)

    def loop(self, kind: str, count: int, body: Statement) -> None:
        before = self.counter

        def step(i: Any) -> None:
            self.counter = i
            body(self)
            self.counter = before

        if kind == "fori":
            lax.fori_loop(0, count, lambda i, c: (step(i), c)[1], 0)
        elif kind == "scan":
            lax.scan(lambda c, i: (c, step(i)), 0, jnp.arange(count))
        else:
            lax.while_loop(lambda i: i < count, lambda i: (step(i), i + 1)[1], 0)

    def choose(self, test: Callable[[Any], Any], first: Statement, second: Statement) -> None:
        lax.cond(test(self), lambda: first(self), lambda: second(self))

    def call(self, body: Statement) -> None:
        counter = self.counter

        @anima.jit
        def called(i: Any) -> None:
            self.counter = i
            body(self)

        called(counter)
        self.counter = counter


def _place(rng: random.Random) -> tuple[Place, int | None]:
    """A place, and how many numbers it holds (None: one, without an axis)."""
    kind = rng.choice(("known", "counter", "counter", "slice", "positions", "moving", "whole"))
    k = rng.randrange(-SIZE, SIZE)
    if kind == "known":
        return (lambda i: k), None
    if kind == "counter":
        a, b = rng.randrange(1, 4), rng.randrange(SIZE)
        return (lambda i: (a * i + b) % SIZE), None
    if kind == "whole":
        return (lambda i: ...), SIZE
    if kind == "slice":
        start, step = rng.randrange(SIZE - 1), rng.choice((1, 1, 2))
        span = slice(start, rng.randrange(start + 1, SIZE + 1), step)
        return (lambda i: span), len(range(SIZE)[span])
    distinct = rng.sample(range(SIZE), 3)
    if kind == "moving":
        return (lambda i: (np.array(distinct) + i) % SIZE), 3
    return (lambda i: np.array(distinct)), 3


def _simple(rng: random.Random, arrays: int) -> Statement:
    target, source = rng.randrange(arrays), rng.randrange(arrays)
    place, size = _place(rng)
    j, scale, shift = rng.randrange(SIZE), rng.uniform(-1, 1), rng.uniform(-1, 1)
    reads = rng.choice(("number", "own", "sine"))
    kind = rng.choice(("write", "add", "add", "scale"))

    def run(m: Machine) -> None:
        at = place(m.counter)
        number = m.arrays[source][j] * scale + shift
        value = number if reads == "number" else m.sin(number) if reads == "sine" else m.arrays[target][at] * scale
        if size is not None and reads != "own":
            value = value * np.linspace(0.5, 1.5, size, dtype=np.asarray(0.0).dtype).astype(m.arrays[target].dtype)
        if kind == "write":
            m.arrays[target][at] = value
        elif kind == "add":
            m.where(target, at, value)
        else:
            m.arrays[target][at] *= scale

    return run


def _block(rng: random.Random, depth: int, arrays: int) -> Statement:
    statements = [_statement(rng, depth, arrays) for _ in range(rng.randrange(1, 4))]

    def run(m: Machine) -> None:
        for s in statements:
            s(m)

    return run


def _statement(rng: random.Random, depth: int, arrays: int) -> Statement:
    kind = rng.choice(("simple", "simple", "loop", "choose", "call")) if depth else "simple"
    if kind == "simple":
        return _simple(rng, arrays)
    inner = _block(rng, depth - 1, arrays)
    if kind == "loop":
        how, count = rng.choice(("fori", "scan", "while")), rng.randrange(4)
        return lambda m: m.loop(how, count, inner)
    if kind == "call":
        return lambda m: m.call(inner)
    other = _block(rng, depth - 1, arrays)
    if rng.random() < 0.5:
        return lambda m: m.choose(lambda m: (m.counter % 2) == 0, inner, other)
    k = rng.randrange(SIZE)
    return lambda m: m.choose(lambda m: m.arrays[0][k] > 0.1, inner, other)


class Program:
    """A program of two arrays, the second starting from zeros; it gives both."""

    def __init__(self, seed: int):
        rng = random.Random(seed)
        self.statements = [_statement(rng, 2, 2) for _ in range(rng.randrange(2, 5))]

    def numpy(self, x: np.ndarray) -> np.ndarray:
        machine = Machine([x.copy(), np.zeros_like(x)])
        for s in self.statements:
            s(machine)
        return np.concatenate(machine.arrays)

    def on(self, first: Any, second: Any) -> None:
        """The program on two references."""
        machine = RefMachine([first, second])
        for s in self.statements:
            s(machine)

    def __call__(self, x: Any) -> Any:
        refs = [anima.new_ref(x), anima.new_ref(jnp.zeros_like(x))]
        self.on(*refs)
        return jnp.concatenate(list(map(anima.freeze, refs)))
