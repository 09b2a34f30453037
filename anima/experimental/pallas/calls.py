"""Kernels run over a grid: one compiled loop over its steps, each on blocks of the operands and results.

    for step < grid size:
      i, j = indices of the step
      x_block = new_ref(x[8 i : 8 i + 8]); y_block = new_ref(y[...])
      kernel(x_block, y_block)
      y[...] = freeze(y_block)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from anima import lax, numpy as jnp, tree
from anima.api.jit import jit
from anima.api.refs import freeze, new_ref
from anima.experimental.pallas.specs import (
    BlockSpec,
    CostEstimate,
    GridSpec,
    MemoryRef,
    NoBlockSpec,
    Window,
    no_block_spec,
    uninitialized,
)
from anima.util import fun_name

Step = tuple[tuple[Any, ...], tuple[Any, ...]]  # indices in the grid, and its sizes
_step: ContextVar[Step | None] = ContextVar("pallas_step", default=None)


def _of_axis(what: int, name: str, axis: int) -> Any:
    step = _step.get()
    if step is None:
        raise ValueError(f"{name}({axis}): there is no grid outside of kernels that pallas_call runs.")
    if not 0 <= axis < len(step[1]):
        raise ValueError(f"Axis {axis} is out of bounds for grid {step[1]}")
    return step[what][axis]


def program_id(axis: int) -> Any:
    """The index, along an axis of the grid, of the step in which the kernel runs."""
    return _of_axis(0, "program_id", axis)


def num_programs(axis: int) -> Any:
    """The size of an axis of the grid."""
    return _of_axis(1, "num_programs", axis)


def _specs(name: str, specs: Any, structure: Any) -> list[BlockSpec]:
    """One for each leaf."""
    if isinstance(specs, NoBlockSpec):
        return [BlockSpec()] * structure.num_leaves
    if name == "in_specs" and not isinstance(specs, (tuple, list)):
        raise ValueError(f"`in_specs` must be a tuple or a list, got {specs}.")
    specs = tuple(specs) if isinstance(specs, list) else specs
    try:
        found = tree.flatten_axes(name, structure, specs)
    except ValueError as error:
        raise ValueError(f"Pytree for `{name}` and its values do not match. {error}") from None
    return [BlockSpec() if spec is None or isinstance(spec, NoBlockSpec) else spec for spec in found]


class _Call:
    """A kernel with the types of its operands and results."""

    def __init__(self, kernel: Callable[..., Any], spec: Any, operands: Sequence[Any], outs: tuple[Any, ...],
                 aliases: Mapping[int, int]):
        self.kernel, self.grid, self.aliases = kernel, tuple(spec.grid), dict(aliases)
        count = spec.num_scalar_prefetch
        self.scalars, inputs = operands[:count], tuple(operands[count:])
        leaves, self.in_tree = tree.flatten(inputs)
        self.operands = list(map(jnp.asarray, leaves))
        out_leaves, self.out_tree = tree.flatten(outs, is_leaf=lambda x: hasattr(x, "shape"))
        for leaf in out_leaves:
            if not hasattr(leaf, "shape"):
                raise ValueError(f"Invalid out_shape type: {type(leaf)}. It is a ShapeDtypeStruct, or several.")
        out_specs = spec.out_specs
        if len(outs) == 1 and isinstance(out_specs, BlockSpec):
            out_specs = (out_specs,)
        self.ins = [Window(f"args[{k}]", s, x.shape, x.dtype) for k, (s, x) in enumerate(zip(
            _specs("in_specs", spec.in_specs, self.in_tree), self.operands, strict=True))]
        self.outs = [Window(f"outputs[{k}]", s, x.shape, x.dtype) for k, (s, x) in enumerate(zip(
            _specs("out_specs", out_specs, self.out_tree), out_leaves, strict=True))]
        scratch = spec.scratch_shapes
        self.scratch, self.scratch_tree = tree.flatten(
            dict(scratch) if isinstance(scratch, Mapping) else tuple(scratch),
            is_leaf=lambda x: isinstance(x, MemoryRef))

    def initial(self) -> list[Any]:
        """The results before the first step."""
        outs = [uninitialized(w.shape, w.dtype) for w in self.outs]
        first = len(tree.leaves(self.scalars))
        for given, target in self.aliases.items():
            for what, k, low, high in (("input", given, first, first + len(self.operands)),
                                       ("output", target, 0, len(outs))):
                if not low <= k < high:
                    raise ValueError(f"input_output_aliases contains the mapping '{given}:{target}' with {what} index "
                                     f"{k} outside the range [{low}, {high})")
            x, window = self.operands[given - first], self.outs[target]
            if (x.shape, x.dtype) != (window.shape, window.dtype):
                raise ValueError(f"input_output_aliases: operand {given} of type {x.dtype}{list(x.shape)} cannot be "
                                 f"result {target} of type {window.dtype}{list(window.shape)}.")
            outs[target] = x
        return [w.padded(x) for w, x in zip(self.outs, outs, strict=True)]

    def run(self) -> Any:
        operands = [w.padded(x) for w, x in zip(self.ins, self.operands, strict=True)]
        state = self.initial(), [uninitialized(s.shape, s.dtype) for s in self.scratch]
        if self.grid:
            size = math.prod(self.grid)
            outs, _ = lax.fori_loop(0, size, lambda k, state: self.step(self._indices(k), operands, *state), state)
        else:
            outs, _ = self.step((), operands, *state)
        return tree.unflatten(self.out_tree, [w.unpadded(x) for w, x in zip(self.outs, outs, strict=True)])

    def _indices(self, number: Any) -> tuple[Any, ...]:
        """The indices of a step: the last changes fastest."""
        found = []
        for size in reversed(self.grid):
            found.append(jnp.asarray(number % size, np.int32))
            number = number // size
        return tuple(reversed(found))

    def step(self, ids: tuple[Any, ...], operands: Sequence[Any], outs: Sequence[Any],
             scratch: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results and the scratch memory after a step."""
        scalars = tree.map(new_ref, tuple(self.scalars))
        ins, places = ([w.starts(ids, scalars) for w in windows] for windows in (self.ins, self.outs))
        given = [new_ref(w.take(x, start)) for w, x, start in zip(self.ins, operands, ins, strict=True)]
        blocks = [new_ref(w.take(x, start)) for w, x, start in zip(self.outs, outs, places, strict=True)]
        memory = list(map(new_ref, scratch))
        own = tree.unflatten(self.scratch_tree, memory)
        token = _step.set((ids, self.grid))
        try:
            result = self.kernel(*scalars, *tree.unflatten(self.in_tree, given),
                                 *tree.unflatten(self.out_tree, blocks), *(() if isinstance(own, dict) else own),
                                 **(own if isinstance(own, dict) else {}))
        finally:
            _step.reset(token)
        if result is not None:
            raise ValueError(f"The kernel function in the pallas_call {fun_name(self.kernel)} should return None. It "
                             f"returns a PyTree: {tree.structure(result)}")
        written = [w.put(x, freeze(block), start) for w, x, block, start in zip(
            self.outs, outs, blocks, places, strict=True)]
        return written, list(map(freeze, memory))


