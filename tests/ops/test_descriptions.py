"""What operations say of themselves, which every pass of the compiler reads: no operation may leave it out."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import anima
import anima.api.later
import anima.experimental.sparse
import anima.ffi
import anima.numpy as jnp
import anima.ops.messages
import anima.random
from anima.compiler.ir.costs import operation_cost
from anima.compiler.lowering import lower  # noqa: F401  its rules are in the tables then
from anima.compiler.lowering.array import AT
from anima.compiler.lowering.calls import CALLS
from anima.compiler.lowering.reduce import REDUCTIONS
from anima.core.avals import ShapedArray
from anima.core.primitive import Primitive
from anima.ops.family import ELEMENTWISE


def primitives() -> dict[str, Primitive]:
    """All that there are, by name."""
    found = dict[str, Primitive](ELEMENTWISE)
    for name, module in list(sys.modules.items()):
        if name.startswith("anima."):
            found |= {p.name: p for p in vars(module).values() if isinstance(p, Primitive)}
    return found


ALL = primitives()


@pytest.mark.parametrize("name", sorted(set(AT) | set(REDUCTIONS) | set(ELEMENTWISE)))
def test_what_is_computed_by_element_has_a_cost(name: str) -> None:
    assert 0 <= ALL[name].cost < 1000


@pytest.mark.parametrize("name", sorted(set(AT) | set(REDUCTIONS) | set(CALLS)))
def test_tables_of_lowering_name_operations_that_exist(name: str) -> None:
    assert name in ALL


def test_costs_are_in_proportion() -> None:
    order = ["copy", "add", "div", "exp", "lgamma", "igamma", "polygamma"]
    costs = [ALL[name].cost for name in order]
    assert costs == sorted(costs) and len(set(costs)) == len(costs)
    assert operation_cost("igamma") == ALL["igamma"].cost and operation_cost("cast") < 1


CALLS_OF_MOVES: dict[str, Any] = {
    "reshape": lambda x: x.reshape(3, 2), "transpose": lambda x: x.T, "rev": lambda x: x[::-1],
    "slice": lambda x: x[:1], "squeeze": lambda x: x[:, :1].squeeze(1), "broadcast_in_dim": lambda x: x[None] + 0,
    "concatenate": lambda x: jnp.concatenate([x, x]), "pad": lambda x: jnp.pad(x, 1),
    "gather": lambda x: x[jnp.array([1, 0])],
    "dynamic_slice": lambda x: anima.lax.dynamic_slice(x, (1, 0), (1, 2)),
    "dynamic_update_slice": lambda x: anima.lax.dynamic_update_slice(x, x[:1], (1, 0))}


@pytest.mark.parametrize("name", sorted(CALLS_OF_MOVES))
def test_what_moves_makes_no_numbers(name: str) -> None:
    x = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
    assert ALL[name].moves
    assert set(np.unique(CALLS_OF_MOVES[name](jnp.asarray(x)))) <= {0.0, *x.ravel()}


def test_views_keep_the_order_of_elements() -> None:
    x = np.arange(6.0).reshape(2, 1, 3)
    aval = ShapedArray((2, 1, 3), np.dtype(np.float32))
    for name, params in (("reshape", {"new_sizes": (3, 2), "dimensions": None}), ("squeeze", {"dimensions": (1,)}),
                         ("broadcast_in_dim", {"shape": (2, 1, 1, 3), "broadcast_dimensions": (0, 1, 3)})):
        primitive = ALL[name]
        assert primitive.is_view(aval, primitive.infer(aval, **params))
        np.testing.assert_array_equal(np.ravel(primitive.eval(x, **params)), x.ravel())
    wider = {"shape": (2, 2, 3), "broadcast_dimensions": (0, 1, 2)}
    assert not ALL["broadcast_in_dim"].is_view(aval, ALL["broadcast_in_dim"].infer(aval, **wider))
    assert not ALL["transpose"].is_view(aval, aval)
