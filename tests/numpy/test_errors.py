"""What goes wrong says so: exception class, and the sentence that matters."""

from __future__ import annotations

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.errors import ConcretizationTypeError, NonConcreteBooleanIndexError

SCOPE = {"jnp": jnp, "np": np, "anima": anima}

CASES = [
    ("jnp.sum([1, 2, 3])", TypeError, "sum requires ndarray or scalar arguments, got <class 'list'> at position 0."),
    ("jnp.add([1, 2], [3, 4])", TypeError, "add requires ndarray or scalar arguments, got <class 'list'>"),
    ("jnp.add(1, (3, 4))", TypeError, "add requires ndarray or scalar arguments, got <class 'tuple'> at position 1."),
    ("jnp.sin(None)", TypeError, "sin requires ndarray or scalar arguments, got <class 'NoneType'> at position 0."),
    ("jnp.ones(3) + [1, 2, 3]", TypeError, "unsupported operand type"),
    ("jnp.ones((2, 3)) + jnp.ones((2, 4))", TypeError, "add got incompatible shapes for broadcasting: (2, 3), (2, 4)."),
    ("jnp.ones((2, 3)) + jnp.ones(4)", TypeError, "add got incompatible shapes for broadcasting: (2, 3), (4,)."),
    ("jnp.matmul(jnp.ones(()), jnp.ones(3))", ValueError, "matmul input operand 0 must have ndim at least 1"),
    ("jnp.arange(6).reshape(4, 2)", TypeError, "cannot reshape array of shape (6,) (size 6) into shape (4, 2)"),
    ("jnp.arange(6).reshape(-1, -1)", TypeError, "can only specify one unknown axis size"),
    ("jnp.arange(7).reshape(2, -1)", TypeError, "does not evenly divide 7"),
    ("jnp.broadcast_to(jnp.ones((2, 3)), (4, 3))", ValueError,
     "input type=float32[2,3] and requested type=float32[4,3]"),
    ("jnp.concatenate([])", ValueError, "Need at least one array to concatenate."),
    ("jnp.stack([jnp.ones(2), jnp.ones(3)])", ValueError, "All input arrays must have the same shape."),
    ("jnp.sum(jnp.ones((2, 3)), axis=2)", ValueError, "axis 2 is out of bounds for array of dimension 2"),
    ("jnp.sum(jnp.ones((2, 3)), axis=(0, 0))", ValueError, "duplicate value in 'axis': (0, 0)"),
    ("jnp.transpose(jnp.ones((2, 3)), (0, 0))", TypeError, "transpose permutation isn't a permutation"),
    ("jnp.squeeze(jnp.ones((2, 3)), axis=0)", ValueError, "cannot select an axis to squeeze out"),
    ("jnp.expand_dims(jnp.ones(2), 5)", ValueError, "axis 5 is out of bounds"),
    ("jnp.split(jnp.arange(7), 3)", ValueError, "array split does not result in an equal division"),
    ("jnp.max(jnp.zeros(0))", ValueError, "zero-size array to reduction operation max which has no identity"),
    ("jnp.argmax(jnp.zeros(0))", ValueError, "attempt to get argmax of an empty sequence"),
    ("jnp.linspace(0, 1, -1)", ValueError, "Number of samples, -1, must be non-negative."),
    ("jnp.zeros((-1,))", TypeError, "must have every element be nonnegative, got (-1,)."),
    ("jnp.einsum('ij,jk->iz', jnp.ones((2, 3)), jnp.ones((3, 4)))", ValueError, "Output character 'z' did not appear"),
    ("jnp.einsum('ij,jk->ik', jnp.ones((2, 3)), jnp.ones((4, 5)))", ValueError, "Size of label 'j' for operand 1 (3)"),
    ("jnp.einsum('ij,jk->ik', jnp.ones((2, 3)))", ValueError, "Number of einsum subscripts, 2, must be equal"),
    ("jnp.einsum('ijk->i', jnp.ones((2, 3)))", ValueError, "does not contain the correct number of indices"),
    ("jnp.array('hello')", TypeError, "not a valid Anima array type"),
    ("jnp.array([object()])", TypeError, "not a valid Anima array type"),
    ("jnp.array([[1, 2], [3]])", ValueError, "inhomogeneous shape"),
    ("jnp.array(2**40)", OverflowError, "too large to convert to int32"),
    ("jnp.int32(1) + 2**40", OverflowError, "too large to convert to int32"),
    ("~jnp.ones(2)", TypeError, "not does not accept dtype float32"),
    ("jnp.power(jnp.arange(3), -1)", TypeError, "Integers cannot be raised to negative powers"),
    ("jnp.zeros(3, dtype='floot32')", TypeError, "data type 'floot32' not understood"),
    ("jnp.sum(jnp.ones(3), out=np.zeros(()))", NotImplementedError, "The 'out' argument"),
    ("jnp.ones((2, 3))[0, 0, 0]", IndexError, "Too many indices: array is 2-dimensional, but 3 were indexed"),
    ("jnp.ones((2, 3))[..., ...]", IndexError, "an index can only have a single ellipsis"),
    ("jnp.arange(3)[1.5]", TypeError, "Indexer must have integer or boolean type, got indexer with type float64"),
    ("jnp.arange(3)['a']", TypeError, "Anima does not support string indexing; got idx='a'"),
    ("jnp.arange(3)[[0, 1]]", TypeError, "Using a non-tuple sequence for multidimensional indexing is not allowed"),
    ("jnp.arange(3)[{}]", IndexError, "only integers, slices"),
    ("jnp.arange(3)[1:2.5]", TypeError, "'float' object cannot be interpreted as an integer"),
    ("jnp.arange(3)[::0]", ValueError, "slice step cannot be zero"),
    ("jnp.zeros((0, 3))[0]", IndexError, "out of bounds for axis 0 with size 0"),
    ("jnp.arange(3)[jnp.array([True, False])]", IndexError, "boolean index did not match shape of indexed array"),
    ("jnp.zeros((2, 3)).at[0].set(jnp.ones(4))", ValueError, "input type=float32[4] and requested type=float32[3]"),
    ("jnp.arange(3).at[jnp.array([5])].get(mode='nope')", ValueError, 'Unknown gather mode "nope"'),
    ("jnp.arange(3).item()", ValueError, "can only convert an array of size 1 to a Python scalar"),
    ("jnp.put(jnp.arange(3), 0, 1)", ValueError, "pass inplace=False"),
    ("jnp.vectorize(lambda x: x, signature='(a->b')(jnp.ones(3))", ValueError, "not a valid gufunc signature: (a->b"),
    ("jnp.vectorize(lambda x, y: x, signature='(n),(n)->(n)')(jnp.ones(3), jnp.ones(4))", ValueError,
     "inconsistent size for core dimension 'n': 4 vs 3"),
    ("jnp.fromiter(range(3), int)", NotImplementedError, "it may be non-pure"),
    ("jnp.no_such_function", AttributeError, "no attribute 'no_such_function'"),
]

