"""Scalar functions in LLVM text: one table, a file for each family."""
