"""A Transformer language model against its own parts, and numpy.

Shapes: B batch, T time, D model dims, V vocabulary.
"""

import doctest

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers import embedding_softmax
from pax_compat.layers.attentions.attention_masks import AttentionMask
from pax_compat.layers.embeddings import positional_embeddings
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.softmaxes import full_softmax
from pax_compat.layers.transformer_models import transformer_lm
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
  TransformerLm,
  positions_in_segments,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
  StackedTransformerRepeated,
)
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import numpy_transformer as reference
from tests.pax_compat.layers.step_by_step import decode

B, T, D, V = 2, 6, 4, 9
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, V, (B, T))
PADDINGS = (np.arange(T) >= np.array([[T], [3]])).astype(np.float32)
NO_PADDINGS = np.zeros([B, T], np.float32)
LABELS = NestedMap(
  class_ids=RNG.integers(0, V, (B, T)), class_weights=1 - PADDINGS
)
CAUSAL = np.tril(np.ones([T, T], bool))
# Two examples in the first row, one and a position of padding in the second.
SEGMENT_IDS = np.array([[1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0]])
SEGMENT_POS = np.array([[0, 1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0]])


def _layers(repeated=False):
  stack = StackedTransformer.config(num_layers=1, hidden_dims=8, num_heads=2)
  if not repeated:
    return stack
  return StackedTransformerRepeated.config(block=stack, x_times=1)


def _config(**fields):
  fields = {'stacked_transformer_tpl': _layers(), **fields}
  return TransformerLm.config(vocab_size=V, model_dims=D, **fields)


def _model(**fields):
  layer = _config(**fields).Instantiate()
  return layer, reference.random_weights(layer, IDS, NO_PADDINGS)


def _logits(layer, weights, ids=IDS, paddings=NO_PADDINGS, **given):
  return np.asarray(
    layer.apply({PARAMS: weights}, ids, paddings, **given).logits
  )


def _positions(position) -> np.ndarray:
  angles = np.asarray(position)[..., None] * np.array([1.0, 1e-4])
  return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def _want(weights, ids=IDS, visible=True, position=None):
  """Returns the logits in numpy."""
  softmax = weights['softmax']['logits_ffn']
  position = np.arange(ids.shape[1]) if position is None else position
  hidden = softmax['linear']['w'].T[ids] + _positions(position)
  hidden = reference.layer(
    hidden, weights['transformer']['x_layers_0'], visible
  )
  return reference.dense(reference.norm(hidden, weights['final_ln']), softmax)


def _close(y, want, tolerance=1e-4):
  np.testing.assert_allclose(y, want, rtol=tolerance, atol=tolerance)


def test_examples():
  found = doctest.testmod(transformer_lm)
  assert found.attempted and not found.failed


@pytest.mark.parametrize(
  ('model_type', 'visible'),
  [
    ('causal', CAUSAL),
    ('prefix', CAUSAL),
    ('bidirectional', True),
    (LanguageModelType.BIDIRECTIONAL, True),
  ],
)
def test_the_formula(model_type, visible):
  layer, weights = _model(model_type=model_type)
  _close(_logits(layer, weights), _want(weights, visible=visible))


def test_a_prefix_is_seen_by_all_of_its_example():
  layer, weights = _model(model_type='prefix')
  length = np.array([[3], [1]])
  after = (np.arange(T) >= length).astype(np.float32)
  y = _logits(layer, weights, causal_attention_mask=after)
  visible = CAUSAL | (after == 0)[:, None, None, :]
  _close(y, _want(weights, visible=visible))


def test_the_loss():
  layer, weights = _model()
  output = layer.apply({PARAMS: weights}, IDS, PADDINGS, LABELS)
  logits = _want(weights, visible=CAUSAL & (PADDINGS == 0)[:, None, None])
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  xent = -np.take_along_axis(log_probs, LABELS.class_ids[..., None], -1)[..., 0]
  xent = xent * LABELS.class_weights
  _close(output.per_token_xent, xent)
  _close(output.per_sequence_xent, xent.sum(-1))
  _close(output.total_loss, xent.sum() / LABELS.class_weights.sum())
  assert output.total_loss == output.avg_xent


def test_predictions_without_labels():
  layer, weights = _model()
  output = layer.apply({PARAMS: weights}, IDS, NO_PADDINGS)
  logits = _want(weights, visible=CAUSAL)
  probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  _close(output.probs, probs)
  _close(output.log_probs, np.log(probs), 1e-3)


