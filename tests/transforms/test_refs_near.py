"""References where they are nearly of another kind: closed over through programs within programs, of types that values
nearly have, given back by functions that did not make them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


@anima.custom_jvp
def own(x: Any) -> Any:
    return x


own.defjvp(lambda primals, tangents: (primals[0], tangents[0]))

# What puts a function into a program of its own, within the one around it, and how often that runs it.
WITHIN: dict[str, tuple[Callable[[Callable[..., Any]], Callable[..., Any]], int]] = {
    "jit": (anima.jit, 1), "checkpoint": (anima.checkpoint, 1),
    "cond": (lambda f: lambda x: lax.cond(x.sum() > -1, f, lambda y: y, x), 1),
    "switch": (lambda f: lambda x: lax.switch(1, [lambda y: y, f], x), 1),
    "fori": (lambda f: lambda x: lax.fori_loop(0, 2, lambda i, c: f(c), x), 2),
    "scan": (lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0], 2),
    "while": (lambda f: lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1])), (0, x))[1], 2),
}


@pytest.mark.parametrize("first", WITHIN)
def test_references_closed_over_through_any_number_of_programs(first: str) -> None:
    """By each kind of program around each other, and around four."""
    for around in [[first], *([first, other] for other in WITHIN), [first, "jit", "cond", "jit"],
                   ["jit", "scan", first, "checkpoint"]]:
        for outer in (anima.jit, lambda f: f):
            ref = anima.new_ref(jnp.zeros(2))

            def fun(x: Any, ref: Any = ref) -> Any:
                ref[0] = ref[0] + 1.0
                return x + ref[0]

            times = 1
            for name in reversed(around):
                fun, times = WITHIN[name][0](fun), times * WITHIN[name][1]
            out = outer(fun)(jnp.ones(2))
            np.testing.assert_array_equal(ref[...], [times, 0], err_msg=str(around))
            np.testing.assert_array_equal(out, np.full(2, 1 + times * (times + 1) / 2), err_msg=str(around))


VALUES: dict[str, Any] = {"weak int": 1, "weak float": 1.0, "int32": jnp.int32(1), "float32": jnp.float32(1),
                          "int8": jnp.int8(1), "bfloat16": jnp.bfloat16(1)}


@pytest.mark.parametrize("way", ["set", "swap", "add", "item"])
@pytest.mark.parametrize("held", VALUES)
def test_a_reference_keeps_its_type(held: str, way: str) -> None:
    """Weak or not, whatever is written to it, everywhere; and where one way refuses a value, all do."""
    def write(ref: Any, value: Any) -> Any:
        if way == "item":
            ref[()] = value
        elif way == "add":
            ref.addupdate(value)
        else:
            getattr(ref, way)(value)
        return ref[...]

    def outcome(fun: Callable[..., Any]) -> Any:
        try:
            out = fun()
            return out.dtype, out.weak_type, float(out)
        except (TypeError, ValueError) as error:
            return type(error)

    for name, value in VALUES.items():
        start = jnp.asarray(VALUES[held]) if held.startswith("weak") else VALUES[held]

        def fun(v: Any, start: Any = start) -> Any:
            return write(anima.new_ref(start), v)

        def in_loop(v: Any, start: Any = start) -> Any:
            ref = anima.new_ref(start)
            lax.fori_loop(0, 1, lambda i, c: (write(ref, v), c)[1], 0)
            return ref[...]

        found = [outcome(partial(f, value)) for f in (fun, anima.jit(fun), in_loop, anima.jit(in_loop))]
        assert len(set(found)) == 1, (name, found)
        if isinstance(found[0], tuple):
            assert found[0] == (start.dtype, start.weak_type, 2.0 if way == "add" else 1.0), name


def given_back(what: str, outer: Any) -> Callable[..., Any]:
    def fun(x: Any, ref: Any) -> Any:
        ref[...] = ref[...] + x
        made = anima.new_ref(x * 2)
        return x, {"given": ref, "outer": outer, "own": made, "read": ref[...]}[what]

    return fun


@pytest.mark.parametrize(("what", "how"), [*itertools.product(("given", "outer", "own", "read"),
                                                             ("jit", "checkpoint", "vmap", "one lane"))])
def test_references_given_back(what: str, how: str) -> None:
    """What a function made, vmap gives back; nothing gives back what was there before."""
    outer, ref = anima.new_ref(jnp.zeros(())), anima.new_ref(jnp.ones(3))
    fun = {"jit": anima.jit, "checkpoint": anima.checkpoint, "vmap": anima.vmap,
           "one lane": lambda f: anima.vmap(f, axis_size=3)}[how](given_back(what, outer))
    x = jnp.arange(3.0)
    if what == "read" or (what == "own" and how in ("vmap", "one lane")):
        out = fun(x, ref)[1]
        np.testing.assert_array_equal(out[...], x * 2 if what == "own" else x + 1)
        np.testing.assert_array_equal(ref[...], x + 1)
    else:
        with pytest.raises(ValueError, match="returned a mutable array reference"):
            fun(x, ref)
