"""C functions in programs: built by the machine's C compiler, and taken from SciPy's modules."""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special
from scipy.special import cython_special

import anima
import anima.numpy as jnp
from anima import ShapeDtypeStruct as Struct, ffi, lax
from anima.compiler import driver
from anima.compiler.ir.interpret import run as interpret
from anima.compiler.machine import store
from anima.core import foreign

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SOURCE = """
#include <anima/ffi.h>
void scale(const float *x, float *out, int64_t n, double by) { for (int64_t i = 0; i < n; i++) out[i] = x[i] * by; }
void add_in_place(float *x, int64_t n, int32_t k) { for (int64_t i = 0; i < n; i++) x[i] += k; }
void rows(const double *x, const int64_t *shape, int32_t ndim, double *sums, double *most) {
    int64_t width = shape[ndim - 1], count = 1;
    for (int k = 0; k < ndim - 1; k++) count *= shape[k];
    for (int64_t i = 0; i < count; i++) {
        sums[i] = 0; most[i] = x[i * width];
        for (int64_t j = 0; j < width; j++) {
            sums[i] += x[i * width + j];
            if (x[i * width + j] > most[i]) most[i] = x[i * width + j];
        }
    }
}
int weighed(const int8_t *x, int64_t n, int8_t weight, bool negative) {
    int total = 0;
    for (int64_t i = 0; i < n; i++) total += x[i] * weight;
    return negative ? -total : total;
}
void outer(const float *x, const float *y, float *out, int32_t m, int32_t n) {
    for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) out[i * n + j] = x[i] * y[j];
}
void batched(const float *x, const float *y, float *out, int64_t nx, int64_t ny, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i % nx] - y[i % ny];
}
void swap16(const bfloat16 *x, bfloat16 *out, int64_t n) { for (int64_t i = 0; i < n; i++) out[i] = x[n - 1 - i]; }
static int64_t calls = 0;
void counted(const float *x, float *out) { calls++; *out = *x; }
int64_t count(void) { return calls; }
double hyp(double x, double y) { return x * x + 2 * y; }
float powers(float x, int32_t n) { float y = 1; for (int k = 0; k < n; k++) y *= x; return y; }
bool odd(int64_t n) { return n & 1; }
void sum_and_difference(const double *x, const double *y, double *sum, double *difference) {
    *sum = *x + *y; *difference = *x - *y;
}
uint8_t low(uint16_t n) { return (uint8_t)n; }
"""
DECLARED = {
    "scale": "void scale(const float *x, float *out, int64_t x_size, double by)",
    "add_in_place": "void (float *x, int64_t x_size, int32_t k)",
    "rows": "void (const double *x, const int64_t *x_shape, int32_t x_ndim, double *sums, double *most)",
    "weighed": "int (const int8_t x[], int64_t x_size, int8_t weight, bool negative)",
    "outer": "void (float const *restrict x, const float *y, float *, int32_t x_dim0, int32_t y_dim0);",
    "batched": "void (const float *x, const float *y, float *out, int64_t x_size, int64_t y_size, int64_t out_size)",
    "swap16": "void (const bfloat16 *x, bfloat16 *out, int64_t x_size)",
    "counted": "void (const float *x, float *out)",
    "hyp": "double hyp(double, double)", "powers": "float (float, int32_t n)", "odd": "bool (int64_t)",
    "low": "uint8_t (uint16_t)",
    "sum_and_difference": "void (const double *, const double *, double *, double *)"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("ffi")
    (folder / "functions.c").write_text(SOURCE)
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", f"-I{ffi.include_dir()}", "-o", str(folder / "functions.so"),
                    str(folder / "functions.c")], check=True)
    loaded = ctypes.CDLL(str(folder / "functions.so"))
    for name, declared in DECLARED.items():
        ffi.register_ffi_target(f"tests.{name}", ffi.pycapsule(getattr(loaded, name), declared))
    loaded.count.restype = ctypes.c_int64
    yield loaded


def call(name: str, results: Any, **options: Any) -> Callable[..., Any]:
    return ffi.ffi_call(f"tests.{name}", results, **options)


