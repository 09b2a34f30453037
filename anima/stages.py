"""The types of a jitted function's stages: `jit(f)`, `.trace(x)`, `.lower()`, `.compile()`."""

from anima import names as _names
from anima.api.jit import JitFunction as Wrapped
from anima.api.stages import ArgInfo as ArgInfo, Compiled as Compiled, Lowered as Lowered, TracedFunction as Traced

CompilerOptions = dict[str, str | bool]
globals().update(_names.access(__name__, globals()))

__all__ = ["ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Traced", "Wrapped"]
