"""Every operation of the records, with all of its parameters, is the same after it was written and read."""

from __future__ import annotations

from typing import Any

import pytest

import anima
from anima import export as ex
from anima.export.primitives import is_exported
from tests.op_records import Record
from tests.test_every_op import EACH, whole


@pytest.mark.parametrize("record", EACH)
def test_it_is_the_same_program(record: Record) -> None:
    with anima.enable_x64(True):
        for name in record.dtypes[::4]:
            fun, args = whole(record, name, record.cases_for(name))

            def traced(*xs: Any, fun: Any = fun) -> Any:
                return fun(*xs)

            exported = ex.export(anima.jit(traced))(*args)
            again = ex.deserialize(exported.serialize())
            assert again.in_avals == exported.in_avals and again.out_avals == exported.out_avals
            if all(is_exported(e.primitive) for e in exported.jaxpr.eqns):
                assert str(again.jaxpr) == str(exported.jaxpr)
                assert ex.deserialize(again.serialize()).serialize() == again.serialize()
