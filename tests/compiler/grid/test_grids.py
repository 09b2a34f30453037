"""Programs for grids of threads do what they do elsewhere: run by threads of this machine in the place of a grid's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import anima
from anima.compiler.grid.compile import compile_grid
from tests.compiler.grid.emulated import TARGET, run
from tests.op_records import Record
from tests.test_every_op import PAIRS, check, whole


@pytest.fixture(autouse=True)
def all_dtypes() -> Iterator[None]:
    """64-bit types on."""
    with anima.enable_x64(True):
        yield


REFUSED = frozenset(("cholesky", "lu", "geqrf", "householder_product", "eig", "eigh", "svd"))


@pytest.mark.parametrize(("record", "name"), PAIRS)
def test_every_operation(record: Record, name: str) -> None:
    fun, args = whole(record, name, [c for c in record.cases_for(name) if c.plain])
    eager = [np.asarray(o) for o in fun(*args)]
    program = compile_grid(anima.make_jaxpr(fun)(*args), record.name, (), TARGET)
    for got, want in zip(run(program, args), eager, strict=True):
        check(got.reshape(want.shape), want, 2 * record.tolerance(name), record.name)
