"""Small libraries on top of Anima: optimisers and layers of neural networks, short enough to be read."""

from anima import names as _names
from anima.example_libraries import optimizers as optimizers, stax as stax

globals().update(_names.access(__name__, globals(), ("optimizers", "stax")))
