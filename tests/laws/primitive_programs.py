"""Random functions of users' primitives, and the same functions without them.

    p = Primitive("p"); p.def_abstract_eval(...); mlir.register_lowering(p, ...); ad.defjvp(p, ...); ...
    f = lambda x, y: p.bind(x, y, k=2.0) * 0.5 + x         plain = lambda x, y: (x * y + 2.0) * 0.5 + x

Each rule is given in one of the ways that there are for it. What the rules say is right, so that every transformation
of `f` must give what it gives of `plain`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import anima.numpy as jnp
from anima import lax
from anima.extend.core import Primitive, ShapedArray
from anima.interpreters import ad, batching, mlir

Function = Callable[..., Any]
# What a primitive computes of one or two operands and the parameter k, and how that moves with each.
UNARY: list[tuple[Function, Sequence[Function]]] = [
    (lambda x, k: x * k + 1, [lambda t, x, k: t * k]),
    (lambda x, k: jnp.sin(x) * k, [lambda t, x, k: t * jnp.cos(x) * k]),
    (lambda x, k: jnp.tanh(k * x), [lambda t, x, k: t * k * (1 - jnp.tanh(k * x) ** 2)]),
    (lambda x, k: jnp.where(x > 0, x, k * x), [lambda t, x, k: jnp.where(x > 0, t, k * t)])]
BINARY: list[tuple[Function, Sequence[Function]]] = [
    (lambda x, y, k: x * y + k, [lambda t, x, y, k: t * y, lambda t, x, y, k: t * x]),
    (lambda x, y, k: jnp.sin(x) * y, [lambda t, x, y, k: t * jnp.cos(x) * y, lambda t, x, y, k: t * jnp.sin(x)]),
    (lambda x, y, k: x / (y * y + 1), [lambda t, x, y, k: t / (y * y + 1),
                                       lambda t, x, y, k: -2 * t * x * y / (y * y + 1) ** 2])]


def program(seed: int) -> tuple[Function, Function]:
    """A function of two vectors of length 3 that applies primitives, and one that does not."""
    rng = random.Random(seed)
    makers = [_elementwise, _elementwise, _linear, _bilinear, _squares, _several]
    parts = [rng.choice(makers)(rng, f"law_{seed}_{n}") for n in range(rng.randint(1, 3))]
    steps = [(rng.randrange(len(parts)), rng.randrange(n + 2), rng.randrange(n + 2), rng.randrange(5))
             for n in range(rng.randint(2, 4))]

    def function(which: int) -> Function:
        def run(x: Any, y: Any) -> Any:
            values = [x, y]
            for part, a, b, how in steps:
                values.append(_applied(parts[part][which], values[a], values[b], how))
            return values[-1] * 0.5 + values[-2] * 0.25

        return run

    return function(0), function(1)


def _applied(f: Function, a: Any, b: Any, how: int) -> Any:
    """A step: by itself, or inside of a loop or a branch."""
    if how == 0:
        return lax.scan(lambda c, _: (f(c, b) * 0.5, None), a, None, length=2)[0]
    if how == 1:
        return lax.cond(a[0] > 0, f, lambda x, y: x - y, a, b)
    return f(a, b) * 0.5


def _primitive(name: str, fun: Function, infer: Function, many: bool = False) -> Primitive:
    p = Primitive(name, multiple_results=many)
    p.def_abstract_eval(infer)
    p.def_impl(fun)
    mlir.register_lowering(p, mlir.lower_fun(fun, multiple_results=many))
    return p


def _same(x: ShapedArray, *others: ShapedArray, **params: Any) -> ShapedArray:
    return ShapedArray(jnp.broadcast_shapes(x.shape, *(o.shape for o in others)), x.dtype)


def _elementwise(rng: random.Random, name: str) -> tuple[Function, Function]:
    count, k = rng.choice((1, 2)), rng.choice((0.5, 2.0, -1.0))
    fun, moves = rng.choice(UNARY if count == 1 else BINARY)
    p = _primitive(name, fun, _same)
    way = rng.randrange(3)
    if way == 0:
        ad.defjvp(p, *moves)
    elif way == 1:
        ad.defjvp2(p, *(lambda t, out, *xs, rule=rule, **params: rule(t, *xs, **params) for rule in moves))
    else:
        def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
            terms = [rule(ad.instantiate_zeros(t), *primals, **params)
                     for rule, t in zip(moves, tangents, strict=True)]
            return p.bind(*primals, **params), sum(terms[1:], terms[0])

        ad.primitive_jvps[p] = jvp
    _elementwise_batching(rng, p)
    return lambda x, y: p.bind(*(x, y)[:count], k=k), lambda x, y: fun(*(x, y)[:count], k=k)


def _elementwise_batching(rng: random.Random, p: Primitive) -> None:
    way = rng.randrange(3)
    if way == 0:
        batching.defvectorized(p)
    elif way == 1:
        batching.defbroadcasting(p)
    else:
        def rule(args: Any, dims: Any, **params: Any) -> Any:
            size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
            front = [batching.bdim_at_front(a, d, size) for a, d in zip(args, dims, strict=True)]
            return jnp.moveaxis(p.bind(*front, **params), 0, -1), front[0].ndim - 1

        batching.primitive_batchers[p] = rule


def _linear(rng: random.Random, name: str) -> tuple[Function, Function]:
    """Backwards along the last axis, times k; its own transpose."""
    k = rng.choice((2.0, -0.5))
    p = _primitive(name, lambda x, k: x[..., ::-1] * k, _same)
    if rng.random() < 0.5:
        ad.deflinear2(p, lambda ct, x, k: [p.bind(ct, k=k)])
    else:
        ad.deflinear(p, lambda ct, k: [p.bind(ct, k=k)])
    batching.primitive_batchers[p] = lambda args, dims, k: (p.bind(jnp.moveaxis(args[0], dims[0], 0), k=k), 0)
    return lambda x, y: p.bind(x, k=k), lambda x, y: x[..., ::-1] * k


def _bilinear(rng: random.Random, name: str) -> tuple[Function, Function]:
    p = _primitive(name, lambda x, y: 2 * x * y, _same)
    ad.defbilinear(p, lambda ct, x, y: p.bind(ct, y), lambda ct, x, y: p.bind(x, ct))
    _elementwise_batching(rng, p)
    return p.bind, lambda x, y: 2 * x * y


def _squares(rng: random.Random, name: str) -> tuple[Function, Function]:
    """The sum of squares over axes."""
    p = _primitive(name, lambda x, axes: jnp.sum(x * x, axes),
                   lambda x, axes: x.update(shape=tuple(n for d, n in enumerate(x.shape) if d not in axes)))
    ad.defjvp(p, lambda t, x, axes: jnp.sum(2 * t * x, axes))
    batching.defreducer(p)
    return lambda x, y: x + 0.1 * p.bind(y, axes=(0,)), lambda x, y: x + 0.1 * jnp.sum(y * y, 0)


def _several(rng: random.Random, name: str) -> tuple[Function, Function]:
    """Two results."""
    def fun(x: Any, y: Any) -> list[Any]:
        return [jnp.sin(x) * y, x + y]

    def jvp(primals: Any, tangents: Any) -> Any:
        (x, y), (a, b) = primals, map(ad.instantiate_zeros, tangents)
        return p.bind(x, y), [a * jnp.cos(x) * y + jnp.sin(x) * b, a + b]

    def batch(args: Any, dims: Any) -> Any:
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        return p.bind(*(batching.bdim_at_front(a, d, size) for a, d in zip(args, dims, strict=True))), [0, 0]

    p = _primitive(name, fun, lambda x, y: [_same(x, y), _same(x, y)], many=True)
    ad.primitive_jvps[p] = jvp
    batching.primitive_batchers[p] = batch
    return lambda x, y: sum(p.bind(x, y)), lambda x, y: sum(fun(x, y))
