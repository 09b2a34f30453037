"""What users are told: each message's key phrases, the user's line in it, and short tracebacks."""
from __future__ import annotations

import os
import re
import traceback
import types
import warnings

import numpy as np
import pytest

import anima
from anima import errors
from anima.config import debug_infs, debug_nans, traceback as traceback_option

PACKAGE = os.path.dirname(os.path.abspath(errors.__file__))
ORIGIN = (
    "The error occurred while tracing the function f at train.py:30 for jit. This concrete value was not "
    "available in Python because it depends on the value of the argument x."
)


def tracer(dtype="float32", shape=(), origin=ORIGIN):
    aval = types.SimpleNamespace(dtype=np.dtype(dtype), shape=shape)
    return types.SimpleNamespace(aval=aval, origin_text=lambda: origin)


def internal(source, **names):
    """Functions whose code counts as Anima's own."""
    exec(compile(source, os.path.join(PACKAGE, "made_up.py"), "exec"), names)
    return names


def test_bool_conversion():
    lines = str(errors.TracerBoolConversionError(tracer("bool"))).split("\n")
    assert lines[0] == "Attempted boolean conversion of traced array with shape bool[]."
    assert lines[1] == ORIGIN
    assert re.fullmatch(r"  at test_errors_text.py:\d+, in test_bool_conversion:   lines = str\(.*", lines[2])
    assert lines[3] == ("Fix: anima.lax.cond, anima.lax.while_loop or anima.numpy.where "
                        "(and for `and`, `or`, `not`: &, |, ~); or mark x static: "
                        'jit(f, static_argnames="x").')
    assert len(lines) == 4


@pytest.mark.parametrize(
    "error, phrase",
    [
        (
            errors.ConcretizationTypeError(
                tracer(shape=(2, 3)), "It arose in the jnp.arange argument 'stop'"
            ),
            "Abstract tracer value encountered where concrete value is expected: traced array with shape "
            "float32[2,3]\nIt arose in the jnp.arange argument 'stop'\n"
            "The error occurred while tracing the function f",
        ),
        (
            errors.TracerArrayConversionError(tracer()),
            "The numpy.ndarray conversion method __array__() was called on traced array with shape "
            "float32[]\n",
        ),
        (
            errors.TracerIntegerConversionError(tracer("int32")),
            "The __index__() method was called on traced array with shape int32[]\n",
        ),
        (
            errors.NonConcreteBooleanIndexError(tracer("bool", (3,))),
            "Array boolean indices must be concrete; got ShapedArray(bool[3])\n",
        ),
    ],
)
def test_tracer_errors(error, phrase):
    assert str(error).startswith(phrase)
    assert ORIGIN in str(error)
    scalar = "[]" in phrase
    assert ('mark x static: jit(f, static_argnames="x").' in str(error)) == scalar  # an array has no hash


@pytest.mark.parametrize("name", ["f", "train_step"])
def test_fix_names_the_function_of_the_user(name):
    def shown(flag):
        return 1 if flag > 0 else 2

    shown.__name__ = name
    fix = rf'mark flag static: jit\({name}, static_argnames="flag"'
    with pytest.raises(errors.TracerBoolConversionError, match=fix):
        anima.jit(shown)(1.0)


def test_fix_without_a_known_argument():
    text = str(errors.TracerBoolConversionError(tracer(origin="")))
    assert "static" not in text
    assert text.endswith("anima.numpy.where (and for `and`, `or`, `not`: &, |, ~).")
    text = str(errors.TracerBoolConversionError(types.SimpleNamespace(aval=tracer().aval)))
    assert text.startswith(
        "Attempted boolean conversion of traced array with shape float32[].\n  at test_errors"
    )


def test_classes():
    assert issubclass(errors.TracerBoolConversionError, errors.ConcretizationTypeError)
    for name in (
        "ConcretizationTypeError",
        "TracerArrayConversionError",
        "TracerIntegerConversionError",
        "UnexpectedTracerError",
        "KeyReuseError",
        "JaxprTypeError",
        "InconclusiveDimensionOperation",
    ):
        assert issubclass(getattr(errors, name), TypeError)
    assert issubclass(errors.NonConcreteBooleanIndexError, IndexError)
    assert errors.JaxRuntimeError is errors.AnimaRuntimeError
    assert issubclass(errors.AnimaRuntimeError, RuntimeError)


def test_immutable():
    assert errors.immutable_message().startswith(
        "Anima arrays are immutable and do not support in-place item assignment. Instead of x[idx] = y, use "
        "x = x.at[idx].set(y)")


