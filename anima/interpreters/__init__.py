"""The transformations, for those who give primitives rules from outside: `ad`, `batching`, `partial_eval`, and `mlir`,
where compiled programs get theirs. Each is loaded when it is first used.

    ad.primitive_jvps[p] = lambda primals, tangents: ...
"""

from anima import names as _names

globals().update(_names.access(__name__, globals(), ("ad", "batching", "mlir", "partial_eval", "pxla", "xla")))
