"""`jit`: a function traced once for each signature, compiled, and run as one native call.

A signature is the arguments' tree, their types, the values of the static arguments and the options that
matter to tracing. Where some argument is a tracer, the call is recorded as one `pjit` equation instead.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial, update_wrapper
from threading import get_ident
from types import FunctionType
from typing import Any, overload

import numpy as np

from anima import errors, tree
from anima.api import placed_calls
from anima.api.described import are_described, with_values
from anima.api.pjit import executable_of, pjit_p
from anima.api.placed_calls import Places, Wanted, constrained, placed, to_numpy, wanted
from anima.api.program_cache import NONE, ProgramCache, programs_of, traced
from anima.api.reading import reader
from anima.api.signature import Signature, as_tuple
from anima.api.stages import Lowered, TracedFunction, type_of
from anima.api.turns import in_turn
from anima.config import config, default_device, settled
from anima.control.key_reuse import use_all, used_up
from anima.core import processes, transfers
from anima.core.array import Array, ConcreteArray, PlacedArray
from anima.core.avals import ShapedArray, ShardedArray, standing
from anima.core.device import machines
from anima.core.jaxpr import ClosedJaxpr
from anima.core.placement import committed_sharding
from anima.core.refs import AbstractRef, EagerCell, check_given_once, check_not_closed_over
from anima.core.stage import Traced, all_finite, close, eval_jaxpr, flattened, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, Tracer, aval_of, is_tracing
from anima.ops.broadcast import as_array, as_operand
from anima.runtime.logs import explain_miss, timed, warn_of_constants
from anima.util import fun_name, lazy_module, place_of

spread = lazy_module("anima.api.spread")


class Entry:
    """What is known of one signature: the program, and how to call it."""

    __slots__ = ("alone", "avals", "closed", "donated", "executable", "finish", "form", "in_tree", "kept", "last",
                 "name", "on_refs", "options", "out_avals", "out_tree", "outer", "places", "plain", "read", "remote",
                 "run", "spread", "taken", "uses")

    def __init__(self, closed: ClosedJaxpr, outer: list[Any], avals: tuple[ShapedArray, ...], in_tree: Any,
                 out_tree: Any, donated: tuple[int, ...], options: Hashable, name: str, places: Places):
        self.places = places     # where its results are, on several devices
        self.closed, self.outer, self.options, self.name = closed, outer, options, name
        self.avals, self.in_tree, self.out_tree, self.donated = avals, in_tree, out_tree.in_order(), donated
        self.out_avals = [*map(standing, closed.out_avals)]
        self.alone = self.out_tree.spec.is_leaf(strict=True)  # the result is one leaf
        spec = self.out_tree.spec
        flat = spec.type is tuple and spec.num_leaves == spec.num_children == spec.num_nodes - 1
        self.form = "single" if self.alone else "tuple" if flat else "list"  # of the results, as they come from `run`
        self.taken: tuple[int, ...] = ()  # of the donated arguments, those whose memory a result takes over
        self.plain = False       # arguments are leaves by position
        self.kept = False        # for later calls
        self.on_refs = any(isinstance(a, AbstractRef) for a in closed.in_avals)  # given, or closed over
        self.uses: Any = None    # of keys among the arguments, which it uses up, if somebody asks
        self.executable: Any = None
        self.read: Any = None    # of args and kwargs: the leaves; None where they are of another structure
        self.run: Any = None     # of the leaves; NotImplemented: not for these
        self.finish: Any = None  # from what `run` gives to the result, where that is not the same
        self.spread: dict[Any, Any] = {}  # programs of this process, where arguments are cut over several
        self.remote: dict[Any, Any] = {}  # programs for devices that are no CPUs, by what runs them
        self.last: Any = None    # of these, the one of the last call, and what its arguments were

    def compile(self, static: Any) -> None:
        """Makes `executable` and, where there can be one, `run`, with what goes before and after it.

        `run` comes last: other threads may call, and take the short way as soon as it is there.
        """
        placed_calls.take(self)
        with config.held(self.options):
            executable = executable_of(self.closed, self.name, () if self.outer else self.taken)
        typed = getattr(type(executable), "typed", None)
        self.executable = executable
        if typed is not None and not self.outer:
            self.finish = self.out_tree.spec.unflatten if self.form == "list" else None
            self.read = reader(self.in_tree, static)
            avals = [ShapedArray(a.shape, a.dtype, a.weak_type) if type(a) is ShardedArray else a for a in self.avals]
            self.run = typed(executable, avals, self.out_avals, self.form, self.taken)

    def of_process(self, leaves: Sequence[Any]) -> Any:
        """What runs the program in this process, where arguments or results are on devices of others; else None."""
        known = tuple([committed_sharding(x) for x in leaves])
        if known not in self.spread:
            self.spread[known] = spread.program(self.name, self.closed, self.places, self.avals, known, self.donated)
        program = self.spread[known]
        if program is not None:
            self.last = program, [*map(placed_calls.kind_of, leaves)]
        return program

    def again(self, leaves: Sequence[Any]) -> Any:
        """What ran the last call on devices of several processes, or on one that is no CPU, if this one is just like
        it; else None."""
        program, kinds = self.last
        for x, (aval, sharding) in zip(leaves, kinds, strict=True):
            if type(x) is not PlacedArray or x.aval is not aval or x._sharding is not sharding or not x.committed:
                return None
        return program

    def together(self, outs: list[Any]) -> Any:
        """The result, of its leaves."""
        return outs[0] if self.alone else self.out_tree.spec.unflatten(outs)

    def values(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """The results' leaves for arguments as NumPy arrays, which others may see: none is written over."""
        for k in self.executable.donors:
            values[k] = values[k].copy()
        return self.executable(values)

    def result(self, values: list[np.ndarray]) -> Any:
        """The result for arguments as NumPy arrays, which others may see."""
        arrays = [ConcreteArray(v, a) for v, a in zip(self.values(values), self.out_avals, strict=True)]
        return self.out_tree.spec.unflatten(arrays)


