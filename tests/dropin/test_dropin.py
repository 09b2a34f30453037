"""`import jax` finds Anima: in processes of their own, since every later `import jax` of a process does."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from anima.dropin import JAX_VERSION
from anima.version import __version__

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments, env=None, fails=False, cwd=None):
    """What a Python process prints; its last line of errors, if it is to fail."""
    found = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd,
                           env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, timeout=120)
    assert bool(found.returncode) == fails, found.stderr
    return found.stderr.strip().splitlines()[-1] if fails else found.stdout


def under_jax(text, **options):
    return python("-m", "anima", "run", "-c", text, **options)


def test_functions_are_animas_own():
    assert under_jax("""
import anima, jax, jax.numpy as jnp, jax.scipy.stats.norm, jax.nn.initializers
from jax import lax, random
from jax.numpy import *
assert jax.jit is anima.jit and jnp.sin is anima.numpy.sin is sin and lax.scan is anima.lax.scan
assert jax.scipy.stats.norm.pdf is anima.scipy.stats.norm.pdf
assert jax.Array is anima.Array and isinstance(jnp.ones(2), jax.Array)
assert jax.config is anima.config and vars(jax)["jit"] is anima.jit
print(jax.__version__, jax.__version_info__, jax.grad(lambda x: x ** 2)(3.0))
""") == f"{JAX_VERSION} {tuple(map(int, JAX_VERSION.split('.')))} 6.0\n"


def test_importing_loads_little_more_than_anima_does():
    program = "import sys, {}; print(*sorted(name for name in sys.modules if not name.startswith('jax')))"
    own = python("-c", program.format("anima, anima.numpy")).split()
    more = set(python("-c", "import anima.dropin; anima.dropin.install(); " + program.format("jax, jax.numpy")).split())
    assert all(name.startswith("anima.dropin") for name in more - set(own))


def test_dictionaries_come_back_in_the_order_of_their_keys():
    """And ordered ones in their own; Anima alone keeps the order of all."""
    program = """
import NAME as jax, NAME.numpy as jnp
from collections import OrderedDict, defaultdict
def f(x):
    return {"b": x, "a": [{"d": x, "c": 2 * x}]}
x = jnp.ones(2)
found = [jax.jit(f)(x), jax.jit(f)(x), jax.eval_shape(f, x), jax.vmap(f)(x), jax.jvp(f, (x,), (x,))[1],
         jax.tree.map(lambda v: v, f(x)), jax.tree.map(lambda v, w: v, f(x), f(x)),
         jax.tree.unflatten(jax.tree.structure(f(x)), "123"), jax.lax.scan(lambda c, v: (c, v), f(1.0), x)[0],
         jax.jit(f).lower(x).out_info, jax.jit(f).lower(x).compile()(x), jax.grad(lambda t: t["b"])(f(1.0))]
print(*{"".join([*t, *t["a"][0]]) for t in found})
print(*(list(jax.tree.map(lambda v: v, kind)) for kind in (OrderedDict(b=1, a=2), defaultdict(int, b=1, a=2))))
jax.jit(lambda t: print(*t))({"b": 1, "a": 2})
"""
    assert under_jax(program.replace("NAME", "jax")) == "abcd\n['b', 'a'] ['a', 'b']\na b\n"
    assert python("-c", program.replace("NAME", "anima")) == "badc\n['b', 'a'] ['b', 'a']\nb a\n"


def test_numbers_made_into_arrays_are_values_of_the_program_around():
    """So that a program in it takes the same constants, be they such numbers or what was computed."""
    assert under_jax("""
import jax, jax.numpy as jnp, numpy as np
def f(x):
    found = []
    for index in jnp.array(0), jnp.asarray(np.int32(1)), jnp.zeros((), int), jnp.full((), 2), jnp.ones((), int), x[0]:
        assert isinstance(index, jax.core.Tracer)
        inner = jax.make_jaxpr(lambda y: y[index] * (index + 1) * 3)(x)
        found.append(len(inner.consts))
    assert isinstance(jax.grad(lambda y: y * jnp.array(2.0))(1.0), jax.core.Tracer)
    print(*found)
    return jnp.array(2.0) * x, jnp.array(3)
