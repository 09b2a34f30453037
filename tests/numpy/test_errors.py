"""What goes wrong says so: exception class, and the sentence that matters."""

from __future__ import annotations

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.errors import ConcretizationTypeError, NonConcreteBooleanIndexError

SCOPE = {"jnp": jnp, "np": np, "anima": anima}

CASES = [
    ("jnp.sum([1, 2, 3])", TypeError, "sum requires ndarray or scalar arguments, got <class 'list'> at position 0."),
    ("jnp.add([1, 2], [3, 4])", TypeError, "add requires ndarray or scalar arguments, got <class 'list'>"),
    ("jnp.add(1, (3, 4))", TypeError, "add requires ndarray or scalar arguments, got <class 'tuple'> at position 1."),
    ("jnp.sin(None)", TypeError, "sin requires ndarray or scalar arguments, got <class 'NoneType'> at position 0."),
    ("jnp.ones(3) + [1, 2, 3]", TypeError, "unsupported operand type"),
    ("jnp.ones((2, 3)) + jnp.ones((2, 4))", TypeError, "add got incompatible shapes for broadcasting: (2, 3), (2, 4)."),
    ("jnp.ones((2, 3)) + jnp.ones(4)", ValueError, "Incompatible shapes for broadcasting: shapes=[(2, 3), (4,)]"),
    ("jnp.matmul(jnp.ones(()), jnp.ones(3))", ValueError, "matmul input operand 0 must have ndim at least 1"),
    ("jnp.arange(6).reshape(4, 2)", TypeError, "cannot reshape array of shape (6,) (size 6) into shape (4, 2)"),
    ("jnp.arange(6).reshape(-1, -1)", TypeError, "can only specify one unknown axis size"),
    ("jnp.arange(7).reshape(2, -1)", TypeError, "does not evenly divide 7"),
    ("jnp.broadcast_to(jnp.ones((2, 3)), (4, 3))", ValueError,
     "input type=float32[2,3] and requested type=float32[4,3]"),
    ("jnp.concatenate([])", ValueError, "Need at least one array to concatenate."),
    ("jnp.stack([jnp.ones(2), jnp.ones(3)])", ValueError, "All input arrays must have the same shape."),
    ("jnp.sum(jnp.ones((2, 3)), axis=2)", ValueError, "axis 2 is out of bounds for array of dimension 2"),
    ("jnp.unique(jnp.ones(3), axis=1)", ValueError, "axis 1 is out of bounds for array of dimension 1"),
    ("jnp.cumsum(jnp.float32(1), axis=-5)", ValueError, "axis -5 is out of bounds for array of dimension 1"),
    ("jnp.cumprod(jnp.float32(1), axis=1.5)", TypeError, "'float' object cannot be interpreted as an integer"),
    *((f"jnp.{call}", TypeError, "cannot be interpreted as an integer") for call in [
        "round(jnp.ones(3), 2.0)", "histogram(jnp.ones(3), 2.0)", "histogramdd(jnp.ones((3, 2)), 2.0)",
        "tril_indices(2.0)", "triu_indices(2, m=2.0)"]),
    ("jnp.isdtype('f4', 2)", TypeError, "Unrecognized kind=2"),
    ("anima.scipy.linalg.solve_triangular(jnp.ones(3), jnp.ones(3))", ValueError, "a matrix of shape (3,)"),
    ("jnp.roll(jnp.ones(3), (), axis=3)", ValueError, "axis 3 is out of bounds for array of dimension 1"),
    ("jnp.sum(jnp.ones((2, 3)), axis=(0, 0))", ValueError, "duplicate value in 'axis': (0, 0)"),
    ("jnp.sum(jnp.ones((2, 3)), axis=(0, -2))", ValueError, "duplicate value in 'axis': (0, -2)"),
    ("jnp.transpose(jnp.ones((2, 3)), (0, 0))", TypeError, "transpose permutation isn't a permutation"),
    ("jnp.squeeze(jnp.ones((2, 3)), axis=0)", ValueError, "cannot select an axis to squeeze out"),
    ("jnp.expand_dims(jnp.ones(2), 5)", ValueError, "axis 5 is out of bounds"),
    ("jnp.split(jnp.arange(7), 3)", ValueError, "array split does not result in an equal division"),
    ("jnp.max(jnp.zeros(0))", ValueError, "zero-size array to reduction operation max which has no identity"),
    ("jnp.argmax(jnp.zeros(0))", ValueError, "attempt to get argmax of an empty sequence"),
    ("jnp.linspace(0, 1, -1)", ValueError, "Number of samples, -1, must be non-negative."),
    ("jnp.zeros((-1,))", TypeError, "must have every element be nonnegative, got (-1,)."),
    ("jnp.einsum('ij,jk->iz', jnp.ones((2, 3)), jnp.ones((3, 4)))", ValueError, "Output character 'z' did not appear"),
    ("jnp.einsum('ij,jk->ik', jnp.ones((2, 3)), jnp.ones((4, 5)))", ValueError, "Size of label 'j' for operand 1 (3)"),
    ("jnp.einsum('ij,jk->ik', jnp.ones((2, 3)))", ValueError, "Number of einsum subscripts, 2, must be equal"),
    ("jnp.einsum('ijk->i', jnp.ones((2, 3)))", ValueError, "does not contain the correct number of indices"),
    ("jnp.array('hello')", TypeError, "not a valid Anima array type"),
    ("jnp.array([object()])", TypeError, "not a valid Anima array type"),
    ("jnp.array([[1, 2], [3]])", ValueError, "inhomogeneous shape"),
    ("jnp.array(2**40)", OverflowError, "too large to convert to int32"),
    *((f"jnp.array({values}, '{dtype}')", OverflowError, f"too large to convert to {dtype}") for values, dtype in [
        ("([0, 1], [300, 2])", "uint8"), ("[0, -1]", "uint8"), ("[127, 128]", "int8"), ("[-129, 0]", "int8"),
        ("[2**40]", "int32"), ("[[1], [-2**40]]", "int32")]),
    ("jnp.array([1, 2**40])", OverflowError, "too large to convert to int32"),
    ("jnp.int32(1) + 2**40", OverflowError, "too large to convert to int32"),
    *((call, OverflowError, "too large") for call in [
        "jnp.int32(3) * 2**33", "jnp.arange(3, dtype='uint32') * 2**32", "jnp.arange(3, dtype='int32') < 2**33",
        "jnp.full(3, 2**33, 'int32')"]),
    *((f"jnp.{call}, axis=1)", ValueError, "axis 1 is out of bounds") for call in [
        "linspace(0, 1, 1", "linspace(0, 1, 0", "logspace(0, 1, 1", "geomspace(1, 2, 0"]),
    *((f"jnp.pad(jnp.zeros(0), 1, '{mode}')", ValueError, "can't extend empty axis 0") for mode in [
        "mean", "median", "maximum", "linear_ramp", "wrap"]),
    ("~jnp.ones(2)", TypeError, "not does not accept dtype float32"),
    ("jnp.power(jnp.arange(3), -1)", TypeError, "Integers cannot be raised to negative powers"),
    ("jnp.zeros(3, dtype='floot32')", TypeError, "data type 'floot32' not understood"),
    ("jnp.sum(jnp.ones(3), out=np.zeros(()))", NotImplementedError, "The 'out' argument"),
    ("jnp.ones((2, 3))[0, 0, 0]", IndexError, "Too many indices: array is 2-dimensional, but 3 were indexed"),
    ("jnp.ones((2, 3))[..., ...]", IndexError, "an index can only have a single ellipsis"),
    ("jnp.arange(3)[1.5]", TypeError, "Indexer must have integer or boolean type, got indexer with type float64"),
    ("jnp.arange(3)['a']", TypeError, "Anima does not support string indexing; got idx='a'"),
    ("jnp.arange(3)[[0, 1]]", TypeError, "Using a non-tuple sequence for multidimensional indexing is not allowed"),
    ("jnp.arange(3)[{}]", IndexError, "only integers, slices"),
    ("jnp.arange(3)[1:2.5]", TypeError, "'float' object cannot be interpreted as an integer"),
    ("jnp.arange(3)[::0]", ValueError, "slice step cannot be zero"),
    ("jnp.zeros((0, 3))[0]", IndexError, "out of bounds for axis 0 with size 0"),
    ("jnp.zeros((0, 3)).at[0].set(1)", IndexError, "out of bounds for axis 0 with size 0"),
    ("jnp.zeros((2, 3))[:, 'a']", TypeError, "Anima does not support string indexing; got idx='a'"),
    ("jnp.arange(3)[jnp.array([True, False])]", IndexError, "boolean index did not match shape of indexed array"),
    ("jnp.zeros((2, 3)).at[0].set(jnp.ones(4))", ValueError, "input type=float32[4] and requested type=float32[3]"),
    ("jnp.arange(3).at[jnp.array([5])].get(mode='nope')", ValueError, 'Unknown gather mode "nope"'),
    ("jnp.arange(3).item()", ValueError, "can only convert an array of size 1 to a Python scalar"),
    ("jnp.put(jnp.arange(3), 0, 1)", ValueError, "pass inplace=False"),
    ("jnp.vectorize(lambda x: x, signature='(a->b')(jnp.ones(3))", ValueError, "not a valid gufunc signature: (a->b"),
    ("jnp.vectorize(lambda x, y: x, signature='(n),(n)->(n)')(jnp.ones(3), jnp.ones(4))", ValueError,
     "inconsistent size for core dimension 'n': 4 vs 3"),
    ("jnp.fromiter(range(3), int)", NotImplementedError, "it may be non-pure"),
    ("jnp.no_such_function", AttributeError, "no attribute 'no_such_function'"),
]

