from __future__ import annotations

import re
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.core.primitive import Primitive
from anima.core.show import DocGroup, DocNest, Line, join, layout, letters, literal_text, show_jaxpr
from anima.core.source import Source

F32, I32, BOOL = (np.dtype(t) for t in ("float32", "int32", "bool"))


def aval(dtype: np.dtype, *shape: int) -> ShapedArray:
    return ShapedArray(shape, dtype)


class Program:
    """Writes a program equation by equation: `p("mul", [x, 2.0], f32)` is the result variable."""

    def __init__(self, *invars: Var, constvars: tuple[Var, ...] = ()) -> None:
        self.invars, self.constvars, self.eqns = list(invars), list(constvars), []

    def __call__(self, name: str, args: list[Any], out: Any, /, **params: Any) -> Any:
        atoms = [a if isinstance(a, Var) else Literal(a, aval(F32 if isinstance(a, float) else I32)) for a in args]
        outs = [Var(o) for o in (out if isinstance(out, list) else [out])]
        self.eqns.append(Eqn(Primitive(name), atoms, outs, params, Source("folder/model.py", 7, "f")))
        return outs if isinstance(out, list) else outs[0]

    def end(self, *outs: Any) -> Jaxpr:
        return Jaxpr(self.constvars, self.invars, outs, self.eqns)


def chain(name: str, length: int) -> Jaxpr:
    x = Var(aval(F32, 4))
    p, y = Program(x), x
    for _ in range(length):
        y = p(name, [y, y], x.aval)
    return p.end(y)


def test_small_programs_fit_on_a_line() -> None:
    a, b = Var(aval(F32, 5)), Var(aval(F32, 5))
    p = Program(a, b)
    assert str(p.end(p("add", [a, b], a.aval))) == "{ lambda ; a:f32[5] b:f32[5]. let c:f32[5] = add a b in (c,) }"
    p = Program(b, constvars=(a,))
    assert str(p.end(p("add", [a, b], a.aval))) == "{ lambda a:f32[5]; b:f32[5]. let c:f32[5] = add a b in (c,) }"
    p = Program(a)
    assert str(p.end(p("add", [1.0, a], a.aval))) == "{ lambda ; a:f32[5]. let b:f32[5] = add 1.0 a in (b,) }"
    a, b = Var(aval(F32)), Var(aval(F32))
    p = Program(a, b)
    outs = p("sub", [a, b], a.aval), p("lt", [a, b], aval(BOOL))
    assert str(p.end(*outs)) == ("{ lambda ; a:f32[] b:f32[]. let c:f32[] = sub a b; d:bool[] = lt a b in (c, d) }")
    x = Var(aval(F32, 2))
    assert str(Program(x).end(x)) == "{ lambda ; a:f32[2]. let in (a,) }"
    assert str(Program().end()) == "{ lambda ; . let in () }"


def test_longer_programs_break() -> None:
    a = Var(aval(F32))
    p = Program(a)
    b, c = p("log", [a], a.aval), p("log", [2.0], a.aval)
    assert str(p.end(p("div", [b, c], a.aval))) == """\
{ lambda ; a:f32[]. let
    b:f32[] = log a
    c:f32[] = log 2.0
    d:f32[] = div b c
  in (d,) }"""


def test_eighty_columns_are_enough() -> None:
    x = Var(aval(F32, 100))
    p = Program(x)
    y = p("mul", [x, x], x.aval)
    one_line = str(p.end(p("mul", [y, y], x.aval)))
    assert one_line == "{ lambda ; a:f32[100]. let b:f32[100] = mul a a; c:f32[100] = mul b b in (c,) }"
    assert len(one_line) == 79
    x = Var(aval(F32, 1000))
    p = Program(x)
    y = p("mul", [x, x], x.aval)
    assert str(p.end(p("mul", [y, y], x.aval))).count("\n") == 3


def test_many_arguments_as_in_the_documents() -> None:
    xs = [Var(aval(I32)) for _ in range(10)]
    p = Program(*xs)
    ks = [p("broadcast_in_dim", [x], aval(I32, 1), broadcast_dimensions=(), shape=(1,)) for x in xs]
    text = str(p.end(p("concatenate", ks, aval(I32, 10), dimension=0)))
    lines = text.splitlines()
    assert lines[0] == "{ lambda ; a:i32[] b:i32[] c:i32[] d:i32[] e:i32[] f:i32[] g:i32[] h:i32[] i:i32[]"
    assert lines[1] == "    j:i32[]. let"
    assert lines[2] == "    k:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] a"
    assert lines[-2] == "    u:i32[10] = concatenate[dimension=0] k l m n o p q r s t"


