"""`jax.extend.ifrt_programs`: programs of XLA's run time, of which there are none."""

from types import SimpleNamespace

ifrt_programs = SimpleNamespace()
