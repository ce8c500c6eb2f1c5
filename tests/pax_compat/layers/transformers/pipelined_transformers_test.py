"""Pipelined stacks against plain ones, alone and in a language model.

Shapes: B batch, T time, S source time, D model dims.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.layers.transformers.pipelined_transformers import (
  PipelinedTransformer,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
  StackedTransformerRepeated,
)
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import numpy_transformer as reference
from tests.pax_compat.layers.step_by_step import decode

B, T, S, D, V, STAGES = 4, 5, 3, 4, 7, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
CROSS = RNG.normal(size=(B, S, D)).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[5], [4], [3], [2]])).astype(np.float32)
CROSS_PADDINGS = (np.arange(S) >= np.array([[1], [2], [3], [1]])).astype(
  np.float32
)
# Packed examples of each row differ.
SEGMENT_IDS = np.array(
  [[1, 1, 1, 2, 2], [1, 2, 2, 2, 3], [1, 1, 1, 1, 0], [1, 2, 3, 4, 5]]
)
SEGMENT_POS = np.array(
  [[0, 1, 2, 0, 1], [0, 0, 1, 2, 0], [0, 1, 2, 3, 0], [0, 0, 0, 0, 0]]
)


def _stack(num_layers=1, **fields):
  fields = {'hidden_dims': 8, 'num_heads': 2, **fields}
  return StackedTransformer.config(num_layers=num_layers, **fields)


def _pipelined(stage=None, **fields):
  if not {'num_pipeline_microbatches', 'pipeline_microbatch_size'} & set(
    fields
  ):
    fields['num_pipeline_microbatches'] = 2
  return PipelinedTransformer.config(
    pipeline_stage=_stack() if stage is None else stage,
    num_pipeline_stages=STAGES,
    **fields,
  )


def _in_stages(weights, ways=1):
  """Returns the weights of a pipeline, from those of a plain stack."""
  layers = [weights[f'x_layers_{i}'] for i in range(len(weights))]
  count = len(layers) // (STAGES * ways)
  prefix = [STAGES] if ways == 1 else [ways, STAGES]
  body = {
    f'x_layers_{j}': jax.tree.map(
      lambda *each: np.stack(each).reshape(*prefix, *each[0].shape),
      *layers[j::count],
    )
    for j in range(count)
  }
  return {'pipeline': {'body': body}}


def _apply(config, weights, **given):
  layer = config.Instantiate()
  return jax.jit(lambda w: layer.apply({PARAMS: w}, X, **given))(weights)


MASK = np.tril(np.ones([T, T], bool), k=1)
GIVEN = {
  'paddings': dict(paddings=PADDINGS),
  'packed': dict(segment_ids=SEGMENT_IDS, segment_pos=SEGMENT_POS),
  'one mask': dict(segment_mask=MASK[None, None]),
  'own masks': dict(
    segment_mask=np.stack([np.roll(MASK, i) for i in range(B)])[:, None]
  ),
}


@pytest.mark.parametrize(
  'given,num_layers,fields',
  [(given, 1, {}) for given in GIVEN]
  + [('packed', 2, dict(circular_repeat=2, pipeline_microbatch_size=1))],
)
def test_a_pipeline_is_the_plain_stack(given, num_layers, fields):
  given = GIVEN[given]
  ways = fields.get('circular_repeat', 1)
  whole = _stack(STAGES * ways * num_layers, model_dims=D)
  weights = reference.random_weights(whole.Instantiate(), X)
  y = _apply(
    _pipelined(_stack(num_layers), model_dims=D, **fields),
    _in_stages(weights, ways),
    **given,
  )
  want = _apply(whole, weights, **given)
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_the_other_sequence_follows_its_microbatch():
  given = dict(cross_inputs=CROSS, cross_paddings=CROSS_PADDINGS)
  fields = dict(model_dims=D, use_cross_attention=True)
  whole = _stack(STAGES, **fields)
  weights = reference.random_weights(whole.Instantiate(), X, **given)
  y = _apply(_pipelined(**fields), _in_stages(weights), **given)
  want = _apply(whole, weights, **given)
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def _lm(stack):
  lm = TransformerLm.config(
    vocab_size=V,
    model_dims=D,
    packed_input=True,
    stacked_transformer_tpl=stack,
  )
  lm.softmax_tpl.scale_sqrt_depth = True
  return lm.Instantiate()


def _loss(lm, params):
  """Returns the loss of a fixed batch, per-token losses in the aux."""
  ids = np.arange(B * T).reshape(B, T) % V
  labels = NestedMap(class_ids=(ids + 1) % V, class_weights=1 - PADDINGS)
  out = lm.apply(
    {PARAMS: params}, ids, PADDINGS, labels, segment_ids=SEGMENT_IDS
  )
  return out.total_loss, out.per_token_xent


def test_loss_and_gradients_of_a_language_model():
  plain = _lm(_stack(2 * STAGES))
  block = _stack()
  repeated = StackedTransformerRepeated.config(block=block, x_times=2)
  pipelined = _lm(_pipelined(repeated))
  shapes = jax.eval_shape(
    lambda: base_layer.unbox(
      plain.init_boxed(
        jax.random.key(0),
        X[..., 0].astype(int),
        PADDINGS,
        segment_ids=SEGMENT_IDS,
      )
    )[PARAMS]
  )
  weights = jax.tree.map(
    lambda x: RNG.normal(size=x.shape).astype(np.float32), shapes
  )

  def in_stages(tree):
    stack = tree['transformer']
    layers = [stack[f'x_layers_{i}'] for i in range(2 * STAGES)]
    body = jax.tree.map(
      lambda *each: jnp.stack(each).reshape(STAGES, 2, *each[0].shape), *layers
    )
    body = {'repeat': {'sub': {'x_layers_0': body}}}
    return {**tree, 'transformer': {'pipeline': {'body': body}}}

  grad = jax.jit(jax.value_and_grad(lambda w: _loss(plain, w), has_aux=True))
  (want, want_each), want_gradients = grad(weights)
  grad = jax.jit(
    jax.value_and_grad(lambda w: _loss(pipelined, w), has_aux=True)
  )
  (found, each), gradients = grad(in_stages(weights))
  np.testing.assert_allclose(found, want, rtol=1e-5)
  np.testing.assert_allclose(each, want_each, rtol=1e-4, atol=1e-5)
  jax.tree.map(
    lambda f, w: np.testing.assert_allclose(f, w, rtol=1e-3, atol=1e-5),
    gradients,
    in_stages(want_gradients),
  )


def test_decoding_goes_through_the_stages():
  fields = dict(model_dims=D, mask_self_attention=True)
  layer = _pipelined(**fields).Instantiate()
  weights = reference.random_weights(layer, X)
  y = decode(layer, weights, X, [2, 1, 2], B, T)
  want = layer.apply({PARAMS: weights}, X)
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_weights_of_stages_are_split_as_layers_and_stages_say():
  tpl = _pipelined(model_dims=D)
  tpl.weight_split_dims_mapping.stages = ['stage']
  lm = TransformerLm.config(
    vocab_size=V, model_dims=D, stacked_transformer_tpl=tpl
  )
  TransformerLm.set_sharding_params_v1(
    lm,
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
    training_optimized=True,
    ici_mesh_shape=[1, 1, 1, 1],
    mesh_axis_names=['replica', 'data', 'mdl', 'stage'],
  )
  ids = np.zeros([B, T], np.int32)
  variables = jax.eval_shape(
    lambda: lm.Instantiate().init_boxed(jax.random.key(0), ids, PADDINGS)
  )
  body = variables[PARAMS]['transformer']['pipeline']['body']
  meta = body['x_layers_0']['ff_layer']['ffn_layer1']['linear']['w'].meta
  assert list(meta.tensor_split_dims_mapping) == ['stage', 'data', 'mdl']
  assert meta.repeat_prefix == (STAGES,)


@pytest.mark.parametrize(
  'fields,message',
  [
    (dict(num_pipeline_microbatches=3), 'num_microbatches is 3, .* 4 examples'),
    (dict(num_pipeline_microbatches=None), 'expected one of them'),
    (
      dict(stage=_stack(residual_droppath_prob=0.1)),
      'residual_droppath_prob differs',
    ),
    (dict(stage=_stack(model_dims=D + 1)), 'pipeline_stage.model_dims is 5'),
  ],
)
def test_mistakes(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _pipelined(model_dims=D, **fields).Instantiate().init_boxed(
      jax.random.key(0), X
    )
