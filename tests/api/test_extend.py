"""anima.extend.core: primitives defined rule by rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.extend import core

X = np.float32([1.0, 2.0, -3.0])


def equal(actual: Any, expected: Any) -> None:
    for a, e in zip(anima.tree.leaves(actual), anima.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=1e-6)


def scale_primitive() -> core.Primitive:
    """x -> factor * x, with every rule."""
    p = core.Primitive("my_scale")
    p.def_abstract_eval(lambda x, *, factor: core.ShapedArray(x.shape, x.dtype))
    p.def_impl(lambda x, *, factor: np.asarray(x) * np.float32(factor))
    p.def_lowering(lambda x, *, factor: x * factor)
    p.def_jvp(lambda primals, tangents, *, factor: (
        p.bind(*primals, factor=factor), p.bind(core.instantiate(tangents[0]), factor=factor)))
    p.def_transpose(lambda ct, x, *, factor: [p.bind(ct, factor=factor)])
    p.def_batching(lambda args, dims, *, factor: (p.bind(args[0], factor=factor), dims[0]))
    return p


def test_every_transformation() -> None:
    p = scale_primitive()

    def f(x: Any) -> Any:
        return p.bind(jnp.sin(x), factor=3.0).sum()

    for mode in (lambda f: f, anima.jit):
        equal(mode(f)(X), 3 * np.sin(X).sum())
        equal(mode(anima.grad(f))(X), 3 * np.cos(X))
        equal(mode(anima.vmap(anima.grad(f)))(np.stack([X, X])), np.stack([3 * np.cos(X)] * 2))
        equal(mode(lambda x: lax.scan(lambda c, _: (p.bind(c, factor=2.0), None), x, None, length=3)[0])(X), 8 * X)
    assert "my_scale[factor=3.0]" in str(anima.make_jaxpr(f)(X))


def test_two_results() -> None:
    p = core.Primitive("my_split", multiple_results=True)
    p.def_abstract_eval(lambda x: [x, x])
    p.def_lowering(lambda x: (x + 1, x * 2))
    for mode in (lambda f: f, anima.jit):
        equal(mode(lambda x: p.bind(x))(X), [X + 1, X * 2])


def test_impl_with_numpy_alone_runs_outside_of_jit() -> None:
    p = core.Primitive("my_sort")
    p.def_abstract_eval(lambda x: x)
    p.def_impl(np.sort)
    equal(p.bind(X), np.sort(X))
    with pytest.raises(NotImplementedError, match=r"Compilation of 'my_sort' is not implemented\..*def_lowering"):
        anima.jit(p.bind)(X)


def test_rules_that_are_missing_or_wrong() -> None:
    p = core.Primitive("my_op")
    with pytest.raises(NotImplementedError, match="Type inference of 'my_op'"):
        p.bind(1.0)
    p.def_abstract_eval(lambda x: x)
    with pytest.raises(NotImplementedError, match=r"Evaluation of 'my_op'.*def_impl"):
        p.bind(1.0)
    p.def_impl(lambda x: jnp.ones(3))
    with pytest.raises(TypeError, match=r"'my_op' returned \['f32\[3\]'\].*says \['f32\[\]'\]"):
        p.bind(1.0)
    with pytest.raises(NotImplementedError, match="Forward-mode differentiation of 'my_op'"):
        anima.jvp(p.bind, (1.0,), (1.0,))
    with pytest.raises(NotImplementedError, match=r"Batching .vmap. of 'my_op'"):
        anima.vmap(p.bind)(X)


def test_jaxpr_as_fun() -> None:
    equal(core.jaxpr_as_fun(anima.make_jaxpr(lambda x, y: (x * y, X))(2.0, 3.0))(4.0, 5.0), [20.0, X])
