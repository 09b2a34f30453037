"""Kernels that libraries import by name: here they are programs of Anima's own operations."""
