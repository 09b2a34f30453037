"""Records of the operations that sparse products are made of."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from anima.ops import sparse as sp
from tests.op_records import NUMBERS, Arg, Case, Record

WHOLE = ("int32", "int64")


def _pointers(numbers: np.ndarray, rows: int) -> np.ndarray:
    return np.stack([[(row < k).sum() for k in range(rows + 1)] for row in numbers.astype(int)])


def _numbers(pointers: np.ndarray, entries: int) -> np.ndarray:
    out = np.full((len(pointers), entries), pointers.shape[1] - 1)
    for b, pointer in enumerate(pointers.astype(int)):
        for row, (start, end) in enumerate(itertools.pairwise(pointer)):
            out[b, start:end] = row
    return out


def _entries(data: np.ndarray, rows: np.ndarray, columns: np.ndarray, x: np.ndarray, count: int,
             **_: Any) -> np.ndarray:
    batch = max(len(a) for a in (data, rows, columns, x))
    out = np.zeros((batch, count, x.shape[2]), np.result_type(data, x))
    for b in range(batch):
        values, row, column, dense = (a[b if len(a) > 1 else 0] for a in (data, rows, columns, x))
        for v, i, j in zip(values, row.astype(int), column.astype(int), strict=True):
            if 0 <= i < count and 0 <= j < len(dense):
                out[b, i] += v * dense[j]
    return out


def _rows(data: np.ndarray, columns: np.ndarray, pointers: np.ndarray, x: np.ndarray) -> np.ndarray:
    count = pointers.shape[1] - 1
    return _entries(data, _numbers(pointers, columns.shape[1]), columns, x, count)


def whole(values: Any) -> Arg:
    return Arg(values=values, dtype="int32")


def products(rows: bool) -> tuple[Case, ...]:
    """Empty rows, elements outside, repeated ones; shared by a batch or not; one column, few, and many."""
    places = [0, 0, 2, 2, 2, 3, 4, 4]
    columns = [1, 3, 0, -2, 5, 2, 1, 9]
    first, params = ([0, 2, 2, 5, 6, 8], {}) if rows else (places, {"count": 5, "sorted": True})
    many = np.sort(np.arange(300) * 7919 % 70)

    def where(at: Any, column: Any) -> tuple[Arg, Arg]:
        return (whole(column), whole(at)) if rows else (whole(at), whole(column))

    out = [Case((Arg((1, 8), 1, 3), *where([first], [columns]), Arg((1, 4, n), 1, 3)), params) for n in (1, 3, 5, 33)]
    out.append(Case((Arg((2, 8), 1, 3), *where([first], [columns]), Arg((1, 4, 2), 1, 3)), params))
    both = where([first, first], [columns, columns[::-1]])
    out.append(Case((Arg((1, 8), 1, 3), *both, Arg((2, 4, 5), 1, 3)), params))
    none = where([[0] * 4], np.zeros((1, 0))) if rows else where(np.zeros((1, 0)), np.zeros((1, 0)))
    out.append(Case((Arg((1, 0)), *none, Arg((1, 4, 2), 1, 3)), {} if rows else {"count": 3, "sorted": False}))
    if not rows:
        anywhere = whole([[4, 0, -1, 7, 2, 2, 0, 3]])
        out.append(Case((Arg((1, 8), 1, 3), anywhere, whole([columns]), Arg((1, 4, 3), 1, 3)),
                        {"count": 5, "sorted": False}))
    at = _pointers(many[None], 70)[0] if rows else many
    other = {} if rows else {"count": 70, "sorted": True}
    out.append(Case((Arg((1, 300), 1, 3), *where([at], [np.arange(300) * 31 % 90]), Arg((1, 90, 1), 1, 3)), other))
    one = [0, 200, 200] if rows else [0] * 200  # a row of many entries: sums are wider than 16 bits
    out.append(Case((Arg((1, 200), 1, 3), *where([one], [np.arange(200) % 4]), Arg((1, 4, 2), 1, 3)),
                    {} if rows else {"count": 2, "sorted": True}))
    return tuple(out)


SPARSE = (
    Record(sp.row_pointers_p, _pointers, (
        Case((whole([[0, 0, 1, 3, 3, 9]]),), {"rows": 4}), Case((whole([[2, 5], [0, 0]]),), {"rows": 5}),
        Case((whole(np.zeros((1, 0))),), {"rows": 3}), Case((whole([[0, 1]]),), {"rows": 0}),
        Case((whole([np.sort(np.arange(900) * 7919 % 2500)]),), {"rows": 2500})), WHOLE, constant=(0,), rejects=()),
    Record(sp.row_numbers_p, _numbers, (
        Case((whole([[0, 2, 2, 5]]),), {"entries": 5}), Case((whole([[1, 2], [0, 3]]),), {"entries": 4}),
        Case((whole([[0, 0, 0]]),), {"entries": 0})), WHOLE, constant=(0,), rejects=()),
    Record(sp.row_product_p, _rows, products(True), NUMBERS, ulps=8, constant=(1, 2)),
    Record(sp.entry_product_p, _entries, products(False), NUMBERS, ulps=8, constant=(1, 2)),
)
