"""Anima: composable transformations of numerical programs, with a compiler of its own.

    >>> import anima, anima.numpy as jnp
    >>> anima.jit(anima.grad(lambda x: jnp.sum(jnp.tanh(x))))(jnp.zeros(2))
    Array([1., 1.], dtype=float32)
"""

import importlib
from typing import TYPE_CHECKING, Any

from anima import ad_checkpoint as ad_checkpoint, errors as errors, tree as tree, tree_util as tree_util
from anima.api.autodiff import (
    fwd_and_bwd as fwd_and_bwd,
    grad as grad,
    jvp as jvp,
    linear_transpose as linear_transpose,
    linearize as linearize,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from anima.api.devices import (
    block_until_ready as block_until_ready,
    default_backend as default_backend,
    device_count as device_count,
    device_get as device_get,
    device_put as device_put,
    devices as devices,
    host_count as host_count,
    host_id as host_id,
    host_ids as host_ids,
    live_arrays as live_arrays,
    local_device_count as local_device_count,
    local_devices as local_devices,
    print_environment_info as print_environment_info,
    process_count as process_count,
    process_index as process_index,
    process_indices as process_indices,
)
from anima.api.effects import (
    effects_barrier as effects_barrier,
    named_call as named_call,
    named_scope as named_scope,
    pure_callback as pure_callback,
)
from anima.api.jacobian import hessian as hessian, jacfwd as jacfwd, jacrev as jacrev
from anima.api.jit import jit as jit
from anima.api.mapping import vmap as vmap
from anima.api.refs import (
    empty_ref as empty_ref,
    free_ref as free_ref,
    freeze as freeze,
    new_ref as new_ref,
)
from anima.api.stages import ShapeDtypeStruct as ShapeDtypeStruct
from anima.api.tracing import (
    clear_caches as clear_caches,
    ensure_compile_time_eval as ensure_compile_time_eval,
    eval_shape as eval_shape,
    make_jaxpr as make_jaxpr,
    typeof as typeof,
)
from anima.config import (
    check_tracer_leaks as check_tracer_leaks,
    check_tracer_leaks as checking_leaks,
    config as config,
    debug_infs as debug_infs,
    debug_key_reuse as debug_key_reuse,
    debug_nans as debug_nans,
    default_device as default_device,
    default_matmul_precision as default_matmul_precision,
    default_prng_impl as default_prng_impl,
    disable_jit as disable_jit,
    enable_checks as enable_checks,
    enable_custom_prng as enable_custom_prng,
    enable_x64 as enable_x64,
    explain_cache_misses as explain_cache_misses,
    log_compiles as log_compiles,
    numpy_dtype_promotion as numpy_dtype_promotion,
    numpy_rank_promotion as numpy_rank_promotion,
    threefry_partitionable as threefry_partitionable,
)
from anima.core.array import Array as Array, load_operators_by
from anima.core.device import Device as Device
from anima.core.dtypes import float0 as float0
from anima.core.refs import Ref as Ref
from anima.custom_derivatives import closure_convert as closure_convert, custom_gradient as custom_gradient
from anima.transforms.checkpoint import checkpoint as checkpoint, checkpoint_policies as checkpoint_policies
from anima.transforms.custom import custom_jvp as custom_jvp, custom_vjp as custom_vjp

if TYPE_CHECKING:
    from anima import (
        custom_batching as custom_batching,
        debug as debug,
        dlpack as dlpack,
        dtypes as dtypes,
        image as image,
        lax as lax,
        nn as nn,
        numpy as numpy,
        ops as ops,
        random as random,
        ref as ref,
        scipy as scipy,
        stages as stages,
        test_util as test_util,
        typing as typing,
    )

globals().update(errors.public_face(__name__, globals()))  # errors show the user's frames only
jacobian = jacrev
remat = checkpoint
__version__ = "0.1.0"

_FACES = ("custom_batching", "debug", "dlpack", "dtypes", "image", "lax", "nn", "numpy", "ops", "random", "ref",
          "scipy", "stages", "test_util", "typing")


load_operators_by(lambda: importlib.import_module("anima.numpy"))


def __getattr__(name: str) -> Any:
    """The faces, which are loaded when they are first used: `import anima` loads the core alone."""
    if name not in _FACES:
        raise AttributeError(f"module 'anima' has no attribute {name!r}")
    return importlib.import_module(f"anima.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FACES})
