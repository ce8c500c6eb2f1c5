"""Pipelines against their stages one after the other, in numpy.

Shapes: B batch, D dims, M microbatches, S stages, R repeats through the stages.
"""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import (
  AUX_LOSS,
  DECODE_CACHE,
  NON_TRAINABLE,
  PARAMS,
  RANDOM,
  SUMMARIES,
  WeightHParams,
  WeightInit,
)
from pax_compat.config import REQUIRED, Config
from pax_compat.layer_core import summaries
from pax_compat.layer_core.summaries import SummaryType
from pax_compat.layers import linears, stochastics
from pax_compat.layers.pipelines import pipeline
from pax_compat.layers.pipelines.pipeline import (
  CircularLayerwiseShardablePipelined,
  LayerwiseShardablePipelined,
)

B, D, S, M = 6, 4, 3, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, D)).astype(np.float32)
# One for each example, so that it shows where each one goes.
FACTORS = np.linspace(0.5, 1.5, B, dtype=np.float32)[:, None]
ALL = [NON_TRAINABLE, AUX_LOSS, SUMMARIES]


class Body(base_layer.BaseLayer):
  """A stage that has some of everything that a pipeline has to deal with."""

  keep_prob: float = 1.0
  output_dims: int = D

  def setup(self):
    self.create_child(
      'linear',
      linears.Linear.config(input_dims=D, output_dims=self.output_dims),
    )
    self.create_child(
      'drop', stochastics.Dropout.config(keep_prob=self.keep_prob)
    )
    self.create_variable(
      'average', WeightHParams([], WeightInit.Constant(0.0)), trainable=False
    )

  def __call__(self, inputs, factors=1.0):
    outputs = self.drop(jnp.tanh(self.linear(inputs)) * factors)
    mean = jnp.mean(outputs)
    if self.is_mutable_collection(NON_TRAINABLE):
      self.update_var('average', 0.5 * (self.get_var('average') + mean))
    self.add_summary('mean', mean)
    self.add_summary('all', outputs[:, 0], SummaryType.HISTOGRAM)
    self.add_summary('text', 'a stage', SummaryType.TEXT)
    self.add_aux_loss('squares', jnp.mean(jnp.square(outputs)), 0.5)
    return outputs

  def init_states(self, batch_size):
    self.update_decode_state('total', jnp.zeros([batch_size, D]))

  def extend_step(self, inputs):
    total = self.get_decode_state('total') + inputs
    self.update_decode_state('total', total)
    return jnp.tanh(self.linear(total))


def _layer(body=None, repeats=None, **fields):
  """Returns a pipeline, which is circular if there are repeats."""
  cls = LayerwiseShardablePipelined
  if repeats is not None:
    cls = CircularLayerwiseShardablePipelined
    fields['circular_repeat'] = repeats
  fields = {'num_stages': S, 'num_microbatches': M, **fields}
  body = Body.config() if body is None else body
  return cls.config(single_stage_body=body, **fields).Instantiate()


def _variables(layer, inputs=X):
  keys = {PARAMS: jax.random.key(0), RANDOM: jax.random.key(1)}
  variables = base_layer.unbox(layer.init_boxed(keys, inputs))
  assert set(variables) == {PARAMS, NON_TRAINABLE}
  return variables


def _weights(variables) -> np.ndarray:
  """Returns the weights [S R, D, D], in the order that they are applied."""
  w = variables[PARAMS]['body']['linear']['w']
  return np.asarray(w).reshape(-1, D, D)


def _one_by_one(weights, parts, factors):
  """Returns the outputs of each layer, [S R, M, B / M, D]."""
  outputs = []
  for w in weights:
    parts = np.tanh(parts @ w) * factors
    outputs.append(parts)
  return np.stack(outputs)


def _split(x, parts=M):
  """Returns [M, B / M, ...]: microbatch m has the examples m, m + M, ...."""
  return np.stack([x[m::parts] for m in range(parts)])


def _joined(parts):
  """Returns [B, ...], the inverse of `_split`."""
  return np.stack(list(parts), axis=1).reshape(B, *parts.shape[2:])


# As many microbatches as stages, more, and fewer.
COUNTS = [(6, None), (2, None), (3, 2), (6, 2)]


def test_examples():
  found = doctest.testmod(pipeline)
  assert found.attempted and not found.failed


