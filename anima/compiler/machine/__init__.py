"""From LLVM text to machine code in this process, and addresses of libraries' functions."""
