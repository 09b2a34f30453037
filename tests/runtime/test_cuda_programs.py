"""Programs on a card that computes: a driver whose kernels are threads of this machine, and a library of products whose
matrices are column-major. Results are those of the CPU, whatever is launched, in which order, from which memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.api import remotes
from anima.compiler.grid import compile
from anima.core.array import PlacedArray
from anima.core.device import machines
from anima.core.trace import EvalTrace
from anima.runtime import cuda, cuda_driver
from anima.util import replace
from tests.compiler.grid import cards, emulated
from tests.runtime.test_cuda import Driver, Function, put

ALIGNED = 256
TARGET = replace(emulated.TARGET, triple="nvptx64-nvidia-cuda")  # of small warps and blocks


class Card(Driver):
    """A driver whose kernels are compiled for this machine, and run on memory that is full of NaN at first, while the
    program goes on: of two streams, the first one is in order, and the second one is for copies at once."""

    def __init__(self, warp: int) -> None:
        super().__init__()
        self.warp = warp
        self.modules: list[Any] = []
        self.entries: list[int] = []
        self.streams = 0
        self.running: threading.Thread | None = None
        self.freed: list[Any] = []
        self.errors: list[BaseException] = []

    def run(self, function: int, words: list[int], blocks: int, threads: int, shared: int, waits: bool) -> None:
        """A kernel."""
        try:
            cards.Warps(threads, blocks, self.warp).launch(self.entries[function - 1], words, shared)
            counted = ctypes.c_uint32.from_address(words[-1]).value
            assert counted % (1 << 31) == 0  # as many came to the grid's barriers as were waited for
            assert counted == 0 or waits
        except BaseException as error:
            self.errors.append(error)

    def finish(self) -> None:
        """Waits for what runs."""
        if self.running is not None:
            self.running.join()
            self.running = None
        self.freed.clear()
        if self.errors:
            raise self.errors.pop()

    def answer(self, name: str, args: tuple[Any, ...]) -> int:
        match name:
            case "cuStreamCreate":
                self.streams += 1
                return put(args[0], self.streams)
            case "cuStreamQuery":
                if self.running is not None and self.running.is_alive():
                    return cuda_driver.NOT_READY
                self.finish()
            case "cuCtxSynchronize":
                self.finish()
            case "cuMemcpyHtoDAsync_v2" | "cuMemcpyDtoHAsync_v2" | "cuMemcpyDtoDAsync_v2":
                if args[3].value == 1:
                    self.finish()
                return super().answer(name, args)
            case "cuMemFreeAsync":
                block = self.blocks.pop(args[0])
                if args[1].value == 1:
                    self.freed.append(block)  # in order too
                else:
                    ctypes.memset(block, 255, len(block))
            case "cuMemHostAlloc":
                self.pinned = ctypes.create_string_buffer(args[1])
                return put(args[0], ctypes.addressof(self.pinned))
            case "cuMemAllocAsync":
                block = ctypes.create_string_buffer(b"\xff" * (args[1] + ALIGNED), args[1] + ALIGNED)
                start = -(-ctypes.addressof(block) // ALIGNED) * ALIGNED
                self.blocks[start] = block
                return put(args[0], start)
            case "cuMemsetD8Async":
                if args[3].value == 1:
                    self.finish()
                ctypes.memset(args[0], args[1], args[2])
            case "cuModuleLoadDataEx":
                self.modules.append(cards.load(args[1].decode()))
                return put(args[0], len(self.modules))
            case "cuModuleGetFunction":
                self.entries.append(self.modules[args[1].value - 1](args[2].decode()))
                return put(args[0], len(self.entries))
            case "cuOccupancyMaxActiveBlocksPerMultiprocessor":
                return put(args[0], 1)
            case "cuDeviceGetAttribute":
                return put(args[0], {16: emulated.BLOCKS, 75: 9, 76: 0}[args[1]])
            case "cuLaunchKernel" | "cuLaunchCooperativeKernel":
                function, blocks, _, _, threads, _, _, shared, _, params, *_ = args
                words = [ctypes.c_uint64.from_address(p).value for p in params]
                assert all(w % ALIGNED == 0 for w in words)
                self.finish()
                self.running = threading.Thread(target=self.run, args=(
                    function.value, words, blocks, threads, shared, name == "cuLaunchCooperativeKernel"))
                self.running.start()
            case _:
                return super().answer(name, args)
        return 0


class Library:
    """cuBLAS, by its documents: C = alpha op(A) op(B) + beta C, all column-major."""

    KINDS = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}

    def __init__(self) -> None:
        self.products = 0
        self.before: Callable[[], None] = lambda: None  # waits for what was launched

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cublas"):
            raise AttributeError(name)
        found = Function(lambda *args: self.gemm(np.dtype(self.KINDS[name[6]]), *args) if "gemm" in name else 0)
        setattr(self, name, found)
        return found

    def gemm(self, dtype: np.dtype, handle: Any, turned_a: int, turned_b: int, m: int, n: int, k: int, alpha: Any,
             a: int, lda: int, step_a: int, b: int, ldb: int, step_b: int, beta: Any, c: int, ldc: int, step_c: int,
             batch: int) -> int:
        self.products += 1
        self.before()

        def matrix(address: int, rows: int, columns: int, ld: int, t: int, step: int) -> np.ndarray:
            assert ld >= rows
            span = (columns - 1) * ld + rows
            memory = (ctypes.c_char * (span * dtype.itemsize)).from_address(address + t * step * dtype.itemsize)
            flat = np.frombuffer(memory, dtype)
            return np.lib.stride_tricks.as_strided(flat, (rows, columns), (dtype.itemsize, ld * dtype.itemsize))

        one, other = (np.frombuffer(x, dtype)[0] for x in (alpha, beta))
        for t in range(batch):
            x = matrix(a, *((k, m) if turned_a else (m, k)), lda, t, step_a)
            y = matrix(b, *((n, k) if turned_b else (k, n)), ldb, t, step_b)
            z = matrix(c, m, n, ldc, t, step_c)
            z[...] = one * ((x.T if turned_a else x) @ (y.T if turned_b else y)) + (other * z if other else 0)
        return 0


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, library: Library) -> Iterator[anima.Device]:
    """A card of `TARGET`, or one whose warps have as many lanes as a test asks for."""
    warp = getattr(request, "param", TARGET.warp)
    target, driver = replace(TARGET, warp=warp, block=2 * warp, single=2 * warp), Card(warp)
    library.before = driver.finish
    monkeypatch.setattr(cuda_driver, "_driver_functions", lambda: driver)
    monkeypatch.setattr(cuda, "blas_library", lambda: library)
    monkeypatch.setattr(cuda, "nvidia", lambda capability, processors, products: replace(target, products=products))
    monkeypatch.setattr(cuda.ptx, "compile_ptx", lambda text, target: text.encode())
    monkeypatch.setattr(EvalTrace, "on_remote", None)
    before = dict(machines)
    cuda.gpu.cache_clear()
    remotes.gpus.cache_clear()
    yield anima.devices("gpu")[0]
    cuda.gpu.cache_clear()
    remotes.gpus.cache_clear()
    machines.clear()
    machines.update(before)
    anima.clear_caches()


RNG = np.random.default_rng(0)
KEPT = RNG.normal(size=(3, 4)).astype(np.float32)
F, I = RNG.normal(size=(3, 4)).astype(np.float32), RNG.integers(-5, 9, (3, 4)).astype(np.int32)
LARGE = [RNG.normal(size=s).astype(np.float32) for s in ((70, 80), (80, 90), (90, 70))]
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elements": (lambda x, y: (x * 2 + y, x > y, x.astype(jnp.int8), x + 1j * y), (F, I)),
    "constants": (lambda x: (x + jnp.asarray(KEPT), jnp.asarray(KEPT).T @ x, jnp.asarray(KEPT)), (F,)),
    "as they are": (lambda x, y: (y, x, x, x + 0 * y), (F, I)),
    "nothing": (lambda x, y: (x[:0], y[:, :0] + 1, x[:0].sum(0), jnp.zeros((0, 2))), (F, I)),
    "of nothing": (lambda x: (x + 1, x.sum(1), jnp.concatenate([x, x])), (F[:0],)),
    "numbers": (lambda x, n, z: (x * n, n + 1, z * 2, n * 1.5), (np.float32(2.5), 3, 1j)),
    "no arguments": (lambda: (jnp.arange(5), jnp.eye(3)), ()),
    "sums": (lambda x: (x.sum(), x.max(0), jnp.argmax(x, 1), anima.nn.softmax(x), x.std()), (LARGE[0],)),
    "sums of few": (lambda x: (x.sum(1), x.max(0), x.prod((0, 2)), jnp.argmin(x, 0), jnp.cumsum(x, 1),
                               lax.fori_loop(0, 2, lambda i, c: c + x.sum(2, keepdims=True) / (1 + c.max(0)), x)),
                    (RNG.normal(size=(3, 2, 5)).astype(np.float32),)),
    "in turns": (lambda x: x / x.sum() + jnp.sort(x, 0) * x.max(1, keepdims=True), (LARGE[1],)),
    "loops": (lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), jnp.zeros(4), x), (F,)),
    "matrices in loops": (lambda x, y: (lax.scan(lambda c, r: (jnp.tanh(c @ c + r), c.sum()), x, y),
                                        lax.fori_loop(0, 3, lambda i, c: (c[1] @ c[0], c[0] * 0.5), (x, x.T))),
                          (LARGE[0][:4, :4], LARGE[1][:6, :4])),
    "long rows": (lambda x: (anima.nn.softmax(x), x / x.sum(1, keepdims=True)),
                  (RNG.uniform(size=(20, 2500)).astype(np.float32),)),
    "slopes": (anima.grad(lambda x: (jnp.sin(x) * jnp.cumsum(x, 0)).sum()), (F,)),
    "order": (lambda x, y: (jnp.sort(x, 1), jnp.argsort(y, 0), *lax.top_k(x, 2)), (F, I)),
    "indices": (lambda x, y: (x.at[y[0, :2], 0].set(7, mode="drop"), x[y[:, 0]], x.at[0].add(x[1])), (F, I % 3)),
    "halves": (lambda x: (x.astype(jnp.bfloat16) * 2, x.astype(jnp.float16) + 1), (F,)),
    "a large product": (lambda x, y: jnp.tanh(x @ y) + 1, (LARGE[0], LARGE[1])),
    "turned": (lambda x, y: (x.T @ x, y @ y.T, (x @ y).T, (y.T @ x.T) * 2), (LARGE[0], LARGE[1])),
    "one after the other": (lambda x, y, z: x @ (y @ z) + (x @ y) @ z, (*LARGE,)),
    "many": (lambda x, y: (jnp.einsum("bij,bjk->bik", x, y), jnp.einsum("bij,bkj->bik", x, x)),
             (np.stack([LARGE[0], -LARGE[0]]), np.stack([LARGE[1], 2 * LARGE[1]]))),
    "complex": (lambda x, y: (x + 1j * x) @ (y - 1j * y), (LARGE[0], LARGE[1])),
    "windows": (lambda x, w: (lax.conv_general_dilated(x, w, (1, 2), [(1, 2), (0, 1)]),
                              lax.conv_general_dilated(x, w, (1, 1), [(1, 1), (2, 1)], (2, 1), (1, 2)),
                              anima.grad(lambda w: lax.conv(x, w, (1, 1), "SAME").sum())(w)),
                (RNG.normal(size=(2, 3, 9, 8)).astype(np.float32), RNG.normal(size=(4, 3, 3, 2)).astype(np.float32)))}


def agree(found: Any, wanted: Any) -> None:
    for got, want in zip(anima.tree.leaves(found), anima.tree.leaves(wanted), strict=True):
        assert type(got) is PlacedArray and got.platform() == "gpu" and got.committed
        assert (got.dtype, got.shape, got.weak_type) == (want.dtype, want.shape, want.weak_type)
        a, b = np.asarray(got), np.asarray(want)
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a.astype(np.complex64), b.astype(np.complex64), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, card: anima.Device, library: Library) -> None:
    """Called twice with results kept; with the first argument there alone, and all."""
    fun, args = PROGRAMS[name]
    called = anima.jit(fun)
    wanted = called(*args)
    if not args:
        with anima.default_device(card):
            outs = called()
        for got, want in zip(outs, wanted, strict=True):
            assert got.platform() == "gpu"
            np.testing.assert_array_equal(got, want)
        return
    there = anima.device_put(args, card)
    first = called(*there)
    negative = [-x for x in args]
    second = called(*(anima.device_put(x, card) for x in negative))
    agree(first, wanted)
    agree(second, called(*negative))
    agree(called(there[0], *args[1:]), wanted)
    agree(there, [jnp.asarray(x) for x in args])
    assert bool(library.products) == (name in ("a large product", "turned", "one after the other", "many", "complex"))


@pytest.mark.parametrize("name", ["elements", "sums", "order", "indices", "loops", "slopes"])
def test_operations_one_by_one(name: str, card: anima.Device) -> None:
    fun, args = PROGRAMS[name]
    found = fun(*anima.device_put(args, card))
    agree(found, fun(*map(jnp.asarray, args)))


@pytest.mark.parametrize("card", [8, 16], indirect=True)
@pytest.mark.parametrize("row", [3, 4, 5, 7, 8, 9, 15, 16, 17])
def test_teams_that_are_parts_of_warps(row: int, card: anima.Device) -> None:
    """Rows of fewer elements than a warp has lanes: several are one warp's at once, the last of them are too few."""
    def program(x: Any) -> Any:
        y = jnp.exp(x - x.max(1, keepdims=True))
        return y / y.sum(1, keepdims=True), x.sum(1), jnp.argmax(x, 1), (x * x.min(1, keepdims=True)).prod(1), x @ x[0]

    for rows in (1, 5, 9):
        x = np.random.default_rng(row).normal(size=(rows, row)).astype(np.float32)
        agree(anima.jit(program)(anima.device_put(x, card)), anima.jit(program)(x))


