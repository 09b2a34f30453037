"""`jax._src.numpy.setops`: the classes of results of the functions of sets; else the public functions."""

from anima.numpy.sets import (
    _UniqueAllResult as _UniqueAllResult,
    _UniqueCountsResult as _UniqueCountsResult,
    _UniqueInverseResult as _UniqueInverseResult,
)
