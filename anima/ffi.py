"""C functions in programs: called from compiled code without Python, by their address and their declaration.

    ffi.register_ffi_target("scale", ffi.pycapsule(library.scale),
                            signature="void (const float *x, float *out, int64_t x_size, double by)")
    ffi.ffi_call("scale", ShapeDtypeStruct(x.shape, x.dtype))(x, by=2.0)

A capsule whose name is a declaration, as those of Cython's modules are, needs no `signature`. `docs/ffi.md` says what
declarations mean. A capsule without any is a handler of XLA's typed convention, as the extensions of libraries for JAX
hold them. Functions must be safe to call from any thread, and must not need Python.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from anima import errors
from anima.api.jit import jit
from anima.control.effects import VMAP_METHODS
from anima.control.foreign import ffi_call_p, ffi_elementwise_p, widens
from anima.core import dtypes, foreign, handlers
from anima.core.avals import ShapedArray
from anima.core.state import current
from anima.core.trace import EVAL, aval_of
from anima.ops.broadcast import as_array

_api: Any = ctypes.PyDLL(None) if os.name != "nt" else ctypes.pythonapi  # argument types of our own
_api.PyCapsule_New.restype, _api.PyCapsule_New.argtypes = ctypes.py_object, [
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetName.restype, _api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
_api.PyCapsule_GetPointer.restype, _api.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [
    ctypes.py_object, ctypes.c_char_p]
_names: dict[str, bytes] = {}  # of capsules, which do not keep theirs
_targets: dict[str, foreign.ForeignFunction | handlers.Handler] = {}


def pycapsule(funcptr: Any, signature: str | None = None) -> Any:
    """A capsule of a function, for `register_ffi_target`.

    Args:
      funcptr: a function of ctypes, or an address. Whoever makes the capsule keeps the library loaded.
      signature: its declaration in C, which becomes the capsule's name.
    """
    address = funcptr if isinstance(funcptr, int) else ctypes.cast(funcptr, ctypes.c_void_p).value
    if not address:
        raise ValueError("pycapsule: the function is at no address")
    name = None if signature is None else _names.setdefault(signature, signature.encode())
    return _api.PyCapsule_New(address, name, None)


def register_ffi_target(name: str, fn: Any, platform: str = "cpu", api_version: int = 1, *,
                        signature: str | None = None, **kwargs: Any) -> None:
    """Makes a C function known to `ffi_call` under a name.

    Args:
      name: as no other function is called.
      fn: a capsule (`pycapsule`, or one of `__pyx_capi__` of a module of Cython's), a function of ctypes, an address. A
        capsule that has no declaration for its name is a handler of XLA's typed convention; a dict of such has the one
        that is called as "execute".
      platform: "cpu"; those for other platforms are left out.
      api_version: 1, the typed convention. It says nothing of functions with a declaration.
      signature: the function's declaration in C; that in the name of the capsule, if None.

    Raises:
      ValueError: for a name that is taken, and for what is no declaration.
      NotImplementedError: for another convention, handlers of other stages, and for types that cannot be passed.
      TypeError: for what is no function.

    >>> from scipy.special import cython_special
    >>> register_ffi_target("ndtr", cython_special.__pyx_capi__["__pyx_fuse_1ndtr"])
    >>> with enable_x64(True):
    ...     jit(ffi_call("ndtr", ShapeDtypeStruct((2,), "float64")))(jnp.array([0., 1.]))
    Array([0.5       , 0.84134475], dtype=float64)
    """
    if platform.lower() not in ("cpu", "host"):
        return
    if api_version != 1 or kwargs:
        raise NotImplementedError("register_ffi_target: C functions are called as their declaration says, or by the "
                                  f"typed convention; there are no others (api_version={api_version}) and no options "
                                  f"{sorted(kwargs)}.")
    if isinstance(fn, Mapping):
        stages = sorted(stage for stage, handler in fn.items() if handler is not None)
        if stages != ["execute"]:
            raise NotImplementedError(f"register_ffi_target: handlers are called to execute only; {name!r} is to be "
                                      f"called in the stages {', '.join(stages)}.")
        fn = fn["execute"]
    is_capsule = type(fn).__name__ == "PyCapsule"
    if is_capsule:
        given = _api.PyCapsule_GetName(fn)
        address = _api.PyCapsule_GetPointer(fn, given)
        signature = signature or ((given or b"").decode() if b"(" in (given or b"") else None)
    elif isinstance(fn, (int, ctypes._CFuncPtr)):  # type: ignore[attr-defined]
        address = fn if isinstance(fn, int) else ctypes.cast(fn, ctypes.c_void_p).value
    else:
        raise TypeError(f"register_ffi_target: {name!r} is to be a capsule, a function of ctypes or an address, got "
                        f"{fn!r}.")
    if not (signature or is_capsule):
        raise ValueError(f"register_ffi_target: the declaration of {name!r} is not known; give it as signature=, such "
                         "as 'void (const float *x, float *out, int64_t x_size)'.")
    known = _targets.get(name)
    if known is not None and (known.address, _declaration(known)) != (address, signature):
        raise ValueError(f"register_ffi_target: there is another function {name!r} already.")
    if known is None and signature:
        _targets[name] = foreign.ForeignFunction(name, address, foreign.parse(signature), fn)
    elif known is None:
        handlers.check_version(name, address)
        _targets[name] = handlers.Handler(name, address, fn)


def _declaration(target: foreign.ForeignFunction | handlers.Handler) -> str | None:
    return target.signature.text if isinstance(target, foreign.ForeignFunction) else None


def ffi_call(target_name: str, result_shape_dtypes: Any, *, has_side_effect: bool = False,
             vmap_method: str | None = None, input_layouts: Sequence[Any] | None = None, output_layouts: Any = None,
             input_output_aliases: Mapping[int, int] | None = None, custom_call_api_version: int = 4,
             legacy_backend_config: str | None = None) -> Callable[..., Any]:
    """A registered C function as a function of arrays.

    Args:
      target_name: as in `register_ffi_target`.
      result_shape_dtypes: the shape and dtype of the result, or a sequence of them.
      has_side_effect: keep calls whose results nobody needs, and their order.
      vmap_method: what `vmap` does, as for `pure_callback`; functions of numbers are applied to each element.
      input_layouts, output_layouts: None, or row-major: axes from the major to the minor one.
      input_output_aliases: for positions of arguments, those of results in whose memory the function finds them. Such
        an argument has no parameter of its own.
      custom_call_api_version, legacy_backend_config: as they are; they are of another convention than C's.

    Returns:
      A function of arrays, and of attributes by keyword, that gives the result, or a list or tuple of them, as given.

    Raises:
      NotImplementedError: for a name that is not registered; under `vmap` without a method.
      TypeError: where arrays or attributes are not what the function is declared for.
      ValueError: for aliases that do not fit; where it is differentiated.
    """
    target = _targets.get(target_name)
    if target is None:
        raise NotImplementedError(f"No FFI handler registered for {target_name} on the CPU: see "
                                  "anima.ffi.register_ffi_target.")
    if vmap_method is not None and vmap_method not in VMAP_METHODS:
        raise ValueError(f"vmap_method must be on of the allowed methods {[*VMAP_METHODS, None]}, but got: "
                         f"{vmap_method}")
    if custom_call_api_version != 4 or legacy_backend_config is not None:
        raise NotImplementedError("ffi_call: C functions are called as their declaration says: there are no other "
                                  "versions of that, and no configuration beside attributes.")
    several = isinstance(result_shape_dtypes, (list, tuple))
    results = tuple(_result(r) for r in (result_shape_dtypes if several else [result_shape_dtypes]))
    _check_layouts(output_layouts if several or output_layouts is None else [output_layouts], results)
    aliases = tuple(sorted((input_output_aliases or {}).items()))

    @errors.api_boundary
    def call(*args: Any, **attributes: Any) -> Any:
        arrays = list(map(as_array, args))
        avals = list(map(aval_of, arrays))
        _check_layouts(input_layouts, avals)
        _check_aliases(aliases, avals, results)
        is_handler = isinstance(target, handlers.Handler)
        given = handlers.fixed(attributes, target.name) if is_handler else tuple(sorted(attributes.items()))
        if isinstance(target, foreign.ForeignFunction) and target.signature.scalar and target.signature.returns:
            _check_numbers(target, avals, results, aliases, has_side_effect, attributes)
            apply = _compiled if current.trace is EVAL else ffi_elementwise_p.bind
            outs = [apply(*arrays, target=target, attributes=given, dtype=results[0].dtype)]
        else:
            outs = ffi_call_p.bind(*arrays, target=target, attributes=given, result_avals=results,
                                   has_side_effect=has_side_effect, vmap_method=vmap_method,
                                   input_output_aliases=aliases)
        return type(result_shape_dtypes)(outs) if several else outs[0]

    return call


# Outside of programs, too, a function of numbers is called for each element by compiled code.
_compiled = jit(ffi_elementwise_p.bind, static_argnames=("target", "attributes", "dtype"))


def _result(given: Any) -> ShapedArray:
    if not hasattr(given, "shape") or not hasattr(given, "dtype"):
        raise TypeError(f"ffi_call: result_shape_dtypes are to have a shape and a dtype, got {given!r}.")
    return ShapedArray(tuple(given.shape), dtypes.np_dtype(given.dtype))


def _check_layouts(layouts: Sequence[Any] | None, avals: Sequence[ShapedArray]) -> None:
    for layout, aval in zip(layouts or (), avals, strict=layouts is not None):
        if layout is not None and tuple(layout) != tuple(range(aval.ndim)):
            raise NotImplementedError(f"ffi_call: arrays are row-major, not of the layout {layout!r}. Transpose them.")


def _check_aliases(aliases: Sequence[tuple[int, int]], avals: Sequence[ShapedArray],
                   results: Sequence[ShapedArray]) -> None:
    """ValueError unless each alias is of an operand and a result of one type."""
    for one, other in aliases:
        for place, among, what in ((one, avals, "input"), (other, results, "output")):
            if not 0 <= place < len(among):
                raise ValueError(f"input_output_aliases contains the mapping '{one}:{other}' with {what} index {place} "
                                 f"outside the range [0, {len(among)}).")
        if (avals[one].shape, avals[one].dtype) != (results[other].shape, results[other].dtype):
            raise ValueError(f"input_output_aliases contains the mapping '{one}:{other}' referring to an input with "
                             f"abstract value {avals[one].str_short()} and an output with a different abstract value "
                             f"{results[other].str_short()}.")
    if len({other for _, other in aliases}) < len(aliases):
        raise ValueError(f"input_output_aliases {dict(aliases)} has two inputs in one output.")


def _check_numbers(target: foreign.ForeignFunction, avals: Sequence[ShapedArray], results: Sequence[ShapedArray],
                   aliases: Sequence[tuple[int, int]], has_side_effect: bool, attributes: Mapping[str, Any]) -> None:
    """TypeError unless a function of numbers can be applied to each element of such arrays."""
    if len(results) != 1 or aliases or has_side_effect:
        raise TypeError(f"ffi_call: {target.name}, declared as {target.signature.text!r}, is a function of numbers: it "
                        "has one result, no memory to share, and no side effects.")
    places = foreign.arguments_of(target, len(avals), attributes)
    for place, parameter in zip(places, target.signature.parameters, strict=True):
        if isinstance(place, int):
            aval = avals[place]
            if not widens(aval.dtype, parameter.type):
                raise TypeError(f"ffi_call: {target.name} is declared as {target.signature.text!r}, but argument "
                                f"{place} is of type {aval.str_short()}.")
            if aval.shape not in ((), results[0].shape):
                raise TypeError(f"ffi_call: {target.name} is applied to each element, but argument {place} is of type "
                                f"{aval.str_short()}, and the result {results[0].str_short()}.")
    returned, wanted = foreign.NUMPY[target.signature.returns], results[0].dtype
    if returned.kind != ("f" if dtypes.issubdtype(wanted, dtypes.np.floating) else wanted.kind):
        raise TypeError(f"ffi_call: {target.name} returns numbers of type {returned}, not {results[0].str_short()}.")
    if results[0].shape and all(not a.shape for a in avals):
        raise TypeError(f"ffi_call: {target.name} of numbers is a number, not {results[0].str_short()}.")


def include_dir() -> str:
    """The folder of `anima/ffi.h`, which has C's types for dtypes that C has none for, and the rules as comments."""
    return os.path.join(os.path.dirname(__file__), "include")


def register_ffi_target_as_batch_partitionable(name: str) -> None:
    """Says that calls may be cut along the axes that `vmap` adds, over devices: there is one. KeyError for a name that
    is not registered."""
    if name not in _targets:
        raise KeyError(name)


def _means_nothing(what: str, instead: str) -> NoReturn:
    raise NotImplementedError(f"{what} is of another calling convention than C's, which programs use: {instead}.")


def register_ffi_type(name: str, type_registration: Any, platform: str = "cpu") -> None:
    """There are no types with state: NotImplementedError."""
    _means_nothing("register_ffi_type", "pass a pointer to state as an attribute of type intptr_t")


def register_ffi_type_id(name: str, obj: Any, platform: str = "cpu") -> None:
    """There are no types with state: NotImplementedError."""
    _means_nothing("register_ffi_type_id", "pass a pointer to state as an attribute of type intptr_t")


def ffi_lowering(call_target_name: str, *, operand_layouts: Sequence[Any] | None = None,
                 result_layouts: Sequence[Any] | None = None, backend_config: Any = None,
                 skip_ffi_layout_processing: bool = False, has_side_effect: bool = False,
                 operand_output_aliases: Mapping[int, int] | None = None) -> Callable[..., list[Any]]:
    """What `interpreters.mlir.register_lowering` makes of an operation: the call of a registered C function.

    Returns:
      A rule `(context, *operands, **attributes) -> results`, whose context says of which types the results are.
    """
    if backend_config is not None:
        _means_nothing("backend_config", "pass attributes by keyword")

    def rule(ctx: Any, *operands: Any, **attributes: Any) -> list[Any]:
        return ffi_call(call_target_name, list(ctx.avals_out), has_side_effect=has_side_effect,
                        input_layouts=operand_layouts, output_layouts=result_layouts,
                        input_output_aliases=operand_output_aliases)(*operands, **attributes)

    return rule


def build_ffi_lowering_function(call_target_name: str, **options: Any) -> NoReturn:
    """There are no MLIR lowerings: NotImplementedError."""
    _means_nothing("build_ffi_lowering_function", f"call ffi_call({call_target_name!r}, ...)")


globals().update(errors.public_face(__name__, globals()))  # errors show the user's frames only
