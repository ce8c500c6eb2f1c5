"""An encoder and a decoder against numpy, and their decoding against itself.

Shapes: B batch, S source time, T target time, D model dims, V vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import config as configs
from pax_compat import errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers import embedding_softmax
from pax_compat.layers.attentions import dot_product
from pax_compat.layers.embeddings import embedding_tables, positional_embeddings
from pax_compat.layers.softmaxes import full_softmax
from pax_compat.layers.transformer_models.transformer_encoder_decoder import (
  TransformerEncoderDecoder,
)
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
  StackedTransformerRepeated,
)
from pax_compat.layers.transformers.transformer_layers import Transformer
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import numpy_transformer as reference
from tests.pax_compat.layers.step_by_step import decode

B, S, T, D, V = 2, 5, 6, 4, 9
RNG = np.random.default_rng(0)
SOURCE, TARGET = RNG.integers(0, V, (B, S)), RNG.integers(0, V, (B, T))
SOURCE_PADDINGS = (np.arange(S) >= np.array([[S], [2]])).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[4], [T]])).astype(np.float32)
COUNTS = PADDINGS == 0
INPUTS = (SOURCE, SOURCE_PADDINGS, TARGET, PADDINGS)
LABELS = NestedMap(
  class_ids=RNG.integers(0, V, (B, T)), class_weights=1 - PADDINGS
)
CAUSAL = np.tril(np.ones([T, T], bool))
# Two packed examples in each row, and padding at the ends of some.
SOURCE_IDS = np.array([[1, 1, 1, 2, 2], [1, 2, 2, 2, 0]])
TARGET_IDS = np.array([[1, 1, 2, 2, 2, 2], [1, 1, 1, 2, 0, 0]])
PACKED = dict(input_segment_ids=SOURCE_IDS, target_segment_ids=TARGET_IDS)
SOFTMAX = embedding_softmax.SharedEmbeddingSoftmax.config(num_classes=V)
TRAINED = positional_embeddings.TrainablePositionalEmbedding.config(
  max_seq_length=10
)


def _layers(repeated=False, num_layers=1, **fields):
  stack = StackedTransformer.config(
    num_layers=num_layers, hidden_dims=8, num_heads=2, **fields
  )
  if not repeated:
    return stack
  return StackedTransformerRepeated.config(block=stack, x_times=1)


def _config(repeated=False, **fields):
  defaults = dict(
    model_dims=D,
    softmax_tpl=SOFTMAX.clone(),
    encoder_stacked_transformer_tpl=_layers(repeated),
    decoder_stacked_transformer_tpl=_layers(repeated),
  )
  return TransformerEncoderDecoder.config(**{**defaults, **fields})


def _model(*args, **fields):
  layer = _config(*args, **fields).Instantiate()
  given = PACKED if fields.get('packed_input') else {}
  return layer, reference.random_weights(layer, *INPUTS, **given)


def _logits(layer, weights, *inputs, **given):
  return np.asarray(layer.apply({PARAMS: weights}, *inputs, **given).logits)


def _close(y, want, tolerance=1e-4):
  np.testing.assert_allclose(y, want, rtol=tolerance, atol=tolerance)


def _sinusoids(length):
  angles = np.arange(length)[:, None] * np.array([1.0, 1e-4])
  return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def _table(weights):
  """Returns the vectors [V, D] of a softmax that is an embedding too."""
  return weights['softmax']['logits_ffn']['linear']['w'].T


def _want(weights, source, target):
  """Returns the logits of what counts, in numpy.

  Args:
    weights: of a model with one layer on each side.
    source: [B, S, D], what the encoder's layers get.
    target: [B, T, D], likewise the decoder's.
  """
  seen = (SOURCE_PADDINGS == 0)[:, None, None]
  encoded = reference.layer(source, weights['encoder']['x_layers_0'], seen)
  encoded = reference.norm(encoded, weights['encoder_ln'])
  hidden = reference.layer(
    target,
    weights['decoder']['x_layers_0'],
    CAUSAL & (PADDINGS == 0)[:, None, None],
    cross=encoded,
    cross_visible=seen,
  )
  hidden = reference.norm(hidden[COUNTS], weights['decoder_ln'])
  return reference.dense(hidden, weights['softmax']['logits_ffn'])


def _embedding():
  return embedding_tables.Embedding.config(num_classes=V)


@pytest.mark.parametrize('own', [(), ('encoder',), ('decoder',)])
def test_the_formula(own):
  """Whose embedding is not its own has the decoder's, or the softmax's."""
  layer, weights = _model(
    **{f'{side}_embedding_tpl': _embedding() for side in own}
  )
  tables = {
    side: weights[f'{side}_embedding_lookup']['emb_var'] for side in own
  }
  decoders = tables.get('decoder', _table(weights))
  encoders = tables.get('encoder', decoders)
  want = _want(
    weights,
    encoders[SOURCE] + _sinusoids(S),
    decoders[TARGET] + _sinusoids(T),
  )
  _close(_logits(layer, weights, *INPUTS)[COUNTS], want)


def test_both_may_have_embeddings_of_their_own():
  layer, weights = _model(
    encoder_embedding_tpl=embedding_tables.Embedding.config(num_classes=V + 7),
    decoder_embedding_tpl=_embedding(),
    softmax_tpl=full_softmax.FullSoftmax.config(num_classes=V),
  )
  encoders, decoders = (
    weights[f'{side}_embedding_lookup']['emb_var']
    for side in ('encoder', 'decoder')
  )
  assert encoders.shape == (V + 7, D)
  source = SOURCE + 7
  inputs = (source, *INPUTS[1:])
  want = _want(
    weights,
    encoders[source] + _sinusoids(S),
    decoders[TARGET] + _sinusoids(T),
  )
  _close(_logits(layer, weights, *inputs)[COUNTS], want)


@pytest.mark.parametrize('side', ['encoder', 'decoder'])
def test_each_may_have_positions_of_its_own_or_none(side):
  layer, weights = _model(
    position_emb_tpl=None, **{f'{side}_position_emb_tpl': TRAINED}
  )
  added = weights[f'{side}_position_emb']['emb_var']
  source, target = _table(weights)[SOURCE], _table(weights)[TARGET]
  if side == 'encoder':
    source = source + added[:S]
  else:
    target = target + added[:T]
  want = _want(weights, source, target)
  _close(_logits(layer, weights, *INPUTS)[COUNTS], want)


def test_both_share_an_embedding_of_positions():
  layer, weights = _model(position_emb_tpl=TRAINED)
  added, table = weights['position_emb']['emb_var'], _table(weights)
  want = _want(weights, table[SOURCE] + added[:S], table[TARGET] + added[:T])
  _close(_logits(layer, weights, *INPUTS)[COUNTS], want)


def test_the_norms_may_be_left_out():
  layer, weights = _model(encoder_ln_tpl=None, decoder_ln_tpl=None)
  assert set(weights) == {'encoder', 'decoder', 'softmax'}
  hidden = layer.apply({PARAMS: weights}, *INPUTS[:2], method='encode')
  source = _table(weights)[SOURCE] + _sinusoids(S)
  seen = (SOURCE_PADDINGS == 0)[:, None, None]
  want = reference.layer(source, weights['encoder']['x_layers_0'], seen)
  counts = SOURCE_PADDINGS == 0
  _close(hidden[counts], want[counts])


def test_the_loss():
  layer, weights = _model()
  output = jax.jit(layer.apply)({PARAMS: weights}, *INPUTS, LABELS)
  logits = output.logits
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  xent = -np.take_along_axis(log_probs, LABELS.class_ids[..., None], -1)[..., 0]
  xent = xent * LABELS.class_weights
  _close(output.per_token_xent, xent)
  _close(output.per_sequence_xent, xent.sum(-1))
  _close(output.total_loss, xent.sum() / LABELS.class_weights.sum())


def test_gradients_reach_the_encoder():
  layer, weights = _model()

  @jax.jit
  def loss(weights):
    return layer.apply({PARAMS: weights}, *INPUTS, LABELS).total_loss

  direction = jax.tree.map(
    lambda w: RNG.normal(size=w.shape).astype(np.float32), weights['encoder']
  )
  gradients = jax.jit(jax.grad(loss))(weights)['encoder']
  along = sum(
    np.sum(g * d)
    for g, d in zip(
      jax.tree.leaves(gradients), jax.tree.leaves(direction), strict=True
    )
  )

  def moved(step):
    encoder = jax.tree.map(
      lambda w, d: w + step * d, weights['encoder'], direction
    )
    return float(loss({**weights, 'encoder': encoder}))

  np.testing.assert_allclose(
    along, (moved(1e-2) - moved(-1e-2)) / 2e-2, rtol=2e-2
  )


def test_padding_changes_nothing_that_counts():
  layer, weights = _model()
  source = np.where(SOURCE_PADDINGS == 1, 3, SOURCE)
  target = np.where(PADDINGS == 1, 3, TARGET)
  want = _logits(layer, weights, *INPUTS)
  got = _logits(layer, weights, source, SOURCE_PADDINGS, target, PADDINGS)
  _close(got[COUNTS], want[COUNTS], 1e-6)
  source = np.where(SOURCE_PADDINGS == 0, (SOURCE + 1) % V, SOURCE)
  other = _logits(layer, weights, source, SOURCE_PADDINGS, target, PADDINGS)
  assert not np.allclose(other[COUNTS], want[COUNTS], atol=1e-2)


def _separate(tokens, segment_ids):
  """Returns tokens and paddings with one of the four examples in each row."""
  rows = np.zeros([4, tokens.shape[1]], int)
  paddings = np.ones(rows.shape, np.float32)
  for i, (row, segment) in enumerate(np.ndindex(2, 2)):
    example = tokens[row, segment_ids[row] == segment + 1]
    rows[i, : len(example)] = example
    paddings[i, : len(example)] = 0
  return rows, paddings


def test_packed_rows_are_the_same_as_separate_ones():
  """Also where attention depends on positions, that to the source included."""

  def layers():
    tpl = Transformer.config(
      tr_atten_tpl=dot_product.DotProductAttention.config(
        use_rotary_position_emb=True
      )
    )
    return _layers(transformer_layer_params_tpl=tpl)

  stacks = dict(
    encoder_stacked_transformer_tpl=layers(),
    decoder_stacked_transformer_tpl=layers(),
  )
  paddings = [(ids == 0).astype(np.float32) for ids in (SOURCE_IDS, TARGET_IDS)]
  layer, weights = _model(packed_input=True, **stacks)
  packed = _logits(
    layer, weights, SOURCE, paddings[0], TARGET, paddings[1], **PACKED
  )
  separate = (
    *_separate(SOURCE, SOURCE_IDS),
    *_separate(TARGET, TARGET_IDS),
  )
  want = _logits(_config(**stacks).Instantiate(), weights, *separate)
  # Both hold the examples one after the other.
  _close(packed[TARGET_IDS > 0], want[separate[3] == 0], 1e-5)


def test_positions_within_packed_examples_may_be_given():
  layer, weights = _model(packed_input=True)
  counted = dict(
    input_segment_pos=np.array([[0, 1, 2, 0, 1], [0, 0, 1, 2, 0]]),
    target_segment_pos=np.array([[0, 1, 0, 1, 2, 3], [0, 1, 2, 0, 0, 1]]),
  )
  want = _logits(layer, weights, *INPUTS, **PACKED)
  _close(_logits(layer, weights, *INPUTS, **PACKED, **counted), want, 1e-6)
  for name, value in counted.items():
    other = _logits(
      layer, weights, *INPUTS, **PACKED, **{**counted, name: value + 1}
    )
    assert not np.allclose(other, want, atol=1e-2)


@pytest.mark.parametrize(
  ('repeated', 'sizes', 'fields'),
  [
    (False, [1] * T, {}),
    (True, [3, 1, 2], {}),
    (False, [3, 1, 2], {'packed_input': True}),
  ],
)
def test_decoding_is_the_whole_step_by_step(repeated, sizes, fields):
  """A model of packed examples decodes rows of one example each."""
  layer, weights = _model(repeated, **fields)
  no_paddings = np.zeros([B, T])
  inputs = (SOURCE, SOURCE_PADDINGS, TARGET, no_paddings)
  whole = _config(repeated).Instantiate()
  want = _logits(whole, weights, *inputs)
  y = decode(
    layer,
    weights,
    TARGET,
    sizes,
    SOURCE,
    SOURCE_PADDINGS,
    init={'max_length': T + 2},
  )
  _close(y, want, 1e-5)


def test_half_precision_throughout():
  layer, weights = _model(fprop_dtype=jnp.bfloat16)
  output = jax.jit(layer.apply)({PARAMS: weights}, *INPUTS, LABELS)
  assert output.logits.dtype == jnp.bfloat16
  assert output.total_loss.dtype == np.float32


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (
      {'encoder_position_emb_tpl': TRAINED},
      'has a position_emb_tpl, which encoder and decoder share, and separate',
    ),
    (
      {
        'softmax_tpl': full_softmax.FullSoftmax.config(num_classes=V),
        'encoder_embedding_tpl': _embedding(),
      },
      'softmax_tpl: a FullSoftmax has no embedding; expected'
      ' decoder_embedding_tpl',
    ),
    (
      {'packed_input': True},
      'packed_input is True, but there are no segment_ids',
    ),
    (
      {'encoder_stacked_transformer_tpl': _layers(mask_self_attention=True)},
      'encoder_stacked_transformer_tpl.mask_self_attention is True, but',
    ),
    (
      {'decoder_stacked_transformer_tpl': _layers(use_cross_attention=False)},
      'decoder_stacked_transformer_tpl.use_cross_attention is False, but',
    ),
    ({'encoder_embedding_tpl': _embedding().set(input_dims=3)}, 'is 3, but'),
  ],
)
def test_mistakes_are_named(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _config(**fields).Instantiate().init(jax.random.key(0), *INPUTS)


def test_packed_targets_need_packed_sources():
  layer, weights = _model(packed_input=True)
  with pytest.raises(errors.UserError, match='there are no segment_ids'):
    layer.apply({PARAMS: weights}, *INPUTS, target_segment_ids=TARGET_IDS)


@pytest.mark.parametrize('side', ['encoder', 'decoder'])
def test_both_stacks_are_required(side):
  field = f'{side}_stacked_transformer_tpl'
  config = TransformerEncoderDecoder.config(model_dims=D, softmax_tpl=SOFTMAX)
  stacks = {'encoder', 'decoder'} - {side}
  config.set(**{f'{s}_stacked_transformer_tpl': _layers() for s in stacks})
  with pytest.raises(configs.RequiredError, match=f'{field} is required'):
    config.Instantiate()
