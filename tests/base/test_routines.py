"""BLAS and LAPACK without the package around them: no more of SciPy is loaded, and the package later on is whole."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anima.routines import blas, lapack, part

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, anima, anima.numpy as jnp
a = jnp.array([[2.0, 1.0], [1.0, 3.0]])
wide = jnp.eye(40) + 0.1
found = [jnp.linalg.cholesky(a), jnp.linalg.qr(a)[1], jnp.linalg.svd(a)[1], anima.jit(jnp.linalg.eigh)(wide)[0],
         anima.jit(jnp.linalg.solve)(wide, wide), anima.lax.linalg.triangular_solve(a, a, left_side=True, lower=True)]
assert "scipy" in sys.modules
print(*sorted(name for name in sys.modules if name.startswith("scipy.linalg")))
import scipy.linalg
assert scipy.linalg.cython_lapack.__pyx_capi__ and scipy.linalg.cython_blas and scipy.linalg.lapack._flapack
import numpy as np
numpy_a = np.array(a)
for ours, theirs in zip(found, [scipy.linalg.cholesky(numpy_a, lower=True), scipy.linalg.qr(numpy_a)[1],
                                scipy.linalg.svd(numpy_a)[1]]):
    np.testing.assert_allclose(abs(np.array(ours)), abs(theirs), rtol=1e-6, atol=1e-6)
np.testing.assert_allclose(jnp.linalg.svd(a)[1], found[2])
print(scipy.linalg.solve([[2.0]], [1.0]))
"""


def test_the_package_is_not_loaded_and_loads_later():
    found = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "\n[0.5]\n"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_wrappers_are_those_of_the_type(dtype):
    _, _, info = lapack("getrf", dtype)(np.eye(2, dtype=dtype))
    assert info == 0
    assert blas("gemm", dtype)(1, np.eye(2, dtype=dtype), np.eye(2, dtype=dtype)).dtype == dtype
    assert part("cython_blas") is part("cython_blas") and "dgemm" in part("cython_blas").__pyx_capi__
