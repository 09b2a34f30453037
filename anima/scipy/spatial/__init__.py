"""Rotations in space, as `scipy.spatial`."""

from anima import names as _names
from anima.scipy.spatial import transform as transform

globals().update(_names.access(__name__, globals(), ("transform",)))
