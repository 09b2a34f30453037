"""Clusters of observations, as `scipy.cluster`."""

from anima import names as _names
from anima.scipy.cluster import vq as vq

globals().update(_names.access(__name__, globals(), ("vq",)))
