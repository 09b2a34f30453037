"""Tapes: what compiled loops call to keep values of their steps, and programs that take or give tapes."""
