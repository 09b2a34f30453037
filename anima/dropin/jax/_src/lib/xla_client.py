"""`jax._src.lib.xla_client`: as `jaxlib.xla_client`."""

from anima.dropin.jaxlib.xla_client import Device as Device, XlaRuntimeError as XlaRuntimeError

__all__ = ["Device", "XlaRuntimeError"]
