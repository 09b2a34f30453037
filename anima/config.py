"""Options: one global value each, overridden for one thread inside a `with`.

    config.update("anima_enable_x64", True)     # the same option as "jax_enable_x64" and "enable_x64"
    with enable_x64(False):                     # this thread only; nests
        ...

Inside Anima an option is read as `enable_x64.value`, which costs an attribute load; only while some
thread holds an override are the thread's own values looked up. `config.trace_key()` is the hashable
summary that compiled functions are cached under. First values come from the environment:
`ANIMA_ENABLE_X64`, else `JAX_ENABLE_X64`.
"""
from __future__ import annotations

import contextlib
import itertools
import operator
import os
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import FunctionType
from typing import Any

from anima.names import did_you_mean
from anima.other_options import DOT_ALGORITHMS, OTHER_OPTIONS, TRANSFER_GUARDS
from anima.util import fork_safe, lazy_module

_PREFIXES = ("anima_", "jax_")
_TRUE = frozenset(("1", "true", "t", "yes", "y", "on"))
_FALSE = frozenset(("0", "false", "f", "no", "n", "off", ""))
_REQUIRED = object()
_environment = {name: text for name, text in os.environ.items() if name.startswith(("ANIMA_", "JAX_"))}
logging = lazy_module("logging")


class _ThreadState(threading.local):
    """What one thread overrides; `key` caches its trace key under the version it was made at."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.key: tuple[int, Any] = (-1, None)


_thread = _ThreadState()
_lock = fork_safe(threading.RLock())
_total_overrides = 0    # held now, by all threads together
_version = 0            # counts changes of global values
settled: list[Any] = [None]  # `config.call_key()`, as long as no thread overrides an option; None: not known


class Option:
    """One setting: `option.value` reads it, `option.set(v)` sets it, `with option(v):` for this thread."""

    __slots__ = ("_global", "_on_call", "_overrides", "_parse", "doc", "in_trace_key", "name", "on_set")

    def __init__(self, name: str, default: Any, parse: Callable[[str, Any], Any], doc: str, *,
                 in_trace_key: bool = False,
                 on_set: Callable[[Any, Any], None] | None = None) -> None:
        self.name = name
        self.doc = doc
        self.in_trace_key = in_trace_key
        self._parse = parse
        self._overrides = 0
        self._on_call = True if parse is _parse_bool else _REQUIRED     # `with option():` turns a switch on
        self.on_set = on_set   # what else a new global value does: it gets the one before, and the new one
        words = name.upper()
        text = _environment.get("ANIMA_" + words, _environment.get("JAX_" + words))
        self._global = default
        if text is not None:
            self.set(text)

    @property
    def value(self) -> Any:
        """The value that holds for this thread now."""
        if self._overrides:
            return _thread.values.get(self.name, self._global)
        return self._global

    def set(self, value: Any) -> None:
        """Set the global value; ValueError if it is not one of the option's values."""
        global _version
        value = self._parse(self.name, value)
        with _lock:
            before, self._global, settled[0] = self._global, value, None
            _version += 1
        if self.on_set is not None:
            self.on_set(before, value)

    def __call__(self, new_val: Any = _REQUIRED) -> _Override:
        """A context manager (and decorator) under which this thread sees `new_val`."""
        value = self._on_call if new_val is _REQUIRED else new_val
        if value is _REQUIRED:
            raise TypeError(f"{self.name}() needs a value, as in `with anima.{self.name}(value):`")
        return _Override((self,), (self._parse(self.name, value),))

    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        return self if instance is None else self.value

    def __set__(self, instance: object, value: Any) -> None:
        raise AttributeError(f"set options with config.update('anima_{self.name}', {value!r})")

    def __repr__(self) -> str:
        return f"<option {self.name} = {self.value!r}>"


class _DisableJit(Option):
    """The option whose call needs no value."""

    __slots__ = ()

    def __call__(self, disable: Any = True) -> _Override:
        return super().__call__(disable)


