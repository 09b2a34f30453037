"""Rotations in space, as `scipy.spatial`."""

from anima.scipy.spatial import transform as transform
