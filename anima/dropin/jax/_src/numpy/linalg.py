"""`jax._src.numpy.linalg`: results of decompositions, which are pickled by these names; else the public functions."""

from anima.numpy.linalg.decompositions import (
    EighResult as EighResult,
    EigResult as EigResult,
    QRResult as QRResult,
    SVDResult as SVDResult,
)
from anima.numpy.linalg.solving import SlogdetResult as SlogdetResult
