"""Both sides of every condition on arguments: the last call that is allowed, and the first that is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anima import lax
from anima.ops import gather as ga, shape as sh, sort
from tests.ops.rule_checks import numbers

X, V, I = numbers((2, 3)), numbers((4,), 1), np.arange(4, dtype=np.int32)
ONE = np.float32(1)
SCOPE = {"lax": lax, "sh": sh, "ga": ga, "sort": sort, "np": np, "X": X, "V": V, "I": I, "ONE": ONE}


def _gather(offset: Any = (1,), collapsed: Any = (0,), index_map: Any = (0,), sizes: Any = (1, 3), x: Any = X,
            indices: Any = np.zeros((2, 1), np.int32), **batching: Any) -> np.ndarray:
    return np.asarray(ga.gather(x, indices, ga.GatherDimensionNumbers(offset, collapsed, index_map, **batching), sizes))


def _scatter(window: Any = (1,), inserted: Any = (0,), index_map: Any = (0,), updates: Any = np.ones((2, 3), "f"),
             x: Any = X, indices: Any = np.zeros((2, 1), np.int32), **batching: Any) -> np.ndarray:
    dims = ga.ScatterDimensionNumbers(window, inserted, index_map, **batching)
    return np.asarray(ga.scatter_add(x, indices, updates, dims))


SCOPE |= {"gather": _gather, "scatter": _scatter}

# allowed, the shape of its result, not allowed, what that says
PAIRS: list[tuple[str, Any, str, str]] = [
    ("sh.slice(V, (4,), (4,))", (0,), "sh.slice(V, (4,), (5,))", "limit_indices must be less than or equal"),
    ("sh.slice(V, (0,), (4,), (9,))", (1,), "sh.slice(V, (0,), (4,), (0,))", "strides must be positive, got (0,)"),
    ("sh.slice(V, (3,), (3,))", (0,), "sh.slice(V, (3,), (2,))", "slice_sizes must be greater than or equal to zero"),
    ("sh.slice(V, (0,), (2,))", (2,), "sh.slice(V, (-1,), (2,))",
     "start_indices must be greater than or equal to zero"),
    ("sh.slice(V, (1,), (4,))", (3,), "sh.slice(V, (0,), (5,))", "slice_sizes must be less than or equal to operand"),
    ("sh.slice(X, (0, 0), (2, 2))", (2, 2), "sh.slice(X, (0, 0), (2,))", "slice limit_indices must have length equal"),
    ("sh.slice(X, (0, 0), (2, 2), (2, 2))", (1, 1), "sh.slice(X, (0, 0), (2, 2), (2,))",
     "slice strides must have length"),
    ("sh.slice_in_dim(V, -4, None)", (4,), "sh.slice_in_dim(V, -5, None)", "start_indices must"),
    ("sh.slice_in_dim(V, 1, -1, 2)", (1,), "sh.slice_in_dim(V, 1, -4, 2)", "greater than or equal to zero"),
    ("sh.index_in_dim(V, -4)", (1,), "sh.index_in_dim(V, -5)", "index -5 is out of bounds for axis 0 with size 4"),
    ("sh.index_in_dim(V, 3)", (1,), "sh.index_in_dim(V, 4)", "index 4 is out of bounds for axis 0 with size 4"),
    ("sh.concatenate([X, X[:, :0]], 1)", (2, 3), "sh.concatenate([X, X], -1)", "dimension out of bounds: dimension -1"),
    ("sh.concatenate([X], 1)", (2, 3), "sh.concatenate([X], 2)", "dimension out of bounds: dimension 2"),
    ("sh.pad(V, ONE, [(-2, -2, 0)])", (0,), "sh.pad(V, ONE, [(-2, -3, 0)])", "not at least 0, got result shape (-1,)"),
    ("sh.pad(V, ONE, [(0, 0, 1)])", (7,), "sh.pad(V, ONE, [(0, 0, -1)])", "must be nonnegative"),
    ("sh.pad(V, ONE, [(1, 1, 0)])", (6,), "sh.pad(V, V, [(1, 1, 0)])", "padding_value must be a scalar"),
    ("sh.pad(V, ONE, [(0, 0, 0)])", (4,), "sh.pad(V, ONE, [(0, 0)])", "must hold triples (low, high, interior)"),
    ("sh.rev(X, (1, 0))", (2, 3), "sh.rev(X, (1, 2))", "dimensions must all be less than operand ndim"),
    ("sh.rev(X, (0,))", (2, 3), "sh.rev(X, (-1,))", "rev dimensions must have every element be nonnegative"),
    ("sh.split(X, (3, 0), 1)", 2, "sh.split(X, (4, -1), 1)", "must be nonnegative, got [4, -1]"),
    ("sh.split(X, (1, 2), -1)", 2, "sh.split(X, (1, 3), -1)", "Sum of sizes 4 must be equal to dimension 1"),
    ("sh.split(X, (3,), 1)", 1, "sh.split(X, (2,), 1)", "Sum of sizes 2 must be equal to dimension 1"),
    ("sh.stack([X, X], 2)", (2, 3, 2), "sh.stack([X, X], 3)", "axis 3 is out of bounds"),
    ("sh.stack([X, X], -3)", (2, 2, 3), "sh.stack([X, X], -4)", "axis -4 is out of bounds"),
    ("sh.stack([V, V])", (2, 4), "sh.stack([V, X])", "different numbers of dimensions: got (4,), (2, 3)."),
    ("sh.stack([V, V])", (2, 4), "sh.stack([V, V[1:]])", "must have the same shape: got (4,), (3,)."),
    ("sh.unstack(X, -1)", 3, "sh.unstack(X, -3)", "axis -3 is out of bounds"),
    ("sh.tile(X, (0, 2))", (0, 6), "sh.tile(X, (2,))", "got len(reps)=1 and x.ndim=2."),
    ("sh.collapse(X, 1, 1)", (2, 1, 3), "sh.collapse(X, 1, 0)", "Invalid dimension range passed to collapse"),
    ("sh.collapse(X, 0, -1)", (2, 3), "sh.collapse(X, 2, -1)", "Invalid dimension range passed to collapse"),
    ("sh.transpose(X, (1, 0))", (3, 2), "sh.transpose(X, (1, 2))", "isn't a permutation of operand dimensions"),
    ("sh.transpose(X, (1, 0))", (3, 2), "sh.transpose(X, (1,))", "isn't a permutation of operand dimensions"),
    ("sh.squeeze(X[:1], (-2,))", (3,), "sh.squeeze(X[:1], (0, -2))", "dimensions are not unique: (0, -2)"),
    ("sh.expand_dims(V, (2, 0))", (1, 4, 1), "sh.expand_dims(V, (3, 0))", "axis 3 is out of bounds"),
    ("sh.expand_dims(V, (-1, -3))", (1, 4, 1), "sh.expand_dims(V, (-1, 2))", "repeated axis"),
    ("sh.broadcast_in_dim(V, (4, 4), (1,))", (4, 4), "sh.broadcast_in_dim(V, (4, 4), (2,))", "broadcast_in_dim"),
    ("sh.broadcast_in_dim(V, (4, 4), (0,))", (4, 4), "sh.broadcast_in_dim(V, (4, 4), (-1,))", "broadcast_in_dim"),
    ("sh.broadcast_in_dim(X, (2, 2, 3), (0, 2))", (2, 2, 3), "sh.broadcast_in_dim(X, (2, 3, 3), (0, 0))",
     "broadcast_in_dim"),
    ("sh.broadcast_in_dim(V, (4,), (0,))", (4,), "sh.broadcast_in_dim(V, (), ())", "broadcast_in_dim"),
    ("sh.broadcasted_iota('int32', (2, 3), 1)", (2, 3), "sh.broadcasted_iota('int32', (2, 3), 2)", "must be between"),
    ("sh.broadcasted_iota('int32', (2, 3), 0)", (2, 3), "sh.broadcasted_iota('int32', (2, 3), -1)", "must be between"),
    ("sh.reduce_sum(X, (1,))", (2,), "sh.reduce_sum(X, (2,))", "out"),
    ("lax.reduce_max(X, (1, 0))", (), "lax.reduce_max(X, (1, 1))", "duplicate value in 'axes' of reduction: (1, 1)"),
    ("lax.reduce_max(X, (0,))", (3,), "lax.reduce_max(X, (2,))", "axis 2 is out of bounds"),
    ("lax.argmax(X, 1, 'int8')", (2,), "lax.argmax(X, 2, 'int8')", "axis 2"),
    ("lax.argmin(X, 0, 'uint8')", (3,), "lax.argmin(X, 0, 'float32')", "index_dtype must be an integer type"),
    ("lax.argmax(X[:1], 0, 'int32')", (3,), "lax.argmax(X[:0], 0, 'int32')", "require non-empty reduced dimension"),
    ("lax.cumsum(X, 1)", (2, 3), "lax.cumsum(X, 2)", "axis 2 is out of bounds"),
    ("lax.cumsum(X, -2)", (2, 3), "lax.cumsum(X, -3)", "axis -3 is out of bounds"),
    ("lax.sort(X, 1)", (2, 3), "lax.sort(X, 2)", "axis 2 is out of bounds"),
    ("lax.sort((V, V), num_keys=2)", 2, "lax.sort((V, V), num_keys=3)", "num_keys=3 must be between 1 and"),
    ("lax.sort((V, V), num_keys=1)", 2, "lax.sort((V, V), num_keys=0)", "num_keys=0 must be between 1 and"),
    ("lax.sort((V, V))", 2, "lax.sort((V, X))", "Arguments to sort must have equal shapes"),
    ("lax.sort(V, num_keys=1)", (4,), "lax.sort(V, num_keys=2)", "num_keys=2 must equal 1 for a single operand."),
    ("lax.sort((V,))", 1, "lax.sort(())", "Sort requires at least one operand"),
    ("lax.top_k(V, 4)", 2, "lax.top_k(V, 5)", "k=5 with shape=[4] and axis=0"),
    ("lax.top_k(X, 2, axis=0)", 2, "lax.top_k(X, 3, axis=0)", "k=3 with shape=[2, 3] and axis=0"),
    ("lax.top_k(V, 0)", 2, "lax.top_k(V, -1)", "must be nonnegative, got -1"),
    ("lax.top_k(V, 1)", 2, "lax.top_k(V + 0j, 1)", "top_k is not compatible with complex inputs."),
    ("lax.dynamic_slice(X, (0, 0), (2, 3))", (2, 3), "lax.dynamic_slice(X, (0, 0), (2, 4))",
     "less than or equal to op"),
    ("lax.dynamic_slice(X, (0, 0), (0, 0))", (0, 0), "lax.dynamic_slice(X, (0, 0), (0, -1))", "slice"),
    ("lax.dynamic_slice(X, (0, 0), (1, 1))", (1, 1), "lax.dynamic_slice(X, (0,), (1, 1))", "must match number of"),
    ("lax.dynamic_slice(X, (0, 0), (1, 1))", (1, 1), "lax.dynamic_slice(X, (0, 0), (1,))", "slice_sizes"),
    ("lax.dynamic_slice(X, (0, 0), (1, 1))", (1, 1), "lax.dynamic_slice(X, (0, I), (1, 1))", "must be scalars"),
    ("lax.dynamic_update_slice(X, X, (0, 0))", (2, 3), "lax.dynamic_update_slice(X[:1], X, (0, 0))", "must be smaller"),
    ("lax.dynamic_update_slice(X, X, (0, 0))", (2, 3), "lax.dynamic_update_slice(X, V, (0, 0))", "the same rank"),
    ("lax.select_n(X > 0, X, X)", (2, 3), "lax.select_n(X > 0, X, X, X)", "boolean `which` cannot have > 2 cases"),
    ("lax.select_n(I, V, V, V)", (4,), "lax.select_n(V, V, V)", "`which` must be boolean or integer type"),
    ("lax.select_n(np.bool_(1), X, X)", (2, 3), "lax.select_n(X[0] > 0, X, X)",
     "must be scalar or have the same shape"),
    ("lax.select_n(I, V)", (4,), "lax.select_n(I)", "select must have at least one case"),
    ("lax.select_n(X > 0, X, X)", (2, 3), "lax.select_n(X > 0, X, V)", "cases must have the same shapes"),
    ("lax.clamp(ONE, X, X)", (2, 3), "lax.clamp(ONE, X, V)", "clamp requires max.shape == operand.shape"),
    ("lax.clamp(X, X, ONE)", (2, 3), "lax.clamp(V, X, ONE)", "clamp requires min.shape == operand.shape"),
    ("lax.reduce_precision(V, 1, 0)", (4,), "lax.reduce_precision(V, 0, 0)", "exponent_bits must be positive; got 0"),
    ("lax.reduce_precision(V, 1, 0)", (4,), "lax.reduce_precision(V, 1, -1)", "mantissa_bits must be non-negative"),
    ("lax.integer_pow(I, 0)", (4,), "lax.integer_pow(I, -1)", "Integers cannot be raised to negative powers"),
    ("lax.bitcast_convert_type(I.reshape(2, 2).astype('int16'), 'int32')", (2,),
     "lax.bitcast_convert_type(I.astype('int16'), 'int32')", "but its last dimension is not 2"),
    ("gather()", (2, 3), "gather(offset=(2,))", "Offset dimension 0 in gather op is out of bounds; got 2"),
    ("gather()", (2, 3), "gather(offset=(-1,))", "is out of bounds; got -1"),
    ("gather()", (2, 3), "gather(collapsed=(2,))", "Invalid collapsed_slice_dims set in gather op"),
    ("gather()", (2, 3), "gather(collapsed=(0, 0))", "must not repeat"),
    ("gather(sizes=(1, 1), collapsed=(0, 1), offset=())", (2,), "gather(sizes=(1, 1), collapsed=(1, 0), offset=())",
     "collapsed_slice_dims in gather op must be sorted; got (1, 0)"),
    ("gather(sizes=(1, 0))", (2, 0), "gather(sizes=(1, 4))", "Slice size at index 1 in gather op is out of range"),
    ("gather(sizes=(1, 3))", (2, 3), "gather(sizes=(2, 3))",
     "can only collapse slice dims with bound 1, but bound is 2"),
    ("gather()", (2, 3), "gather(sizes=(1,))", "must have one slice size for every input dimension"),
    ("gather()", (2, 3), "gather(offset=())", "must either be a offset dimension or explicitly collapsed/batching"),
    ("gather(index_map=(1,))", (2, 3), "gather(index_map=(2,))",
     "Invalid start_index_map; domain is [0, 2), got: 0->2."),
    ("gather()", (2, 3), "gather(index_map=(0, 1))", "These two numbers must be equal."),
    ("gather(index_map=(1, 0), indices=I.reshape(2, 2))", (2, 3), "gather(index_map=(0, 0), indices=I.reshape(2, 2))",
     "start_index_map in gather op must not repeat"),
    ("gather()", (2, 3), "gather(indices=V[:, None])", "indices must have an integer type"),
    ("gather(offset=(0,), indices=I[:1])", (3,), "gather(offset=(0,), indices=I[0])",
     "indices must have at least one dimension"),
    ("gather(collapsed=(), operand_batching_dims=(0,), index_map=(1,), start_indices_batching_dims=(0,))", (2, 3),
     "gather(collapsed=(), operand_batching_dims=(0,), index_map=(1,), start_indices_batching_dims=(1,))",
     "batching dimensions of operand and indices to have the same size"),
    ("gather(collapsed=(), operand_batching_dims=(0,), index_map=(1,), start_indices_batching_dims=(0,))", (2, 3),
     "gather(collapsed=(), operand_batching_dims=(0,), index_map=(0,), start_indices_batching_dims=(0,))", "overlap"),
    ("gather()", (2, 3), "gather(start_indices_batching_dims=(0,))", "equally many operand_batching_dims"),
    ("scatter()", (2, 3), "scatter(updates=np.ones((2, 4), 'f'))", "must not exceed the bounds of the corresponding"),
    ("scatter(updates=np.ones((2, 0), 'f'))", (2, 3), "scatter(updates=np.ones((3, 3), 'f'))",
     "For scatter dimension 0, updates bound is 3, indices bound is 2."),
    ("scatter()", (2, 3), "scatter(updates=np.ones(3, 'f'))", "Updates tensor must be of rank 2; got 1."),
    ("scatter()", (2, 3), "scatter(window=(), updates=np.ones(2, 'f'))", "doesn't match operand of rank 2"),
    ("scatter()", (2, 3), "scatter(window=(2,))", "Invalid update_window_dims set in scatter op"),
    ("scatter()", (2, 3), "scatter(x=X > 0, updates=X > 0)", "does not accept dtype bool"),
]


@pytest.mark.parametrize(("allowed", "shape", "refused", "text"), PAIRS, ids=[p[2] for p in PAIRS])
def test_both_sides(allowed: str, shape: Any, refused: str, text: str) -> None:
    out = eval(allowed, SCOPE)
    assert (len(out) if isinstance(shape, int) else np.shape(out)) == shape
    with pytest.raises((TypeError, ValueError, IndexError)) as caught:
        pytest.fail(f"no error, but {eval(refused, SCOPE)}")
    assert text in str(caught.value)
