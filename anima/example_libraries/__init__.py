"""Small libraries on top of Anima: optimisers and layers of neural networks, short enough to be read."""

from anima.example_libraries import optimizers as optimizers, stax as stax
