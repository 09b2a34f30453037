"""Which arguments are differentiated, and in which forms results come: in every order, from either end, with aux."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.control.residuals import plan_residuals
from anima.core.jaxpr import ClosedJaxpr
from anima.transforms.forward import jvp_jaxpr
from anima.transforms.linearize import linearize_apart, linearize_jaxpr
from anima.transforms.vmap import batch_jaxpr

ARGS = (jnp.array([0.5, -1.0, 2.0]), jnp.array([1.5, 0.25, -0.75]), jnp.float32(3.0))
ARGNUMS = [0, 1, 2, -1, -2, -3, (0,), (-1,), *itertools.permutations((0, 1, 2), 2), *itertools.permutations((0, 1, 2)),
           (-1, 0), (1, -1), (-2, -3), [2, -2]]


def loss(x: Any, y: Any, z: Any, *, w: Any = 1.0) -> Any:
    return (x * x * y).sum() * z * w


def by_hand(x: Any, y: Any, z: Any) -> tuple[Any, Any, Any]:
    x, y, z = map(np.asarray, (x, y, z))
    return 2 * x * y * z, x * x * z, (x * x * y).sum()


def chosen(argnums: Any, scale: float = 1.0) -> Any:
    slopes = [scale * s for s in by_hand(*ARGS)]
    return slopes[argnums] if isinstance(argnums, int) else tuple(slopes[k] for k in argnums)


def agree(got: Any, want: Any) -> None:
    assert anima.tree.structure(got) == anima.tree.structure(want)
    for x, y in zip(anima.tree.leaves(got), anima.tree.leaves(want), strict=True):
        assert np.shape(x) == np.shape(y)
        np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("argnums", ARGNUMS, ids=str)
def test_argnums(argnums: Any) -> None:
    """Keywords are passed on, and never differentiated."""
    value = np.float32(np.asarray(loss(*ARGS)))
    agree(anima.grad(loss, argnums)(*ARGS), chosen(argnums))
    agree(anima.grad(loss, argnums)(*ARGS, w=2.0), chosen(argnums, 2.0))
    agree(anima.value_and_grad(loss, argnums)(*ARGS), (value, chosen(argnums)))
    aux = anima.grad(lambda *xs, w=3.0: (loss(*xs), {"w": w, "x": xs[0]}), argnums, has_aux=True)
    agree(aux(*ARGS), (chosen(argnums), {"w": 3.0, "x": ARGS[0]}))
    agree(aux(*ARGS, w=5.0)[1]["w"], 5.0)
    for jacobian in (anima.jacfwd, anima.jacrev):
        agree(jacobian(loss, argnums)(*ARGS), chosen(argnums))
        rows = jacobian(lambda *xs: (jnp.stack([loss(*xs), 2 * loss(*xs)]), 3), argnums, has_aux=True)
        got, extra = rows(*ARGS)
        agree((anima.tree.map(lambda g: g[1], got), extra), (chosen(argnums, 2.0), 3))


@pytest.mark.parametrize("argnums", [0, -1, (0, 2), (2, 0), (-2, 0, -1)], ids=str)
def test_blocks_of_hessians_are_in_the_order_of_argnums(argnums: Any) -> None:
    x, y, z = map(np.asarray, ARGS)
    blocks = [[np.diag(2 * y * z), np.diag(2 * x * z), 2 * x * y],
              [np.diag(2 * x * z), np.zeros((3, 3)), x * x],
              [2 * x * y, x * x, np.zeros(())]]
    want = blocks[argnums][argnums] if isinstance(argnums, int) else tuple(
        tuple(blocks[i][j] for j in argnums) for i in argnums)
    agree(anima.hessian(loss, argnums)(*ARGS), want)


@pytest.mark.parametrize("argnums", [3, -4, (0, 3), (0, -4)], ids=str)
@pytest.mark.parametrize("transform", [anima.grad, anima.value_and_grad, anima.jacfwd, anima.jacrev, anima.hessian])
def test_argnums_of_arguments_that_are_not_there(transform: Callable[..., Any], argnums: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"positional argument|argnums"):
        transform(loss, argnums)(*ARGS)


def test_derived_programs_are_made_once() -> None:
    """Each by all of what it depends on."""
    closed = anima.make_jaxpr(lambda x, y: (jnp.sin(x) * y, y))(1.0, 2.0)
    program = ClosedJaxpr(closed.jaxpr, closed.consts)
    for derive, keys in [
            (batch_jaxpr, [(3, (0, None)), (4, (0, None)), (3, (None, 0)), (3, (0, 0)), (3, (0, None), (None, 0))]),
            (jvp_jaxpr, [((True, False),), ((False, True),), ((True, True),), ((True, False), (True, True))]),
            (linearize_jaxpr, [((True, False),), ((False, True),), ((True, False), (True, True))]),
            (linearize_apart, [((True, False),), ((False, True),), ((True, False), (True, True))])]:
        first = [derive(program, *key) for key in keys]  # type: ignore[operator]
        again = [derive(program, *key) for key in keys]  # type: ignore[operator]
        assert all(a is b for a, b in zip(first, again, strict=True))
        assert len(set(map(id, first))) == len(keys)
    primal, tangent, _ = linearize_jaxpr(program, (True, True))
    plan = plan_residuals(primal, tangent, 2, 1, 1, False)
    assert plan_residuals(primal, tangent, 2, 1, 1, False) is plan
    assert plan_residuals(primal, tangent, 2, 1, 1, True) is not plan


def test_residuals_that_are_arguments_can_be_taken_out_and_put_back() -> None:
    x, w = jnp.arange(2.0), jnp.array([3.0, 4.0])
    for make in (anima.vjp, anima.jit(lambda f, *args: anima.vjp(f, *args), static_argnums=0)):
        _, pull = make(lambda x, p: x * p["w"] + jnp.sin(p["b"]), x, {"w": w, "b": x})
        kept_x, kept = pull.args_res
        np.testing.assert_array_equal(kept["w"], w)
        assert repr(kept["b"]) == "NotNeeded()" and len(pull.opaque_residuals) == 1
        pull.args_res[0] = None
        with pytest.raises(ValueError, match="was taken out of `args_res`"):
            pull(x)
        pull.args_res[0] = 2 * kept_x
        np.testing.assert_array_equal(pull(x + 1)[1]["w"], 2 * x * (x + 1))
        again = anima.tree.map(lambda c: c, pull)
        np.testing.assert_array_equal(again(x + 1)[0], w * (x + 1))
        assert anima.tree.leaves(again.args_res[1]) and len(anima.tree.leaves(again)) == 3