X, V, S, I, C = jnp.ones((2, 3)), jnp.arange(3.0), jnp.float32(2), jnp.arange(3), jnp.ones(3, complex)
HERE = {**SCOPE, "X": X, "V": V, "S": S, "I": I, "C": C}
# By exception: a call, and a part of what it says.
REFUSED = {
    ValueError: [
        ("insert(V, jnp.array([True, False, True]), 1.)", "a mask is none"), ("insert(V, [0.5], 1.)", "a mask is none"),
        ("insert(V, [[1, 2]], 1.)", "one dimension of them"),
        ("ones((2, 3))[I, I[:2]]", "shape mismatch: indexing arrays could not be broadcast"),
        ("array(None)", "None is not a valid value"), ("asarray([1, None])", "None is not a valid value"),
        ("diff(V, -1)", "order must be non-negative but got -1"), ("diff(S)",
         "diff requires input that is at least one"),
        ("gradient(X[:1])", "Shape of array too small"), ("gradient(V, V[:2])", "distances must match the length"),
        ("gradient(V, X)", "distances must match the length"),
        ("interp(V, V, V[:2])", "one-dimensional arrays of equal size"),
        ("interp(V, X, X)", "one-dimensional arrays of equal size"),
        ("interp(C, V, V)", "places x and xp cannot be complex"), ("interp(V, C, V)", "cannot be complex"),
        ("interp(V, V, V, left='no')", "the only valid string value"),
        ("interp(V, V, V, right='no')", "the only valid string value"),
        ("interp(V, V, V, period=V)", "period must be a scalar"), ("unwrap(C)", "unwrap does not support complex"),
        ("convolve(X, V)", "convolve() only support 1-dimensional"), ("correlate(V, X)", "correlate() only support 1-"),
        ("convolve(V, V[:0])", "convolve: inputs cannot be empty"), ("convolve(V, V, 'no')", "mode must be one of"),
        ("array([jnp.ones(2), jnp.ones(3)])", "inhomogeneous shape"),
        ("asarray(np.ones(4, np.float32)[::2], copy=False)", "cannot make an array from this value without a copy"),
        ("full((2,), V)", "Incompatible shapes for broadcasting: (3,) and requested (2,)"),
        ("full((2, 3), jnp.ones((4, 1, 3)))", "Incompatible shapes for broadcasting: (4, 1, 3) and requested (2, 3)"),
        ("fft.fftn(V, s=(2, 2))", "must have at least as many input dimensions as fft_lengths (2, 2)"),
        ("concatenate(S)", "Zero-dimensional arrays cannot be concatenated."),
        ("delete(X, [True, False], axis=1)", "a mask of shape (2,) does not fit axis 1 of size 3"),
        ("diag(jnp.ones((2, 2, 2)))", "diag input must be 1d or 2d"),
        ("diagonal(V)", "diagonal requires an array of at least two dimensions"),
        ("fill_diagonal(V, 1, inplace=False)", "array must be at least 2-d"),
        ("fill_diagonal(jnp.ones((2, 3, 2)), 1, inplace=False)", "all dimensions of an array of more than two"),
        ("fill_diagonal(X, V[:0], inplace=False)", "there are no values to fill 2 places with"),
        ("put_along_axis(X, I, 1, 0, inplace=False)", "indices of as many dimensions as the array has"),
        ("polyder(X)", "the coefficients must be 1-dimensional"),
        ("diag_indices(-1)", "must be nonnegative, got -1 and 2"), ("diag_indices(1, -1)", "must be nonnegative"),
        ("diag_indices_from(X)", "All dimensions of input must be of equal length"),
        ("vander(X)", "x must be a one-dimensional array"), ("vander(V, -1)", "N must be nonnegative"),
        ("einsum('i;->i', V)", "Character ';' is not a valid symbol."),
        ("einsum('i->ii', V)", "Output character 'i' appeared more than once"),
        ("vectorize(lambda x: x, excluded={-1})", "contains negative numbers"),
        ("vectorize(lambda x: x, signature='(n)->(n)')(S)", "does not have enough dimensions"),
        ("vectorize(lambda x: x[0], signature='(n)->(n)')(V)", "does not match core dimensions ('n',)"),
        ("vectorize(lambda x: x[1:], signature='(n)->(n)')(V)", "inconsistent size for core dimension 'n': 2 vs 3"),
        ("vectorize(lambda x, y: x)(V, V[:2])", "vectorized function got incompatible shapes"),
        ("apply_over_axes(lambda x, axis: x[0, 0], X, 0)", "not returning an array of the correct shape"),
        ("clip()", "an array is required"), ("clip(C, 1)", "Clip received a complex value"),
        ("meshgrid(V, copy=False)", "only supports copy=True"), ("meshgrid(X)", "must be 0D or 1D"),
        ("meshgrid(V, indexing='no')", "Valid values for indexing are 'xy' and 'ij'"),
        ("ix_(X)", "must be 1-dimensional, got shape (2, 3)"), ("r_['r']", "need at least one array to concatenate"),
        ("r_[1, 'r']", "string directives must be the first entry"), ("packbits(I > 1, bitorder='no')",
         "'little' or 'big'"),
        ("trace(V)", "requires an array of at least two dimensions"),
        ("linalg.solve(V, V)", "left hand array must be at least two dimensional"),
        ("linalg.solve(X[:, :2], S)", "right hand array must be at least one dimensional"),
        ("linalg.pinv(V)", "pinv requires arrays of at least two dimensions"),
        ("linalg.tensorsolve(jnp.ones((2, 3)), V[:2])", "Input arrays must have prod"),
        ("linalg.tensorinv(X, 1)", "equal products of sizes"),
        ("linalg.matrix_rank(X, rtol=1, tol=1)", "only one of tol or rtol"),
        ("linalg.cond(V)", "must be at least 2D"), ("linalg.cond(jnp.ones((0, 2)))", "must not be empty"),
        ("linalg.multi_dot([])", "multi_dot requires at least one array"),
        ("linalg.multi_dot([X, V, X])", "all arrays must be matrices, but the first and the last"),
        ("vecdot(S, V)", "at least one dimension"), ("vecdot(V, V[:2])", "axis -1 of the vecdot operands must match"),
        ("matvec(V, V)", "operands have too few dimensions"), ("vecmat(V, V)", "operands have too few dimensions"),
        ("matvec(X, V[:2])", "inconsistent size for core dimension: 3 vs 2"),
        ("vecmat(V, X)", "inconsistent size for core dimension: 3 vs 2"),
        ("tensordot(X, X, -1)", "must be non-negative, got -1"), ("cross(jnp.ones(4), V)", "must be either 2 or 3"),
        ("moveaxis(X, (0, 1), 0)", "Inconsistent number of elements: 2 vs 1"),
        ("rot90(X, axes=(0,))", "len(axes) must be 2."), ("rot90(X, axes=(0, -2))", "Axes must be different"),
        ("stack(S)", "got a scalar; expected a sequence"),
        ("stack([])", "Need at least one array to stack."), ("stack([V, X])",
         "All input arrays must have the same shape. Got (3,), (2, 3)."),
        ("block([])", "a list at this depth is empty"), ("block([[V], V])", "list depths are mismatched"),
        ("unstack(S)", "Unstack requires arrays with rank > 0"), ("resize(V, (-1,))", "must be non-negative"),
        ("roll(X, (1, 2), (0, 1, 1))", "should be scalars or 1D sequences of one length"),
        ("float32(1).view('float16')", "view() of a 0d array"), ("ones(3, 'int8').view('int16')", "must be a divisor"),
        ("zeros(2).__array_namespace__(api_version='1999')", "does not provide array API version '1999'"),
        ("pad(V, -1)", "index can't contain negative values"), ("pad(V[:0], 1, 'edge')", "can't extend empty axis 0"),
        ("pad(V, 1, 'edge', constant_values=1)", "unsupported keyword arguments for mode 'edge': ['constant_values']"),
        ("pad(V, 1, 'reflect', reflect_type='no')", "unsupported reflect_type 'no'"),
        ("pad(V, 1, 'mean', stat_length=0)", "stat_length of 0 yields no value"),
        ("polyval(S, V)", "p must have at least one dimension"),
        ("polyadd(S, V)", "polyadd: coefficients stand along the first axis"),
        ("polysub(V, S)", "polysub: coefficients stand along the first axis"),
        ("polyder(V, -1)", "Order of derivative must be positive"),
        ("polyint(V, -1)", "Order of integral must be positive"), ("polyint(V, 2, V)",
         "k must be a scalar or a rank-1"),
        ("poly(X)", "input must be 1d or non-empty square 2d array."), ("roots(X)", "Input must be a rank-1 array."),
        ("polyfit(V, V, -1)", "expected deg >= 0"), ("polyfit(V, V, 2, cov=True)", "must exceed order to scale"),
        ("sum(V, where=X > 0)", "where of shape (2, 3) cannot be broadcast to (3,)"),
        ("max(V, where=V > 0)", "does not have an identity, so to use a where mask"),
        ("std(V, dtype=int)", "dtype argument to std must be inexact"),
        ("var(V, ddof=1, correction=1)", "ddof and correction can't be provided simultaneously."),
        ("var(C, dtype='float32')", "does not yet support real dtype parameters"),
        ("cumulative_sum(S)", "The input must be non-scalar"), ("cumulative_sum(X)", "The input array has rank 2"),
        ("where(V > 0, V, V, size=2)", "cannot be used in three-term where"),
        ("where(V > 0, V, V, fill_value=2)", "cannot be used in three-term where"),
        ("select([V > 0], [])", "condlist must have length equal to choicelist (1 vs 0)"),
        ("select([], [])", "condlist must be non-empty"), ("choose(V, [V])", "`a` array must be integer typed"),
        ("choose(I, [V, V])", "invalid entry in choice array"), ("choose(I - 1, [V, V])", "invalid entry in choice"),
        ("choose(I, [V], mode='no')", "mode='no' not understood"), ("nonzero(S)", "Calling nonzero on 0d arrays"),
        ("nonzero(X, size=1, fill_value=(1, 2, 3))", "fill_value tuple must have length 2, got 3"),
        ("compress(X > 0, V)", "condition must be a 1D array"),
        ("compress(jnp.ones(4, bool), V)", "condition contains entries that are out of bounds"),
        ("take(V, 0, mode='no')", "Invalid mode 'no' for np.take"),
        ("take_along_axis(V, X.astype(int), None)", "must be 1D if axis=None, got shape (2, 3)"),
        ("take_along_axis(X, I, 0)", "must have the same number of dimensions; 1 vs. 2"),
        ("place(V, X > 0, V, inplace=False)", "must be the same size"), ("place(V, V > 0, V)", "pass inplace=False"),
        ("place(V, V > 0, V[:0], inplace=False)", "Cannot place values from an empty array"),
        ("put(V, I, V, mode='no', inplace=False)", "mode should be one of 'wrap' or 'clip'"),
        ("put_along_axis(V, I, V, 0)", "pass inplace=False"), ("ravel(X, order=None)", "order=None"),
        ("repeat(V, X.astype(int))", "repeats must be a scalar or 1D, got shape (2, 3)"),
        ("repeat(V, -1)", "repeats may not contain negative values."),
        ("repeat(V, I[:2])", "repeats has 2 entries, but axis 0 has size 3"),
        ("ravel_multi_index((I,), (3, 3))", "len(multi_index)=1 != len(dims)=2"),
        ("ravel_multi_index((I,), (3,), order='K')", "invalid order='K'"),
        ("ravel_multi_index((I,), (2,))", "invalid entry in coordinates array"),
        ("ravel_multi_index((I,), (3,), mode='no')", "invalid mode='no'"),
        ("isin(V, V, method='no')", "isin: method must be"), ("lexsort([V, V[:2]])",
         "all keys need to be the same shape"),
        ("searchsorted(V, V, side='no')", "invalid value for keyword 'side'"),
        ("searchsorted(V, V, method='no')", "invalid value for keyword 'method'"),
        ("searchsorted(X, V)", "a should be 1-dimensional"), ("digitize(V, X)", "bins must be a 1-dimensional array"),
        ("quantile(V, 0.5, method='no')", "method can only be one of"), ("quantile(V[:0], 0.5)", "of an empty axis"),
        ("quantile(C, 0.5)", "quantile does not support complex input"), ("median(V, overwrite_input=True)",
         "immutable"),
        ("quantile(V, 0.5, overwrite_input=True)", "arrays are immutable"),
        ("cov(jnp.ones((1, 1, 1)))", "more than 2 dimensions"), ("bincount(X.astype(int))", "only 1-dimensional input"),
        ("histogram(V, weights=V[:2])", "weights should have the same shape as a."),
        ("histogramdd(V)", "sample should be a 2D array"), ("histogramdd(X, bins=[1, 2])", "a bin for each dimension"),
        ("histogramdd(X, range=[(0, 1)])", "range must be a sequence of length 3"),
        ("frompyfunc(lambda x: x, 0, 1)", "nin and nout must be positive; got 0, 1"),
        ("frompyfunc(lambda x: x, 1, 1).reduce(V)", "reduce only supported for functions with nin=2"),
        ("frompyfunc(lambda x, y: x, 2, 1).reduce(V[:0])", "which has no identity"),
        ("frompyfunc(lambda x, y: x, 2, 1).reduce(V, where=V > 0)", "one has to specify 'initial'"),
        ("ldexp(C, I)", "ldexp not supported for input types ('complex64', 'int32')"),
        ("gcd(V, I)", "Arguments to anima.numpy.gcd must be integers."),
        ("ldexp(V, V)", "ldexp not supported for input types ('float32', 'float32')"),
        ("eye(2, -1)", "negative dimensions"),
        ("take(V, 0.5)", "take requires integer indices, got dtype float32"),
        ("where(V > 0, X[:, :2], 0)", "Incompatible shapes for broadcasting: shapes=[("),
        ("select([V > 0], [X[:, :2]])", "Incompatible shapes for broadcasting: shapes=[("),
        ("delete(V, [True])", "delete: a mask of shape (1,) does not fit axis 0 of size "),
        ("diag_indices_from(V)", "the array must be at least 2-d"),
        ("eye(-2)", "negative dimensions are not allowed"),
    ],
    TypeError: [
        ("where(V > 0, V)", "got <class 'NoneType'> at position 2"),
        ("where(V > 0, None, V)", "got <class 'NoneType'> at position 1"),
        ("gradient(X, 1.0, 2.0, 3.0)", "Invalid number of spacing arguments 3 for axes=(0, 1)"),
        ("array(1j, 'float32')", "take its real part first"), ("array([1j, 2], 'float32')", "take its real part first"),
        ("array([np.float32(1), np.datetime64('2020-01-01')])", "with dtype datetime64[D] is not a valid Anima array"),
        ("array([np.datetime64('2020-01-01')], 'float32')", "with dtype datetime64[D] is not a valid Anima array"),
        ("array([np.array(2, object)], 'float32')", "with dtype object is not a valid Anima array"),
        ("array([1, 'a'])", "not a valid Anima array type"), ("array([jnp.ones(1), 'a'])",
         "not a valid Anima array type"),
        ("isnan(anima.random.key(0))", "isnan does not accept dtype key"),
        ("vectorize(lambda x: x, excluded={1.5})", "can exclude only integers and strings"),
        ("vectorize(lambda x: x, signature='(n),(n)->(n)')(V)", "wrong number of arguments: expected 2, got 1"),
        ("vectorize(lambda x: (x, x), signature='(n)->(n)')(V)", "wrong number of outputs: expected 1, got 2"),
        ("linalg.lstsq(V, V)", "1-dimensional array given. Array must be two-dimensional"),
        ("linalg.matrix_power(V, 2)", "Array must be at least two-dimensional"),
        ("linalg.matrix_power(X[:, :2], 0.5)", "exponent must be an integer, got 0.5"),
        ("tensordot(X, X, ([0], [0], [0]))", "both axes lists to be either ints, tuples or lists of equal length"),
        ("tensordot(X, X, ([0, 1], [0]))", "tensordot requires axes lists to have equal length, got [0, 1] and [0]."),
        ("tensordot(X, X, 3)", "(axes 3) exceeds input ranks ((2, 3) and (2, 3))"),
        ("stack(iter([V]))", "stack requires a sequence of arrays"), ("block((V, V))", "use lists, not tuples"),
        ("pad(V, 1.5)", "`pad_width` must be of integral type."),
        ("polyfit(X, V, 1)", "expected 1D vector for x"), ("polyfit(V[:0], V[:0], 1)",
         "expected non-empty vector for x"),
        ("polyfit(V, S, 1)", "expected 1D or 2D array for y"), ("polyfit(V, V[:2], 1)", "x and y to have same length"),
        ("polyfit(V, V, 1, w=X)", "expected a 1-d array for weights"),
        ("polyfit(V, V, 1, w=V[:2])", "expected w and y to have the same length"),
        ("take_along_axis(V, V, 0)", "take_along_axis indices must be of integer type, got float32"),
        ("unravel_index(1j, (2,))", "unravel_index requires indices that are numbers, got dtype complex64"),
        ("ravel_multi_index((V,), (3,))", "only int indices permitted"), ("bincount(V)", "must have an integer type"),
        ("ediff1d(V > 0)", "bools have no differences"),
        ("sort(V, kind='stable')", "'kind' argument to sort is not supported"),
        ("argsort(V, order='a')", "'order' argument to argsort is not supported"),
        ("lexsort([])", "need sequence of keys with len > 0 in lexsort"),
        ("cov(V, fweights=V)", "fweights must be integer."), ("unpackbits(I)", "unsigned byte data type"),
    ],
    RuntimeError: [
        ("cov(X, fweights=X.astype(int))", "cannot handle multidimensional fweights"),
        ("cov(X, aweights=X)", "cannot handle multidimensional aweights"),
        ("cov(X, aweights=V[:2])", "incompatible numbers of samples and aweights"),
    ],
    IndexError: [
        ("zeros((3, 0))[:, jnp.array([0])]", "index is out of bounds for axis 1 with size 0"),
        ("insert(V, 4, 1)", "out of bounds for axis 0 with size 3"), ("insert(V, -4, 1)", "out of bounds for axis 0"),
        ("delete(V, 3)", "index 3 is out of bounds for axis 0 with size 3"), ("delete(V, -4)", "index -4 is out of"),
        ("delete(V, [0, 3])", "is out of bounds for axis 0"),
        ("delete(V, [0.5])", "must be of integer (or boolean) type"),
    ],
    NotImplementedError: [
        ("gradient(V, edge_order=2)", "The 'edge_order' argument"), ("array(V, order='F')", "array supports only"),
        ("copy(V, order='F')", "copy supports only order"), ("round(I, -1)", "not implemented for decimals < 0"),
        ("fill_diagonal(X, 1, wrap=True, inplace=False)", "wrap=True is not implemented"),
        ("fill_diagonal(X, 1)", "pass inplace=False"),
        ("reshape(X, (6,), order='K')", "order='K' is not implemented"), ("ravel(X, order='K')",
         "not implemented for ord"),
        ("zeros(2).view('int32', type=np.ndarray)", "`type` argument of array.view()"),
        ("zeros(2).byteswap(inplace=True)", "byteswap(inplace=True): arrays are immutable."),
        ("pad(V, 1, 'no')", "Unimplemented padding mode 'no' for np.pad."),
        ("quantile(V, 0.5, weights=V)", "method 'linear' does not support weights"),
        ("take(V, 0, mode='raise')", "The 'raise' mode to anima.numpy.take"),
        ("put(V, 0, 1, mode='raise', inplace=False)", "The 'raise' mode to anima.numpy.put"),
        ("partition(C, 1)", "partition for complex dtype is not implemented"),
        ("histogram(V, 'auto')", "string values for `bins` not implemented."),
        ("add(V, V, where=V > 0)", "where argument of"), ("add.at(V, 0, 1)", "pass inplace=False"),
    ],
    ZeroDivisionError: [("arange(0, 5, 0)", "step must not be zero"), ("polydiv(V, V[:0])", "division by an empty")],
}

