"""Runs the programs of this folder, those whose names have one of the words."""

import sys

from benchmarks.filed import main

main(sys.argv[1:])
