"""The primitives that an exported program may consist of, and of what kind their parameters are: a closed table.

    kinds_of("reduce_sum") == {"axes": "ints"}        PRIMITIVES["reduce_sum"] is the primitive

Operations that stand for a program of others (calls, functions with rules of their own, random bits, `tile`) are not
in it: their programs are written in their place. A name, once here, keeps its meaning, so that later versions read it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from anima.api import pjit
from anima.control import cond, elimination, scan, similar, tape, while_loop
from anima.core import dtypes
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive
from anima.ops import (
    broadcast,
    contract,
    convolution,
    elementwise,
    family,
    fft,
    formula,
    gather,
    index,
    linalg,
    linalg_factor,
    linalg_reflect,
    linalg_spectral,
    linalg_systems,
    reduce,
    shape,
    sort,
    sparse,
    special,
    threefry,
    window,
)
from anima.random import primitives as random
from anima.random.implementation import Implementation
from anima.transforms import checkpoint

_WINDOW = "base_dilation:sizes padding:pairs window_dilation:sizes window_dimensions:sizes window_strides:sizes"
_SCATTER = ("dimension_numbers:ScatterDimensionNumbers indices_are_sorted:bool mode:GatherScatterMode "
            "unique_indices:bool")
_WHILE = "body_jaxpr:program body_nconsts:count cond_jaxpr:program cond_nconsts:count"

# Parameters and their kinds -> the primitives that have them.
_TABLE = {
    "": """abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e beta betaln cbrt ceil
        clamp clz complex copy cos cosh cosine_integral dawsn digamma div erf erf_inv erfc erfcx exp exp2 expi expm1
        expn floor fresnel_cosine fresnel_sine gamma hyp1f1 hyp2f1 igamma igamma_grad_a igammac imag is_finite lgamma
        log log1p log_ndtr logistic max min mul mulhi ndtr ndtri neg nextafter not optimization_barrier or owens_t poch
        polygamma population_count pow random_gamma_grad real regularized_incomplete_beta rem rsqrt shift_left
        shift_right_arithmetic shift_right_logical sign sin sine_integral sinh spence sqrt square stop_gradient sub tan
        tanh xor zeta eq ne ge gt le lt select_n dynamic_update_slice threefry2x32 householder_product geqrf
        cholesky cholesky_update lu hessenberg random_unwrap row_product""",
    "y:int": "integer_pow",
    "exponent_bits:count mantissa_bits:count": "reduce_precision",
    "rounding_method:RoundingMethod": "round",
    "input_dtype:dtype": "conj",
    "new_dtype:dtype weak_type:bool": "convert_element_type",
    "new_dtype:dtype": "bitcast_convert_type",
    "dimension:count dtype:dtype shape:sizes": "iota",
    "broadcast_dimensions:sizes shape:sizes": "broadcast_in_dim",
    "new_sizes:sizes dimensions:none": "reshape",
    "dimensions:sizes": "squeeze rev",
    "permutation:sizes": "transpose",
    "dimension:count": "concatenate",
    "padding_config:triples": "pad",
    "limit_indices:sizes start_indices:sizes strides:sizes?": "slice",
    "slice_sizes:sizes": "dynamic_slice",
    "axes:sizes": "reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor",
    "axes:sizes index_dtype:dtype": "argmax argmin",
    "axis:count reverse:bool": "cumsum cumprod cummax cummin cumlogsumexp",
    "dimension:count is_stable:bool num_keys:count": "sort",
    "axis:count k:count": "top_k",
    "dimension_numbers:GatherDimensionNumbers fill_value:number indices_are_sorted:bool mode:GatherScatterMode "
    "slice_sizes:sizes unique_indices:bool": "gather",
    _SCATTER: "scatter scatter-add scatter-mul scatter-min scatter-max",
    _WINDOW: "reduce_window_sum reduce_window_max reduce_window_min",
    f"{_WINDOW} select_prim:comparison": "select_and_gather_add select_and_scatter_add",
    "dimension_numbers:contraction precision:precision preferred_element_type:dtype?": "dot_general",
    "batch_group_count:count dimension_numbers:ConvDimensionNumbers feature_group_count:count lhs_dilation:sizes "
    "padding:pairs precision:precision preferred_element_type:dtype? rhs_dilation:sizes window_strides:sizes":
        "conv_general_dilated",
    "fft_lengths:sizes fft_type:FftType": "fft",
    "name:text": "name",
    "impl:generator": "random_wrap",
    "alpha:real beta:real": "symmetric_product",
    "conjugate_a:bool left_side:bool lower:bool transpose_a:bool unit_diagonal:bool": "triangular_solve",
    "conjugate_a:bool transpose_a:bool": "lu_solve",
    "permutation_size:count": "lu_pivots_to_permutation",
    "full_matrices:bool pivoting:bool": "qr",
    "left:bool transpose:bool": "ormqr",
    "compute_left_eigenvectors:bool compute_right_eigenvectors:bool enable_eigvec_derivs:bool": "eig",
    "lower:bool sort_eigenvalues:bool": "eigh",
    "vectors:bool": "eigh_tridiagonal",
    "algorithm:SvdAlgorithm? compute_uv:bool full_matrices:bool": "svd",
    "compute_schur_vectors:bool select_callable:none sort_eig_vals:bool": "schur",
    "lower:bool": "tridiagonal",
    "transposed:bool": "sylvester",
    "perturb_singular:bool": "tridiagonal_solve",
    "inline:bool jaxpr:program name:text": "pjit",
    "branches:programs linear:bools": "cond",
    "jaxpr:program length:count linear:bools num_carry:count num_consts:count reverse:bool unroll:count": "scan",
    _WHILE: "while tape_while",
    "rows:count": "row_pointers",
    "entries:count": "row_numbers",
    "count:count sorted:bool": "entry_product",
    "jaxpr:program length:bools linear:bools num_carry:count num_consts:count reverse:bool unroll:count": "tape_scan",
}
_SCHEMAS = {name: dict(pair.split(":") for pair in kinds.split()) for kinds, names in _TABLE.items()
            for name in names.split()}

ENUMS: dict[str, type[enum.Enum]] = {e.__name__: e for e in (
    contract.Precision, fft.FftType, gather.GatherScatterMode,
    linalg_spectral.SvdAlgorithm, elementwise.RoundingMethod)}
RECORDS: dict[str, type[Any]] = {r.__name__: r for r in (
    convolution.ConvDimensionNumbers, gather.GatherDimensionNumbers,
    gather.ScatterDimensionNumbers)}

_MODULES = (broadcast, checkpoint, cond, contract, convolution, elementwise, elimination, family, fft, formula, gather,
            index, linalg, linalg_factor, linalg_reflect, linalg_spectral, linalg_systems, pjit, random, reduce, scan,
            shape, similar, sort, sparse, special, tape, threefry, while_loop, window)


def name_in_file(primitive: Primitive) -> str:
    """What files call an operation: calls are "pjit", whatever programs print."""
    return "pjit" if primitive is pjit.pjit_p else primitive.name


PRIMITIVES: dict[str, Primitive] = {name_in_file(p): p for module in _MODULES for p in vars(module).values()
                                    if isinstance(p, Primitive) and name_in_file(p) in _SCHEMAS}


# Of values in parameters: what the byte before one says that it is.
TAGS = ("none", "false", "true", "integer", "real", "complex", "text", "tuple", "dtype", "enum", "record", "number",
        "primitive", "generator", "program")


def is_exported(primitive: Primitive) -> bool:
    """Whether a primitive is one of the table."""
    return PRIMITIVES.get(name_in_file(primitive)) is primitive


def kinds_of(name: str) -> dict[str, str]:
    """The parameters of a primitive of the table, with their kinds."""
    return _SCHEMAS[name]


def fits(kind: str, value: Any) -> bool:
    """Whether a parameter's value is of its kind."""
    if kind.endswith("?"):
        return value is None or fits(kind[:-1], value)
    if kind in ENUMS:
        return type(value) is ENUMS[kind]
    if kind in RECORDS:
        return type(value) is RECORDS[kind] and all(map(_sizes, value))
    return _KINDS[kind](value)


