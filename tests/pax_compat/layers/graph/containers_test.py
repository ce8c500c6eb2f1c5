"""Containers against the same computation written out."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, BaseLayer, WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config
from pax_compat.layers.graph import containers
from pax_compat.nested_map import NestedMap

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Times(BaseLayer):
  """Multiplies by a weight."""

  value: float = REQUIRED

  def setup(self):
    self.create_variable(
      'w', WeightHParams([], WeightInit.Constant(self.value))
    )

  def __call__(self, x):
    return x * self.theta.w


class Divided(BaseLayer):
  """Returns a quotient and a remainder as a NestedMap."""

  def __call__(self, x):
    return NestedMap(quotient=x // 2, rest=x % 2)


class Scanned(BaseLayer):
  """Runs its child in a scan."""

  child_tpl: Config = REQUIRED

  def setup(self):
    self.create_child('child', self.child_tpl)

  def __call__(self, x):
    def body(module, carry, _):
      return module.child(carry), None

    scan = nn.scan(
      body,
      variable_broadcast=PARAMS,
      split_rngs={PARAMS: False},
      length=2,
    )
    return scan(self, x, None)[0]


def _run(config, *args):
  """Returns a layer's output, and its weights by path."""
  layer = config.Instantiate()
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, *args)
  params = base_layer.unbox(variables).get(PARAMS, {})
  paths, _ = jax.tree_util.tree_flatten_with_path(params)
  names = {
    jax.tree_util.keystr(path, simple=True, separator='/') for path, _ in paths
  }
  return layer.apply(variables, *args), names


def test_sequential():
  config = containers.Sequential.config(
    layers=[Times.config(value=2.0), jnp.square, Times.config(value=3.0)]
  )
  got, names = _run(config, X)
  np.testing.assert_allclose(got, (X * 2) ** 2 * 3)
  assert names == {'layers_0/w', 'layers_2/w'}


def test_sequential_passes_tuples_and_dicts_on():
  config = containers.Sequential.config(
    layers=[
      lambda x, y: (x + y, x - y),
      lambda plus, minus: NestedMap(a=plus, b=minus),
      lambda b, a: a / (b + 10),
    ]
  )
  got, _ = _run(config, X, X + 1)
  np.testing.assert_allclose(got, (2 * X + 1) / 9)


def test_a_template_that_stands_twice_is_one_layer():
  tpl = Times.config(value=2.0)
  _, names = _run(containers.Sequential.config(layers=[tpl, tpl]), X)
  assert names == {'layers_0/w'}
  _, names = _run(containers.Sequential.config(layers=[tpl, tpl.clone()]), X)
  assert names == {'layers_0/w', 'layers_1/w'}


@pytest.mark.parametrize(
  ('merge', 'want'),
  [
    ('tuple', (2 * X, X**2)),
    ('sum', 2 * X + X**2),
    ('concat', np.concatenate([2 * X, X**2], -1)),
    (lambda outputs: outputs[0] - outputs[1], 2 * X - X**2),
  ],
)
def test_parallel(merge, want):
  config = containers.Parallel.config(
    layers=[Times.config(value=2.0), jnp.square], merge=merge
  )
  got, names = _run(config, X)
  jax.tree.map(np.testing.assert_allclose, got, want)
  assert names == {'layers_0/w'}


def test_branch():
  row = containers.Sequential.config(
    layers=[Times.config(value=2.0), Times.config(value=3.0)]
  )
  body = containers.Sequential.config(
    layers=[row, jnp.square, Times.config(value=5.0)]
  )
  config = containers.Branch.config(
    body=body, fetches=['layers_0.layers_0', 'layers_0']
  )
  got, names = _run(config, X)
  want = (X**2 * 36 * 5, X * 2, X * 6)
  jax.tree.map(np.testing.assert_allclose, got, want)
  assert 'main/layers_0/layers_1/w' in names


