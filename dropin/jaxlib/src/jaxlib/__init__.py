"""Anima in the place of JAX: this module gives way to the one that `import jaxlib` finds with Anima."""

import sys

from anima.dropin import install

del sys.modules[__name__]
install()
import jaxlib  # noqa: E402
