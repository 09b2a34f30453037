"""Programs and libraries written for JAX, run by Anima: `import jax` finds views of Anima's own modules.

    import anima.dropin
    anima.dropin.install()      # before the first `import jax`
    import jax, optax

`python -m anima run train.py` does the same for a program as it stands.
"""

from anima.dropin.finder import install as install, installed as installed
from anima.dropin.version import JAX_VERSION as JAX_VERSION
