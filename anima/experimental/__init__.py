"""What may still change: `io_callback`, and modules that are loaded when they are first used."""

from anima import names as _names
from anima.api.effects import io_callback as io_callback

globals().update(_names.access(__name__, globals(), (
    "array_serialization", "buffer_callback", "checkify", "compute_on", "custom_partitioning", "fused", "hijax", "jet",
    "layout", "mesh_utils", "multihost_utils", "ode", "pallas", "random", "rnn", "serialize_executable", "sparse",
    "xla_metadata")))