def each_way(fun: Callable[..., Any], *args: Any) -> list[Any]:
    """The results outside of `jit`, compiled, and of loops that are interpreted."""
    closed = anima.make_jaxpr(fun)(*args)
    loops = driver.lower(closed).loops
    found = interpret(loops, [np.asarray(x) for x in anima.tree.leaves(args)])
    outs = [out.reshape(a.shape) for out, a in zip(found, closed.out_avals, strict=True)]
    return [anima.tree.leaves(fun(*args)), anima.tree.leaves(anima.jit(fun)(*args)), outs]


def check(fun: Callable[..., Any], args: Any, *wanted: Any) -> None:
    for found in each_way(fun, *args):
        for out, value in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(out), value, rtol=1e-6)


X = jnp.asarray(np.arange(6.0, dtype=np.float32).reshape(2, 3))


def test_arrays_sizes_and_attributes(library: Any) -> None:
    check(lambda x: call("scale", Struct(x.shape, x.dtype))(x, by=2.5), (X,), np.asarray(X) * 2.5)
    check(lambda x, y: call("outer", Struct((3, 2), x.dtype))(x, y), (X[0], X[1, :2]), np.outer(X[0], X[1, :2]))
    check(lambda x: call("scale", Struct((0,), x.dtype))(x, by=2), (jnp.zeros(0),), np.zeros(0))


def test_several_results_and_shapes(library: Any) -> None:
    with anima.enable_x64(True):
        x = jnp.asarray(np.cos(np.arange(24.0)).reshape(2, 3, 4))
        results = [Struct((2, 3), "float64")] * 2
        check(call("rows", results), (x,), np.asarray(x).sum(-1), np.asarray(x).max(-1))
        assert isinstance(call("rows", results)(x), list)
        check(call("sum_and_difference", [Struct((), "float64")] * 2), (jnp.asarray(5.0), jnp.asarray(3.0)), 8.0, 2.0)


def test_what_is_returned_is_the_last_result(library: Any) -> None:
    x = jnp.asarray([1, 2, -7], "int8")
    check(lambda x: call("weighed", Struct((), "int32"))(x, weight=-3, negative=True), (x,), -12)
    check(lambda x: call("weighed", [Struct((), "int32")])(x, weight=3, negative=False), (x,), -12)


def test_halves(library: Any) -> None:
    x = jnp.asarray([1.5, 2.0, -3.0], "bfloat16")
    found = anima.jit(call("swap16", Struct((3,), "bfloat16")))(x)
    assert found.dtype == ml_dtypes.bfloat16 and found.tolist() == [-3.0, 2.0, 1.5]


def test_results_in_the_memory_of_operands(library: Any) -> None:
    added = lambda x: call("add_in_place", Struct(x.shape, x.dtype), input_output_aliases={0: 0})(x, k=-3)
    check(added, (X,), np.asarray(X) - 3)
    check(lambda x: (added(x), x, added(x * 2)), (X,), np.asarray(X) - 3, X, np.asarray(X) * 2 - 3)


def test_calls_in_loops_and_branches(library: Any) -> None:
    def scaled(x: Any) -> Any:
        return call("scale", Struct(x.shape, x.dtype))(x, by=0.5)

    def fun(x: Any) -> Any:
        last, sums = lax.scan(lambda c, _: (scaled(c) + 1, c.sum()), x, None, length=3)
        return last, sums, lax.cond(x[0, 1] > 0, scaled, jnp.sin, x)

    wanted, sums = np.asarray(X), []
    for _ in range(3):
        sums.append(wanted.sum())
        wanted = wanted * 0.5 + 1
    check(fun, (X,), wanted, sums, np.asarray(X) / 2)


@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all",
                                    "legacy_vectorized"])
def test_vmap(library: Any, method: str) -> None:
    x, y = X, jnp.asarray([10.0, 20.0, 30.0])
    fun = call("batched", Struct((3,), "float32"), vmap_method=method)
    check(anima.vmap(fun, (0, None)), (x, y), np.asarray(x) - np.asarray(y))
    check(anima.vmap(anima.vmap(fun, (0, None)), (1, None)), (jnp.stack([x, -x], 1), y),
          np.stack([x, -x]) - np.asarray(y))


def test_vmap_needs_a_method(library: Any) -> None:
    with pytest.raises(NotImplementedError, match="vmap is only supported for the ffi_call primitive when vmap_method"):
        anima.vmap(call("counted", Struct((), "float32")))(jnp.ones(3))


