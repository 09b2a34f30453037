"""Programs on top of libraries that were written for JAX: `import jax` finds Anima, under JAX's defaults.

    python3 run.py ecosystem            installs the libraries, of the versions of pyproject.toml, and runs all
    python -m pytest tests/ecosystem    with those that are there

in a process of its own: `tests/conftest.py` leaves this folder out unless it is asked for by name. The tests of
`test_optax.py` are skipped where optax is not installed, those of `test_flax_nnx.py` without `flax_nnx` or `flax`. A
module of a library that is there and does not import fails.

The numbers in them are what the same tests found on JAX itself, in an environment that has it and the libraries:

    python -m pytest --noconftest -W default tests/ecosystem/test_optax.py
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

import anima.dropin

anima.dropin.install()


class _Missing(pytest.Module):
    """The tests of a library that is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip(f"{self.path.stem.removeprefix('test_')} is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skips the files whose library is not there."""
    if module_path.parent != Path(__file__).parent:
        return None
    library = module_path.stem.removeprefix("test_")
    if any(find_spec(name) for name in (library, library.partition("_")[0])):
        return None
    module: pytest.Module = _Missing.from_parent(parent, path=module_path)
    return module


def pytest_configure(config: pytest.Config) -> None:
    """Warnings of other people's libraries are no errors."""
    config.addinivalue_line("filterwarnings", "default")
