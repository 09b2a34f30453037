"""The documents' cells through `import jax`: `tests/documents`, with the names that people write, in one process."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CELLS = ROOT / "tests/documents"


def as_written(text):
    """A test of Anima's with JAX's names; calls are printed as `jit`, which the documents' JAX called `pjit`."""
    return re.sub(r"\banima\b", "jax", text).replace(" pjit[", " jit[")


def test_every_cell_of_the_documents(tmp_path):
    for path in CELLS.glob("test_*.py"):
        (tmp_path / path.name).write_text(as_written(path.read_text()))
    # The documents' random numbers are those of the older stream; the cells start processes, too.
    paths = map(str, (ROOT, ROOT / "dropin/src", ROOT / "dropin/jaxlib/src"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_THREEFRY_PARTITIONABLE": "0"}
    done = subprocess.run([sys.executable, "-m", "anima", "run", "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
                          cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 149
