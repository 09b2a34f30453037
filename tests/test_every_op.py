"""Every operation against every rule: the records of `op_records.py` crossed with what must hold of each.

    eager = NumPy        infer = eval         compiled = eager       loop interpreter = eager
    jvp = differences    vjp = jvp transposed     the same to order 2     vmap = a loop

64-bit types are on throughout; one jitted function holds all cases of one record and dtype.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import anima
import anima.ops
from anima.compiler.driver import lower
from anima.compiler.ir.interpret import run as interpret
from anima.config import config
from anima.core import dtypes as dt
from anima.core.avals import ShapedArray
from anima.core.primitive import Primitive
from anima.transforms.linearize import linearize_flat
from tests.op_records import ALL, ELEMENTWISE, INEXACT, Case, Record, dtype_of, is_float
from tests.op_records_convolution import CONVOLUTIONS
from tests.op_records_sparse import SPARSE
from tests.op_records_special import SPECIAL
from tests.op_records_structural import STRUCTURAL
from tests.op_records_window import WINDOWS

RECORDS = ELEMENTWISE + STRUCTURAL + WINDOWS + CONVOLUTIONS + SPECIAL + SPARSE
PAIRS = [pytest.param(r, d, id=f"{r.name}-{d}") for r in RECORDS for d in r.dtypes]
EACH = [pytest.param(r, id=r.name) for r in RECORDS]
SMOOTH = [pytest.param(r, d, id=f"{r.name}-{d}") for r in RECORDS for d in ("float64", "complex128") if d in r.dtypes]


@pytest.fixture(autouse=True)
def all_dtypes() -> Iterator[None]:
    """64-bit types on."""
    with anima.enable_x64(True):
        yield


def applied(record: Record, case: Case, name: str) -> Callable[..., list[Any]]:
    """The operation with the case's parameters, its results always as a list."""
    params = case.params_for(name)

    def apply(*args: Any) -> list[Any]:
        out = record.primitive.bind(*args, **params)
        return list(out) if record.primitive.multiple_results else [out]

    return apply


# ---------------------------------------------------------------- comparing

def ulp_distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How many representable numbers lie between floats of one dtype."""
    def place(v: np.ndarray) -> np.ndarray:
        bits = v.view(f"int{8 * v.dtype.itemsize}")
        return np.where(bits < 0, np.iinfo(bits.dtype).min - bits, bits).astype(np.longdouble)

    return np.abs(place(np.ascontiguousarray(x)) - place(np.ascontiguousarray(y)))


def same_bits(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether floats are the same, zeros of different sign being different and all NaNs one."""
    bits = f"uint{8 * x.dtype.itemsize}"
    return (np.ascontiguousarray(x).view(bits) == np.ascontiguousarray(y).view(bits)) | (np.isnan(x) & np.isnan(y))


def check(actual: Any, expected: np.ndarray, ulps: float, what: str) -> None:
    """Equal shapes and dtypes, and values within `ulps` (0: the same bits)."""
    actual = np.asarray(actual)
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, (
        f"{what}: {actual.dtype}{actual.shape}, expected {expected.dtype}{expected.shape}")
    actual, expected = actual.reshape(-1), expected.reshape(-1)
    with np.errstate(all="ignore"):
        good = _agree(actual, expected, ulps)
    if not good.all():
        bad = int(np.argmin(good))
        raise AssertionError(f"{what}: element {bad} of {good.size} ({(~good).sum()} differ): {actual[bad]!r}, "
                             f"expected {expected[bad]!r}, within {ulps} ulps")


def _agree(actual: np.ndarray, expected: np.ndarray, ulps: float) -> np.ndarray:
    if expected.dtype.kind == "c":
        if ulps == 0:
            return same_bits(actual.real, expected.real) & same_bits(actual.imag, expected.imag)
        finite = np.isfinite(expected)
        info = np.finfo(expected.dtype)
        close = np.abs(actual - expected) <= ulps * np.maximum(info.eps * np.abs(expected), info.smallest_normal)
        return np.where(finite, close, ~np.isfinite(actual))
    if is_float(expected.dtype):
        if ulps == 0:
            return same_bits(actual, expected)
        # Rounded once from a wider type: 16-bit results are as good as they can be, but for ties.
        allowed = min(ulps, 1) if expected.dtype.itemsize == 2 else ulps
        near = (ulp_distance(actual, expected) <= allowed) & (np.isnan(actual) == np.isnan(expected))
        return (near & (np.signbit(actual) == np.signbit(expected))) | (np.isnan(actual) & np.isnan(expected)) | (
            near & (actual != 0))
    return actual == expected


