"""Checkified functions in exported programs: their errors tell the same in another process."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import export as ex, tree
from anima.control.checks import ErrorLayout, FailedCheckError, Site
from anima.core.format import FormatError, sealed
from anima.experimental import checkify
from anima.export.checks import _from_bytes, _to_bytes
from anima.export.exported import MAGIC
from tests.export.test_damage import DAMAGES, HEAD

LOAD = """
import sys
from anima import export
error, y = export.deserialize(open(sys.argv[1], "rb").read()).call(-1.0, 9)
error.throw()
"""


def checked(x: Any, i: Any) -> Any:
    checkify.check(x > 0, "x is {x:.2f}, {more[n]}", x=x, more={"n": i})
    return jnp.log(x) + jnp.arange(5.0)[i]


def exported() -> ex.Exported:
    return ex.export(anima.jit(checkify.checkify(checked, errors=checkify.all_checks)))(1.0, 3)


def test_another_process_throws(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "checked.bin"
    file.write_bytes(exported().serialize())
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(anima.__file__).parents[1]))
    ran = subprocess.run([sys.executable, "-c", LOAD, str(file)], env=environment, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "x is -1.00, 9 (`check` failed)\n  at test_checks.py:" in ran.stderr and "JaxRuntimeError" in ran.stderr


@pytest.mark.parametrize("args", [(1.0, 3), (-1.0, 3), (1.0, 9), (0.0, -7)], ids=str)
def test_errors_are_those_of_the_function(args: tuple[float, int]) -> None:
    made, again = exported(), ex.deserialize(exported().serialize())
    here, there = made.call(*args)[0].get(), again.call(*args)[0].get()
    assert (here is None) == (there is None) == (args == (1.0, 3))
    if here is not None:
        # The text of a line is not in the file.
        assert there == here.split(":   ")[0] + ":"
    assert tree.structure(again.call(*args)).num_leaves == tree.structure(made.call(*args)).num_leaves


def test_errors_of_lanes() -> None:
    again = ex.deserialize(exported().serialize())
    error, _ = anima.vmap(again.call, (0, None))(jnp.array([1.0, -2.0]), 3)
    assert str(error.get()).startswith("at mapped index 1: x is -2.00, 3")


def test_damage() -> None:
    rng, blob = random.Random(0), exported().serialize()
    errors = 0
    for k in range(300):
        data = bytearray(blob[HEAD:])
        DAMAGES[k % len(DAMAGES)](rng, data)
        try:
            ex.deserialize(sealed(MAGIC, 1, bytes(data)))
        except FormatError:
            errors += 1
    assert errors > 150


@pytest.mark.parametrize("text", ["{x.__class__}", "{x:{y._aval}}", "{", "{x. _aval}"])
def test_formats_that_ask_for_what_is_private(text: str) -> None:
    aval = anima.typeof(jnp.float32(1))
    site = Site(FailedCheckError, text, None, tree.structure(((), {"x": 0})), (aval,))
    with pytest.raises(FormatError, match="plain format"):
        _from_bytes(_to_bytes(ErrorLayout((site,), (aval,))))
    plain = site._replace(text="{x.shape} {x:.3f}")
    assert _from_bytes(_to_bytes(ErrorLayout((plain,), (aval,)))) == ErrorLayout((plain,), (aval,))


@pytest.mark.parametrize("structure, slots", [(tree.structure((0, {})), 1), (tree.structure(((0,), {})), 0),
                                              (tree.structure(((0, 0), {})), 1), (tree.structure([(0,), {}]), 1)])
def test_sites_that_do_not_fit(structure: Any, slots: int) -> None:
    aval = anima.typeof(np.float32(1))
    with pytest.raises(FormatError):
        _from_bytes(_to_bytes(ErrorLayout((Site(FailedCheckError, "", None, structure, (aval,)),), (aval,) * slots)))