def pallas_call(kernel: Callable[..., Any], out_shape: Any, *, grid_spec: Any = None, grid: Any = (),
                in_specs: Any = no_block_spec, out_specs: Any = no_block_spec, scratch_shapes: Any = (),
                input_output_aliases: Mapping[int, int] = {}, debug: bool = False,
                interpret: Any = False, name: str | None = None, compiler_params: Any = None,
                cost_estimate: CostEstimate | None = None, metadata: Any = None) -> Callable[..., Any]:
    """A function of arrays that runs a kernel in each step of a grid, one after the other, the last axis fastest.

    Args:
      kernel: a function of references to blocks of the operands, of the results, and scratch memory; gives None.
      out_shape: types of the results, anything with `shape` and `dtype`: one, or a tuple or list of them.
      grid: sizes of the grid; (): the kernel runs once.
      in_specs, out_specs: a `BlockSpec` for each operand and result: which block a step sees. By default all of it.
      scratch_shapes: memory that keeps its values from step to step, as `MemorySpace.ANY(shape, dtype)`; in a
        dictionary, by keywords of the kernel.
      grid_spec: a `GridSpec` in place of the four.
      input_output_aliases: results that begin as operands, by number of these; others begin as NaN or least integers.
      debug, interpret, name, compiler_params, cost_estimate, metadata: without meaning on a CPU.

    Returns:
      A function, under all transformations; blocks at the end of an array that reach beyond it have NaN or least
      integers there, and what is written there is dropped.

    Raises:
      ValueError: for specs that do not fit the operands, index maps that do not fit their blocks, a kernel's result.

    >>> from anima.experimental import pallas as pl
    >>> def double(x, y):
    ...     y[...] = x[...] * 2
    >>> block = pl.BlockSpec((2,), lambda i: (i,))
    >>> pl.pallas_call(double, jnp.arange(6.), grid=3, in_specs=[block], out_specs=block)(jnp.arange(6.))
    Array([ 0.,  2.,  4.,  6.,  8., 10.], dtype=float32)
    """
    spec = GridSpec(grid, in_specs, out_specs, scratch_shapes) if grid_spec is None else grid_spec
    single = not isinstance(out_shape, (tuple, list))
    outs = (out_shape,) if single else tuple(out_shape)

    def call(*operands: Any) -> Any:
        found = _Call(kernel, spec, operands, outs, input_output_aliases).run()
        return found[0] if single else found

    call.__name__ = name or fun_name(kernel)
    return jit(call)