@pytest.mark.parametrize('parts,repeats', COUNTS)
def test_outputs_and_updates(parts, repeats):
  layer = _layer(repeats=repeats, num_microbatches=parts)
  variables = _variables(layer)
  y, updates = jax.jit(lambda v: layer.apply(v, X, FACTORS, mutable=ALL))(
    variables
  )
  each = _one_by_one(
    _weights(variables), _split(X, parts), _split(FACTORS, parts)
  )
  np.testing.assert_allclose(y, _joined(each[-1]), rtol=1e-5, atol=1e-6)
  # Bubbles leave no trace.
  means = each.mean(axis=(2, 3))
  averages = np.zeros(len(each))
  for m in range(parts):
    averages = 0.5 * (averages + means[:, m])
  found = updates[NON_TRAINABLE]['body']['average']
  np.testing.assert_allclose(
    found, averages.reshape(found.shape), rtol=1e-4, atol=1e-6
  )
  losses = np.square(each).mean(axis=(1, 2, 3)).sum()
  found = updates[AUX_LOSS]['body']['squares']
  np.testing.assert_allclose(found.value, losses, rtol=1e-5)
  np.testing.assert_allclose(found.weight, 0.5 * len(each), rtol=1e-5)
  summaries = updates[SUMMARIES]['body']
  assert len(summaries) == 3 * len(each)
  for i, outputs in enumerate(each):
    np.testing.assert_allclose(
      summaries[f'mean_{i}'].value, means[i].mean(), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
      np.sort(summaries[f'all_{i}'].value),
      np.sort(outputs[..., 0].ravel()),
      rtol=1e-4,
      atol=1e-6,
    )
    assert bytes(np.asarray(summaries[f'text_{i}'].value)) == b'a stage'


@pytest.mark.parametrize(
  'repeats,policy', [(None, 'save_nothing'), (2, 'save_dot_only')]
)
def test_gradients(repeats, policy):
  layer = _layer(repeats=repeats, num_microbatches=3, checkpoint_policy=policy)
  variables = _variables(layer)

  def pipelined(params, x, factors):
    y, updates = layer.apply(
      {**variables, PARAMS: params}, x, factors, mutable=[AUX_LOSS]
    )
    return jnp.sum(jnp.sin(y)) + updates[AUX_LOSS]['body']['squares'].value

  def one_by_one(params, x, factors):
    loss = 0.0
    for w in params['body']['linear']['w'].reshape(-1, D, D):
      x = jnp.tanh(x @ w) * factors
      loss += jnp.mean(jnp.square(x))
    return jnp.sum(jnp.sin(x)) + loss

  found, wanted = (
    jax.jit(jax.grad(fn, (0, 1, 2)))(variables[PARAMS], X, FACTORS)
    for fn in (pipelined, one_by_one)
  )
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6),
    found,
    wanted,
  )


class Fragile(base_layer.BaseLayer):
  """A stage that is not a number, and has no gradient, where all is zero."""

  def setup(self):
    self.create_child(
      'linear', linears.Linear.config(input_dims=D, output_dims=D)
    )

  def __call__(self, inputs):
    outputs = self.linear(inputs)
    return outputs / jnp.linalg.norm(outputs, axis=-1, keepdims=True)


def test_bubbles_work_on_numbers():
  layer = _layer(Fragile.config())
  variables = base_layer.unbox(layer.init_boxed(jax.random.key(0), X))
  gradients = jax.grad(lambda v: jnp.sum(layer.apply(v, X) ** 3))(variables)
  for x in jax.tree.leaves(gradients):
    assert np.isfinite(x).all() and np.any(x != 0)


def test_losses_of_two_calls_are_summed():
  class Twice(base_layer.BaseLayer):
    def setup(self):
      tpl = LayerwiseShardablePipelined.config(
        single_stage_body=Body.config(), num_stages=S, num_microbatches=M
      )
      self.create_child('pipeline', tpl)

    def __call__(self, inputs):
      return self.pipeline(self.pipeline(inputs))

  layer = _layer()
  variables = _variables(layer)
  y, updates = layer.apply(variables, X, mutable=ALL)
  z, again = layer.apply(variables, y, mutable=ALL)
  found, both = Twice().apply(
    {name: {'pipeline': value} for name, value in variables.items()},
    X,
    mutable=[AUX_LOSS, SUMMARIES],
  )
  np.testing.assert_allclose(found, z, rtol=1e-5)
  first, second, total = (
    tree[AUX_LOSS]
    for tree in (updates, again, {AUX_LOSS: both[AUX_LOSS]['pipeline']})
  )
  np.testing.assert_allclose(
    jax.tree.leaves(total['body']['squares']),
    np.add(*(jax.tree.leaves(x['body']['squares']) for x in (first, second))),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    both[SUMMARIES]['pipeline']['body']['mean_1'].value,
    again[SUMMARIES]['body']['mean_1'].value,
    rtol=1e-5,
  )


