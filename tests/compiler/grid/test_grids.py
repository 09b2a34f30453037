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


# What a grid's threads share out depends on shapes, not on which numbers of a kind: one dtype of each has all cases, of
# the others each has half of them, in turn.
OF_A_KIND = ("float32", "int32", "uint32", "complex64", "bool")


@pytest.mark.parametrize(("record", "name"), PAIRS)
def test_every_operation(record: Record, name: str) -> None:
    cases = [c for c in record.cases_for(name) if c.plain]
    if name not in OF_A_KIND and set(OF_A_KIND) & set(record.dtypes):
        cases = cases[record.dtypes.index(name) % 2::2] or cases
    fun, args = whole(record, name, cases)
    eager = [np.asarray(o) for o in fun(*args)]
    program = compile_grid(anima.make_jaxpr(fun)(*args), record.name, (), TARGET)
    for got, want in zip(run(program, args), eager, strict=True):
        check(got.reshape(want.shape), want, 2 * record.tolerance(name), record.name)