def test_branch_within_a_branch_and_under_jit():
  inner = containers.Branch.config(
    body=containers.Sequential.config(
      layers=[Times.config(value=2.0), Times.config(value=3.0)]
    ),
    fetches=['layers_0'],
  )
  config = containers.Branch.config(body=inner, fetches=['main.layers_1'])
  layer = config.Instantiate()
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, X)
  got = jax.jit(layer.apply)(variables, X)
  jax.tree.map(np.testing.assert_allclose, got, (X * 6, X * 2, X * 6))


_SHARED = Times.config(value=2.0)


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    (containers.Sequential.config(layers=[]), 'layers is empty'),
    (
      containers.Sequential.config(layers=[jnp.tanh, 3]),
      'layers_1: expected the config of a layer or a function, got 3',
    ),
    (
      containers.Parallel.config(layers=[nn.Dense(2)]),
      'wrap a flax module in a DirectFlaxModuleAdapter',
    ),
    (
      containers.Parallel.config(layers=[jnp.tanh], merge='summ'),
      'did you mean: sum',
    ),
    (
      containers.Branch.config(
        body=containers.Sequential.config(layers=[_SHARED]),
        fetches=['layer_0'],
      ),
      "calls no layer 'layer_0'; did you mean: layers_0",
    ),
    (
      containers.Branch.config(
        body=containers.Sequential.config(layers=[_SHARED, _SHARED]),
        fetches=['layers_0'],
      ),
      'is called 2 times',
    ),
    (
      containers.Branch.config(
        body=Scanned.config(child_tpl=Times.config(value=2.0)),
        fetches=['child'],
      ),
      'inside a repeated or rematerialised layer',
    ),
    (
      containers.Sequential.config(
        layers=[_SHARED],
        weight_split_dims_mapping=BaseLayer.WeightSharding.config(wt=['data']),
      ),
      'Sequential.weight_split_dims_mapping.wt is set, but has no effect',
    ),
    (
      containers.Parallel.config(
        layers=[_SHARED],
        activation_split_dims_mapping=BaseLayer.ActivationSharding.config(
          out=['data', None]
        ),
      ),
      'Parallel.activation_split_dims_mapping.out is set, but has no effect',
    ),
    (
      containers.Branch.config(
        body=_SHARED,
        activation_split_dims_mapping=BaseLayer.ActivationSharding.config(
          out=['data', None]
        ),
      ),
      'Branch.activation_split_dims_mapping.out is set, but has no effect',
    ),
  ],
)
def test_what_is_refused(config, message):
  with pytest.raises(errors.UserError, match=message):
    _run(config, X)


def test_keyword_arguments_of_a_node_reach_all():
  config = containers.Parallel.config(
    layers=[lambda x, *, scale: x * scale, lambda x, *, scale: x + scale]
  )
  layer = config.Instantiate()
  got = layer.apply({}, X, scale=4.0)
  jax.tree.map(np.testing.assert_allclose, got, (X * 4, X + 4))


def test_a_dict_of_a_layer_becomes_keyword_arguments():
  config = containers.Sequential.config(
    layers=[Divided.config(), lambda quotient, rest: 2 * quotient + rest]
  )
  np.testing.assert_allclose(_run(config, X)[0], X)


def test_tuples_and_dicts_can_stay_one_argument():
  pair = containers.Sequential.config(
    layers=[lambda x: (x, 2 * x), lambda pair: pair[0] + pair[1]],
    unpack_tuples=False,
  )
  np.testing.assert_allclose(pair.Instantiate().apply({}, X), 3 * X)
  both = containers.Sequential.config(
    layers=[lambda x: {'a': x}, lambda both: both['a'] * 2],
    unpack_dicts=False,
  )
  np.testing.assert_allclose(both.Instantiate().apply({}, X), 2 * X)


def test_flat_opens_outputs_that_are_tuples():
  parts = [lambda x: (x, x + 1), lambda x: x + 2]
  config = containers.Parallel.config(layers=parts, merge='flat')
  got = config.Instantiate().apply({}, X)
  assert isinstance(got, tuple)
  np.testing.assert_allclose(got, (X, X + 1, X + 2))
  one = containers.Parallel.config(layers=parts[1:], merge='flat')
  np.testing.assert_allclose(one.Instantiate().apply({}, X), X + 2)
