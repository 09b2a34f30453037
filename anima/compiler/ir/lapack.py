"""The routines of LAPACK (and a triangular solve of BLAS) that compiled programs call, and what their arguments are.

    dpotrf   UPLO n =a lda >info        Call("dpotrf", (batch, pieces, "U", n, "t1", 0, n*n, n, "t2", 0, 1))

Arguments stand in Fortran's order: letters, numbers, and buffers, each followed by the place of its first element and
the elements from one matrix of the batch to the next, or, as a negative number, from one piece of it to the next: those
to work in. A letter's name is in capitals; `<a` is a buffer that is read, `>a` one that is written, `=a` both; `*alpha`
is a number of the matrices' type. Matrices are column-major, as in Fortran. Pieces of a batch are done on several
threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from anima import routines
from anima.control.similar import schur_room
from anima.ops.linalg_factor import pivoting_room
from anima.ops.linalg_reflect import ormqr_room
from anima.routines import lapack

_COMMON = {
    "potrf": "UPLO n =a lda >info",
    "trsm": "SIDE UPLO TRANS DIAG m n *alpha <a lda =b ldb",
    "trsv": "UPLO TRANS DIAG order <a lda =x incx",
    "getrf": "m n =a lda >ipiv >info",
    "geqrf": "m n =a lda >tau >work lwork >info",
    "larft": "DIRECT STOREV order k <v ldv <tau >t ldt",
    "laset": "UPLO order k *alpha *beta =a lda",
    "gehrd": "n ilo ihi =a lda >tau >work lwork >info",
    "gtsv": "n nrhs =dl =d =du =b ldb >info",
    "trsyl": "TRANA TRANB isgn m n <a lda <b ldb =c ldc >scale >info"}
_REAL = {
    "orgqr": "m n k =a lda <tau >work lwork >info",
    "ormqr": "SIDE TRANS m n k =a lda <tau =c ldc >work lwork >info",
    "geqp3": "m n =a lda =jpvt >tau >work lwork >info",
    "syevd": "JOBZ UPLO n =a lda >w >work lwork >iwork liwork >info",
    "stevd": "JOBZ n =d =e >z ldz >work lwork >iwork liwork >info",
    "sytrd": "UPLO n =a lda >d >e >tau >work lwork >info",
    "gesdd": "JOBZ m n =a lda >s >u ldu >vt ldvt >work lwork >iwork >info",
    "gesvd": "JOBU JOBVT m n =a lda >s >u ldu >vt ldvt >work lwork >info",
    "geev": "JOBVL JOBVR n =a lda >wr >wi >vl ldvl >vr ldvr >work lwork >info",
    "gees": "JOBVS SORT SELECT n =a lda >sdim >wr >wi >vs ldvs >work lwork >bwork >info"}
_COMPLEX = {
    "ungqr": _REAL["orgqr"],
    "unmqr": _REAL["ormqr"],
    "hetrd": _REAL["sytrd"],
    "geqp3": "m n =a lda =jpvt >tau >work lwork >rwork >info",
    "heevd": "JOBZ UPLO n =a lda >w >work lwork >rwork lrwork >iwork liwork >info",
    "gesdd": "JOBZ m n =a lda >s >u ldu >vt ldvt >work lwork >rwork >iwork >info",
    "gesvd": "JOBU JOBVT m n =a lda >s >u ldu >vt ldvt >work lwork >rwork >info",
    "geev": "JOBVL JOBVR n =a lda >w >vl ldvl >vr ldvr >work lwork >rwork >info",
    "gees": "JOBVS SORT SELECT n =a lda >sdim >w >vs ldvs >work lwork >rwork >bwork >info"}

LETTERS = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}
DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
SCALARS = {letter: dtype for dtype, letter in LETTERS.items()}
SIGNATURES: dict[str, tuple[str, ...]] = {
    letter + name: tuple(text.split())
    for letter in "sdcz" for name, text in (_COMMON | (_REAL if letter in "sd" else _COMPLEX)).items()}


def _arguments(signature: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of a call's arguments, of the buffers that it reads, and of those that it writes."""
    names = ["batch", "pieces"]
    for argument in signature:
        name = argument[1:]
        names += [name, f"{name}_offset", f"{name}_stride"] if argument[0] in "<>=" else [argument.lstrip("*")]
    return (tuple(names), tuple(a[1:] for a in signature if a[0] in "<="),
            tuple(a[1:] for a in signature if a[0] in ">="))


# Of each routine: names of a call's arguments, of the buffers that it reads, and of those that it writes.
ROUTINES = {name: _arguments(signature) for name, signature in SIGNATURES.items()}


_PIECES = 64     # most pieces of a batch,
_LEAST = 30_000  # each of which takes so many nanoseconds or more, about,
_ROOM = 1 << 25  # and most bytes to work in, for all of them
_CALL = 1000     # nanoseconds of a call of LAPACK beside one for each of `product`, about