def test_side_effects(library: Any) -> None:
    kept = anima.jit(lambda x: (call("counted", Struct((), "float32"), has_side_effect=True)(x), x + 1)[1])
    dropped = anima.jit(lambda x: (call("counted", Struct((), "float32"))(x), x + 1)[1])
    for fun, more in ((kept, 2), (dropped, 0)):
        before = library.count()
        fun(1.0), fun(2.0)
        assert library.count() - before == more


# ---------------------------------------------------------------- functions of numbers

def test_numbers(library: Any) -> None:
    y = jnp.asarray([[0.5, -1.0, 2.0]])
    hyp = lambda x, y: call("hyp", Struct(x.shape, x.dtype))(x, y)
    check(lambda x, y: hyp(x * 2, jnp.broadcast_to(y, x.shape)) + 1, (X, y),
          (2 * np.asarray(X)) ** 2 + 2 * np.asarray(y) + 1)
    check(lambda x: call("powers", Struct(x.shape, x.dtype))(x, n=3), (X,), np.asarray(X) ** 3)
    check(lambda x: call("powers", Struct((2, 3), "float32"))(x, jnp.asarray(X, "int32")), (jnp.float32(2),),
          2.0 ** np.asarray(X))
    n = jnp.arange(5)
    check(lambda n: call("odd", Struct(n.shape, "bool"))(n), (n,), np.arange(5) % 2 == 1)
    check(lambda n: call("low", Struct(n.shape, "uint8"))(n), (jnp.asarray([257, 65535], "uint16"),), [1, 255])


@pytest.mark.parametrize("size", [0, 1, 7, 16, 33, 70_000])
def test_functions_of_scipy_fuse_into_loops(size: int) -> None:
    ffi.register_ffi_target("tests.ndtr", cython_special.__pyx_capi__["__pyx_fuse_1ndtr"])
    ndtr = lambda x: call("ndtr", Struct(x.shape, x.dtype))(x)
    x = jnp.asarray(np.linspace(-3, 3, size, dtype=np.float32))
    fun = anima.jit(lambda x: jnp.sum(2 * ndtr(x * x) - 1))
    wanted = scipy.special.ndtr(np.asarray(x, np.float64) ** 2)
    np.testing.assert_allclose(fun(x), (2 * wanted - 1).sum(), rtol=1e-5)
    assert all(b.size < max(size, 2) for b in fun.lower(x).stages.loops.with_role("temp"))
    lanes = anima.vmap(ndtr)(jnp.stack([x, -x]))
    np.testing.assert_allclose(lanes, scipy.special.ndtr(np.stack([x, -x])), rtol=1e-6)


def test_integers_and_attributes_of_functions_of_scipy() -> None:
    ffi.register_ffi_target("tests.hermite", cython_special.__pyx_capi__["eval_hermite"])
    jv = _address(cython_special.__pyx_capi__["__pyx_fuse_1jv"])
    ffi.register_ffi_target("tests.jv", jv, signature="double (double order, double, int __pyx_skip_dispatch)")
    n, x = jnp.arange(5), jnp.linspace(0.0, 2.0, 5)
    check(lambda n, x: call("hermite", Struct(x.shape, x.dtype))(n, x), (n, x), scipy.special.eval_hermite(
        np.asarray(n), np.asarray(x, np.float64)))
    check(lambda x: call("jv", Struct(x.shape, x.dtype))(x, order=1.5), (x,), scipy.special.jv(1.5, np.asarray(x)))


def _address(capsule: Any) -> int:
    return ffi._api.PyCapsule_GetPointer(capsule, ffi._api.PyCapsule_GetName(capsule))


def test_derivatives_by_a_rule_of_the_user() -> None:
    ffi.register_ffi_target("tests.erfi", cython_special.__pyx_capi__["__pyx_fuse_1erfi"])

    @anima.custom_jvp
    def erfi(x: Any) -> Any:
        return call("erfi", Struct(x.shape, x.dtype))(x)

    erfi.defjvps(lambda t, y, x: t * (2 / np.sqrt(np.pi)) * jnp.exp(x * x))
    x = jnp.asarray([0.0, 0.5, 1.0])
    slope = anima.jit(anima.vmap(anima.grad(erfi)))(x)
    np.testing.assert_allclose(slope, 2 / np.sqrt(np.pi) * np.exp(np.asarray(x) ** 2), rtol=1e-6)
    with pytest.raises(ValueError, match=r"The FFI call to `tests.erfi` cannot be differentiated"):
        anima.grad(lambda x: call("erfi", Struct((), "float32"))(x))(1.0)