x = jnp.arange(4)
print(*jax.jit(f)(x), type(jnp.array(1)) is type(x))
""") == "1 1 1 1 1 1\n[0. 2. 4. 6.] 3 True\n"


def test_arrays_made_of_lists_are_values_of_the_program_around():
    """Which libraries look at to know whether a program is recorded; those that nothing uses are no constants of it."""
    assert under_jax("""
import jax, jax.numpy as jnp, numpy as np
def is_recorded():
    made = jnp.asarray([0]), jnp.array((1, 2)), jnp.array(np.arange(3)), jnp.array([[1.0], [2.0]], dtype="float32")
    found = {isinstance(x, jax.core.Tracer) for x in made}
    assert len(found) == 1
    return found.pop()
def f(x):
    assert is_recorded()
    return x + jnp.array([1, 2]), jnp.array([3, 4]), jnp.arange(5)[jnp.array([1, -1])]
print(is_recorded(), *jax.jit(f)(jnp.arange(2)), len(jax.make_jaxpr(f)(jnp.arange(2)).consts))
def h(x):
    with jax.ensure_compile_time_eval():
        assert not is_recorded() and not isinstance(jnp.array(1), jax.core.Tracer)
    return jax.lax.scan(lambda c, _: (c * jnp.array([2.0, 3.0]), None), x, length=2)[0].sum()
print(jax.grad(h)(jnp.ones(2)), jax.jit(jax.grad(h))(jnp.ones(2)), jax.vmap(jax.grad(h))(jnp.ones((2, 2)))[1])
""") == "False [1 3] [3 4] [1 4] 3\n[4. 9.] [4. 9.] [4. 9.]\n"


def test_ranges_of_floats_are_rounded_as_in_jax():
    """Products with the step and sums with the start each on their own; of NumPy's, 0.3 and 0.6 are other floats."""
    assert under_jax("""
import jax, jax.numpy as jnp, numpy as np
def stepwise(start, stop, step, kind=np.float32):
    return np.arange(len(np.arange(start, stop, step)), dtype=kind) * kind(step) + kind(start)
for bounds in (-5e-6, 5e-6, 1e-7), (0.1, 5, 0.1), (5, -5, -0.013), (np.float32(0.1), 9, np.float32(0.7)):
    want = stepwise(*bounds)
    for dtype in (None, "float32", "float16", "bfloat16", "complex64"):
        got = jnp.arange(*bounds, dtype=dtype)
        assert (np.asarray(got) == want.astype(got.dtype)).all() and got.dtype == (dtype or "float32")
    assert (np.asarray(jax.jit(lambda: jnp.arange(*bounds))()) == want).all()
    with jax.enable_x64(True):
        assert (np.asarray(jnp.arange(*map(float, bounds))) == stepwise(*map(float, bounds), np.float64)).all()
halves = jnp.arange(1.5, 3000, dtype="float16")
assert (np.asarray(halves) == np.arange(2999).astype("float16") + np.float16(1.5)).all()
print((np.asarray(jnp.arange(-5e-6, 5e-6, 1e-7)) != np.arange(-5e-6, 5e-6, 1e-7).astype("float32")).sum() > 30)
""") == "True\n"


def test_types_by_names_that_jax_had_before():
    assert under_jax("""
import jax
from jaxlib.xla_extension import PjitFunction, XlaRuntimeError
print(isinstance(jax.jit(abs), PjitFunction), XlaRuntimeError is jax.errors.JaxRuntimeError)
""") == "True True\n"


def test_words_of_the_log_that_tests_look_for():
    assert under_jax("""
import logging, sys, jax
logging.basicConfig(stream=sys.stdout, format="%(message)s")
with jax.log_compiles(True):
    jax.jit(lambda x: x + 1)(1.0)
""").splitlines()[-1].startswith("Finished XLA compilation of jit(<lambda>) in ")


def test_handlers_of_its_logger_see_the_logs():
    assert "handled Finished tracing" in under_jax("""
import logging, sys, jax
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter("handled %(message)s"))
logging.getLogger("jax").addHandler(handler)
with jax.log_compiles(True):
    jax.jit(lambda x: x + 1)(1.0)
""")


