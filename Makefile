# Each target is one subcommand of run.py, which sets up what it needs.
PYTHON ?= python3

.PHONY: setup demo tiny test ecosystem check bench matrix sizes
setup demo tiny test ecosystem check bench matrix sizes:
	$(PYTHON) run.py $@
