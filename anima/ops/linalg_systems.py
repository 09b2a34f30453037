"""Linear equations for matrices: Sylvester's, A X + X B = C.

    X = sylvester(A, TA, U, B, TB, V, C)          A = U TA U^H and B = V TB V^H are Schur forms

The factors are functions of A and B, so that the derivative, which is in A, B and C, ignores them (Bartels and Stewart,
"Solution of the matrix equation AX + XB = C", 1972).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core.avals import ShapedArray, tangent_aval
from anima.core.primitive import Linear, Work, Zero
from anima.core.trace import aval_of
from anima.ops.broadcast import instantiate
from anima.ops.contract import batch_matmul
from anima.ops.elementwise import sub
from anima.ops.linalg import check_dtype, matrix_transpose
from anima.ops.stacked import Stacked
from anima.routines import lapack


class Sylvester(Stacked):
    """X with A X + X B = C, or with A^T and B^T in place of A and B if `transposed`."""

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(5.0 * outs[0].size * sum(outs[0].shape[-2:]))

    def infer(self, a: ShapedArray, ta: ShapedArray, u: ShapedArray, b: ShapedArray, tb: ShapedArray, v: ShapedArray,
              c: ShapedArray, *, transposed: bool) -> ShapedArray:
        check_dtype(self.name, c.dtype)
        m, n = c.shape[-2:]
        for x, size in ((a, m), (ta, m), (u, m), (b, n), (tb, n), (v, n)):
            if x.dtype != c.dtype or x.shape != (*c.shape[:-2], size, size):
                raise ValueError(f"Incompatible types for arguments to sylvester: {x} and {c}.")
        return ShapedArray(c.shape, c.dtype)

    def eval(self, a: np.ndarray, ta: np.ndarray, u: np.ndarray, b: np.ndarray, tb: np.ndarray, v: np.ndarray,
             c: np.ndarray, *, transposed: bool) -> np.ndarray:
        right = u.conj().swapaxes(-1, -2) @ (c.conj() if transposed else c) @ v
        out = np.empty_like(right)
        trans = {"trana": "C", "tranb": "C"} if transposed else {}
        for index in np.ndindex(c.shape[:-2] if c.size else (0,)):
            x, scale, info = lapack("trsyl", c.dtype)(ta[index], tb[index], right[index], **trans)
            out[index] = x / scale if info >= 0 else np.nan
        out = u @ out @ v.conj().swapaxes(-1, -2)
        return out.conj() if transposed else out

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, transposed: bool) -> tuple[Any, Any]:
        da, db, dc = tangents[0], tangents[3], tangents[6]
        out = self.bind(*primals, transposed=transposed)
        if all(isinstance(t, Zero) for t in (da, db, dc)):
            return out, Zero(tangent_aval(aval_of(out)))
        right = instantiate(dc)
        if not isinstance(da, Zero):
            right = sub(right, batch_matmul(matrix_transpose(da) if transposed else da, out))
        if not isinstance(db, Zero):
            right = sub(right, batch_matmul(out, matrix_transpose(db) if transposed else db))
        return out, self.bind(*primals[:6], right, transposed=transposed)

    def transpose(self, ct: Any, *args: Any, transposed: bool) -> Sequence[Any]:
        if any(isinstance(x, Linear) for x in args[:6]):
            raise self._missing("Transposition (reverse-mode differentiation)",
                                "It is linear in its last operand only.")
        if isinstance(ct, Zero):
            return [*[None] * 6, Zero(args[6].aval)]
        return [*[None] * 6, self.bind(*args[:6], ct, transposed=not transposed)]


sylvester_p = Sylvester("sylvester")