def test_every_public_name_is_there():
    """Of each module of Anima's that people see, under the same path in `jax`."""
    assert under_jax("""
import importlib, types, anima
def walk(path):
    ours, theirs = (importlib.import_module(".".join([top, *path])) for top in ("anima", "jax"))
    missing = [n for n in dir(ours) if not n.startswith("_") and not hasattr(theirs, n)
               and not isinstance(getattr(ours, n), types.ModuleType)]
    assert not missing, (path, missing)
    for name in dir(ours):
        value = getattr(ours, name)
        if isinstance(value, types.ModuleType) and value.__name__ == ours.__name__ + "." + name:
            walk([*path, name])
        elif not name.startswith("_") and not isinstance(value, types.ModuleType):
            assert getattr(theirs, name) is value, (path, name)
walk([])
print("all")
""") == "all\n"


def test_core_is_the_public_one():
    assert under_jax("""
import jax, jax.core, jax._src.core
import numpy as np
print(jax.core.Tracer.__module__, jax.dtypes.prng_key.__module__)
types = jax.core.ShapedArray((np.int64(2),), jax.numpy.float64), jax.core.ShapedArray([3], float, weak_type=True)
print(types, [type(n) for n in types[0].shape])
print(hasattr(jax.core, "stage"), hasattr(jax, "compiler"), hasattr(jax, "runtime"))
print(jax._src.core.trace_state_clean(), jax.jit(lambda x: x if jax._src.core.trace_state_clean() else x + 1)(1))
""") == "jax._src.core jax.dtypes\n" \
        "(ShapedArray(float64[2]), ShapedArray(float64[3], weak_type=True)) [<class 'int'>]\n" \
        "False False False\nTrue 2\n"


@pytest.mark.parametrize("statement, error", [
    ("import jax.api", "ModuleNotFoundError: No module named 'jax.api': Anima stands in for JAX, and has none"),
    ("import jax.numpy.reductions", "ModuleNotFoundError: No module named 'jax.numpy.reductions'"),
    ("import jax._src.ad_checkpoint_", "ModuleNotFoundError: No module named 'jax._src.ad_checkpoint_'"),
    ("import jaxlib.mlir", "ModuleNotFoundError: No module named 'jaxlib.mlir'"),
    ("from jax.experimental import palace", "ImportError: cannot import name 'palace' from 'jax.experimental'"),
    ("import jax; jax.tree_map", "AttributeError: module 'jax' has no attribute 'tree_map'"),
    ("import jax; jax.numpy.arrange", "AttributeError: module 'jax.numpy' has no attribute 'arrange'"),
    ("from jax.core import jaxpr_as_fun_", "ImportError: cannot import name 'jaxpr_as_fun_' from 'jax.core'"),
])
def test_what_is_missing_says_so(statement, error):
    assert under_jax(statement, fails=True).startswith(error)


def test_libraries_that_try_find_out():
    assert under_jax("""
import jax, importlib.util
print(hasattr(jax, "linear_util"), hasattr(jax.numpy, "sin"))
try:
    from jax import linear_util
except ImportError:
    print("not there")
""") == "False True\nnot there\n"


def test_defaults_are_those_of_jax():
    text = """
import jax
program = jax.make_jaxpr(jax.jit(lambda x: x))(1.0)
print(jax.random.key_data(jax.random.split(jax.random.key(0)))[0], program.eqns[0].primitive)
"""
    newer, older = under_jax(text), under_jax(text, env={"JAX_THREEFRY_PARTITIONABLE": "0"})
    assert newer == "[1797259609 2579123966] jit\n"
    assert older == "[4146024105  967050713] jit\n"
    assert under_jax("import jax, numpy; print(jax.numpy.ones(1).dtype)", env={"JAX_ENABLE_X64": "1"}) == "float64\n"
    assert under_jax("import jax; print(jax.device_count())",
                     env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}) == "4\n"


