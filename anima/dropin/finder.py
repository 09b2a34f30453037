"""How `import jax` finds Anima: an importer, and modules that are views.

    jax.numpy       what anima.dropin.jax.numpy adds, if there is such a file, else what anima.numpy has
    jax._src.core   anima.dropin.jax._src.core alone: Anima has no such module, libraries ask for it
    jax._src.nn     what anima.nn has: so for every module that users see
    jax._src.lax.*  what anima.lax has, in whichever file JAX has it (`_INNER`)

A view holds nothing of its own. What neither of the two has is an AttributeError or a ModuleNotFoundError, so that
libraries that try find out.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from anima.dropin import defaults
from anima.dropin.version import JAX_VERSION

_ADDED = f"{__package__}."  # where what JAX has, and Anima in another way, stands: anima.dropin.jax.core
_OURS = "anima"
# Where libraries import public names from, by what Anima has them in: the files of a package of JAX's show the same.
_INNER = {f"jax._src.{file}": ours for ours, files in {
    "anima": "api basearray pjit shard_map xla_bridge",
    "anima.config": "config",
    "anima.debug": "debugging",
    "anima.dropin.jax.core": "core",
    "anima.experimental.checkify": "checkify",
    "anima.experimental.layout": "layout",
    "anima.experimental.mesh_utils": "mesh_utils",
    "anima.extend.linear_util": "linear_util",
    "anima.extend.source_info_util": "source_info_util",
    "anima.image": "image.scale",
    "anima.lax": "lax.ann lax.control_flow lax.control_flow.common lax.control_flow.conditionals "
                 "lax.control_flow.loops lax.control_flow.solves lax.convolution lax.fft lax.lax lax.other "
                 "lax.parallel lax.slicing lax.special lax.windowed_reductions",
    "anima.nn": "nn.functions",
    "anima.numpy": "numpy.array numpy.array_creation numpy.einsum numpy.indexing numpy.lax_numpy numpy.polynomial "
                   "numpy.reductions numpy.setops numpy.sorting numpy.tensor_contractions numpy.ufunc_api numpy.ufuncs "
                   "numpy.util numpy.vectorize",
    "anima.ops": "ops.scatter",
    "anima.scipy.interpolate": "third_party.scipy.interpolate",
    "anima.scipy.linalg": "third_party.scipy.linalg",
    "anima.scipy.optimize": "scipy.optimize.minimize",
    "anima.scipy.special": "ops.special",
    "anima.scipy.stats": "scipy.stats._core scipy.stats.kde",
    "anima.sharding": "mesh named_sharding partition_spec sharding_impls",
}.items() for file in files.split()}
_INNER |= {f"jax.experimental.sparse.{file}": "anima.experimental.sparse"
           for file in ("ad", "api", "bcoo", "bcsr", "coo", "csr", "random", "transform", "util")}


def view(name: str) -> ModuleType:
    """A module of JAX's, in a process that may have none yet."""
    install()
    return importlib.import_module(name)


def _names(module: ModuleType) -> dict[str, Any]:
    """The names that lie in a view itself."""
    return ModuleType.__dict__["__dict__"].__get__(module)  # type: ignore[no-any-return]


class View(ModuleType):
    """A module of JAX's: the names of some modules of Anima's, the first that has one.

    What was found once lies in the view itself: later uses cost what those of any module do.
    """

    _sources: tuple[ModuleType, ...] = ()

    def __getattr__(self, name: str) -> Any:
        value = self._find(name)
        if not name.startswith("__"):
            setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """A submodule does not hide a value of its name: `jax.config` stays the options."""
        if isinstance(value, View) and any(name in vars(source) and not isinstance(vars(source)[name], ModuleType)
                                           for source in self._sources):
            return
        super().__setattr__(name, value)

    def _find(self, name: str) -> Any:
        module = f"{self.__name__}.{name}"
        if name == "__all__":
            return [known for known in dir(self) if not known.startswith("_") and hasattr(self, known)]
        for source in self._sources:
            if name in vars(source) and not isinstance(vars(source)[name], ModuleType):
                return vars(source)[name]
        if not name.startswith("__") and _sources_of(module):
            return importlib.import_module(module)
        for source in self._sources:
            if name in dir(source) and not isinstance(getattr(source, name), ModuleType):
                return getattr(source, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=None)

    def __dir__(self) -> list[str]:
        return sorted({*_names(self), *(name for source in self._sources for name in dir(source))})

    def __reduce__(self) -> tuple[Any, ...]:
        return view, (self.__name__,)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """All names, for who asks for all at once."""
        for name in set(dir(self)) - set(found := _names(self)):
            if hasattr(self, name):
                found.setdefault(name, getattr(self, name))
        return found