def test_nested_calls_as_in_the_documents() -> None:
    big = 1000000
    j, k, l = Var(aval(BOOL, big)), Var(aval(I32, big)), Var(aval(F32, big))
    where = Program(j, k, l)
    m = where("convert_element_type", [k], l.aval, new_dtype=F32, weak_type=False)
    where_jaxpr = where.end(where("select_n", [j, l, m], l.aval))
    c = Var(aval(I32, big))
    selu = Program(c)
    d = selu("gt", [c, 0], j.aval)
    e = selu("convert_element_type", [c], l.aval, new_dtype=F32, weak_type=False)
    f = selu("exp", [e], l.aval)
    g = selu("mul", [1.67, f], l.aval)
    h = selu("sub", [g, 1.67], l.aval)
    i = selu("pjit", [d, c, h], l.aval, jaxpr=ClosedJaxpr(where_jaxpr), name="_where", inline=False,
             donated=(False,) * 3)
    o = selu("mul", [1.05, i], l.aval)
    a = Var(aval(I32, big))
    outer = Program(a)
    b = outer("pjit", [a], l.aval, name="selu", jaxpr=ClosedJaxpr(selu.end(o)), inline=False, donated=(False,))
    assert str(outer.end(b)) == """\
{ lambda ; a:i32[1000000]. let
    b:f32[1000000] = pjit[
      name=selu
      jaxpr={ lambda ; c:i32[1000000]. let
          d:bool[1000000] = gt c 0
          e:f32[1000000] = convert_element_type[
            new_dtype=float32
            weak_type=False
          ] c
          f:f32[1000000] = exp e
          g:f32[1000000] = mul 1.6699999570846558 f
          h:f32[1000000] = sub g 1.6699999570846558
          i:f32[1000000] = pjit[
            name=_where
            jaxpr={ lambda ; j:bool[1000000] k:i32[1000000] l:f32[1000000]. let
                m:f32[1000000] = convert_element_type[
                  new_dtype=float32
                  weak_type=False
                ] k
                n:f32[1000000] = select_n j l m
              in (n,) }
          ] d c h
          o:f32[1000000] = mul 1.0499999523162842 i
        in (o,) }
    ] a
  in (b,) }"""


def test_loops_and_unused_results_as_in_the_documents() -> None:
    a, c, d, g, h = (Var(aval(t, *s)) for t, s in [(F32, (2,)), (I32, ()), (F32, (2,)), (I32, ()), (F32, (2,))])
    body = Program(c, d)
    body_jaxpr = body.end(body("add", [c, 1], c.aval), body("mul", [d, d], d.aval))
    cond = Program(g, h)
    cond_jaxpr = cond.end(cond("lt", [g, 1000], aval(BOOL)))
    p = Program(a)
    b = p("copy", [a], a.aval)
    p("while", [0, a], [c.aval, d.aval], body_jaxpr=ClosedJaxpr(body_jaxpr), body_nconsts=0,
      cond_jaxpr=ClosedJaxpr(cond_jaxpr), cond_nconsts=0)
    assert str(p.end(b)) == """\
{ lambda ; a:f32[2]. let
    b:f32[2] = copy a
    _:i32[] _:f32[2] = while[
      body_jaxpr={ lambda ; c:i32[] d:f32[2]. let
          e:i32[] = add c 1
          f:f32[2] = mul d d
        in (e, f) }
      body_nconsts=0
      cond_jaxpr={ lambda ; g:i32[] h:f32[2]. let i:bool[] = lt g 1000 in (i,) }
      cond_nconsts=0
    ] 0 a
  in (b,) }"""


def test_branches() -> None:
    def branch(name: str) -> ClosedJaxpr:
        x = Var(aval(F32))
        p = Program(x)
        return ClosedJaxpr(p.end(p(name, [x, 2.0], x.aval)))

    i, x = Var(aval(I32)), Var(aval(F32))
    p = Program(i, x)
    text = str(p.end(p("cond", [i, x], x.aval, branches=(branch("mul"), branch("add")))))
    assert text == """\
{ lambda ; a:i32[] b:f32[]. let
    c:f32[] = cond[
      branches=(
        { lambda ; d:f32[]. let e:f32[] = mul d 2.0 in (e,) }
        { lambda ; f:f32[]. let g:f32[] = add f 2.0 in (g,) }
      )
    ] a b
  in (c,) }"""


def test_parameters() -> None:
    x = Var(aval(F32, 2, 2))
    p = Program(x)

    def rule() -> None: ...

    y = p("dot_general", [x, x], x.aval, dimension_numbers=(((0,), (0,)), ((), ())), precision=None,
          preferred_element_type=None)
    z = p("p", [y], x.aval, z=rule, a=BOOL, name="f", call_jaxpr=ClosedJaxpr(Program().end()))
    p("reshape", [z], aval(F32, 4), new_sizes=(4,), dimensions=None)
    lines = [str(e) for e in p.eqns]
    assert lines[0] == "b:f32[2,2] = dot_general[dimension_numbers=(([0], [0]), ([], []))] a a"
    assert lines[1] == "b:f32[2,2] = p[name=f call_jaxpr={ lambda ; . let in () } a=bool z=rule] a"
    assert lines[2] == "b:f32[4] = reshape[new_sizes=(4,)] a"


