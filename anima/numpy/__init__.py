"""NumPy's functions on Anima arrays: promoted as JAX promotes, recorded, transformed and compiled like the rest.

    >>> import anima.numpy as jnp
    >>> jnp.sum(jnp.arange(4.0) ** 2)
    Array(14., dtype=float32)

Lists and tuples are not taken for arrays: `jnp.array` makes them so. Values out of bounds do not raise:
reading gives the nearest element (`take`: NaN), writing does nothing.
"""

from __future__ import annotations

import sys

from anima.core.array import Array as ndarray
from anima.numpy import operators as _operators
from anima.numpy.calculus import (
    convolve, correlate, diff, ediff1d, gradient, interp, trapezoid, unwrap,
)
from anima.numpy.creation import (
    arange, array, asarray, astype, copy, empty, empty_like, eye, from_dlpack, frombuffer, fromfunction,
    fromstring, full, full_like, geomspace, identity, linspace, logspace, ones, ones_like, tri, tril, triu,
    zeros, zeros_like,
)
from anima.numpy.diagonals import (
    diag, diag_indices, diag_indices_from, diagflat, diagonal, fill_diagonal, mask_indices, trace,
    tril_indices, tril_indices_from, triu_indices, triu_indices_from, vander,
)
from anima.numpy.einsum import (
    einsum, einsum_path,
)
from anima.numpy.elementwise import (
    abs, absolute, allclose, angle, arctan2, atan2, bitwise_count, bitwise_invert, bitwise_left_shift,
    bitwise_not, bitwise_right_shift, conj, conjugate, copysign, divide, divmod, equal, fabs, float_power,
    floor_divide, fmax, fmin, fmod, greater, greater_equal, imag, invert, isclose, isfinite, isinf, isnan,
    isneginf, isposinf, left_shift, less, less_equal, logical_not, mod, nextafter, not_equal, positive, pow,
    power, real, reciprocal, remainder, right_shift, sign, signbit, square, true_divide,
)
from anima.numpy.files import (
    array_repr, array_str, fromfile, fromiter, get_printoptions, load, printoptions, save, savez,
    set_printoptions,
)
from anima.numpy.functional import (
    apply_along_axis, apply_over_axes, gcd, lcm, piecewise, vectorize,
)
from anima.numpy.functions import (
    acos, acosh, arccos, arccosh, arcsin, arcsinh, arctan, arctanh, around, asin, asinh, atan, atanh, cbrt,
    ceil, clip, cos, cosh, deg2rad, degrees, exp, exp2, expm1, floor, frexp, heaviside, hypot, i0, ldexp,
    log, log10, log1p, log2, modf, nan_to_num, rad2deg, radians, rint, round, sin, sinc, sinh, spacing,
    sqrt, tan, tanh, trunc,
)
from anima.numpy.grids import (
    bartlett, blackman, c_, hamming, hanning, index_exp, indices, ix_, kaiser, meshgrid, mgrid, ogrid,
    packbits, r_, s_, unpackbits,
)
from anima.numpy.linear import (
    cross, dot, inner, kron, matmul, matvec, outer, tensordot, vdot, vecdot, vecmat,
)
from anima.numpy.manipulation import (
    append, array_split, atleast_1d, atleast_2d, atleast_3d, block, broadcast_arrays, broadcast_shapes,
    broadcast_to, column_stack, concat, concatenate, dsplit, dstack, expand_dims, flip, fliplr, flipud,
    hsplit, hstack, iterable, matrix_transpose, moveaxis, ndim, permute_dims, ravel, reshape, resize, roll,
    rollaxis, rot90, shape, size, split, squeeze, stack, swapaxes, tile, transpose, unstack, vsplit, vstack,
)
from anima.numpy.padding import (
    pad,
)
from anima.numpy.polynomial import (
    poly, polyadd, polyder, polydiv, polyint, polymul, polysub, polyval, trim_zeros,
)
from anima.numpy.reductions import (
    all, amax, amin, any, argmax, argmin, average, count_nonzero, cumprod, cumsum, cumulative_prod,
    cumulative_sum, max, mean, min, nanargmax, nanargmin, nancumprod, nancumsum, nanmax, nanmean, nanmin,
    nanprod, nanstd, nansum, nanvar, prod, ptp, std, sum, var,
)
from anima.numpy.scalar_types import (
    ComplexWarning, bfloat16, bool_, can_cast, cdouble, character, complex128, complex64, complex_,
    complexfloating, csingle, double, dtype, e, euler_gamma, finfo, flexible, float16, float32,
    float4_e2m1fn, float64, float8_e3m4, float8_e4m3, float8_e4m3b11fnuz, float8_e4m3fn, float8_e4m3fnuz,
    float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu, float_, floating, generic, iinfo, inexact, inf, int1,
    int16, int2, int32, int4, int64, int8, int_, integer, isdtype, isscalar, issubdtype, nan, newaxis,
    number, object_, pi, promote_types, result_type, signedinteger, single, uint, uint1, uint16, uint2,
    uint32, uint4, uint64, uint8, unsignedinteger,
)
from anima.numpy.selection import (
    argwhere, choose, compress, delete, extract, flatnonzero, insert, nonzero, place, put, put_along_axis,
    ravel_multi_index, repeat, select, take, take_along_axis, unravel_index, where,
)
from anima.numpy.sets import (
    array_equal, array_equiv, intersect1d, iscomplex, iscomplexobj, isin, isreal, isrealobj, setdiff1d,
    setxor1d, union1d, unique, unique_all, unique_counts, unique_inverse, unique_values,
)
from anima.numpy.sorting import (
    argpartition, argsort, digitize, lexsort, partition, searchsorted, sort, sort_complex,
)
from anima.numpy.stats import (
    bincount, corrcoef, cov, histogram, histogram2d, histogram_bin_edges, histogramdd, median, nanmedian,
    nanpercentile, nanquantile, percentile, quantile,
)
from anima.numpy.ufuncs import (
    add, bitwise_and, bitwise_or, bitwise_xor, frompyfunc, logaddexp, logaddexp2, logical_and, logical_or,
    logical_xor, maximum, minimum, multiply, negative, subtract, ufunc,
)
from anima.numpy.scalar_types import bool_ as bool