def test_leak():
    text = errors.leaked_tracer_message(tracer(origin="The function being traced was f at a.py:3."))
    assert text.startswith("Encountered an unexpected tracer.")
    assert "with type float32[] wrapped in a SimpleNamespace to escape" in text
    assert "The function being traced was f at a.py:3.\n  It was used at test_errors_text.py:" in text
    assert "checking_leaks" in text


def test_promotion_and_rank_texts():
    text = errors.promotion_message(("float32", "int32"), strict=True, small_floats=False)
    assert text.startswith(
        "Input dtypes ('float32', 'int32') have no available implicit dtype promotion path when "
        "anima_numpy_dtype_promotion=strict. Try explicitly casting"
    )
    text = errors.rank_promotion_message("add", [(3,), (2, 3)], raising=True)
    assert text.startswith(
        "Operands could not be broadcast together for add on shapes (3,) (2, 3) and with the "
        "config option anima_numpy_rank_promotion='raise'."
    )
    text = errors.rank_promotion_message("add", [(3,), (2, 3)], raising=False)
    assert text.startswith("Following NumPy automatic rank promotion for add on shapes (3,) (2, 3).")


def test_not_an_array():
    assert "'a' of type <class 'str'> is not a valid Anima type" in errors.not_an_array_message("a")


def test_nonfinite():
    bad, huge = np.array([1.0, np.nan], np.float32), np.array(np.inf)
    errors.check_finite("log", [bad, huge])
    with debug_nans(True):
        errors.check_finite("log", [huge, np.arange(3)])
        with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in log: the result, "
                                                     r"float32\[2\], holds nan\.\n  at test_errors_text"):
            errors.check_finite("log", [bad])
    with debug_infs(True):
        errors.check_finite("log", [bad])
        with pytest.raises(FloatingPointError, match=r"\(inf\) encountered in log"):
            errors.check_finite("log", [huge])


def test_user_line_and_stacklevel_skip_our_frames():
    ours = internal("def line(): return errors.user_line()\n"
                    "def level(): warnings.warn('x', stacklevel=errors.user_stacklevel())\n"
                    "def deep(f): return f()\n", errors=errors, warnings=warnings)
    text = ours["deep"](ours["line"])
    assert re.fullmatch(
        r"at test_errors_text.py:\d+, in test_user_line_and_stacklevel_skip_our_frames:   text = .*", text
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours["deep"](ours["level"])
    assert caught[0].filename == __file__


def frames(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def api():
    """An imitation of jit: our frames around, and below, the user's function."""
    return internal("@errors.api_boundary\n"
                    "def jit(f): return trace(f)\n"
                    "def trace(f): return f(broken)\n"
                    "def broken(): raise KeyError('here')\n"
                    "@errors.api_boundary\n"
                    "def chained(f):\n"
                    "    try: f(broken)\n"
                    "    except KeyError as error: raise ValueError('again') from error\n", errors=errors)


def test_tracebacks_keep_the_users_frames_only():
    def users_function(operation):
        operation()
    with pytest.raises(KeyError) as caught:
        api()["jit"](users_function)
    assert frames(caught.value) == ["test_tracebacks_keep_the_users_frames_only", "users_function"]
    with pytest.raises(ValueError) as chained:
        api()["chained"](users_function)
    assert frames(chained.value) == ["test_tracebacks_keep_the_users_frames_only"]
    assert frames(chained.value.__cause__) == ["users_function"]


def test_nested_boundaries():
    outer, inner = api()["jit"], api()["jit"]

    def users_outer(_):
        inner(users_inner)

    def users_inner(operation):
        operation()
    with pytest.raises(KeyError) as caught:
        outer(users_outer)
    assert frames(caught.value) == ["test_nested_boundaries", "users_outer", "users_inner"]


def test_full_tracebacks():
    with traceback_option("full"), pytest.raises(KeyError) as caught:
        api()["jit"](lambda operation: operation())
    assert frames(caught.value) == ["test_full_tracebacks", "boundary", "jit", "trace", "<lambda>", "broken"]


def test_boundary_keeps_name_and_result():
    @errors.api_boundary
    def double(x: int) -> int:
        """Twice."""
        return 2 * x
    assert (double(3), double.__name__, double.__doc__) == (6, "double", "Twice.")


def test_is_internal():
    assert errors.is_internal(errors.describe.__code__)
    assert not errors.is_internal(test_is_internal.__code__)


def test_what_cannot_be_printed_is_named() -> None:
    class Half:
        def __repr__(self) -> str:
            return self.missing

    assert "Half" in errors.not_an_array_message(Half())
