"""Matrix products by generated code: against products in twice the precision, and within their memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.ir.loops import Buffer, Call, Program
from anima.compiler.machine import native, objects
from anima.compiler.machine.target import Target
from anima.compiler.products.blocking import (
    BLOCK_BYTES,
    DEPTH_BYTES,
    MOST_ROWS,
    MOST_VECTORS,
    Shape,
    blocking,
    cover,
    families,
)
from anima.runtime import threads
from anima.runtime.executable import compile_program
from tests.compiler.fences import Fenced
from tests.compiler.stages import lowered

HOST = native.host()
WITHOUT_AVX = ",".join(f for f in HOST.features.split(",") if not f.startswith("+avx"))
TARGETS = {
    "host": HOST,
    "32 bytes, 16 registers": replace(HOST, vector_bytes=min(HOST.vector_bytes, 32), registers=16),
    "16 bytes, no masks": replace(HOST, vector_bytes=16, registers=16, features=WITHOUT_AVX),
    "16 bytes, 32 registers": replace(HOST, vector_bytes=16, registers=32, features=WITHOUT_AVX),
}
DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}


@dataclass(frozen=True)
class Product:
    """A call of `gemm`; the strides of a batch may be 0 for a and b."""

    m: int
    n: int
    k: int
    transa: str = "N"
    transb: str = "N"
    dtype: str = "f32"
    alpha: float = 1.0
    beta: float = 0.0
    pad: tuple[int, int, int] = (0, 0, 0)       # elements between rows of a, b, c
    offset: tuple[int, int, int] = (0, 0, 0)
    batch: int = 1
    shared: tuple[bool, bool] = (False, False)  # one matrix for the whole batch

    @property
    def layouts(self) -> list[tuple[int, int, int]]:
        """Of a, b and c as they are stored: rows, columns, elements from row to row."""
        a = (self.m, self.k) if self.transa == "N" else (self.k, self.m)
        b = (self.k, self.n) if self.transb == "N" else (self.n, self.k)
        return [(*shape, shape[1] + pad) for shape, pad in zip((a, b, (self.m, self.n)), self.pad, strict=True)]

    @property
    def steps(self) -> list[int]:
        """Elements from one matrix of the batch to the next."""
        sizes = [rows * ld + 3 for rows, _, ld in self.layouts]
        return [0 if shared else size for size, shared in zip(sizes, (*self.shared, False), strict=True)]

    @property
    def sizes(self) -> list[int]:
        """Elements of each buffer, none after the last one in use."""
        return [offset + (self.batch - 1) * step + (rows - 1) * ld + columns
                for (rows, columns, ld), step, offset in zip(self.layouts, self.steps, self.offset, strict=True)]

    def views(self, *buffers: np.ndarray) -> list[np.ndarray]:
        """The matrices in the buffers, stacked."""
        item = DTYPES[self.dtype].itemsize
        return [np.lib.stride_tricks.as_strided(buffer[offset:], (self.batch, rows, columns),
                                                (step * item, ld * item, item))
                for buffer, (rows, columns, ld), step, offset
                in zip(buffers, self.layouts, self.steps, self.offset, strict=True)]

    def program(self) -> Program:
        lds = [ld for _, _, ld in self.layouts]
        call = Call("gemm", (self.dtype, self.transa, self.transb, self.m, self.n, self.k, self.alpha,
                             "a", self.offset[0], lds[0], "b", self.offset[1], lds[1], self.beta,
                             "c", self.offset[2], lds[2], self.batch, *self.steps))
        a, b, c = self.sizes
        inputs = [Buffer("a", self.dtype, a, "input"), Buffer("b", self.dtype, b, "input"),
                  Buffer("c0", self.dtype, c, "input", donated=True)]
        return Program("product", (*inputs, Buffer("c", self.dtype, c, "output", alias="c0")), (call,))

    def data(self, seed: int = 0) -> list[np.ndarray]:
        """Buffers of numbers, NaN where no matrix lies."""
        rng = np.random.default_rng(seed)
        buffers = [np.full(size, np.nan, DTYPES[self.dtype]) for size in self.sizes]
        for view in self.views(*buffers):
            view[:] = rng.normal(size=view.shape)
        return buffers

    def check(self, target: Target = HOST) -> None:
        """Compares with the product in higher precision: no worse than sums one after the other may be."""
        a, b, c = self.data()
        before = c.copy()
        compile_program(self.program(), target=target)([a, b, c])
        x, y, z = (v.astype(np.longdouble) for v in self.views(a, b, before))
        x = x.swapaxes(1, 2) if self.transa == "T" else x
        y = y.swapaxes(1, 2) if self.transb == "T" else y
        product, bound = x @ y, np.abs(x) @ np.abs(y)
        kept = self.beta * z if self.beta else 0.0
        error = np.abs(self.views(a, b, c)[2] - (self.alpha * product + kept))
        allowed = (self.k + 4) * np.finfo(DTYPES[self.dtype]).eps * (abs(self.alpha) * bound + np.abs(kept))
        assert np.all(error <= allowed), f"{self}: {float(np.max(error - allowed))}"
        outside = np.ones(c.shape, bool)
        mask = np.lib.stride_tricks.as_strided(
            outside[self.offset[2]:], (self.batch, self.m, self.n), (self.steps[2], self.layouts[2][2], 1))
        mask[:] = False
        assert np.array_equal(c[outside], before[outside], equal_nan=True), f"{self}: wrote outside of C"


SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 14, 15, 16, 17, 23, 26, 27, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 100)


def random_product(rng: np.random.Generator) -> Product:
    deep = (1, 2, 3, 5, 16, 31, 64, 100, 257, 300)
    batch = int(rng.choice([1, 1, 1, 2, 5]))
    m, n, k = int(rng.choice(SIZES)), int(rng.choice(SIZES)), int(rng.choice(deep))
    return Product(
        m, n, k, str(rng.choice(["N", "T"])), str(rng.choice(["N", "T"])), dtype=str(rng.choice(list(DTYPES))),
        alpha=float(rng.choice([1.0, 1.0, -0.5])), beta=float(rng.choice([0.0, 0.0, 1.0, 2.5])),
        pad=tuple(int(p) for p in rng.choice([0, 1, 6], 3)), offset=tuple(int(o) for o in rng.choice([0, 1, 19], 3)),
        batch=batch, shared=(bool(rng.integers(2)), bool(rng.integers(2))))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(60))
def test_random_products(seed: int) -> None:
    random_product(np.random.default_rng(seed)).check()


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("seed", range(100, 112))
def test_random_products_for_other_machines(seed: int, target: str) -> None:
    random_product(np.random.default_rng(seed)).check(TARGETS[target])


@pytest.mark.parametrize(("transa", "transb"), list(itertools.product("NT", repeat=2)))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_all_transposes(dtype: str, transa: str, transb: str) -> None:
    for m, n, k in ((64, 64, 64), (37, 83, 29), (128, 10, 128), (3, 200, 50), (150, 3, 70)):
        Product(m, n, k, transa, transb, dtype).check()


@pytest.mark.parametrize(("transa", "transb"), list(itertools.product("NT", repeat=2)))
@pytest.mark.parametrize(("m", "n", "k"), [(130, 300, 700), (29, 513, 1025), (300, 31, 600), (61, 1030, 270)])
def test_several_blocks(m: int, n: int, k: int, transa: str, transb: str) -> None:
    Product(m, n, k, transa, transb).check()
    Product(m, n, k, transa, transb, beta=1.0, dtype="f64").check()
    Product(m, n, k, transa, transb, alpha=2.0, beta=-3.0).check()


@pytest.mark.parametrize(("transa", "transb"), list(itertools.product("NT", repeat=2)))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_strides_that_share_places_in_caches(dtype: str, transa: str, transb: str) -> None:
    Product(30, 80, 512, transa, transb, dtype, pad=(512, 512, 0)).check()


@pytest.mark.parametrize(("transa", "transb"), list(itertools.product("NT", repeat=2)))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_vectors(dtype: str, transa: str, transb: str) -> None:
    for n, k in ((1, 1), (1, 300), (300, 1), (5, 3), (64, 64), (999, 131), (2500, 67), (33, 5000)):
        for beta, pad in ((0.0, (0, 0, 0)), (1.0, (0, 0, 0)), (1.0, (2, 3, 4)), (0.5, (0, 0, 0))):
            Product(1, n, k, transa, transb, dtype, beta=beta, pad=pad).check()
            Product(n, 1, k, transa, transb, dtype, beta=beta, pad=pad).check()
    for few in (2, 3, 4, 8):
        Product(few, 75, 131, transa, transb, dtype, beta=1.0, pad=(2, 3, 4)).check()
        Product(75, few, 131, transa, transb, dtype, pad=(1, 0, 5), batch=2).check()
    Product(1, 70, 90, transa, transb, dtype, batch=4, shared=(False, True)).check()
    Product(70, 1, 90, transa, transb, dtype, batch=4, shared=(True, False)).check()


@pytest.mark.parametrize("shape", [(5, 40, 20), (30, 33, 40), (1, 50, 60), (50, 1, 60), (14, 32, 8)])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_nan_and_infinity_are_not_skipped(shape: tuple[int, int, int], dtype: str) -> None:
    product = Product(*shape, dtype=dtype)
    for special in (np.nan, np.inf):
        a, b, c = product.data()
        x, y, z = product.views(a, b, c)
        x[0, :, 3] = 0.0
        y[0, 3, :] = special
        compile_program(product.program())([a, b, c])
        assert np.isnan(z).all()
        a, b, c = product.data()
        x, y, z = product.views(a, b, c)
        x[0, -1, 0] = special
        compile_program(product.program())([a, b, c])
        assert np.isfinite(z[0, :-1]).all()
        assert not np.isfinite(z[0, -1]).any()


@pytest.mark.parametrize("shape", [(20, 50, 30), (1, 50, 30), (50, 1, 30), (14, 32, 300)])
def test_c_is_not_read_if_beta_is_zero(shape: tuple[int, int, int]) -> None:
    for alpha in (1.0, 2.0):
        product = Product(*shape, alpha=alpha)
        a, b, c = product.data()
        c[:] = np.nan
        compile_program(product.program())([a, b, c])
        assert np.isfinite(c).all()


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    yield 1, 2, 3, 5
    threads.set_num_threads(None)


@pytest.mark.parametrize("product", [
    Product(300, 300, 300), Product(1000, 64, 128, transa="T"), Product(128, 700, 300, transb="T", dtype="f64"),
    Product(1, 2000, 900), Product(900, 1, 2000), Product(64, 64, 64, batch=9, shared=(True, False)),
    Product(200, 250, 600, alpha=0.3, beta=2.0), Product(60, 10, 3000, transa="T"),
], ids=str)
def test_the_number_of_threads_changes_no_bit(product: Product, thread_counts: tuple[int, ...]) -> None:
    run = compile_program(product.program())
    assert run.code.parallel
    results = []
    for count in thread_counts:
        threads.set_num_threads(count)
        for _ in range(3):
            a, b, c = product.data()
            run([a, b, c])
            results.append(c)
    assert all(np.array_equal(results[0], other, equal_nan=True) for other in results[1:])


def test_small_products_run_in_one_thread() -> None:
    assert not compile_program(Product(32, 32, 32).program()).code.parallel


# --- Memory that is not ours ------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="protects pages")
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("target", ["host", "16 bytes, no masks"])
@pytest.mark.parametrize(("transa", "transb"), list(itertools.product("NT", repeat=2)))
def test_nothing_outside_of_the_buffers_is_touched(transa: str, transb: str, target: str, at_end: bool) -> None:
    for m, n, k in ((5, 7, 3), (15, 33, 17), (14, 32, 16), (27, 10, 300), (1, 45, 19), (45, 1, 19), (64, 65, 66),
                    (70, 300, 33)):
        for dtype in DTYPES:
            product = Product(m, n, k, transa, transb, dtype)
            fence = Fenced()
            plain = product.data()
            a, b, c = (fence.array(x, at_end) for x in plain)
            run = compile_program(product.program(), target=TARGETS[target])
            run([a, b, c])
            run(plain)
            assert np.array_equal(c, plain[2])


# --- Plans ------------------------------------------------------------------------------------


@pytest.mark.parametrize("registers", [16, 32])
def test_tiles_cover_all_rows(registers: int) -> None:
    heights, _ = families(registers)
    for m in (*range(1, 200), 512, 1000, 1797, 4096, 100_003):
        high, low, first, tiles = cover(m, heights)
        covered = first * high + (tiles - first) * low
        last = low if tiles > first else high
        assert {high, low} <= set(heights)
        assert m <= covered < m + last, m  # only the last tile may be in part outside
        assert covered <= max(1.15 * m, m + 3), m


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize(("vector_bytes", "registers"), [(16, 16), (16, 32), (32, 16), (64, 32)])
def test_blocks_fit_into_their_memory(vector_bytes: int, registers: int, itemsize: int) -> None:
    lanes = vector_bytes // itemsize
    _, sums = families(registers)
    rng = np.random.default_rng(0)
    for _ in range(300):
        m, n, k = (int(x) for x in 2 ** rng.uniform(0, 13, 3))
        p = blocking(Shape(m, n, k, k, 1, n, 1, n, 1, itemsize), lanes, registers)
        width = p.vectors * lanes
        assert p.nc % width == 0
        assert p.nc * p.kc * itemsize <= BLOCK_BYTES
        assert p.kc * itemsize <= DEPTH_BYTES[itemsize]
        assert max(p.rows) <= MOST_ROWS
        assert p.edge <= p.vectors <= MOST_VECTORS
        assert max(p.rows[0] if p.first else 0, p.rows[1] if p.tiles > p.first else 0) * p.vectors <= sums
        assert n % width <= p.edge * lanes


# --- From above -------------------------------------------------------------------------------


def test_vectors_of_several_types_in_one_program() -> None:
    rng = np.random.default_rng(0)
    with anima.enable_x64(True):
        args = [rng.normal(size=shape).astype(dtype) for dtype in ("float32", "float64") for shape in ((300, 700), 700)]
        found = anima.jit(lambda a, x, b, y: (a @ x, b @ y, x @ a.T, y @ b.T))(*args)
    for got, (matrix, vector) in zip(found, [args[:2], args[2:]] * 2, strict=True):
        eps = np.finfo(vector.dtype).eps
        np.testing.assert_allclose(got, matrix.astype(np.float64) @ vector, atol=1000 * eps)


def test_programs_share_kernels() -> None:
    """Modules of drivers and kernels are made once; another product of like shape adds none."""
    x = np.ones((128, 64), np.float32)
    first = anima.jit(lambda a, b: (a @ b, b @ a)).lower(x, x.T)
    first.compile()
    known = dict(objects._shared)
    assert known
    y = np.ones((256, 128), np.float32)
    anima.jit(lambda a, b: (a @ b, b @ a)).lower(y, y.T).compile()
    assert dict(objects._shared) == known


def test_the_program_itself_stays_small() -> None:
    """Six products add a few lines each to a program's own module."""
    def layers(x: anima.Array, *weights: anima.Array) -> anima.Array:
        for w in weights:
            x = x @ w
        return x

    weights = [np.ones((64, 64), np.float32)] * 6
    text = compile_program(anima.jit(layers).lower(np.ones((64, 64), np.float32), *weights).stages.loops).code.texts[0]
    assert len(text.splitlines()) < 6 * 25 + 60


