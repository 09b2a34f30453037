"""What people see of public modules: the names that are there for them, and which one they meant."""

from __future__ import annotations

import importlib
import types

import pytest

PUBLIC = {
    "anima": "api_util core custom_batching custom_derivatives debug distributed dlpack dtypes errors "
             "example_libraries experimental export extend ffi flatten_util image interpreters lax monitoring nn numpy "
             "ops profiler random ref scipy sharding stages test_util tree tree_util typing ad_checkpoint",
    "anima.numpy": "linalg fft", "anima.lax": "linalg", "anima.nn": "initializers",
    "anima.scipy": "special linalg signal ndimage optimize fft interpolate integrate stats",
    "anima.scipy.cluster": "vq", "anima.scipy.spatial": "transform", "anima.scipy.sparse": "linalg",
    "anima.scipy.stats": "bernoulli beta betabinom binom cauchy chi2 dirichlet expon gamma gennorm geom gumbel_l "
                         "gumbel_r laplace logistic multinomial multivariate_normal nbinom norm pareto poisson t "
                         "truncnorm uniform vonmises wrapcauchy",
    "anima.extend": "core linear_util random backend lowering source_info_util xla", "anima.extend.core": "primitives",
    "anima.experimental": "checkify ode sparse multihost_utils jet mesh_utils layout hijax random compute_on "
                          "custom_partitioning fused rnn serialize_executable xla_metadata buffer_callback pallas "
                          "shard_alike control_deps scheduling_groups topologies transfer profiler roofline "
                          "source_mapper compilation_cache",
    "anima.experimental.compilation_cache": "compilation_cache",
    "anima.experimental.sparse": "linalg", "anima.interpreters": "ad batching mlir xla partial_eval pxla",
    "anima.experimental.pallas": "tpu", "anima.example_libraries": "optimizers stax",
}
MODULES = ["anima", *(f"{package}.{name}" for package, names in PUBLIC.items() for name in names.split())]
FROM_OUTSIDE = ("numpy", "ml_dtypes", "builtins", "optree", "typing", "types", "abc", "collections.abc", "functools")


@pytest.mark.parametrize("name", MODULES)
def test_people_see_public_names_alone(name: str) -> None:
    module = importlib.import_module(name)
    seen = [n for n in dir(module) if not n.endswith("__")]
    assert seen or name == "anima.experimental.pallas.tpu"
    for n in seen:
        assert not n.startswith("_"), n
        value = getattr(module, n)
        if isinstance(value, types.ModuleType):  # a module below this one
            assert n in PUBLIC.get(name, "").split() or value.__name__.startswith("anima."), n
        elif isinstance(value, (types.FunctionType, type)):
            assert value.__module__.startswith(("anima", "jax", *FROM_OUTSIDE)), (n, value.__module__)
    assert not {"Any", "Callable", "Sequence", "annotations", "np", "math", "partial", "access"}.intersection(seen)


@pytest.mark.parametrize("name", MODULES)
def test_a_letter_too_many_is_told(name: str) -> None:
    module = importlib.import_module(name)
    known = [n for n in dir(module) if len(n) > 5 and not n.startswith("_")]
    for n in known[:3]:
        wrong = n[:3] + "q" + n[3:]
        with pytest.raises(AttributeError, match=r"has no attribute .* Did you mean '"):
            getattr(module, wrong)


def test_what_a_module_imports_for_itself_is_not_seen() -> None:
    checkify = importlib.import_module("anima.experimental.checkify")
    assert hasattr(checkify, "aval_of") and "aval_of" not in dir(checkify)
    assert "JaxRuntimeError" in dir(checkify)  # imported `as JaxRuntimeError`
