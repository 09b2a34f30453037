"""The steps of random programs that hold functions: branches, loops, calls and functions with their own rules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from anima import lax
from anima.experimental import io_callback
from tests.laws.random_operations import STEPS, Builder
from tests.laws.random_programs import Block, Program, Type, types_of
from tests.laws.random_signals import SIGNALS
from tests.op_records import INTS

MOST_STEPS = 6
DEEPEST = 3
told: list[int] = []  # by the effects of the program that runs


def draw(number: int) -> Program:
    """The program of a number."""
    rng = random.Random(number)
    x64 = rng.random() < 0.4
    with anima.enable_x64(x64):
        b = Builder(rng, (), (), 0, large=rng.random() < 0.05)
        b.telling = rng.random() < 0.1
        for _ in range(rng.randint(1, 4)):
            b.types.append(Type(b.shape(), b.dtype()))
        b.arguments = tuple(b.types)
        grow(b, rng.randint(1, MOST_STEPS))
        made = list(range(len(b.arguments), len(b.types)))
        results = {len(b.types) - 1, *rng.sample(made, min(len(made), rng.randint(1, 4)))} if made else {0}
        return Program(number, x64, b.finish(sorted(results)))


def grow(b: Builder, count: int) -> None:
    for _ in range(count):
        if b.telling and b.rng.random() < 0.3:
            tell(b)
        elif b.depth < DEEPEST and not b.large and b.rng.random() < 0.25:
            b.rng.choice(CONTROL)(b)
        else:
            b.rng.choice(STEPS + SIGNALS)(b)


def function(b: Builder, arguments: Sequence[Type], results: Sequence[Type] | None, *, closed: bool = False,
             pure: bool = False) -> Block:
    """A function of `arguments`: with results of the types given, or one to three of its values."""
    inner = Builder(b.rng, () if closed else b.types, arguments, b.depth + 1, b.large)
    inner.telling = b.telling and not pure
    grow(inner, b.rng.randint(1, 3 - (b.depth > 0)))
    if results is None:
        count = min(len(inner.types) - inner.around, b.rng.randint(1, 3))
        return inner.finish(b.rng.sample(range(inner.around, len(inner.types)), count))
    places = []
    for t in results:
        place = inner.need(t.shape, t.dtype, exact=t.exact)
        if not t.exact:
            place = inner.tame(place)
        elif inner.types[place].dtype in INTS and t.size and b.rng.random() < 0.5:
            other = inner.need(t.shape, t.dtype)
            place = inner.add("mix", lambda x, y: x ^ (y + jnp.asarray(1, y.dtype)), [place, other], True)
        places.append(place)
    return inner.finish(places)


def carried(b: Builder, most: int = 3) -> list[int]:
    """Values to carry, of moderate size; those that are not exact are clamped, as the results of a body are."""
    places = [b.some(lambda t: t.size <= 300) for _ in range(b.rng.randint(1, most))]
    return [k if b.types[k].exact else b.tame(k) for k in places]


def _types(b: Builder, places: Sequence[int]) -> list[Type]:
    return [b.types[k] for k in places]


def branch(b: Builder) -> None:
    """`cond` and `switch`, the index of which may be out of range."""
    count, places = b.rng.choice((0, 2, 3)), carried(b)
    arguments, results = _types(b, places), _types(b, carried(b))
    blocks = tuple(function(b, arguments, results) for _ in range(count or 2))
    if count:
        which = b.need((), b.rng.choice(("int32", "int8", "uint8")))
        b.add(f"switch[{count}]", lambda fs, i, *xs: lax.switch(i, fs, *xs), [which, *places], True, blocks=blocks,
              types=results)
    else:
        which = b.need((), "bool")
        b.add("cond", lambda fs, p, *xs: lax.cond(p, *fs, *xs), [which, *places], True, blocks=blocks, types=results)


def counted(b: Builder) -> None:
    """`fori_loop`, with a number of steps that is known or not, and maybe 0 or negative."""
    places = carried(b)
    carry = _types(b, places)
    body = function(b, [Type((), "int32"), *carry], carry)
    low, count = b.rng.choice((-2, 0, 0, 1)), b.rng.choice((-1, 0, 1, 2, 3, 5))
    if b.rng.random() < 0.5:
        b.add(f"fori_loop[{low}, {low + count}]",
              lambda fs, *xs: lax.fori_loop(low, low + count, lambda i, c: fs[0](jnp.asarray(i, np.int32), *c),
                                            list(xs)),
              places, True, blocks=(body,), types=carry)
    else:
        end = b.need((), "int32")
        b.add(f"fori_loop[{low}, n]",
              lambda fs, n, *xs: lax.fori_loop(np.int32(low), lax.clamp(np.int32(-2), n, np.int32(4)),
                                               lambda i, c: fs[0](jnp.asarray(i, np.int32), *c), list(xs)),
              [end, *places], True, blocks=(body,), types=carry)


def ended(b: Builder) -> None:
    """`while_loop` with a counter that goes up or down, and a condition that may look at the carry."""
    places = carried(b)
    carry = _types(b, places)
    counter = b.rng.choice(("int32", "int8", "float32"))
    body = function(b, [Type((), counter), *carry], carry)
    also = function(b, carry, [Type((), "bool")], pure=True)
    start, step, most = b.rng.choice(((0, 1, 3), (5, -2, 0), (3, -1, 0), (2, 1, 2), (-1, 3, 7), (0, -1, -2)))

    def run(fs: Sequence[Callable[..., Any]], *xs: Any) -> list[Any]:
        one, limit = jnp.asarray(step, counter), jnp.asarray(most, counter)

        def more(state: Any) -> Any:
            going = state[0] < limit if step > 0 else state[0] > limit
            return going & (fs[1](*state[1])[0] | (state[0] == jnp.asarray(start, counter)))

        return list(lax.while_loop(more, lambda s: (s[0] + one, fs[0](s[0], *s[1])),
                                   (jnp.asarray(start, counter), list(xs)))[1])

    b.add(f"while_loop[{start}, {step}, {most}]", run, places, True, blocks=(body, also), types=carry)


def stepped(b: Builder) -> None:
    """`scan` over rows of values, forward and back, unrolled and not, with results of each step."""
    r, places = b.rng, carried(b, 2)
    carry, length = _types(b, places), r.choice((0, 1, 2, 3, 5, 8))
    rows = [b.need((length, *r.choice([(), (2,), (9,)])), b.dtype()) for _ in range(r.randint(0, 2))]
    arguments = [*carry, *(Type(b.types[k].shape[1:], b.types[k].dtype) for k in rows)]
    results = [*carry, *_types(b, carried(b, 2))]
    body, back, unroll, count = function(b, arguments, results), r.random() < 0.5, r.choice((1, 1, 2, 3)), len(carry)

    def run(fs: Sequence[Callable[..., Any]], *xs: Any) -> list[Any]:
        def one(c: Any, x: Any) -> Any:
            outs = fs[0](*c, *x)
            return outs[:count], outs[count:]

        last, ys = lax.scan(one, list(xs[:count]), list(xs[count:]), length=length, reverse=back, unroll=unroll)
        return [*last, *ys]

    stacks = [Type((length, *t.shape), t.dtype, t.exact) for t in results[count:]]
    b.add(f"scan[{length}{', back' * back}, unroll {unroll}]", run, [*places, *rows], True, blocks=(body,),
          types=[*carry, *stacks])


def mapped(b: Builder) -> None:
    """`vmap` and `map` of a function over the rows of some values, others the same for all."""
    r, length, places = b.rng, b.rng.choice((1, 2, 3, 5)), carried(b, 2)
    rows = [b.need((length, *r.choice([(), (2,), (9,)])), b.dtype()) for _ in range(r.randint(1, 2))]
    arguments = [*_types(b, places), *(Type(b.types[k].shape[1:], b.types[k].dtype) for k in rows)]
    body = function(b, arguments, None, pure=True)
    out, one_by_one, count = r.choice((0, 0, -1)), r.random() < 0.3, len(places)

    def run(fs: Sequence[Callable[..., Any]], *xs: Any) -> list[Any]:
        if one_by_one:
            return lax.map(lambda x: fs[0](*xs[:count], *x), list(xs[count:]))
        return anima.vmap(fs[0], in_axes=(None,) * count + (0,) * len(rows), out_axes=out)(*xs)

    def shape(t: Type) -> tuple[int, ...]:
        return (*t.shape, length) if out and not one_by_one else (length, *t.shape)

    types = [Type(shape(t), t.dtype, t.exact) for t in types_of(body, b.types)]
    if all(math.prod(t.shape) < 3000 for t in types):
        b.add("map" if one_by_one else f"vmap[{out}]", run, [*places, *rows], True, blocks=(body,), types=types)


def called(b: Builder) -> None:
    """Functions under `jit`, `checkpoint`, and with derivatives and batching rules of their own, the plain ones."""
    kind = b.rng.choice(("jit", "jit", "checkpoint", "custom_jvp", "custom_vjp", "custom_vmap", "associative_scan"))
    places = carried(b)
    body = function(b, _types(b, places), None, closed=kind.startswith("custom"), pure=kind != "jit")
    if kind == "associative_scan":
        k = b.some(lambda t: len(t.shape) > 0 and t.dtype in INTS)
        b.add(kind, lambda x: lax.associative_scan(jnp.bitwise_xor, x), [k], True)
        return
    b.add(kind, _CALLS[kind], places, True, blocks=(body,), types=types_of(body, b.types),
          smooth=kind not in ("custom_vjp", "custom_vmap"))


def tell(b: Builder) -> None:
    """A call of Python with an effect, whose order is part of what the program means."""
    place = b.need((), "int32")

    def note(x: Any) -> Any:
        told.append(int(x))
        return np.asarray(x)

    b.add("tell", lambda x: io_callback(note, anima.ShapeDtypeStruct((), np.int32), x, ordered=True),
          [place], True, types=[Type((), "int32")])


def reduced(b: Builder) -> None:
    """Reductions and windows of a function of one's own, and calls of NumPy."""
    k = b.some(lambda t: len(t.shape) > 0 and t.dtype in INTS and t.size < 2000)
    t, kind = b.types[k], b.rng.choice(("reduce", "reduce_window", "pure_callback", "name"))
    runs: dict[str, Callable[[Any], Any]] = {
        "reduce": lambda x: lax.reduce(x, jnp.zeros((), x.dtype), lambda a, c: (a ^ c) + (a & c), (len(t.shape) - 1,)),
        "reduce_window": lambda x: lax.reduce_window(x, jnp.zeros((), x.dtype), lambda a, c: a | c,
                                                     (1,) * (len(t.shape) - 1) + (min(3, t.shape[-1] + 1),),
                                                     (1,) * len(t.shape), "SAME"),
        "pure_callback": lambda x: anima.pure_callback(lambda v: np.asarray(v) * v.dtype.type(3), x, x,
                                                       vmap_method="sequential"),
        "name": lambda x: anima.ad_checkpoint.checkpoint_name(x, "kept")}
    b.add(kind, runs[kind], [k], True)