def test_what_libraries_read_of_functions():
    assert "CompiledFunction" in under_jax("import jax; print(jax.jit(lambda x: x))")
    assert under_jax("import jax\n"
                     "try: jax.lax.broadcast_shapes((2,), (3,))\n"
                     "except ValueError as error: print(error)") == (
        "Incompatible shapes for broadcasting: shapes=[(2,), (3,)]\n")


def test_programs_are_exported_under_the_same_names():
    """A file written under the facade is read without it."""
    data = under_jax("""
import jax, jax.export
inner = jax.jit(lambda x: x * 2)
print(jax.export.export(jax.jit(lambda x: inner(x) + 1))(jax.ShapeDtypeStruct((2,), "float32")).serialize().hex())
""").strip()
    assert python("-c", f"""
import anima.export
print(anima.export.deserialize(bytearray.fromhex("{data}")).call(anima.numpy.arange(2.0)))
""") == "[1. 3.]\n"


def test_versions_as_packages():
    assert under_jax("""
import importlib.metadata as m, jaxlib, jaxlib.version
print(m.version("jax"), m.version("jaxlib"), jaxlib.__version__, jaxlib.version.__version__)
""") == f"{' '.join([JAX_VERSION] * 4)}\n"
    for folder in ("dropin", "dropin/jaxlib"):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        assert project["version"] == f"{JAX_VERSION}+anima.{__version__}"


def test_the_packages_give_way_to_the_views():
    """`jax` and `jaxlib` as `pip install ./dropin` puts them on the path."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "dropin/src", ROOT / "dropin/jaxlib/src")))
    for first in ("import jax", "import jax.numpy", "import jaxlib, jax", "from jax import numpy; import jax"):
        assert python("-c", f"{first}; import anima, jaxlib; print(jax.numpy.sin is anima.numpy.sin, jaxlib)",
                      env={"PYTHONPATH": path}) == "True <module 'jaxlib' (anima)>\n"


def test_jax_itself_is_not_mixed_with_anima(tmp_path):
    """Another `jax` is left alone until it is asked for; after its import, it is too late."""
    (tmp_path / "jax.py").write_text("name = 'another'")
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    assert python("-c", "import anima, jax; print(jax.name)", env=path) == "another\n"
    late = python("-c", "import jax, anima.dropin; anima.dropin.install()", env=path, fails=True)
    assert late.startswith("RuntimeError: anima.dropin.install() came too late: this process has imported jax from")
    assert python("-c", "import anima.dropin as d; d.install(); d.install(); import jax; print(jax.__version__)",
                  env=path) == f"{JAX_VERSION}\n"


def test_run_files_and_modules(tmp_path):
    (tmp_path / "helper.py").write_text("import jax\nvalue = jax.numpy.arange(3).sum()\n")
    program = tmp_path / "train.py"
    program.write_text("import sys, json, helper\nif __name__ == '__main__':\n"
                       "    print(json.dumps([sys.argv[1:], int(helper.value)]))\n    sys.exit(len(sys.argv) - 3)\n")
    assert json.loads(python("-m", "anima", "run", str(program), "--steps", "3")) == [["--steps", "3"], 3]
    assert json.loads(python("-m", "anima", "run", "-m", "train", "--steps", "-1", cwd=tmp_path)) == [
        ["--steps", "-1"], 3]
    assert python("-m", "anima", "run", "nothing.py", fails=True) == "there is no file 'nothing.py'"
    assert python("-m", "anima", "run", fails=True).startswith("usage: python -m anima run")
    assert "python -m anima run train.py" in python("-m", "anima", "--help")


def test_a_module_does_not_hide_the_value_of_its_name():
    assert under_jax("""
import jax
from jax.config import config
import jax.config as again
print(config is jax.config, again is config, jax.config.jax_enable_x64)
""") == "True True False\n"


def test_frames_that_errors_show_are_those_of_users():
    assert under_jax("""
import sys, jax
from jax._src import traceback_util
def mine():
    return sys._getframe()
frames = []
jax.tree.map(lambda _: frames.extend([sys._getframe(), sys._getframe(1)]), 1)
print([traceback_util.include_frame(f) for f in (mine(), *frames)])
traceback_util.register_exclusion(mine.__code__.co_filename)
print(traceback_util.include_frame(mine()))
""") == "[True, True, False]\nFalse\n"


def test_arrays_are_told_by_the_modules_of_their_classes():
    """As autoray, and with it PennyLane and quimb, tells those of several libraries."""
    assert under_jax("""