def test_one_summary_of_all_stages():
  layer = _layer(unpack_summaries=False)
  variables = _variables(layer)
  _, updates = layer.apply(variables, X, mutable=[SUMMARIES])
  each = _one_by_one(_weights(variables), _split(X), 1.0)
  np.testing.assert_allclose(
    updates[SUMMARIES]['body']['mean'].value,
    each.mean(axis=(1, 2, 3)),
    rtol=1e-4,
  )


@pytest.mark.parametrize(
  'repeats, shared', [(None, False), (2, False), (2, True)]
)
def test_names_of_pax(repeats, shared, monkeypatch):
  fields = {
    'num_microbatches': 3,
    **({'share_weights': True} if shared else {}),
  }
  layer = _layer(repeats=repeats, **fields)
  variables = _variables(layer)
  _, plain = layer.apply(variables, X, mutable=[SUMMARIES])
  plain = plain[SUMMARIES]['body']
  monkeypatch.setattr(summaries, '_have_types', True)
  _, updates = layer.apply(variables, X, mutable=[SUMMARIES])
  found = updates[SUMMARIES]['body']
  values = np.array(
    [plain[f'mean_{i}'].value for i in range(S * (repeats or 1))]
  )
  places = [f'stage{s}' for s in range(S)]
  if shared:
    values = values.reshape(2, S).mean(axis=0)
  elif repeats:
    places = [
      f'circular_layer{r}.{place}' for r in range(2) for place in places
    ]
  for place, value in zip(places, values, strict=True):
    np.testing.assert_allclose(
      found[f'mean.{place}_scalar'], value, rtol=1e-5, atol=1e-7
    )
  layers = S * (repeats or 1)
  assert len(found) == len(places) + 2 * layers
  place = 'circular_layer1.stage0' if repeats else 'stage1'
  assert f'text.{place}_text' in found and f'all.{place}_histogram' in found


def test_evaluation_leaves_statistics_as_they_are():
  layer = _layer()
  variables = _variables(layer)
  variables[NON_TRAINABLE]['body']['average'] += 7
  with base_layer.eval_mode():
    y = layer.apply(variables, X)
  each = _one_by_one(_weights(variables), _split(X), 1.0)
  np.testing.assert_allclose(y, _joined(each[-1]), rtol=1e-5, atol=1e-6)


class Dropped(base_layer.BaseLayer):
  """A stage with a summary of which elements it drops."""

  def setup(self):
    self.create_child('drop', stochastics.Dropout.config(keep_prob=0.5))

  def __call__(self, inputs):
    kept = self.drop(jnp.ones_like(inputs))
    self.add_summary('kept', kept, SummaryType.HISTOGRAM)
    return inputs * kept


@pytest.mark.parametrize('repeats', [None, 2])
def test_each_stage_and_microbatch_drops_other_elements(repeats):
  layer = _layer(Dropped.config(), repeats, num_microbatches=3)
  x = np.ones([3 * 64, D], np.float32)

  apply = jax.jit(
    lambda key: layer.apply({}, x, rngs={RANDOM: key}, mutable=[SUMMARIES])
  )

  def dropped(seed):
    y, updates = apply(jax.random.key(seed))
    kept = np.stack(
      [
        np.asarray(summary.value).reshape(3, 64, D)
        for summary in updates[SUMMARIES]['body'].values()
      ]
    )
    # The summaries describe the outputs: no second draw of random numbers.
    outputs = np.asarray(y).reshape(64, 3, D).swapaxes(0, 1)
    np.testing.assert_allclose(outputs, np.prod(kept, axis=0))
    return kept.reshape(-1, 64 * D) == 0

  masks = dropped(3)
  assert len(masks) == 3 * S * (repeats or 1)
  assert 0.45 < masks.mean() < 0.55
  assert len(np.unique(masks, axis=0)) == len(masks)
  np.testing.assert_array_equal(masks, dropped(3))
  assert (masks != dropped(4)).any()


