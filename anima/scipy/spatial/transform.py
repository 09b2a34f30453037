"""Rotations in space, as unit quaternions (x, y, z, w), and curves between them, as `scipy.spatial.transform`.

    >>> r = anima.scipy.spatial.transform.Rotation.from_euler("z", 90, degrees=True)
    >>> r.apply(jnp.array([1., 0., 0.])).round(3)
    Array([0., 1., 0.], dtype=float32)

Formulas are written so that derivatives exist at the identity, too.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any, NamedTuple

import numpy as np

import anima.numpy as jnp
from anima import errors as _errors
from anima.core import dtypes
from anima.numpy.promote import as_array, operand, promote_dtypes_inexact
from anima.ops.elementwise import convert
from anima.random.draws import normal

_AXES = "xyz"
_SMALL = 1e-3  # of a squared angle or sine, below which series are taken


def _floats(name: str, x: Any) -> Any:
    (x,) = promote_dtypes_inexact(name, jnp.asarray(x))
    return convert(x, x.dtype)


def _unit(quat: Any) -> Any:
    return quat / jnp.sqrt(jnp.sum(jnp.square(quat), -1, keepdims=True))


def _product(p: Any, q: Any) -> Any:
    """The quaternion of rotation `q` followed by `p`."""
    p, q = jnp.broadcast_arrays(p, q)
    vector = p[..., 3:] * q[..., :3] + q[..., 3:] * p[..., :3] + jnp.cross(p[..., :3], q[..., :3])
    scalar = p[..., 3] * q[..., 3] - jnp.sum(p[..., :3] * q[..., :3], -1)
    return jnp.concatenate([vector, scalar[..., None]], -1)


def _canonical(quat: Any) -> Any:
    """With w > 0, or, where that is 0, the first other component that is not 0."""
    x, y, z, w = (quat[..., i] for i in range(4))
    flip = (w < 0) | ((w == 0) & ((x < 0) | ((x == 0) & ((y < 0) | ((y == 0) & (z < 0))))))
    return jnp.where(flip[..., None], -quat, quat)


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    total = jnp.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


# sin(a/2) / a and cos(a/2) in a**2, and asin(s) / s in s**2
_HALF_SINE = tuple((-1) ** k * 0.5 ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(6))
_HALF_COSINE = tuple((-1) ** k * 0.25 ** k / math.factorial(2 * k) for k in range(6))
_ARC_SINE = (1.0, 1 / 6, 3 / 40, 15 / 336, 105 / 3456, 945 / 42240)


def _split(squared: Any) -> tuple[Any, Any, Any]:
    """Where a square is small, itself there, and its root elsewhere."""
    small = squared < _SMALL
    return small, jnp.where(small, squared, 0), jnp.sqrt(jnp.where(small, 1, squared))


def _axes(seq: str) -> tuple[str, bool]:
    """The axes in small letters, and whether they turn with the body (capital letters)."""
    if not 1 <= len(seq) <= 3:
        raise ValueError(f"Expected axis specification to be a non-empty string of upto 3 characters, got {seq}")
    intrinsic = re.fullmatch("[XYZ]{1,3}", seq) is not None
    if not intrinsic and re.fullmatch("[xyz]{1,3}", seq) is None:
        raise ValueError(f"Expected axes from `seq` to be from ['x', 'y', 'z'] or ['X', 'Y', 'Z'], got {seq}")
    if any(a == b for a, b in itertools.pairwise(seq)):
        raise ValueError(f"Expected consecutive axes to be different, got {seq}")
    return seq.lower(), intrinsic


class Rotation(NamedTuple):
    """One rotation (`quat` of shape [4]), or a stack of them ([n, 4])."""

    quat: Any

    # ---------------------------------------------------------------- making rotations

    @classmethod
    def from_quat(cls, quat: Any) -> Rotation:
        """From quaternions (x, y, z, w) of any length but 0."""
        return cls(_unit(_floats("from_quat", quat)))

    @classmethod
    def from_matrix(cls, matrix: Any) -> Rotation:
        """From rotation matrices [..., 3, 3], by the largest of the quaternion's components."""
        m = _floats("from_matrix", matrix)
        trace = m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2]
        choices = []
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            parts = [1 - trace + 2 * m[..., i, i], m[..., j, i] + m[..., i, j], m[..., k, i] + m[..., i, k]]
            order = [parts[[i, j, k].index(axis)] for axis in range(3)]
            choices.append(jnp.stack([*order, m[..., k, j] - m[..., j, k]], -1))
        choices.append(jnp.stack([m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0],
                                  m[..., 1, 0] - m[..., 0, 1], 1 + trace], -1))
        sizes = jnp.stack([m[..., 0, 0], m[..., 1, 1], m[..., 2, 2], trace], -1)
        best = jnp.argmax(sizes, -1)[..., None, None]
        return cls(_unit(jnp.take_along_axis(jnp.stack(choices, -2), best, -2)[..., 0, :]))

    @classmethod
    def from_rotvec(cls, rotvec: Any, degrees: bool = False) -> Rotation:
        """From vectors along the axes, as long as the angles."""
        v = _floats("from_rotvec", rotvec)
        v = jnp.deg2rad(v) if degrees else v
        squared = jnp.sum(jnp.square(v), -1)
        small, low, angle = _split(squared)
        scale = jnp.where(small, _polynomial(low, _HALF_SINE), jnp.sin(angle / 2) / angle)
        cosine = jnp.where(small, _polynomial(low, _HALF_COSINE), jnp.cos(angle / 2))
        return cls(jnp.concatenate([v * scale[..., None], cosine[..., None]], -1))

    @classmethod
    def from_mrp(cls, mrp: Any) -> Rotation:
        """From modified Rodrigues parameters: vectors along the axes, as long as tangents of the angles/4."""
        v = _floats("from_mrp", mrp)
        squared = jnp.sum(jnp.square(v), -1, keepdims=True)
        return cls(jnp.concatenate([2 * v, 1 - squared], -1) / (1 + squared))

    @classmethod
    def from_euler(cls, seq: str, angles: Any, degrees: bool = False) -> Rotation:
        """From angles about the axes `seq`: small letters about fixed axes, capitals about those of the body.

        `angles` has an axis of len(seq) angles last, which may be missing for one. ValueError for other letters, or
        equal neighbours.
        """
        letters, intrinsic = _axes(seq)
        angles = _floats("from_euler", angles)
        angles = jnp.deg2rad(angles) if degrees else angles
        if len(letters) == 1 and angles.ndim < 2 and angles.shape != (1,):
            angles = angles[..., None]
        if angles.ndim == 0 or angles.shape[-1] != len(letters):
            raise ValueError(f"Expected `angles` to have {len(letters)} of them along its last axis, got "
                             f"{angles.shape}.")
        result = None
        for i, letter in enumerate(letters):
            half = angles[..., i] / 2
            parts = [jnp.sin(half) if a == letter else jnp.zeros_like(half) for a in _AXES]
            turn = jnp.stack([*parts, jnp.cos(half)], -1)
            if result is None:
                result = turn
            else:
                result = _product(result, turn) if intrinsic else _product(turn, result)
        return cls(result)

    @classmethod
    def identity(cls, num: int | None = None, dtype: Any = float) -> Rotation:
        """The rotation by nothing, or `num` of them."""
        dtype = dtypes.check_user_dtype(dtype, "identity")
        unit = jnp.array([0, 0, 0, 1], dtype)
        return cls(unit if num is None else jnp.tile(unit, (num, 1)))

    @classmethod
    def random(cls, random_key: Any, num: int | None = None) -> Rotation:
        """A rotation drawn uniformly, or `num` of them."""
        return cls(_unit(normal(random_key, (4,) if num is None else (num, 4))))

    @classmethod
    def concatenate(cls, rotations: Any) -> Rotation:
        """The rotations of a sequence of `Rotation`s as one stack."""
        return cls(jnp.concatenate([jnp.atleast_2d(r.quat) for r in rotations]))

    # ---------------------------------------------------------------- what they are

    def as_quat(self, canonical: bool = False, scalar_first: bool = False) -> Any:
        """As quaternions (x, y, z, w), or (w, x, y, z) if `scalar_first`; with positive w if `canonical`."""
        quat = _canonical(self.quat) if canonical else self.quat
        return jnp.roll(quat, 1, -1) if scalar_first else quat

    def as_matrix(self) -> Any:
        """As matrices [..., 3, 3]."""
        x, y, z, w = (self.quat[..., i] for i in range(4))
        rows = [[x * x - y * y - z * z + w * w, 2 * (x * y - z * w), 2 * (x * z + y * w)],
                [2 * (x * y + z * w), -x * x + y * y - z * z + w * w, 2 * (y * z - x * w)],
                [2 * (x * z - y * w), 2 * (y * z + x * w), -x * x - y * y + z * z + w * w]]
        return jnp.stack([jnp.stack(row, -1) for row in rows], -2)

    def as_rotvec(self, degrees: bool = False) -> Any:
        """As vectors along the axes, as long as the angles, which are at most pi."""
        quat = _canonical(self.quat)
        squared = jnp.sum(jnp.square(quat[..., :3]), -1)
        small, low, sine = _split(squared)
        scale = 2 * jnp.where(small, _polynomial(low, _ARC_SINE), jnp.arctan2(sine, quat[..., 3]) / sine)
        vector = quat[..., :3] * scale[..., None]
        return jnp.rad2deg(vector) if degrees else vector

    def as_mrp(self) -> Any:
        """As modified Rodrigues parameters, of length 1 at most."""
        sign = jnp.where(self.quat[..., 3:] < 0, -1, 1)
        return sign * self.quat[..., :3] / (1 + sign * self.quat[..., 3:])

    def as_euler(self, seq: str, degrees: bool = False) -> Any:
        """As three angles about the axes `seq`; where only a sum of two matters, the third is 0.

        E. Bernardes and S. Viollet, "Quaternion to Euler angles conversion", PLOS ONE 17, 2022.
        """
        if len(seq) != 3:
            raise ValueError(f"Expected 3 axes, got {seq}.")
        letters, intrinsic = _axes(seq)
        i, j, k = (_AXES.index(a) for a in (letters[::-1] if intrinsic else letters))
        symmetric = i == k
        k = 3 - i - j if symmetric else k
        sign = (i - j) * (j - k) * (k - i) // 2
        q = self.quat
        a, b, c, d = q[..., 3], q[..., i], q[..., j], q[..., k] * sign
        if not symmetric:
            a, b, c, d = a - c, b + d, c + a, d - b
        middle = 2 * jnp.arctan2(jnp.hypot(c, d), jnp.hypot(a, b))
        tiny = 1e-7 if q.dtype == np.float64 else 1e-6
        first, second = jnp.abs(middle) <= tiny, jnp.abs(middle - np.pi) <= tiny
        total, difference = jnp.arctan2(b, a), jnp.arctan2(d, c)
        outer = [total - difference, total + difference]
        if intrinsic:
            outer.reverse()
        outer[0 if intrinsic else 1] = outer[0 if intrinsic else 1] * (1 if symmetric else sign)
        lone = jnp.where(first, 2 * total, 2 * difference * (1 if intrinsic else -1))
        degenerate = first | second
        lone = lone * (sign if intrinsic and not symmetric else 1)
        middle = middle if symmetric else middle - np.pi / 2
        angles = jnp.stack([jnp.where(degenerate, lone, outer[0]), middle, jnp.where(degenerate, 0, outer[1])], -1)
        angles = jnp.where(angles < -np.pi, angles + 2 * np.pi, jnp.where(angles > np.pi, angles - 2 * np.pi, angles))
        return jnp.rad2deg(angles) if degrees else angles

    def magnitude(self) -> Any:
        """The angles, from 0 to pi."""
        squared = jnp.sum(jnp.square(self.quat[..., :3]), -1)
        zero = squared == 0
        sine = jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squared)))
        return 2 * jnp.arctan2(sine, jnp.abs(self.quat[..., 3]))

    @property
    def single(self) -> bool:
        """Whether this is one rotation."""
        return self.quat.ndim == 1

    # ---------------------------------------------------------------- what they do

    def apply(self, vectors: Any, inverse: bool = False) -> Any:
        """Vectors [..., 3], turned (turned back if `inverse`): all by one rotation, or each by its own."""
        matrix = self.as_matrix()
        matrix = jnp.swapaxes(matrix, -1, -2) if inverse else matrix
        return jnp.einsum("...jk,...k->...j", matrix, _floats("apply", vectors))

    def inv(self) -> Rotation:
        """The inverse."""
        return Rotation(jnp.concatenate([-self.quat[..., :3], self.quat[..., 3:]], -1))

    def mean(self, weights: Any = None) -> Rotation:
        """The rotation that is nearest to all (F. L. Markley et al., "Averaging quaternions", 2007)."""
        quats = jnp.atleast_2d(self.quat)
        w = jnp.ones(quats.shape[0], quats.dtype) if weights is None else as_array(operand("mean", weights))
        if w.ndim != 1:
            raise ValueError(f"Expected `weights` to be 1 dimensional, got shape {w.shape}.")
        if w.shape[0] != quats.shape[0]:
            raise ValueError("Expected `weights` to have number of values equal to number of rotations, got "
                             f"{w.shape[0]} values and {quats.shape[0]} rotations.")
        _, vectors = jnp.linalg.eigh(jnp.einsum("i,ij,ik->jk", w, quats, quats))
        return Rotation(vectors[:, -1])

    def __mul__(self, other: Any) -> Rotation:  # type: ignore[override]
        """`other` followed by `self`."""
        return Rotation(_product(self.quat, other.quat))

    def __getitem__(self, indexer: Any) -> Rotation:  # type: ignore[override]
        if self.single:
            raise TypeError("Single rotation is not subscriptable.")
        return Rotation(self.quat[indexer])

    def __len__(self) -> int:
        if self.single:
            raise TypeError("Single rotation has no len().")
        return self.quat.shape[0]

    def __bool__(self) -> bool:
        return True