# ---------------------------------------------------------------- errors

S3 = Struct((3,), "float32")


@pytest.mark.parametrize("wrong,message", [
    (lambda: call("scale", S3)(X[0].astype("int32"), by=2.0), r"but x is of type int32\[3\]"),
    (lambda: call("scale", Struct((3,), "int32"))(X[0], by=2.0), r"but out is of type int32\[3\]"),
    (lambda: call("scale", S3)(X[0]), "no attribute 'by', and no array"),
    (lambda: call("scale", S3)(X[0], by="2"), "wants a number of type f64 for by, got '2'"),
    (lambda: call("add_in_place", S3, input_output_aliases={0: 0})(X[0], k=2**40), "wants a number of type i32 for k"),
    (lambda: call("scale", S3)(X[0], by=2.0, more=1), "no parameters for the attributes more"),
    (lambda: call("scale", S3)(X[0], X[0], by=2.0), "with 1 operands and 1 results, but is called with 2 and 1"),
    (lambda: call("scale", [S3, S3])(X[0], by=2.0), "with 1 operands and 1 results, but is called with 1 and 2"),
    (lambda: call("outer", S3)(X[0, 0], X[0]), r"wants x_dim0, but x has shape \(\)"),
    (lambda: call("weighed", Struct((3,), "int32"))(X[0].astype("int8"), weight=1, negative=True), "one number"),
    (lambda: call("hyp", S3)(X[0], X), r"argument 1 is of type float32\[2,3\], and the result float32\[3\]"),
    (lambda: call("hyp", S3)(X[0], X[0].astype("complex64")), r"argument 1 is of type complex64\[3\]"),
    (lambda: call("hyp", S3)(X[0]), "with 2 operands, but is called with 1"),
    (lambda: call("hyp", Struct((3,), "int32"))(X[0], X[0]), "returns numbers of type float64, not int32"),
    (lambda: call("hyp", S3)(1.0, 2.0), r"is a number, not float32\[3\]"),
    (lambda: call("hyp", S3, has_side_effect=True)(X[0], X[0]), "no side effects"),
    (lambda: call("powers", S3)(X[0], n=1.5), "wants a number of type i32 for n, got 1.5"),
    (lambda: ffi.ffi_call("tests.hyp", 3), "are to have a shape and a dtype, got 3"),
])
def test_types_are_checked_at_the_users_line(library: Any, wrong: Callable[[], Any], message: str) -> None:
    for fun in (wrong, anima.jit(wrong)):
        with pytest.raises(TypeError, match=message) as info:
            fun()
        assert pathlib.Path(str(info.traceback[-1].path)).name == "test_ffi.py"