def test_references_inside_of_programs(card: anima.Device) -> None:
    def program(x: Any) -> Any:
        total = anima.new_ref(jnp.zeros(3, jnp.float32))
        lax.fori_loop(0, 4, lambda i, _: total.__setitem__(i % 3, total[i % 3] + x[i]), None)
        return total[...]

    x = RNG.normal(size=4).astype(np.float32)
    np.testing.assert_allclose(anima.jit(program)(anima.device_put(x, card)), [x[0] + x[3], x[1], x[2]], rtol=1e-6)


def test_keys(card: anima.Device) -> None:
    with anima.default_device(card):
        key = anima.random.key(3)
        twice = key[None][0]
        with anima.debug_key_reuse(True), pytest.raises(anima.errors.KeyReuseError):
            keys = anima.random.split(twice)
            anima.random.normal(keys[0])
            anima.random.normal(keys[0])
        assert repr(anima.jit(lambda k: k)(key)) == repr(anima.device_put(key, anima.devices("cpu")[0]))


def test_chains_of_calls(card: anima.Device) -> None:
    step = anima.jit(lambda x, y: (x @ y * 0.1 + 1, y - x), donate_argnums=0)
    x, y = (anima.device_put(RNG.normal(size=(5, 5)).astype(np.float32), card) for _ in range(2))
    a, b = map(np.asarray, (x, y))
    for _ in range(5):
        old = x
        x, y = step(x, y)
        a, b = a @ b * np.float32(0.1) + 1, b - a
        assert old.is_deleted()
    np.testing.assert_allclose(np.asarray(x), a, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.asarray(y), b, rtol=1e-3, atol=1e-3)
    keys = anima.random.split(anima.device_put(anima.random.key(1), card), (2, 3))
    want = anima.random.split(anima.random.key(1), (2, 3))
    np.testing.assert_array_equal(anima.random.key_data(keys), anima.random.key_data(want))
    np.testing.assert_array_equal(anima.random.normal(keys[1, 2], (7,)), anima.random.normal(want[1, 2], (7,)))


