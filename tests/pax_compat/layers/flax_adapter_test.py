"""Modules of flax as layers, against the same modules run by flax alone."""

import functools

import fiddle as fdl
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.linen import partitioning

from pax_compat import base_layer, errors
from pax_compat.base_layer import (
  AUX_LOSS,
  NON_TRAINABLE,
  PARAMS,
  RANDOM,
  SUMMARIES,
  BaseLayer,
)
from pax_compat.config import REQUIRED, Config
from pax_compat.layers import flax_adapter

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(6, 5, 5, 1)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])


class Cnn(nn.Module):
  """A small image classifier; its head is a module that is given to it."""

  head: nn.Module
  drop: float = 0.0

  @nn.compact
  def __call__(self, images, train):
    x = nn.Conv(4, (3, 3))(images)
    x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)
    x = nn.Dropout(self.drop, deterministic=not train)(nn.relu(x))
    return self.head(x.mean((1, 2)))


class Coder(nn.Module):
  """Has its submodules in `setup`, and several methods."""

  def setup(self):
    self.encoder = nn.Dense(4)
    self.decoder = nn.Dense(3)

  def __call__(self, x):
    return self.decode(self.encode(x))

  def encode(self, x):
    return self.encoder(x)

  def decode(self, x):
    return self.decoder(x)


def make_cnn(drop=0.0):
  return Cnn(head=nn.Dense(3), drop=drop)


def _adapter(drop=0.0, **fields):
  return flax_adapter.FlaxModuleAdapter.config(
    module_factory_method=functools.partial(make_cnn, drop),
    train_argument='train',
    **fields,
  )


def _init(config, *args):
  """Returns a layer and its first variables, unboxed."""
  layer = config.Instantiate()
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, *args)
  return layer, base_layer.unbox(variables)


def _xent(logits):
  return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean()


def _train(apply, params, stats, steps=5):
  """Trains by plain gradient descent; returns weights, stats and losses."""
  losses = []
  for step in range(steps):

    def loss_fn(params, stats=stats, step=step):
      logits, stats = apply(params, stats, step)
      return _xent(logits), stats

    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    params = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
    losses.append(float(loss))
  return params, stats, losses


@pytest.mark.parametrize('drop', [0.0, 0.3])
def test_training_is_that_of_the_module_alone(drop):
  layer, variables = _init(_adapter(drop), IMAGES)
  first = variables[PARAMS]['cld']
  first_stats = variables[NON_TRAINABLE]['cld']
  module = make_cnn(drop)
  shapes = jax.eval_shape(
    lambda: module.init(jax.random.key(0), IMAGES, train=False)
  )
  jax.tree.map(
    lambda x, s: np.testing.assert_equal(
      (x.shape, x.dtype), (s.shape, s.dtype)
    ),
    {PARAMS: first, **first_stats},
    shapes,
  )

  def ours(params, stats, step):
    logits, updated = layer.apply(
      {PARAMS: {'cld': params}, NON_TRAINABLE: {'cld': stats}},
      IMAGES,
      rngs={RANDOM: jax.random.key(step)},
      mutable=[NON_TRAINABLE],
    )
    return logits, updated[NON_TRAINABLE]['cld']

  def alone(params, stats, step):
    del step  # Its dropout could not draw the same numbers.
    logits, updated = module.apply(
      {PARAMS: params, **stats}, IMAGES, train=True, mutable=['batch_stats']
    )
    return logits, updated

  params, stats, losses = _train(ours, first, first_stats)
  assert losses[-1] < losses[0]
  if drop:
    return
  want_params, want_stats, want_losses = _train(alone, first, first_stats)
  np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
  jax.tree.map(close, params, want_params)
  jax.tree.map(close, stats, want_stats)
  with base_layer.eval_mode():
    got = layer.apply(
      {PARAMS: {'cld': params}, NON_TRAINABLE: {'cld': stats}}, IMAGES
    )
  want = module.apply({PARAMS: params, **stats}, IMAGES, train=False)
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_dropout_draws_from_the_stream_random():
  layer, variables = _init(_adapter(0.5), IMAGES)
  run = functools.partial(
    layer.apply, variables, IMAGES, mutable=[NON_TRAINABLE]
  )
  one, again, other = (
    run(rngs={RANDOM: jax.random.key(seed)})[0] for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(one, again)
  assert not np.allclose(one, other)


@pytest.mark.parametrize(
  'config',
  [
    flax_adapter.DirectFlaxModuleAdapter.config(cld=make_cnn()),
    flax_adapter.DirectFlaxModuleAdapter.config(
      cld=Config(Cnn, head=nn.Dense(3))
    ),
    flax_adapter.DirectFlaxModuleAdapter.config(
      cld=fdl.Config(Cnn, head=fdl.Config(nn.Dense, 3))
    ),
    flax_adapter.FlaxModuleAdapter.config(
      module_factory_method=fdl.Partial(Cnn, head=fdl.Config(nn.Dense, 3))
    ),
    flax_adapter.FlaxModuleAdapter.config(
      module_factory_method=fdl.Config(Cnn, head=fdl.Config(nn.Dense, 3))
    ),
  ],
)
def test_the_module_may_be_given_in_any_way(config):
  layer, variables = _init(config.set(train_argument='train'), IMAGES)
  want_layer, want_variables = _init(_adapter(), IMAGES)
  jax.tree.map(np.testing.assert_array_equal, variables, want_variables)
  with base_layer.eval_mode():
    np.testing.assert_array_equal(
      layer.apply(variables, IMAGES), want_layer.apply(variables, IMAGES)
    )


class Parent(BaseLayer):
  """Has two children."""

  one_tpl: Config = REQUIRED
  other_tpl: Config = REQUIRED

  def setup(self):
    self.create_child('one', self.one_tpl)
    self.create_child('other', self.other_tpl)

  def __call__(self, x):
    return self.one(x), self.other(x)


def test_one_config_is_one_module_and_a_copy_another():
  tpl = flax_adapter.DirectFlaxModuleAdapter.config(cld=nn.Dense(2))
  x = np.ones([3, 4], np.float32)
  _, variables = _init(Parent.config(one_tpl=tpl, other_tpl=tpl), x)
  assert set(variables[PARAMS]) == {'one'}
  _, variables = _init(Parent.config(one_tpl=tpl, other_tpl=tpl.clone()), x)
  kernels = [variables[PARAMS][k]['cld']['kernel'] for k in ('one', 'other')]
  assert not np.allclose(*kernels)


def test_methods():
  config = flax_adapter.EncoderDecoderFlaxModuleAdaptor.config(
    module_factory_method=Coder
  )
  layer = config.Instantiate()
  x = np.ones([2, 5], np.float32)

  def both(layer, x):
    return layer.decode(layer.encode(x))

  # Each method creates what it uses.
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, x, method=both)
  whole, want = _init(config, x)
  assert jax.tree.structure(base_layer.unbox(variables)) == jax.tree.structure(
    want
  )
  np.testing.assert_allclose(
    layer.apply(want, x, method=both), whole.apply(want, x), rtol=1e-6
  )
  with pytest.raises(errors.UserError, match="no method 'compute_logits'"):
    layer.apply(want, x, method=layer.compute_logits)
  with pytest.raises(errors.UserError, match='did you mean: encode'):
    layer.apply(want, 'encod', x, method=layer.call_method)


