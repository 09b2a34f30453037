"""For libraries that extend Anima: what is public, but not for everyday use."""

from anima import names as _names
from anima.extend import core as core, random as random

globals().update(_names.access(__name__, globals(), (
    "backend", "core", "linear_util", "lowering", "random", "source_info_util", "xla")))
