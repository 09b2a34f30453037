"""Programs that outlive their process: a jitted function as bytes, and back, without its source.

    >>> exported = export(anima.jit(jnp.sin))(1.0)
    >>> deserialize(exported.serialize()).call(0.0)
    Array(0., dtype=float32, weak_type=True)
"""

from anima import errors
from anima.core.format import FormatError as FormatError
from anima.export import checks as _checks
from anima.export.exported import (
    DisabledSafetyCheck as DisabledSafetyCheck,
    Exported as Exported,
    maximum_supported_calling_convention_version as maximum_supported_calling_convention_version,
    minimum_supported_calling_convention_version as minimum_supported_calling_convention_version,
)
from anima.export.making import (
    default_export_platform as default_export_platform,
    deserialize as deserialize,
    export as export,
)
from anima.export.symbolic import (
    SymbolicScope as SymbolicScope,
    is_symbolic_dim as is_symbolic_dim,
    symbolic_args_specs as symbolic_args_specs,
    symbolic_shape as symbolic_shape,
)
from anima.export.trees import (
    register_namedtuple_serialization as register_namedtuple_serialization,
    register_pytree_node_serialization as register_pytree_node_serialization,
)

globals().update(errors.public_face(__name__, globals()))  # errors show the user's frames only