_SELF = ("The function is a method, whose object jit takes for an argument: register the object's class as a pytree "
         "(anima.tree_util.register_dataclass), jit a function of its arrays inside of the method, or make `self` "
         "static (static_argnums=0), which needs an object that has a hash and does not change.")
_OTHER = ("This typically means that a jit-wrapped function was called with a non-array argument, and this argument "
          "was not marked as static using the static_argnums or static_argnames parameters of jit. An object that "
          "holds arrays is to be a pytree: register its class (anima.tree_util.register_dataclass).")
_RECENT = 8       # signatures of each kind that a call is compared with before it is looked at in general


class JitFunction:
    """A function that compiles itself for each signature that it is called with."""

    def __init__(self, fun: Callable[..., Any], static_argnums: int | Sequence[int] | None = None,
                 static_argnames: str | Iterable[str] | None = None, donate_argnums: int | Sequence[int] | None = None,
                 donate_argnames: str | Iterable[str] | None = None, keep_unused: bool = False,
                 inline: bool = False, shardings: Wanted | None = None, counts_keys: bool = True):
        if not callable(fun):
            raise TypeError(f"Expected a callable value, got {fun!r}")
        if inspect.isgeneratorfunction(fun):
            raise TypeError(f"Expected a function, got a generator function: {fun}")
        update_wrapper(self, fun, updated=())
        if isinstance(fun, FunctionType):  # whose attributes come along, but not in the place of our own
            self.__dict__ |= {name: value for name, value in vars(fun).items() if not hasattr(self, name)}
        self.fun = fun
        self.name = fun_name(fun)
        self.signature = Signature(fun, static_argnums, static_argnames)
        self.static = self.signature.is_static
        self.donated_nums = as_tuple(donate_argnums)
        names = (donate_argnames,) if isinstance(donate_argnames, str) else donate_argnames
        self.donated_names = frozenset(names or ())
        self._check_donated()
        self.keep_unused, self.inline, self.shardings = keep_unused, inline, shardings
        self.counts_keys = counts_keys  # or whoever calls does
        self.donates = bool(self.donated_nums or self.donated_names)
        self._remember(programs_of(fun, (
            self.signature.static_argnums, self.signature.static_argnames, self.donated_nums, self.donated_names,
            keep_unused, inline, shardings)))

    def _remember(self, programs: ProgramCache) -> None:
        self.programs = programs
        self.entries, self.simple, self.recent = programs.entries, programs.simple, programs.recent
        self.placed = programs.placed

    def _check_donated(self) -> None:
        self.signature.check("donate", self.fun, self.donated_nums, self.donated_names)
        names = [p.name for p in self.signature.parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        donated = self.donated_names | {names[n] for n in self.donated_nums if -len(names) <= n < len(names)}
        both = set(self.donated_nums) & set(self.signature.static_argnums) or donated & self.signature.static_argnames
        if both:
            raise ValueError(f"static_argnums/static_argnames and donate_argnums/donate_argnames cannot intersect; "
                             f"{fun_name(self.fun)} has {sorted(both)} in both.")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else partial(self, instance)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.fun)

    def __repr__(self) -> str:
        return f"<CompiledFunction of {self.fun!r}>"

    def __getstate__(self) -> dict[str, Any]:
        programs = ("programs", "entries", "simple", "recent", "placed")  # these are of this process
        return {k: v for k, v in self.__dict__.items() if k not in programs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._remember(ProgramCache())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if current.trace is EVAL:
                key = settled[0] or config.call_key()
                if not kwargs:
                    options, run, finish = self.programs.last
                    if options is key:
                        result = run(*args)
                        if result is not NotImplemented:
                            return result if finish is None else finish(result)
                    for entry in self.simple.get(key, ()):
                        result = entry.run(*args)
                        if result is not NotImplemented:
                            if options is not key:
                                self.programs.last = key, entry.run, entry.finish
                            return result if entry.finish is None else entry.finish(result)
                for entry in self.recent.get(key, ()):
                    leaves = entry.read(args, kwargs)
                    if leaves is not None and not (entry.donated and len(set(map(id, leaves))) < len(leaves)):
                        result = entry.run(*leaves)
                        if result is not NotImplemented:
                            return result if entry.finish is None else entry.finish(result)
                for entry in self.placed.get(key, ()):
                    leaves = entry.read(args, kwargs)
                    if leaves is None or (entry.donated and len(set(map(id, leaves))) < len(leaves)):
                        continue
                    program = None if entry.last is None else entry.again(leaves)
                    if program is not None:
                        return entry.together(program(leaves))
                    if entry.places.knows(leaves, entry.avals) and not (config.debug_nans or config.debug_infs):
                        return self._call_placed(entry, leaves, None)
            return self._call(args, kwargs)
        except Exception as error:  # as errors.api_boundary, without its call
            errors.filter_traceback(error)
            raise

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call in general; where it is a plain one, the next like it will be found at once."""
        if config.disable_jit:
            return self.fun(*args, **kwargs)
        if current.trace is EVAL and not (config.enable_x64 or self.static):
            narrow = tuple(map(_narrowed, args))
            if not all(map(operator.is_, args, narrow)):
                return self(*narrow, **kwargs)
        dynamic, named, static = self.signature.split(args, kwargs)
        leaves, in_tree = tree.flatten((dynamic, named))
        if are_described(leaves) and not self.keep_unused:
            return self._call_described(dynamic, named, static, leaves, in_tree)
        entry = self._entry(dynamic, named, static, leaves, in_tree)
        if entry.uses is not None:
            use_all([*entry.outer, *leaves], self.name, entry.uses)
        if entry.on_refs:
            self._check_refs(entry, dynamic, named, static, leaves)
        if current.trace is not EVAL or entry.on_refs or any(isinstance(x, Tracer) for x in leaves):
            if self.inline and current.trace is not EVAL:
                outs = eval_jaxpr(entry.closed.jaxpr, entry.closed.consts, *entry.outer, *map(as_operand, leaves))
            else:
                outs = pjit_p.bind(*entry.outer, *leaves, jaxpr=entry.closed, name=self.name, inline=self.inline)
                if self.shardings is not None and not is_tracing():
                    outs = entry.places.put(outs)
            return tree.unflatten(entry.out_tree, outs)
        if config.no_execution:
            raise RuntimeError(errors.no_execution_message(f"jit({self.name})"))
        self._check_given_once(entry, leaves)
        transfers.operands(leaves)
        if processes.here.count > 1 and not entry.outer and entry.of_process(leaves) is not None:
            entry.read, entry.plain = entry.read or reader(in_tree, static), _are_plain(args, kwargs, leaves)
            if entry.kept and entry.uses is None:
                self._keep(self.placed, entry)
            return self._call_placed(entry, leaves, static)
        if machines and placed_calls.is_elsewhere(entry, leaves):
            entry.read = entry.read or reader(in_tree, static)
            if not entry.remote:
                placed_calls.take(entry)
            if entry.kept and entry.uses is None and not (config.debug_nans or config.debug_infs):
                self._keep(self.placed, entry)
            return self._call_placed(entry, leaves, static)
        if entry.executable is None:
            in_turn(id(entry), lambda: entry.compile(static) if entry.executable is None else None)
        checking = config.debug_nans or config.debug_infs
        if entry.places.matter or placed(leaves):
            if entry.run is not None and entry.kept and entry.uses is None and not checking:
                self._keep(self.placed, entry)
            return self._call_placed(entry, leaves, static)
        result = entry.run(*leaves) if entry.donated and entry.run is not None and not checking else NotImplemented
        if result is NotImplemented:
            result = entry.result([x.elements() if type(x) is ConcreteArray else to_numpy(x, a)
                                   for x, a in zip(leaves, entry.avals, strict=True)])
        elif entry.finish is not None:
            result = entry.finish(result)
        if checking:
            self._check_finite([x.elements() for x in tree.leaves(result)], in_tree, leaves, static)
            return result
        for k in entry.taken:
            if isinstance(leaves[k], ConcreteArray):
                leaves[k].delete(self.name)
        if entry.run is not None and entry.kept and entry.uses is None:
            plain = _are_plain(args, kwargs, leaves)
            known = self.simple if plain and (len(args) == 1 or not entry.donated) else self.recent
            self._keep(known, entry)
        return result

    def _call_described(self, dynamic: Any, named: Any, static: Any, leaves: Sequence[Any], in_tree: Any) -> Any:
        """A call with descriptions for arguments whose values the program does not use."""
        entry = self._entry(dynamic, named, static, leaves, in_tree, type_of)
        valued = tree.unflatten(in_tree, with_values(leaves, entry.closed, self.name))
        args, kwargs = self.signature.join(*valued, static)
        return self._call(tuple(args), kwargs)

    def _call_placed(self, entry: Entry, leaves: Sequence[Any], static: Any) -> Any:
        """A call where something says on which devices it takes place."""
        checking = config.debug_nans or config.debug_infs
        program = entry.of_process(leaves) if processes.here.count > 1 and not entry.outer else None
        if program is not None:
            result = entry.together(program(leaves))
            if entry.kept and entry.uses is None and not checking:
                way = program.way(leaves, entry)
                if way is not None:
                    self._keep(self.simple if entry.plain else self.recent, way)
            return result
        shardings, stays = entry.places.results(leaves)
        transfers.between(leaves, shardings)
        kept = [*map(placed_calls.copied, leaves)] if checking else []
        outs = placed_calls.call_elsewhere(entry, leaves, shardings, stays) if machines else None
        if outs is None:
            outs = placed_calls.call_here(entry, leaves, shardings, stays)
        if checking:
            with default_device(None):
                self._check_finite([x.elements() for x in outs], entry.in_tree, kept, static)
        return entry.together(outs)

    def _keep(self, known: dict[Any, tuple[Any, ...]], entry: Any) -> None:
        """Remembers an entry as the one that was used last."""
        others = [e for e in known.get(entry.options, ()) if e is not entry]
        known[entry.options] = (entry, *others[: _RECENT - 1])
        self.programs.last = NONE

    def _entry(self, args: Any, kwargs: Any, static: Any, leaves: Sequence[Any], in_tree: Any,
               find: Callable[[Any], ShapedArray] = aval_of) -> Entry:
        """The program for these arguments, traced now if it is new; `find` tells the type of one.

        A program that closes over tracers belongs to the trace they live in, and is kept for calls there alone. An
        option that is changed while it is traced, perhaps by another thread, counts from the next call.
        """
        try:
            avals = tuple([x.aval if isinstance(x, Array) else find(x) for x in leaves])
        except TypeError:
            self._explain_bad_argument(args, kwargs, static)
            raise
        options = config.trace_key()
        key = in_tree, avals, static, options, current.axes, current.manual
        entry = self.entries.get(key) or self.programs.within(key)
        if entry is None:
            entry = in_turn((id(self.programs), key), lambda: self.entries.get(key) or self._made(
                args, kwargs, static, avals, in_tree, options, key))
        return entry

    def _made(self, args: Any, kwargs: Any, static: Any, avals: Sequence[ShapedArray], in_tree: Any, options: Hashable,
              key: Any) -> Entry:
        """The program for these arguments, traced now."""
        if config.no_tracing:
            raise RuntimeError(errors.no_tracing_message(self.name))
        making = get_ident(), key
        if making in self.programs.making:
            raise RecursionError(f"Recursively calling {self.name} at {place_of(inspect.unwrap(self.fun))}: traced for "
                                 "jit, it calls itself with arguments of the same types, and so on without end. A "
                                 "condition on a traced value does not stop it, as both of its sides are traced. Fix: "
                                 "anima.lax.while_loop or fori_loop; or mark static what the recursion ends by "
                                 "(static_argnums).")
        self.programs.making.add(making)
        try:
            return self._made_once(args, kwargs, static, avals, in_tree, options, key)
        finally:
            self.programs.making.discard(making)

    def _made_once(self, args: Any, kwargs: Any, static: Any, avals: Sequence[ShapedArray], in_tree: Any,
                   options: Hashable, key: Any) -> Entry:
        explain_miss(self.name, self.entries, key, lambda: self.signature.leaf_names(args, kwargs, static))
        with timed("trace", self.name), config.held(options):
            entry = self._trace(args, kwargs, static, avals, in_tree, options)
        if not entry.outer or all(isinstance(x, EagerCell) for x in entry.outer):
            entry.kept = True
            self.entries[key] = entry
            traced[id(self.programs)] = self.programs
        else:
            self.programs.keep_within(key, entry)
        return entry

    def _trace(self, args: Any, kwargs: Any, static: Any, avals: Sequence[ShapedArray], in_tree: Any,
               options: Hashable) -> Entry:
        asked = self.shardings
        ins = asked and asked.of_arguments(args, kwargs)
        outs_asked: list[Any] = [None]

        traced = self._traced(args, kwargs, static)

        def whole(dynamic: Any, named: Any) -> Any:
            positional, keywords = self.signature.join(dynamic, named, static)
            return self.fun(*positional, **keywords)

        def finish(result: Any, outs: list[Any]) -> list[Any]:
            for x in outs:
                _check_output(x, self.name)
            if asked is not None and asked.outs is not None:
                outs_asked[0] = asked.of_results(result)
                outs = constrained(outs, outs_asked[0], "outputs",
                                   [f"result{tree.keystr(path)}" for path, _ in tree.leaves_with_path(result)])
            return outs

        flat, out_trees = flattened(whole, in_tree, finish)
        jaxpr, consts = trace_to_jaxpr(flat if ins is None else lambda *leaves: flat(
            *constrained(leaves, ins, "arguments", traced.arg_names)), avals, traced)
        closed, outer = close(jaxpr, consts)
        warn_of_constants(closed, self.name)
        made = Entry(closed, outer, tuple(avals), in_tree, out_trees[0], self._donated(in_tree, static), options,
                     self.name, Places(self.name, closed, asked, ins, outs_asked[0], self.keep_unused))
        if config.debug_key_reuse and self.counts_keys:
            made.uses = used_up(closed, self.name)
        return made

    def _check_refs(self, entry: Entry, args: Any, kwargs: Any, static: Any, leaves: Sequence[Any]) -> None:
        """ValueError for a reference that the function has by two names; NotImplementedError where arrays are cut over
        processes."""
        if any(type(x) is PlacedArray and x.is_cut for x in leaves):
            raise NotImplementedError(f"{self.name} changes references, which belong to one process, on arrays over "
                                      "several. Fix: pass what they hold, and return it.")

        def name(k: int) -> str:
            return self.signature.leaf_names(args, kwargs, static)[k]

        check_given_once(leaves, name, f"when calling {self.name}, traced for jit,")
        check_not_closed_over(leaves, entry.outer, name, f"when calling {self.name}, traced for jit")

    def _traced(self, args: Any, kwargs: Any, static: Any) -> Traced:
        names = self.signature.leaf_names(args, kwargs, static)
        return Traced(self.name, place_of(inspect.unwrap(self.fun)), "jit", names)

    def _explain_bad_argument(self, args: Any, kwargs: Any, static: Any) -> None:
        names = self.signature.leaf_names(args, kwargs, static)
        for name, leaf in zip(names, tree.leaves((args, kwargs)), strict=True):
            try:
                aval_of(leaf)
            except (TypeError, OverflowError) as e:
                why = _SELF if name == "self" else _OTHER
                raise type(e)(f"Error interpreting argument to {self.fun} as an abstract array. The problematic value "
                              f"is of type {type(leaf)} and was passed to the function at path {name}. {e} "
                              f"{why}") from None

    def _check_finite(self, outs: Sequence[np.ndarray], in_tree: Any, leaves: Sequence[Any], static: Any) -> None:
        """Finds the operation that made a NaN by running the function again, one operation at a time."""
        if all_finite(self.name, outs):
            return
        dynamic, named = tree.unflatten(in_tree, map(as_array, leaves))
        args, kwargs = self.signature.join(dynamic, named, static)
        with config.option("disable_jit")(True):
            self.fun(*args, **kwargs)
        print("No operation of the de-optimized version made an invalid value.")

    def _donated(self, in_tree: Any, static: Any) -> tuple[int, ...]:
        """The places of the leaves that are donated."""
        if not self.donates:
            return ()
        args, kwargs = self.signature.join(*tree.unflatten(in_tree, range(in_tree.num_leaves)), static)
        parameters = self.signature.parameters
        named = self.donated_names | {parameters[n].name for n in self.donated_nums if n < len(parameters)
                                      and parameters[n].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD}
        names = [p.name for p in parameters]
        donated = [a for i, a in enumerate(args)
                   if {i, i - len(args)} & {*self.donated_nums} or (names[i: i + 1] and names[i] in named)]
        return tuple(tree.leaves((donated, [v for k, v in kwargs.items() if k in named])))

    def _check_given_once(self, entry: Entry, leaves: Sequence[Any]) -> None:
        if not entry.donated or len({*map(id, leaves)}) == len(leaves):
            return
        for k in entry.donated:
            x = leaves[k]
            if isinstance(x, ConcreteArray) and sum(leaf is x for leaf in leaves) > 1:
                raise ValueError(f"jitted function {self.name} was given the same array ({x.aval.str_short()}) twice, "
                                 "once as a donated argument: it would be deleted while still an argument. Pass "
                                 "x.copy(), or do not donate it.")

    def _cache_size(self) -> int:
        """How many signatures have been traced."""
        return len(self.entries)

    def clear_cache(self) -> None:
        """Forgets every traced and compiled program."""
        self.programs.clear()

    @errors.api_boundary
    def trace(self, *args: Any, **kwargs: Any) -> TracedFunction:
        """The program for these arguments (arrays or `ShapeDtypeStruct`s), not yet lowered."""
        dynamic, named, static = self.signature.split(args, kwargs)
        leaves, in_tree = tree.flatten((dynamic, named))
        entry = self._entry(dynamic, named, static, leaves, in_tree, type_of)
        shardings = tuple([committed_sharding(x) if isinstance(x, Array) else getattr(x, "sharding", None)
                           for x in leaves])
        return TracedFunction(entry.closed, in_tree, entry.out_tree, self.name, entry.donated, entry.places, shardings,
                              tuple(entry.outer))

    @errors.api_boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for these arguments, lowered to loops."""
        return self.trace(*args, **kwargs).lower()

    @errors.api_boundary
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the results, as `ShapeDtypeStruct`s."""
        return self.trace(*args, **kwargs).out_info


def _are_plain(args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> bool:
    """Whether the arguments are the leaves, by position."""
    return all(map(operator.is_, args, leaves)) and len(args) == len(leaves) and not kwargs


_NARROW = {"d": np.float32, "D": np.complex64, "l": np.int32, "q": np.int32, "L": np.uint32, "Q": np.uint32}


def _narrowed(x: Any) -> Any:
    """What NumPy makes of 64 bits by default, as it is without 64-bit types: for that there are short ways."""
    if (type(x) is np.ndarray or isinstance(x, np.generic)) and x.dtype.itemsize >= 8 and x.dtype.char in _NARROW:
        return np.asarray(x, _NARROW[x.dtype.char])
    return x


def _check_output(x: Any, name: str) -> None:
    try:
        aval_of(x)
    except TypeError:
        raise TypeError(f"Output from jitted function {name} is of type {type(x)}, which is not a valid Anima type: "
                        f"{x!r}. Functions that are transformed return arrays, numbers, or pytrees of them.") from None


@overload
def jit(fun: Callable[..., Any], /, **options: Any) -> JitFunction: ...
@overload
def jit(fun: None = None, /, **options: Any) -> Callable[[Callable[..., Any]], JitFunction]: ...


def jit(fun: Callable[..., Any] | None = None, /, *, static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Iterable[str] | None = None, donate_argnums: int | Sequence[int] | None = None,
        donate_argnames: str | Iterable[str] | None = None, keep_unused: bool = False, inline: bool = False,
        device: Any = None, backend: Any = None, in_shardings: Any = None, out_shardings: Any = None,
        compiler_options: Any = None) -> Any:
    """Compiles `fun` just in time, once for each signature of its arguments.

    Args:
      fun: a pure function of arrays and pytrees of arrays.
      static_argnums, static_argnames: arguments that are part of the signature by value (hashable).
      donate_argnums, donate_argnames: arguments whose memory may be reused; they are deleted by the call.
      keep_unused: keep arguments that the program does not use.
      inline: record the body instead of a call where `fun` is called while tracing.
      in_shardings, out_shardings: how arguments and results are cut: a sharding, a `PartitionSpec` about the current
        mesh, or None, which leaves it to the arguments and to propagation; or tree prefixes of these.
      device, backend: where to run; None: where the arguments are.

    Returns:
      A function like `fun`, with `lower`, `trace`, `eval_shape`, `clear_cache`.

    Raises:
      TypeError: for what is no sharding; NotImplementedError: for compiler options.

    >>> jit(lambda x: 2 * x)(3.0)
    Array(6., dtype=float32, weak_type=True)
    """
    if compiler_options:
        raise NotImplementedError(f"jit: compiler_options={compiler_options!r} is not supported: Anima's compiler has "
                                  "no such options.")
    options: dict[str, Any] = {
        "static_argnums": static_argnums, "static_argnames": static_argnames, "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames, "keep_unused": keep_unused, "inline": inline,
        "shardings": wanted(in_shardings, out_shardings, device, backend)}
    if fun is None:
        return lambda f: JitFunction(f, **options)
    return JitFunction(fun, **options)


def staged(fun: Callable[..., Any] | None = None, *, static_argnames: Sequence[str] = ()) -> Any:
    """Makes a function one named equation of a program being recorded; elsewhere it just runs."""
    if fun is None:
        return partial(staged, static_argnames=static_argnames)
    jitted = JitFunction(fun, static_argnames=static_argnames)

    def call(*args: Any, **kwargs: Any) -> Any:
        return jitted(*args, **kwargs) if is_tracing() else fun(*args, **kwargs)

    return update_wrapper(call, fun)
