"""The levels of a program below jaxprs: groups, loops, LLVM text; how they print, what is known of them."""
