"""Maps from the text of a program to the lines of Python that asked for it, in the format that browsers read.

    dump, = generate_sourcemaps(f, filter_passes("jaxpr"))(x)
    dump.generated_code, dump.source_map.to_json()

`jaxpr` and `loops` are known: a segment for each equation, and for each kernel. Source maps: https://tc39.es/source-map.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from anima.api.jit import jit
from anima.api.tracing import make_jaxpr
from anima.compiler.driver import lower
from anima.compiler.ir.loops import Again, Kernel, statements
from anima.compiler.ir.show_loops import show
from anima.core.jaxpr import ClosedJaxpr, all_eqns
from anima.core.source import Source
from anima.names import access

Segment = tuple[int, ...]
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


# ---------------------------------------------------------------- maps

def _encoded(number: int) -> str:
    """A number in base 64, five bits a digit, the lowest first: its sign is the lowest of all."""
    rest = -number << 1 | 1 if number < 0 else number << 1
    out = ""
    while True:
        rest, digit = rest >> 5, rest & 31
        out += _DIGITS[digit | 32 * bool(rest)]
        if not rest:
            return out


def _decoded(text: str) -> Iterator[int]:
    """The numbers of a segment."""
    total = shift = 0
    for character in text:
        digit = _DIGITS.index(character)
        total |= (digit & 31) << shift
        shift += 5
        if not digit & 32:
            yield -(total >> 1) if total & 1 else total >> 1
            total = shift = 0


@dataclass(frozen=True)
class SourceMap:
    """A map: for each line of a text, segments (column, file, line, column), each number relative to the one before."""

    version: int
    sources: Sequence[str]
    sources_content: Sequence[str]
    names: Sequence[str]
    mappings: Sequence[Sequence[Segment]]

    def to_json(self) -> str:
        """As a file has it."""
        text = ";".join(",".join("".join(map(_encoded, s)) for s in line) for line in self.mappings)
        return json.dumps({"version": self.version, "sources": self.sources, "sourcesContent": self.sources_content,
                           "names": self.names, "mappings": text})

    @classmethod
    def from_json(cls, json_data: str) -> SourceMap:
        """What `to_json` wrote."""
        data = json.loads(json_data)
        lines = [[tuple(_decoded(s)) for s in line.split(",") if s] for line in data["mappings"].split(";")]
        return cls(data["version"], data["sources"], data["sourcesContent"], data["names"], lines)


class MappingsGenerator:
    """Makes the lines of a map of segments whose numbers are not relative to others."""

    def __init__(self) -> None:
        self._lines: list[list[Segment]] = []
        self._last = [0, 0, 0, 0, 0]

    def new_group(self) -> None:
        """A new line of the text."""
        self._lines.append([])
        self._last[0] = 0

    def new_segment(self, *seg: int) -> None:
        """A segment (column, file, line, column, name), with one, four or five numbers, in the last line.

        RuntimeError if there is no line yet, ValueError for another number of numbers.
        """
        if not self._lines:
            raise RuntimeError("No current group. Forgot to call new_group()?")
        if len(seg) not in (1, 4, 5):
            raise ValueError(f"A segment has one, four or five numbers, got {seg}")
        self._lines[-1].append(tuple(a - b for a, b in zip(seg, self._last, strict=False)))
        self._last[:len(seg)] = seg

    def mappings(self) -> Sequence[Sequence[Segment]]:
        """The segments of each line."""
        return self._lines


@dataclass(frozen=True)
class SourceMapDump:
    """A program's text, and its map."""

    source_map: SourceMap
    generated_code: str
    pass_name: str


# ---------------------------------------------------------------- passes

@dataclass(frozen=True)
class Pass:
    """A kind of text: `compile_fn(folder, f, args, kwargs, **options)` makes what `generate_dump` shows."""

    name: str
    compile_fn: Callable[..., Any]
    generate_dump: Callable[..., SourceMapDump]


