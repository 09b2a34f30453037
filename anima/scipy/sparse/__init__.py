"""Linear systems given by what their matrices do, as `scipy.sparse`."""

from anima.scipy.sparse import linalg as linalg
