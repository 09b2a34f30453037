"""`jax._src.image.scale`: the kernels of methods, as functions of a distance; else the public functions."""

from anima.image import _KERNELS as _kernels

__all__ = ["_kernels"]