def solved(b: Builder) -> None:
    """A linear system by a solver of one's own, and a linear function with a transpose of its own."""
    dtype = b.dtype(("float32", "float64"))
    v = b.tame(b.need((b.rng.choice((1, 2, 3, 9)),), dtype, exact=False), -1, 1)
    if b.rng.random() < 0.5:
        b.rounded("linear_solve", lambda y: lax.custom_linear_solve(
            lambda x: 2 * x, y, lambda f, z: z / 2, transpose_solve=lambda f, z: z / 2), [v])
    else:
        b.rounded("linear_call", lambda y: anima.custom_derivatives.linear_call(
            lambda r, x: r * x, lambda r, ct: r * ct, jnp.asarray(0.5, dtype), y), [v])


def _with_jvp(fs: Sequence[Callable[..., Any]], *xs: Any) -> list[Any]:
    f = anima.custom_jvp(lambda *a: fs[0](*a))
    f.defjvp(lambda primals, tangents: anima.jvp(lambda *a: fs[0](*a), primals, tangents))
    return f(*xs)


def _with_vjp(fs: Sequence[Callable[..., Any]], *xs: Any) -> list[Any]:
    f = anima.custom_vjp(lambda *a: fs[0](*a))
    f.defvjp(lambda *a: (fs[0](*a), a), lambda a, cts: anima.vjp(lambda *y: fs[0](*y), *a)[1](cts))
    return f(*xs)


def _with_vmap(fs: Sequence[Callable[..., Any]], *xs: Any) -> list[Any]:
    f = anima.custom_batching.custom_vmap(lambda *a: fs[0](*a))

    @f.def_vmap
    def rule(size: int, batched: Any, *a: Any) -> Any:
        axes = tuple(0 if one else None for one in batched)
        outs = anima.vmap(lambda *y: fs[0](*y), in_axes=axes, axis_size=size)(*a)
        return outs, [True] * len(outs)

    return f(*xs)


_CALLS: dict[str, Callable[..., Any]] = {
    "jit": lambda fs, *xs: anima.jit(lambda *a: fs[0](*a))(*xs),
    "checkpoint": lambda fs, *xs: anima.checkpoint(lambda *a: fs[0](*a))(*xs),
    "custom_jvp": _with_jvp, "custom_vjp": _with_vjp, "custom_vmap": _with_vmap}

CONTROL: tuple[Callable[[Builder], None], ...] = (branch, branch, counted, ended, stepped, stepped, mapped, called,
                                                  called, reduced, solved)
