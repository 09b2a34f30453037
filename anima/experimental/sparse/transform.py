"""`sparsify`: functions of dense arrays become functions of sparse ones, operation by operation.

A `SparseTracer` stands for a sparse array; its trace applies each operation's rule for sparse operands. Operations that
make 0 of 0 keep to the stored elements; others would give dense arrays, and are refused.

    >>> mat = sparse.BCOO.fromdense(jnp.array([[0., 2.], [3., 0.]]))
    >>> sparse.sparsify(lambda x: jnp.sum(2 * x @ x))(mat)
    Array(24., dtype=float32)
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import errors, lax, numpy as jnp, tree
from anima.api.jit import jit
from anima.api.pjit import pjit_p
from anima.control.cond import cond_p
from anima.control.scan import scan_p
from anima.control.while_loop import while_p
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive
from anima.core.stage import eval_jaxpr, trace_pytrees
from anima.core.state import current
from anima.core.trace import Trace, Tracer, aval_of, under
from anima.experimental.sparse.base import JAXSparse
from anima.experimental.sparse.bcoo import BCOO
from anima.experimental.sparse.bcsr import BCSR, bcsr_dot_general
from anima.experimental.sparse.convolution import bcoo_conv_general_dilated
from anima.experimental.sparse.layout import bcoo_todense, bcoo_update_layout, spread
from anima.experimental.sparse.product import bcoo_dot_general, bcoo_multiply_dense, bcoo_multiply_sparse, values_at
from anima.experimental.sparse.shape import (
    bcoo_broadcast_in_dim,
    bcoo_concatenate,
    bcoo_dynamic_slice,
    bcoo_gather,
    bcoo_reduce_sum,
    bcoo_reshape,
    bcoo_rev,
    bcoo_slice,
    bcoo_squeeze,
    bcoo_transpose,
)
from anima.ops.contract import dot_general_p
from anima.ops.convolution import conv_general_dilated_p
from anima.ops.elementwise import add, add_any, div, mul, sub
from anima.ops.family import Elementwise, known_scalar
from anima.ops.gather import gather_p
from anima.ops.index import dynamic_slice_p
from anima.ops.shape import (
    broadcast_in_dim_p,
    concatenate_p,
    reduce_sum_p,
    reshape_p,
    rev_p,
    slice_p,
    squeeze_p,
    transpose_p,
)
from anima.transforms.composed import Composed
from anima.util import weak_cache, wraps

Values = Sequence[Any]
Rule = Callable[..., Any]

todense_p = Composed("todense", lambda x: x)


class SparseTracer(Tracer):
    """Stands for a sparse array, `spvalue`, while a function runs on it."""

    __slots__ = ("spvalue",)

    def __init__(self, trace: Trace, *, spvalue: Any):
        self.spvalue = spvalue
        super().__init__(trace, ShapedArray(spvalue.shape, spvalue.dtype))

    def __repr__(self) -> str:
        return f"SparseTracer<{self.dtype}[{','.join(map(str, self.shape))}]>"

    def origin_text(self) -> str:
        return "It stands for a sparse array, in a function under sparsify."


class SparseTrace(Trace):
    """Applies operations to sparse arrays."""

    label = "SparseTrace"

    def wrap(self, value: Any) -> Any:
        return SparseTracer(self, spvalue=value) if isinstance(value, JAXSparse) else value

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        values = [x.spvalue if isinstance(x, SparseTracer) else x for x in args]
        if not any(isinstance(v, JAXSparse) for v in values):
            return under(self.parent, primitive.bind, *values, **params)
        out = under(self.parent, apply, primitive, values, params)
        return list(map(self.wrap, out)) if primitive.multiple_results else self.wrap(out)


def apply(primitive: Primitive, values: Values, params: dict[str, Any]) -> Any:
    """The results of an operation on sparse and dense arrays."""
    if primitive in RULES:
        return RULES[primitive](*values, **params)
    if isinstance(primitive, Elementwise):
        return _elementwise(primitive, values, params)
    if primitive.body is not None:
        avals = [ShapedArray(v.shape, v.dtype) if isinstance(v, JAXSparse) else aval_of(v) for v in values]
        outs = run(primitive.body(params, avals), values)
        return outs if primitive.multiple_results else outs[0]
    raise NotImplementedError(f"sparse rule for {primitive.name} is not implemented.")


def run(program: ClosedJaxpr, values: Values) -> list[Any]:
    """The results of a program on sparse and dense arrays."""
    trace = SparseTrace(current.trace)
    try:
        outs = under(trace, eval_jaxpr, program.jaxpr, program.consts, *map(trace.wrap, values))
    finally:
        trace.alive = False
    return [x.spvalue if isinstance(x, SparseTracer) else x for x in outs]


# ---------------------------------------------------------------- elementwise operations

def _elementwise(primitive: Elementwise, values: Values, params: dict[str, Any]) -> Any:
    """Of operands with the same stored elements, and numbers, where all zeros give zero: those of the result."""
    sparse = [v for v in values if isinstance(v, JAXSparse)]
    others = [known_scalar(v) for v in values if not isinstance(v, JAXSparse)]
    if not same_places(sparse) or any(v is None for v in others):
        raise NotImplementedError(f"sparse rule for {primitive.name} is not implemented for these operands: it is for "
                                  "arrays with the same indices, and numbers that are known.")
    zeros = [np.zeros((), v.dtype) if isinstance(v, JAXSparse) else np.asarray(known_scalar(v)) for v in values]
    with np.errstate(all="ignore"):
        at_zero = primitive.eval(*zeros, **params)
    if np.any(at_zero != 0):
        raise NotImplementedError(f"sparse rule for {primitive.name} is not implemented because it would result in "
                                  "dense output. If this is your intent, use sparse.todense() to convert your "
                                  "arguments to dense matrices.")
    if not _is_linear(primitive, values, params) and not sparse[0].unique_indices:
        if len(sparse) > 1:
            raise NotImplementedError(f"sparse rule for {primitive.name} of several arrays needs unique indices: see "
                                      "sum_duplicates.")
        unique = _without_duplicates(sparse[0])
        values = [unique if v is sparse[0] else v for v in values]
        sparse = [unique]
    return sparse[0].like(primitive.bind(*(v.data if isinstance(v, JAXSparse) else v for v in values), **params))


def same_places(mats: Sequence[Any]) -> bool:
    """Whether arrays store elements at the same places."""
    first = mats[0]
    return all(type(m) is type(first) and m.shape == first.shape and m.data.shape == first.data.shape
               and m.indices is first.indices and getattr(m, "indptr", 0) is getattr(first, "indptr", 0) for m in mats)


def _is_linear(primitive: Elementwise, values: Values, params: dict[str, Any]) -> bool:
    if primitive.name == "convert_element_type":
        return all(dtypes.issubdtype(dtype, np.inexact) for dtype in (values[0].dtype, params["new_dtype"]))
    return primitive.linear and len(values) == 1


def _without_duplicates(mat: Any) -> Any:
    return mat.sum_duplicates(nse=mat.nse)


def _as_bcoo(x: Any) -> Any:
    """A BCSR array as a BCOO one; all else as it is."""
    return x.to_bcoo() if isinstance(x, BCSR) else x


def _mul(x: Any, y: Any) -> Any:
    if isinstance(x, JAXSparse) and isinstance(y, JAXSparse):
        if same_places([x, y]) and x.unique_indices:
            return x.like(x.data * y.data)
        return bcoo_multiply_sparse(_as_bcoo(x), _as_bcoo(y))
    mat, dense = (x, y) if isinstance(x, JAXSparse) else (y, x)
    return mat.like(bcoo_multiply_dense(_as_bcoo(mat), dense))


def _div(x: Any, y: Any) -> Any:
    if isinstance(y, JAXSparse):
        raise NotImplementedError("Division by a sparse array is not implemented because it would result in dense "
                                  "output. If this is your intent, use sparse.todense() to convert your arguments to a "
                                  "dense array.")
    y = jnp.asarray(y)
    if not y.ndim:
        return x.like(x.data / y)
    mat = _as_bcoo(x)
    divisor = values_at(mat, y)
    there = values_at(mat, jnp.ones((1,) * mat.ndim, bool)) if mat.nse else divisor
    return x.like(spread(mat)[0] / jnp.where(there != 0, divisor, jnp.ones((), divisor.dtype)))


def _sum(sign: int, x: Any, y: Any) -> Any:
    if isinstance(x, JAXSparse) and isinstance(y, JAXSparse):
        if same_places([x, y]):
            return x.like(x.data + y.data if sign > 0 else x.data - y.data)
        out = _joined(_as_bcoo(x), _as_bcoo(y), sign)
        return BCSR.from_bcoo(out) if isinstance(x, BCSR) and isinstance(y, BCSR) else out
    mat, dense = (x, jnp.asarray(y)) if isinstance(x, JAXSparse) else (y, jnp.asarray(x))
    if dense.shape != np.broadcast_shapes(dense.shape, mat.shape):
        raise NotImplementedError("The sum of a sparse array and a dense one of fewer elements is not implemented "
                                  "because it would result in dense output. If this is your intent, use "
                                  "sparse.todense() to convert your arguments to dense matrices.")
    whole = mat.todense()
    if sign > 0:
        return whole + dense
    return whole - dense if mat is x else dense - whole


def _joined(x: BCOO, y: BCOO, sign: int) -> BCOO:
    """The elements of both, those of `y` times a sign."""
    if x.shape != y.shape:
        raise NotImplementedError(f"The sum of sparse arrays of shapes {x.shape} and {y.shape} is not implemented.")
    n_batch, n_dense = min(x.n_batch, y.n_batch), min(x.n_dense, y.n_dense)
    x, y = (bcoo_update_layout(m, n_batch=n_batch, n_dense=n_dense) for m in (x, y))
    dtype = jnp.result_type(x.data, y.data)
    (xd, xi), (yd, yi) = spread(x), spread(y)
    index_dtype = jnp.result_type(xi, yi)
    yd = yd.astype(dtype)
    return BCOO((jnp.concatenate([xd.astype(dtype), yd if sign > 0 else -yd], n_batch),
                 jnp.concatenate([xi.astype(index_dtype), yi.astype(index_dtype)], n_batch)), shape=x.shape)


# ---------------------------------------------------------------- structural operations

def _dot_general(x: Any, y: Any, *, dimension_numbers: Any, preferred_element_type: Any = None, **params: Any) -> Any:
    function = bcsr_dot_general if isinstance(x, BCSR) or isinstance(y, BCSR) else bcoo_dot_general
    return function(x, y, dimension_numbers=dimension_numbers, preferred_element_type=preferred_element_type)


def _reduce_sum(x: Any, *, axes: Sequence[int], **params: Any) -> Any:
    out = bcoo_reduce_sum(_as_bcoo(x), axes=axes)
    return out if out.shape else bcoo_todense(out)


def _concatenate(*operands: Any, dimension: int) -> BCOO:
    return bcoo_concatenate([_as_bcoo(x) for x in operands], dimension=dimension)


def _dynamic_slice(x: Any, *starts: Any, slice_sizes: Sequence[int]) -> BCOO:
    return bcoo_dynamic_slice(_as_bcoo(x), starts, slice_sizes)


def _gather(x: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, mode: Any = None, fill_value: Any = None,
            **params: Any) -> BCOO:
    return bcoo_gather(_as_bcoo(x), indices, dimension_numbers, slice_sizes, mode=mode, fill_value=fill_value)


def _unary(function: Callable[..., Any]) -> Rule:
    """A rule for an operation on one operand, of BCOO arrays, with the parameters of this function."""
    @wraps(function)
    def rule(x: Any, **params: Any) -> Any:
        return function(_as_bcoo(x), **{k: v for k, v in params.items() if v is not None})

    return rule


def _todense(x: Any) -> Any:
    return x.todense()


# ---------------------------------------------------------------- programs

@weak_cache
def _jitted(program: ClosedJaxpr) -> Callable[..., Any]:
    held = weakref.ref(program)

    def call(*values: Any) -> list[Any]:
        known = held()
        assert known is not None  # who calls has it
        return run(known, values)

    return jit(call)


def _pjit(*values: Any, jaxpr: ClosedJaxpr, **params: Any) -> list[Any]:
    return _jitted(jaxpr)(*values)


def _cond(index: Any, *values: Any, branches: Sequence[ClosedJaxpr], **params: Any) -> list[Any]:
    return lax.switch(index, [functools.partial(_branch, b) for b in branches], values)


def _branch(program: ClosedJaxpr, values: Values) -> list[Any]:
    return run(program, values)


def _while(*values: Any, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int,
           body_nconsts: int) -> list[Any]:
    first, second = values[:cond_nconsts], values[cond_nconsts: cond_nconsts + body_nconsts]
    return lax.while_loop(lambda carry: run(cond_jaxpr, [*first, *carry])[0],
                          lambda carry: run(body_jaxpr, [*second, *carry]), list(values[cond_nconsts + body_nconsts:]))


def _scan(*values: Any, jaxpr: ClosedJaxpr, num_consts: int, num_carry: int, length: int, reverse: bool,
          unroll: Any = 1, **params: Any) -> list[Any]:
    consts, carry = values[:num_consts], list(values[num_consts: num_consts + num_carry])
    xs = list(values[num_consts + num_carry:])
    if any(isinstance(x, JAXSparse) and not getattr(x, "n_batch", 0) for x in xs):
        raise NotImplementedError("scan over a sparse array needs a batch dimension in it: see bcoo_update_layout.")

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        outs = run(jaxpr, [*consts, *carry, *x])
        return outs[:num_carry], outs[num_carry:]

    last, ys = lax.scan(step, carry, xs, length=length, reverse=reverse, unroll=unroll)
    return [*last, *ys]


RULES: dict[Primitive, Rule] = {
    mul: _mul, div: _div, add: functools.partial(_sum, 1), add_any: functools.partial(_sum, 1),
    sub: functools.partial(_sum, -1), dot_general_p: _dot_general, reduce_sum_p: _reduce_sum,
    transpose_p: _unary(bcoo_transpose), reshape_p: _unary(bcoo_reshape), squeeze_p: _unary(bcoo_squeeze),
    broadcast_in_dim_p: _unary(bcoo_broadcast_in_dim), slice_p: _unary(bcoo_slice), rev_p: _unary(bcoo_rev),
    concatenate_p: _concatenate, dynamic_slice_p: _dynamic_slice, gather_p: _gather,
    conv_general_dilated_p: bcoo_conv_general_dilated, todense_p: _todense,
    pjit_p: _pjit, cond_p: _cond, while_p: _while, scan_p: _scan,
}


# ---------------------------------------------------------------- for users

def is_sparse(x: Any) -> bool:
    """Whether a value of a pytree is a sparse array, and so a leaf."""
    return isinstance(x, JAXSparse)


def _supported(x: Any) -> Any:
    if isinstance(x, JAXSparse) and not isinstance(x, (BCOO, BCSR)):
        raise NotImplementedError(f"sparsify is for BCOO and BCSR arrays, got {type(x).__name__}.")
    return x


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., Any]:
    """A function of sparse arrays from one of dense arrays.

    Args:
      f: a function of arrays, with operations that keep to stored elements: elementwise ones that make 0 of 0, sums,
        products, indexing, reshapes and their likes, and control flow with these.
      use_tracer: run `f` on values that stand for the sparse arrays, rather than record it first: what depends on
        values of dense arguments, as `if`, then works.

    Returns:
      A function that takes BCOO and BCSR arrays, and dense ones, in pytrees too; results are sparse where they follow
      from sparse arrays.

    Raises:
      NotImplementedError: when called, for operations without a rule, or whose result would be dense.

    >>> mat = sparse.BCOO.fromdense(jnp.array([0., 2.]))
    >>> sparse.sparsify(jnp.sin)(mat)
    BCOO(float32[2], nse=1)
    """
    @wraps(f)
    @errors.api_boundary
    def sparse_f(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs), is_leaf=is_sparse)
        leaves = list(map(_supported, leaves))
        if use_tracer:
            return _traced(f, in_tree, leaves)
        avals = [ShapedArray(x.shape, x.dtype) if is_sparse(x) else aval_of(x) for x in leaves]
        jaxpr, consts, out_tree = trace_pytrees(lambda args, kwargs: f(*args, **kwargs), in_tree, avals)
        return tree.unflatten(out_tree, run(ClosedJaxpr(jaxpr, consts), leaves))

    return sparse_f


def _traced(f: Callable[..., Any], in_tree: Any, leaves: Sequence[Any]) -> Any:
    trace = SparseTrace(current.trace)
    try:
        args, kwargs = tree.unflatten(in_tree, map(trace.wrap, leaves))
        out = under(trace, f, *args, **kwargs)
    finally:
        trace.alive = False
    return tree.map(lambda x: x.spvalue if isinstance(x, SparseTracer) else x, out, is_leaf=is_sparse)


@errors.api_boundary
def todense(arr: Any) -> Any:
    """The dense array of a sparse one; a dense array as it is.

    >>> sparse.todense(sparse.eye(2))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if isinstance(arr, JAXSparse):
        return arr.todense()
    return todense_p.bind(arr) if isinstance(arr, Tracer) else arr
