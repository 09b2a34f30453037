"""Small functions and the programs that JAX records of them: types, and the operations in their order.

`data/programs.json` holds functions (scope: anima, jnp, np, lax), their arguments, and of JAX 0.10.2's program the
types of arguments and results and the names of the operations, those of programs in parameters included, without `jit`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core.jaxpr import Jaxpr, subjaxprs

CASES = json.loads((pathlib.Path(__file__).parent / "data" / "programs.json").read_text())

# Whose operations are others, and which sentence of docs/differences.md says why.
OTHERS = {
    "astype_and_clip": "conversions of literals",
    "shift_int": "conversions of literals",
    "iota_eye": "conversions of literals",
    "linalg": "`tril` of what is triangular already",
    "random": "bounds of `uniform` that are 0 and 1",
    "vmap_of_cond": "conditionals under `vmap` stay conditionals",
    "scatter_set_add": "`scatter_add` does not hold the program of an addition",
    "checkpoint": "`checkpoint` keeps what it wraps together",
}


def operations(program: Any) -> Iterator[str]:
    jaxpr = program if isinstance(program, Jaxpr) else program.jaxpr
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != "pjit":
            yield eqn.primitive.name
        for inner in subjaxprs(eqn.params):
            yield from operations(inner)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_program(case: dict[str, Any]) -> None:
    scope: dict[str, Any] = {"anima": anima, "jnp": jnp, "np": np, "lax": lax}
    exec(case["f"], scope)
    program = anima.make_jaxpr(scope["f"])(*eval(case["args"], scope))
    assert [a.str_short() for a in program.in_avals] == case["in"]
    assert [a.str_short() for a in program.out_avals] == case["out"]
    assert (list(operations(program)) == case["primitives"]) == (case["id"] not in OTHERS)


def test_the_reasons_are_in_the_documentation() -> None:
    text = " ".join((pathlib.Path(__file__).parents[2] / "docs" / "differences.md").read_text().split())
    assert all(reason in text for reason in OTHERS.values())
