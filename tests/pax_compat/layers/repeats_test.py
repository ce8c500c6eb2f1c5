"""Repeated layers against the same layers one after the other.

Shapes: B batch, D dims, X times.
"""

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
from pax_compat.config import Config, sub_config_field
from pax_compat.layer_core import summaries
from pax_compat.layers import activations, linears, repeats, stochastics

B, D, X = 2, 4, 3
INPUTS = np.random.default_rng(0).normal(size=(B, D)).astype(np.float32)


class Body(base_layer.BaseLayer):
  """A layer that has some of everything that a repeat has to deal with."""

  keep_prob: float = 1.0
  output_dims: int = D
  ff_tpl: Config = sub_config_field(
    linears.FeedForward, activation_tpl=activations.Tanh.config()
  )

  def setup(self):
    self.create_child(
      'ff', self.ff_tpl, input_dims=D, output_dims=self.output_dims
    )
    self.create_child(
      'drop', stochastics.Dropout.config(keep_prob=self.keep_prob)
    )
    self.create_variable(
      'sum', WeightHParams([], WeightInit.Constant(0.0)), trainable=False
    )

  def __call__(self, inputs, factor=1.0):
    outputs = self.drop(self.ff(inputs)) * factor
    if self.is_mutable_collection(NON_TRAINABLE):
      self.update_var('sum', self.get_var('sum') + jnp.sum(outputs))
    self.add_summary('mean', jnp.mean(outputs))
    self.add_aux_loss('squares', jnp.sum(jnp.square(outputs)), 0.25)
    return outputs

  def init_states(self, batch_size):
    self.update_decode_state('total', jnp.zeros([batch_size, D]))

  def extend_step(self, inputs):
    total = self.get_decode_state('total') + inputs
    self.update_decode_state('total', total)
    return self.ff(total)


def _repeat(body=None, **fields):
  body = Body.config() if body is None else body
  fields = {'x_times': X, **fields}
  return repeats.Repeat.config(sub_tpl=body, **fields).Instantiate()


def _variables(layer):
  keys = {PARAMS: jax.random.key(0), RANDOM: jax.random.key(1)}
  variables = base_layer.unbox(layer.init_boxed(keys, INPUTS))
  return {name: variables[name] for name in (PARAMS, NON_TRAINABLE)}


def _one_by_one(params, inputs=INPUTS, factor=1.0):
  """Returns the outputs of all repeats [X, B, D], in numpy."""
  outputs = []
  ff = params['sub']['ff']
  for w, b in zip(ff['linear']['w'], ff['bias']['b'], strict=True):
    inputs = np.tanh(inputs @ w + b) * factor
    outputs.append(inputs)
  return np.stack(outputs)


def test_the_layers_one_after_the_other():
  layer = _repeat()
  variables = _variables(layer)
  y = layer.apply(variables, INPUTS, factor=0.5)
  want = _one_by_one(variables[PARAMS], factor=0.5)
  np.testing.assert_allclose(y, want[-1], rtol=1e-5)


def test_gradients():
  layer = _repeat()
  variables = _variables(layer)
  rest = {NON_TRAINABLE: variables[NON_TRAINABLE]}

  def repeated(params):
    return jnp.sum(layer.apply({**rest, PARAMS: params}, INPUTS) ** 2)

  def one_by_one(params):
    hidden, ff = INPUTS, params['sub']['ff']
    for i in range(X):
      hidden = jnp.tanh(hidden @ ff['linear']['w'][i] + ff['bias']['b'][i])
    return jnp.sum(hidden**2)

  gradients, want = (
    jax.grad(fn)(variables[PARAMS]) for fn in (repeated, one_by_one)
  )
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6),
    gradients,
    want,
  )


def test_weights_differ_from_repeat_to_repeat():
  w = _variables(_repeat())[PARAMS]['sub']['ff']['linear']['w']
  assert w.shape == (X, D, D)
  assert not np.allclose(w[0], w[1]) and not np.allclose(w[1], w[2])


