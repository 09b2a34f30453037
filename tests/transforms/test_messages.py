"""Which messages the program of one process has; what they give is tested in tests/distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.ops.messages import exchange_p
from anima.sharding import AxisType
from anima.transforms.messages import SMALL, exchanging

pytestmark = pytest.mark.usefixtures("eight_devices")
LARGE = SMALL // 4 + 1


def messages(fun: Callable[..., Any], *sizes: int) -> list[tuple[str, str, int]]:
    """Of each message of a mapped function of float32 vectors: its kind, and type and size of its operand."""
    mesh = anima.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    mapped = anima.jit(anima.shard_map(fun, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False))
    program = mapped.lower(*[jnp.ones(8 * n) for n in sizes]).partitioned.jaxpr
    return [(e.params["kind"], str(e.invars[0].aval.dtype), e.invars[0].aval.size)
            for e in exchanging(program, mesh).jaxpr.eqns if e.primitive is exchange_p]


def total(x: Any) -> Any:
    return lax.psum(x, "x")


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], list[tuple[str, str, int]]]] = {
    "a tree": (lambda a, b, c: total((a, b, c)), (3, 4, 1), [("add", "float32", 8)]),
    "each used at once": (lambda a, b: 2 * total(a).sum() + total(jnp.sin(b)).sum(), (3, 4), [("add", "float32", 7)]),
    "one needs the other": (lambda a, b: total(b * total(a).sum()), (3, 4), [("add", "float32", 3),
                                                                             ("add", "float32", 4)]),
    "something large needs one": (lambda a, b: total(jnp.sin(b * total(a)[0]).sum()) + total(a + 1)[0], (3, LARGE),
                                  [("add", "float32", 3), ("add", "float32", 4)]),
    "large ones": (lambda a, b: total((a, b)), (3, LARGE), [("add", "float32", LARGE), ("add", "float32", 3)]),
    "types": (lambda a, b: total((a, b.astype("int32"), a + 1)), (3, 4), [("add", "float32", 6), ("add", "int32", 4)]),
    "kinds": (lambda a, b: (total(a), lax.pmin(b, "x"), lax.pmin(a, "x")), (3, 4), [("add", "float32", 3),
                                                                                    ("min", "int32", 7)]),
    "groups": (lambda a: (lax.psum(a, "x", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]]), total(a)), (3,),
               [("gather", "float32", 3), ("add", "float32", 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_messages_are_few(name: str) -> None:
    fun, sizes, expected = CASES[name]
    assert messages(fun, *sizes) == expected
