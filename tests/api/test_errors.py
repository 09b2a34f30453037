"""Two hundred mistakes, and what they say: exception class, key phrase, the user's own line.

`data/errors.json` holds the mistakes as snippets (scope: anima, jnp, np, lax), the class that they raise and a
phrase of its message; `exc` is null for what looks wrong and is accepted.
"""

from __future__ import annotations

import builtins
import json
import linecache
import pathlib
import re
import traceback
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

CASES = json.loads((pathlib.Path(__file__).parent / "data" / "errors.json").read_text())
TRACING = ("TracerBoolConversionError", "TracerIntegerConversionError", "TracerArrayConversionError",
           "ConcretizationTypeError", "NonConcreteBooleanIndexError", "UnexpectedTracerError")
BASES = {"NonConcreteBooleanIndexError": IndexError, "TypePromotionError": ValueError}


def exception_class(name: str) -> type[BaseException]:
    return next(getattr(m, name) for m in (builtins, anima.errors, anima.dtypes) if hasattr(m, name))


def run(case: dict[str, Any]) -> None:
    """Runs the snippet as a file of its own name, whose lines tracebacks and messages can show."""
    file = f"case_{case['id']}.py"
    linecache.cache[file] = (len(case["code"]), None, case["code"].splitlines(True), file)
    scope = {"anima": anima, "jnp": jnp, "np": np, "lax": lax, "__name__": "case"}
    exec(compile(case["code"], file, "exec", dont_inherit=True), scope)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_mistake(case: dict[str, Any], capsys: pytest.CaptureFixture) -> None:
    if case["exc"] is None:
        run(case)
        return
    kind = exception_class(case["exc"])
    with pytest.raises(kind) as caught:
        run(case)
    message = str(caught.value)
    assert case["phrase"] in message, message
    assert issubclass(kind, BASES.get(case["exc"], Exception))
    if case["exc"] in TRACING:
        assert issubclass(kind, IndexError if case["exc"] == "NonConcreteBooleanIndexError" else TypeError)
        assert f"case_{case['id']}.py:" in message, f"the message does not name the user's line: {message}"


def test_the_snippets_cover_the_ground() -> None:
    ids = [c["id"] for c in CASES]
    assert len(ids) == len(set(ids)) >= 230
    for prefix in ("tracer_", "jit_", "grad_", "vmap_", "custom_", "random_", "tree_", "cond_", "scan_", "einsum_"):
        assert sum(i.startswith(prefix) for i in ids) >= 3, prefix


# ---------------------------------------------------------------- what a message tells

def user_function(x: Any) -> Any:
    y = x * 2
    if y > 0:  # the line to be named
        return y
    return -y


def test_tracing_errors_name_function_argument_line_and_remedy() -> None:
    with pytest.raises(anima.errors.TracerBoolConversionError) as caught:
        anima.jit(user_function)(1.0)
    message = str(caught.value)
    line = user_function.__code__.co_firstlineno + 2
    assert f"at test_errors.py:{line}, in user_function:" in message and "if y > 0:" in message
    assert "tracing the function user_function at " in message and "for jit" in message
    assert "depends on the value of the argument x" in message
    assert "Fix:" in message and "static_argnames=\"x\"" in message


@pytest.mark.parametrize("transform", [lambda f: f, anima.grad, lambda f: lambda x: anima.vmap(f)(x[None])])
def test_arrays_are_not_to_be_made_static(transform: Any) -> None:
    def f(x: Any) -> Any:
        return x[0] if x.sum() > 0 else x[1]

    with pytest.raises(anima.errors.TracerBoolConversionError, match="on the value of the argument x") as caught:
        anima.jit(lambda x: transform(f)(x))(jnp.ones(3))
    assert "Fix: anima.lax.cond" in str(caught.value) and "static" not in str(caught.value)


def test_arguments_behind_a_value_are_named() -> None:
    def f(params: Any, n: Any, unused: Any) -> Any:
        return list(range(n + params["k"]))

    with pytest.raises(anima.errors.TracerIntegerConversionError,
                       match=r"arguments params\['k'\], n\.|arguments n, params\['k'\]") as caught:
        anima.jit(f)({"k": 1, "other": 2.0}, 3, 4)
    assert "unused" not in str(caught.value) and "other" not in str(caught.value)


@pytest.mark.parametrize("call", [
    lambda: anima.jit(lambda x: jnp.ones(3) + jnp.ones(4))(1.0),
    lambda: anima.grad(lambda x: (x + jnp.ones((2, 3)) @ jnp.ones((4, 5))).sum())(1.0),
    lambda: anima.vmap(lambda x: jnp.concatenate([x, 3.0]))(jnp.ones((2, 2))),
])
def test_tracebacks_show_the_users_frames_only(call: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    inside = str(pathlib.Path(anima.__file__).parent)
    shown = [f for f in files if f.startswith(inside)]
    assert files[-1] == __file__ and not shown, f"internal frames shown: {shown}"


def test_full_tracebacks_on_demand() -> None:
    with anima.config.option("traceback")("full"), pytest.raises(TypeError) as caught:
        anima.jit(lambda x: x @ jnp.ones(4))(jnp.ones(3))
    inside = str(pathlib.Path(anima.__file__).parent)
    assert any(frame.filename.startswith(inside) for frame in traceback.extract_tb(caught.value.__traceback__))


@pytest.mark.parametrize("mistake", [
    lambda: jnp.array([True]) - jnp.array([True]),
    lambda: jnp.concatenate([jnp.ones((2, 3)), jnp.ones((2, 4))]),
    lambda: lax.add(jnp.ones(3), jnp.ones(3, jnp.int32)),
])
def test_one_mistake_is_told_once(mistake: Any) -> None:
    with pytest.raises(TypeError) as caught:
        mistake()
    assert caught.value.__context__ is None


def test_what_users_handle_is_told() -> None:
    with pytest.raises(TypeError) as caught:
        try:
            raise KeyError("theirs")
        except KeyError:
            jnp.array([True]) - jnp.array([True])
    assert isinstance(caught.value.__context__, KeyError) and caught.value.__context__.__context__ is None
    with pytest.raises(ValueError, match="theirs") as caught_value:
        try:
            jnp.array([True]) - jnp.array([True])
        except TypeError:
            anima.jit(fail)(1.0)
    assert isinstance(caught_value.value.__context__, TypeError)


def fail(x: Any) -> Any:
    raise ValueError("theirs")


def test_messages_are_about_anima() -> None:
    for case in CASES:
        if case["exc"] is None:
            continue
        with pytest.raises(exception_class(case["exc"])) as caught:
            run(case)
        assert not re.search(r"\bJAX\b|\bjax\.", str(caught.value)), str(caught.value)


def test_leaks_are_caught_where_they_happen() -> None:
    box: list[Any] = []
    for transform in (anima.jit, anima.grad, anima.vmap, lambda f: lambda x: anima.jvp(f, (x,), (x,))):
        box.clear()
        with anima.checking_leaks(), pytest.raises(anima.errors.UnexpectedTracerError, match="Leaked trace"):
            transform(lambda x: (box.append(x),
                                 (x * 2).sum())[1])(jnp.ones(()) if transform is not anima.vmap else jnp.ones(2))
    box.clear()
    with anima.checking_leaks():
        assert anima.jit(lambda x: anima.grad(lambda y: anima.vmap(jnp.sin)(y).sum())(x))(jnp.ones(2)).shape == (2,)