def test_entropy_may_be_part_of_the_loss():
  plain, weights = _model()
  layer = _config(entropy_loss_weight=0.1).Instantiate()
  args = ({PARAMS: weights}, IDS, PADDINGS, LABELS)
  before, output = plain.apply(*args), layer.apply(*args)
  log_probs = jax.nn.log_softmax(before.logits)
  each = np.sum(np.exp(log_probs) * log_probs, axis=-1) * LABELS.class_weights
  want = each.sum() / LABELS.class_weights.sum()
  _close(output.avg_entropy_loss, want)
  _close(output.total_loss, before.total_loss + 0.1 * want)


def test_entropy_needs_logits():
  softmax = embedding_softmax.SharedEmbeddingSoftmax.config(chunk_size=2)
  layer, weights = _model(softmax_tpl=softmax, entropy_loss_weight=0.1)
  with pytest.raises(
    errors.UserError, match='entropy_loss_weight needs logits'
  ):
    layer.apply({PARAMS: weights}, IDS, PADDINGS, LABELS)


def test_what_else_the_result_may_hold():
  softmax = embedding_softmax.SharedEmbeddingSoftmax.config(chunk_size=2)
  layer, weights = _model(
    softmax_tpl=softmax,
    record_activations_in_xent_output=True,
    record_logits_in_xent_output=True,
  )
  output = layer.apply({PARAMS: weights}, IDS, NO_PADDINGS, LABELS)
  _close(output.logits, _want(weights, visible=CAUSAL))
  assert output.activations.shape == (B, T, D)
  bare = _config(softmax_tpl=softmax, skip_compute_loss=True).Instantiate()
  hidden = bare.apply({PARAMS: weights}, IDS, NO_PADDINGS, LABELS)
  np.testing.assert_array_equal(hidden, output.activations)


def test_the_embedding_may_be_separate_and_the_rest_left_out():
  layer, weights = _model(
    separate_embedding_tpl=embedding_softmax.Embedding.config(),
    softmax_tpl=full_softmax.FullSoftmax.config(),
    position_emb_tpl=None,
    final_ln_tpl=None,
  )
  assert set(weights) == {'embedding_lookup', 'transformer', 'softmax'}
  hidden = reference.layer(
    weights['embedding_lookup']['emb_var'][IDS],
    weights['transformer']['x_layers_0'],
    CAUSAL,
  )
  want = reference.dense(hidden, weights['softmax']['logits_ffn'])
  _close(_logits(layer, weights), want)


def test_a_softmax_without_an_embedding_needs_a_separate_one():
  with pytest.raises(errors.UserError, match='a FullSoftmax has no embedding'):
    _model(softmax_tpl=full_softmax.FullSoftmax.config())


def test_without_segment_ids_a_packed_row_is_one_example():
  layer, weights = _model()
  packed = _config(packed_input=True).Instantiate()
  got = _logits(packed, weights, paddings=PADDINGS)
  want = _logits(layer, weights, paddings=PADDINGS)
  np.testing.assert_allclose(got[PADDINGS == 0], want[PADDINGS == 0], rtol=1e-5)


@pytest.mark.parametrize('packed', [False, True])
def test_positions_within_packed_examples(packed):
  if packed:
    want = np.array([[0, 1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0]])
    np.testing.assert_array_equal(positions_in_segments(SEGMENT_IDS), want)
  else:
    one = np.ones([B, T], int)
    np.testing.assert_array_equal(positions_in_segments(one)[0], np.arange(T))


@pytest.mark.parametrize(
  'position_emb',
  [
    positional_embeddings.PositionalEmbedding,
    positional_embeddings.TrainablePositionalEmbedding,
  ],
)
@pytest.mark.parametrize('given', [{}, {'segment_pos': SEGMENT_POS}])
def test_packed_rows_are_the_same_as_separate_ones(position_emb, given):
  tpl = position_emb.config()
  if position_emb is positional_embeddings.TrainablePositionalEmbedding:
    tpl.max_seq_length = 10
  layer = _config(packed_input=True, position_emb_tpl=tpl).Instantiate()
  paddings = (SEGMENT_IDS == 0).astype(np.float32)
  given = {'segment_ids': SEGMENT_IDS, **given}
  weights = reference.random_weights(layer, IDS, paddings, **given)
  packed = _logits(layer, weights, paddings=paddings, **given)
  alone = _config(position_emb_tpl=tpl).Instantiate()
  for row, segment in ((0, 1), (0, 2), (1, 1)):
    of_example = SEGMENT_IDS[row] == segment
    ids = IDS[row, of_example][None]
    want = _logits(alone, weights, ids, np.zeros(ids.shape))
    _close(packed[row, of_example], want[0], 1e-5)


