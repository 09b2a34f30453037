"""What programs compute does not depend on the sizes at which the compiler decides otherwise."""

from __future__ import annotations

import pytest

from tests.laws.product_programs import check
from tests.laws.random_control import draw
from tests.laws.random_laws import broken
from tests.laws.thresholds import scrambled

EACH = 6  # programs for one set of thresholds


@pytest.mark.parametrize("seed", range(12))
def test_products_by_any_thresholds(seed: int) -> None:
    with scrambled(seed):
        for number in range(EACH * seed, EACH * (seed + 1)):
            check(number)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(100, 104))
def test_programs_keep_the_laws_by_any_thresholds(seed: int) -> None:
    with scrambled(seed):
        for number in range(EACH * seed, EACH * (seed + 1)):
            assert not broken(draw(number), [1, 2]), number