class Slerp(NamedTuple):
    """The curve through rotations at times, at constant speed between neighbours. Made by `Slerp.init`."""

    times: Any
    timedelta: Any
    rotations: Rotation
    rotvecs: Any

    @classmethod
    def init(cls, times: Any, rotations: Rotation) -> Slerp:
        """The curve through two or more `rotations` at increasing `times`.

        TypeError for what is no `Rotation`, ValueError for sizes that do not fit.
        """
        if not isinstance(rotations, Rotation):
            raise TypeError("`rotations` must be a `Rotation` instance.")
        if rotations.single or len(rotations) < 2:
            raise ValueError("`rotations` must be a sequence of at least 2 rotations.")
        times = _floats("Slerp", times)
        if times.ndim != 1:
            raise ValueError("Expected times to be specified in a 1 dimensional array, got "
                             f"{times.ndim} dimensions.")
        if times.shape[0] != len(rotations):
            raise ValueError("Expected number of rotations to be equal to number of timestamps given, got "
                             f"{len(rotations)} rotations and {times.shape[0]} timestamps.")
        first = rotations[:-1]
        return cls(times, jnp.diff(times), first, (first.inv() * rotations[1:]).as_rotvec())

    def __call__(self, times: Any) -> Rotation:
        """The rotations at `times`, a number or a vector."""
        at = _floats("Slerp", times)
        if at.ndim > 1:
            raise ValueError("`times` must be at most 1-dimensional.")
        place = jnp.clip(jnp.searchsorted(self.times, at, "left") - 1, 0, self.timedelta.shape[0] - 1)
        part = (at - self.times[place]) / self.timedelta[place]
        return self.rotations[place] * Rotation.from_rotvec(self.rotvecs[place] * part[..., None])


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["Rotation", "Slerp"]
