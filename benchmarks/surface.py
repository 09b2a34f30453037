"""The numerical surface beside NumPy or SciPy, and JAX and PyTorch where they are installed.

    python -m benchmarks.surface                      all rows, with all cores
    taskset -c 0 python -m benchmarks.surface 7x7     rows whose name contains a word, with one core

Convolutions, and their gradients, are here; all else is in `routines.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import anima
from benchmarks.harness import HAVE_JAX, HAVE_TORCH, Case, measure, print_row, work_of
from benchmarks.routines import routines

if HAVE_JAX:
    import jax
if HAVE_TORCH:
    import torch

NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
NWC, NCW = ("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW")
Run = Callable[[], Any]


@dataclass(frozen=True)
class Convolution:
    """A convolution, by sizes that layouts put in order: batch, features, outputs, space, kernel."""

    name: str
    layout: tuple[str, str, str]
    batch: int
    features: int
    outputs: int
    space: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    padding: Any = "SAME"
    groups: int = 1
    apart: int = 1  # of the elements of the array: more than 1 in transposed convolutions

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        space = [d for d in self.layout[1] if d not in "OI"]
        sizes = {"N": self.batch, "C": self.features, **dict(zip(space, self.space, strict=True))}
        kernel = {"I": self.features // self.groups, "O": self.outputs, **dict(zip(space, self.kernel, strict=True))}
        x, w = [sizes[d] for d in self.layout[0]], [kernel[d] for d in self.layout[1]]
        return rng.normal(size=x).astype(np.float32), (rng.normal(size=w) * 0.1).astype(np.float32)

    def by(self, module: Any) -> Callable[[Any, Any], Any]:
        """The convolution as a function of a module with JAX's names."""
        n = len(self.space)
        return lambda x, w: module.lax.conv_general_dilated(
            x, w, (self.stride,) * n, self.padding, (self.apart,) * n, dimension_numbers=self.layout,
            feature_group_count=self.groups)

    def by_torch(self, x: np.ndarray, w: np.ndarray) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        """PyTorch's arrays, in the same layout in memory, and function."""
        n, last = len(self.space), self.layout[0][-1] == "C"
        orders = ([self.layout[k].index(d) for d in (*first, *(d for d in self.layout[1] if d not in "OI"))]
                  for k, first in enumerate(("NC", "OI")))
        tx, tw = (torch.from_numpy(np.ascontiguousarray(a.transpose(o))) for a, o in zip((x, w), orders, strict=True))
        function = getattr(torch.nn.functional, f"conv{'_transpose' if self.apart > 1 else ''}{n}d")
        if self.apart > 1:
            tw = tw.transpose(0, 1).flip(*range(2, 2 + n)).contiguous()
            pads: Any = [k - 1 - low for k, (low, _) in zip(self.kernel, self.padding, strict=True)]
            options = {"stride": self.apart, "padding": pads}
        else:  # padded alike on both sides, which is as much work or a little more
            pads = [k // 2 for k in self.kernel] if self.padding == "SAME" else [low for low, _ in self.padding]
            options = {"stride": self.stride, "padding": pads, "groups": self.groups}
        if last and n == 2:
            tx, tw = (t.contiguous(memory_format=torch.channels_last) for t in (tx, tw))
        return tx, tw, lambda x, w: function(x, w, **options)


CONVOLUTIONS = [
    Convolution("3x3, 64", NHWC, 4, 64, 64, (56, 56), (3, 3)),
    Convolution("3x3, 64", NCHW, 4, 64, 64, (56, 56), (3, 3)),
    Convolution("3x3, 256", NHWC, 4, 256, 256, (14, 14), (3, 3)),
    Convolution("3x3, 256", NCHW, 4, 256, 256, (14, 14), (3, 3)),
    Convolution("3x3, 64, stride 2", NHWC, 4, 64, 64, (56, 56), (3, 3), stride=2),
    Convolution("3x3, 64, stride 2", NCHW, 4, 64, 64, (56, 56), (3, 3), stride=2),
    Convolution("1x1, 64 to 256", NHWC, 4, 64, 256, (56, 56), (1, 1)),
    Convolution("1x1, 64 to 256", NCHW, 4, 64, 256, (56, 56), (1, 1)),
    Convolution("depthwise 3x3, 128", NHWC, 4, 128, 128, (56, 56), (3, 3), groups=128),
    Convolution("depthwise 3x3, 128", NCHW, 4, 128, 128, (56, 56), (3, 3), groups=128),
    Convolution("depthwise 7x7, 128", NHWC, 4, 128, 128, (28, 28), (7, 7), groups=128),
    Convolution("7x7, stride 2, 3 to 64", NHWC, 2, 3, 64, (224, 224), (7, 7), stride=2),
    Convolution("7x7, stride 2, 3 to 64", NCHW, 2, 3, 64, (224, 224), (7, 7), stride=2),
    Convolution("causal 3, 64", NWC, 8, 64, 64, (512,), (3,), padding=[(2, 0)]),
    Convolution("causal 3, 64", NCW, 8, 64, 64, (512,), (3,), padding=[(2, 0)]),
    Convolution("causal depthwise 4, 256", NWC, 8, 256, 256, (512,), (4,), padding=[(3, 0)], groups=256),
    Convolution("transposed 4x4, 64", NHWC, 4, 64, 64, (28, 28), (4, 4), padding=[(2, 2), (2, 2)], apart=2),
    Convolution("transposed 4x4, 64", NCHW, 4, 64, 64, (28, 28), (4, 4), padding=[(2, 2), (2, 2)], apart=2),
    Convolution("3x3, 1 to 16", NHWC, 32, 1, 16, (28, 28), (3, 3)),
    Convolution("3x3, 64 to 3", NHWC, 4, 64, 3, (56, 56), (3, 3)),
    Convolution("3x3, 256 in 32 groups", NHWC, 4, 256, 256, (28, 28), (3, 3), groups=32),
]


def jax_like(module: Any, conv: Convolution, kind: str) -> Run:
    """One run by Anima or JAX, compiled: of the convolution, or of its gradient by x or w."""
    f = conv.by(module)
    x, w = module.device_put(conv.arrays())
    ct = module.device_put(np.ones(module.eval_shape(f, x, w).shape, np.float32))
    compiled = module.jit({
        "": lambda x, w, ct: f(x, w),
        "by x": lambda x, w, ct: module.vjp(lambda x: f(x, w), x)[1](ct),
        "by w": lambda x, w, ct: module.vjp(lambda w: f(x, w), w)[1](ct)}[kind])
    return lambda: module.block_until_ready(compiled(x, w, ct))


def torch_like(conv: Convolution, kind: str) -> Run:
    """The same by PyTorch."""
    x, w, f = conv.by_torch(*conv.arrays())
    if not kind:
        def run() -> Any:
            with torch.no_grad():
                return f(x, w)
        return run
    by = (x if kind == "by x" else w).requires_grad_(True)
    y = f(x, w)
    ct = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, by, ct, retain_graph=True)


def cases(words: list[str]) -> Iterator[Case]:
    for conv in CONVOLUTIONS:
        for kind in ("", "by x", "by w"):
            name = f"{conv.name} {conv.layout[0]} {kind}".strip()
            if all(word in name for word in words):
                contestants = {"anima": jax_like(anima, conv, kind)}
                if HAVE_JAX:
                    contestants["jax"] = jax_like(jax, conv, kind)
                if HAVE_TORCH:
                    contestants["torch"] = torch_like(conv, kind)
                yield Case(name, contestants, work=None if kind else work_of(conv.by(anima), conv.arrays()))
    for routine in routines():
        if all(word in routine.name for word in words):
            yield routine.case()


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if HAVE_TORCH:
        torch.set_num_threads(cores)
    print(f"On {cores} cores: median of each; N x = takes N times as long as Anima")
    for case in cases(sys.argv[1:] if sys.argv[0].endswith("surface.py") else []):
        print_row(case.name, measure(case))


if __name__ == "__main__":
    main()
