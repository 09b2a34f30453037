"""What the tools around programs cost: references, checks, sparse arrays, exported programs, profiles.

    python -m benchmarks.tools                     or one part: python -m benchmarks.checks
"""

from __future__ import annotations

from benchmarks import checks, exported, profiles, refs, sparse


def main() -> None:
    for part in (refs, checks, sparse, exported, profiles):
        print(f"\n{(part.__doc__ or '').splitlines()[0]}", flush=True)
        part.show()


if __name__ == "__main__":
    main()