def test_order_may_go_by_position():
  """Tokens see those of their example at the same and earlier positions."""
  positions = np.array([[2, 0, 1, 1, 5, 0], [3, 3, 3, 3, 0, 0]])
  layer = _config(packed_input=True, order_by_position=True).Instantiate()
  paddings = (SEGMENT_IDS == 0).astype(np.float32)
  given = dict(segment_ids=SEGMENT_IDS, segment_pos=positions)
  weights = reference.random_weights(layer, IDS, paddings, **given)
  got = _logits(layer, weights, paddings=paddings, **given)
  for row in range(B):
    visible = positions[row][:, None] >= positions[row]
    visible &= SEGMENT_IDS[row][:, None] == SEGMENT_IDS[row]
    want = _want(weights, IDS[row : row + 1], visible, positions[row : row + 1])
    real = SEGMENT_IDS[row] > 0
    _close(got[row, real], want[0, real])


@pytest.mark.parametrize('name', ['input', 'output'])
def test_what_the_layers_get_and_return_may_be_dropped(name):
  fields = {f'{name}_dropout_prob': 0.5, 'skip_compute_loss': True}
  if name == 'input':  # The layers then return what they get.
    fields['final_ln_tpl'] = None
  layer, weights = _model(**fields)
  if name == 'input':
    zero = jax.tree.map(np.zeros_like, weights['transformer'])
    weights = {**weights, 'transformer': zero}
  rngs = {base_layer.RANDOM: jax.random.key(0)}
  got = layer.apply({PARAMS: weights}, IDS, NO_PADDINGS, rngs=rngs)
  with base_layer.eval_mode():
    want = np.asarray(layer.apply({PARAMS: weights}, IDS, NO_PADDINGS))
  kept = np.asarray(got) != 0
  assert 0.3 < kept.mean() < 0.7
  _close(got, np.where(kept, 2 * want, 0), 1e-6)


def test_a_later_token_changes_nothing_before_it():
  layer, weights = _model()
  other = IDS.copy()
  other[:, 3] = (other[:, 3] + 1) % V
  before, after = _logits(layer, weights), _logits(layer, weights, other)
  np.testing.assert_array_equal(before[:, :3], after[:, :3])
  assert not np.allclose(before[:, 3], after[:, 3])


def test_padded_tokens_change_no_loss():
  layer, weights = _model(model_type='bidirectional')

  def loss(ids, labels):
    labels = NestedMap(LABELS.copy() | {'class_ids': labels})
    return layer.apply({PARAMS: weights}, ids, PADDINGS, labels).avg_xent

  hidden = PADDINGS == 1
  ids, labels = IDS.copy(), LABELS.class_ids.copy()
  ids[hidden], labels[hidden] = 0, 0
  _close(loss(ids, labels), loss(IDS, LABELS.class_ids), 1e-6)


def test_a_mask_hides_more():
  layer, weights = _model(model_type='bidirectional')
  visible = np.eye(T, dtype=bool)[None, None]
  y = _logits(layer, weights, segment_mask=visible)
  _close(y, _want(weights, visible=visible))


@pytest.mark.parametrize('repeated', [False, True])
@pytest.mark.parametrize('sizes', [[1] * T, [3, 1, 2]])
def test_decoding_is_the_whole_step_by_step(repeated, sizes):
  layer, weights = _model(stacked_transformer_tpl=_layers(repeated))
  want = _logits(layer, weights)
  _close(decode(layer, weights, IDS, sizes, B, T + 2), want, 1e-5)


def test_decoding_after_padding_in_front():
  layer, weights = _model()
  start = np.array([[0], [2]])
  paddings = (np.arange(T) < start).astype(np.float32)
  position = np.maximum(np.arange(T) - start, 0)
  y = decode(
    layer,
    weights,
    IDS,
    [4, 1, 1],
    B,
    T,
    step={
      'atten_mask': AttentionMask((paddings == 0)[:, None, None], causal=True)
    },
    by={'segment_pos': position},
  )
  want = _logits(layer, weights, IDS[1:, 2:], np.zeros([1, T - 2]))
  _close(y[1:, 2:], want, 1e-5)
  _close(y[:1], _logits(layer, weights)[:1], 1e-5)


@pytest.mark.parametrize('sizes', [[3, 1, 1, 1], [2, 2, 2]])
def test_decoding_after_a_prefix_that_sees_itself(sizes):
  layer, weights = _model(model_type='prefix')
  length = np.array([[min(3, sizes[0])], [1]])
  after = (np.arange(T) >= length).astype(np.float32)
  want = _logits(layer, weights, causal_attention_mask=after)
  given = {'causal_attention_mask': after}
  _close(decode(layer, weights, IDS, sizes, B, T + 1, by=given), want, 1e-5)


def test_a_bidirectional_model_does_not_decode():
  layer, weights = _model(model_type='bidirectional')
  with pytest.raises(errors.UserError, match="'bidirectional' does not decode"):
    decode(layer, weights, IDS, [1], B, T)