TRACED = [
    ("lambda x: x[x > 0]", (3,), NonConcreteBooleanIndexError, "Array boolean indices must be concrete"),
    ("lambda x: x.at[x > 0].set(0)", (3,), NonConcreteBooleanIndexError, "Array boolean indices must be concrete"),
    ("lambda n: jnp.arange(3)[:n]", (), IndexError, "Slice entries must be static integers"),
    ("jnp.nonzero", (3,), ConcretizationTypeError, "The size argument of anima.numpy.nonzero must be static"),
    ("jnp.unique", (3,), ConcretizationTypeError, "specify a concrete value for the size argument"),
    ("lambda n: jnp.zeros(n)", (), TypeError, "concrete values of integer type, got (Traced<"),
    ("lambda n: jnp.ones(3).reshape(n)", (), TypeError, "try using `static_argnums` or applying `jit`"),
    ("lambda n: jnp.arange(n)", (), ConcretizationTypeError, "arange argument 'stop'"),
    ("lambda n: jnp.linspace(0, 1, n)", (), ConcretizationTypeError, "'num' argument"),
    ("lambda x: jnp.repeat(x, x)", (3,), ConcretizationTypeError, "the total number of repeats must be static"),
    ("lambda x: x.item()", (), ConcretizationTypeError, "item() method"),
]


@pytest.mark.parametrize(("code", "error", "text"), CASES, ids=[c[0] for c in CASES])
def test_error(code, error, text):
    with pytest.raises(error) as caught:
        eval(code, SCOPE)
    assert text in str(caught.value)


@pytest.mark.parametrize(("code", "shape", "error", "text"), TRACED, ids=[c[0] for c in TRACED])
def test_error_while_tracing(code, shape, error, text):
    with pytest.raises(error) as caught:
        anima.make_jaxpr(eval(code, SCOPE))(jnp.ones(shape, int))
    assert text in str(caught.value)


def test_64_bit_types_warn_when_truncated():
    with pytest.warns(UserWarning, match="Explicitly requested dtype float64 requested in zeros is not available"):
        assert jnp.zeros(3, dtype="float64").dtype == np.float32


def test_rank_promotion_can_be_refused():
    with anima.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="add on shapes"):
        jnp.ones(3) + jnp.ones((2, 3))
    with anima.numpy_rank_promotion("warn"), pytest.warns(UserWarning, match="rank promotion"):
        jnp.ones(3) + jnp.ones((2, 3))
