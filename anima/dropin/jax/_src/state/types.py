"""`jax._src.state.types`: the type of references."""

from anima.ref import AbstractRef as AbstractRef