class _Override(contextlib.ContextDecorator):
    """Holds one thread's values of some options between enter and exit."""

    __slots__ = ("new", "options", "saved")

    def __init__(self, options: Sequence[Option], new: Sequence[Any]) -> None:
        self.options = options
        self.new = new
        self.saved: list[list[Any]] = []

    def _recreate_cm(self) -> _Override:
        return _Override(self.options, self.new)     # as a decorator: one state for each call

    def __enter__(self) -> None:
        values = _thread.values
        self.saved.append([values.get(option.name, _REQUIRED) for option in self.options])
        for option, value in zip(self.options, self.new, strict=True):
            values[option.name] = value
        self._changed(+1)

    def __exit__(self, *exception: object) -> None:
        for option, previous in zip(self.options, self.saved.pop(), strict=True):
            if previous is _REQUIRED:
                del _thread.values[option.name]
            else:
                _thread.values[option.name] = previous
        self._changed(-1)

    def _changed(self, count: int) -> None:
        global _total_overrides
        with _lock:
            for option in self.options:
                option._overrides += count
            _total_overrides, settled[0] = _total_overrides + count, None
        _thread.key = (-1, None)


def _parse_bool(name: str, value: Any) -> bool:
    if isinstance(value, str):
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise ValueError(f"{value!r} is not a valid truth value for anima_{name}")
    return bool(value)


def _parse_int(name: str, value: Any) -> int | None:
    return None if value is None else int(value)


def _parse_float(name: str, value: Any) -> float:
    return float(value)


_device_count: list[int] = []  # how many devices there are, once this has been asked


def _parse_count(name: str, value: Any) -> int | None:
    count = _parse_int(name, value)
    if count not in (None, -1) and count < 1:
        raise ValueError(f"anima_{name} must be at least 1, or -1 for what XLA_FLAGS says, got {count}")
    if _device_count and count not in (None, -1, *_device_count):
        raise RuntimeError(f"anima_{name} config should be updated before backends are initialized i.e. before any "
                           f"device is asked for: there are {_device_count[0]} by now, not {count}. Set it immediately "
                           "after `import anima`.")
    return count


def fixed_device_count() -> int:
    """How many devices the CPU is shown as, from now on: as num_cpu_devices says, else XLA_FLAGS, else 1."""
    count = num_cpu_devices.value
    if count in (None, -1):
        flags = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
        count = int(flags[-1]) if flags else 1
    _device_count[:] = [max(count, 1)]
    return _device_count[0]


def device_count_is_fixed() -> bool:
    """Whether somebody has asked for a device, so that there will be no more of them."""
    return bool(_device_count)


def _parse_any(name: str, value: Any) -> Any:
    return value


def _parse_device(name: str, value: Any) -> Any:
    if value is None or getattr(value, "platform", value) == "cpu" or hasattr(value, "device_kind"):
        return value
    if not isinstance(value, str):
        raise ValueError(f"anima_{name} must be a Device (anima.devices()[0]) or a platform's name, got {value!r}.")
    raise RuntimeError(f"Unknown backend: {value!r} requested for anima_{name}, but platforms present are: cpu")


def _one_of(kind: str, *choices: str, optional: bool = False) -> Callable[[str, Any], Any]:
    def parse(name: str, value: Any) -> Any:
        if value is None and optional:
            return None
        text = str(getattr(value, "name", value))   # enum members such as lax.Precision.HIGHEST
        for choice in choices:
            if text == choice or text.lower() == choice:
                return choice
        raise ValueError(f"{value!r} is not a valid {kind}; anima_{name} takes "
                         + " or ".join(map(repr, choices)) + (" or None" if optional else ""))
    return parse


def _not_yet(parse: Callable[[str, Any], Any], missing: str, instead: str) -> Callable[[str, Any], Any]:
    """`parse`, but NotImplementedError for one of its values."""
    def checked(name: str, value: Any) -> Any:
        value = parse(name, value)
        if value == missing:
            raise NotImplementedError(f"anima_{name}={value!r} is not there: {instead}.")
        return value
    return checked


def _log_from(before: str | None, level: str | None) -> None:
    """Has Anima's loggers tell what is of this level or graver."""
    logging.getLogger("anima").setLevel(getattr(logging, level or "NOTSET"))


def _log_modules(before: str, names: str) -> None:
    """Has the loggers of these modules tell everything, on standard error; those named before do not any more."""
    for name in filter(None, before.split(",")):
        logger = logging.getLogger(name)
        logger.setLevel(logging.NOTSET)
        for handler in [h for h in logger.handlers if h.get_name() == "anima_debug_log_modules"]:
            logger.removeHandler(handler)
    for name in filter(None, names.split(",")):
        handler = logging.StreamHandler()
        handler.set_name("anima_debug_log_modules")
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.DEBUG)


def _guard_all(before: str | None, level: str | None) -> None:
    for name in TRANSFER_GUARDS[1:]:
        _other(name).set(level)


def _parse_text(name: str, value: Any) -> str:
    return "" if value is None else str(value)