TRACED = [
    ("lambda x: x[x > 0]", (3,), NonConcreteBooleanIndexError, "Array boolean indices must be concrete"),
    ("lambda x: x.at[x > 0].set(0)", (3,), NonConcreteBooleanIndexError, "Array boolean indices must be concrete"),
    ("lambda n: jnp.arange(3)[:n]", (), IndexError, "Slice entries must be static integers"),
    ("jnp.nonzero", (3,), ConcretizationTypeError, "The size argument of anima.numpy.nonzero must be static"),
    ("jnp.unique", (3,), ConcretizationTypeError, "specify a concrete value for the size argument"),
    ("lambda n: jnp.zeros(n)", (), TypeError, "concrete values of integer type, got (Traced<"),
    ("lambda n: jnp.ones(3).reshape(n)", (), TypeError, "try using `static_argnums` or applying `jit`"),
    ("lambda n: jnp.arange(n)", (), ConcretizationTypeError, "arange argument 'stop'"),
    ("lambda n: jnp.linspace(0, 1, n)", (), ConcretizationTypeError, "'num' argument"),
    ("lambda x: jnp.repeat(x, x)", (3,), ConcretizationTypeError, "the total number of repeats must be static"),
    ("lambda x: x.item()", (), ConcretizationTypeError, "item() method"),
    ("lambda x: jnp.array([x, [1, 2]])", (), ValueError, "The detected shape was (2,) + inhomogeneous part."),
    ("lambda a: jnp.frompyfunc(lambda x, y: x, 2, 1).reduce(jnp.ones(3), axis=a)", (), ConcretizationTypeError,
     "It arose in the axis argument."),
]


