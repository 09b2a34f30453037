"""Checkpointing: what reverse mode keeps, and how to say so."""

from anima.transforms.checkpoint import checkpoint as checkpoint
from anima.transforms.checkpoint import checkpoint_name as checkpoint_name
from anima.transforms.checkpoint import checkpoint_policies as checkpoint_policies
from anima.transforms.checkpoint import print_saved_residuals as print_saved_residuals

remat = checkpoint
