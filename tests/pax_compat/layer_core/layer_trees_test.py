"""Configs and weights of a layer and its children, as trees."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from pax_compat import base_layer, errors
from pax_compat.config import Config

X = jnp.ones([2, 3])


class Bias(base_layer.BaseLayer):
  """Adds a weight, which it stores as int8 when it is quantized."""

  start: float = 0.0

  @nn.compact
  def __call__(self, x):
    init = base_layer.WeightInit.Constant(self.start)
    shape = [x.shape[-1]]
    x, b = self._cast_to_fprop_dtype(
      (x, self.create_variable('b', base_layer.WeightHParams(shape, init)))
    )
    return x + b

  def quantize_weight(self):
    value = self.get_var('b').astype(jnp.int8)
    return {base_layer.PARAMS: {'b': value}}


class Tree(base_layer.BaseLayer):
  """Layers in an attribute and in a list, and a weight."""

  bias_tpl: Config = base_layer.template_field(Bias)

  def setup(self):
    self.create_child('one', self.bias_tpl, start=1.0)
    self.create_children('more', [self.bias_tpl.clone(), self.bias_tpl.clone()])
    self.create_child('unused', self.bias_tpl.clone())
    weight = base_layer.WeightHParams(
      [2, 3], tensor_split_dims_mapping=['a', None]
    )
    self.create_variable('w', weight, trainable=False)

  def __call__(self, x):
    for layer in (self.one, *self.more):
      x = layer(x)
    return x


class Compact(base_layer.BaseLayer):
  """Layers that are made where they are called."""

  bias_tpl: Config = base_layer.template_field(Bias)

  @nn.compact
  def __call__(self, x):
    x = self.create_child('one', self.bias_tpl)(x)
    for layer in self.create_children('more', [self.bias_tpl] * 2):
      x = layer(x)
    return x

  def elsewhere(self):
    return self.create_child('two', self.bias_tpl)


def test_configs_of_all_layers_that_are_called():
  layer = Tree.config(dtype=jnp.bfloat16, name='tree').Instantiate()
  configs = layer.abstract_init_with_mdl_config(X)
  assert set(configs) == {'_hparams', 'one', 'more_0', 'more_1'}
  assert configs['_hparams'].bias_tpl is None
  assert configs['_hparams'].name == 'tree'
  one = configs['one']['_hparams']
  assert (one.cls, one.start, one.dtype) == (Bias, 1.0, jnp.bfloat16)


def test_weights_as_they_are_quantized():
  layer = Tree.config(mesh_axis_names=['a']).Instantiate()
  variables = layer.init(jax.random.key(0), X)
  tree = layer.apply(variables, method='quantize_weight')
  dtypes = jax.tree.map(lambda x: x.dtype.name, tree)
  biases = {name: {'b': 'int8'} for name in ('one', 'more_0', 'more_1')}
  assert dtypes == {'params': biases, 'non_trainable': {'w': 'float32'}}
  specs, _ = layer.apply(
    variables, mutable=True, method='quantized_partition_specs'
  )
  split = jax.sharding.PartitionSpec('a', None)
  assert specs['non_trainable']['w'].meta == split
  assert set(specs['params']) == set(biases)


def test_children_of_a_compact_method():
  layer = Compact.config().Instantiate()
  variables = layer.init(jax.random.key(0), X)
  assert set(variables['params']) == {'one', 'more_0', 'more_1'}
  assert (layer.apply(variables, X) == X).all()
  with pytest.raises(errors.UserError, match="the child 'two' outside"):
    layer.apply(variables, method='elsewhere')


def test_a_config_in_place_of_fields_is_explained():
  with pytest.raises(TypeError, match='Please use `layer_p.Instantiate'):
    Bias(Bias.config())


class Inline(base_layer.BaseLayer):
  """Children that are made without a template."""

  field: base_layer.BaseLayer = base_layer.instance_field(Bias)

  @nn.compact
  def __call__(self, x):
    return Bias(name='other', params_init=INIT)(self.field(x))


INIT = base_layer.WeightInit.Constant(3.0)


def test_children_without_a_template_inherit_what_is_the_default():
  init = base_layer.WeightInit.Gaussian(2.0)
  layer = Inline.config(params_init=init, fprop_dtype=jnp.bfloat16)
  configs = layer.Instantiate().abstract_init_with_mdl_config(X)
  for name, wanted in (('field', init), ('other', INIT)):
    child = configs[name]['_hparams']
    assert (child.params_init, child.fprop_dtype) == (wanted, jnp.bfloat16)
