"""The house rules, proved: layers, sizes, imports, rules of every primitive, documentation."""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import pkgutil
from collections.abc import Iterator

import pytest

import anima
from anima.core.primitive import Primitive

ROOT = pathlib.Path(anima.__file__).parent
FILE_LINES, FUNCTION_LINES = 600, 69

LAYERS = [
    {"errors", "config", "granted", "monitoring", "names", "routines", "spans", "util", "tree", "tree_engine",
     "tree_forms", "tree_keys", "tree_partial", "version", "other_options"},
    {"core"},
    {"ops"},
    {"transforms"},
    {"control"},
    {"compiler"},
    {"runtime"},
    {"api"},
    {"lax", "numpy", "nn", "random", "scipy", "tree_util", "dtypes", "ad_checkpoint", "debug", "experimental",
     "extend", "flatten_util", "custom_derivatives", "stages", "typing", "custom_batching", "dlpack",
     "distributed",
     "image", "sharding", "test_util", "profiler", "export", "ffi", "api_util", "example_libraries", "interpreters",
     "ref"},
    {"anima"},
    {"dropin"},
    {"commands"},
    {"__main__"},
]

# What may be imported late, and by whom: optional packages and those too slow to load at every import.
LATE = {"scipy", "opt_einsum"}


def modules() -> list[tuple[str, pathlib.Path, ast.Module]]:
    out = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(p for p in parts if p != "__init__")
        out.append((name, path, ast.parse(path.read_text())))
    return out


MODULES = modules()
NAMES = {name for name, _, _ in MODULES}


def layer(name: str) -> int:
    part = (name.split(".") + [""])[1] or "anima"
    return next(i for i, names in enumerate(LAYERS) if part in names)


# What loads a module: these get its name as a constant, but where somebody else's name for it is handed on.
LOADERS = {"import_module", "lazy_module", "__import__", "find_spec"}
HANDED_ON = {"anima.compiler.machine.store", "anima.dropin.finder", "anima.names", "anima.routines", "anima.util"}
# Names of modules that are no more than words: where users find a type, whose primitives are whose.
WORDS = {("anima.core.digest", "anima.extend"), ("anima.core.dtypes", "anima.numpy")}


def words(tree: ast.AST) -> Iterator[ast.Constant]:
    """The strings of a tree, without documentation, and without what is said of where users find a class."""
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
        return
    if isinstance(tree, ast.Assign) and ast.unparse(tree.targets[0]).endswith("__module__"):
        return
    for part in ast.iter_child_nodes(tree):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part
        else:
            yield from words(part)