def _parse_offset(name: str, value: Any) -> int:
    return operator.index(int(value) if isinstance(value, str) else value)


enable_x64 = Option("enable_x64", False, _parse_bool, "64-bit types; off, they are truncated to 32 bits.",
                    in_trace_key=True)
debug_nans = Option("debug_nans", False, _parse_bool, "Raise FloatingPointError where a NaN is made.",
                    in_trace_key=True)
debug_infs = Option("debug_infs", False, _parse_bool, "Raise FloatingPointError where an infinity is made.",
                    in_trace_key=True)
disable_jit = _DisableJit("disable_jit", False, _parse_bool, "Run jitted functions and loops as plain Python.",
                          in_trace_key=True)
threefry_partitionable = Option("threefry_partitionable", False, _parse_bool,
                                "The newer stream of random numbers.", in_trace_key=True)
numpy_dtype_promotion = Option(
    "numpy_dtype_promotion", "standard", _one_of("NumpyDtypePromotion", "standard", "strict"),
    "'strict': only Python scalars promote implicitly.", in_trace_key=True)
numpy_rank_promotion = Option(
    "numpy_rank_promotion", "allow", _one_of("NumpyRankPromotion", "allow", "warn", "raise"),
    "What implicit broadcasting between ranks does.", in_trace_key=True)
default_matmul_precision = Option(
    "default_matmul_precision", None,
    _one_of("MatmulPrecision", "default", "high", "highest", "bfloat16", "bfloat16_3x", "tensorfloat32",
            "float32", *DOT_ALGORITHMS, optional=True),
    "The precision of matrix products that name none, or their algorithm.", in_trace_key=True)
default_prng_impl = Option(
    "default_prng_impl", "threefry2x32", _parse_any, "What random.key makes.", in_trace_key=True)
enable_custom_prng = Option(
    "enable_custom_prng", False, _parse_bool, "random.PRNGKey makes new-style typed keys.", in_trace_key=True)
debug_key_reuse = Option("debug_key_reuse", False, _parse_bool, "Raise KeyReuseError for a key used twice.",
                         in_trace_key=True)
check_tracer_leaks = Option("check_tracer_leaks", False, _parse_bool,
                            "Raise as soon as a traced function has left a tracer behind.",
                            in_trace_key=True)
default_device = Option("default_device", None, _parse_device, "Where arrays are made when nothing says.",
                        in_trace_key=True)
enable_checks = Option("enable_checks", False, _parse_bool, "Check the invariants of every jaxpr made.")
pallas_enable_debug_checks = Option("pallas_enable_debug_checks", False, _parse_bool,
                                    "Make checks of pallas.debug_check.", in_trace_key=True)
profiling = Option("profiling", False, _parse_bool, "Compile programs that note times: profiler.start_trace sets it.",
                   in_trace_key=True)
log_checkpoint_residuals = Option("log_checkpoint_residuals", False, _parse_bool,
                                  "Log what functions under checkpoint keep, where they are differentiated.")
captured_constants_warn_bytes = Option(
    "captured_constants_warn_bytes", 2_000_000_000, _parse_offset,
    "Warn of jitted functions that close over arrays of so many bytes or more; -1: of none.")
captured_constants_report_frames = Option(
    "captured_constants_report_frames", 0, _parse_offset, "Not 0: the warning says where the largest of them are used.")
log_compiles = Option("log_compiles", False, _parse_bool, "Log each compilation and its time.")
explain_cache_misses = Option("explain_cache_misses", False, _parse_bool, "Say why jit traced again.")
traceback = Option("traceback", "filtered", _one_of("Traceback", "filtered", "full"),
                   "'full' keeps Anima's own frames in tracebacks.")
compilation_cache_dir = Option("compilation_cache_dir", None, _parse_any, "The folder of the cache of compiled code; "
                               "None: ANIMA_CACHE_DIR, or else `anima` in the user's folder of caches.")
platforms = Option("platforms", None, _parse_any, "The platforms to use, by name, best first.")
platform_name = Option("platform_name", None, _parse_any, "The default platform.")
flush_subnormals = Option("flush_subnormals", True, _parse_bool, "What decays is never subnormal.", in_trace_key=True)
tape_budget = Option("tape_budget", None, _parse_int, "Bytes that reverse mode through while_loop may remember in one "
                     "program; None: a quarter of the memory that is free.")
num_cpu_devices = Option("num_cpu_devices", None, _parse_count, "How many devices the CPU is shown as; None, -1: what "
                         "XLA_FLAGS says in --xla_force_host_platform_device_count=N, else one.")
