"""What each policy of a checkpoint keeps, and which arguments a checkpoint takes by value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.ad_checkpoint import checkpoint_name

policies = anima.checkpoint_policies
NAMES: dict[str, Any] = {"names_which_can_be_saved": ["a"], "names_which_can_be_offloaded": ["b"],
                         "offload_src": "device", "offload_dst": "pinned_host"}
# Of a product, a product with a batch dimension, values named a, b and c, and a sine.
KEPT: dict[str, tuple[Any, str]] = {
    "everything": (policies.everything_saveable, "111111"),
    "nothing": (policies.nothing_saveable, "000000"),
    "dots": (policies.dots_saveable, "110000"),
    "dots without batch": (policies.dots_with_no_batch_dims_saveable, "100000"),
    "dots offloaded": (policies.offload_dot_with_no_batch_dims("device", "pinned_host"), "100000"),
    "only a, b": (policies.save_only_these_names("a", "b"), "001100"),
    "only none": (policies.save_only_these_names(), "000000"),
    "names but b": (policies.save_any_names_but_these("b"), "001010"),
    "all but b": (policies.save_anything_except_these_names("b"), "111011"),
    "a saved, b offloaded": (policies.save_and_offload_only_these_names(**NAMES), "001100"),
    "dots or c": (policies.save_from_both_policies(
        policies.dots_saveable, policies.save_only_these_names("c")), "110010"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_policies_keep(name: str) -> None:
    policy, want = KEPT[name]

    def program(x: Any, y: Any) -> Any:
        return x @ x, jnp.einsum("bij,bjk->bik", y, y), *(checkpoint_name(x, n) for n in "abc"), jnp.sin(x)

    eqns = [e for e in anima.make_jaxpr(program)(jnp.ones((2, 2)), jnp.ones((2, 2, 2))).eqns
            if e.primitive.name in ("dot_general", "name", "sin")]
    assert [e.primitive.name for e in eqns] == ["dot_general", "dot_general", "name", "name", "name", "sin"]
    found = [policy(e.primitive, *[v.aval for v in e.invars], **e.params) for e in eqns]
    assert "".join(str(int(bool(f))) for f in found) == want
    offloaded = [f for f in found if type(f) not in (bool, int)]
    assert len(offloaded) == ("offloaded" in name)


@pytest.mark.parametrize("nums, args", [
    ((1,), (2.0, 3, 0.5)), ((-2,), (2.0, 3, 0.5)), (1, (2.0, 3, 0.5)), (-2, (2.0, 3, 0.5)),
    ((1, 3), (2.0, 3, 0.5, 7)), ((-1, 1), (2.0, 3, 0.5, 7)), ((-1, -3), (2.0, 3, 0.5, 7))], ids=str)
def test_arguments_by_value(nums: Any, args: tuple[Any, ...]) -> None:
    """From either end, in any order, and by name."""
    seen: list[Any] = []

    def fun(x: Any, n: int, y: Any, m: int = 7) -> Any:
        seen.append((type(n), type(m)))
        return x ** n * y + m

    where = [nums] if isinstance(nums, int) else nums
    assert float(anima.checkpoint(fun, static_argnums=nums)(*args)) == 11.0
    static_by_name = ["n"] if len(args) == 3 else ["m", "n"]
    ways: list[Callable[..., Any]] = [anima.checkpoint(fun, static_argnums=nums),
                                      anima.checkpoint(fun, static_argnames=static_by_name)]
    for way in ways:
        assert [float(g) for g in anima.grad(way, (0, 2))(*args)] == [6.0, 8.0]
    assert float(anima.grad(ways[1])(2.0, y=0.5, n=3)) == 6.0
    assert set(seen) == {(int, int)} and len(where) == len(static_by_name)


def test_equal_layers_are_one_program() -> None:
    """However their functions are made: what is derived of it is derived once."""
    scale = jnp.arange(1.0, 4.0)

    def loss(ws: Any, x: Any, wrap: Callable[..., Any]) -> Any:
        for w in ws:
            x = wrap(lambda w, x: jnp.tanh(x @ w) * scale)(w, x)
        return x.sum()

    kept = partial(loss, wrap=anima.checkpoint)
    ws, x = [jnp.full((3, 3), 0.5)] * 3, jnp.ones(3)
    programs = [e.params["jaxpr"] for e in anima.make_jaxpr(kept)(ws, x).eqns if e.primitive.name == "checkpoint"]
    assert len(programs) == 3
    assert programs[0] is programs[1] is programs[2]
    assert not programs[0].consts  # which would live as long as the program is known
    for got, want in zip(anima.grad(kept)(ws, x), anima.grad(partial(loss, wrap=lambda f: f))(ws, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
