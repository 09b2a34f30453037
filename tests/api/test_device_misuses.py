"""What goes wrong with devices, meshes, shardings and collectives: the class of the error, and what it says.

`data/misuses.json` has a line for each: the expression, the class (that of JAX 0.10.2, or one that derives from it,
where JAX has an error of its own for it) and what the message begins with.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.experimental import mesh_utils, multihost_utils
from anima.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding

CASES = json.loads((pathlib.Path(__file__).parent / "data" / "misuses.json").read_text())
X = np.arange(16, dtype=np.float32).reshape(8, 2)


def on(mesh: Mesh, fun: Callable[[], Any]) -> Any:
    """What a function gives while this mesh is set."""
    with anima.set_mesh(mesh):
        return fun()


@pytest.fixture
def scope(eight_devices: list[anima.Device]) -> dict[str, Any]:
    """The names of the expressions: devices, meshes, arrays on them, and short forms of calls."""
    square = np.array(eight_devices).reshape(4, 2)
    auto, explicit = Mesh(square, ("x", "y")), anima.make_mesh((4, 2), ("x", "y"))

    def mapped(f: Callable[..., Any], ins: Any = P("x"), outs: Any = P("x"), mesh: Any = auto, **options: Any) -> Any:
        return anima.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, **options)

    def put(mesh: Mesh, *spec: Any) -> Any:
        return anima.device_put(X, NamedSharding(mesh, P(*spec)))

    return {"anima": anima, "jnp": jnp, "lax": lax, "np": np, "P": P, "NS": NamedSharding, "SDS": SingleDeviceSharding,
            "AT": AxisType, "Mesh": Mesh, "mu": multihost_utils, "meshu": mesh_utils, "D": eight_devices, "X": X,
            "on": on, "auto": auto, "ex": explicit, "four": Mesh(eight_devices[:4], "x"), "sm": mapped,
            "N": lambda *s: NamedSharding(auto, P(*s)), "E_": lambda *s: NamedSharding(explicit, P(*s)),
            "u": jnp.asarray(X), "a": put(auto, "x"), "ea": put(explicit, "x"),
            "d3": anima.device_put(X, eight_devices[3])}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_misuse(case: list[str], scope: dict[str, Any]) -> None:
    code, error, phrase = case
    with pytest.raises(Exception) as caught:
        eval(compile(code, "misuse.py", "eval"), scope)
    assert type(caught.value).__name__ == error and phrase in " ".join(str(caught.value).split()), caught.value


def test_there_are_many() -> None:
    assert len({code for code, *_ in CASES}) == len(CASES) > 165
