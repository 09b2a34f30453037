"""`jax._src.callback`: calls of Python from programs."""

from anima import pure_callback as pure_callback
from anima.experimental import io_callback as io_callback