def imports(tree: ast.AST, name: str) -> list[tuple[int, str]]:
    """The modules that part of the module `name` imports, with the line: at once, late, or through a string, which may
    be the whole name of a module anywhere, or the last part of it in the package that the module is in."""
    out = []
    for word in words(tree):
        if "." in word.value and word.value in NAMES and (name, word.value) not in WORDS:
            out.append((word.lineno, word.value))
        elif f"{name}.{word.value}" in NAMES:
            out.append((word.lineno, f"{name}.{word.value}"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in LOADERS:
            known = node.args and isinstance(node.args[0], ast.Constant)
            assert known or name in HANDED_ON, f"{name}:{node.lineno} loads what only it knows"
            out += [(node.lineno, node.args[0].value)] if known else []
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == "anima":
            out.append((node.lineno, "anima"))  # of `sys.modules`
        if isinstance(node, ast.Import):
            out += [(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for a in node.names:
                full = f"{node.module}.{a.name}"
                out.append((node.lineno, full if full in NAMES else str(node.module)))
    return out


@pytest.mark.parametrize("name,path,tree", MODULES, ids=[m[0] for m in MODULES])
def test_module(name: str, path: pathlib.Path, tree: ast.Module) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES, f"{name} is too long"
    if text.strip():
        assert ast.get_docstring(tree), f"{name} has no docstring"
    for line, target in imports(tree, name):
        if target.split(".")[0] == "anima":
            assert layer(target) <= layer(name), f"{name}:{line} imports {target}, a layer above"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{name}.{node.name} has {lines} lines"
            for line, target in [i for part in node.body for i in imports(part, name)]:
                assert target.split(".")[0] in LATE, f"{name}:{line} imports {target} inside a function"


def test_no_import_circles() -> None:
    edges = {name: {t for _, t in imports(tree, name) if t in NAMES and t != name} for name, _, tree in MODULES}
    state: dict[str, int] = {}

    def visit(name: str, stack: list[str]) -> None:
        state[name] = 1
        for other in edges[name]:
            assert state.get(other) != 1, f"import circle: {' -> '.join([*stack, name, other])}"
            if other not in state:
                visit(other, [*stack, name])
        state[name] = 2

    for name in edges:
        if name not in state:
            visit(name, [])


@pytest.mark.parametrize("text", [
    "from anima.api.jit import jit", "from anima.api import jit", "import anima.api.jit",
    "def f(): from anima.api.jit import jit", "jit = lazy_module('anima.api.jit')",
    "def f(): return importlib.import_module('anima.api.jit')", "LATE = {'jit': 'anima.api.jit'}",
    "def __getattr__(name): return importlib.import_module(PLACES[name], 'anima.api.jit')",
    "f(sys.modules['anima.api.jit'])", "f(sys.modules.get('anima.api.jit'))",
])
def test_imports_are_seen(text: str) -> None:
    assert "anima.api" in {target[:9] for _, target in imports(ast.parse(text), "anima.names")}
    if "[name]" in text:
        with pytest.raises(AssertionError, match="loads what only it knows"):
            imports(ast.parse(text), "anima.core.array")


def test_submodules_and_the_whole_are_seen() -> None:
    assert imports(ast.parse("access(('jit', 'none'))"), "anima.api") == [(1, "anima.api.jit")]
    assert imports(ast.parse("sys.modules['anima'].x"), "anima.api.jit") == [(1, "anima")]
    assert not imports(ast.parse("class A:\n    'anima.api.jit'\n    __module__ = 'anima.api.jit'"), "anima.core.array")


# Names of classes that JAX's modules prescribe, where Anima's own class of that name is another one, or under it.
PRESCRIBED = {
    "Backend": "extend.backend", "Buffer": "experimental.buffer_callback", "Pass": "experimental.source_mapper",
    "Frame": "dropin.jax._src.source_info_util", "MemorySpace": "experimental.pallas.specs experimental.pallas.tpu",
    "Primitive": "extend.core.operation", "ShapedArray": "dropin.jax.core", "Store": "extend.linear_util",
    "Trace": "dropin.tracing",
}


def test_a_class_name_means_one_thing() -> None:
    where: dict[str, list[str]] = {}
    for name, _, tree in MODULES:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and name[len("anima."):] not in PRESCRIBED.get(node.name, "").split():
                where.setdefault(node.name, []).append(name)
    assert not {name: modules for name, modules in where.items() if len(modules) > 1}
    assert PRESCRIBED.keys() <= where.keys()


def primitives() -> list[Primitive]:
    found: dict[int, Primitive] = {}
    for info in pkgutil.walk_packages([str(ROOT)], "anima."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if isinstance(value, Primitive):
                found[id(value)] = value
    return sorted(found.values(), key=lambda p: p.name)




@pytest.mark.parametrize("primitive", primitives(), ids=lambda p: p.name)
def test_every_primitive_has_its_rules(primitive: Primitive) -> None:
    for rule in ("infer", "eval", "jvp", "batch"):
        assert getattr(type(primitive), rule) is not getattr(Primitive, rule), f"{primitive.name} has no {rule}"


def test_primitive_names_are_unique() -> None:
    names = [p.name for p in primitives()]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


PUBLIC = ["anima", "anima.numpy", "anima.numpy.fft", "anima.lax", "anima.lax.linalg", "anima.nn", "anima.random",
          "anima.tree", "anima.tree_util", "anima.experimental.sparse",
          "anima.api_util", "anima.core", "anima.extend.backend", "anima.extend.core", "anima.extend.linear_util",
          "anima.extend.source_info_util", "anima.example_libraries.optimizers", "anima.example_libraries.stax",
          *(f"anima.interpreters.{name}" for name in ("ad", "batching", "mlir", "partial_eval", "pxla", "xla")),
          *(f"anima.experimental.{name}" for name in (
              "buffer_callback", "compute_on", "custom_partitioning", "fused", "hijax", "jet", "layout", "mesh_utils",
              "multihost_utils", "ode", "random", "rnn", "xla_metadata")),
          *(f"anima.scipy.{name}" for name in (
              "cluster.vq", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal",
              "sparse.linalg", "spatial.transform", "special", "stats"))]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_documented(module: str) -> None:
    for name, value in vars(importlib.import_module(module)).items():
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "").startswith("anima"):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"
