"""Requires Anima, and the other half of the pair, from the folders that this one was installed from."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
setup(install_requires=[f"anima @ {HERE.parent.as_uri()}", f"jaxlib @ {(HERE / 'jaxlib').as_uri()}"])
