"""`jax._src.numpy.util`: operands checked, and brought to one element type and one rank."""

from typing import Any

import numpy as np

from anima.core.array import Array
from anima.core.dtypes import default_int
from anima.numpy import promote, result_type

__all__ = ["check_arraylike", "check_arraylike_or_none", "ensure_arraylike", "promote_args", "promote_args_inexact",
           "promote_args_numeric", "promote_dtypes", "promote_dtypes_complex", "promote_dtypes_inexact",
           "promote_dtypes_numeric", "promote_shapes"]


def check_arraylike(fun_name: str, *args: Any) -> None:
    """TypeError if an argument cannot be an operand of the function of that name."""
    promote.operands(fun_name, *args)


def check_arraylike_or_none(fun_name: str, *args: Any) -> None:
    """As `check_arraylike`, of those that are not None."""
    check_arraylike(fun_name, *(x for x in args if x is not None))


def ensure_arraylike(fun_name: str, *args: Any) -> Any:
    """The operands as arrays, a single one by itself; TypeError for what cannot be one."""
    found = promote.as_arrays(fun_name, *args)
    return found[0] if len(found) == 1 else tuple(found)


def promote_shapes(fun_name: str, *args: Any) -> list[Any]:
    """The operands at one rank: those of a lower one, single numbers apart, get leading axes of size 1."""
    return promote.equal_ranks(fun_name, list(args))


def promote_args(fun_name: str, *args: Any) -> list[Array]:
    """The operands as arrays of their common dtype, and of one rank."""
    return [promote.as_array(x) for x in promote.promote(fun_name, *args)]


def promote_args_inexact(fun_name: str, *args: Any) -> list[Array]:
    """The operands as arrays of their common floating or complex dtype, and of one rank."""
    return [promote.as_array(x) for x in promote.promote_inexact(fun_name, *args)]


def promote_args_numeric(fun_name: str, *args: Any) -> list[Array]:
    """As `promote_args`; truth values become integers."""
    return [promote.as_array(x) for x in promote.promote_numeric(fun_name, *args)]


def promote_dtypes(*args: Any) -> list[Array]:
    """The operands as arrays of their common dtype; shapes as they are."""
    return promote.promote_dtypes("promote_dtypes", *args)


def promote_dtypes_inexact(*args: Any) -> list[Array]:
    """The operands as arrays of their common floating or complex dtype; shapes as they are."""
    return promote.promote_dtypes_inexact("promote_dtypes_inexact", *args)


def promote_dtypes_complex(*args: Any) -> list[Array]:
    """The operands as arrays of the complex dtype that can hold them all; shapes as they are."""
    found = promote_dtypes_inexact(*args)
    return [x.astype(result_type(x, np.complex64)) for x in found]


def promote_dtypes_numeric(*args: Any) -> list[Array]:
    """As `promote_dtypes`; truth values become integers."""
    found = promote_dtypes(*args)
    return [x.astype(default_int()) for x in found] if found and found[0].dtype == bool else found