def test_a_program_called_twice_is_written_once() -> None:
    inner = ClosedJaxpr(chain("mul", 1))
    x = Var(aval(F32, 4))
    p = Program(x)
    y = p("pjit", [x], x.aval, name="inner", jaxpr=inner)
    z = p("pjit", [y], x.aval, name="inner", jaxpr=inner)
    other = ClosedJaxpr(chain("add", 1))
    for _ in range(2):
        z = p("pjit", [z], x.aval, name="inner", jaxpr=other)
    assert str(p.end(z)) == """\
let inner = { lambda ; a:f32[4]. let b:f32[4] = mul a a in (b,) } in
let inner1 = { lambda ; c:f32[4]. let d:f32[4] = add c c in (d,) } in
{ lambda ; e:f32[4]. let
    f:f32[4] = pjit[name=inner jaxpr=inner] e
    g:f32[4] = pjit[name=inner jaxpr=inner] f
    h:f32[4] = pjit[name=inner jaxpr=inner1] g
    i:f32[4] = pjit[name=inner jaxpr=inner1] h
  in (i,) }"""


def test_names() -> None:
    assert [letters(i) for i in (0, 25, 26, 27, 51, 52, 700)] == ["a", "z", "ba", "bb", "bz", "ca", "bay"]
    text = str(chain("mul", 1000))
    assert text.splitlines()[1] == "    b:f32[4] = mul a a" and text.splitlines()[26] == "    ba:f32[4] = mul z z"
    assert text.splitlines()[-2] == "    bmm:f32[4] = mul bml bml"


def test_pretty_print() -> None:
    closed = ClosedJaxpr(chain("mul", 1))
    assert repr(closed) == str(closed) == str(closed.jaxpr)
    assert closed.pretty_print(print_shapes=False) == "{ lambda ; a. let b = mul a a in (b,) }"
    assert closed.jaxpr.pretty_print(source_info=True).splitlines()[1] == (
        "    b:f32[4] = mul a a  # model.py:7, in f")
    assert show_jaxpr(closed, width=24).count("\n") == 2


@pytest.mark.parametrize("value, text", [
    (np.float32(0.1), "0.10000000149011612"), (np.float64(0.1), "0.1"), (np.int8(-3), "-3"), (np.bool_(True), "True"),
    (np.complex64(1j), "1j"), (np.float32("nan"), "nan"), (np.float32("-inf"), "-inf"),
    (np.float16(0.1), "0.0999755859375"), (ml_dtypes.bfloat16(1.5), "1.5"), (ml_dtypes.float8_e5m2(2), "2.0"),
    (np.zeros((), anima.float0), "(b'',)")])
def test_literals(value: Any, text: str) -> None:
    assert literal_text(value) == text


def test_layout() -> None:
    words = ["one", "two", "three"]
    doc = DocGroup(("(", DocNest(2, (Line(""), join(Line(), words))), Line(""), ")"))
    assert layout(doc, 15) == "(one two three)"
    assert layout(doc, 14) == "(\n  one\n  two\n  three\n)"
    filled = DocNest(1, join(DocGroup(Line()), words))
    assert layout(filled, 7) == "one two\n three"
    assert layout(DocGroup(("a", Line(None), "b")), 80) == "a\nb"


@pytest.mark.parametrize("before", ["", "x", "xyz"])
@pytest.mark.parametrize("width", range(4, 12))
def test_a_group_fits_up_to_the_last_column(before: str, width: int) -> None:
    """With what stands before it on its line; a line that is never flat breaks it, and what is inside of it may fit."""
    doc = (before, DocGroup(("ab", DocNest(2, (Line(), "cd", Line(""), "e")))))
    flat = f"{before}ab cde"
    assert layout(doc, width) == (flat if len(flat) <= width else f"{before}ab\n  cd\n  e")
    inner = (before, DocGroup(("ab", DocNest(2, (Line(None), DocGroup(("cd", Line("; "), "ef")))))))
    assert layout(inner, width) == f"{before}ab\n  " + ("cd; ef" if width >= 8 else "cd\n  ef")


@pytest.mark.parametrize("number, name", [
    (0, "a"), (25, "z"), (26, "ba"), (27, "bb"), (51, "bz"), (52, "ca"), (675, "zz"), (676, "baa"), (17575, "zzz")])
def test_letters_count_in_base_26(number: int, name: str) -> None:
    assert letters(number) == name


def test_colours(monkeypatch):
    program = anima.make_jaxpr(lambda x: anima.lax.fori_loop(0, 3, lambda i, c: c * 2, x))(jnp.ones(3))
    plain, colored = str(program), program.pretty_print(use_color=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain and "\x1b" not in plain
    assert "\x1b[34;1mlet\x1b[39;22m" in colored and "a\x1b[35m:f32[3]\x1b[39m" in colored
    assert colored.count("\x1b[34;1m") == 3 * (1 + plain.count("={ lambda"))
    assert program.pretty_print() == program.pretty_print(use_color=False) == plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert program.pretty_print() == colored and str(program) == plain
    with anima.config.option("pprint_use_color")(False):
        assert program.pretty_print() == plain