def test_stacked_weights_say_how_they_are_stacked_and_split():
  body = Body.config()
  body.ff_tpl.weight_split_dims_mapping.wt = ['data', None]
  tpl = repeats.Repeat.config(sub_tpl=body, x_times=X)
  tpl.weight_split_dims_mapping.sub = ['mdl']
  variables = tpl.Instantiate().init_boxed(jax.random.key(0), INPUTS)
  w = variables[PARAMS]['sub']['ff']['linear']['w'].meta
  assert tuple(w.shape) == (X, D, D) and w.repeat_prefix == (X,)
  assert list(w.tensor_split_dims_mapping) == ['mdl', 'data', None]
  statistic = variables[NON_TRAINABLE]['sub']['sum'].meta
  assert statistic.repeat_prefix == (X,)


def test_repeats_of_repeats_stack_twice():
  inner = repeats.Repeat.config(sub_tpl=Body.config(), x_times=2)
  variables = _repeat(inner).init_boxed(jax.random.key(0), INPUTS)
  w = variables[PARAMS]['sub']['sub']['ff']['linear']['w']
  assert w.value.shape == (X, 2, D, D) and w.meta.repeat_prefix == (X, 2)


def test_each_repeat_has_statistics_of_its_own():
  layer = _repeat()
  variables = _variables(layer)
  _, updated = layer.apply(variables, INPUTS, mutable=[NON_TRAINABLE])
  want = _one_by_one(variables[PARAMS]).sum(axis=(1, 2))
  np.testing.assert_allclose(
    updated[NON_TRAINABLE]['sub']['sum'], want, rtol=1e-5
  )


def test_auxiliary_losses_are_summed():
  layer = _repeat()
  variables = _variables(layer)
  _, outputs = layer.apply(variables, INPUTS, mutable=[AUX_LOSS])
  want = np.square(_one_by_one(variables[PARAMS])).sum()
  np.testing.assert_allclose(
    outputs[AUX_LOSS]['sub']['squares'].value, want, rtol=1e-5
  )
  assert outputs[AUX_LOSS]['sub']['squares'].weight == X / 4


def test_auxiliary_losses_of_two_calls_are_summed():
  class Twice(base_layer.BaseLayer):
    def setup(self):
      tpl = repeats.Repeat.config(sub_tpl=Body.config(), x_times=X)
      self.create_child('repeat', tpl)

    def __call__(self, inputs):
      return self.repeat(self.repeat(inputs))

  variables = _variables(_repeat())
  _, outputs = Twice().apply(
    {name: {'repeat': value} for name, value in variables.items()},
    INPUTS,
    mutable=[AUX_LOSS, SUMMARIES],
  )
  first = _one_by_one(variables[PARAMS])
  second = _one_by_one(variables[PARAMS], first[-1])
  want = np.square(first).sum() + np.square(second).sum()
  found = outputs[AUX_LOSS]['repeat']['sub']['squares']
  np.testing.assert_allclose(found.value, want, rtol=1e-5)
  assert found.weight == 2 * X / 4
  means = outputs[SUMMARIES]['repeat']['sub']['mean'].value
  # A mean near 0 has no relative precision.
  np.testing.assert_allclose(
    means, second.mean(axis=(1, 2)), rtol=1e-5, atol=1e-7
  )


@pytest.mark.parametrize('unpack', [False, True])
def test_summaries(unpack):
  layer = _repeat(unpack_summaries=unpack)
  variables = _variables(layer)
  _, outputs = layer.apply(variables, INPUTS, mutable=[SUMMARIES])
  outputs = outputs[SUMMARIES]['sub']
  want = _one_by_one(variables[PARAMS]).mean(axis=(1, 2))
  if unpack:
    assert set(outputs) == {'mean_0', 'mean_1', 'mean_2'}
    found = [outputs[f'mean_{i}'].value for i in range(X)]
  else:
    found = outputs['mean'].value
  np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize('unpack', [False, True])
def test_summaries_in_the_form_of_pax(unpack, monkeypatch):
  layer = _repeat(unpack_summaries=unpack)
  variables = _variables(layer)
  want = _one_by_one(variables[PARAMS]).mean(axis=(1, 2))
  monkeypatch.setattr(summaries, '_have_types', True)
  _, outputs = layer.apply(variables, INPUTS, mutable=[SUMMARIES])
  outputs = outputs[SUMMARIES]['sub']
  assert set(outputs) == {'mean_scalar'}
  found = outputs['mean_scalar']
  if unpack:
    assert [x.shape for x in found] == [(1,)] * X
    found = jnp.concatenate(found)
  np.testing.assert_allclose(found, want, rtol=1e-5)
  by_key = summaries.typed(outputs)
  if not unpack:
    np.testing.assert_allclose(by_key['mean_scalar'].value, want, rtol=1e-5)
  for i in range(X) if unpack else ():
    np.testing.assert_allclose(
      by_key[f'mean_{i}_scalar'].value, want[i], rtol=1e-5
    )


