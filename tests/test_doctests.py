"""The examples in docstrings are true: of modules, of public functions and classes, of methods.

Examples start with `>>>`; sketches of programs, with parts left out, do not.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import warnings

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import debug, lax, nn, random
from anima.experimental import sparse

MODULES = ["anima", *sorted(m.name for m in pkgutil.walk_packages(anima.__path__, "anima."))]
NAMES = {**vars(anima), "anima": anima, "jnp": jnp, "debug": debug, "lax": lax, "nn": nn, "random": random, "np": np,
         "sparse": sparse}


def examples() -> list[doctest.DocTest]:
    """The docstrings with examples, each found in the module that it is written in; whose own names it may use."""
    finder, found = doctest.DocTestFinder(exclude_empty=True), []
    for name in MODULES:
        module = importlib.import_module(name)
        names = {**NAMES, **vars(module)}
        found += doctest.DocTestFinder(recurse=False).find(module, name, module, names)
        for own, value in vars(module).items():
            inner = inspect.unwrap(value) if callable(value) else None  # public functions stand for bare ones
            if getattr(inner, "__module__", "") == name:
                found += finder.find(inner, f"{name}.{own}", module, names)
    return list({case.docstring: case for case in found if case.examples}.values())


EXAMPLES = examples()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 90


@pytest.mark.parametrize("case", EXAMPLES, ids=lambda case: case.name)
def test_example(case: doctest.DocTest) -> None:
    written: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner.run(case, out=written.append)
    assert not written, "".join(written)
