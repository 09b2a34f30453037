"""`jax._src.flatten_util`: the public function."""

from anima.flatten_util import ravel_pytree as ravel_pytree
