"""From loops to LLVM text."""
