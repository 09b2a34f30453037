"""What JAX 0.10.2 gives for small expressions: values, shapes, dtypes and weak types (`*`).

The facts were recorded from an installed JAX. Out-of-bounds reading clamps, writing is dropped, `take` fills;
sizes may be fixed; numbers are weak.
"""

from __future__ import annotations

import json
import pathlib
import warnings

import numpy as np
import pytest

import anima.numpy as jnp
from anima import lax, nn, scipy

FACTS = json.loads((pathlib.Path(__file__).parent / "data" / "jax_facts.json").read_text())


def _values(leaf: dict) -> np.ndarray:
    dtype = leaf["dtype"].rstrip("*")
    convert = complex if dtype.startswith("complex") else float if dtype.startswith("float") else lambda v: v
    return np.array([convert(v) for v in leaf["values"]], dtype).reshape(leaf["shape"])


@pytest.mark.parametrize("fact", FACTS, ids=[f["expr"] for f in FACTS])
def test_fact(fact):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        got = eval(fact["expr"], {"jnp": jnp, "lax": lax, "nn": nn, "scipy": scipy})
    got = list(got) if isinstance(got, (tuple, list)) else [got]
    assert len(got) == len(fact["out"])
    for x, leaf in zip(got, fact["out"], strict=True):
        assert f"{x.dtype.name}{'*' if x.weak_type else ''}" == leaf["dtype"]
        assert list(x.shape) == leaf["shape"]
        np.testing.assert_allclose(np.asarray(x), _values(leaf), rtol=2e-6, atol=1e-6)
