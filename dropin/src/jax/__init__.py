"""Anima in the place of JAX: this module gives way to the view of Anima that `import jax` finds."""

import sys

from anima.dropin import install

del sys.modules[__name__]
install()
import jax  # noqa: E402