def pieces(batch: int, product: int, room: int) -> int:
    """How many pieces a batch is done in, where `product` is as in `alone` and each piece needs `room` bytes."""
    if product > routines.ALONE:
        return 1
    count = min(_PIECES, batch, batch * (_CALL + product) // _LEAST, _ROOM // max(room, 1))
    return -(-batch // piece(batch, max(count, 1)))


def piece(batch: int, pieces: int) -> int:
    """The matrices of each piece but the last, which may have fewer."""
    return max(1, -(-batch // pieces))


def product_of(given: Mapping[str, Any]) -> int:
    """The product of a matrix's sizes and the smaller of them again, for arguments by name."""
    sizes = [int(given[name]) for name in ("m", "n", "nrhs") if name in given]
    if not sizes:  # with vectors
        return int(given["order"])**2
    return math.prod(sizes) * (min(sizes) if len(sizes) > 1 else sizes[0]**2)


def alone(routine: str, args: Sequence[str | int | float]) -> bool:
    """Whether a call is better done by one thread of OpenBLAS's."""
    return product_of(dict(zip(ROUTINES[routine][0], args, strict=True))) <= routines.ALONE


def run(routine: str, args: Sequence[str | int | float], memory: Mapping[str, np.ndarray]) -> None:
    """What a call does, on arrays by name."""
    batch = int(args[0])
    each = piece(batch, int(args[1]))
    for t in range(batch):
        given = iter(args[2:])
        values = []
        for argument in SIGNATURES[routine]:
            value = next(given)
            if argument[0] in "<>=":
                offset, stride = int(next(given)), int(next(given))
                values.append(memory[str(value)][offset + (t * stride if stride >= 0 else t // each * -stride):])
            elif argument[0] == "*":
                values.append(np.array(value, DTYPES[routine[0]]))
            else:
                values.append(np.frombuffer(str(value).encode(), np.uint8) if argument.isupper() else
                              np.array(value, np.int32))
        routines.call(routine, values)


# ---------------------------------------------------------------- room to work in


@cache
def workspace(routine: str, m: int, n: int, *options: Any) -> dict[str, int]:
    """Elements of each work array that a routine asks for, for an m x n matrix and options as SciPy names them."""
    letter, name = routine[0], routine[1:]
    k = min(m, n)
    if name in ("geqrf", "orgqr", "ungqr"):  # both work on blocks of the same width
        return {"work": _asked(letter, "geqrf_lwork", m, n)[0]}
    if name in ("ormqr", "unmqr"):  # m is the size of the side that stays
        return {"work": ormqr_room(m)}
    if name == "geqp3":
        return {"work": pivoting_room(n), "rwork": 2 * n}
    if name in ("gehrd", "sytrd", "hetrd"):
        return {"work": _asked(letter, f"{name}_lwork", n)[0]}
    if name == "stevd":  # as documented
        (vectors,) = options
        return {"work": 1 + 4 * n + n * n if vectors else 1, "iwork": 3 + 5 * n if vectors else 1}
    if name == "gees":
        return {"work": _schur_room(letter, n), "rwork": n, "bwork": n}
    if name in ("syevd", "heevd"):
        sizes = _asked(letter, f"{name}_lwork", n)
        return dict(zip(("work", "iwork") if name == "syevd" else ("work", "iwork", "rwork"), sizes, strict=True))
    if name == "gesvd":
        vectors, full = options
        work = _asked(letter, "gesvd_lwork", m, n, compute_uv=vectors, full_matrices=full)[0]
        return {"work": work, "rwork": 5 * k}
    if name == "gesdd":
        vectors, full = options
        work = _asked(letter, "gesdd_lwork", m, n, compute_uv=vectors, full_matrices=full)[0]
        # As documented: enough for all shapes.
        rwork = max(7 * k, 5 * k * k + 5 * k, 2 * max(m, n) * k + 2 * k * k + k) if vectors else 7 * k
        return {"work": work, "iwork": 8 * k, "rwork": rwork}
    if name == "geev":
        left, right = options
        return {"work": _asked(letter, "geev_lwork", n, compute_vl=left, compute_vr=right)[0], "rwork": 2 * n}
    raise NotImplementedError(f"the work arrays of {routine}")


def _schur_room(letter: str, n: int) -> int:
    return schur_room(lapack("gees", DTYPES[letter]), n, DTYPES[letter])


def _asked(letter: str, query: str, *sizes: int, **options: Any) -> list[int]:
    """LAPACK's own answers, which come as numbers of the matrices' type: rounded up."""
    *answers, info = lapack(query, DTYPES[letter])(*sizes, **options)
    if info != 0:
        raise ValueError(f"{letter}{query}{sizes} failed with info = {info}")
    real = [float(np.real(a)) for a in answers]
    return [max(1, math.ceil(a * (1 + 2.0**-23) if letter in "sc" else a)) for a in real]
