"""Benchmarks. What is compiled for them is not kept on disk, nor read from there, unless one says so.

After a call, OpenBLAS's threads keep the cores for 0.1 s, and PyTorch's as long: when it is another's turn, that is.
Both are told to sleep sooner (in their own turn, they do not come to it).
"""

import os

os.environ["ANIMA_ENABLE_COMPILATION_CACHE"] = "0"
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "22")  # log2 of processor cycles: 2 ms
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