def run_scoped(f: Callable[..., Any], *types: Any, collective_axes: Any = (), **kw_types: Any) -> Any:
    """Calls a function with references to memory of its own, of the given types, and gives its result."""
    def made(types: Any) -> Any:
        return tree.map(lambda t: new_ref(uninitialized(t.shape, t.dtype)), types,
                        is_leaf=lambda t: isinstance(t, MemoryRef))

    return f(*made(types), **made(kw_types))


def with_scoped(*types: Any, collective_axes: Any = (), **kw_types: Any) -> Callable[..., Any]:
    """A decorator for functions that take memory of their own after their arguments; see `run_scoped`."""
    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: run_scoped(lambda *refs, **more: f(*args, *refs, **kwargs, **more), *types,
                                                  collective_axes=collective_axes, **kw_types)

    return decorate


def run_state(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays from one of references to them, one argument: what they hold in the end."""
    def run(init: Any) -> Any:
        refs = tree.map(new_ref, init)
        f(refs)
        return tree.map(freeze, refs)

    return run


def when(condition: Any) -> Callable[[Callable[[], Any]], None]:
    """A decorator that runs a function without arguments where a condition, which may be traced, is true."""
    def decorate(f: Callable[[], Any]) -> None:
        if isinstance(condition, (bool, np.bool_)):
            if condition:
                f()
            return
        lax.cond(condition, lambda: (f(), None)[1], lambda: None)

    return decorate


def loop(lower: Any, upper: Any, *, init_carry: Any = None, step: Any = 1,
         unroll: int | bool | None = None) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that runs a function of `lower, lower + step, ...`, and of a carry if there is one; the last carry
    takes the function's place."""
    def decorate(body: Callable[..., Any]) -> Any:
        count = (upper - lower + step - 1) // step

        def run(k: Any, carry: Any) -> Any:
            index = lower + k * step
            return body(index) if init_carry is None else body(index, carry)

        return lax.fori_loop(0, count, run, init_carry, unroll=unroll)

    return decorate


def estimate_cost(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> CostEstimate:
    """What a function costs, by the operations that it consists of; the bytes are those of arguments and results."""
    lowered = jit(fun).lower(*args, **kwargs)
    found, program = lowered.cost_analysis(), lowered.jaxpr
    ends = sum(a.size * a.dtype.itemsize for a in (*program.in_avals, *program.out_avals))
    return CostEstimate(int(found.get("flops", 0)), int(found.get("transcendentals", 0)), ends)