@pytest.mark.parametrize("spec", ["ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "bij,bjk->bik", "bij,bkj->bik", "ij,bjk->bik",
                                  "bij,jk->bik", "ijk,kl->ijl", "j,jk->k", "ij,j->i", "bj,bjk->bk"])
def test_contractions(spec: str) -> None:
    sizes = {"b": 3, "i": 65, "j": 70, "k": 300, "l": 33}
    rng = np.random.default_rng(0)
    left, right = spec.split("->")[0].split(",")
    x, y = (rng.normal(size=[sizes[s] for s in side]).astype(np.float32) for side in (left, right))
    got = anima.jit(lambda a, b: anima.numpy.einsum(spec, a, b))(x, y)
    np.testing.assert_allclose(np.asarray(got), np.einsum(spec, x.astype(np.float64), y.astype(np.float64)), atol=2e-4)


@pytest.mark.parametrize("m, k, n", [(33, 17, 40), (64, 1024, 16), (64, 1025, 16), (17, 258, 33), (17, 259, 33),
                                     (16, 0, 16), (1, 300, 65), (65, 9000, 15)])
@pytest.mark.parametrize("dtype", ("int8", "uint8", "int16", "uint16"))
def test_products_of_small_integers_are_exact(dtype, m, k, n):
    """By floats, of which the sums are below 2**24 or 2**53: with the largest numbers that there are."""
    rng, info = np.random.default_rng(0), np.iinfo(dtype)
    a, b = (np.where(rng.random(shape) < 0.7, info.min if info.min else info.max,
                     rng.integers(info.min, info.max + 1, shape)).astype(dtype) for shape in ((m, k), (k, n)))
    exact = a.astype(np.int64) @ b.astype(np.int64)
    for wanted in (None, dtype[:-1].rstrip("1") + "32", "float32"):
        got = anima.jit(lambda a, b, wanted=wanted: anima.lax.dot(a, b, preferred_element_type=wanted))(a, b)
        assert got.dtype == (wanted or dtype)
        if wanted == "float32":
            np.testing.assert_allclose(got, exact, rtol=1e-6)
        else:
            np.testing.assert_array_equal(got, exact.astype(got.dtype))


@pytest.mark.parametrize("fun", [
    lambda x, y: (x @ y).T,
    lambda x, y: jnp.einsum("ij,jk,kl->li", x, y, x),
    lambda x, y: jnp.einsum("ij,jk,kl->il", x, y, x),
    lambda x, y: jnp.einsum("ij,jk->ki", x, y),
])
def test_transposed_products_are_products_in_the_other_order(fun: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 70)).astype(np.float32), rng.normal(size=(70, 60)).astype(np.float32)
    names = [e.primitive.name for e in lowered(fun, x, y).jaxpr.eqns]
    assert "dot_general" in names and "transpose" not in names
    np.testing.assert_allclose(anima.jit(fun)(x, y), fun(x, y), 1e-3, 1e-3)


def test_products_that_are_read_otherwise_are_done_once() -> None:
    x = np.random.default_rng(0).normal(size=(60, 60)).astype(np.float32)
    stages = lowered(lambda x: [(x @ x).T, x @ x + 1], x)
    assert [e.primitive.name for e in stages.jaxpr.eqns].count("dot_general") == 1
