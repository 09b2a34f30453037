"""What people see of modules, and are told of names that are not there."""

from __future__ import annotations

import importlib
import re
import types
from pathlib import Path

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import names

PACKAGE = Path(anima.__file__).parent
FACES = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
         for file in sorted(PACKAGE.rglob("*.py")) if "globals().update(access(" in file.read_text()]


@pytest.mark.parametrize("face", FACES)
def test_dir_shows_what_is_public(face):
    module = importlib.import_module(face)
    listed = dir(module)
    assert listed == sorted(set(listed)) and set(getattr(module, "__all__", ())) <= set(listed)
    for name in listed:
        value = getattr(module, name)
        assert not name.startswith("_") or name.endswith("__")
        assert not isinstance(value, types.ModuleType) or value.__name__.startswith("anima")
        assert name not in ("Any", "Callable", "Sequence", "annotations", "TYPE_CHECKING")
    with pytest.raises(AttributeError, match=rf"^module '{re.escape(face)}' has no attribute 'zzzzqq'\.$"):
        module.zzzzqq  # noqa: B018


def test_dir_shows_submodules():
    assert {"numpy", "lax", "tree_util", "errors", "experimental"} <= set(dir(anima)) and "core" not in dir(anima)
    assert {"fft", "linalg"} <= set(dir(jnp)) and "linalg" in dir(anima.lax) and "vq" in dir(anima.scipy.cluster)


@pytest.mark.parametrize("face,wrong,right", [
    ("anima", "gard", "grad"), ("anima", "tree_utils", "tree_util"), ("anima.numpy", "arrange", "arange"),
    ("anima.lax", "wihle_loop", "while_loop"), ("anima.random", "nromal", "normal"), ("anima.nn", "sofmax", "softmax"),
    ("anima.scipy", "specail", "special"), ("anima.scipy.special", "gamaln", "gammaln"),
    ("anima.numpy.linalg", "choleski", "cholesky")])
def test_a_name_that_misses_by_a_letter(face, wrong, right):
    with pytest.raises(AttributeError) as caught:
        getattr(importlib.import_module(face), wrong)
    assert str(caught.value) == f"module '{face}' has no attribute '{wrong}'. Did you mean '{right}'?"


def test_a_name_like_none():
    with pytest.raises(AttributeError, match=r"^module 'anima.lax' has no attribute 'zzzz'\.$"):
        anima.lax.zzzz  # noqa: B018
    with pytest.raises(AttributeError, match=r"option: jax_enable_x46. Did you mean 'enable_x64'\?"):
        anima.config.update("jax_enable_x46", True)
    assert names.did_you_mean("zzzz", ["arange"]) == ""


def test_arrays_have_one_name():
    x = jnp.ones(3)
    assert repr(type(x)) == "<class 'anima.Array'>"
    with pytest.raises(AttributeError, match="'Array' object has no attribute 'shpae'"):
        x.shpae  # noqa: B018


def given_away(x):
    return x + 1


@pytest.mark.parametrize("size", [3, 70_000])
@pytest.mark.parametrize("way", ["first", "again", "compiled"])
def test_an_array_that_was_donated_tells_who_took_it(way, size):
    x, f = jnp.zeros(size), anima.jit(given_away, donate_argnums=0)
    if way == "compiled":
        f.lower(x).compile()(x)
    else:
        if way == "again":
            f(jnp.ones(size))
        f(x)
    assert x.is_deleted() and repr(x) == f"Array({x.aval.str_short()}, deleted)"
    for use in (lambda: x + 1, lambda: f(x), lambda: np.asarray(x)):
        with pytest.raises(RuntimeError, match=r"deleted with shape=.* It was donated to a call of given_away\.$"):
            use()


def test_a_deleted_array_was_not_donated():
    x = jnp.zeros(3)
    x.delete()
    with pytest.raises(RuntimeError, match=r"deleted with shape=[a-z0-9]*\[3\]\.$"):
        np.asarray(x)


class Model:
    weight = 2.0

    def scaled(self, x):
        return x * self.weight


def test_jit_of_a_method_explains_self():
    with pytest.raises(TypeError, match="The function is a method, whose object jit takes for an argument"):
        anima.jit(Model.scaled)(Model(), 1.0)
    assert float(anima.jit(Model().scaled)(1.0)) == 2
    assert float(anima.jit(Model.scaled, static_argnums=0)(Model(), 1.0)) == 2


@pytest.mark.parametrize("make", [
    jnp.zeros, lambda n: jnp.ones((2, n)), lambda n: jnp.ones(6).reshape(n, 2), jnp.eye,
    lambda n: jnp.broadcast_to(1.0, (n,)), lambda n: jnp.full((n,), 1)])
def test_a_traced_size_explains(make):
    def f(n):
        return make(n)

    with pytest.raises(TypeError, match="Shapes must be 1D sequences of concrete values") as caught:
        anima.jit(f)(3)
    assert "depends on the value of the argument n" in str(caught.value) and "test_names.py:" in str(caught.value)
    assert str(caught.value).endswith('mark n static: jit(f, static_argnames="n").')


@pytest.mark.parametrize("run", [lambda f: f, anima.jit, lambda f: anima.vmap(f, (None, None), axis_size=2)])
@pytest.mark.parametrize("product,a,b,what", [
    (lambda a, b: a @ b, (3, 4), (5, 6), "a @ b"), (lambda a, b: a @ b, (2, 3, 4), (2, 5, 6), "a @ b"),
    (lambda a, b: a @ b, (4,), (5,), "a @ b"), (jnp.dot, (3, 4), (5,), "dot")])
def test_a_product_that_does_not_fit_tells_shapes(run, product, a, b, what):
    with pytest.raises(TypeError, match="dot_general requires contracting dimensions to have the same shape") as caught:
        run(product)(jnp.ones(a), jnp.ones(b))
    assert str(caught.value).endswith(f"their shapes are {a} and {b}.") and what in str(caught.value)
