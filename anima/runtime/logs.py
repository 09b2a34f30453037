"""What `jit` tells when asked: `log_compiles` and `explain_cache_misses`, as warnings of the logger "anima".

    Finished tracing f for jit in 0.000412 s
    Finished compilation of jit(f) in 0.008105 s
    TRACING CACHE MISS: f was called with
      x: f32[4]; the nearest of 1 known signatures has f32[3].
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from anima import errors, monitoring
from anima.config import config, keyed
from anima.core.array import Array
from anima.core.jaxpr import ClosedJaxpr
from anima.spans import span
from anima.util import logger


def _say(text: str) -> None:
    logger().warning(text)


kinds = {"trace": ("tracing {} for jit", "/jax/core/compile/jaxpr_trace_duration"),
         "compile": ("compilation of jit({})", "/jax/core/compile/backend_compile_duration"),
         "load": ("loading of jit({}) from the cache", "/jax/compilation_cache/cache_retrieval_time_sec")}


@contextmanager
def timed(kind: str, name: str) -> Iterator[None]:
    """What the block does, "trace", "compile" or "load", for the function `name`, and how long it takes: for profiles,
    listeners (`monitoring`) and, under `log_compiles`, the log."""
    text, event = kinds[kind]
    begun, start = time.time(), time.perf_counter()
    with span(text.format(name), kind):
        yield
    seconds = time.perf_counter() - start
    monitoring.record_event_duration_secs(event, seconds, fun_name=name)
    monitoring.record_event_time_span(event, begun, begun + seconds, fun_name=name)
    if config.log_compiles:
        _say(f"Finished {text.format(name)} in {seconds:.6f} s")
    elif config.debug_log_modules or config.logging_level == "DEBUG":
        logger().debug("Finished %s in %.6f s", text.format(name), seconds)


def explain_miss(name: str, known: Iterable[tuple[Any, ...]], key: tuple[Any, ...],
                 names: Callable[[], Sequence[str]]) -> None:
    """Logs, under `explain_cache_misses`, how a signature (tree, types, static arguments, options) is new."""
    if not config.explain_cache_misses:
        return
    where = errors.user_line()
    keys = [k for k in list(known) if k != key]
    if not keys:
        _say(f"TRACING CACHE MISS: {name} was never called before\n  {where}")
        return
    found = min((_differences(k, key, names()) for k in keys), key=lambda d: (d[0][0] == _STRUCTURE, len(d)))
    texts = [f"{what} {new}; the nearest of {len(keys)} known signatures has {old}." for what, old, new in found]
    _say("\n  ".join([f"TRACING CACHE MISS: {name} was called with", *texts, where]))


_STRUCTURE = "arguments of the structure"


def _differences(old: tuple[Any, ...], new: tuple[Any, ...], names: Sequence[str]) -> list[tuple[str, Any, Any]]:
    if old[0] != new[0]:
        return [(_STRUCTURE, old[0], new[0])]
    out = [(f"{n}:", _type(a), _type(b)) for n, a, b in zip(names, old[1], new[1], strict=True) if a != b]
    if old[2] != new[2]:
        out.append(("static", _static(old[2]), _static(new[2])))
    if old[4] != new[4]:
        out.append(("mapped axes", dict(old[4]), dict(new[4])))
    options = zip([option.name for option in keyed()], old[3].values, new[3].values, strict=False)
    return out + [(f"{option} =", a, b) for option, a, b in options if a != b]


def _static(static: tuple[Any, ...]) -> str:
    return ", ".join(f"{place}={value!r}" for place, _, value in (*static[1], *static[2:])) or "none"


def _type(aval: Any) -> str:
    return aval.str_short() + (" (weakly typed)" if aval.weak_type else "")


def warn_of_constants(closed: ClosedJaxpr, name: str) -> None:
    """UserWarning for a program that holds large arrays, as `config.captured_constants_warn_bytes` says."""
    limit = config.captured_constants_warn_bytes
    sizes = [c.nbytes if isinstance(c, Array) else 0 for c in closed.consts] if limit >= 0 and closed.consts else []
    if not sizes or sum(sizes) < limit:
        return
    text = (f"A large amount of constants were captured by {name}, traced for jit ({sum(sizes) / 1e6:.3g} MB total). "
            "Pass them as arguments; or set ANIMA_CAPTURED_CONSTANTS_WARN_BYTES=-1, if this is intended. To be told "
            "where they are, set ANIMA_CAPTURED_CONSTANTS_REPORT_FRAMES=-1.")
    if config.captured_constants_report_frames:
        largest = sorted(zip(sizes, closed.jaxpr.constvars, strict=True), key=lambda pair: -pair[0])[:5]
        for size, var in largest:
            source = next((e.source for e in closed.eqns if var in e.invars), None)
            text += f"\n  {var.aval.str_short()}, {size / 1e6:.3g} MB{f', used at {source}' if source else ''}"
    warnings.warn(text, UserWarning, stacklevel=errors.user_stacklevel())
