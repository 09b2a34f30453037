"""What may still change: `io_callback`, and modules that are loaded when they are first used."""

from anima import names as _names
from anima.api.effects import io_callback as io_callback
from anima.experimental.extended import (
    EArray as EArray,
    cur_qdd as cur_qdd,
    primal_tangent_dtype as primal_tangent_dtype,
)

globals().update(_names.access(__name__, globals(), (
    "array_serialization", "buffer_callback", "checkify", "compilation_cache", "compute_on", "control_deps",
    "custom_partitioning", "fused", "hijax", "jet", "key_reuse", "layout", "mesh_utils", "multihost_utils", "ode",
    "pallas", "profiler", "random", "rnn", "roofline", "scheduling_groups", "serialize_executable", "shard_alike",
    "source_mapper", "sparse", "topologies", "transfer", "xla_metadata")))
