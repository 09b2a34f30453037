"""What is known of indices when a program is compiled: numbers, for loops that are written out or run as a whole.

    whole j < 4: t[j] = a[j * 2 + 1]        the elements 1, 3, 5, 7 of a
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anima.compiler.ir.loops import INDEX, Const, Expr, Op, Ref

Numbers = Any  # an int, a bool, or an array of such: one for each lane, or for each iteration of loops

_RULES: dict[str, Callable[..., Numbers]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv, "rem": operator.mod,
    "max": np.maximum, "min": np.minimum, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "cast": lambda x: x, "select_n": lambda which, no, yes: np.where(which, yes, no)}


def known(expr: Expr, numbers: Mapping[str, Numbers]) -> Numbers | None:
    """The value of an expression of indices and conditions on them; `numbers` are those of names. None: not known."""
    kind = type(expr)
    if kind is Const:
        return expr.value if expr.dtype in (INDEX, "bool") else None  # type: ignore[union-attr]
    if kind is Ref:
        return numbers.get(expr.name)  # type: ignore[union-attr]
    if kind is not Op or expr.dtype not in (INDEX, "bool"):
        return None
    assert isinstance(expr, Op)
    rule = _RULES.get(expr.name)
    if rule is None:
        return None
    values = []
    for arg in expr.args:
        value = known(arg, numbers)
        if value is None:
            return None
        values.append(value)
    return rule(*values)
