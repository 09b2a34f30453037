"""The examples in the docstrings of random and nn are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import anima
import anima.numpy as jnp

MODULES = [f"{package.__name__}.{m.name}" for package in (anima.random, anima.nn)
           for m in pkgutil.iter_modules(package.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    names = {"anima": anima, "jnp": jnp, **vars(module)}
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False)
    public = [x for x in vars(module).values() if callable(x) and getattr(x, "__module__", "") == name]
    for item in [module, *public]:
        for case in finder.find(item, getattr(item, "__name__", name), module=False, globs=names):
            if "{ lambda" not in case.docstring:  # sketches of programs, with parts left out
                runner.run(case)
    assert runner.summarize(verbose=False).failed == 0
