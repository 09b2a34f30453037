"""First-order optimisers, each three functions of single arrays that `optimizer` makes functions of pytrees.

    init, update, get_params = adam(1e-3)
    state = init(params)
    for step in range(100):
        state = update(step, grad(loss)(get_params(state)), state)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import anima.numpy as jnp
from anima import tree
from anima.core.trace import aval_of
from anima.names import access

Step = int
Schedule = Callable[[Any], Any]
InitFn = Callable[[Any], Any]
UpdateFn = Callable[[Any, Any, Any], Any]
ParamsFn = Callable[[Any], Any]


class OptimizerState(NamedTuple):
    """The state of every leaf of the parameters: leaves of states, structure of the parameters and of the states."""

    packed_state: Sequence[Sequence[Any]]
    tree_def: Any
    subtree_defs: Sequence[Any]


tree.register_pytree_node(OptimizerState, lambda s: ((s.packed_state,), (s.tree_def, s.subtree_defs)),
                          lambda data, children: OptimizerState(children[0], *data))


class Optimizer(NamedTuple):
    """`init_fn(params) -> state`, `update_fn(step, gradients, state) -> state`, `params_fn(state) -> params`."""

    init_fn: InitFn
    update_fn: UpdateFn
    params_fn: ParamsFn


class JoinPoint:
    """A leaf of the parameters' structure, which holds the state of that leaf."""

    def __init__(self, subtree: Any) -> None:
        self.subtree = subtree


def optimizer(opt_maker: Callable[..., tuple[InitFn, UpdateFn, ParamsFn]]) -> Callable[..., Optimizer]:
    """Makes an optimiser of pytrees from one of arrays: `opt_maker(...)` returns `init(x)`, `update(step, g, state)`
    and `get_params(state)`, where a state is a pytree of arrays."""
    @functools.wraps(opt_maker)
    def tree_opt_maker(*args: Any, **kwargs: Any) -> Optimizer:
        init, update, get_params = opt_maker(*args, **kwargs)

        def tree_init(x0_tree: Any) -> OptimizerState:
            leaves, structure = tree.flatten(x0_tree)
            return _packed([init(x) for x in leaves], structure)

        def tree_update(i: Any, grad_tree: Any, opt_state: OptimizerState) -> OptimizerState:
            states, structure, subtrees = opt_state
            grads, grad_structure = tree.flatten(grad_tree)
            if grad_structure != structure:
                raise TypeError("optimizer update function was passed a gradient tree that did not match the parameter "
                                "tree structure with which it was initialized: parameter tree "
                                f"{structure} and grad tree {grad_structure}.")
            new = [update(i, g, tree.unflatten(sub, s)) for g, s, sub in zip(grads, states, subtrees, strict=True)]
            packed = _packed(new, structure)
            for old, now in zip(subtrees, packed.subtree_defs, strict=True):
                if old != now:
                    raise TypeError("optimizer update function produced an output structure that did not match its "
                                    f"input structure: input {old} and output {now}.")
            return packed

        def tree_params(opt_state: OptimizerState) -> Any:
            states, structure, subtrees = opt_state
            return tree.unflatten(structure, [get_params(tree.unflatten(sub, s))
                                              for s, sub in zip(states, subtrees, strict=True)])

        return Optimizer(tree_init, tree_update, tree_params)

    return tree_opt_maker


def _packed(states: Sequence[Any], structure: Any) -> OptimizerState:
    flat = [tree.flatten(s) for s in states]
    return OptimizerState([leaves for leaves, _ in flat], structure, tuple(sub for _, sub in flat))


def unpack_optimizer_state(opt_state: OptimizerState) -> Any:
    """The state as a pytree of the parameters' structure, a `JoinPoint` in place of each leaf: to be saved."""
    states, structure, subtrees = opt_state
    return tree.unflatten(structure, [JoinPoint(tree.unflatten(sub, s)) for s, sub in zip(states, subtrees,
                                                                                         strict=True)])


def pack_optimizer_state(marked_pytree: Any) -> OptimizerState:
    """The inverse of `unpack_optimizer_state`; TypeError for leaves that are no `JoinPoint`s."""
    marks, structure = tree.flatten(marked_pytree)
    for mark in marks:
        if not isinstance(mark, JoinPoint):
            raise TypeError(f"expected a JoinPoint in place of each leaf of the parameters, got {mark!r}")
    return _packed([mark.subtree for mark in marks], structure)


# ---------------------------------------------------------------- step sizes

def make_schedule(scalar_or_schedule: Any) -> Schedule:
    """A step size as a function of the step's number; TypeError for what is neither a number nor a function."""
    if callable(scalar_or_schedule):
        return scalar_or_schedule
    if aval_of(scalar_or_schedule).shape == ():
        return constant(scalar_or_schedule)
    raise TypeError(type(scalar_or_schedule))


def constant(step_size: Any) -> Schedule:
    """The same for all steps."""
    return lambda i: step_size


def exponential_decay(step_size: Any, decay_steps: Any, decay_rate: Any) -> Schedule:
    """Multiplied by `decay_rate` every `decay_steps` steps, smoothly."""
    return lambda i: step_size * decay_rate ** (i / decay_steps)


def inverse_time_decay(step_size: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False) -> Schedule:
    """`step_size / (1 + decay_rate i / decay_steps)`, in whole steps of `decay_steps` with `staircase`."""
    def schedule(i: Any) -> Any:
        time = jnp.floor(i / decay_steps) if staircase else i / decay_steps
        return step_size / (1 + decay_rate * time)

    return schedule


