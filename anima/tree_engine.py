"""optree, which does the work of `tree`, loaded when the first tree is flattened: it takes as long to load as a
third of the rest. (The only file that imports optree.)
"""
from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anima.util import fork_safe, lazy_module

if TYPE_CHECKING:
    import optree
else:
    optree = lazy_module("optree")

NAMESPACE = "anima"

_Node = tuple[type, Callable[[Any], Any], Callable[[Any, Any], Any]]
_waiting: list[_Node] | None = []   # types to register when optree is loaded; None since it is
_lock = fork_safe(threading.RLock())


def register(nodetype: type, flatten_func: Callable[[Any], Any], unflatten_func: Callable[[Any, Any], Any]) -> None:
    """Makes values of a type nodes, from now on; TypeError if it is no type."""
    if not isinstance(nodetype, type):
        raise TypeError(f"Expected a class, got {nodetype!r}.")
    with _lock:
        if _waiting is None:
            _register(nodetype, flatten_func, unflatten_func)
        else:
            _waiting.append((nodetype, flatten_func, unflatten_func))


def _register(*node: Any) -> None:
    with warnings.catch_warnings():     # optree warns of registered named tuples, which are fine
        warnings.simplefilter("ignore")
        optree.register_pytree_node(*node, namespace=NAMESPACE)


def _load() -> None:
    """Loads optree, but for what it registers to be done at exit, which is to forget all kinds of nodes, tuples too:
    functions of others at exit, and threads that still run, have trees."""
    register = atexit.register

    def register_others(function: Any, *args: Any, **kwargs: Any) -> Any:
        if type(getattr(function, "__self__", None)).__module__.startswith("pybind11"):
            return function
        return register(function, *args, **kwargs)

    atexit.register = register_others  # type: ignore[assignment]
    try:
        optree._C  # noqa: B018 (reading loads it)
    finally:
        atexit.register = register


def _first_flatten(tree: Any, is_leaf: Callable[..., bool] | None, none_is_leaf: bool, namespace: str) -> Any:
    """Loads optree, whose own function then takes the place of this one."""
    global _waiting, flatten
    with _lock:
        if _waiting is not None:
            _load()
        for node in _waiting or ():
            _register(*node)
        _waiting = None
        flatten = optree._C.flatten     # what optree.tree_flatten calls: a third of its time is saved
    return flatten(tree, is_leaf, none_is_leaf, namespace)


flatten: Callable[..., Any] = _first_flatten  # the leaves and the structure of a tree
