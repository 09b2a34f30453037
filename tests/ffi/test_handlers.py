"""Handlers of XLA's typed convention: built by the machine's C compiler, from its own description of the structures."""

from __future__ import annotations

import ctypes
import enum
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import ShapeDtypeStruct as Struct, export, ffi, lax
from anima.core import handlers
from anima.errors import JaxRuntimeError
from anima.extend.core import Primitive
from anima.interpreters import mlir

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#define HEAD size_t struct_size; struct Extension *extension
typedef struct { HEAD; int major, minor; } Version;
typedef struct { size_t struct_size; Version version; uint32_t traits; int64_t state; } Metadata;
typedef struct Extension { size_t struct_size; int type; struct Extension *next; Metadata *metadata; } Extension;
typedef struct { HEAD; int dtype; void *data; int64_t rank; int64_t *dims; } Buffer;
typedef struct { HEAD; int64_t size; int *types; Buffer **items; } Buffers;
typedef struct { const char *ptr; size_t len; } Span;
typedef struct { int dtype; void *value; } Scalar;
typedef struct { int dtype; size_t size; void *data; } Array;
typedef struct { HEAD; int64_t size; int *types; Span **names; void **items; } Attributes;
typedef struct { HEAD; const char *message; int code; } MakeError;
typedef struct { HEAD; void *context; void *task; void *data; } Schedule;
typedef struct { HEAD; void *context; int64_t *count; } Count;
typedef struct { HEAD; void *future; void *error; } Future;
typedef struct { HEAD; void *context; void *stream; } Stream;
typedef struct { HEAD; Version version; void *internal; void *(*functions[18])(void *); } Api;
typedef struct { HEAD; Api *api; void *context; int stage; Buffers args, rets; Attributes attrs; void *future; } Frame;

static void *fail(Frame *f, const char *message, int code) {
    MakeError e = {32, 0, message, code};
    return f->api->functions[0](&e);
}
static void *start(Frame *f, int minor) {  /* the version; 1 where that was all */
    if (f->extension && f->extension->type == 1) {
        f->extension->metadata->version.major = 0;
        f->extension->metadata->version.minor = minor;
        return (void *)1;
    }
    if (f->stage != 3 || f->struct_size != offsetof(Frame, future)) return fail(f, "wrong frame", 13);
    return 0;
}
#define BEGIN(minor) { void *done = start(f, minor); if (done) return done == (void *)1 ? 0 : done; }
static void *find(Attributes *a, const char *name, int type) {
    for (int64_t k = 0; k < a->size; k++)
        if (strlen(name) == a->names[k]->len && !memcmp(name, a->names[k]->ptr, a->names[k]->len))
            return a->types[k] == type ? a->items[k] : 0;
    return 0;
}
static int64_t count(Buffer *b) { int64_t n = 1; for (int64_t k = 0; k < b->rank; k++) n *= b->dims[k]; return n; }