def test_dtypes():
  config = _config(fprop_dtype=jax.numpy.bfloat16)
  layer = config.Instantiate()
  weights = reference.random_weights(layer, IDS, NO_PADDINGS)
  output = layer.apply({PARAMS: weights}, IDS, PADDINGS, LABELS)
  assert output.logits.dtype == jax.numpy.bfloat16
  assert output.total_loss.dtype == np.float32


def test_a_norm_inside_repeated_layers_cannot_be_the_last_norm_too():
  norm = norm_layers.LayerNorm.config()
  with pytest.raises(errors.UserError, match='share one config of LayerNorm'):
    stack = _layers(repeated=True)
    stack.block.transformer_layer_params_tpl.ln_tpl = norm
    _model(stacked_transformer_tpl=stack, final_ln_tpl=norm)


@pytest.mark.parametrize(
  ('fields', 'given', 'message'),
  [
    (
      {'model_type': 'causl'},
      {},
      "model_type is 'causl'; did you mean: causal",
    ),
    (
      {'order_by_position': True},
      {},
      'order_by_position is True, but segment_pos is None',
    ),
    (
      {'order_by_position': True, 'model_type': 'prefix'},
      {},
      "order_by_position is only for the model_type 'causal'; this .* 'prefix'",
    ),
    (
      {},
      {'causal_attention_mask': PADDINGS},
      "causal_attention_mask is only for the model_type 'prefix'; this one is"
      " 'causal'",
    ),
    (
      {'softmax_tpl': full_softmax.FullSoftmax.config(num_classes=3)},
      {},
      'softmax_tpl.num_classes is 3, but .* sets it to 9',
    ),
    (
      {
        'model_type': 'bidirectional',
        'stacked_transformer_tpl': _layers().set(mask_self_attention=True),
      },
      {},
      'mask_self_attention is True, but .* sets it to False',
    ),
  ],
)
def test_mistakes_are_named(fields, given, message):
  layer = _config(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init(jax.random.key(0), IDS, NO_PADDINGS, **given)


def test_auxiliary_losses_are_part_of_the_total():
  softmax = embedding_softmax.SharedEmbeddingSoftmax.config(z_loss_weight=0.1)
  layer, weights = _model(softmax_tpl=softmax)
  output, updates = layer.apply(
    {PARAMS: weights}, IDS, PADDINGS, LABELS, mutable=[base_layer.AUX_LOSS]
  )
  value, weight = jax.tree.leaves(updates[base_layer.AUX_LOSS])
  assert (value, weight) == (output.z_loss, 1)
  assert (output.aux_loss, output.aux_loss_weight) == (output.z_loss, 1)
  assert output.total_loss == output.avg_xent + output.z_loss


@pytest.mark.parametrize('repeated', [False, True])
def test_a_single_token_per_step_as_in_pax(repeated):
  layer, weights = _model(stacked_transformer_tpl=_layers(repeated))
  want = _logits(layer, weights)
  cache = {'mutable': [base_layer.DECODE_CACHE]}
  _, state = layer.apply({PARAMS: weights}, B, T, method='init_states', **cache)

  @jax.jit
  def step(state, ids):
    return layer.apply(
      {PARAMS: weights, **state}, ids, method='extend_step', **cache
    )

  for t in range(T):
    predicted, state = step(state, IDS[:, t])
    _close(predicted.logits, want[:, t], 1e-5)
  assert state[base_layer.DECODE_CACHE]['time_step'] == T


def test_a_step_may_predict_only_the_last_token():
  layer, weights = _model()
  cache = {'mutable': [base_layer.DECODE_CACHE]}
  _, state = layer.apply({PARAMS: weights}, B, T, method='init_states', **cache)
  predicted, _ = layer.apply(
    {PARAMS: weights, **state},
    IDS,
    time_step=0,
    last_only=True,
    method='extend_step',
    **cache,
  )
  _close(predicted.logits, _logits(layer, weights)[:, -1:], 1e-5)


def test_a_position_of_its_own_hides_what_is_before_the_example():
  layer, weights = _model()
  cache = {'mutable': [base_layer.DECODE_CACHE]}
  _, state = layer.apply({PARAMS: weights}, B, T, method='init_states', **cache)
  start = np.array([0, 2])
  want = _logits(layer, weights, IDS[1:, 2:], np.zeros([1, T - 2]))
  for t in range(T):
    predicted, state = layer.apply(
      {PARAMS: weights, **state},
      IDS[:, t],
      np.maximum(t - start, 0),
      method='extend_step',
      **cache,
    )
    if t >= 2:
      _close(predicted.logits[1], want[0, t - 2], 1e-5)
