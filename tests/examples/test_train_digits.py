"""The example does what it says: it learns to read digits, and its step is the one written in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import train_digits as example

import anima


def test_data() -> None:
    train, test = example.load_digits(0.2, anima.random.key(0))
    images = np.concatenate([train.images, test.images])
    assert images.shape == (1797, 64) and len(test.labels) == 359
    assert images.min() == 0 and images.max() == 1
    assert np.bincount(np.concatenate([train.labels, test.labels])).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_short_run(tmp_path: Path) -> None:
    arguments = ["--epochs", "15", "--hidden", "64", "--no-progress", "--out", str(tmp_path)]
    report = example.main(arguments)
    assert report.accuracy > 0.94
    assert report.difference < 1e-6
    assert 0 < report.kernels < report.equations
    sizes = {p.name: p.stat().st_size for p in tmp_path.iterdir()}
    assert set(sizes) == {"digits_loss.png", "digits_predictions.png"} and min(sizes.values()) > 5000


@pytest.mark.slow
def test_accuracy() -> None:
    report = example.main(["--no-progress", "--no-figures"])
    assert report.accuracy >= 0.97