import jax, jax.numpy as jnp, pickle, copy
x, seen = jnp.ones(2), []
for f in jax.jit, jax.vmap, jax.grad:
    f(lambda y: (seen.append(type(y).__module__.partition(".")[0]), y)[1])(x[0] if f is jax.grad else x)
print(type(x), jax.Array, *seen, pickle.loads(pickle.dumps(x)), copy.deepcopy(x))
print(jax.core.is_concrete(x), jax.grad(lambda y: y * jax.core.is_concrete(y))(1.0),
      jax.jit(lambda y: y * jax.core.is_concrete(y))(1.0))
""") == """<class 'jaxlib._jax.ArrayImpl'> <class 'jax.Array'> jax jax jax [1. 1.] [1. 1.]
True 1.0 0.0
"""


def test_failures_of_functions_called_back():
    assert under_jax("""
import jax, jax.numpy as jnp
def f(x): raise KeyError("mine")
def g(x): jax.debug.callback(f, x); return x
for h in g, jax.vmap(g), jax.jit(g):
    try: print(h(jnp.ones(1)), jax.effects_barrier())
    except Exception as error: print(type(error) in (KeyError, jax.errors.JaxRuntimeError), type(error) is KeyError)
""") == "True True\nTrue True\nTrue False\n"


def test_public_names_by_the_files_that_jax_has_them_in():
    """As PyTensor, s2fft, jaxns, saiunit, jaxlie, qujax, dynamiqs and others import them."""
    assert under_jax("""
import jax, jax.numpy as jnp
from jax._src.api import jit
from jax._src.core import concrete_or_error, is_constant_dim
from jax._src.dispatch import apply_primitive
from jax._src.dtypes import canonicalize_dtype, to_complex_dtype
from jax._src.lax import lax as lax_internal
from jax._src.lax.control_flow.loops import scan
from jax._src.lib import xla_client
from jax._src.literals import TypedInt
from jax._src.numpy.ufuncs import ufunc
from jax._src.numpy.util import promote_dtypes_complex, promote_dtypes_inexact
from jax._src.public_test_util import check_close
from jax._src.scipy.special import gammaln
from jaxlib.xla_client import Device
print(jit is jax.jit, scan is jax.lax.scan, lax_internal.add is jax.lax.add, ufunc is jnp.ufunc,
      xla_client.Device is Device, isinstance(jax.devices()[0], Device))
print(*(x.dtype for x in [*promote_dtypes_complex(1, jnp.ones(2)), *promote_dtypes_inexact(1, 2)]),
      to_complex_dtype(jnp.float64), is_constant_dim(3), apply_primitive(jax.lax.add_p, 1, 2), isinstance(3, TypedInt))
check_close([1.0], [1.0 + 1e-7])
""") == "True True True True True True\ncomplex64 complex64 float32 float32 complex128 True 3 False\n"


def test_files_of_sparse_arrays():
    assert under_jax("""
from jax.experimental import sparse
from jax.experimental.sparse import bcoo, bcsr, transform, util
from jax.experimental.sparse.random import random_bcoo
print(bcoo.BCOO is sparse.BCOO, bcsr.bcsr_todense is sparse.bcsr_todense, transform.sparsify is sparse.sparsify,
      util.SparseEfficiencyWarning is sparse.SparseEfficiencyWarning, sparse.random_bcoo is random_bcoo)
""") == "True True True True True\n"


def test_all_names_at_once():
    """As scico takes them."""
    assert under_jax("""
import jax.numpy as jnp, jax.numpy.linalg
print(vars(jnp)["abs"] is jnp.abs, "solve" in jnp.linalg.__dict__, "linalg" in vars(jnp))
""") == "True True True\n"


def test_numbers_times_truth_values_are_choices():
    assert under_jax("""
import jax, jax.numpy as jnp
x = jnp.array([jnp.inf, jnp.nan, -2, -2])
mask = jnp.array([False, False, False, True])
print(x * mask, mask * x.astype(complex), jnp.multiply(jnp.ones((2, 1), bool), x)[0], jax.jit(jnp.multiply)(x, mask),
      mask * jnp.arange(4), mask * mask, (mask * 0.5).weak_type)
