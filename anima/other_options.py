"""Options of JAX's that mean nothing on one CPU, guards of transfers and how programs are shown aside: programs set
them, and read what they set.

    config.update("jax_use_shardy_partitioner", False)

One row each: the name, its first value in JAX, and the values that it takes if these are a few words.
"""
from __future__ import annotations

from typing import Any

_Row = tuple[str, Any] | tuple[str, Any, tuple[str, ...]]
TRANSFER_GUARDS = ("transfer_guard", "transfer_guard_host_to_device", "transfer_guard_device_to_host",
                   "transfer_guard_device_to_device")    # the first is all of the others
DOT_ALGORITHMS = ("ANY_F8_ANY_F8_F32", "ANY_F8_ANY_F8_F32_FAST_ACCUM", "ANY_F8_ANY_F8_ANY",
                  "ANY_F8_ANY_F8_ANY_FAST_ACCUM", "F16_F16_F16", "F16_F16_F32", "BF16_BF16_BF16", "BF16_BF16_F32",
                  "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9", "TF32_TF32_F32",
                  "TF32_TF32_F32_X3", "F32_F32_F32", "F64_F64_F64")    # in which matrix products may be made
_LEVELS = ("UNKNOWN", "O0", "O1", "O2", "O3")
_GUARDS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")

_XLA: tuple[_Row, ...] = (
    ("exec_time_optimization_effort", 0.0),
    ("optimization_level", "UNKNOWN", _LEVELS),
    ("memory_fitting_effort", 0.0),
    ("memory_fitting_level", "O2", _LEVELS),
    ("compiler_enable_remat_pass", True),
    ("embedded_constants_max_bytes", 32),
    ("use_simplified_jaxpr_constants", False),
    ("xla_profile_version", 0),
    ("use_shardy_partitioner", True),
    ("experimental_unsafe_xla_runtime_errors", False),
    ("enable_pgle", False),
    ("pgle_profiling_runs", 3),
    ("pgle_aggregation_percentile", 90),
    ("compilation_cache_expect_pgle", False),
    ("compilation_cache_include_metadata_in_key", False),
    ("compilation_cache_check_contents", False),
    ("persistent_cache_enable_xla_caches", "xla_gpu_per_fusion_autotune_cache_dir"),
    ("remove_custom_partitioning_ptr_from_cache_key", False),
    ("hlo_source_file_canonicalization_regex", None),
    ("include_full_tracebacks_in_locations", True),
    ("traceback_in_locations_limit", 100),
    ("send_traceback_to_runtime", "off", ("off", "on", "full")),
    ("pjrt_client_create_options", None),
    ("debug_leaked_clients_on_clear_backends", False),
    ("jax2tf_associative_scan_reductions", False),
    ("export_calling_convention_version", 10),
    ("export_ignore_forward_compatibility", False),
    ("serialization_version", 0),
    ("refs_to_pins", False),
    ("backend_target", ""),
    ("xla_backend", ""),
    ("disable_most_optimizations", False),
    ("compiler_detailed_logging_min_ops", 10),
    ("dump_ir_to", ""),
    ("dump_ir_modes", "stablehlo"),
    ("include_debug_info_in_dumps", True),
    ("tracer_error_num_traceback_frames", 5),
)

_ACCELERATORS: tuple[_Row, ...] = (
    ("bcoo_cusparse_lowering", False),
    ("threefry_gpu_kernel_lowering", False),
    ("ragged_dot_use_gpu_pallas_triton_lowering", False),
    ("ragged_dot_use_ragged_dot_instruction", True),
    ("use_magma", "auto", ("off", "on", "auto")),
    ("mosaic_allow_hlo", False),
    ("pallas_poison_buffers", False),
    ("pallas_use_mosaic_gpu", True),
    ("use_emit_pipeline_primitive", False),
    ("pallas_verbose_errors", False),
    ("mock_gpu_topology", ""),
    ("cuda_visible_devices", "all"),
    ("rocm_visible_devices", "all"),
    ("oneapi_visible_devices", "all"),
)

_MANY: tuple[_Row, ...] = (
    ("auto_pcast", True),
    ("check_proxy_envs", True),
    ("sort_devices_by_process_index", True),
    ("cross_host_transfer_socket_address", ""),
    ("cross_host_transport_addresses", ""),
    ("cross_host_transfer_timeout_seconds", None),
    ("cross_host_transfer_transfer_size", None),
    ("force_dcn_cross_host_transfers", False),
    ("cpu_collectives_implementation", "gloo", ("gloo", "mpi", "megascale")),
    ("cpu_enable_async_dispatch", True),
    ("cpu_get_global_topology_timeout_minutes", 5),
    ("cpu_get_local_topology_timeout_minutes", 2),
    ("disable_vmap_shmap_error", False),
    ("disallow_mesh_context_manager", False),
    ("distributed_debug", False),
    ("enable_preemption_service", True),
    ("enable_recoverability", False),
    ("remove_size_one_mesh_axis_from_type", False),
    ("share_binary_between_hosts", False),
    ("share_binary_between_hosts_timeout_ms", 1200000),
    ("thread_guard", False),
)

_INSIDE: tuple[_Row, ...] = (
    ("array_garbage_collection_guard", None, ("allow", "log", "fatal")),
    ("custom_vjp3", False),
    ("disable_bwd_checks", False),
    ("mutable_array_checks", True),
    ("remat3", False),
    ("scan3", False),
    ("use_direct_linearize", True),
)

_TEXTS: tuple[_Row, ...] = (
    ("pprint_use_color", True),
    ("source_url_schema", None),
)

_TRANSFERS: tuple[_Row, ...] = tuple((name, None, _GUARDS) for name in TRANSFER_GUARDS)

# Name to first value, the words it takes (none: anything of its type), and what it is about.
OTHER_OPTIONS: dict[str, tuple[Any, tuple[str, ...], str]] = {
    row[0]: (row[1], row[2] if len(row) > 2 else (), about) for rows, about in (
        (_XLA, "About XLA: programs are not compiled by it."),
        (_ACCELERATORS, "About GPUs and TPUs: there are none."),
        (_MANY, "About several devices or processes: there is one."),
        (_TRANSFERS, "What transfers do: of one direction, or all; none goes from the CPU to the host."),
        (_TEXTS, "How programs are shown: pretty_print on terminals; links in notebooks, as 'ed://{file}:{line}'."),
        (_INSIDE, "About how JAX is made: Anima has one way.")) for row in rows}
