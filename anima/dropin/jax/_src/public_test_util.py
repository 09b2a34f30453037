"""`jax._src.public_test_util`: the public checks, and the comparison that they make."""

from anima.test_util import *  # noqa: F403
from anima.test_util import check_close as check_close
