"""Options of jit that Anima cannot honour are refused, never ignored; donated arrays are given once."""

from __future__ import annotations

from typing import Any

import pytest

import anima
import anima.numpy as jnp

CPU = anima.devices()[0]
HERE = anima.sharding.SingleDeviceSharding(CPU)


@pytest.mark.parametrize("options", [
    {"device": None}, {"device": CPU}, {"backend": "cpu"}, {"in_shardings": None},
    {"in_shardings": (None, HERE)}, {"out_shardings": HERE}, {"compiler_options": None}, {"compiler_options": {}}],
    ids=str)
def test_the_one_device_is_accepted(options: dict[str, Any]) -> None:
    assert anima.jit(lambda x, y: x + y, **options)(1.0, 2.0) == 3.0


@pytest.mark.parametrize("options,error,text", [
    ({"device": "gpu"}, RuntimeError, "Unknown device 'gpu'"), ({"device": 1}, ValueError, "A device is one of"),
    ({"backend": "gpu"}, RuntimeError, "Unknown backend 'gpu'"),
    ({"in_shardings": ("x", None)}, TypeError, "in_shardings leaf specifications"),
    ({"out_shardings": {"a": anima.Device(1)}}, TypeError, "out_shardings leaf specifications"),
    ({"compiler_options": {"level": 3}}, NotImplementedError, "compiler_options=.* is not supported")], ids=str)
def test_other_places_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        anima.jit(lambda x: x, **options)


def test_a_donated_array_is_given_once() -> None:
    x, y = jnp.ones(4), jnp.zeros(4)
    add = anima.jit(lambda a, b: a + b, donate_argnums=0)
    with pytest.raises(ValueError, match=r"same array \(float32\[4\]\) twice, once as a donated argument"):
        add(x, x)
    assert not x.is_deleted()
    assert add(x, y)[0] == 1.0 and x.is_deleted() and not y.is_deleted()


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
def test_a_donated_array_is_given_once_after_other_calls_too() -> None:
    for donated in (0, 1, (0, 1)):
        add = anima.jit(lambda a, b: a + b, donate_argnums=donated)
        for _ in range(3):
            add(jnp.ones(4), jnp.zeros(4))
        x = jnp.ones(4)
        with pytest.raises(ValueError, match="twice, once as a donated argument"):
            add(x, x)
        assert x.tolist() == [1.0] * 4


OPTIONS: list[tuple[dict[str, Any], str]] = [  # and the arguments that such calls delete: one for one result
    ({}, ""), ({"donate_argnums": 0}, "a"), ({"donate_argnums": 1}, "b"), ({"donate_argnames": "a"}, "a"),
    ({"donate_argnames": ("a", "b")}, "a"), ({"static_argnums": 1}, ""), ({"static_argnames": "b"}, ""),
    ({"keep_unused": True}, ""), ({"inline": True}, "")]


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_function_jitted_with_other_options_is_another(options: tuple[dict[str, Any], str]) -> None:
    """What calls of the one do with their arguments, those of the others do not."""
    def f(a: Any, b: Any) -> Any:
        return a * 2.0 + b

    kinds = [options, *OPTIONS, options]
    for jitted, (given, deleted) in zip([anima.jit(f, **given) for given, _ in kinds], kinds, strict=True):
        static = any("static" in name for name in given)
        for _ in range(2):
            a, b = jnp.ones(4), 3.0 if static else jnp.full(4, 3.0)
            assert jitted(a, b).tolist() == [5.0] * 4
            assert (a.is_deleted(), not static and b.is_deleted()) == ("a" in deleted, "b" in deleted)


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
def test_a_donated_array_is_given_once_in_trees_and_by_name() -> None:
    x = jnp.ones(4)
    with pytest.raises(ValueError, match="twice"):
        anima.jit(lambda t: t[0] + t[1], donate_argnums=0)([x, x])
    with pytest.raises(ValueError, match="twice"):
        anima.jit(lambda a, b: a + b["x"], donate_argnames="b")(x, b={"x": x})
    assert not x.is_deleted()


def test_an_array_that_is_not_donated_may_be_given_twice() -> None:
    x, y = jnp.ones(4), jnp.zeros(4)
    assert anima.jit(lambda a, b, c: a + b + c, donate_argnums=2)(x, x, y)[0] == 2.0
