"""Benchmarks. What is compiled for them is not kept on disk, nor read from there, unless one says so."""

import os

os.environ["ANIMA_ENABLE_COMPILATION_CACHE"] = "0"
