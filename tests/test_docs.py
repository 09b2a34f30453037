"""The map of the project names files, passes and levels that exist."""

from __future__ import annotations

import doctest
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import anima
from anima import lax, numpy as jnp
from anima.compiler import driver
from anima.compiler.driver import to_loops, to_text
from anima.compiler.machine.native import host

ROOT = pathlib.Path(__file__).parent.parent
MAP = (ROOT / "docs" / "map.md").read_text()


def test_files_in_the_map_exist() -> None:
    names = set(re.findall(r"`([\w/]+(?:\.py|\.json|/))`", MAP))
    assert len(names) > 50
    layers = [ROOT, ROOT / "anima", *(p for p in (ROOT / "anima").rglob("*") if p.is_dir())]  # "read first" is inside
    assert not [n for n in sorted(names) if not any((base / n).exists() for base in layers)]


def test_passes_in_the_map_are_those_of_the_driver() -> None:
    listed = [line for line in MAP.split("\n") if line.startswith("| `") and line.count("|") in (4, 5)
              and "`compiler/" in line]
    steps = [*to_loops("f", (), host()), *to_text(host())]
    assert [line.split("`")[1] for line in listed] == [step.name for step in steps]
    for line in listed:
        _, name, _, file, _ = line.split("`", 4)
        assert f"def {name.removesuffix('_again')}(" in (ROOT / "anima" / file).read_text()


def test_passes_in_the_docstring_of_the_driver_are_all_that_it_has() -> None:
    names = [step.name.removesuffix("_again") for step in (*to_loops("f", (), host()), *to_text(host()))]
    page = (driver.__doc__ or "").partition("Passes work on")[0]
    assert [word for word in re.findall(r"\w+", page) if word in names] == names


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert link.startswith("https://") or target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], link


def test_the_map_shows_what_the_compiler_prints() -> None:
    program, printed = re.findall(r"```(?:python)?\n(.*?)```", MAP, re.DOTALL)[:2]
    shown = subprocess.run(
        [sys.executable, "-c", f"import anima, anima.numpy as jnp\n{program}"], capture_output=True, text=True,
        check=True, cwd=ROOT, env={**os.environ, "ANIMA_SHOW": "fused,loops", "PYTHONPATH": str(ROOT)}).stderr
    assert shown.startswith(printed)


def test_the_page_on_references_runs() -> None:
    page = (ROOT / "docs" / "refs.md").read_text()
    names = {"anima": anima, "jnp": jnp, "lax": lax, "places": jnp.array([1, 5, 5]), "w": jnp.ones(3),
             "batches": jnp.ones((2, 3)), "loss": lambda w, b: jnp.sum((w * b) ** 2)}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, names)
    np.testing.assert_array_equal(names["total"][:7], [0, 1, 0, 0, 0, 2, 0])
    np.testing.assert_allclose(names["seen"][...], np.cos(2 * np.ones(3)), rtol=1e-6)
    np.testing.assert_array_equal(names["sums"][...], [4, 4, 4])


def test_the_page_for_users_of_numpy_runs() -> None:
    page = (ROOT / "docs" / "numpy.md").read_text()
    examples = doctest.DocTestParser().get_doctest(page, {}, "numpy.md", None, 0)
    failures, count = doctest.DocTestRunner().run(examples)
    assert failures == 0 and count >= 7


def test_what_the_page_for_users_of_numpy_says_of_indices_and_lists() -> None:
    x = jnp.arange(5.0)
    assert x[10] == 4 and (x.at[10].set(9) == x).all()
    assert jnp.ones(3).dtype == np.float32 and jnp.ones(3, "int32").dtype == np.int32
    with pytest.raises(TypeError, match="requires ndarray or scalar arguments"):
        jnp.sum([1, 2])
    with pytest.raises(TypeError, match="unsupported operand"):
        x + [1, 2]
    assert not np.isfinite(jnp.linalg.inv(jnp.zeros((2, 2)))).any()
    copy, view = np.array(x), np.asarray(x)
    copy[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    carried, _ = lax.scan(lambda c, x: (c + x, None), 0, x)
    assert carried.dtype == np.float32


def test_the_page_on_devices_runs(eight_devices: list[anima.Device]) -> None:
    page = (ROOT / "docs" / "devices.md").read_text()
    examples = doctest.DocTestParser().get_doctest(page, {}, "devices.md", None, 0)
    failures, count = doctest.DocTestRunner().run(examples)
    assert failures == 0 and count >= 14