class Split(nn.Module):
  """Has weights with names of axes, logical or of the mesh."""

  logical: bool = True

  @nn.compact
  def __call__(self, x):
    with_names = (
      nn.with_logical_partitioning if self.logical else nn.with_partitioning
    )
    init = nn.initializers.lecun_normal()
    x = nn.Dense(4, kernel_init=with_names(init, ('embed', 'mlp')))(x)
    return nn.Dense(2, use_bias=False)(x)


@pytest.mark.parametrize('as_dict', [True, False])
@pytest.mark.parametrize('logical', [True, False])
def test_axis_names_become_split_mappings(logical, as_dict):
  rules = {'mlp': ('data', 'mdl'), 'heads': 'mdl'}
  layer = flax_adapter.DirectFlaxModuleAdapter.config(
    cld=Split(logical),
    logical_axes_rules=rules if as_dict else list(rules.items()),
  ).Instantiate()
  x = np.ones([3, 5], np.float32)
  params = layer.init_boxed({PARAMS: jax.random.key(0)}, x)[PARAMS]['cld']
  box = params['Dense_0']['kernel']
  assert box.meta.tensor_split_dims_mapping == (None, ('data', 'mdl'))
  assert box.value.shape == box.meta.shape == (5, 4)
  assert params['Dense_1']['kernel'].meta.tensor_split_dims_mapping is None


@pytest.mark.parametrize(
  ('logical', 'mapping'), [(True, (None, None)), (False, ('embed', 'mlp'))]
)
def test_axis_names_without_rules(logical, mapping):
  """Those of the mesh are its axes; logical ones say nothing."""
  layer = flax_adapter.DirectFlaxModuleAdapter.config(
    cld=Split(logical)
  ).Instantiate()
  x = np.ones([3, 5], np.float32)
  params = layer.init_boxed({PARAMS: jax.random.key(0)}, x)[PARAMS]['cld']
  box = params['Dense_0']['kernel']
  assert box.meta.tensor_split_dims_mapping == mapping


def test_axes_of_t5x_become_split_mappings():
  class Named(nn.Module):
    @nn.compact
    def __call__(self, x):
      w = partitioning.param_with_axes(
        'w', nn.initializers.ones, (5, 4), axes=('embed', 'mlp')
      )
      return nn.Dense(2)(x @ w)

  layer = flax_adapter.DirectFlaxModuleAdapter.config(
    cld=Named(), logical_axes_rules={'mlp': 'mdl'}
  ).Instantiate()
  x = np.ones([3, 5], np.float32)
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, x)
  assert set(variables) == {PARAMS}
  params = variables[PARAMS]['cld']
  assert params['w'].meta.tensor_split_dims_mapping == (None, 'mdl')
  assert params['Dense_0']['kernel'].meta.tensor_split_dims_mapping is None
  assert layer.apply(base_layer.unbox(variables), x).shape == (3, 2)