# ---------------------------------------------------------------- values

# Factors of matrices are unique only up to signs and order: the tests of linear algebra multiply them back. What
# goes between the elements of a named axis is tested under `vmap`.
WITHOUT_RECORDS = ("anima.ops.linalg", "anima.ops.collective", "anima.ops.exchange", "anima.ops.messages")


def test_every_primitive_has_a_record() -> None:
    found: set[str] = set()
    for info in pkgutil.walk_packages(anima.ops.__path__, "anima.ops."):
        if not info.name.startswith(WITHOUT_RECORDS):
            found |= {v.name for v in vars(importlib.import_module(info.name)).values() if isinstance(v, Primitive)}
    found.remove("inspect_sharding")  # has no result: tests/api/test_shardings.py
    names = [r.name for r in RECORDS]
    assert sorted(names) == sorted(set(names))
    assert found == set(names), f"without record: {found - set(names)}; of no primitive: {set(names) - found}"


@pytest.mark.parametrize("record, name", PAIRS)
def test_eager_is_the_reference(record: Record, name: str) -> None:
    for case in record.cases_for(name):
        args = record.draw(case, name)
        outs = [np.asarray(o) for o in applied(record, case, name)(*args)]
        expected = record.expected(case, name, args, [o.dtype for o in outs])
        for out, want in zip(outs, expected, strict=True):
            check(out, want, record.tolerance(name, eager=True), f"{record.name} {case}")


@pytest.mark.parametrize("record, name", PAIRS)
def test_inferred_types_are_those_of_the_values(record: Record, name: str) -> None:
    for case in record.cases_for(name):
        args, params = record.draw(case, name), case.params_for(name)
        for weak in (False, True):
            avals = [ShapedArray(a.shape, a.dtype, weak) for a in args]
            inferred = record.primitive.abstract_out(avals, params)
            with np.errstate(all="ignore"):
                out = record.primitive.eval(*args, **params)
            outs = list(out) if record.primitive.multiple_results else [out]
            assert [(a.shape, a.dtype) for a in inferred] == [(np.shape(o), np.asarray(o).dtype) for o in outs]
            traced = anima.make_jaxpr(applied(record, case, name))(*args)
            assert [a.strip_weak_type() for a in inferred] == [a.strip_weak_type() for a in traced.out_avals]
            if not weak and "weak_type" not in params:
                assert not any(a.weak_type for a in inferred)


@pytest.mark.parametrize("record", EACH)
def test_other_dtypes_are_rejected(record: Record) -> None:
    rejects = [n for n in ALL if n not in record.dtypes] if record.rejects is None else record.rejects
    for name in rejects:
        for case in record.cases[:1]:
            args = [np.zeros(a.shape, dtype_of(name)) if arg.dtype is None else a
                    for a, arg in zip(record.draw(case, record.dtypes[0]), case.args, strict=True)]
            params = case.params_for(name)
            with pytest.raises(TypeError):
                record.primitive.bind(*args, **params)


class Special(np.ndarray):
    """A subclass of arrays."""


def frozen(a: np.ndarray) -> np.ndarray:
    view = a.view()
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("record", EACH)
def test_operands_may_be_written_to_later(record: Record) -> None:
    """No result is over the memory of a user's array, however that was given, and none is left read-only."""
    for name in record.dtypes:
        for case in record.cases_for(name):
            drawn, apply = record.draw(case, name), applied(record, case, name)
            for give in (np.asarray, frozen, lambda a: a.view(Special)):
                args = [np.array(a, order="C") for a in drawn]
                outs = apply(*map(give, args))
                before = [np.asarray(o).tobytes() for o in outs]
                for a in args:
                    a.reshape(-1).view(np.uint8)[:] ^= 0xFF
                assert [np.asarray(o).tobytes() for o in outs] == before, f"{record.name} {case}"


# ---------------------------------------------------------------- compiled

def whole(record: Record, name: str, cases: Sequence[Case]) -> tuple[Callable[..., list[Any]], list[np.ndarray]]:
    """All cases as one function of all their operands, and those."""
    parts = [(applied(record, c, name), record.draw(c, name)) for c in cases]

    def fun(*flat: Any) -> list[Any]:
        given = iter(flat)
        return [out for apply, args in parts for out in apply(*itertools.islice(given, len(args)))]

    return fun, [a for _, args in parts for a in args]


