"""`jax._src.numpy.index_tricks`: objects that are indexed, and the classes of those that join arrays."""

from anima.numpy import (
    c_ as c_,
    index_exp as index_exp,
    mgrid as mgrid,
    ogrid as ogrid,
    r_ as r_,
    s_ as s_,
)
from anima.numpy.grids import CClass as CClass, RClass as RClass