void *mix(Frame *f) {
    BEGIN(1)
    for (int64_t k = 1; k < f->attrs.size; k++) {
        Span *a = f->attrs.names[k - 1], *b = f->attrs.names[k];
        if (strncmp(a->ptr, b->ptr, a->len < b->len ? a->len : b->len) > 0) return fail(f, "attributes in disorder", 3);
    }
    Scalar *by = find(&f->attrs, "by", 3), *n = find(&f->attrs, "n", 3), *flag = find(&f->attrs, "flag", 3);
    Array *w = find(&f->attrs, "weights", 1);
    Span *mode = find(&f->attrs, "mode", 4);
    Attributes *more = find(&f->attrs, "more", 2);
    if (!by || by->dtype != 11 || !n || n->dtype != 5 || !flag || flag->dtype != 1 || !w || w->dtype != 12
        || !mode || !more) return fail(f, "other attributes", 3);
    if (mode->len == 3 && !memcmp(mode->ptr, "bad", 3)) return fail(f, "the mode is b\xc3\xa4" "d", 3);
    Scalar *inner = find(more, "k", 3);
    Buffer *x = f->args.items[0], *y = f->rets.items[0], *info = f->rets.items[1];
    if (x->dtype != 11 || info->dtype != 4) return fail(f, "other types", 12);
    for (int64_t k = 0; k < count(x); k++)
        ((float *)y->data)[k] = ((float *)x->data)[k] * *(float *)by->value + *(int64_t *)n->value
            + ((double *)w->data)[0] + (*(char *)flag->value ? 1000 : 0) + *(int64_t *)inner->value;
    ((int *)info->data)[0] = x->rank; ((int *)info->data)[1] = w->size; ((int *)info->data)[2] = more->size;
    return 0;
}
void *add_in_place(Frame *f) {
    BEGIN(3)
    Buffer *x = f->args.items[0], *y = f->rets.items[0];
    if (x->data != y->data) return fail(f, "elsewhere", 9);
    for (int64_t k = 0; k < count(x); k++) ((float *)x->data)[k] += 1;
    return 0;
}
static float *shared; static int64_t left;
static void task(void *at) { *(float *)at *= 2; __atomic_sub_fetch(&left, 1, __ATOMIC_SEQ_CST); }
void *doubled(Frame *f) {
    BEGIN(3)
    int64_t n = count(f->args.items[0]), threads = 0;
    Count c = {32, 0, f->context, &threads};
    f->api->functions[12](&c);
    if (threads < 1) return fail(f, "no threads", 13);
    memcpy(f->rets.items[0]->data, f->args.items[0]->data, 4 * n);
    __atomic_store_n(&left, n, __ATOMIC_SEQ_CST);
    for (int64_t k = 0; k < n; k++) {
        Schedule s = {40, 0, f->context, (void *)task, (float *)f->rets.items[0]->data + k};
        f->api->functions[11](&s);
    }
    while (__atomic_load_n(&left, __ATOMIC_SEQ_CST)) {}
    return 0;
}
static Future later; static Frame *waiting; static float *from, *to; static int64_t size;
static void finish(void *api) {
    for (int64_t k = 0; k < size; k++) to[k] = -from[k];
    void *(**functions)(void *) = ((Api *)api)->functions;
    if (size && from[0] == 7) later.error = functions[0](&(MakeError){32, 0, "seven", 10});
    functions[later.error ? 15 : 14](&later);
}
void *negated_later(Frame *f) {
    BEGIN(3)
    later = (Future){32, 0, 0, 0};
    f->api->functions[13](&later);
    f->future = later.future;
    from = f->args.items[0]->data; to = f->rets.items[0]->data; size = count(f->args.items[0]);
    Schedule s = {40, 0, f->context, (void *)finish, f->api};
    f->api->functions[11](&s);
    return 0;
}
void *on_a_stream(Frame *f) {
    BEGIN(3)
    Stream s = {32, 0, f->context, 0};
    return f->api->functions[4](&s);
}
void *newer(Frame *f) { BEGIN(9) return 0; }
"""
MORE = {"by": np.float32(2), "n": 3, "flag": True, "mode": "good", "weights": np.array([0.5, 1]),
        "more": {"k": 4, "l": ""}}
X = jnp.asarray(np.arange(6.0, dtype=np.float32).reshape(2, 3))


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("handlers")
    (folder / "handlers.c").write_text(SOURCE)
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", str(folder / "handlers.so"), str(folder / "handlers.c")],
                   check=True)
    loaded = ctypes.CDLL(str(folder / "handlers.so"))
    for name in ("mix", "add_in_place", "doubled", "negated_later", "on_a_stream"):
        ffi.register_ffi_target(f"handlers.{name}", ffi.pycapsule(getattr(loaded, name)))
    return loaded


def mix(x: Any, vmap_method: str | None = None, **changes: Any) -> Any:
    results = Struct(x.shape, x.dtype), Struct((3,), "int32")
    return ffi.ffi_call("handlers.mix", results, vmap_method=vmap_method)(x, **{**MORE, **changes})


def one(name: str, **options: Any) -> Callable[[Any], Any]:
    return lambda x: ffi.ffi_call(f"handlers.{name}", Struct(x.shape, x.dtype), **options)(x)


@pytest.mark.parametrize("run", [lambda f: f, anima.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("x", [X, X[0, 0], X[:, :0], X.T], ids=["rows", "number", "empty", "turned"])
def test_arrays_and_attributes(run: Callable[..., Any], x: Any) -> None:
    y, info = run(mix)(x)
    np.testing.assert_array_equal(y, np.asarray(x) * 2 + 1007.5)
    np.testing.assert_array_equal(info, [x.ndim, 2, 2])


def test_containers_of_results() -> None:
    spec = [Struct(X.shape, X.dtype), Struct((3,), "int32")]
    assert [type(ffi.ffi_call("handlers.mix", kind(spec))(X, **MORE)) for kind in (list, tuple)] == [list, tuple]


def test_transformations() -> None:
    want = np.asarray(X) * 2 + 1007.5
    for run in (lambda f: f, anima.jit):
        y, info = run(anima.vmap(lambda x: mix(x, "sequential")))(X)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(info, [[1, 2, 2]] * 2)
    looped = anima.jit(lambda x: lax.fori_loop(0, 3, lambda _, x: 0.5 * mix(x)[0], x))(X)
    np.testing.assert_allclose(looped, np.asarray(X) + 3 * 503.75)
    with pytest.raises(NotImplementedError, match="vmap is only supported for the ffi_call primitive when"):
        anima.vmap(lambda x: mix(x))(X)
    with pytest.raises(ValueError, match=r"The FFI call to `handlers.mix` cannot be differentiated"):
        anima.grad(lambda x: mix(x)[0].sum())(X)


def test_attributes_are_told_apart_by_their_types() -> None:
    f = anima.jit(lambda x, n: mix(x, n=n)[0], static_argnums=1)
    np.testing.assert_array_equal(f(X, 1), np.asarray(X) * 2 + 1005.5)
    np.testing.assert_array_equal(mix(X, n=enum.IntEnum("One", "one").one)[0], np.asarray(X) * 2 + 1005.5)
    for other in (True, 1.0, np.int32(1), np.float64(1), np.str_("1"), "1"):
        with pytest.raises(JaxRuntimeError, match="INVALID_ARGUMENT: other attributes"):
            f(X, other)
        with pytest.raises(JaxRuntimeError, match="INVALID_ARGUMENT: other attributes"):
            mix(X, n=other)
    with pytest.raises(TypeError, match=r"the attribute n=9223372036854775808 of handlers.mix has more than 64 bits"):
        mix(X, n=1 << 63)
    for bad in (None, object(), np.array("a"), {"a": None}):
        with pytest.raises(TypeError, match=r"the attribute (a|n)=.* is no number, array of numbers, text or dict of"):
            mix(X, n=bad)


def test_errors_of_handlers() -> None:
    for run in (lambda f: f, anima.jit):
        with pytest.raises(JaxRuntimeError, match=r"INVALID_ARGUMENT: the mode is bäd \[from the handler handlers.mix"):
            run(lambda x: mix(x, mode="bad"))(X)
        with pytest.raises(JaxRuntimeError, match="UNIMPLEMENTED: There are no streams on the CPU"):
            run(one("on_a_stream"))(X)
        with pytest.raises(JaxRuntimeError, match="UNIMPLEMENTED: other types"):
            run(mix)(jnp.arange(3))
        with pytest.raises(JaxRuntimeError, match="FAILED_PRECONDITION: elsewhere"):
            run(one("add_in_place"))(X)
    with pytest.raises(NotImplementedError, match="cannot be given arrays of type int4"):
        one("doubled")(jnp.ones(3, "int4"))


def test_memory_of_results_and_threads_and_later_ends() -> None:
    x = np.asarray(X)
    for run in (lambda f: f, anima.jit):
        kept = X * 1
        np.testing.assert_array_equal(run(one("add_in_place", input_output_aliases={0: 0}))(kept), x + 1)
        np.testing.assert_array_equal(kept, x)
        inside = run(lambda x: one("add_in_place", input_output_aliases={0: 0})(x * 3))
        np.testing.assert_array_equal(inside(X), 3 * x + 1)
        np.testing.assert_array_equal(run(one("doubled"))(X), x * 2)
        np.testing.assert_array_equal(run(lambda x: one("negated_later")(one("negated_later")(x) - 1))(X), x + 1)
        with pytest.raises(JaxRuntimeError, match="ABORTED: seven"):
            run(one("negated_later"))(X + 7)


def test_what_compiled_code_does_after_the_first_call() -> None:
    """It calls handlers without Python, but to wait, and to raise what one gives."""
    later, doubled = anima.jit(one("negated_later")), anima.jit(one("doubled"))
    for _ in range(3):
        np.testing.assert_array_equal(later(X), -np.asarray(X))
        np.testing.assert_array_equal(doubled(X), 2 * np.asarray(X))
        with pytest.raises(JaxRuntimeError, match="ABORTED: seven"):
            later(X + 7)
    many = anima.jit(lambda x: lax.scan(lambda x, _: (one("negated_later")(x) + 1, mix(x)[0]), x, None, length=50))
    for _ in range(2):
        last, rows = many(X)
        np.testing.assert_array_equal(last, X)
        np.testing.assert_array_equal(rows[::2], np.broadcast_to(np.asarray(X) * 2 + 1007.5, (25, 2, 3)))
    with pytest.raises(JaxRuntimeError, match="ABORTED: seven"):
        many(X + 7)
    assert not handlers._errors and not handlers._futures


def test_what_a_thread_has_made_outlives_it() -> None:
    """Of a first call: the sizes and types of arrays that compiled code hands to handlers from then on."""
    for _ in range(20):
        f = anima.jit(lambda x: mix(x)[0])
        for _ in range(2):
            thread = threading.Thread(target=f, args=(X,))
            thread.start()
            thread.join()
        kept = [np.full(n, -1) for n in (1, 2, 3, 4) for _ in range(50)]  # where they were
        np.testing.assert_array_equal(f(X), np.asarray(X) * 2 + 1007.5)
        del kept


def test_calls_from_several_threads() -> None:
    f, found = anima.jit(lambda x: mix(x)[0]), {}

    def work(k: int) -> None:
        found[k] = all(np.array_equal(f(X + k), np.asarray(X + k) * 2 + 1007.5) for _ in range(20))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


def test_lowering_of_operations() -> None:
    p = Primitive("tests_doubled")
    p.def_abstract_eval(lambda x: x)
    mlir.register_lowering(p, lambda ctx, x: ffi.ffi_lowering("handlers.doubled")(ctx, x), platform="cpu")
    np.testing.assert_array_equal(anima.jit(lambda x: p.bind(x) + 1)(X), np.asarray(X) * 2 + 1)


def test_registration(library: Any) -> None:
    capsule = ffi.pycapsule(library.doubled)
    ffi.register_ffi_target("handlers.doubled", capsule)  # the same once more
    ffi.register_ffi_target("handlers.by_stage", {"execute": capsule, "prepare": None})
    with pytest.raises(ValueError, match=r"there is another function 'handlers.doubled' already"):
        ffi.register_ffi_target("handlers.doubled", ffi.pycapsule(library.mix))
    with pytest.raises(NotImplementedError, match=r"'handlers.new' is to be called in the stages execute, prepare"):
        ffi.register_ffi_target("handlers.new", {"execute": capsule, "prepare": capsule})
    with pytest.raises(NotImplementedError, match=r"made for version 0.9 of the calling convention; up to 0.3 is"):
        ffi.register_ffi_target("handlers.new", ffi.pycapsule(library.newer))
    ffi.register_ffi_target("handlers.new", capsule, platform="cuda")
    with pytest.raises(NotImplementedError, match=r"No FFI handler registered for handlers.new on the CPU"):
        one("new")(X)


def test_programs_with_handlers_stay_in_their_process() -> None:
    with pytest.raises(NotImplementedError, match=r"'ffi_call' .*cannot be exported: it is at an address of this"):
        export.export(anima.jit(one("doubled")))(X).serialize()
