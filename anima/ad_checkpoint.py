"""Checkpointing: what reverse mode keeps, and how to say so."""

from anima.transforms.checkpoint import (
    checkpoint as checkpoint,
    checkpoint_name as checkpoint_name,
    checkpoint_policies as checkpoint_policies,
    print_saved_residuals as print_saved_residuals,
)

remat = checkpoint
