"""Linear systems given by what their matrices do, as `scipy.sparse`."""

from anima import names as _names
from anima.scipy.sparse import linalg as linalg

globals().update(_names.access(__name__, globals(), ("linalg",)))