def _sources_of(name: str) -> tuple[str, ...]:
    """Names of the modules that the view `name` shows: what is added, then Anima's own."""
    path = name.split(".")
    found = []
    if _exists(_ADDED + name):
        found.append(_ADDED + name)
    public = path[2:] or path[1:] if path[:2] == ["jax", "_src"] else path[1:]
    if path[0] == "jax" and _is_public(public):
        found.append(".".join([_OURS, *public]))
    if name in _INNER:
        found.append(_INNER[name])
    return tuple(found)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def _is_public(path: Sequence[str]) -> bool:
    """Whether users see the module of Anima's at `path`: each part is a name that its parent shows."""
    module: Any = importlib.import_module(_OURS)
    for part in path:
        if part not in dir(module):
            return False
        module = getattr(module, part)
    return isinstance(module, ModuleType) and module.__name__ == ".".join([_OURS, *path])


class _Loader:
    def __init__(self, sources: tuple[str, ...]) -> None:
        self.sources = sources

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return View(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        assert isinstance(module, View)
        module._sources = tuple(map(importlib.import_module, self.sources))
        module.__doc__ = module._sources[0].__doc__
        if module.__name__ == "jax":
            getattr(module, "numpy")  # noqa: B009  arrays tell it as the module of their functions


@cache
def _distribution() -> type:
    """What `importlib.metadata`, which takes as long to load as many of Anima's modules, tells of `jax` and `jaxlib`.

    Only that module asks for it: so it has been loaded.
    """
    class Distribution(sys.modules["importlib.metadata"].Distribution):  # type: ignore[misc, name-defined]
        def __init__(self, name: str) -> None:
            self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {JAX_VERSION}\n"

        def read_text(self, filename: str) -> str | None:
            return self._text if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Any:
            return sys.modules["pathlib"].Path(__file__).parent / path

    return Distribution


class Finder:
    """Finds `jax`, `jaxlib` and all below them, and nothing else."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in ("jax", "jaxlib"):
            return None
        sources = _sources_of(fullname)
        if not sources:
            raise ModuleNotFoundError(f"No module named {fullname!r}: Anima stands in for JAX, and has none",
                                      name=fullname)
        spec = ModuleSpec(fullname, _Loader(sources), origin=_OURS, is_package=True)
        spec.submodule_search_locations = []
        return spec

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """The distributions that are not there as packages."""
        for name in ("jax", "jaxlib") if context.name is None else (context.name,):
            if name in ("jax", "jaxlib"):
                yield _distribution()(name)


_finder = Finder()


def installed() -> bool:
    """Whether `import jax` finds Anima in this process."""
    return _finder in sys.meta_path


def install() -> None:
    """Has `import jax` and `import jaxlib` find Anima from now on, under JAX's defaults.

    These are the newer stream of random numbers, `jit` as the name of calls in printed programs, and what `JAX_*` and
    `XLA_FLAGS` in the environment say. A second call does nothing.

    Raises:
      RuntimeError: if this process has imported JAX itself: arrays and tracers of two systems do not mix.
    """
    if installed():
        return
    for name in ("jax", "jaxlib"):
        module = sys.modules.get(name)
        if module is not None and not isinstance(module, View):
            raise RuntimeError(f"anima.dropin.install() came too late: this process has imported {name} from "
                               f"{getattr(module, '__file__', None)}. Call it before the first import of jax.")
    sys.meta_path.insert(0, _finder)
    defaults.adopt()