_operators.install(lambda: sys.modules[__name__])

__all__ = [
    "ComplexWarning", "abs", "absolute", "acos", "acosh", "add", "all", "allclose", "amax", "amin", "angle",
    "any", "append", "apply_along_axis", "apply_over_axes", "arange", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argpartition", "argsort", "argwhere",
    "around", "array", "array_equal", "array_equiv", "array_repr", "array_split", "array_str", "asarray",
    "asin", "asinh", "astype", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d",
    "average", "bartlett", "bfloat16", "bincount", "bitwise_and", "bitwise_count", "bitwise_invert",
    "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "blackman",
    "block", "bool", "bool_", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "c_", "can_cast",
    "cbrt", "cdouble", "ceil", "character", "choose", "clip", "column_stack", "complex128", "complex64",
    "complex_", "complexfloating", "compress", "concat", "concatenate", "conj", "conjugate", "convolve",
    "copy", "copysign", "corrcoef", "correlate", "cos", "cosh", "count_nonzero", "cov", "cross", "csingle",
    "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "deg2rad", "degrees", "delete", "diag",
    "diag_indices", "diag_indices_from", "diagflat", "diagonal", "diff", "digitize", "divide", "divmod",
    "dot", "double", "dsplit", "dstack", "dtype", "e", "ediff1d", "einsum", "einsum_path", "empty",
    "empty_like", "equal", "euler_gamma", "exp", "exp2", "expand_dims", "expm1", "extract", "eye", "fabs",
    "fill_diagonal", "finfo", "flatnonzero", "flexible", "flip", "fliplr", "flipud", "float16", "float32",
    "float4_e2m1fn", "float64", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float_", "float_power",
    "floating", "floor", "floor_divide", "fmax", "fmin", "fmod", "frexp", "from_dlpack", "frombuffer",
    "fromfile", "fromfunction", "fromiter", "frompyfunc", "fromstring", "full", "full_like", "gcd",
    "generic", "geomspace", "get_printoptions", "gradient", "greater", "greater_equal", "hamming",
    "hanning", "heaviside", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd", "hsplit",
    "hstack", "hypot", "i0", "identity", "iinfo", "imag", "index_exp", "indices", "inexact", "inf", "inner",
    "insert", "int1", "int16", "int2", "int32", "int4", "int64", "int8", "int_", "integer", "interp",
    "intersect1d", "invert", "isclose", "iscomplex", "iscomplexobj", "isdtype", "isfinite", "isin", "isinf",
    "isnan", "isneginf", "isposinf", "isreal", "isrealobj", "isscalar", "issubdtype", "iterable", "ix_",
    "kaiser", "kron", "lcm", "ldexp", "left_shift", "less", "less_equal", "lexsort", "linspace", "load",
    "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logspace", "mask_indices", "matmul", "matrix_transpose", "matvec", "max", "maximum",
    "mean", "median", "meshgrid", "mgrid", "min", "minimum", "mod", "modf", "moveaxis", "multiply", "nan",
    "nan_to_num", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian",
    "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "ndarray", "ndim",
    "negative", "newaxis", "nextafter", "nonzero", "not_equal", "number", "object_", "ogrid", "ones",
    "ones_like", "outer", "packbits", "pad", "partition", "percentile", "permute_dims", "pi", "piecewise",
    "place", "poly", "polyadd", "polyder", "polydiv", "polyint", "polymul", "polysub", "polyval",
    "positive", "pow", "power", "printoptions", "prod", "promote_types", "ptp", "put", "put_along_axis",
    "quantile", "r_", "rad2deg", "radians", "ravel", "ravel_multi_index", "real", "reciprocal", "remainder",
    "repeat", "reshape", "resize", "result_type", "right_shift", "rint", "roll", "rollaxis", "rot90",
    "round", "s_", "save", "savez", "searchsorted", "select", "set_printoptions", "setdiff1d", "setxor1d",
    "shape", "sign", "signbit", "signedinteger", "sin", "sinc", "single", "sinh", "size", "sort",
    "sort_complex", "spacing", "split", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum",
    "swapaxes", "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "trace", "transpose",
    "trapezoid", "tri", "tril", "tril_indices", "tril_indices_from", "trim_zeros", "triu", "triu_indices",
    "triu_indices_from", "true_divide", "trunc", "ufunc", "uint", "uint1", "uint16", "uint2", "uint32",
    "uint4", "uint64", "uint8", "union1d", "unique", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "unpackbits", "unravel_index", "unsignedinteger", "unstack", "unwrap", "vander", "var",
    "vdot", "vecdot", "vecmat", "vectorize", "vsplit", "vstack", "where", "zeros", "zeros_like"]
