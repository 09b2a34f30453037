"""Products with logarithms, 0 where their first factor is: special functions and distributions are made of them.

    x log y, 0 where x is 0                                  xlogy(x, y), xlog1py(x, y)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima.core.array import Array
from anima.core.primitive import Zero
from anima.numpy.functions import log, log1p
from anima.numpy.selection import where
from anima.ops.broadcast import full_like
from anima.transforms.custom import custom_jvp
from anima.transforms.symbolic_zeros import SymbolicZero


def _sum(terms: Sequence[Any], like: Array) -> Array:
    return terms[0] + terms[1] if len(terms) > 1 else terms[0] if terms else full_like(like, 0)


@custom_jvp
def xlogy(x: Array, y: Array) -> Array:
    """x log(y), 0 where x is 0 and y not NaN."""
    zero = (x == 0) & (y == y)
    return where(zero, 0, x * log(where(zero, 1, y)))


@custom_jvp
def xlog1py(x: Array, y: Array) -> Array:
    """x log(1 + y), 0 where x is 0 and y not NaN."""
    zero = (x == 0) & (y == y)
    return where(zero, 0, x * log1p(where(zero, 0, y)))


def _product_jvp(product: Any, logarithm: Any, shift: float) -> Any:
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        out = product(x, y)
        terms = []
        if not isinstance(dx, (Zero, SymbolicZero)):
            terms.append(dx * logarithm(y))
        if not isinstance(dy, (Zero, SymbolicZero)):
            below = y + shift
            terms.append(dy * (x / where((x == 0) & (below == 0), 1, below)))  # 0 / 0 = 0; its slope in x is 1 / below
        return out, _sum(terms, out)

    return rule


xlogy.defjvp(_product_jvp(xlogy, log, 0.0), symbolic_zeros=True)
xlog1py.defjvp(_product_jvp(xlog1py, log1p, 1.0), symbolic_zeros=True)
