"""Calls with holes, tried with everything that may stand in them, against the library whose functions they name.

    ("special.comb({n}, {k}, repetition={r})", {"n": ["i5"], "k": [0, 2], "r": ["False", "True"]})

What the library refuses must be refused, and the rest have its shapes and values; some calls are compiled, too.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp

COMPILED = 6  # calls of each row that are compiled; which ones differs from row to row
REFUSALS = (TypeError, ValueError, IndexError, NotImplementedError, ZeroDivisionError)
Row = tuple[str, Mapping[str, Sequence[Any]]]


def calls(row: Row) -> Iterator[str]:
    """A row's call with each combination in its holes."""
    call, holes = row
    for values in itertools.product(*holes.values()):
        yield call.format(**dict(zip(holes, values, strict=True)))


def scope(library: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"np": np, "lib": library, **values}


def leaves(out: Any) -> list[Any]:
    return [a for x in out for a in leaves(x)] if isinstance(out, (list, tuple)) else [out]


def outcome(call: str, library: Any, values: Mapping[str, Any]) -> Any:
    """The library's results, or the error that it raises, of which only the kind counts."""
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(a) for a in leaves(eval(f"lib.{call}", scope(library, values)))]
    except Exception as error:
        return error


def compare(got: Any, want: Sequence[np.ndarray], call: str, rtol: float = 2e-5, atol: float = 1e-5) -> None:
    got = [np.asarray(a) for a in leaves(got)]
    assert len(got) == len(want), call
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape, f"{call}: shape {a.shape}, not {b.shape}"
        np.testing.assert_allclose(a.astype("c16"), b.astype("c16"), rtol=rtol, atol=atol, err_msg=call)


def check_row(row: Row, library: Any, ours: Any, operands: Mapping[str, Any], known: tuple[str, ...] = (),
              **tolerance: float) -> None:
    """All calls of a row; compiled ones take operands whose names begin with f or c as arguments. Rows that begin as
    one of `known` need the values of these."""
    arrays = {name: jnp.asarray(x) for name, x in operands.items()}
    fine = []
    for call in calls(row):
        want = outcome(call, library, operands)
        if isinstance(want, Exception):
            with pytest.raises(REFUSALS):
                pytest.fail(f"{call} gives {eval(f'lib.{call}', scope(ours, arrays))}, the library: {want!r}")
        else:
            compare(eval(f"lib.{call}", scope(ours, arrays)), want, call, **tolerance)
            fine.append((call, want))
    fine = random.Random(row[0]).sample(fine, min(COMPILED, len(fine)))
    if fine and not row[0].startswith(known):
        everything = anima.jit(lambda values: [leaves(eval(f"lib.{call}", scope(ours, {**operands, **values})))
                                               for call, _ in fine])
        for got, (call, want) in zip(everything({k: v for k, v in arrays.items() if k[0] in "fc"}), fine, strict=True):
            compare(got, want, f"compiled {call}", **tolerance)
