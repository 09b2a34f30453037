"""References outside of all transformations: NumPy's arrays, but for their copies; errors at the user's line."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
from anima import numpy as jnp
from anima.core.avals import ShapedArray
from anima.core.stage import eval_jaxpr
from anima.ref import AbstractRef, Ref, addupdate, empty_ref, free_ref, freeze, get, new_ref, set as ref_set, swap

DTYPES = ("bool", "int8", "uint32", "int32", "float16", "bfloat16", "float32", "complex64")

INDICES = (
    ..., (), 0, -1, (1, 2), (-1, ...), (..., -2), slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1),
    (slice(2, None), 1), (slice(0, 0), 0), (None,), (None, 1), (1, None, slice(1, 3)), np.array([0, 2]),
    np.array([[0, 2], [1, 1]]), np.int64(1), (np.array([2, 0]), np.array([1, 3])), (np.array([2, 0]), slice(1, 3)),
    (slice(None), np.array([3, 0])), (1, np.array([3, 0, -1])), np.array([True, False, True]),
    (slice(None), np.array([True, False, False, True])), ([0, 2],), np.zeros(0, np.int32))


def values(dtype: str, shape: tuple[int, ...] = (3, 4)) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 5).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("jitted", (False, True))
def test_an_index_means_what_it_means_to_numpy(index: object, jitted: bool) -> None:
    def program(r: Ref) -> tuple[object, ...]:
        before = r[index]
        r[index] = before * 2 + 1
        r.addupdate(jnp.ones(before.shape), index)
        return before, swap(r, index, -before), get(r, index)

    array, ref = values("float32"), new_ref(values("float32"))
    before = array[index].copy()
    results = (anima.jit(program) if jitted else program)(ref)
    added = np.zeros_like(array)
    np.add.at(added, index, 1.0)
    middle = array.copy()
    middle[index] = before * 2 + 1
    middle += added
    after = array.copy()
    after[index] = -before
    for got, expected in zip(results, (before, middle[index], after[index]), strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == np.float32
    np.testing.assert_array_equal(ref[...], after)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ((), (0, 3), (1,), (5,), (3, 4)))
def test_every_type_and_size(dtype: str, shape: tuple[int, ...]) -> None:
    def program(r: Ref, v: object) -> object:
        before = swap(r, ..., v)
        r.addupdate(r[...])
        return before

    array = values(dtype, shape)
    new = np.ones_like(array)
    for run in (program, anima.jit(program)):
        ref = new_ref(array)
        assert (ref.shape, ref.dtype, ref.ndim, ref.size) == (array.shape, array.dtype, array.ndim, array.size)
        np.testing.assert_array_equal(run(ref, new), array)
        np.testing.assert_array_equal(freeze(ref), new + new)


def test_views_are_of_the_reference() -> None:
    r = new_ref(jnp.arange(12.0).reshape(3, 4))
    view = r.at[1:].at[:, 1]
    assert (view.shape, view.dtype, view.ndim, view.size) == ((2,), np.float32, 1, 2)
    view[0] = 50.0
    view[...] += 1.0
    view.addupdate(1.0, -1)
    expected = np.arange(12.0).reshape(3, 4)
    expected[1:, 1] = 51.0, 11.0
    np.testing.assert_array_equal(r[...], expected)
    np.testing.assert_array_equal(view[...], expected[1:, 1])
    np.testing.assert_array_equal(anima.jit(lambda r: r.at[::2].at[1][2:])(r), expected[2, 2:])


VIEWS: tuple[tuple[object, ...], ...] = (
    (slice(1, 4), 2), (slice(None, None, -2), slice(0, 2), -1), ((slice(None), 1), slice(1, 3), 0),
    ((2, slice(None)), slice(None, None, 2)), ((slice(1, 3), slice(2, 0, -1)), (0, -1)), (slice(4, 4), slice(None)),
    (np.array([3, 1]), slice(0, 1)), (slice(1, 4), np.array([2, 0])), (None, 0, 1), ((slice(1, 5), 0), (None, 1)))


@pytest.mark.parametrize("places", VIEWS, ids=repr)
@pytest.mark.parametrize("jitted", (False, True))
def test_what_is_written_to_a_view_of_a_view(places: tuple[object, ...], jitted: bool) -> None:
    def program(r: Ref) -> object:
        view = r
        for place in places[:-1]:
            view = view.at[place]
        view[places[-1]] += 1.0
        view.addupdate(2.0, places[-1])
        return view[places[-1]]

    array, marks = np.arange(15.0, dtype=np.float32).reshape(5, 3), np.arange(15).reshape(5, 3)
    for place in places:
        marks = marks[place]
    expected = array.copy()
    expected.reshape(-1)[marks] += 3.0
    r = new_ref(array)
    np.testing.assert_array_equal((anima.jit(program) if jitted else program)(r), expected.reshape(-1)[marks])
    np.testing.assert_array_equal(r[...], expected)


@pytest.mark.parametrize("k", (0, 2, -1, 3, 7, -4))
def test_a_place_in_a_view_that_is_not_known_stays_in_the_view(k: int) -> None:
    r = new_ref(jnp.arange(6.0))
    anima.jit(lambda r, k: r.at[1:4].addupdate(10.0, k))(r, k)
    expected = np.arange(6.0)
    if -3 <= k < 3:
        expected[1:4][k] += 10.0
    np.testing.assert_array_equal(r[...], expected)


def test_nobody_else_sees_what_is_written() -> None:
    given, numpy_given = jnp.zeros(4), np.zeros(4, np.float32)
    r, s = new_ref(given), new_ref(numpy_given)
    whole, part = r[...], r[1:3]
    again = new_ref(whole)
    for ref in (r, s):
        ref[...] += 1.0
        ref[0] = 9.0
        anima.jit(lambda ref: ref.addupdate(5.0, 1))(ref)
    seen = anima.jit(lambda r: (r.addupdate(1.0), r[...])[1])(r)
    r[2] = 7.0
    for x in (given, numpy_given, whole, again[...]):
        np.testing.assert_array_equal(x, np.zeros(4))
    np.testing.assert_array_equal(part, np.zeros(2))
    np.testing.assert_array_equal(seen, [10.0, 7.0, 2.0, 2.0])
    stored = jnp.ones(4)
    r[...] = stored
    r[3] = 0.0
    np.testing.assert_array_equal(stored, np.ones(4))
    twin = copy.deepcopy(r)
    twin[0] = 5.0
    assert r[0] == 1.0 and copy.copy(r) is r


def test_writing_is_in_place() -> None:
    r = new_ref(jnp.zeros(100_000))
    r[0] = 1.0
    where = r.unsafe_buffer_pointer()
    r[5:7] += 1.0
    r.addupdate(1.0, 3)
    r[jnp.int32(2)] = 1.0
    assert r.unsafe_buffer_pointer() == where
    held = r[...]
    r[0] = 2.0
    assert r.unsafe_buffer_pointer() != where and held[0] == 1.0


@pytest.mark.parametrize("size", [3, 100_000])
def test_the_address_stays_where_nobody_holds_what_was_read(size: int) -> None:
    r = new_ref(jnp.ones(size))
    where = r.unsafe_buffer_pointer()
    sines = anima.jit(lambda r: r.set(jnp.sin(r[...])))
    for _ in range(3):
        sines(r)
        assert r[...].sum() < size
        r[0] = np.asarray(r[...])[1]
        np.from_dlpack(r[...])
    assert r.unsafe_buffer_pointer() == where


HELD: dict[str, Callable[[Any], Any]] = {
    "array": lambda x: x, "of NumPy's": np.asarray, "view": lambda x: np.asarray(x)[1:], "dlpack": np.from_dlpack,
    "view of dlpack": lambda x: np.from_dlpack(x)[1:], "bytes": lambda x: memoryview(np.asarray(x)),
    "put": anima.device_put, "reshaped": lambda x: x.reshape(-1, 1), "other reference": new_ref,
    "frozen": lambda x: freeze(new_ref(x)), "shards": lambda x: x.addressable_shards[0].data}


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize("name", HELD)
def test_what_was_read_never_changes(name: str, size: int) -> None:
    r = new_ref(jnp.ones(size))
    held = HELD[name](r[...])
    for write in (lambda: r.set(2.0, 2), lambda: r.set(2.0, slice(1, 3)), lambda: anima.jit(
            lambda r: r.set(r[...] * 2.0))(r)):
        write()
        seen = np.asarray(held[...] if isinstance(held, Ref) else held)
        np.testing.assert_array_equal(seen, np.ones_like(seen))


@pytest.mark.parametrize("write", [anima.jit(lambda r: r.set(r[...] + 1)), lambda r: r.addupdate(1.0)])
def test_what_was_read_never_changes_while_other_threads_write(write: Callable[[Any], Any]) -> None:
    r = new_ref(jnp.zeros(200_000))
    write(r)
    torn: list[bool] = []

    def reads() -> None:
        for _ in range(300):
            held = np.asarray(r[...])
            torn.append(not (held == held[-1]).all() or not (held == held[0]).all())

    thread = threading.Thread(target=reads)
    thread.start()
    while thread.is_alive():
        write(r)
    assert len(torn) == 300 and not any(torn)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_a_child_of_fork_need_not_wait_for_threads_of_its_parent() -> None:
    r = new_ref(jnp.zeros(3))
    taken, over = threading.Event(), threading.Event()

    def write() -> None:
        with r.turn:
            taken.set()
            over.wait()

    thread = threading.Thread(target=write)
    thread.start()
    taken.wait()
    child = os.fork()
    if not child:
        signal.alarm(10)
        r[1] = 2.0
        os._exit(int(r[1]))
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_values_are_converted_as_weak_types_are() -> None:
    r, k = new_ref(jnp.zeros(3, jnp.float16)), new_ref(jnp.zeros(3, jnp.int32))
    r[0], r[1], k[0] = 1, 2.5, 3
    k[1] = 1
    np.testing.assert_array_equal(r[...], [1, 2.5, 0])
    np.testing.assert_array_equal(k[...], [3, 1, 0])
    weak = new_ref(1.0)
    weak[...] = jnp.float32(2.5)
    assert weak.aval.weak_type and weak[...].weak_type
    for ref, value in ((k, 2.5), (k, True), (r, jnp.ones(3, jnp.float32)), (k, jnp.ones(3, jnp.int16))):
        with pytest.raises(ValueError, match=r"Invalid dtype for `swap`\. Ref dtype"):
            ref[...] = value
    with pytest.raises(ValueError, match="Invalid dtype for `addupdate`"):
        k.addupdate(0.5, 0)


def test_lists_are_added_as_arrays_are() -> None:
    r = new_ref(jnp.zeros((2, 3), jnp.int32))
    addupdate(r, 0, [1, 2, 3])
    r[1] = [4, 5, 6]
    np.testing.assert_array_equal(r[...], [[1, 2, 3], [4, 5, 6]])


def test_a_reference_is_as_true_as_what_it_holds() -> None:
    assert new_ref(1.0) and not new_ref(0.0)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(new_ref(jnp.ones(2)))
    r = new_ref(2.0)
    assert r.block_until_ready() is r and copy.copy(r) is r
    twin = copy.deepcopy(r)
    twin[...] = 3.0
    assert (r[...], twin[...]) == (2, 3)


def test_texts_after_the_end_and_while_tracing() -> None:
    r, seen = new_ref(jnp.zeros(2)), []
    anima.jit(lambda r: seen.append(repr(r)))(r)
    assert seen[0].startswith("Traced<Ref{float32[2]}>with<")
    freeze(r)
    assert repr(r).startswith("Ref(float32[2], frozen at ")


def test_types_of_references() -> None:
    aval = new_ref(jnp.zeros((2, 3))).aval
    assert aval.update_weak_type(True).weak_type and not aval.weak_type
    assert aval.inc_rank(4, 0).shape == (4, 2, 3) and aval.inc_rank(4, 0).dec_rank(4, 0) == aval
    assert aval.inc_rank(4, aval.leading_axis_spec()).shape == (4, 2, 3)
    whole = new_ref(jnp.zeros((2, 3), jnp.int32)).aval
    assert aval.to_ct_aval() == aval and whole.to_ct_aval().dtype == anima.dtypes.float0


def test_text() -> None:
    r = new_ref(jnp.zeros((2, 2)))
    assert repr(r) == str(r) == "Ref([[0., 0.],\n       [0., 0.]], dtype=float32)"
    assert repr(r.aval) == "Ref{float32[2,2]}" == repr(anima.typeof(r))
    assert repr(r.at[0]) == f"TransformedRef({r!r}, shape=(2,))"
    assert r.aval == AbstractRef(ShapedArray((2, 2), np.dtype("float32")))
    assert repr(empty_ref(anima.ShapeDtypeStruct((2,), "int32"))) == "Ref([0, 0], dtype=int32)"
    struct = anima.ShapeDtypeStruct((3,), "float32", is_ref=True)
    assert repr(struct) == "ShapeDtypeStruct(shape=(3,), dtype=float32, is_ref=True)"
    assert struct.is_ref and struct != anima.ShapeDtypeStruct((3,), "float32")
    assert isinstance(r, anima.Ref) and not isinstance(r, anima.Array) and len(r) == 2
    lowered = anima.jit(lambda r: r[...] * 2).lower(struct)
    assert lowered.compile().memory_analysis().argument_size_in_bytes == 12


@pytest.mark.parametrize("end", (freeze, free_ref))
def test_after_its_end_a_reference_is_not_used(end: object) -> None:
    r = new_ref(jnp.zeros(3))
    end(r)  # type: ignore[operator]
    for use in (lambda: r[0], lambda: ref_set(r, 0, 1.0), lambda: addupdate(r, 0, 1.0), lambda: freeze(r),
                lambda: anima.jit(lambda r: r[0])(r), lambda: anima.vmap(lambda r: r[...])(r)):
        with pytest.raises(RuntimeError, match=r"it was fr(ozen|eed) at test_refs\.py:\d+"):
            use()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("use,error,message", (
    (lambda r: r[3], ValueError, "Out of bound indexer: idx=3, dim=3"),
    (lambda r: r[0, -5], ValueError, "Out of bound indexer: idx=-5, dim=4, axis 1"),
    (lambda r: r[0, 0, 0], IndexError, "Too many indices"),
    (lambda r: r[1.0], TypeError, "Indexer must have integer or boolean type"),
    (lambda r: r["a"], TypeError, "string indexing"),
    (lambda r: r[r], TypeError, "A reference is no index"),
    (lambda r: r[r.at[0]], TypeError, "A reference is no index"),
    (lambda r: r[..., ...], IndexError, "an index can only have a single ellipsis"),
    (lambda r: len(new_ref(1.0)), TypeError, "len.. of unsized object"),
    (lambda r: pickle.dumps(r), TypeError, "A reference cannot be pickled"),
    (lambda r: anima.jit(lambda r: r.unsafe_buffer_pointer())(r), TypeError, "that is traced has no address"),
    (lambda r: r[np.array([True])], IndexError, "boolean index"),
    (lambda r: ref_set(r, ..., jnp.ones(3)), ValueError, "Invalid shape for `swap`"),
    (lambda r: ref_set(r, 0, jnp.ones((2, 4))), ValueError, r"Expected shape: \(4,\). Value shape: \(2, 4\)"),
    (lambda r: get(jnp.zeros(3), 0), ValueError, "Can only call `ref_get` on a `Ref`"),
    (lambda r: freeze(jnp.zeros(3)), ValueError, "on a `Ref`"),
    (lambda r: r + 1, TypeError, "unsupported operand"),
    (lambda r: jnp.sin(r), TypeError, "sin requires ndarray or scalar arguments"),
    (lambda r: anima.lax.sin_p.bind(r) if hasattr(anima.lax, "sin_p") else anima.lax.sin(r), ValueError,
     "did you forget to unpack"),
    (lambda r: np.asarray(r), ValueError, "did you forget to unpack"),
    (lambda r: anima.jit(lambda r: anima.lax.neg(r))(r), ValueError, "to a primitive: neg -- did you forget to unpack"),
    (lambda r: list(r), TypeError, "cannot be iterated over"),
    (lambda r: new_ref(r), TypeError, "Error interpreting argument to new_ref"),
    (lambda r: new_ref([1.0]), TypeError, "Error interpreting argument to new_ref"),
    (lambda r: new_ref(1.0, memory_space="device"), NotImplementedError, "there is one memory"),
    (lambda r: empty_ref((3,)), TypeError, "does not have a dtype"),
    (lambda r: anima.jit(lambda r, k: r[k:])(r, 1), IndexError, "Slice entries must be static"),
), ids=lambda x: x if isinstance(x, str) else "")
def test_errors(use: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        use(new_ref(jnp.zeros((3, 4))))  # type: ignore[operator]


def test_indices_that_are_not_known_stay_within_bounds() -> None:
    read = anima.jit(lambda r, k: r[k])
    r = new_ref(jnp.arange(4.0))
    assert [float(read(r, k)) for k in (7, -1, -9)] == [3.0, 3.0, 0.0]
    for k in (7, -9, np.array([9, -8])):
        anima.jit(lambda r, k: r.addupdate(jnp.ones(jnp.shape(k)), k))(r, k)
        anima.jit(lambda r, k: ref_set(r, k, 5.0))(r, k)
    np.testing.assert_array_equal(r[...], np.arange(4.0))


@pytest.mark.parametrize("index", [-99, -4, -3, -1, 0, 2, 3, 99])
def test_indices_that_are_not_known_mean_what_they_mean_to_arrays(index: int) -> None:
    """Read, written and added to, inside and outside; what is known to be outside is refused."""
    x = jnp.arange(3.0)
    at = jnp.asarray(index)
    for compiled in (False, True):
        def run(f: Any, *args: Any, compiled: bool = compiled) -> Any:
            return (anima.jit(f) if compiled else f)(*args)

        ref = anima.new_ref(x)
        if not compiled and not -3 <= index < 3:
            for use in (lambda r=ref: r[at], lambda r=ref: r.__setitem__(at, 7.0), lambda r=ref: r.addupdate(1.0, at)):
                with pytest.raises(ValueError, match="Out of bound"):
                    use()
            assert ref[...].tolist() == x.tolist()
            continue
        assert float(run(lambda r, i: r[i], ref, at)) == float(x[at])
        run(lambda r, i: r.__setitem__(i, 7.0), ref, at)
        assert ref[...].tolist() == x.at[at].set(7.0).tolist()
        run(lambda r, i: r.addupdate(jnp.float32(2), i), ref, at)
        assert ref[...].tolist() == x.at[at].set(7.0).at[at].add(2.0).tolist()


@pytest.mark.parametrize("k", (0, 2, -1, -3, 3, -4))
def test_programs_evaluated_step_by_step_do_what_compiled_ones_do(k: int) -> None:
    def program(r: Ref, k: Any) -> tuple[Any, Any]:
        before = r[k]
        r[k] = before + 5
        r.addupdate(10.0, k)
        return before, r[...]

    recorded = anima.make_jaxpr(program)(new_ref(jnp.arange(3.0)), k)
    got = eval_jaxpr(recorded.jaxpr, recorded.consts, new_ref(jnp.arange(3.0)), jnp.asarray(k))
    want = anima.jit(program)(new_ref(jnp.arange(3.0)), k)
    assert float(want[0]) == [0, 1, 2][min(max(k + 3 * (k < 0), 0), 2)]
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_views_in_other_forms(wrap: Any) -> None:
    want = np.arange(24, dtype=np.float32).reshape(4, 6)
    r = new_ref(jnp.asarray(want))

    def change(r: Any) -> Any:
        r.reshape(2, -1)[1, 3:5] = jnp.array([-1.0, -2.0])
        r.at[1:3].reshape((3, 4)).at[1].addupdate(10.0, 2)
        r.reshape(24).at[20:].reshape(2, 2)[0] = jnp.zeros(2)
        bits = r.bitcast(jnp.int32)
        bits[0] = bits[0] ^ jnp.int32(-2**31)
        return r.reshape(24).reshape(3, 8).swap(5.0, (0, 7)), r.bitcast(jnp.int16)[...]

    old, halves = wrap(change)(r)
    want.reshape(2, -1)[1, 3:5] = [-1, -2]
    want.reshape(-1)[12] += 10
    want.reshape(-1)[20:22] = 0
    want[0] *= -1
    assert old == 7
    want.reshape(-1)[7] = 5
    np.testing.assert_array_equal(halves, want.view(np.int16).reshape(4, 6, 2).swapaxes(1, 2).reshape(8, 6))
    np.testing.assert_array_equal(r[...], want)
    halves_of = new_ref(jnp.asarray(halves))
    wide = halves_of.bitcast(jnp.int32)
    assert (wide.shape, wide.dtype, wide.ndim, wide.size) == ((4, 6), jnp.int32, 2, 24)
    for error, wrong in (
            (ValueError, lambda: r.reshape(5, 5)), (NotImplementedError, lambda: r.reshape(24).bitcast("int8")),
            (ValueError, lambda: r.at[:3].bitcast("float64")), (TypeError, lambda: halves_of.bitcast("bool"))):
        with anima.enable_x64(True), pytest.raises(error):
            wrong()
