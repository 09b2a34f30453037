"""`jaxlib._jax.pytree`: structures of pytrees and paths into them, which JAX pickles by these names."""

from anima.tree import PyTreeDef as PyTreeDef
from anima.tree_keys import (
    DictKey as DictKey,
    FlattenedIndexKey as FlattenedIndexKey,
    GetAttrKey as GetAttrKey,
    SequenceKey as SequenceKey,
)