def test_programs_that_call_back(card: anima.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callbacks in loops and branches of programs of one block and of several, with what they are given and give."""
    monkeypatch.setattr(compile, "LARGE", 100)
    seen: list[Any] = []

    def twice(x: Any) -> Any:
        seen.append(np.array(x))
        return 2 * np.asarray(x)

    def program(x: Any) -> Any:
        kind = anima.ShapeDtypeStruct(x.shape, x.dtype)

        def step(i: Any, c: Any) -> Any:
            anima.debug.callback(lambda i, s: seen.append((int(i), float(s))), i, c.sum())
            return lax.cond(i % 2 == 0, lambda c: anima.pure_callback(twice, kind, c) + 1, lambda c: c * 0.5, c)

        return lax.fori_loop(0, 4, step, x), anima.pure_callback(twice, kind, x @ x.T @ x)

    for size in (3, 12, 65):
        x = RNG.normal(size=(size, size)).astype(np.float32) / 8
        called = anima.jit(program)
        want, first = called(x), list(seen)
        seen.clear()
        agree(called(anima.device_put(x, card)), want)
        anima.effects_barrier()
        assert len(seen) == len(first) == 7
        for a, b in zip(seen, first, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
        seen.clear()


def test_callbacks_of_nothing_and_of_no_results(card: anima.Device, capsys: pytest.CaptureFixture[str]) -> None:
    x = anima.device_put(np.zeros((0, 3), np.float32), card)

    @anima.jit
    def program(x: Any) -> Any:
        anima.debug.print("rows {} {}", x.shape[0], x.sum())
        return anima.pure_callback(lambda x: np.asarray(x), anima.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert program(x).shape == (0, 3)
    anima.effects_barrier()
    assert capsys.readouterr().out == "rows 0 0.0\n"


def test_what_a_callback_raises_ends_the_program(card: anima.Device) -> None:
    calls: list[int] = []

    def picky(i: Any) -> Any:
        calls.append(int(i))
        if i == 3:
            raise ValueError("no more")
        return np.asarray(i)

    @anima.jit
    def program(x: Any) -> Any:
        kind = anima.ShapeDtypeStruct((), np.int32)
        return x * lax.while_loop(lambda i: i < 1000, lambda i: anima.pure_callback(picky, kind, i) + 1, 0)

    x = anima.device_put(np.ones(500, np.float32), card)
    for _ in range(2):
        with pytest.raises(ValueError, match="no more"):
            program(x)
        assert calls == [0, 1, 2, 3]
        calls.clear()
    np.testing.assert_array_equal(anima.jit(lambda x: x + 1)(x), 2)


def test_a_callback_that_uses_the_gpu_is_refused(card: anima.Device) -> None:
    x = anima.device_put(np.ones(3, np.float32), card)

    @anima.jit
    def program(x: Any, y: Any) -> Any:
        return anima.pure_callback(lambda z: np.asarray(z) + np.asarray(kept), anima.ShapeDtypeStruct((3,), x.dtype), y)

    kept = x + 1
    with pytest.raises(RuntimeError, match=r"cannot use the GPU, which waits for it\. Fix: "):
        program(x, x)
    np.testing.assert_array_equal(kept, 2)
    with anima.default_device(card):  # what a callback makes is on a CPU
        out = anima.jit(lambda x: anima.pure_callback(lambda x: jnp.sin(x) + 1, x, x))(x)
    np.testing.assert_allclose(out, np.sin(1) + 1, rtol=1e-6)
