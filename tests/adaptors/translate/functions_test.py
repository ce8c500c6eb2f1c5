"""Functions of TensorFlow and their counterparts, and what has none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate import functions
from adaptors.translate.functions import translates_fn
from tests.adaptors.translate.parity import assert_close, issues_of, translate

_HERE = __name__
RNG = np.random.default_rng(2)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
Y = RNG.uniform(0.5, 2, size=(2, 3, 4)).astype(np.float32)


@pytest.fixture(scope='module')
def tf():
  return lingvo_runtime.module('tensorflow')


@pytest.fixture(scope='module')
def fn_layer():
  module = lingvo_runtime.module('lingvo.core.builder_layers')
  return lambda fn: module.FnLayer.Params().Set(name='fn', fn=fn)


def _counterpart(fn_layer, fn):
  return translate(fn_layer(fn)).config.fn


# Dotted names below `tf`, with the arguments that the functions are called on
# and those that are given to them beforehand.
_CALLS = [
  *(
    (name, (X,), {})
    for name in (
      'abs cos exp identity math.erf negative nn.elu nn.gelu nn.leaky_relu'
      ' nn.log_softmax nn.relu nn.relu6 nn.selu nn.silu nn.softmax nn.softplus'
      ' nn.softsign nn.swish ones_like reduce_max reduce_mean reduce_min'
      ' reduce_prod reduce_sum sigmoid sin square squeeze stop_gradient tanh'
      ' transpose zeros_like'
    ).split()
  ),
  *((name, (Y,), {}) for name in ('math.log', 'math.rsqrt', 'sqrt')),
  *(
    (name, (X, Y), {})
    for name in ('add math.divide maximum minimum multiply subtract'.split())
  ),
  ('pow', (Y, X), {}),
  ('add_n', ([X, Y, X],), {}),
  ('cast', (X,), {'dtype': 'int32'}),
  ('concat', ([X, Y],), {'axis': 1}),
  ('expand_dims', (X,), {'axis': -1}),
  ('matmul', (X, Y), {'transpose_b': True}),
  ('matmul', (X, Y), {'transpose_a': True}),
  ('nn.gelu', (X,), {'approximate': True}),
  ('nn.leaky_relu', (X,), {'alpha': 0.5}),
  ('nn.softmax', (X,), {'axis': 1}),
  ('reduce_max', (X,), {'axis': 1, 'keepdims': True}),
  ('reduce_sum', (X,), {'axis': [0, 2]}),
  ('reshape', (X,), {'shape': [4, -1]}),
  ('split', (X,), {'num_or_size_splits': 3, 'axis': 1}),
  ('split', (X,), {'num_or_size_splits': [1, 3], 'axis': 2}),
  ('squeeze', (X[:1],), {'axis': [0]}),
  ('stack', ([X, Y],), {'axis': 1}),
  ('transpose', (X,), {'perm': [2, 0, 1]}),
]


@pytest.mark.parametrize(('name', 'args', 'given'), _CALLS)
def test_a_function_of_tensorflow(tf, fn_layer, name, args, given):
  fn = functools.reduce(getattr, name.split('.'), tf)
  if 'dtype' in given:
    given = given | {'dtype': getattr(tf, given['dtype'])}
  if given:
    fn = functools.partial(fn, **given)
  expected = fn(*args)
  found = _counterpart(fn_layer, fn)(*args)
  for got, want in zip(
    found if isinstance(found, tuple) else [found],
    expected if isinstance(expected, list) else [expected],
    strict=True,
  ):
    assert_close(got, want.numpy(), 1e-5, name)


def test_an_equation_is_given_beforehand(tf, fn_layer):
  fn = functools.partial(tf.einsum, 'abc,abc->ac')
  got = _counterpart(fn_layer, fn)(X, Y)
  np.testing.assert_allclose(got, (X * Y).sum(1), rtol=1e-5)


def test_activations_of_lingvo(fn_layer):
  module = lingvo_runtime.module('lingvo.core.activations')
  for name, fn in module._ACTIVATIONS.items():
    found = _counterpart(fn_layer, fn)(X)
    assert_close(found, fn(X).numpy(), 1e-5, name)


def test_functions_of_the_old_interface(fn_layer):
  compat = lingvo_runtime.module('tensorflow').compat.v1
  for name in ('reduce_sum', 'nn.softmax', 'squeeze', 'transpose'):
    fn = functools.reduce(getattr, name.split('.'), compat)
    assert_close(_counterpart(fn_layer, fn)(X), fn(X).numpy(), 1e-5, name)


def twice(x):
  return x + x


@translates_fn(f'{_HERE}.twice')
def jax_twice(x):
  return 2 * x


def _outer(factor, inner):
  def scaled(x, plus=1.0):
    return inner(x) * factor + plus

  return scaled


@translates_fn(f'{_HERE}._outer.<locals>.scaled')
def jax_scaled(x, *, factor, inner, plus):
  return inner(x) * factor + plus


def _two_lambdas():
  return lambda x: x, lambda x: -x


def _one_lambda():
  return lambda x: -x


translates_fn(f'{_HERE}._two_lambdas.<locals>.<lambda>')(jnp.negative)
translates_fn(f'{_HERE}._one_lambda.<locals>.<lambda>')(jnp.negative)


def _forgetful(factor):
  def scaled(x):
    return x * factor

  return scaled


@translates_fn(f'{_HERE}._forgetful.<locals>.scaled')
def jax_forgetful(x):
  return x


def test_a_function_of_a_user(fn_layer):
  assert _counterpart(fn_layer, twice) is jax_twice


def test_a_local_function_takes_values_from_around_it(tf, fn_layer):
  found = _counterpart(fn_layer, _outer(3.0, tf.nn.relu))
  assert found.func is jax_scaled
  assert found.keywords == dict(factor=3.0, inner=jax.nn.relu, plus=1.0)
  np.testing.assert_allclose(found(X), 3 * np.maximum(X, 0) + 1, rtol=1e-6)


def test_the_only_lambda_of_a_function(fn_layer):
  assert _counterpart(fn_layer, _one_lambda()) is jnp.negative


def _decorated(fn):
  """A decorator without `functools.wraps`."""

  def helper(x):
    return x

  def call(*args):
    return helper(fn(*args))

  return call


@_decorated
def _numbered_lambdas(plus):
  return (lambda x: x + plus), (lambda x: -x)


@translates_fn(f'{_HERE}._numbered_lambdas.<locals>.<lambda>[0]')
def jax_plus(x, *, plus):
  return x + plus


translates_fn(f'{_HERE}._numbered_lambdas.<locals>.<lambda>[1]')(jnp.negative)


def test_lambdas_by_number_in_a_decorated_function(fn_layer):
  first, second = _numbered_lambdas(2.0)
  found = _counterpart(fn_layer, first)
  assert found.func is jax_plus and found.keywords == {'plus': 2.0}
  assert _counterpart(fn_layer, second) is jnp.negative


class Doubler:
  """Something that can be called."""

  def __call__(self, x):
    return 2 * x

  def double(self, x):
    return 2 * x


def _unknown(x):
  return x


@pytest.mark.parametrize(
  ('fn', 'message'),
  [
    (
      _unknown,
      f'no translation is registered for the function {_HERE}._unknown;'
      f" register a JAX function with @translates_fn('{_HERE}._unknown')",
    ),
    (Doubler(), f'is registered for the function {_HERE}.Doubler;'),
    (Doubler().double, f'registered for the function {_HERE}.Doubler.double;'),
    (functools.partial(_unknown, 1), f'the function {_HERE}._unknown;'),
    (_outer(1.0, _unknown), f'the function {_HERE}._unknown;'),
    (_outer(np.ones(3), abs), 'scaled has factor = array([1., 1., 1.]), a nd'),
    (
      _two_lambdas()[0],
      'is the name of 2 functions; give each of them its own',
    ),
    (_forgetful(2), 'scaled has values for factor, and its translation'),
    (functools.partial(twice, y=3), 'twice has values for y, and its transl'),
    (3, '3 is not a function'),
  ],
)
def test_what_is_refused(fn_layer, fn, message):
  [issue] = issues_of(fn_layer(fn))
  assert issue.startswith('layer.fn (lingvo.core.builder_layers.FnLayer): ')
  assert message in issue


def test_a_function_in_the_place_of_a_registered_one(fn_layer):
  def imposter(x):
    return x

  imposter.__module__, imposter.__qualname__ = (
    _HERE,
    '_one_lambda.<locals>.<lambda>',
  )
  [issue] = issues_of(fn_layer(imposter))
  assert 'is not the function that its module has under this name' in issue


def test_the_name_to_register():
  assert functions.qualified_name(_one_lambda()) == (
    f'{_HERE}._one_lambda.<locals>.<lambda>'
  )