@pytest.mark.parametrize("record, name", PAIRS)
def test_compiled_is_eager(record: Record, name: str) -> None:
    cases, tolerance = record.cases_for(name), record.tolerance(name)
    fun, args = whole(record, name, cases)
    with config.option("flush_subnormals")(False):  # what decays is 0 otherwise: `compiler/test_flush.py`
        compiled = iter(anima.jit(fun)(*args))
    for case in cases:
        given, label = record.draw(case, name), f"{record.name} {case}"
        eager = [np.asarray(o) for o in applied(record, case, name)(*given)]
        expected = record.expected(case, name, given, [o.dtype for o in eager])
        for want, reference in zip(eager, expected, strict=True):
            got = next(compiled)
            check(got, want, tolerance + record.tolerance(name, eager=True), f"compiled against eager, {label}")
            check(got, reference, tolerance, f"compiled against the reference, {label}")
    assert next(compiled, None) is None


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("record", EACH)
def test_loop_interpreter_is_eager(record: Record, order: str) -> None:
    name = next((n for n in ("float32", "int32", "complex64", "bool") if n in record.dtypes), record.dtypes[0])
    small = [c for c in record.cases_for(name) if c.plain]
    fun, args = whole(record, name, small)
    eager = [np.asarray(o) for o in fun(*args)]
    loops = lower(anima.make_jaxpr(fun)(*args)).loops
    for got, want in zip(interpret(loops, args, order), eager, strict=True):
        check(got.reshape(want.shape), want, 2 * record.tolerance(name), f"{record.name}, {order}")


# ---------------------------------------------------------------- derivatives

def smooth_cases(record: Record, name: str) -> list[Case]:
    return [c for c in record.cases_for(name) if c.plain]


def directions(args: Sequence[np.ndarray], seed: str) -> list[Any]:
    """A random tangent for each operand, float0 for integers."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    out: list[Any] = []
    for a in args:
        if dt.issubdtype(a.dtype, np.inexact):
            imaginary = 1j * rng.uniform(-1, 1, a.shape) if a.dtype.kind == "c" else 0
            out.append(np.asarray(rng.uniform(-1, 1, a.shape) + imaginary).astype(a.dtype))
        else:
            out.append(np.zeros(a.shape, dt.float0))
    return out


def inexact_operands(record: Record, args: Sequence[np.ndarray]) -> list[int]:
    return [k for k, a in enumerate(args) if dt.issubdtype(a.dtype, np.inexact) and k not in record.constant]


def of_operands(fun: Callable[..., list[Any]], args: Sequence[Any], varied: Sequence[int]) -> Callable[..., list[Any]]:
    """`fun` as a function of the operands in `varied` alone."""
    def of_varied(*xs: Any) -> list[Any]:
        given = dict(zip(varied, xs, strict=True))
        return fun(*(given.get(k, a) for k, a in enumerate(args)))

    return of_varied


def check_slope(fun: Callable[..., list[Any]], args: Sequence[np.ndarray], what: str) -> None:
    """The tangents of `fun` by jvp against central differences; only of results of 64-bit precision."""
    tangents, h = directions(args, what), 1e-6
    outs, slopes = anima.jvp(fun, args, tangents)
    above, below = (fun(*((a + d * t).astype(a.dtype) for a, t in zip(args, tangents, strict=True))) for d in (h, -h))
    for out, slope, hi, lo in zip(outs, slopes, above, below, strict=True):
        if not dt.issubdtype(out.dtype, np.inexact):
            assert slope.dtype == dt.float0 and slope.shape == out.shape, what
        elif out.dtype in (np.float64, np.complex128):
            with np.errstate(invalid="ignore"):  # extremes of nothing are infinite
                difference = (np.asarray(hi) - np.asarray(lo)) / (2 * h)
            constant = np.asarray(hi) == np.asarray(lo)
            np.testing.assert_allclose(slope, np.where(constant, 0, difference), rtol=2e-6, atol=2e-7, err_msg=what)


def pairing(cts: Sequence[Any], values: Sequence[Any]) -> float:
    """The real part of the bilinear pairing, in which transposition is defined for complex numbers too."""
    return float(sum(np.sum(np.asarray(c) * np.asarray(v)).real for c, v in zip(cts, values, strict=True)
                     if np.asarray(v).dtype != dt.float0))


def cotangents(outs: Sequence[Any], seed: str) -> list[Any]:
    return directions([np.asarray(o) for o in outs], seed + " cotangents")


def subsets(varied: list[int]) -> list[list[int]]:
    """All operands together, and each alone."""
    return ([varied] if varied else []) + [[k] for k in varied] * (len(varied) > 1)


@pytest.mark.parametrize("record, name", SMOOTH)
def test_jvp_is_central_differences(record: Record, name: str) -> None:
    for case in smooth_cases(record, name):
        args, fun = record.draw(case, name), applied(record, case, name)
        for some in subsets(inexact_operands(record, args)):
            chosen, label = [args[k] for k in some], f"{record.name} {case}, by operands {some}"
            if "difference" in record.skip:  # the record says why; what remains are the types of tangents
                outs, slopes = anima.jvp(of_operands(fun, args, some), chosen, directions(chosen, label))
                assert [np.shape(t) for t in slopes] == [np.shape(o) for o in outs]
            else:
                check_slope(of_operands(fun, args, some), chosen, label)


@pytest.mark.parametrize("record, name", SMOOTH)
def test_vjp_is_the_transpose_of_jvp(record: Record, name: str) -> None:
    if "transpose" in record.skip:
        pytest.skip(record.skip["transpose"])
    for case in smooth_cases(record, name):
        args, fun = record.draw(case, name), applied(record, case, name)
        for some in subsets(inexact_operands(record, args)):
            check_transpose(of_operands(fun, args, some), [args[k] for k in some],
                            f"{record.name} {case}, by operands {some}")


def check_transpose(fun: Callable[..., list[Any]], args: Sequence[np.ndarray], what: str) -> None:
    """<ct, J t> = <J^T ct, t>."""
    tangents = directions(args, what)
    outs, out_tangents = anima.jvp(fun, args, tangents)
    same, pull = anima.vjp(fun, *args)
    for a, b in zip(outs, same, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=what)
    cts = cotangents(outs, what)
    grads = pull(cts)
    assert [(np.shape(g), g.dtype) for g in grads] == [(x.shape, x.dtype) for x in args], what
    coarse = any(dt.issubdtype(o.dtype, np.inexact) and o.dtype not in (np.float64, np.complex128) for o in outs)
    tolerance = 2e-2 if coarse else 1e-9  # the tangents of a conversion are converted
    np.testing.assert_allclose(pairing(grads, tangents), pairing(cts, out_tangents), rtol=tolerance, atol=tolerance,
                               err_msg=what)


@pytest.mark.parametrize("record, name", SMOOTH)
def test_derivatives_again(record: Record, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of an operation from earlier calls changes no bit of its derivatives."""
    if "transpose" in record.skip:
        pytest.skip(record.skip["transpose"])
    for case in smooth_cases(record, name):
        args, fun = record.draw(case, name), applied(record, case, name)
        some = inexact_operands(record, args)
        given = [anima.numpy.asarray(args[k]) for k in some]

        def run(fun: Any = of_operands(fun, args, some), given: Any = given, what: str = str(case)) -> list[bytes]:
            outs, pull = anima.vjp(fun, *given)
            return [np.asarray(x).tobytes() for x in (*outs, *pull(cotangents(outs, what)))]

        with monkeypatch.context() as patch:
            patch.setattr("anima.api.autodiff.linearize_again", linearize_flat)
            expected = run()
        assert all(run() == expected for _ in range(4)), f"{record.name} {case}"