def test_inputs_that_are_split_already():
  layer = _layer(num_microbatches=None)
  variables = _variables(layer, _split(X))
  y = layer.apply(variables, _split(X), _split(FACTORS))
  each = _one_by_one(_weights(variables), _split(X), _split(FACTORS))
  np.testing.assert_allclose(y, each[-1], rtol=1e-5, atol=1e-6)


def test_a_size_instead_of_a_number():
  layers = [_layer(), _layer(num_microbatches=None, microbatch_size=B // M)]
  variables = _variables(layers[0])
  y, z = (layer.apply(variables, X, FACTORS) for layer in layers)
  np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize('repeats', [None, 2])
def test_decode_states_are_stacked(repeats):
  layer = _layer(repeats=repeats)
  variables = _variables(layer)
  _, state = layer.apply(
    variables, B, method='init_states', mutable=[DECODE_CACHE]
  )
  weights = _weights(variables)
  totals = np.zeros([len(weights), B, D])
  for _ in range(2):
    y, state = layer.apply(
      {**variables, **state}, X, method='extend_step', mutable=[DECODE_CACHE]
    )
    hidden = X
    for i, w in enumerate(weights):
      totals[i] += hidden
      hidden = np.tanh(totals[i] @ w)
  np.testing.assert_allclose(y, hidden, rtol=1e-5, atol=1e-6)
  found = state[DECODE_CACHE]['body']['total']
  assert found.shape == (*([repeats] if repeats else []), S, B, D)
  np.testing.assert_allclose(
    found.reshape(totals.shape), totals, rtol=1e-4, atol=1e-6
  )


@pytest.mark.parametrize('repeats', [None, 2])
def test_stacked_weights_say_how_they_are_stacked_and_split(repeats):
  layer = _layer(repeats=repeats, num_microbatches=S)
  layer.weight_split_dims_mapping.stages = ['stage']
  w = layer.init_boxed(jax.random.key(0), X)[PARAMS]['body']['linear']['w']
  prefix = (*([repeats] if repeats else []), S)
  assert w.value.shape == tuple(w.meta.shape) == (*prefix, D, D)
  assert w.meta.repeat_prefix == prefix
  assert w.meta.tensor_split_dims_mapping == (
    *([None] if repeats else []),
    'stage',
    None,
    None,
  )
  layers = w.value.reshape(-1, D, D)
  assert len(np.unique(layers, axis=0)) == len(layers)


def test_the_loop_is_not_unrolled():
  def size(stages, parts):
    layer = _layer(num_stages=stages, num_microbatches=parts)
    shapes = jax.eval_shape(lambda: _variables(layer))
    grad = jax.grad(lambda v: jnp.sum(layer.apply(v, X)), allow_int=True)
    return len(jax.jit(grad).lower(shapes).as_text().splitlines())

  assert size(8, 6) < 1.1 * size(2, 2)


@pytest.mark.parametrize(
  'fields,inputs,message',
  [
    (dict(num_microbatches=4), X, 'num_microbatches is 4, .* 6 examples'),
    (dict(num_microbatches=0), X, 'num_microbatches is 0'),
    (
      dict(num_microbatches=None, microbatch_size=4),
      X,
      'microbatch_size is 4, .* 6 examples',
    ),
    (dict(microbatch_size=2), X, 'expected one of the two only'),
    (dict(num_stages=0), X, 'num_stages is 0'),
    (dict(repeats=0), X, 'circular_repeat is 0'),
    (dict(repeats=2), X, '2 microbatches, but num_stages is 3'),
    (dict(checkpoint_policy='save_al'), X, 'checkpoint policy'),
    (
      dict(body=Body.config(output_dims=D + 1)),
      X,
      r'maps float32\[3, 4\] to float32\[3, 5\]',
    ),
  ],
)
def test_mistakes(fields, inputs, message):
  layer = _layer(**fields)
  with pytest.raises(errors.UserError, match=message):
    variables = layer.init_boxed(jax.random.key(0), inputs)
    layer.apply(base_layer.unbox(variables), inputs)


def test_an_argument_of_another_batch():
  layer = _layer()
  with pytest.raises(errors.UserError, match=r'\[4, 1\]; expected 6 examples'):
    layer.apply(_variables(layer), X, FACTORS[:4])


def test_a_split_of_several_dimensions():
  layer = _layer()
  layer.weight_split_dims_mapping.stages = ['stage', None]
  with pytest.raises(errors.UserError, match='expected one entry'):
    layer.init_boxed(jax.random.key(0), X)


class Around(base_layer.BaseLayer):
  """A stage around a layer of a given config."""

  linear_tpl: Config = REQUIRED

  def setup(self):
    self.create_child('linear', self.linear_tpl)

  def __call__(self, inputs):
    return self.linear(inputs)


def test_a_stage_cannot_be_shared_with_the_outside():
  linear = linears.Linear.config(input_dims=D, output_dims=D)

  class Model(base_layer.BaseLayer):
    def setup(self):
      self.create_child('before', linear)
      stage = Around.config(linear_tpl=linear)
      self.create_child(
        'pipeline', LayerwiseShardablePipelined.config(single_stage_body=stage)
      )

    def __call__(self, inputs):
      return self.pipeline(self.before(inputs))

  with pytest.raises(errors.UserError, match='share one config of Linear'):
    Model().init_boxed(jax.random.key(0), X)


def test_layers_of_a_stage_may_share_their_weights():
  layer = _layer(repeats=2, share_weights=True, num_microbatches=3)
  variables = _variables(layer)
  assert variables[PARAMS]['body']['linear']['w'].shape == (S, D, D)
  assert np.shape(variables[NON_TRAINABLE]['body']['average']) == (S,)

  def pipelined(params):
    y, updates = layer.apply({**variables, PARAMS: params}, X, mutable=ALL)
    return jnp.sum(jnp.sin(y)), (y, updates)

  def one_by_one(params):
    w = params['body']['linear']['w']
    x = X
    for i in [*range(S)] * 2:
      x = jnp.tanh(x @ w[i])
    return jnp.sum(jnp.sin(x)), x

  found, (y, updates) = jax.jit(jax.grad(pipelined, has_aux=True))(
    variables[PARAMS]
  )
  wanted, x = jax.grad(one_by_one, has_aux=True)(variables[PARAMS])
  np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-6)
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6),
    found,
    wanted,
  )
  twice = np.concatenate([_weights(variables)] * 2)
  each = _one_by_one(twice, _split(X, 3), 1.0)
  means = each.mean(axis=(2, 3)).reshape(2, S, 3)
  averages = np.zeros(S)
  for repeat, m in np.ndindex(2, 3):
    averages = 0.5 * (averages + means[repeat, :, m])
  stored = updates[NON_TRAINABLE]['body']['average']
  np.testing.assert_allclose(stored, averages, rtol=1e-4, atol=1e-6)
  loss = updates[AUX_LOSS]['body']['squares'].value
  wanted_loss = np.square(each).mean(axis=(1, 2, 3)).sum()
  np.testing.assert_allclose(loss, wanted_loss, rtol=1e-5)


