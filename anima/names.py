"""The names of public modules: which of them people see, and which one they meant.

What a module imports is its own business, unless it says `as`: `from anima.core.jaxpr import Var as Var`.

    >>> import anima.numpy as jnp
    >>> jnp.arrange
    Traceback (most recent call last):
        ...
    AttributeError: module 'anima.numpy' has no attribute 'arrange'. Did you mean 'arange'?
"""
from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NoReturn


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """" Did you mean 'arange'?", or "" if nothing known is close to `name`."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f" Did you mean {near[0]!r}?" if near else ""


def public(names: Mapping[str, Any]) -> set[str]:
    """The names of a public module that are there for its users, not those that it is made with."""
    if "__all__" in names:
        return {*names["__all__"], *(name for name in names if name.endswith("__"))}
    own = _made_with(names.get("__file__") or "")
    return {name for name, value in [*names.items()] if name.endswith("__") or not (
        name.startswith("_") or name in own or isinstance(value, ModuleType))}


@cache
def _made_with(file: str) -> frozenset[str]:
    """The names that a module imports for itself; none where its text is not there."""
    try:
        with open(file, "rb") as text:
            tree = ast.parse(text.read())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                     for alias in node.names if alias.asname is None)


def access(module: str, names: Mapping[str, Any], submodules: Sequence[str] = ()) -> dict[str, Callable[..., Any]]:
    """`__getattr__` and `__dir__` of a public module.

    Its `submodules` are loaded when they are first used, if they are not there already; of a name that is not there,
    an error says which one is near.
    """
    def get(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{module}.{name}")
        missing = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("_"):
            missing += f".{did_you_mean(name, listed())}"
        raise AttributeError(missing, name=name, obj=None)  # with the module, Python would suggest a name, too

    def listed() -> list[str]:
        return sorted(public(names).union(submodules))

    return {"__getattr__": get, "__dir__": listed}


def refusing(name: str, message: str, doc: str) -> Callable[..., NoReturn]:
    """The function `name` of a public module that is there to say why it cannot be had: a NotImplementedError."""
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(message)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = doc
    return refuse
