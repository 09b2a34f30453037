"""optree, which does the work of `tree`, loaded when the first tree is flattened: it takes as long to load as a
third of the rest. (The only file that imports optree.)
"""
from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anima.util import fork_safe, interrupts_wait, lazy_module

if TYPE_CHECKING:
    import optree
else:
    optree = lazy_module("optree")

NAMESPACE = "anima"

_Node = tuple[type, Callable[[Any], Any], Callable[[Any, Any], Any]]
_waiting: list[_Node] | None = []   # types to register when optree is loaded; None since it is
_lock = fork_safe(threading.RLock())
flatten_of: dict[type, Callable[[Any], Any]] = {}   # of registered types: an object's (children, data)
sort_keys = False   # whether dicts come back with their keys in order, as in JAX; in their own order otherwise


def register(nodetype: type, flatten_func: Callable[[Any], Any], unflatten_func: Callable[[Any, Any], Any]) -> None:
    """Makes values of a type nodes, from now on; TypeError if it is no type."""
    if not isinstance(nodetype, type):
        raise TypeError(f"Expected a class, got {nodetype!r}.")
    with _lock:
        if _waiting is None:
            _register(nodetype, flatten_func, unflatten_func)
        else:
            _waiting.append((nodetype, flatten_func, unflatten_func))
        flatten_of[nodetype] = flatten_func


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
    with interrupts_wait(), _lock:  # types are registered once
        if _waiting is not None:
            _load()
        for node in _waiting or ():
            _register(*node)
        _waiting = None
        flatten = optree._C.flatten     # what optree.tree_flatten calls: a third of its time is saved
    return flatten(tree, is_leaf, none_is_leaf, namespace)


flatten: Callable[..., Any] = _first_flatten  # the leaves and the structure of a tree


def in_order(spec: Any) -> Any:
    """A structure as it puts leaves back: its dicts get their keys in the order that `sort_keys` asks for."""
    return _sorted(spec) if sort_keys else spec


def _sorted(spec: Any) -> Any:
    """The structure whose dicts come back with their keys in order. A node's state is its kind, arity and data, and
    at its end the keys as they were; data of a defaultdict are its factory and the keys."""
    nodes, *rest = spec.__getstate__()
    keys = [None if node[-1] is None else node[2] if type(node[2]) is list else node[2][1] for node in nodes]
    if all(own is None or list(node[-1]) == own for node, own in zip(nodes, keys, strict=True)):
        return spec
    found = type(spec).__new__(type(spec))
    found.__setstate__((tuple([
        node if own is None else (*node[:-1], dict.fromkeys(own) if type(node[-1]) is dict else own)
        for node, own in zip(nodes, keys, strict=True)]), *rest))
    return found
