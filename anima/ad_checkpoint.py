"""Checkpointing: what reverse mode keeps, and how to say so."""

from anima import names as _names
from anima.transforms.checkpoint import (
    Offloadable as Offloadable,
    Recompute as Recompute,
    Saveable as Saveable,
    checkpoint as checkpoint,
    checkpoint_name as checkpoint_name,
    checkpoint_policies as checkpoint_policies,
    print_saved_residuals as print_saved_residuals,
    saved_residuals as saved_residuals,
)

remat = checkpoint


globals().update(_names.access(__name__, globals()))
