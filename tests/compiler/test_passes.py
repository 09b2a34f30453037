"""Passes on jaxprs: inlining, expansion, simplification, dead code; and the driver."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from anima.compiler.driver import lower
from anima.compiler.ir.index_math import TRUE, Indexer
from anima.compiler.ir.loops import (
    Accumulate,
    Affine,
    Const,
    For,
    Kernel,
    Let,
    Load,
    Mutable as Variable,
    NamedValue,
    Op,
    Program,
    Store,
)
from anima.compiler.ir.show_loops import LoopError, check
from anima.compiler.machine.native import host
from anima.compiler.rewriting.expand import expand
from anima.compiler.rewriting.inline import inline
from anima.compiler.rewriting.simplify import clean, dead_code
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from anima.core.primitive import Primitive
from anima.core.show import show_jaxpr
from anima.core.stage import eval_jaxpr
from anima.ops import elementwise as el, reduce as rd, shape as sh
from anima.ops.contract import dot_general_p
from anima.ops.family import ELEMENTWISE
from anima.util import replace
from tests.compiler.stages import agree, closed, lowered

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
N = np.arange(12, dtype=np.int32).reshape(3, 4)


def names(program: ClosedJaxpr) -> list[str]:
    return [e.primitive.name for e in program.eqns]


def cleaned(fun: Callable[..., Any], *args: np.ndarray) -> ClosedJaxpr:
    """The program of a function, simplified: it computes the same bits."""
    program = closed(fun, *args)
    new = clean(program)
    with np.errstate(all="ignore"):
        for got, want in zip(eval_jaxpr(new.jaxpr, new.consts, *args), eval_jaxpr(program.jaxpr, program.consts, *args),
                             strict=True):
            got, want = np.asarray(got), np.asarray(want)
            assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())
    return new


# ---------------------------------------------------------------- simplify

SAME = [
    ("x * 1", lambda x: el.mul(x, 1.0)),
    ("1 * x", lambda x: el.mul(1.0, x)),
    ("x / 1", lambda x: el.div(x, 1.0)),
    ("x - 0", lambda x: el.sub(x, 0.0)),
    ("x + -0", lambda x: el.add(x, -0.0)),
    ("--x", lambda x: el.neg(el.neg(x))),
    ("copy", lambda x: el.copy(x)),
    ("x as x", lambda x: el.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=False)),
    ("transpose twice", lambda x: sh.transpose(sh.transpose(x, (1, 0)), (1, 0))),
    ("reshape and back", lambda x: sh.reshape(sh.reshape(x, (12,)), (3, 4))),
    ("slice of all", lambda x: sh.slice_p.bind(x, start_indices=(0, 0), limit_indices=(3, 4), strides=None)),
    ("x ** 1", lambda x: el.integer_pow_p.bind(x, y=1)),
    ("select of equals", lambda x: el.select(el.lt(x, 0.0), x, x)),
]


@pytest.mark.parametrize("fun", [f for _, f in SAME], ids=[n for n, _ in SAME])
def test_operations_that_change_nothing_go(fun: Callable[..., Any]) -> None:
    assert names(cleaned(fun, X)) == []


KEPT = [
    ("x + 0 makes 0 of -0", lambda x: el.add(x, 0.0), "add"),
    ("x - -0 likewise", lambda x: el.sub(x, -0.0), "sub"),
    ("0 * x may be nan", lambda x: el.mul(x, 0.0), "mul"),
    ("x * -1", lambda x: el.mul(x, -1.0), "mul"),
    ("1 - x", lambda x: el.sub(1.0, x), "sub"),
    ("1 / x", lambda x: el.div(1.0, x), "div"),
]


@pytest.mark.parametrize(("fun", "name"), [k[1:] for k in KEPT], ids=[k[0] for k in KEPT])
def test_operations_that_change_bits_stay(fun: Callable[..., Any], name: str) -> None:
    assert names(cleaned(fun, X)) == [name]


BITWISE, SHIFTS = ["and", "or", "xor"], ["shift_left", "shift_right_logical", "shift_right_arithmetic"]
WHOLE = [0, 1, 5, 7, 127]
VALUES = {"bool": [False, True], "int8": [*WHOLE, -1, -7, -128], "int32": [*WHOLE, -1, -7], "uint8": [*WHOLE, 255],
          "uint32": [*WHOLE, 1 << 31],
          **{t: [0.0, -0.0, 1.5, -2.0, np.inf, -np.inf] for t in ("float16", ml_dtypes.bfloat16, "float32")}}
NEUTRAL = [(name, dtype, constant) for dtype in VALUES for name, constant in itertools.product(
    [*([] if dtype == "bool" else ["add", "sub", "mul", "div"]),
     *([] if np.dtype(dtype).kind in "fV" else BITWISE), *(SHIFTS if np.dtype(dtype).kind in "iu" else [])],
    [False, True] if dtype == "bool" else [0, 1, -1, 2] if np.dtype(dtype).kind in "iu" else
    [0.0, -0.0, 1.0, -1.0, 2.0])]


@pytest.mark.parametrize(("name", "dtype", "constant"), NEUTRAL)
def test_an_operation_with_a_constant_goes_where_it_changes_no_bit(name: str, dtype: Any, constant: Any) -> None:
    x = np.array(VALUES[dtype]).astype(dtype)
    number, operation = np.array(constant).astype(dtype)[()], getattr(el, f"{name}_", None) or getattr(el, name)
    for left in (False, True):
        if x.dtype.kind in "iu" and ((left and name in (*SHIFTS, "div")) or (name == "div" and constant == 0)):
            continue  # not defined for all values

        def fun(x: Any, left: bool = left) -> Any:
            numbers = sh.full(x.shape, number)
            return operation(numbers, x) if left else operation(x, numbers)

        with np.errstate(all="ignore"):
            same = np.asarray(fun(x)).tobytes() == x.tobytes()
        assert names(cleaned(fun, x))[-1:] == ([] if same else [name])


@pytest.mark.parametrize("cases", [2, 3, 4])
@pytest.mark.parametrize("which", [0, 1, 2, 3, -1, 9])
def test_a_choice_that_is_known_is_made(cases: int, which: int) -> None:
    if cases == 2 and which not in (0, 1):
        return
    index = bool(which) if cases == 2 else np.int32(which)
    xs = [X + k for k in range(cases)]
    program = cleaned(lambda *xs: el.select_n_p.bind(sh.full(X.shape, index), *xs), *xs)
    assert names(program)[-1:] == ([] if 0 <= which < cases else ["select_n"])


@pytest.mark.parametrize("cases", [2, 3, 4])
@pytest.mark.parametrize("other", [0, 1, 2, 3, None])
def test_a_choice_among_equals_is_none(cases: int, other: int | None) -> None:
    which = (N % 2 == 0) if cases == 2 else N % np.int32(cases)

    def fun(which: Any, x: Any, y: Any) -> Any:
        return el.select_n_p.bind(which, *[y if k == other else x for k in range(cases)])

    assert names(cleaned(fun, which, X, -X)) == (["select_n"] if other is not None and other < cases else [])


ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 1, 4), (1, 3, 1), (0, 3, 4)])
@pytest.mark.parametrize("first", ORDERS)
def test_transposes_of_transposes(shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for second in ORDERS:
        program = cleaned(lambda x, second=second: sh.transpose(sh.transpose(x, first), second), x)
        assert names(program).count("transpose") <= 1
        for axes in ((0,), (1, 2), (0, 2), (0, 1, 2)):
            reduced = cleaned(lambda x, axes=axes: sh.reduce_sum(sh.transpose(x, first), axes), x)
            kept = [p for d, p in enumerate(first) if d not in axes]
            assert kept != sorted(kept) or "transpose" not in names(reduced)


NEAR = [el.neg, el.sin, lambda x: el.bitcast_convert_type(el.bitcast_convert_type(x, np.int32) ^ 3, np.float32),
        lambda x: sh.rev(x, (0,)), lambda x: sh.transpose(x, (0, 1)), lambda x: sh.reshape(x, (4, 3))]


@pytest.mark.parametrize("inner", NEAR)
def test_only_what_a_rule_is_for_is_taken_for_it(inner: Callable[..., Any]) -> None:
    for outer in (lambda x: sh.reduce_sum(x, (0,)), lambda x: sh.transpose(x, (1, 0)), lambda x: sh.reshape(x, (2, 6)),
                  lambda x: sh.reshape(x, (3, 4)), el.neg, lambda x: sh.reduce_sum(x, (0, 1))):
        cleaned(lambda x, outer=outer: outer(inner(x)), X)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_no_operation_is_taken_for_another(name: str) -> None:
    """Nor is one whose name is near in the alphabet to those that rules look for."""
    primitive = ELEMENTWISE[name]

    def inner(x: Any) -> Any:
        return primitive.bind(*[x] * len(primitive.operands), **({"y": 3} if name == "integer_pow" else {}))

    for x in (np.abs(X) + 1, N + 1, N > 3):
        try:
            closed(inner, x)
        except TypeError:
            continue  # not of this type, or with parameters
        for outer in (lambda y: rd.reduce_max_p.bind(y, axes=(0,)), lambda y: sh.transpose(y, (1, 0)),
                      lambda y: sh.reshape(y, (2, 6)), lambda y: sh.reshape(y, (3, 4)), el.neg, el.not_):
            with contextlib.suppress(TypeError):
                cleaned(lambda x, outer=outer: outer(inner(x)), x)


CONVERTED = ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", ml_dtypes.bfloat16, "float32", "complex64"]


@pytest.mark.parametrize(("old", "new"), [*itertools.product(CONVERTED, CONVERTED)])
def test_a_conversion_goes_where_it_is_none(old: Any, new: Any) -> None:
    x = np.arange(6).reshape(2, 3).astype(old)
    convert = el.convert_element_type_p.bind
    program = cleaned(lambda x: convert(x, new_dtype=np.dtype(new), weak_type=False), x)
    assert names(program) == ([] if old == new else ["convert_element_type"])


def test_broadcast_operand_is_not_the_result() -> None:
    column = X[:, :1].copy()
    agree(lambda x, c: el.mul(c, sh.full((3, 4), np.float32(1))), X, column)


def test_equal_equations_are_one() -> None:
    program = clean(closed(lambda x: el.add(el.sin(x), el.sin(x)), X))
    assert names(program) == ["sin", "add"]
    assert program.eqns[1].invars[0] is program.eqns[1].invars[1]


def test_literals_that_differ_in_sign_of_zero_are_not_equal() -> None:
    program = clean(closed(lambda x: [el.atan2(x, 0.0), el.atan2(x, -0.0)], X))
    assert names(program) == ["atan2", "atan2"]


def test_scalar_constants_are_computed() -> None:
    program = clean(closed(lambda x: el.mul(x, el.add_any.bind(el.sin.bind(np.float32(0.5)), np.float32(1))), X))
    assert names(program) == ["mul"]


def test_reduction_of_a_transpose() -> None:
    program = clean(closed(lambda x: sh.reduce_sum(sh.transpose(x, (1, 0)), (0,)), X))
    assert names(program) == ["reduce_sum"]
    assert program.eqns[0].params["axes"] == (1,)


def test_product_of_a_transpose() -> None:
    def product(x: Any, y: Any) -> Any:
        return dot_general_p.bind(x, sh.transpose(y, (1, 0)), dimension_numbers=(((1,), (0,)), ((), ())),
                                  precision=None, preferred_element_type=None)

    program = clean(closed(product, X, X))
    assert names(program) == ["dot_general"]
    assert program.eqns[0].params["dimension_numbers"] == (((1,), (1,)), ((), ()))


def test_dead_code() -> None:
    def fun(x: Any) -> Any:
        el.exp(el.sin(x))
        return el.cos(x)

    assert names(dead_code(closed(fun, X))) == ["cos"]


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 5])
def test_live_code_stays_in_order(kept: int) -> None:
    chain = [el.sin, el.cos, el.tanh, el.exp, el.neg]

    def fun(x: Any) -> Any:
        for f in chain[:kept]:
            el.exp(x)
            x = f(x)
        return x

    program = dead_code(closed(fun, X))
    assert names(program) == ["sin", "cos", "tanh", "exp", "neg"][:kept]
    assert dead_code(program) is program


# ---------------------------------------------------------------- inline and expand


class Twice(Primitive):
    """x + x, as a program of its own."""

    def infer(self, x: ShapedArray) -> ShapedArray:
        return x

    def eval(self, x: np.ndarray) -> np.ndarray:
        return x + x

    def program(self, aval: ShapedArray) -> ClosedJaxpr:
        return closed(lambda x: el.add(x, x), np.zeros(aval.shape, aval.dtype))


class TwiceByBody(Twice):
    """Stands for a program that its parameters hold."""

    multiple_results = True

    def infer(self, x: ShapedArray, *, program: ClosedJaxpr) -> list[ShapedArray]:  # type: ignore[override]
        return [x]

    def body(self, params: dict[str, Any], avals: list[ShapedArray]) -> ClosedJaxpr:
        return params["program"]


class TwiceOnWords(Twice):
    """Stands for a program that waits until keys are words."""

    on_words = True

    def body(self, params: dict[str, Any], avals: list[ShapedArray]) -> ClosedJaxpr:
        return self.program(avals[0])


def test_calls_are_replaced_each_time_by_new_equations() -> None:
    twice = TwiceByBody("twice")
    inner = twice.program(ShapedArray(X.shape, X.dtype))
    program = inline(closed(lambda x: twice.bind(*twice.bind(x, program=inner), program=inner), X))
    assert names(program) == ["add", "add"]
    outs = [v for e in program.eqns for v in e.outvars]
    assert len(set(outs)) == 2


def test_expansions_are_replaced_each_time_by_new_equations() -> None:
    twice = TwiceOnWords("twice")
    assert names(inline(closed(lambda x: twice.bind(x), X))) == ["twice"]
    program = expand(closed(lambda x: twice.bind(twice.bind(x)), X), host())
    assert names(program) == ["add", "add"]
    outs = [v for e in program.eqns for v in e.outvars]
    assert len(set(outs)) == 2
    agree(lambda x: twice.bind(twice.bind(x)), X)


def test_argmax_becomes_two_reductions() -> None:
    program = expand(closed(lambda x: rd.argmax(x, 1, np.int32), X), host())
    assert "argmax" not in names(program)
    assert {"reduce_max", "reduce_min"} <= set(names(program))


def test_nothing_to_do_is_the_same_object() -> None:
    program = closed(lambda x: el.sin(x), X)
    assert inline(program) is program and expand(program, host()) is program and dead_code(program) is program


# ---------------------------------------------------------------- the driver


def test_program_with_many_unused_equations_is_quick() -> None:
    def fun(x: Any) -> Any:
        y = x
        for k in range(1000):
            y = el.mul(y, 1.0 + k)
        return el.sin(x)

    program = closed(fun, X)
    start = time.process_time()
    stages = lower(program)
    assert time.process_time() - start < 0.05
    assert stages.kernel_count == 1 and len(stages.jaxpr.eqns) == 1


def test_long_program_is_one_kernel() -> None:
    def fun(x: Any) -> Any:
        y = x
        for k in range(400):
            y = el.add(el.mul(y, 1.0 - k * 1e-3), x)
        return y

    program = closed(fun, X)
    start = time.process_time()
    stages = lower(program)
    assert time.process_time() - start < 0.5
    assert stages.kernel_count == 1


def test_missing_lowering_names_the_primitive_and_the_line() -> None:

    class Odd(Primitive):
        def infer(self, x: ShapedArray) -> ShapedArray:
            return x

    with pytest.raises(NotImplementedError, match=r"'odd_one'.*test_passes.py"):
        lower(closed(lambda x: Odd("odd_one").bind(x), X))


def test_checking_names_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANIMA_CHECK", "1")
    a, b = Var(ShapedArray((3,), np.dtype(np.float32))), Var(ShapedArray((3,), np.dtype(np.float32)))
    unbound = Jaxpr([], [a], [], [Eqn(el.sin, [b], [Var(a.aval)], {})])
    broken = Jaxpr([], [a], [unbound.eqns[0].outvars[0]], unbound.eqns)
    with pytest.raises(Exception) as caught:
        lower(ClosedJaxpr(broken, []))
    assert any("dead_code" in note for note in caught.value.__notes__)


def test_showing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ANIMA_SHOW", "jaxpr,fused,loops")
    monkeypatch.setenv("ANIMA_TIME", "1")
    lowered(lambda x: el.sin(x), X)
    err = capsys.readouterr().err
    assert "--- inline (unchanged)" in err and "map [3,4]" in err and "out0[i1] = v3" in err and " ms" in err


def test_stages_have_every_level() -> None:
    stages = lowered(lambda x: el.sin(x), X)
    assert "sin" in show_jaxpr(stages.jaxpr)
    assert len(stages.fused.groups) == 1 and isinstance(stages.loops, Program)


# ---------------------------------------------------------------- index arithmetic


def test_quotients_and_remainders_disappear() -> None:
    ix = Indexer()
    i, j = ix.var("i", 8, 1), ix.var("j", 10, 2)
    flat = ix.add(ix.scale(i, 10), j)
    assert ix.divmod(flat, 10) == (i, j)
    assert ix.flatten(ix.unflatten(flat, (8, 10)), (8, 10)) is flat
    m = ix.var("m", 80, 1)
    assert ix.flatten(ix.unflatten(m, (8, 10)), (8, 10)) is m
    assert ix.flatten(ix.unflatten(m, (4, 1, 2, 10, 1)), (4, 1, 2, 10, 1)) is m
    assert ix.unflatten(flat, (4, 20)) == (ix.div(i, 2), ix.add(ix.scale(ix.rem(i, 2), 10), j))


def test_indices_have_bounds() -> None:
    ix = Indexer()
    i = ix.offset(ix.var("i", 8, 1), -2)
    assert (i.lo, i.hi) == (-2, 5)
    assert ix.less(i, 6) is TRUE
    assert ix.clamp(i, -2, 9) is i and ix.clamp(i, 0, 9).lo == 0
    values = [(k - 2 + 3) // 4 for k in range(8)]
    q = ix.div(ix.offset(i, 3), 4)
    assert (q.lo, q.hi) == (min(values), max(values))


# ---------------------------------------------------------------- the checker

I = NamedValue("i", "index")
BROKEN = [
    ("is not bound", (Store("out0", Const(0, "index"), NamedValue("x", "f32")),)),
    ("bound twice", (Let("x", Const(1.0, "f32")), Let("x", Const(2.0, "f32")))),
    ("no buffer", (Store("nowhere", Const(0, "index"), Const(1.0, "f32")),)),
    ("which holds f32", (Store("out0", Const(0, "index"), Const(1, "i32")),)),
    ("is not an index", (Store("out0", Const(0, "i32"), Const(1.0, "f32")),)),
    ("store to input", (Store("in0", Const(0, "index"), Const(1.0, "f32")),)),
    ("add of", (Let("x", Op("add", (Const(1.0, "f32"), Const(1, "i32")), "f32")),)),
    ("add of indices", (For("i", Const(4, "index"), (Let("x", Op("add", (I, I), "index")),)),)),
    ("not in its simplest form", (For("i", Const(4, "index"), (Let("x", Affine((I,), (1,), 0)),)),)),
    ("not in its simplest form", (For("i", Const(4, "index"), (Let("x", Affine((I, Const(2, "index")), (2, 3))),)),)),
    *(("not in its simplest form", (For("i", Const(4, "index"), (Let("x", index),)),)) for index in (
        Affine((I,), (0,), 1), Affine((I, I), (1, 2)), Affine((), (), 3), Affine((Affine((I,), (2,)),), (3,)))),
    ("not a sum of indices", (Let("y", Const(1.0, "f32")), Let("x", Affine((NamedValue("y", "f32"),), (2,))))),
    ("nothing is added", (Variable("s", "index", Const(0, "index")), Accumulate("s", "add", Const(1, "index")))),
    ("is not f32", (Let("x", Const(1, "f32")),)),
    ("load of i32", (Let("x", Load("in0", Const(0, "index"), "i32")),)),
]


@pytest.mark.parametrize(("message", "body"), BROKEN, ids=[f"{b[0]} {n}" for n, b in enumerate(BROKEN)])
def test_checker_finds_broken_programs(message: str, body: tuple[Any, ...]) -> None:
    good = lowered(lambda x: el.sin(x), X).loops
    broken = Program("f", good.buffers, (Kernel("k", body),))
    with pytest.raises(LoopError, match=message):
        check(broken)


def test_checker_looks_again_at_kernels_where_others_stand_around_them() -> None:
    good, right = lowered(lambda x: el.sin(x), X).loops, {}
    kernel = Kernel("k", (Let("x", Load("in0", I, "f32")), Store("out0", I, NamedValue("x", "f32"))))
    around = For("i", Const(4, "index"), (kernel,))
    check(replace(good, body=(around,)), right)
    assert [known[0] for known in right.values()] == [kernel]
    check(replace(good, body=(around,)), right)
    swapped = tuple(replace(b, role={"input": "output", "output": "input"}[b.role]) for b in good.buffers)
    others = tuple(replace(b, dtype="f64") for b in good.buffers)
    for message, program in (("not bound", replace(good, body=(kernel,))),
                             ("store to input", replace(good, buffers=swapped, body=(around,))),
                             ("which holds f64", replace(good, buffers=others, body=(around,))),
                             ("bound twice", replace(good, body=(replace(around, body=(
                                 kernel, Let("x", Const(0, "index")))),)))):
        with pytest.raises(LoopError, match=message):
            check(program, right)