_passes: dict[str, Pass] = {}


def register_pass(pass_: Pass) -> None:
    """Makes a kind of text known; ValueError for one whose name is taken."""
    if pass_.name in _passes:
        raise ValueError(f"Pass {pass_.name} already registered")
    _passes[pass_.name] = pass_


def all_passes() -> Sequence[Pass]:
    """Those that are known."""
    return list(_passes.values())


def filter_passes(regex: str) -> Sequence[Pass]:
    """Those whose name begins with a match of the regular expression."""
    return [p for p in _passes.values() if re.match(regex, p.name)]


def generate_sourcemaps(f: Callable[..., Any], passes: Sequence[Pass],
                        **pass_kwargs: Any) -> Callable[..., Sequence[SourceMapDump]]:
    """A function of the arguments of `f` that gives the text and the map of each of the passes.

    >>> dump, = generate_sourcemaps(jnp.sin, filter_passes("jaxpr"))(1.0)
    >>> print(dump.generated_code.splitlines()[1].strip())
    b:f32[] = sin a
    """
    def dumps(*args: Any, **kwargs: Any) -> Sequence[SourceMapDump]:
        made: dict[Any, Any] = {}
        with TemporaryDirectory() as folder:
            for one in passes:
                if one.compile_fn not in made:
                    made[one.compile_fn] = one.compile_fn(folder, f, args, kwargs, **pass_kwargs)
            return [one.generate_dump(made[one.compile_fn], **pass_kwargs) for one in passes]

    return dumps


def compile_with_env(f: Callable[..., Any], f_args: Sequence[Any], f_kwargs: dict[str, Any], env_flags: dict[str, Any],
                     compiler_flags: dict[str, Any] | None) -> None:
    """Compiles a function; NotImplementedError for flags of XLA's."""
    if env_flags or compiler_flags:
        raise NotImplementedError("source_mapper.compile_with_env: there are no flags of XLA's here. ANIMA_SHOW prints "
                                  "what each pass makes of a program.")
    jit(f).lower(*f_args, **f_kwargs).compile()


def canonicalize_filename(file_name: str) -> str:
    """The name itself: no option shortens it."""
    return file_name


def _mapped(lines: Iterable[tuple[str, Source | None]], name: str) -> SourceMapDump:
    """A text, of whose lines some come from a line of Python."""
    files: list[str] = []
    mappings, text = MappingsGenerator(), []
    for line, source in lines:
        text.append(line)
        mappings.new_group()
        if source is not None:
            if source.file not in files:
                files.append(source.file)
            mappings.new_segment(len(line) - len(line.lstrip()), files.index(source.file), source.line - 1, 0)
    return SourceMapDump(SourceMap(3, files, [], [], mappings.mappings()), "\n".join(text), name)


def _jaxpr(folder: str, f: Any, args: Any, kwargs: Any, **options: Any) -> ClosedJaxpr:
    return make_jaxpr(f)(*args, **kwargs)


def _jaxpr_dump(closed: ClosedJaxpr, **options: Any) -> SourceMapDump:
    known = {str(e.source): e.source for e in all_eqns(closed)}

    def lines() -> Iterator[tuple[str, Source | None]]:
        for line in closed.pretty_print(source_info=True, use_color=False).splitlines():
            text, _, place = line.partition("  # ")
            yield text, known.get(place)

    return _mapped(lines(), "jaxpr")


def _loops_dump(closed: ClosedJaxpr, **options: Any) -> SourceMapDump:
    program = lower(closed).loops
    sources = iter([s.source for s in statements(*program.body) if isinstance(s, (Kernel, Again))])
    return _mapped(((line, next(sources, None) if line.lstrip().startswith("kernel ") else None)
                    for line in show(program).splitlines()), "loops")


register_pass(Pass("jaxpr", _jaxpr, _jaxpr_dump))
register_pass(Pass("loops", _jaxpr, _loops_dump))

globals().update(access(__name__, globals()))
