"""The types of a jitted function's stages: `jit(f)`, `.trace(x)`, `.lower()`, `.compile()`."""

from anima.api.jit import JitFunction as Wrapped
from anima.api.stages import ArgInfo as ArgInfo, Compiled as Compiled, Lowered as Lowered, TracedFunction as Traced

CompilerOptions = dict[str, str | bool]

__all__ = ["ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Traced", "Wrapped"]