def test_collections_of_variables():
  layer = _adapter(
    var_collection_map={'batch_stats': ['mine']}, skip_lp_regularization=True
  ).Instantiate()
  variables = layer.init_boxed({PARAMS: jax.random.key(0)}, IMAGES)
  kernel = variables[PARAMS]['cld']['Conv_0']['kernel']
  assert kernel.meta.collections == (base_layer.SKIP_LP_REGULARIZATION,)
  mean = variables[NON_TRAINABLE]['cld']['batch_stats']['BatchNorm_0']['mean']
  assert mean.meta.collections == ('mine', base_layer.SKIP_LP_REGULARIZATION)


class Telling(BaseLayer):
  """Tells a loss and a summary."""

  def __call__(self, x):
    self.add_aux_loss('size', x.sum())
    self.add_summary('mean', x.mean())
    return x


class Around(nn.Module):
  """A module of flax with a layer inside."""

  @nn.compact
  def __call__(self, x):
    return Telling(name='inner')(nn.Dense(2)(x))


def test_what_inner_layers_tell_reaches_the_outside():
  layer, variables = _init(
    flax_adapter.DirectFlaxModuleAdapter.config(cld=Around()),
    np.ones([2, 2], np.float32),
  )
  params = {PARAMS: variables[PARAMS]}
  out, outputs = layer.apply(
    params, np.ones([2, 2], np.float32), mutable=[AUX_LOSS, SUMMARIES]
  )
  losses = jax.tree.leaves(outputs[AUX_LOSS])
  np.testing.assert_allclose(losses, [out.sum(), 1])
  np.testing.assert_allclose(jax.tree.leaves(outputs[SUMMARIES]), [out.mean()])
  np.testing.assert_array_equal(
    layer.apply(params, np.ones([2, 2], np.float32)), out
  )


class Stack(BaseLayer):
  """Scans over its child's layers."""

  child_tpl: Config = REQUIRED

  def setup(self):
    self.create_child('child', self.child_tpl)

  def __call__(self, x):
    scan = nn.scan(
      lambda module, carry, _: (module.child(carry), None),
      variable_axes={PARAMS: 0},
      split_rngs={PARAMS: True},
      length=3,
      metadata_params={'x_times': 3},
    )
    return scan(self, x, None)[0]


def test_a_module_may_be_repeated_by_a_scan():
  tpl = flax_adapter.DirectFlaxModuleAdapter.config(cld=nn.Dense(2))
  x = np.ones([1, 2], np.float32)
  layer, variables = _init(Stack.config(child_tpl=tpl), x)
  weights = variables[PARAMS]['child']['cld']
  assert weights['kernel'].shape == (3, 2, 2)
  want = x
  for kernel in weights['kernel']:
    want = want @ kernel
  np.testing.assert_allclose(layer.apply(variables, x), want, rtol=1e-5)


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    (
      flax_adapter.FlaxModuleAdapter.config(module_factory_method=dict),
      'expected a flax.linen module, got {}',
    ),
    (
      flax_adapter.DirectFlaxModuleAdapter.config(cld=3),
      'expected a flax.linen module, got 3',
    ),
    (flax_adapter.FlaxModuleAdapter.config(), 'module_factory_method is req'),
  ],
)
def test_what_is_no_module_is_refused(config, message):
  with pytest.raises(errors.UserError, match=message):
    _init(config, IMAGES)


def test_a_module_that_does_not_hear_of_evaluation():
  """One that drops or averages while it is evaluated is an error."""
  for module in (
    nn.Dropout(0.5, deterministic=False),
    nn.BatchNorm(use_running_average=False),
  ):
    config = flax_adapter.DirectFlaxModuleAdapter.config(cld=module)
    layer, variables = _init(config, IMAGES)
    with (
      base_layer.eval_mode(),
      pytest.raises(
        errors.UserError, match='in evaluation; set train_argument'
      ),
    ):
      layer.apply(variables, IMAGES)


@pytest.mark.parametrize(
  ('module', 'argument'),
  [
    (nn.Dropout(0.5), 'deterministic'),
    (nn.BatchNorm(), 'use_running_average'),
  ],
)
def test_eval_argument(module, argument):
  config = flax_adapter.DirectFlaxModuleAdapter.config(
    cld=module, eval_argument=argument
  )
  layer, variables = _init(config, IMAGES)
  with base_layer.eval_mode():
    evaluated = layer.apply(variables, IMAGES)
  np.testing.assert_allclose(evaluated, IMAGES, rtol=1e-4)
  trained, _ = layer.apply(
    variables,
    IMAGES,
    rngs={RANDOM: jax.random.key(0)},
    mutable=[NON_TRAINABLE],
  )
  assert not np.allclose(trained, IMAGES, rtol=1e-2)


def test_under_jit():
  layer, variables = _init(_adapter(), IMAGES)
  with base_layer.eval_mode():
    np.testing.assert_allclose(
      jax.jit(layer.apply)(variables, IMAGES),
      layer.apply(variables, jnp.asarray(IMAGES)),
      rtol=1e-5,
      atol=1e-6,
    )
