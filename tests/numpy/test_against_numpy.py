"""Every function on small operands, run and recorded, against NumPy's result: the table is data/calls.txt."""

from __future__ import annotations

import pathlib
import re
import warnings

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.core.stage import eval_jaxpr

CALLS = [line for line in (pathlib.Path(__file__).parent / "data" / "calls.txt").read_text().splitlines()
         if line and not line.startswith("#")]


def _operands() -> dict[str, np.ndarray]:
    rng = np.random.RandomState(0)
    f, g = rng.randn(3, 4).astype("f"), rng.randn(4).astype("f")
    nf = f.copy()
    nf[1, 2] = nf[0] = np.nan
    i = rng.randint(-5, 9, (3, 4)).astype("i")
    return {"f": f, "g": g, "p": np.abs(f) + np.float32(0.5), "i": i, "j": rng.randint(1, 5, (3, 4)).astype("i"),
            "b": f > 0, "c": (f + 1j * f[::-1]).astype("c8"), "u": i.astype("u1"),
            "f3": rng.randn(2, 3, 4).astype("f"), "nf": nf, "v": rng.randn(7).astype("f"),
            "iv": np.array([0, 2, 1], "i")}


OPERANDS = _operands()


def _flat(x) -> list[np.ndarray]:
    if isinstance(x, (tuple, list)):
        return [leaf for item in x for leaf in _flat(item)]
    return [np.asarray(x)]


def _check(got, want) -> None:
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x.astype("c16"), y.astype("c16"), rtol=2e-5, atol=1e-5)


def _expected(call: str) -> list[np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _flat(eval("np." + call, {"np": np, **OPERANDS}))


@pytest.mark.parametrize("call", CALLS)
def test_eager(call):
    operands = {name: jnp.array(x) for name, x in OPERANDS.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        got = _flat(eval("jnp." + call, {"np": np, "jnp": jnp, **operands}))
    _check(got, _expected(call))


# Results whose size, or success, depends on the values of operands.
VALUES_NEEDED = ("mask_indices", "bincount", "unique", "union1d", "intersect1d", "setdiff1d", "setxor1d", "where(b)",
                 "choose", "nonzero", "flatnonzero", "argwhere", "extract", "ravel_multi_index", "isscalar",
                 "full_like(i,2.5)")


@pytest.mark.parametrize("call", [c for c in CALLS if not c.startswith(VALUES_NEEDED) and "np.sort" not in c
                                  and "np.argsort" not in c])
def test_recorded(call):
    """The same as a program: traced on shapes alone, then applied to the values."""
    names = [n for n in OPERANDS if re.search(rf"\b{n}\b", call.partition("(")[2])]

    def function(*args):
        result = eval("jnp." + call, {"np": np, "jnp": jnp, **OPERANDS, **dict(zip(names, args, strict=True))})
        return [jnp.asarray(x) for x in _leaves(result)]

    values = [OPERANDS[n] for n in names]
    program = anima.make_jaxpr(function)(*values)
    got = eval_jaxpr(program.jaxpr, program.consts, *map(jnp.array, values))
    _check([np.asarray(x) for x in got], _expected(call))


def _leaves(x) -> list:
    return [leaf for item in x for leaf in _leaves(item)] if isinstance(x, (tuple, list)) else [x]
