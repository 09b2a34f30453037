"""More than a hundred random programs of every kind; `python -m tests.laws.run` runs any number."""

from __future__ import annotations

import warnings

import pytest

from tests.laws.random_control import draw
from tests.laws.random_laws import broken
from tests.laws.random_programs import shrink

EACH, FIRST = 10, 100_000  # programs of a test, and where they start: others than those of long runs
# After these come those of the next that have operations which the first lack, or scans from the end.
NUMBERS = [*range(FIRST, FIRST + 120), *(FIRST + n for n in (
    120, 122, 130, 133, 136, 143, 151, 152, 157, 162, 164, 173, 174, 176, 182, 183, 186, 188, 194, 198, 200, 203, 204,
    210, 211, 212, 213, 218, 223, 231, 238, 240, 242, 243, 246, 251, 255, 256, 262, 273, 274, 277, 279, 280, 284, 289,
    292, 293, 294, 298))]


@pytest.mark.parametrize("start", range(0, len(NUMBERS), EACH))
def test_random_programs_keep_the_laws(start: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in NUMBERS[start:start + EACH]:
            program = draw(number)
            found = broken(program, (1, 2, 8))
            assert not found, f"{found}\npython -m tests.laws.run --show {number}\n{program.source()}"


@pytest.mark.parametrize("number", (2_000_683, 2_003_222, 2_003_635, 2_014_876, 2_019_830))
def test_programs_that_broke_a_law_before(number: int) -> None:
    """Small convolutions in conditions of loops; a name for what nobody reads, in one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not broken(draw(number), (1, 2))


def test_a_number_always_gives_the_same_program() -> None:
    for number in range(30):
        assert draw(number).source() == draw(number).source()


def test_programs_shrink_to_what_fails() -> None:
    program = next(p for p in map(draw, range(100)) if len(p.block.steps) > 5)
    name = program.block.steps[-1].name
    small = shrink(program, lambda p: any(s.name == name for s in p.block.steps))
    assert [s.name for s in small.block.steps if not s.name.startswith("constant")] == [name]