def test_layers_with_shared_weights_decode_with_separate_states():
  layer = _layer(repeats=2, share_weights=True)
  variables = _variables(layer)
  _, state = layer.apply(
    variables, B, method='init_states', mutable=[DECODE_CACHE]
  )
  y, state = layer.apply(
    {**variables, **state}, X, method='extend_step', mutable=[DECODE_CACHE]
  )
  hidden, totals = X, []
  for w in np.concatenate([_weights(variables)] * 2):
    totals.append(hidden)
    hidden = np.tanh(hidden @ w)
  np.testing.assert_allclose(y, hidden, rtol=1e-5, atol=1e-6)
  found = state[DECODE_CACHE]['body']['total']
  wanted = np.stack(totals).reshape(2, S, B, D)
  np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


class Named(base_layer.BaseLayer):
  def setup(self):
    assert self.name == 'body'
    self.create_variable('w', base_layer.WeightHParams([]))

  def __call__(self, inputs):
    return inputs * self.theta.w

  def extend_step(self, inputs):
    self.update_decode_state('last', inputs)
    return self(inputs)


def test_a_stage_knows_its_name():
  layer = _layer(Named.config())
  variables = layer.init(jax.random.key(0), X)
  product = np.prod(variables[PARAMS]['body']['w'])
  np.testing.assert_allclose(layer.apply(variables, X), X * product, rtol=1e-5)
  y, _ = layer.apply(variables, X, method='extend_step', mutable=[DECODE_CACHE])
  np.testing.assert_allclose(y, X * product, rtol=1e-5)
