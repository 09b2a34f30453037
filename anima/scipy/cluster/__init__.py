"""Clusters of observations, as `scipy.cluster`."""

from anima.scipy.cluster import vq as vq
