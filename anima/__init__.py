"""Anima: composable transformations of numerical programs, with a compiler of its own.

    >>> import anima, anima.numpy as jnp
    >>> anima.jit(anima.grad(lambda x: jnp.sum(jnp.tanh(x))))(jnp.zeros(2))
    Array([1., 1.], dtype=float32)
"""

from anima import ad_checkpoint as ad_checkpoint
from anima import errors as errors
from anima import tree as tree
from anima import tree_util as tree_util
from anima.api.autodiff import grad as grad
from anima.api.autodiff import hessian as hessian
from anima.api.autodiff import jacfwd as jacfwd
from anima.api.autodiff import jacrev as jacrev
from anima.api.autodiff import jvp as jvp
from anima.api.autodiff import linear_transpose as linear_transpose
from anima.api.autodiff import linearize as linearize
from anima.api.autodiff import value_and_grad as value_and_grad
from anima.api.autodiff import vjp as vjp
from anima.api.jit import jit as jit
from anima.api.mapping import vmap as vmap
from anima.api.stages import ShapeDtypeStruct as ShapeDtypeStruct
from anima.api.tracing import block_until_ready as block_until_ready
from anima.api.tracing import default_backend as default_backend
from anima.api.tracing import device_count as device_count
from anima.api.tracing import device_get as device_get
from anima.api.tracing import device_put as device_put
from anima.api.tracing import devices as devices
from anima.api.tracing import eval_shape as eval_shape
from anima.api.tracing import make_jaxpr as make_jaxpr
from anima.api.tracing import typeof as typeof
from anima.config import check_tracer_leaks as check_tracer_leaks
from anima.config import check_tracer_leaks as checking_leaks
from anima.config import config as config
from anima.config import debug_infs as debug_infs
from anima.config import debug_key_reuse as debug_key_reuse
from anima.config import debug_nans as debug_nans
from anima.config import default_matmul_precision as default_matmul_precision
from anima.config import default_prng_impl as default_prng_impl
from anima.config import disable_jit as disable_jit
from anima.config import enable_checks as enable_checks
from anima.config import enable_x64 as enable_x64
from anima.config import log_compiles as log_compiles
from anima.config import numpy_dtype_promotion as numpy_dtype_promotion
from anima.config import numpy_rank_promotion as numpy_rank_promotion
from anima.config import threefry_partitionable as threefry_partitionable
from anima.core.array import Array as Array
from anima.core.device import Device as Device
from anima.core.dtypes import float0 as float0
from anima.transforms.checkpoint import checkpoint as checkpoint
from anima.transforms.checkpoint import checkpoint_policies as checkpoint_policies
from anima.transforms.custom import custom_jvp as custom_jvp
from anima.transforms.custom import custom_vjp as custom_vjp

from anima import dtypes as dtypes  # isort: skip
from anima import lax as lax  # isort: skip
from anima import numpy as numpy  # isort: skip
from anima import nn as nn  # isort: skip
from anima import random as random  # isort: skip

jacobian = jacrev
remat = checkpoint
__version__ = "0.1.0"
