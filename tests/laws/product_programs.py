"""Random programs of products, with what becomes of them: broadcasts, masks, sums, maxima, loops.

    a = dot_general x y;  b = exp a;  c = broadcast z;  d = b * c;  e = max d;  ...      returns some of these

Numbers are floats, int32 or complex, all 64 bits wide but the integers, so that rounding stays far from what is wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anima
import anima.nn
import anima.numpy as jnp
from anima import lax

SIZES = 1, 2, 3, 5, 8, 17, 24, 40
MOST = 40_000  # elements of an array
Function = Callable[..., Any]

ALONE: dict[str, dict[str, Function]] = {
    "f": {"tanh": jnp.tanh, "cos": jnp.cos, "abs": jnp.abs, "exp": lambda x: jnp.exp(jnp.tanh(x)),
          "relu": lambda x: jnp.maximum(x, 0), "scaled": lambda x: x * 0.3,
          "softmax": lambda x: anima.nn.softmax(x, -1) if x.ndim else x},
    "i": {"abs": jnp.abs, "neg": jnp.negative, "relu": lambda x: jnp.maximum(x, 0), "rest": lambda x: x % 7},
    "c": {"sin": lambda x: jnp.sin(x * 0.1), "conj": jnp.conj, "neg": jnp.negative,
          "turned": lambda x: x * (0.6 + 0.8j)}}
REDUCED: dict[str, Sequence[Function]] = {
    "f": (jnp.sum, jnp.max, jnp.mean, jnp.min), "i": (jnp.sum, jnp.max, jnp.min), "c": (jnp.sum, jnp.mean)}
TOGETHER: dict[str, Sequence[Function]] = {
    kind: (jnp.add, jnp.multiply, jnp.subtract, *([jnp.maximum] if kind != "c" else [])) for kind in "fic"}


class Draw:
    """Draws a program: `steps` are functions of values before, by number, and `shapes` those of all values."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kind = self.rng.choice("fffic")
        self.shapes = [tuple(self.rng.choices(SIZES, k=self.rng.choice((1, 2, 2, 2, 3))))
                       for _ in range(self.rng.randint(2, 5))]
        self.inputs = len(self.shapes)
        self.steps: list[tuple[Function, tuple[int, ...]]] = []
        ways = [*[self.product] * 6, *[self.alone] * 3, *[self.together] * 3, *[self.reduced] * 2, *[self.spread] * 2,
                self.turned, self.masked, self.summed, self.flat, self.cut, self.twice, self.loop]
        wanted = self.rng.randint(4, 16)
        for _ in range(200):
            if len(self.steps) < wanted:
                self.rng.choice(ways)()
        values = range(self.inputs, len(self.shapes))
        self.outs = sorted({*self.rng.sample(values, min(len(values), 2)), len(self.shapes) - 1})

    def args(self, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        if self.kind == "i":
            return [rng.integers(-5, 6, size=s).astype(np.int32) for s in self.shapes[:self.inputs]]
        real = [rng.uniform(-1, 1, size=s) for s in self.shapes[:self.inputs]]
        return real if self.kind == "f" else [x + 1j * rng.uniform(-1, 1, size=x.shape) for x in real]

    def __call__(self, *args: Any) -> list[Any]:
        values = list(args)
        for fun, sources in self.steps:
            values.append(fun(*(values[k] for k in sources)))
        return [values[k] for k in self.outs]

    # ---------------------------------------------------------------- steps

    def pick(self, fits: Callable[[tuple[int, ...]], bool] = lambda shape: True) -> int | None:
        """A value of a fitting shape: mostly a late one."""
        fitting = [k for k, shape in enumerate(self.shapes) if fits(shape)]
        if not fitting:
            return None
        return self.rng.choice(fitting[-6:] if self.rng.random() < 0.6 else fitting)

    def add(self, fun: Function, shape: Sequence[int], *sources: int) -> None:
        if math.prod(shape) <= MOST and len(shape) <= 4:
            self.steps.append((fun, sources))
            self.shapes.append(tuple(shape))

    def product(self) -> None:
        a = self.pick(lambda shape: len(shape) > 1)
        if a is None:
            return
        left = self.shapes[a]
        i = self.rng.randrange(len(left))
        b = self.pick(lambda shape: left[i] in shape)
        assert b is not None  # it may be the same
        right = self.shapes[b]
        j = self.rng.choice([k for k, n in enumerate(right) if n == left[i]])
        rows, columns = ([k for k in range(len(s)) if k != c] for s, c in ((left, i), (right, j)))
        pairs = [(p, q) for p in rows for q in columns if left[p] == right[q]]
        batch = [self.rng.choice(pairs)] if pairs and self.rng.random() < 0.4 else []
        numbers = ((i,), (j,)), (tuple(p for p, _ in batch), tuple(q for _, q in batch))
        kept = [left[p] for p, _ in batch] + [left[k] for k in rows if k not in numbers[1][0]]
        self.add(lambda x, y: lax.dot_general(x, y, numbers),
                 kept + [right[k] for k in columns if k not in numbers[1][1]], a, b)

    def alone(self) -> None:
        a = self.pick()
        assert a is not None
        self.add(self.rng.choice([*ALONE[self.kind].values()]), self.shapes[a], a)

    def together(self) -> None:
        a = self.pick()
        assert a is not None
        one = self.shapes[a]
        b = self.pick(lambda shape: len(shape) <= len(one) and all(
            n == m or 1 in (n, m) for n, m in zip(shape[::-1], one[::-1], strict=False)))
        if b is not None:
            self.add(self.rng.choice(TOGETHER[self.kind]), np.broadcast_shapes(one, self.shapes[b]), a, b)

    def axis(self) -> tuple[int, int] | tuple[None, int]:
        a = self.pick(lambda shape: len(shape) > 0)
        return (None, 0) if a is None else (a, self.rng.randrange(len(self.shapes[a])))

    def reduced(self) -> None:
        a, axis = self.axis()
        if a is not None:
            fun, keeps, shape = self.rng.choice(REDUCED[self.kind]), self.rng.random() < 0.4, [*self.shapes[a]]
            shape[axis:axis + 1] = [1] if keeps else []
            self.add(lambda x: fun(x, axis=axis, keepdims=keeps), shape, a)

    def spread(self) -> None:
        a, size = self.pick(), self.rng.choice(SIZES)
        assert a is not None
        old = self.shapes[a]
        place = self.rng.randint(0, len(old))
        new, dims = (*old[:place], size, *old[place:]), tuple(k + (k >= place) for k in range(len(old)))
        self.add(lambda x: lax.broadcast_in_dim(x, new, dims), new, a)

    def turned(self) -> None:
        a = self.pick()
        assert a is not None
        order = self.rng.sample(range(len(self.shapes[a])), len(self.shapes[a]))
        self.add(lambda x: lax.transpose(x, order), [self.shapes[a][k] for k in order], a)

    def masked(self) -> None:
        a, axis = self.axis()
        if a is not None:
            shape = self.shapes[a]
            self.add(lambda x: jnp.where(lax.broadcasted_iota(np.int32, shape, axis) < 2 + shape[axis] // 2, x, 1),
                     shape, a)

    def summed(self) -> None:
        a, axis = self.axis()
        if a is not None:
            self.add(lambda x: jnp.cumsum(x, axis) * (1 if self.kind == "i" else 0.2), self.shapes[a], a)

    def flat(self) -> None:
        a = self.pick()
        assert a is not None
        self.add(lambda x: x.reshape(-1), [math.prod(self.shapes[a])], a)

    def cut(self) -> None:
        a = self.pick(lambda shape: len(shape) > 0 and shape[0] > 2)
        if a is not None:
            n, *rest = self.shapes[a]
            begin = self.rng.randrange(n - 1)
            self.add(lambda x: x[begin:], [n - begin, *rest], a)

    def twice(self) -> None:
        a = self.pick(lambda shape: len(shape) > 0)
        if a is not None:
            n, *rest = self.shapes[a]
            self.add(lambda x: jnp.concatenate([x, x * 2]), [2 * n, *rest], a)

    def loop(self) -> None:
        a = self.pick(lambda shape: len(shape) > 1 and shape[0] <= 17)
        b = None if a is None else self.pick(lambda shape: shape == self.shapes[a][1:])
        if a is not None and b is not None:
            step = (lambda c, x: jnp.tanh(c + x * 0.5)) if self.kind == "f" else (
                lambda c, x: (c - x).astype(c.dtype))
            self.add(lambda xs, c: lax.scan(lambda c, x: (step(c, x), c * x), c, xs)[1], self.shapes[a], a, b)


# ---------------------------------------------------------------- laws


def _same(got: Any, want: Any, what: str) -> None:
    for a, b in zip(anima.tree.leaves(got), anima.tree.leaves(want), strict=True):
        b = np.asarray(b)
        scale = np.abs(b).max(initial=1)
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-8, atol=1e-9 * scale, err_msg=what)


def _plainly(fun: Callable[..., Any], *args: Any) -> Any:
    with anima.disable_jit():
        return fun(*args)


def check(number: int) -> None:
    """AssertionError if a program, its gradient or its lanes are something else compiled than step by step."""
    with anima.enable_x64(True):
        _check(number)


def _check(number: int) -> None:
    program = Draw(number)
    args = program.args(number)
    want = _plainly(program, *args)
    scales = [np.abs(np.asarray(x)).max(initial=1) for x in want]
    if not all(np.isfinite(s) and s < 1e12 for s in scales):
        return
    _same(anima.jit(program)(*args), want, f"program {number}")
    if program.kind == "f" and number % 2:
        slopes = anima.grad(lambda args: sum(jnp.cos(x / s).sum() for x, s in zip(program(*args), scales, strict=True)))
        _same(anima.jit(slopes)(args), _plainly(slopes, args), f"gradient of program {number}")
    elif number % 3:
        lanes = [np.stack([x, x // 2 if program.kind == "i" else x / 2]) for x in args]
        for k, got in enumerate(zip(*anima.jit(anima.vmap(program))(*lanes), strict=True)):
            _same(got, _plainly(program, *(x[k] for x in lanes)), f"lanes of program {number}")