random_seed_offset = Option("random_seed_offset", 0, _parse_offset, "What is added to the seed of each key.",
                            in_trace_key=True)
legacy_prng_key = Option("legacy_prng_key", "allow", _one_of("LegacyPrngKeyState", "allow", "warn", "error"),
                         "What random functions do that are given a raw key of uint32 words.", in_trace_key=True)
high_dynamic_range_gumbel = Option("high_dynamic_range_gumbel", False, _parse_bool,
                                   "random.gumbel that names no mode resolves the lower tail.", in_trace_key=True)
allow_f16_reductions = Option("allow_f16_reductions", True, _parse_bool,
                              "Off, the primitive reduce_sum raises for float16 and bfloat16.", in_trace_key=True)
softmax_custom_jvp = Option("softmax_custom_jvp", False, _parse_bool, "Differentiate nn.softmax by its result alone.",
                            in_trace_key=True)
check_static_indices = Option("check_static_indices", False, _parse_bool,
                              "Raise IndexError for known indices out of bounds of an array that is read.",
                              in_trace_key=True)
no_execution = Option("no_execution", False, _parse_bool, "Raise where something would be computed.",
                      in_trace_key=True)
no_tracing = Option("no_tracing", False, _parse_bool, "Raise where a function would be traced.")
traceback_filtering = Option("traceback_filtering", "auto", _one_of(
    "traceback_filtering", "off", "tracebackhide", "remove_frames", "quiet_remove_frames", "auto"),
    "'off' keeps Anima's own frames in tracebacks, as traceback='full' does.")