def test_each_repeat_drops_other_elements():
  body = Body.config(keep_prob=0.5)
  layer = _repeat(body, return_intermediate_outputs=True)
  variables = _variables(layer)
  # With these weights, elements are zero only where they are dropped.
  ones = jax.tree.map(np.ones_like, variables[PARAMS])
  variables = {**variables, PARAMS: ones}
  x = np.ones([64, D], np.float32)
  y = layer.apply(variables, x, rngs={RANDOM: jax.random.key(3)})
  dropped = np.asarray(y) == 0
  assert 0.4 < dropped.mean() < 0.6
  assert (dropped[0] != dropped[1]).any() and (dropped[1] != dropped[2]).any()


def test_outputs_of_all_repeats():
  layer = _repeat(return_intermediate_outputs=True)
  variables = _variables(layer)
  want = _one_by_one(variables[PARAMS])
  np.testing.assert_allclose(layer.apply(variables, INPUTS), want, rtol=1e-5)


def test_outputs_of_all_repeats_beside_the_last():
  layer = _repeat(collect_intermediate_outputs=True)
  variables = _variables(layer)
  y, outputs = layer.apply(variables, INPUTS, mutable=[repeats.INTERMEDIATES])
  want = _one_by_one(variables[PARAMS])
  np.testing.assert_allclose(y, want[-1], rtol=1e-5)
  (found,) = outputs[repeats.INTERMEDIATES]['repeat_intermediates']
  np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize('unroll', [False, True])
def test_decode_states_are_stacked(unroll):
  layer = _repeat(unroll_in_decode=unroll)
  variables = _variables(layer)
  _, state = layer.apply(
    variables, B, method='init_states', mutable=[DECODE_CACHE]
  )
  totals, ff = np.zeros([X, B, D]), variables[PARAMS]['sub']['ff']
  for _ in range(2):
    y, state = layer.apply(
      {**variables, **state},
      INPUTS,
      method='extend_step',
      mutable=[DECODE_CACHE],
    )
    hidden = INPUTS
    for i in range(X):
      totals[i] += hidden
      hidden = np.tanh(totals[i] @ ff['linear']['w'][i] + ff['bias']['b'][i])
  np.testing.assert_allclose(y, hidden, rtol=1e-5)
  np.testing.assert_allclose(
    state[DECODE_CACHE]['sub']['total'], totals, rtol=1e-5
  )


def test_decoding_is_a_loop_unless_it_is_unrolled():
  def has_loop(layer):
    variables = _variables(layer)
    _, state = layer.apply(
      variables, B, method='init_states', mutable=[DECODE_CACHE]
    )
    step = jax.jit(
      lambda v: layer.apply(
        v, INPUTS, method='extend_step', mutable=[DECODE_CACHE]
      )
    )
    return 'while' in step.lower({**variables, **state}).as_text()

  assert has_loop(_repeat())
  assert not has_loop(_repeat(unroll_in_decode=True))


def _kept_bytes(policy) -> int:
  layer = _repeat(checkpoint_policy=policy)
  variables = _variables(layer)
  _, backward = jax.vjp(lambda v: layer.apply(v, INPUTS), variables)
  return sum(x.nbytes for x in jax.tree.leaves(backward))


def test_the_policy_says_what_is_kept():
  nothing, dots, everything = (
    _kept_bytes(f'save_{what}')
    for what in ('nothing', 'dot_only', 'everything')
  )
  # JAX 0.11 keeps less of everything than of the dots alone, 0.10 more.
  assert nothing < min(dots, everything)
  assert dots != everything


