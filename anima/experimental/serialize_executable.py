"""Compiled programs as bytes, for the same kind of CPU: see `anima/export/executables.py`.

    blob, in_tree, out_tree = serialize(jit(f).lower(x).compile())
    deserialize_and_load(blob, in_tree, out_tree)(x)
"""

from anima.export.executables import deserialize_and_load as deserialize_and_load, serialize as serialize
from anima.names import access

__all__ = ["deserialize_and_load", "serialize"]

globals().update(access(__name__, globals()))