print(jax.grad(lambda x: jnp.sum(mask * jnp.sin(x)))(jnp.zeros(4)))
""") == """[ 0.  0.  0. -2.] [ 0.+0.j  0.+0.j  0.+0.j -2.+0.j] [inf nan -2. -2.] [ 0.  0.  0. -2.] [0 0 0 3] \
[False False False  True] True
[0. 0. 0. 1.]
"""


def test_modules_are_pickled_by_name(tmp_path):
    """As cloudpickle does, for functions that name them; the process that loads them may have none."""
    path = str(tmp_path / "modules")
    under_jax(f"import jax, jax.numpy as jnp, pickle; pickle.dump([jax, jnp], open({path!r}, 'wb'))")
    loaded = f"import pickle; a, b = pickle.load(open({path!r}, 'rb')); import jax; print(a is jax, b is jax.numpy)"
    assert python("-c", loaded) == "True True\n"


def test_the_namespace_of_arrays_is_the_one_of_jax():
    assert under_jax("import jax.numpy as jnp; x = jnp.ones(1); print(x.__array_namespace__() is jnp, jnp.__name__)"
                     ) == "True jax.numpy\n"


def test_operations_that_have_rules_as_methods():
    """As those of kfac-jax."""
    assert under_jax("""
import jax
class Tag(jax.extend.core.Primitive):
    multiple_results = True
    def __init__(self):
        super().__init__("tag")
        jax.interpreters.mlir.register_lowering(self, lambda context, *args: args)
    def impl(self, *args): return args
    def abstract_eval(self, *avals): return avals, jax.core.no_effects
print(*Tag().bind(2.0, 3.0), *jax.jit(Tag().bind)(1.0, 4.0), jax.make_jaxpr(Tag().bind)(1.0))
""") == "2.0 3.0 1.0 4.0 { lambda ; a:f32[]. let b:f32[] = tag a in (b,) }\n"


def test_flags_of_absl_have_their_defaults_once_those_of_jax_are_parsed():
    assert under_jax("""
import sys, types
class Flags:
    parsed = None
    def is_parsed(self): return self.parsed is not None
    def __call__(self, arguments): self.parsed = arguments
sys.modules["absl.flags"] = module = types.ModuleType("absl.flags")
module.FLAGS = Flags()
import jax
jax.config.parse_flags_with_absl()
print(module.FLAGS.parsed)
""") == "['']\n"


def test_parameters_that_operations_have_in_jax_only():
    """Where they wish for nothing; and a library's own interpreter, as quax has one."""
    assert under_jax("""
import jax, jax.numpy as jnp, jax._src.core as core
from jax import lax
print(lax.broadcast_in_dim_p.bind(1.0, shape=(2,), broadcast_dimensions=(), sharding=None),
      jax.jit(lambda x: lax.exp_p.bind(x, accuracy=None))(0.0), isinstance(lax.add_p, jax.extend.core.Primitive))
try: lax.exp_p.bind(0.0, accuracy="high")
except TypeError as error: print("accuracy" in str(error))
class Tracer(core.Tracer):
    __slots__ = ("value",)
    def __init__(self, trace, value): self._trace, self.value = trace, value
    aval = property(lambda self: core.get_aval(self.value))
class Doubling(core.Trace):
    __slots__ = ("parent_trace",)
    def __init__(self, parent_trace):
        self.parent_trace = parent_trace
        super().__init__()
    def process_primitive(self, primitive, tracers, params):
        with core.set_current_trace(self.parent_trace):
            return Tracer(self, 2 * primitive.bind(*[getattr(t, "value", t) for t in tracers], **params))
def doubled(f, x):
    with core.take_current_trace() as parent:
        trace = Doubling(parent)
        with core.set_current_trace(trace): out = f(Tracer(trace, x))
        return trace.full_raise(out).value
print(doubled(jnp.sin, 0.5), jax.jit(lambda x: doubled(lambda y: y + 1, x))(3.0))
""") == "[1. 1.] 1.0 True\nTrue\n0.9588511 8.0\n"