def _model(inside: Config, outside: Config, outside_first: bool):
  class Model(base_layer.BaseLayer):
    def setup(self):
      repeat = repeats.Repeat.config(
        sub_tpl=Body.config(ff_tpl=inside), x_times=X
      )
      children = [
        ('repeat', repeat, {}),
        ('ff', outside, dict(input_dims=D, output_dims=D)),
      ]
      for name, tpl, fields in children[:: -1 if outside_first else 1]:
        self.create_child(name, tpl, **fields)

    def __call__(self, inputs):
      return self.ff(self.repeat(inputs))

  return Model()


@pytest.mark.parametrize('outside_first', [False, True])
def test_what_is_repeated_cannot_be_shared_with_the_outside(outside_first):
  tpl = linears.FeedForward.config()
  with pytest.raises(
    errors.UserError,
    match='ff and a layer inside repeat.sub share one config of FeedForward',
  ):
    _model(tpl, tpl, outside_first).init_boxed(jax.random.key(0), INPUTS)


@pytest.mark.parametrize('outside_first', [False, True])
def test_a_copy_of_what_is_repeated_may_be_outside(outside_first):
  tpl = linears.FeedForward.config()
  model = _model(tpl, tpl.clone(), outside_first)
  variables = model.init_boxed(jax.random.key(0), INPUTS)[PARAMS]
  assert variables['ff']['linear']['w'].value.shape == (D, D)


def test_a_required_field_inside_is_found_before_anything_is_computed():
  tpl = repeats.Repeat.config(
    sub_tpl=linears.FeedForward.config(input_dims=D), x_times=X
  )
  with pytest.raises(errors.UserError, match='sub.output_dims is required'):
    repeats.Repeat.check_required(tpl)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'x_times': 0}, 'x_times is 0; expected 1 or more'),
    ({'checkpoint_policy': 'save_al'}, "unknown checkpoint policy 'save_al'"),
    (
      {'sub_tpl': Body.config(output_dims=5)},
      r'Body maps float32\[2, 4\] to float32\[2, 5\]',
    ),
  ],
)
def test_mistakes_are_named(fields, message):
  tpl = repeats.Repeat.config(sub_tpl=Body.config(), x_times=X).set(**fields)
  with pytest.raises(errors.UserError, match=message):
    tpl.Instantiate().init_boxed(jax.random.key(0), INPUTS)


def test_the_stacked_dimension_has_one_split():
  tpl = repeats.Repeat.config(sub_tpl=Body.config(), x_times=X)
  tpl.weight_split_dims_mapping.sub = ['mdl', None]
  with pytest.raises(errors.UserError, match='sub is .*; expected one entry'):
    tpl.Instantiate().init_boxed(jax.random.key(0), INPUTS)


def test_several_first_dimensions():
  layer = _repeat(x_times=6, nd_prefix_shape=[2, 3], unpack_summaries=True)
  boxed = layer.init_boxed(jax.random.key(0), INPUTS)
  w = boxed[PARAMS]['sub']['ff']['linear']['w']
  assert w.value.shape == (2, 3, D, D) and w.meta.repeat_prefix == (2, 3)
  meta = layer.abstract_init_with_metadata(INPUTS)[PARAMS]['sub']['ff']
  assert meta['linear']['w'].repeat_prefix == [2, 3]
  assert meta['linear']['w'].shape == [D, D]
  variables = _variables(layer)
  flat = repeats.Repeat.config(
    sub_tpl=Body.config(), x_times=6, unpack_summaries=True
  ).Instantiate()

  def flatten(x):
    return x.reshape(6, *x.shape[2:])

  def run(layer, params):
    rest = jax.tree.map(jnp.zeros_like, variables[NON_TRAINABLE])
    if layer is flat:
      rest = jax.tree.map(flatten, rest)
    collections = [NON_TRAINABLE, AUX_LOSS, SUMMARIES]
    y, updated = layer.apply(
      {PARAMS: params, NON_TRAINABLE: rest}, INPUTS, mutable=collections
    )
    return jnp.sum(y**2), (y, updated)

  params = variables[PARAMS]
  grads, (y, updated) = jax.grad(lambda p: run(layer, p), has_aux=True)(params)
  want_grads, (want, want_updated) = jax.grad(
    lambda p: run(flat, p), has_aux=True
  )(jax.tree.map(flatten, params))
  np.testing.assert_allclose(y, want, rtol=1e-6)
  for name, tree in updated.items():
    if name == NON_TRAINABLE:
      tree = jax.tree.map(flatten, tree)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
      tree,
      want_updated[name],
    )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(flatten(a), b, rtol=1e-5),
    grads,
    want_grads,
  )


