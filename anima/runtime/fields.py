"""Fields by name in LLVM text.

    %x = field ptr %header, data          %x.in = getelementptr i8, ptr %header, i64 8
                                          %x = load ptr, ptr %x.in
    set ptr %x, %header, data             %header.data.1 = getelementptr i8, ptr %header, i64 8
                                          store ptr %x, ptr %header.data.1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count

_LOAD = re.compile(r"(%[\w.]+) = field (\w+) (%[\w.]+), ([\w.]+)")
_STORE = re.compile(r"\bset (\w+) (.+), (%[\w.]+), ([\w.]+)$", re.MULTILINE)


def with_fields(text: str, offsets: Mapping[str, int]) -> str:
    """LLVM text with loads and stores of fields written out; `offsets` are their bytes. KeyError for others."""
    numbers = count(1)

    def load(found: re.Match[str]) -> str:
        new, type, thing, name = found.groups()
        return f"{new}.in = getelementptr i8, ptr {thing}, i64 {offsets[name]}\n  {new} = load {type}, ptr {new}.in"

    def store(found: re.Match[str]) -> str:
        type, value, thing, name = found.groups()
        place = f"{thing}.{name}.{next(numbers)}"
        return (f"{place} = getelementptr i8, ptr {thing}, i64 {offsets[name]}\n"
                f"  store {type} {value}, ptr {place}")

    return _STORE.sub(store, _LOAD.sub(load, text))