def _ints(value: Any) -> bool:
    return type(value) is tuple and all(type(n) is int for n in value)


def _sizes(value: Any) -> bool:
    return _ints(value) and all(n >= 0 for n in value)


def _rows(length: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is tuple and all(_ints(row) and len(row) == length for row in value)


def _is_precision(value: Any) -> bool:
    return value is None or (
        type(value) is tuple and len(value) == 2 and all(type(p) is contract.Precision for p in value))


def _is_contraction(value: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and all(
        type(half) is tuple and len(half) == 2 and all(map(_sizes, half)) for half in value)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "none": lambda v: v is None,
    "bool": lambda v: type(v) is bool,
    "int": lambda v: type(v) is int,
    "real": lambda v: type(v) in (int, float),
    "number": lambda v: v is None or type(v) in (bool, int, float, complex) or isinstance(v, np.generic),
    "text": lambda v: type(v) is str,
    "count": lambda v: type(v) is int and v >= 0,
    "sizes": _sizes,
    "bools": lambda v: type(v) is tuple and all(type(n) is bool for n in v),
    "pairs": _rows(2),
    "triples": _rows(3),
    "dtype": lambda v: isinstance(v, (np.dtype, dtypes.ExtendedDType)),
    "contraction": _is_contraction,
    "precision": _is_precision,
    "comparison": lambda v: v in (elementwise.ge, elementwise.le),
    "generator": lambda v: isinstance(v, Implementation),
    "program": lambda v: isinstance(v, ClosedJaxpr),
    "programs": lambda v: type(v) is tuple and bool(v) and all(isinstance(p, ClosedJaxpr) for p in v),
}
