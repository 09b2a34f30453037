"""Array primitives by theme, each with all its rules; and, for users, operations on segments."""

from anima.names import access
from anima.ops.segment import (
    segment_max as segment_max,
    segment_min as segment_min,
    segment_prod as segment_prod,
    segment_sum as segment_sum,
)

globals().update(access(__name__, globals()))