def polynomial_decay(step_size: Any, decay_steps: Any, final_step_size: Any, power: Any = 1.0) -> Schedule:
    """From `step_size` to `final_step_size` within `decay_steps`, as a power of what is left."""
    def schedule(step_num: Any) -> Any:
        left = 1 - jnp.minimum(step_num, decay_steps) / decay_steps
        return left ** power * (step_size - final_step_size) + final_step_size

    return schedule


def piecewise_constant(boundaries: Any, values: Any) -> Schedule:
    """`values[k]` between two boundaries; ValueError unless there is one value more than boundaries."""
    edges, levels = jnp.array(boundaries), jnp.array(values)
    if not edges.ndim == levels.ndim == 1:
        raise ValueError("boundaries and values must be sequences")
    if edges.shape[0] != levels.shape[0] - 1:
        raise ValueError("boundaries length must be one shorter than values length")
    return lambda i: levels[jnp.sum(i > edges)]


# ---------------------------------------------------------------- gradients

def l2_norm(tree: Any) -> Any:
    """The square root of the sum of squares of all leaves."""
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in _leaves(tree)))


_leaves = tree.leaves


def clip_grads(grad_tree: Any, max_norm: Any) -> Any:
    """Gradients scaled down to a norm of at most `max_norm`."""
    norm = l2_norm(grad_tree)
    return tree.map(lambda g: jnp.where(norm < max_norm, g, g * (max_norm / norm)), grad_tree)


# ---------------------------------------------------------------- optimisers

@optimizer
def sgd(step_size: Any) -> Any:
    """Stochastic gradient descent."""
    size = make_schedule(step_size)
    return lambda x0: x0, lambda i, g, x: x - size(i) * g, lambda x: x


@optimizer
def momentum(step_size: Any, mass: Any) -> Any:
    """Gradient descent with momentum (Polyak, 1964)."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - size(i) * velocity, velocity

    return _with_zeros(1), update, _first


@optimizer
def nesterov(step_size: Any, mass: Any) -> Any:
    """Nesterov's accelerated gradient, as Sutskever et al. (2013) write it."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - size(i) * (mass * velocity + g), velocity

    return _with_zeros(1), update, _first


@optimizer
def adagrad(step_size: Any, momentum: Any = 0.9) -> Any:
    """Adagrad (Duchi, Hazan and Singer, 2011), with momentum."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, squares, mean = state
        squares = squares + g * g
        mean = (1 - momentum) * (g * _inverse_root(squares)) + momentum * mean
        return x - size(i) * mean, squares, mean

    return _with_zeros(2), update, _first


@optimizer
def rmsprop(step_size: Any, gamma: Any = 0.9, eps: Any = 1e-8) -> Any:
    """RMSProp (Tieleman and Hinton, 2012)."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, squares = state
        squares = squares * gamma + g * g * (1 - gamma)
        return x - size(i) * g / jnp.sqrt(squares + eps), squares

    return _with_zeros(1), update, _first


@optimizer
def rmsprop_momentum(step_size: Any, gamma: Any = 0.9, eps: Any = 1e-8, momentum: Any = 0.9) -> Any:
    """RMSProp with momentum."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, squares, mean = state
        squares = squares * gamma + g * g * (1 - gamma)
        mean = momentum * mean + size(i) * g / jnp.sqrt(squares + eps)
        return x - mean, squares, mean

    return _with_zeros(2), update, _first


@optimizer
def adam(step_size: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> Any:
    """Adam (Kingma and Ba, 2015)."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, first, second = state
        first = (1 - b1) * g + b1 * first
        second = (1 - b2) * g * g + b2 * second
        mean = first / (1 - jnp.asarray(b1, first.dtype) ** (i + 1))
        square = second / (1 - jnp.asarray(b2, first.dtype) ** (i + 1))
        return x - size(i) * mean / (jnp.sqrt(square) + eps), first, second

    return _with_zeros(2), update, _first


@optimizer
def adamax(step_size: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> Any:
    """AdaMax (Kingma and Ba, 2015, section 7.1)."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, first, largest = state
        first = (1 - b1) * g + b1 * first
        largest = jnp.maximum(b2 * largest, jnp.abs(g))
        scale = size(i) / (1 - jnp.asarray(b1, first.dtype) ** (i + 1))
        return x - scale * first / (largest + eps), first, largest

    return _with_zeros(2), update, _first


@optimizer
def sm3(step_size: Any, momentum: Any = 0.9) -> Any:
    """SM3 (Anil, Gupta, Koren and Singer, 2019): of the squares, only the largest along each axis are kept."""
    size = make_schedule(step_size)

    def init(x0: Any) -> Any:
        x0 = jnp.atleast_1d(x0)
        return x0, jnp.zeros_like(x0), [jnp.zeros(n, x0.dtype) for n in x0.shape]

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, largest = state
        axes = range(x.ndim)
        bounds = [jnp.expand_dims(v, [k for k in axes if k != axis]) for axis, v in zip(axes, largest, strict=True)]
        squares = functools.reduce(jnp.minimum, bounds) + g * g
        mean = (1 - momentum) * (g * _inverse_root(squares)) + momentum * mean
        largest = [jnp.max(squares, [k for k in axes if k != axis]) for axis in axes]
        return x - size(i) * mean, mean, largest

    return init, update, _first


def _with_zeros(count: int) -> InitFn:
    return lambda x0: (x0, *[jnp.zeros_like(x0)] * count)


def _first(state: Sequence[Any]) -> Any:
    return state[0]


def _inverse_root(squares: Any) -> Any:
    """1 / sqrt, and 0 for 0."""
    positive = squares > 0
    return jnp.where(positive, 1 / jnp.sqrt(jnp.where(positive, squares, 1)), 0)

globals().update(access(__name__, globals()))
