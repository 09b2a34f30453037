"""The tables of docs/performance.md, from a run of benchmarks.

    python -m benchmarks.table out/bench-20260131-120000.json
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import PEERS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"


def lines(rows: Sequence[dict[str, Any]], peers: Sequence[str]) -> Iterable[str]:
    """A table: Anima's time, and how many times as long each peer takes."""
    yield f"| program | Anima | {' | '.join(peers)} |"
    yield f"|---|---|{'---|' * len(peers)}"
    for row in rows:
        seconds = row["seconds"]
        cells = [f"{seconds[p] / seconds['anima']:.2f}" if p in seconds else "" for p in peers]
        yield f"| {row['name']} | {1e3 * seconds['anima']:.3f} ms | {' | '.join(cells)} |"


def means(rows: Sequence[dict[str, Any]], peers: Sequence[str]) -> Iterable[str]:
    """A table of benchmarks: geometric means of Anima's time over each peer's, and in how many rows it is longer."""
    yield f"| benchmark | {' | '.join(peers)} |"
    yield f"|---|{'---|' * len(peers)}"
    names = [*dict.fromkeys(r["benchmark"] for r in rows), ""]
    for name in names:
        cells = []
        for peer in peers:
            ratios = [r["seconds"]["anima"] / r["seconds"][peer] for r in rows
                      if peer in r["seconds"] and r["benchmark"] in (name or r["benchmark"])]
            mean = math.exp(statistics.mean(map(math.log, ratios))) if ratios else None
            cells.append("" if mean is None else f"{mean:.2f} ({sum(x > 1.05 for x in ratios)} of {len(ratios)})")
        yield f"| {name or 'all'} | {' | '.join(cells)} |"


def put(page: str, name: str, table: Iterable[str]) -> str:
    """The page with a table between the marks of its name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = "\n".join((begin, *table, end))
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: text, page, flags=re.DOTALL)


def main(files: Sequence[str]) -> None:
    rows = [row for file in files for row in json.loads(Path(file).read_text())["rows"]]
    peers = [p for p in PEERS if any(p in r["seconds"] for r in rows)]
    filed = [r for r in rows if r["benchmark"] == "filed"]
    page = PAGE.read_text()
    if filed:
        page = put(page, "filed", lines(filed, [p for p in peers if any(p in r["seconds"] for r in filed)]))
    PAGE.write_text(put(page, "means", means(rows, peers)))


if __name__ == "__main__":
    main(sys.argv[1:])