@pytest.mark.parametrize(("code", "error", "text"), CASES, ids=[c[0] for c in CASES])
def test_error(code, error, text):
    with pytest.raises(error) as caught:
        eval(code, SCOPE)
    assert text in str(caught.value)


@pytest.mark.parametrize(("error", "code", "text"), [(e, *case) for e, cases in REFUSED.items() for case in cases])
def test_refused(error, code, text):
    with pytest.raises(error) as caught:
        pytest.fail(f"no error, but {eval(f'jnp.{code}', HERE)}")
    assert text in str(caught.value)


@pytest.mark.parametrize(("code", "shape", "error", "text"), TRACED, ids=[c[0] for c in TRACED])
def test_error_while_tracing(code, shape, error, text):
    with pytest.raises(error) as caught:
        anima.make_jaxpr(eval(code, SCOPE))(jnp.ones(shape, int))
    assert text in str(caught.value)


def test_64_bit_types_warn_when_truncated():
    with pytest.warns(UserWarning, match="Explicitly requested dtype float64 requested in zeros is not available"):
        assert jnp.zeros(3, dtype="float64").dtype == np.float32


def test_rank_promotion_can_be_refused():
    with anima.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="add on shapes"):
        jnp.ones(3) + jnp.ones((2, 3))
    with anima.numpy_rank_promotion("warn"), pytest.warns(UserWarning, match="rank promotion"):
        jnp.ones(3) + jnp.ones((2, 3))