@pytest.mark.parametrize("record, name", SMOOTH)
def test_second_derivatives(record: Record, name: str) -> None:
    """The tangents of tangents and of gradients, against differences of tangents and of gradients."""
    if record.orders < 2:
        pytest.skip(f"{record.name} is differentiable once")
    if "difference" in record.skip:
        pytest.skip(record.skip["difference"])
    for case in smooth_cases(record, name):
        args, fun = record.draw(case, name), applied(record, case, name)
        varied, label = inexact_operands(record, args), f"{record.name} {case}"
        outs = fun(*args)
        if not varied or not any(o.dtype in (np.float64, np.complex128) for o in outs):
            continue
        chosen, of_varied, cts = [args[k] for k in varied], of_operands(fun, args, varied), cotangents(outs, label)

        def tangent(*xs: Any, f: Any = of_varied, ts: Any = tuple(directions(chosen, label + " fixed"))) -> list[Any]:
            return [t for t in anima.jvp(f, xs, ts)[1] if t.dtype != dt.float0]

        def gradient(*xs: Any, f: Any = of_varied, cts: Any = cts) -> list[Any]:
            return list(anima.vjp(f, *xs)[1](cts))

        check_slope(tangent, chosen, label)
        check_slope(gradient, chosen, label)


@pytest.mark.parametrize("record", [r for r in RECORDS if r.constant and r not in SPARSE])  # theirs are integers
def test_operands_without_derivative_say_so(record: Record) -> None:
    args = record.draw(record.cases[0], record.dtypes[0])
    for k in record.constant:
        with pytest.raises((NotImplementedError, ValueError),
                           match=f"derivative of {record.name.split('_')[-1]}|derivative of {record.name}"):
            anima.jvp(of_operands(applied(record, record.cases[0], record.dtypes[0]), args, [k]), [args[k]], [args[k]])


