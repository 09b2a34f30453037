"""Errors of checkified functions in exported programs: their sites and slots as bytes.

    exported = export(jit(checkify.checkify(f)))(x)         exported.call(x)[0].throw(), in another process too

A site is written as its kind, the format of its message, its place, and the structure and types of what goes into it.
Formats are only filled in, with arrays, and may not ask for what is private to these.
"""

from __future__ import annotations

import re

from anima.control.checks import (
    DivisionByZeroError,
    ErrorLayout,
    FailedCheckError,
    JaxException,
    NaNError,
    OOBError,
    Site,
    SomeError,
)
from anima.control.effects import FORMATTER
from anima.core.avals import ShapedArray
from anima.core.format import FormatError, Reader, Writer
from anima.experimental.checkify import Error
from anima.export.reading import Programs
from anima.export.trees import read_tree, register_pytree_node_serialization, write_tree
from anima.export.writing import Tables
from anima.tree import treedef_tuple

# By number: new ones at the end.
_KINDS: tuple[type[JaxException], ...] = FailedCheckError, NaNError, DivisionByZeroError, OOBError, SomeError


def _to_bytes(layout: ErrorLayout) -> bytes:
    tables, body = Tables(), Writer()

    def types(avals: tuple[ShapedArray, ...]) -> None:
        body.natural(len(avals))
        for aval in avals:
            body.natural(tables.type(aval))

    body.natural(len(layout.sites))
    for site in layout.sites:
        body.natural(_KINDS.index(site.kind))
        body.natural(tables.text(site.text))
        body.natural(tables.source(site.source))
        write_tree(body, site.structure)
        types(site.avals)
    types(layout.slots)
    out = Writer()
    tables.write(out)
    out.append(body)
    return out.bytes()


def _from_bytes(data: bytes) -> ErrorLayout:
    r = Reader(memoryview(data))
    tables = Programs(r)
    sites = r.many(lambda: _site(r, tables))
    layout = ErrorLayout(tuple(sites), tuple(r.many(tables.type)))
    r.end()
    if any(k >= len(layout.slots) for site in sites for k in layout.places(site.avals)):
        raise FormatError("The exported program is damaged: a check has no place for its values.")
    return layout


def _site(r: Reader, tables: Programs) -> Site:
    kind, text, source = _KINDS[r.below(len(_KINDS), "kind of check")], tables.text(), tables.source()
    structure, avals = read_tree(r), tuple(r.many(tables.type))
    outer = structure.children()
    if len(outer) != 2 or treedef_tuple(outer) != structure or structure.num_leaves != len(avals):
        r.fail("the values of a check are not arguments and keywords")
    kinds = [part.node_data() for part in outer]
    if any(known is None or known[0] is not wanted for known, wanted in zip(kinds, (tuple, dict), strict=True)):
        r.fail("the values of a check are not arguments and keywords")
    if not _is_plain(text):
        r.fail("the message of a check has no plain format")
    return Site(kind, text, source, structure, avals)


def _is_plain(text: str) -> bool:
    try:
        return all((field is None or not re.search(r"\.\s*_", field)) and (not spec or _is_plain(spec))
                   for _, field, spec, _ in FORMATTER.parse(text))
    except ValueError:
        return False


register_pytree_node_serialization(Error, serialized_name="anima.checkify.Error", serialize_auxdata=_to_bytes,
                                   deserialize_auxdata=_from_bytes)