def test_a_complex_number_does_not_fill_real_arrays() -> None:
    for call in (lambda: jnp.full(2, 1j, dtype=int), lambda: jnp.full_like(jnp.zeros(2), 1j)):
        with pytest.raises(TypeError, match="take its real part first"):
            call()


def test_axes_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="axis 1 is out of bounds"):
        jnp.transpose(jnp.ones(3), (1, 0))
    with pytest.raises(IndexError, match="no elements"):
        jnp.add.reduceat(jnp.zeros(0), jnp.array([0]))


def test_paths_of_contractions_are_pairs() -> None:
    path, text = jnp.einsum_path("ij,jk", jnp.ones((2, 3)), jnp.ones((3, 2)))
    assert path == [(0, 1)] and "scaling" in str(text)


def test_orders_that_are_no_permutations() -> None:
    for call in (lambda: jnp.permute_dims(jnp.ones(3), (1, 0)), lambda: jnp.transpose(jnp.ones((2, 2)), (0, 0))):
        with pytest.raises(TypeError, match="isn't a permutation"):
            call()


def test_an_array_is_no_dtype() -> None:
    x, y = jnp.ones(3), jnp.arange(3)
    for call in (lambda: jnp.hstack(x, y), lambda: jnp.zeros_like(x, y), lambda: jnp.ones(3, y), lambda: x.astype(y),
                 lambda: anima.lax.convert_element_type(x, y), lambda: anima.jit(lambda t: jnp.ones(3, t))(y)):
        with pytest.raises(ValueError, match="array was passed as a dtype"):
            call()
    assert jnp.promote_types(x, y) == jnp.finfo(x).dtype == np.float32
    assert jnp.ones_like(x, anima.ShapeDtypeStruct((), jnp.int32)).dtype == np.int32