logging_level = Option("logging_level", None, _one_of(
    "logging_level", "NOTSET", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", optional=True),
    "From which level on Anima's loggers speak; None leaves them as they are.", on_set=_log_from)
debug_log_modules = Option("debug_log_modules", "", _parse_text, "Modules, as 'anima,anima.debug', which log all they "
                           "have to say to standard error.", on_set=_log_modules)
enable_compilation_cache = Option("enable_compilation_cache", True, _parse_bool, "Off, the cache on disk is not used.")
persistent_cache_min_compile_time_secs = Option("persistent_cache_min_compile_time_secs", 0.0, _parse_float,
                                                "Code that compiles faster is not put on disk.")
persistent_cache_min_entry_size_bytes = Option("persistent_cache_min_entry_size_bytes", 0, _parse_offset,
                                               "Code that is smaller is not put on disk.")
compilation_cache_max_size = Option("compilation_cache_max_size", 1 << 29, _parse_offset, "Bytes that the cache on "
                                    "disk may take, least recently used code goes first; -1: any number.")
explicit_x64_dtypes = Option("explicit_x64_dtypes", "warn", _not_yet(
    _one_of("ExplicitX64Mode", "warn", "error", "allow"), "allow", "types of 64 bits come with anima_enable_x64"),
    "What asking for a type of 64 bits does while these are off.", in_trace_key=True)
error_checking_behavior_nan, error_checking_behavior_divide, error_checking_behavior_oob = (
    Option(f"error_checking_behavior_{what}", "ignore", _not_yet(
        _one_of("error_checking_behavior", "ignore", "raise"), "raise", fix), "Set anima_debug_nans, or use checkify.")
    for what, fix in (("nan", "set anima_debug_nans, or use checkify.nan_checks"),
                      ("divide", "set anima_debug_infs, or use checkify.div_checks"),
                      ("oob", "set anima_check_static_indices, or use checkify.index_checks")))
raise_persistent_cache_errors = Option("raise_persistent_cache_errors", False, _parse_bool,
                                       "Raise what reading and writing the cache on disk raises.")

OPTIONS: dict[str, Option] = {option.name: option for option in (
    enable_x64, debug_nans, debug_infs, disable_jit, threefry_partitionable, numpy_dtype_promotion,
    numpy_rank_promotion, default_matmul_precision, default_prng_impl, enable_custom_prng, debug_key_reuse,
    check_tracer_leaks, default_device, enable_checks, pallas_enable_debug_checks, profiling, log_compiles,
    log_checkpoint_residuals, captured_constants_warn_bytes, captured_constants_report_frames, explain_cache_misses,
    traceback, compilation_cache_dir, platforms, platform_name, flush_subnormals, tape_budget, num_cpu_devices,
    random_seed_offset, legacy_prng_key, high_dynamic_range_gumbel, allow_f16_reductions, softmax_custom_jvp,
    check_static_indices, no_execution, no_tracing, traceback_filtering, logging_level, debug_log_modules,
    enable_compilation_cache, persistent_cache_min_compile_time_secs, persistent_cache_min_entry_size_bytes,
    compilation_cache_max_size, raise_persistent_cache_errors, explicit_x64_dtypes, error_checking_behavior_nan,
    error_checking_behavior_divide, error_checking_behavior_oob)}
_others: dict[str, Option] = {}


def _other(name: str) -> Option:
    """An option of JAX's that means nothing on one CPU, made when it is first asked for."""
    with _lock:
        if name not in _others:
            default, choices, doc = OTHER_OPTIONS[name]
            parse = (_one_of(name, *choices, optional=default is None) if choices else
                     _PARSERS.get(type(default), _parse_any))
            _others[name] = Option(name, default, parse, doc, on_set=_guard_all if name == TRANSFER_GUARDS[0] else None)
        return _others[name]


_PARSERS: dict[type, Callable[[str, Any], Any]] = {bool: _parse_bool, int: _parse_int, float: _parse_float}
def make_user_context(default_value: Any = None) -> Option:
    """An option of one's own, which traced functions depend on: where it differs, they are traced again.

    Its call is a context manager; `value` reads it. Values must be hashable.

    >>> unit = anima.make_user_context("m")
    >>> @jit
    ... def f(x):
    ...     return x if unit.value == "m" else 1000 * x
    >>> with unit("mm"):
    ...     print(f(2))
    2000
    """
    global _KEYED, _version
    with _lock:
        option = Option(f"user_context_{len(_KEYED)}", default_value, _parse_hashable, "A user's.", in_trace_key=True)
        _KEYED, settled[0] = (*_KEYED, option), None
        _version += 1
    return option


def _parse_hashable(name: str, value: Any) -> Any:
    hash(value)
    return value


def keyed() -> tuple[Option, ...]:
    """The options that traced programs depend on, in the order of the values of a `trace_key`."""
    return _KEYED


array_garbage_collection_guard = _other("array_garbage_collection_guard")
auto_pcast = _other("auto_pcast")
remove_size_one_mesh_axis_from_type = _other("remove_size_one_mesh_axis_from_type")
thread_guard = _other("thread_guard")
jax2tf_associative_scan_reductions = _other("jax2tf_associative_scan_reductions")
transfer_guard_host_to_device = _other("transfer_guard_host_to_device")
transfer_guard_device_to_host = _other("transfer_guard_device_to_host")
transfer_guard_device_to_device = _other("transfer_guard_device_to_device")
_GUARDS = (transfer_guard_host_to_device, transfer_guard_device_to_device)


def transfer_guard(new_val: str) -> contextlib.AbstractContextManager[None]:
    """A context manager under which transfers of all directions are guarded.

    Args:
      new_val: "allow"; "log" or "disallow" for implicit ones, where an operation takes a number or an array of NumPy's,
        or arrays of other devices; "log_explicit" or "disallow_explicit" for those of `device_put`, too.

    A CPU has arrays where the host has its own: nothing is transferred from a device to the host.

    >>> with anima.transfer_guard("disallow"):
    ...     jnp.sin(anima.device_put([0.0])[0])
    Array(0., dtype=float32, weak_type=True)
    """
    options = [_other(name) for name in TRANSFER_GUARDS]
    return _Override(options, [option._parse(option.name, new_val) for option in options])


_KEYED: tuple[Option, ...] = tuple(option for option in OPTIONS.values() if option.in_trace_key)
_global_key: tuple[int, Any] = (-1, None)


class _TraceKey:
    """Values of the options that a traced program depends on; equal where it is the same object.

    Where transfers are guarded, calls have a key of their own, and programs that of `unguarded`.
    """

    __slots__ = ("guarded", "unguarded", "values")

    def __init__(self, values: tuple[Any, ...], guarded: bool) -> None:
        self.values, self.guarded = values, guarded
        self.unguarded: _TraceKey = _key(values) if guarded else self

    def __repr__(self) -> str:
        return f"_TraceKey{self.values}"


_keys: dict[tuple[tuple[Any, ...], bool], _TraceKey] = {}


def _key(values: Iterable[Any], guards: Sequence[Any] = ()) -> _TraceKey:
    known = tuple(values), not _open(guards)
    return _keys.setdefault(known, _TraceKey(*known))


def _open(levels: Iterable[str | None]) -> bool:
    return all(level in (None, "allow") for level in levels)


def _find(name: str) -> Option:
    if not isinstance(name, str):
        raise AttributeError(f"Unrecognized config option: {name!r}")
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name_alone = name[len(prefix):]
            break
    else:
        name_alone = name
    if name_alone in OTHER_OPTIONS:
        return _other(name_alone)
    option = OPTIONS.get(name_alone)
    if option is None:
        raise AttributeError(f"Unrecognized config option: {name}.{did_you_mean(name_alone, OPTIONS)}")
    return option


# Options are descriptors: as attributes of `config` they read as their value, under each spelling.
_Spellings = type("_Spellings", (), {
    prefix + name: option for name, option in OPTIONS.items() for prefix in ("", *_PREFIXES)})


class Config(_Spellings):    # type: ignore[valid-type,misc]
    """All options as attributes (`enable_x64`, `anima_enable_x64`, `jax_enable_x64`); ways to set them."""

    def __getattr__(self, name: str) -> Any:
        return _find(name).value

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(vars(Config).get(name), FunctionType):  # tests of libraries put others in their place
            object.__setattr__(self, name, value)
        else:
            _find(name).__set__(self, value)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(prefix + name for prefix in _PREFIXES for name in OTHER_OPTIONS)]

    def update(self, name: str, val: Any) -> None:
        """Set an option for all threads; AttributeError for an unknown name, ValueError for a bad value."""
        _find(name).set(val)

    @property
    def x64_enabled(self) -> bool:
        """`enable_x64`, under another name."""
        return bool(enable_x64.value)

    def read(self, name: str) -> Any:
        """The value of the option `name`; AttributeError if there is none."""
        return _find(name).value

    def option(self, name: str) -> Option:
        """The option itself, whose call is a context manager: `with config.option("disable_jit")(True):`."""
        return _find(name)

    @property
    def values(self) -> dict[str, Any]:
        """Every option's value, by its `anima_` name and by its `jax_` name."""
        return {prefix + name: _find(name).value for prefix in _PREFIXES for name in (*OPTIONS, *OTHER_OPTIONS)}

    def trace_key(self) -> Hashable:
        """The options that a traced program depends on, hashable: the same object, if they are equal."""
        return self.call_key().unguarded

    def call_key(self) -> _TraceKey:
        """What a call depends on: `trace_key()`, or where transfers are guarded another key."""
        global _global_key
        if _total_overrides and _thread.values:
            if _thread.key[0] != _version:
                _thread.key = _version, _key([o.value for o in _KEYED], [o.value for o in _GUARDS])
            return _thread.key[1]
        key = _global_key
        if key[0] != _version:
            key = _global_key = _version, _key([o._global for o in _KEYED], [o._global for o in _GUARDS])
        if settled[0] is None:
            with _lock:
                settled[0] = key[1] if key[0] == _version and not _total_overrides else None
        return key[1]

    def held(self, key: Any) -> contextlib.AbstractContextManager[None]:
        """A context manager under which this thread sees the values that `key`, a `trace_key()`, stands for.

        What is traced and compiled under it fits together, whatever is updated meanwhile, by whichever thread.
        """
        return _Override(_KEYED[:len(key.values)], key.values)  # contexts of users' may have been added since

    def parse_flags_with_absl(self) -> None:
        """Set the options that the command line gives (`--jax_debug_nans=True`); absl's flags have their defaults."""
        self.parse_flags(sys.argv[1:])
        if (flags := sys.modules.get("absl.flags")) is not None and not flags.FLAGS.is_parsed():
            flags.FLAGS([""])

    config_with_absl = parse_flags_with_absl

    def parse_flags(self, arguments: Sequence[str]) -> None:
        """Set the options among `arguments`: `--x`, `--nox`, `--x=v` or `--x v`; others are left alone."""
        words = [*itertools.takewhile(lambda word: word != "--", arguments)]
        for place, word in enumerate(words):
            flag, equals, text = word.lstrip("-").partition("=")
            negated = flag.startswith(tuple("no" + prefix for prefix in _PREFIXES))
            name = flag[2:] if negated else flag
            ours = name.startswith(_PREFIXES) and name.partition("_")[2] in {*OPTIONS, *OTHER_OPTIONS}
            if not (ours and word.startswith("-")):
                continue
            option = _find(name)
            if negated or (not equals and option._parse is _parse_bool):
                option.set(not negated)
            elif equals:
                option.set(text)
            elif place + 1 < len(words):
                option.set(words[place + 1])
            else:
                raise ValueError(f"the flag {word} needs a value")


config = Config()
