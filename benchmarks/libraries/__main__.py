"""Runs the programs of this folder, those whose names have one of the words."""

import sys

from benchmarks.libraries import main

main(sys.argv[1:])
