"""Anima: composable transformations of numerical programs, with a compiler of its own.

    >>> import anima, anima.numpy as jnp
    >>> anima.jit(anima.grad(lambda x: jnp.sum(jnp.tanh(x))))(jnp.zeros(2))
    Array([1., 1.], dtype=float32)
"""

import importlib
import typing as _typing

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
from anima.api.derivatives import references as ad
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
    reshard as reshard,
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
from anima.api.placing import (
    copy_to_host_async as copy_to_host_async,
    make_array_from_callback as make_array_from_callback,
    make_array_from_process_local_data as make_array_from_process_local_data,
    make_array_from_single_device_arrays as make_array_from_single_device_arrays,
)
from anima.api.pmap import pmap as pmap
from anima.api.refs import (
    empty_ref as empty_ref,
    free_ref as free_ref,
    freeze as freeze,
    new_ref as new_ref,
)
from anima.api.shard_map import shard_map as shard_map, smap as smap
from anima.api.stages import ShapeDtypeStruct as ShapeDtypeStruct
from anima.api.tracing import (
    clear_caches as clear_caches,
    ensure_compile_time_eval as ensure_compile_time_eval,
    eval_shape as eval_shape,
    make_jaxpr as make_jaxpr,
    typeof as typeof,
)
from anima.config import (
    allow_f16_reductions as allow_f16_reductions,
    array_garbage_collection_guard as array_garbage_collection_guard,
    auto_pcast as auto_pcast,
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
    jax2tf_associative_scan_reductions as jax2tf_associative_scan_reductions,
    legacy_prng_key as legacy_prng_key,
    log_compiles as log_compiles,
    make_user_context as make_user_context,
    no_execution as no_execution,
    no_tracing as no_tracing,
    numpy_dtype_promotion as numpy_dtype_promotion,
    numpy_rank_promotion as numpy_rank_promotion,
    remove_size_one_mesh_axis_from_type as remove_size_one_mesh_axis_from_type,
    softmax_custom_jvp as softmax_custom_jvp,
    thread_guard as thread_guard,
    threefry_partitionable as threefry_partitionable,
    transfer_guard as transfer_guard,
    transfer_guard_device_to_device as transfer_guard_device_to_device,
    transfer_guard_device_to_host as transfer_guard_device_to_host,
    transfer_guard_host_to_device as transfer_guard_host_to_device,
)
from anima.core.array import Array as Array, load_operators_by as _load_operators_by
from anima.core.device import Device as Device, memory as memory
from anima.core.dtypes import float0 as float0
from anima.core.mesh import make_mesh as make_mesh, set_mesh as set_mesh
from anima.core.partition import PartitionSpec as P
from anima.core.refs import Ref as Ref
from anima.core.shardings import NamedSharding as NamedSharding, Shard as Shard
from anima.core.windows import ds as ds
from anima.custom_derivatives import closure_convert as closure_convert, custom_gradient as custom_gradient
from anima.transforms.checkpoint import checkpoint as checkpoint, checkpoint_policies as checkpoint_policies
from anima.transforms.custom import custom_jvp as custom_jvp, custom_vjp as custom_vjp
from anima.version import __version__ as __version__, __version_info__ as __version_info__

if _typing.TYPE_CHECKING:
    from anima import (
        custom_batching as custom_batching,
        debug as debug,
        distributed as distributed,
        dlpack as dlpack,
        dtypes as dtypes,
        experimental as experimental,
        export as export,
        ffi as ffi,
        flatten_util as flatten_util,
        image as image,
        lax as lax,
        monitoring as monitoring,
        nn as nn,
        numpy as numpy,
        ops as ops,
        profiler as profiler,
        random as random,
        ref as ref,
        scipy as scipy,
        sharding as sharding,
        stages as stages,
        test_util as test_util,
        typing as typing,
    )

jacobian = jacrev
remat = checkpoint

_FACES = ("ad_checkpoint", "api_util", "custom_batching", "custom_derivatives", "debug", "distributed", "dlpack",
          "dtypes", "errors", "example_libraries", "experimental", "export", "extend", "ffi", "flatten_util", "image",
          "interpreters", "lax", "monitoring", "nn", "numpy", "ops", "profiler", "random", "ref", "scipy", "sharding",
          "stages", "test_util", "tree", "tree_util", "typing")

# Errors show the user's frames only. The faces are loaded when they are first used: `import anima` loads the core.
globals().update(errors.public_face(__name__, globals(), _FACES))
_load_operators_by(lambda: importlib.import_module("anima.numpy"))