def test_numbers_are_not_concatenated() -> None:
    for x in (jnp.arange(3), np.arange(3)):
        with pytest.raises(ValueError, match="Zero-dimensional"):
            jnp.concatenate(x)
        assert jnp.concatenate(x, axis=None).shape == (3,)
    assert jnp.concatenate(jnp.ones((2, 3)), dtype=int).dtype == np.int32


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "any", "nanmean", "nanstd", "nansum"])
def test_masks_of_reductions_are_bools(name) -> None:
    with pytest.raises(ValueError, match="boolean"):
        getattr(jnp, name)(jnp.ones(3), where=jnp.array([1, 0, 1]))
    with pytest.raises(ValueError, match="boolean"):
        jnp.logaddexp2.reduce(jnp.ones(3), where=jnp.array([1, 0, 1]), initial=0)


def test_a_mean_is_no_bool() -> None:
    with pytest.raises(TypeError, match="mean does not accept dtype bool"):
        jnp.mean(jnp.ones(3), dtype=bool)


def test_a_traced_axis_of_a_reduction() -> None:
    for call in (lambda x, i: x.min(i), lambda x, i: jnp.sum(x, axis=i), lambda x, i: jnp.mean(x, i)):
        with pytest.raises(anima.errors.ConcretizationTypeError):
            anima.jit(call)(jnp.arange(4), 0)