def test_decoding_with_several_first_dimensions():
  layer = _repeat(x_times=6, nd_prefix_shape=[3, 2], unroll_in_decode=True)
  variables = _variables(layer)
  _, state = layer.apply(
    variables, B, method='init_states', mutable=[DECODE_CACHE]
  )
  y, state = layer.apply(
    {**variables, **state}, INPUTS, method='extend_step', mutable=[DECODE_CACHE]
  )
  params = jax.tree.map(lambda x: x.reshape(6, *x.shape[2:]), variables[PARAMS])
  np.testing.assert_allclose(y, _one_by_one(params)[-1], rtol=1e-5)


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'nd_prefix_shape': [2, 2]}, r'product is x_times, 3'),
    ({'nd_prefix_shape': []}, r'product is x_times, 3'),
    ({'nd_prefix_shape': [1, 3], 'sub': ['mdl']}, 'set only one of them'),
  ],
)
def test_mistakes_in_the_first_dimensions(fields, message):
  split = fields.pop('sub', None)
  tpl = repeats.Repeat.config(sub_tpl=Body.config(), x_times=X, **fields)
  tpl.weight_split_dims_mapping.sub = split
  with pytest.raises(errors.UserError, match=message):
    tpl.Instantiate().init(jax.random.key(0), INPUTS)


class Swapping(base_layer.BaseLayer):
  def setup(self):
    self.create_variable('w', WeightHParams([], WeightInit.Gaussian(1.0)))

  def __call__(self, x, y, add=0.0):
    return y, x * self.theta.w + add


@pytest.mark.parametrize('keeps', [False, True])
def test_all_arguments_may_be_carried(keeps):
  layer = _repeat(
    Swapping.config(),
    positional_args_as_scan_carry=True,
    return_intermediate_outputs=keeps,
  )
  variables = layer.init(jax.random.key(0), 1.0, 2.0)
  found = layer.apply(variables, jnp.ones(2), jnp.full(2, 2.0), add=0.5)
  x, y, each = 1.0, 2.0, []
  for w in variables[PARAMS]['sub']['w']:
    x, y = y, x * w + 0.5
    each.append((x, y))
  want = tuple(np.stack([e[i] for e in each]) for i in range(2))
  for got, wanted in zip(found, want, strict=True):
    wanted = np.repeat(wanted[:, None], 2, 1)
    np.testing.assert_allclose(got, wanted if keeps else wanted[-1], rtol=1e-6)


def test_specs_of_weights_that_are_not_split():
  layer = _repeat()
  specs = layer.apply(_variables(layer), method='quantized_partition_specs')
  spec = specs[PARAMS]['sub']['ff']['linear']['w'].meta
  assert spec == jax.sharding.PartitionSpec(None, None, None)


class Scaling(base_layer.BaseLayer):
  def setup(self):
    self.create_variable('w', WeightHParams([], WeightInit.Gaussian(1.0)))

  def __call__(self, x):
    return x * self.theta.w

  def scaled(self, x, scale, plus):
    return self(x) * scale + plus['y']


@pytest.mark.parametrize('shape', [None, [2, 2]])
def test_each_repeat_may_have_its_own_arguments(shape):
  layer = _repeat(Scaling.config(), x_times=4, nd_prefix_shape=shape)
  variables = layer.init(jax.random.key(0), INPUTS)
  scale, plus = jnp.arange(4.0), {'y': jnp.arange(4.0) - 1}
  found = layer.apply(
    variables,
    INPUTS,
    method_name='scaled',
    per_layer_kwargs={'scale': scale},
    reversed_per_layer_kwargs={'plus': plus},
  )
  x = INPUTS
  for i, w in enumerate(variables[PARAMS]['sub']['w'].reshape(-1)):
    x = x * w * scale[i] + plus['y'][3 - i]
  np.testing.assert_allclose(found, x, rtol=1e-5)
  with pytest.raises(errors.UserError, match='expected x_times, 4, first'):
    layer.apply(variables, INPUTS, per_layer_kwargs={'scale': jnp.ones([3])})
