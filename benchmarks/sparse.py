"""Sparse matrices: products, their gradients, from and to dense arrays, beside SciPy and JAX.

    python -m benchmarks.sparse
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

import anima
import anima.numpy as jnp
from anima.experimental import sparse
from benchmarks.harness import HAVE_JAX, Case, report

if HAVE_JAX:
    import jax
    import jax.experimental.sparse
    import jax.numpy

Function = Callable[..., Any]  # of (module of sparse arrays, the array, other operands)


def contestants(function: Function, matrix: Any, operands: tuple[np.ndarray, ...], scipy: Callable[[], Any] | None,
                kinds: tuple[str, ...] = ("BCOO", "BCSR")) -> dict[str, Callable[[], Any]]:
    """One operation of each: by BCOO arrays in order, and by rows."""
    out: dict[str, Callable[[], Any]] = {}
    modules = [("anima", anima, sparse, jnp)]
    if HAVE_JAX:
        modules.append(("jax", jax, jax.experimental.sparse, jax.numpy))
    for name, base, module, numpy in modules:
        for kind in kinds:
            mat = getattr(module, kind).from_scipy_sparse(matrix)
            given = tuple(map(numpy.asarray, operands))
            if kind == "BCOO":  # both know that indices are in order
                mat = mat.sort_indices()
            run = base.jit(lambda m, *xs, module=module: function(module, m, *xs))
            out[name if kind == kinds[0] else f"{name} {kind}"] = \
                lambda run=run, mat=mat, given=given, base=base: base.block_until_ready(run(mat, *given))
    if scipy is not None:
        out["scipy"] = scipy
    return out


def gradient(module: Any, mat: Any, v: Any) -> Any:
    """By the elements and the vector."""
    base = anima if module is sparse else jax

    def total(data: Any, v: Any) -> Any:
        children, aux = mat.tree_flatten()
        return (type(mat).tree_unflatten(aux, (data, *children[1:])) @ v).sum()

    return base.grad(total, argnums=(0, 1))(mat.data, v)


def cases(size: int, entries: int, dtype: str) -> list[Case]:
    """All products of a matrix."""
    rng = np.random.default_rng(0)
    a = scipy.sparse.random(size, size, entries / size**2, "csr", dtype=dtype, random_state=rng)
    v, wide = rng.normal(size=size).astype(dtype), rng.normal(size=(size, 32)).astype(dtype)
    turned, name = a.T, f"{size:.0e} x {size:.0e}, {entries:.0e} {dtype}"
    places = np.repeat(np.arange(size), np.diff(a.indptr))
    return [
        Case(f"matvec {name}", contestants(lambda s, m, x: m @ x, a, (v,), lambda: a @ v)),
        Case(f"matmat 32 {name}", contestants(lambda s, m, x: m @ x, a, (wide,), lambda: a @ wide), rounds=7),
        Case(f"transposed {name}", contestants(lambda s, m, x: x @ m, a, (v,), lambda: turned @ v, ("BCOO",))),
        Case(f"gradient {name}", contestants(gradient, a, (v,), lambda: (v[a.indices] * v[places], turned @ v)),
             rounds=7)]


def show() -> None:
    rng = np.random.default_rng(0)
    found = [case for size, entries in ((1000, 10_000), (100_000, 1_000_000)) for dtype in ("float32", "float64")
             for case in cases(size, entries, dtype)]
    a = scipy.sparse.random(2000, 2000, 0.01, "csr", dtype="float32", random_state=rng)
    dense = a.toarray()
    found.append(Case("todense 2e3 x 2e3, 1 %", contestants(lambda s, m: m.todense(), a, (), a.toarray)))
    found.append(Case("fromdense 2e3 x 2e3, 1 %", contestants(
        lambda s, m, x: s.BCOO.fromdense(x, nse=a.nnz), a, (dense,), lambda: scipy.sparse.coo_array(dense), ("BCOO",))))
    with anima.enable_x64(True):
        if HAVE_JAX:
            jax.config.update("jax_enable_x64", True)
        report(found, "Sparse matrices")


if __name__ == "__main__":
    show()