PICKLED = """
eNqNU89r2zAUthI7rddldKMdY39BegkMxk6DprRQmMArzXYsRraV2KvipLJEm0MhPTRtQJetb/f9p9uTnIZuZWPGEnq/P33vaeZ/r3zPfZfQMS0mJZtW
cILnZ1/YRTeuZNp1SjAvYsnTcVkpqVMV18o7dHxZ6tFk2o3TseTdkRaqWAY8fRiAriZwnmDWyuw+nHrXsE8SuIEOJbRBm3PIQxNkajrhNqQxeAuL2xs4
RnvTkPcQRdGHn/i5jXoKksX+q/oGs13cevjjmuH60QMFl2DCc85OY5dxUSlMlQedfD3fsLXz9rIyHp+bcCRiV7oCs54MxJipN+8QxgpBvo31EWaD9lxl
f7Y723VV8td/y72Tb6GjhbZ0vHWO3LQkr5AuMNsrqmsqRVEyMQTT7ovxMOPquPa7+0fy/0fh/eY4hyswrWWLTBOBgNns52zCDywP/fve7VxBZCckqKwN
LF/3Xcq3TBijWmZFOYTI+HEmBERYwWyOWKmZiNlFUdUNiEwLj5IPYKHnkJiwLq0lxwHD6qJIurGlYzJVkqMyPJp+wsMBRjgUzqsmyzrEWhUCIWd8wJAj
zDwsMKUdLRziDvWohw0jlCj4QyBO8GoBO+osTSv4TmjQ4FFMixJDLgDvvpGOheCpKnC+UfooMy55dlA4suw8PYptUOKEx5aAkhMw5BTYyt6iDRxAXeBj
svmbI+wLvoa2vfuDa68dMYnPTdiaS7wBbdrXSxhmHOOaAI9Q2VbALd/+Ka/fd/7ZrFm4lE9rYvPza0hQu9HnZ5qXKV9ZbLOt5ckhV3tKyZXBkDPkIuHG
ryY8hfzQkCM7pWk0BzssoS6RFJ3yDDpfEe0DQX8D3f0FTf+h7A==
"""  # by JAX 0.10.2, compressed


def test_pickles_of_jax():
    assert under_jax(f"""
import base64, collections, pickle, zlib
import jax, jax.numpy as jnp
found = pickle.loads(zlib.decompress(base64.b64decode('''{PICKLED}''')))
x, y, z = found["arrays"]
print(x.tolist(), x.dtype, x.weak_type, y.tolist(), y.dtype, z, z.weak_type, isinstance(x, jax.Array), (x + 1).sum())
print(found["result"].logabsdet, found["struct"])
print(found["keys"], found["spec"])
tree = {{"a": [1, (2, None)], "p": jax.tree_util.Partial(max, 1, k=2), "o": collections.OrderedDict(x=1)}}
print(found["structure"] == jax.tree.structure(tree), jax.tree.unflatten(found["structure"], [1, 2, 3, 4, 5])["a"])
for each in (found["struct"], found["structure"], found["spec"], *found["keys"]):
    assert pickle.loads(pickle.dumps(each)) == each
""") == """[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] float32 False [1.0, 1.0] bfloat16 2.0 True True 21.0
0.0 ShapeDtypeStruct(shape=(2,), dtype=float32)
[DictKey(key='a'), SequenceKey(idx=2), GetAttrKey(name='q')] P('x', None)
True [1, (2, None)]
"""


def test_names_that_libraries_import_first():
    assert under_jax("""
import jax.numpy as jnp
from jax._src.interpreters.batching import is_vmappable
from jax._src.numpy.index_tricks import CClass, RClass, mgrid
print(is_vmappable(jnp.ones(3)), isinstance(jnp.c_, CClass), isinstance(jnp.r_, RClass), mgrid[:2].tolist())
""") == "False True True [0, 1]\n"