@pytest.mark.parametrize("aliases,message", [
    ({1: 0}, r"'1:0' with input index 1 outside the range \[0, 1\)"),
    ({0: 3}, r"'0:3' with output index 3 outside the range \[0, 1\)"),
    ({0: 0}, r"an input with abstract value float32\[2,3\] and an output with a different abstract value float32\[3\]"),
])
def test_wrong_aliases(library: Any, aliases: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call("add_in_place", S3, input_output_aliases=aliases)(X, k=1)


def test_two_arguments_in_the_memory_of_one_result(library: Any) -> None:
    with pytest.raises(ValueError, match="two inputs in one output"):
        call("add_in_place", S3, input_output_aliases={0: 0, 1: 0})(X[0], X[0], k=1)


def test_wrong_options(library: Any) -> None:
    with pytest.raises(NotImplementedError, match="No FFI handler registered for nope"):
        ffi.ffi_call("nope", S3)
    with pytest.raises(ValueError, match="vmap_method must be on of the allowed methods"):
        call("scale", S3, vmap_method="all")
    with pytest.raises(NotImplementedError, match="are row-major, not of the layout"):
        call("scale", Struct((2, 3), "float32"), input_layouts=[(1, 0)])(X, by=1.0)
    call("scale", Struct((2, 3), "float32"), input_layouts=[(0, 1)], output_layouts=(0, 1))(X, by=1.0)
    with pytest.raises(NotImplementedError, match="declaration says"):
        call("scale", S3, custom_call_api_version=2)
    with pytest.raises(NotImplementedError, match="another calling convention"):
        ffi.ffi_lowering("tests.scale", backend_config="n")
    for name, arguments in (("register_ffi_type", ("n", 0)), ("register_ffi_type_id", ("n", 0)),
                            ("build_ffi_lowering_function", ("n",))):
        with pytest.raises(NotImplementedError, match="another calling convention"):
            getattr(ffi, name)(*arguments)


def test_registration(library: Any) -> None:
    capsule = ffi.pycapsule(library.scale, DECLARED["scale"])
    ffi.register_ffi_target("tests.scale", capsule)  # the same once more
    with pytest.raises(ValueError, match=r"there is another function 'tests.scale' already"):
        ffi.register_ffi_target("tests.scale", ffi.pycapsule(library.outer, DECLARED["scale"]))
    with pytest.raises(ValueError, match=r"the declaration of 'tests.new' is not known"):
        ffi.register_ffi_target("tests.new", library.scale)
    with pytest.raises(TypeError, match="a capsule, a function of ctypes or an address"):
        ffi.register_ffi_target("tests.new", max)
    ffi.register_ffi_target("tests.new", capsule, platform="cuda")
    with pytest.raises(NotImplementedError, match=r"No FFI handler registered for tests.new on the CPU"):
        call("new", Struct((), "float32"))(1.0)
    with pytest.raises(NotImplementedError, match="or by the typed convention; there are no others"):
        ffi.register_ffi_target("tests.new", capsule, api_version=0)
    ffi.register_ffi_target_as_batch_partitionable("tests.scale")
    with pytest.raises(KeyError):
        ffi.register_ffi_target_as_batch_partitionable("tests.new")
    with pytest.raises(ValueError, match="at no address"):
        ffi.pycapsule(0)


@pytest.mark.parametrize("text,returns,parameters", [
    ("void f(void)", "", []),
    ("double (double, double)", "f64", ["f64", "f64"]),
    ("double (Py_ssize_t, double, int __pyx_skip_dispatch)", "f64", ["i64", "f64", "i32"]),
    ("void f(const void *x, unsigned char *out, unsigned n, size_t m);", "", ["*", "u8*", "u32", "u64"]),
    ("float f(__pyx_t_double_complex *z, bfloat16 const *x, double *restrict y)", "f32", ["c128*", "bf16*", "f64*"]),
    ("unsigned long long name(long long x)", "u64", ["i64"]),
])
def test_declarations(text: str, returns: str, parameters: list[str]) -> None:
    found = foreign.parse(text)
    assert found.returns == returns
    assert [f"{p.type}{'*' * p.pointer}" for p in found.parameters] == parameters


@pytest.mark.parametrize("text,error", [
    ("double", ValueError), ("double (thing x)", ValueError), ("thing (double x)", ValueError),
    ("double (double x, double x)", ValueError), ("double (double **x)", NotImplementedError),
    ("__pyx_t_double_complex (double)", NotImplementedError), ("float (float16 x)", NotImplementedError),
    ("long double (long double)", NotImplementedError),
    ("double (unsigned signed)", ValueError), ("void (__pyx_t_double_complex)", NotImplementedError),
])
def test_declarations_that_are_not_understood(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        foreign.parse(text)


def test_numbers_among_arrays_need_names() -> None:
    ffi.register_ffi_target("tests.fresnel", 1, signature="void (double, double *, double *)")
    with anima.enable_x64(True), pytest.raises(TypeError, match="there is no name for one of its numbers"):
        call("fresnel", [Struct((), "float64")] * 2)()


def test_code_with_addresses_of_this_process_is_not_kept_on_disk(on_disk: pathlib.Path, unchecked: None) -> None:
    ffi.register_ffi_target("tests.ndtr", cython_special.__pyx_capi__["__pyx_fuse_1ndtr"])
    anima.jit(lambda x: call("ndtr", Struct(x.shape, x.dtype))(x) + 17.0)(jnp.ones(5))
    store.flush()
    assert not on_disk.exists()
    anima.jit(lambda x: x * 17.0 + 3.0)(jnp.ones(5))
    store.flush()
    assert list(on_disk.iterdir())
