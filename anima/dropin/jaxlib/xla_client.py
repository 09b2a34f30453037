"""`jaxlib.xla_client`: types that libraries name by where they stand in JAX."""

from anima.api.devices import Device as Device
from anima.errors import JaxRuntimeError as XlaRuntimeError

__all__ = ["Device", "XlaRuntimeError"]