def test_types_of_annotations():
    assert under_jax("""
import jax.numpy as jnp
from jax._src.typing import Array, ArrayLike, DType, DTypeLike, DuckTypedArray, Index, Shape, SupportsDType
def f(x: Array | None, y: ArrayLike | Index, dtype: DType | DTypeLike | SupportsDType, shape: Shape) -> None: ...
print(DType, isinstance(jnp.ones(3), DuckTypedArray), isinstance(3, DuckTypedArray), len(f.__annotations__))
""") == "<class 'numpy.dtype'> True False 5\n"


def test_files_that_libraries_read_of_programs_and_traces():
    assert under_jax("""
import jax, jax.numpy as jnp
from jax._src import ad_checkpoint, api_util, random, sharding_impls, source_info_util, traceback_util, util
from jax._src.array import ArrayImpl
from jax._src.core import trace_ctx
from jax._src.interpreters import partial_eval
from jax._src.interpreters.batching import BatchTracer, make_iota
from jax.extend.core import JaxprEqn
def f(x):
    return x + trace_ctx.trace.new_arg(jax.core.ShapedArray((3,), jnp.float32), source_info=source_info_util.current())
print(jax.make_jaxpr(f)(jnp.ones(3)))
print(jax.make_jaxpr(jax.checkpoint(jnp.sin))(1.0).eqns[0].primitive, jax._src.core.closed_call_p)
e = jax.make_jaxpr(jnp.sin)(1.0).eqns[0]
made = JaxprEqn(e.invars, e.outvars, e.primitive, e.params, e.effects, e.source_info, e.ctx)
print(isinstance(made, JaxprEqn), made.primitive, isinstance(jnp.ones(3), ArrayImpl), isinstance(1, ArrayImpl))
jax.vmap(lambda x: print(isinstance(x, BatchTracer), x.batch_dim, x.val.shape, isinstance(x, ArrayImpl)))(make_iota(3))
print(jax.jit(lambda x: x, in_shardings=sharding_impls.UNSPECIFIED)(1.0))
print(api_util.flatten_axes("axes", jax.tree.structure((1, (2, 3))), (0, None)))
print(util.partition_list([True, False], "ab"), util.merge_lists([True, False], "b", "a"), util.unzip2([(1, 2)]))
print(util.HashablePartial(max, 1) == util.HashablePartial(max, 1), util.safe_map(max, [1, 5], [3, 4]))
""") == """{ lambda ; a:f32[3] b:f32[3]. let c:f32[3] = add a b in (c,) }
remat2 closed_call
True sin True False
True 0 (3,) False
1.0
[0, None, None]
(['b'], ['a']) ['a', 'b'] ((1,), (2,))
True [3, 5]
"""


def test_older_forms_of_jit_and_shard_map_take_their_arguments_by_position():
    assert under_jax("""
import jax, jax.numpy as jnp
from jax.experimental.pjit import pjit
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices()[:1], "x")
rows = NamedSharding(mesh, P("x"))
print(pjit(lambda x, n: x * n, (rows,), rows, 1)(jnp.arange(3), 2).sharding.spec)
print(shard_map(lambda x: jax.lax.psum(x, "x"), mesh, P("x"), P())(jnp.arange(3.0)))
print(shard_map(lambda x: x, mesh, in_specs=P("x"), out_specs=P(), check_rep=False)(jnp.arange(3.0)).shape)
""") == "P('x',)\n[0. 1. 2.]\n(3,)\n"


def test_all_names_of_a_module_are_no_modules_that_it_uses():
    assert under_jax("""
from jax.test_util import *
print("np" in globals(), check_grads.__name__)
""") == "False check_grads\n"


def test_public_names_are_no_modules_that_are_loaded_late():
    """Tools that walk over all names ask each for attributes, which would load packages that may not be there."""
    assert under_jax("""
import jax
from types import ModuleType
from anima.util import lazy_module
late, seen = type(lazy_module("sys")), set()
def walk(module):
    if module.__name__ in seen:
        return
    seen.add(module.__name__)
    for name in module.__all__:
        value = getattr(module, name)
        if type(value) is late:
            print(module.__name__, name)
        elif isinstance(value, ModuleType) and value.__name__.startswith(f"{module.__name__}."):
            walk(value)
walk(jax)
print(len(seen) > 50)
""") == "True\n"
