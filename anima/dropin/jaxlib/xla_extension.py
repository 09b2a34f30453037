"""`jaxlib.xla_extension`: types that libraries made for JAX before 0.6 name by where they stood then."""

from anima.api.jit import JitFunction as PjitFunction
from anima.errors import JaxRuntimeError as XlaRuntimeError

__all__ = ["PjitFunction", "XlaRuntimeError"]