@pytest.mark.parametrize("record", [r for r in RECORDS if "float32" in r.dtypes or "complex64" in r.dtypes],
                         ids=lambda r: r.name)
def test_compiled_derivatives(record: Record) -> None:
    """Tangents and gradients under jit are those without."""
    name = "float32" if "float32" in record.dtypes else "complex64"
    fun, args = whole(record, name, smooth_cases(record, name))
    chosen = [k for k, _ in enumerate(args) if k in _varied(record, name)]
    if not chosen:
        pytest.skip(f"{record.name} has no operand to differentiate by")

    def both(tangents: Any, cts: Any, *xs: Any) -> Any:
        def of_chosen(*ys: Any) -> list[Any]:
            return [o for o in of_operands(fun, xs, chosen)(*ys) if dt.issubdtype(o.dtype, np.inexact)]

        inputs = tuple(xs[k] for k in chosen)
        return anima.jvp(of_chosen, inputs, tangents)[1], anima.vjp(of_chosen, *inputs)[1](cts)

    tangents = tuple(directions([args[k] for k in chosen], record.name))
    cts = cotangents([o for o in fun(*args) if dt.issubdtype(o.dtype, np.inexact)], record.name)
    got, want = anima.jit(both)(tangents, cts, *args), both(tangents, cts, *args)
    for g, w in zip(anima.tree.leaves(got), anima.tree.leaves(want), strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        if is_float(w.dtype) or w.dtype.kind == "c":
            tolerance = 3e-5 if w.dtype.itemsize > 2 else 2e-2
            wide = np.complex128 if w.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(np.asarray(g).astype(wide), np.asarray(w).astype(wide), rtol=tolerance,
                                       atol=tolerance)


def _varied(record: Record, name: str) -> set[int]:
    """Positions, among the operands of all smooth cases, of those that have derivatives."""
    out, position = set(), 0
    for case in smooth_cases(record, name):
        args = record.draw(case, name)
        out |= {position + k for k in inexact_operands(record, args)}
        position += len(args)
    return out


# ---------------------------------------------------------------- vmap

@pytest.mark.parametrize("record", EACH)
def test_vmap_is_a_loop(record: Record) -> None:
    """Each operand mapped along its first axis, its last, or not at all."""
    name = next((n for n in ("float32", "int32", "complex64") if n in record.dtypes), record.dtypes[0])
    for case in smooth_cases(record, name):
        count, fun = len(case.args), applied(record, case, name)
        if not count:
            continue
        rng = np.random.default_rng(zlib.crc32(f"{record.name} {case}".encode()))
        lanes = [record.draw(case, name), *([arg.draw(name, rng) for arg in case.args] for _ in range(2))]
        for axes in sampled_axes(count):
            mixed = [[lanes[0 if axes[k] is None else lane][k] for k in range(count)] for lane in range(3)]
            stacked = [lanes[0][k] if axes[k] is None else np.stack([m[k] for m in mixed],
                                                                    axes[k]) for k in range(count)]
            mapped = anima.vmap(fun, in_axes=axes)(*stacked)
            singles = [fun(*m) for m in mixed]
            for out, *rows in zip(mapped, *singles, strict=True):
                want = np.stack([np.asarray(r) for r in rows])
                tolerance = record.tolerance(name)
                check(out, want, 2 * tolerance, f"vmap over {axes} of {record.name} {case}")


def sampled_axes(count: int) -> list[tuple[int | None, ...]]:
    """All combinations of axes for up to two operands; for more, those with at most one unlike the others."""
    if count <= 2:
        return [a for a in itertools.product((0, -1, None), repeat=count) if set(a) != {None}]
    base: list[tuple[int | None, ...]] = [(0,) * count, (-1,) * count]
    for k in range(count):
        base.append(tuple(0 if j == k else None for j in range(count)))
        base.append(tuple(None if j == k else 0 for j in range(count)))
        base.append(tuple(-1 if j == k else 0 for j in range(count)))
    return base


def test_records_name_their_dtypes_well() -> None:
    for record in RECORDS:
        assert set(record.dtypes) <= set(ALL) and len(set(record.dtypes)) == len(record.dtypes), record.name
        assert record.orders in (0, 1, 2)
        assert not (record.rejects and set(record.rejects) & set(record.dtypes)), record.name
        assert all(reason for reason in record.skip.values())
    assert set(INEXACT) <= set(ALL)
