"""Cases of decoding: calls that fill the cache, changes of it, and steps.

Shapes: B rows, T positions, D model dims.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from tests.pax.layer_cases import Case, normal

_B, _T, _D, _PREFIX = 2, 6, 8, 3
_X = normal(_B, _T, _D)
_HEADS = dict(input_dim=_D, hidden_dim=8, num_heads=2, dim_per_head=4)
_HIDDEN = np.float32(-0.7 * np.finfo(np.float32).max)
_IDS = np.int32([[3, 1, 4, 1, 5, 2], [2, 6, 5, 3, 5, 0]])
_ROTATED = dict(use_rotary_position_emb=True)


def _causal(length: int) -> np.ndarray:
  """Returns Pax's causal mask [1, 1, length, length]."""
  return np.triu(np.full([1, 1, length, length], _HIDDEN), 1)


_MASK = _causal(_T)


# Changes of states, as between the steps of Pax's decoders.
def _pad(number: int) -> Callable:
  def pad(x, batch, time):
    del batch
    widths = [(0, number if dim == time else 0) for dim in range(x.ndim)]
    return jnp.pad(x, widths) if time >= 0 else x

  return pad


def _shorten(x, batch, time):
  del batch
  return x if time < 0 else jnp.take(x, jnp.arange(x.shape[time] - 1), time)


def _repeat(number: int) -> Callable:
  return lambda x, batch, time: jnp.repeat(x, number, axis=batch)


def _reorder(x, batch, time):
  """Continues the first row three times, and the last one."""
  del time
  return jnp.take(x, jnp.array([0, 0, 3, 0]), axis=batch)


def _align_right(*lengths: int) -> Callable:
  def align(x, batch, time):
    del batch
    shifts = x.shape[time] - np.array(lengths)
    rows = [
      jnp.roll(row, by, time - 1) for row, by in zip(x, shifts, strict=True)
    ]
    return jnp.stack(rows) if time >= 0 else x

  return align


def _prefix(layer, x):
  """Fills the cache with the prefixes."""
  prefix = x[:, :_PREFIX]
  layer(prefix, prefix, prefix, _MASK[..., :_PREFIX, :_PREFIX])


def _steps(layer, x, first, last, repeats, length=_T):
  """Returns the outputs of steps with each row of `x` several times."""
  return [
    layer.extend_step(
      jnp.repeat(x[:, step], repeats, axis=0),
      atten_mask=_MASK[:, :, step, :length],
      time_step=step,
      segment_pos=None,
    )
    for step in range(first, last)
  ]


def _changed(layer, x):
  """Pads, shortens, repeats and reorders the cache between steps."""
  if layer.is_initializing():
    return layer(x, x, x, _MASK)[0]
  _prefix(layer, x)
  layer.transform_decode_state(_shorten)
  layer.transform_decode_state(_pad(1))
  layer.transform_decode_state(_pad(2))
  layer.transform_decode_state(_repeat(2))
  outputs = _steps(layer, x, 2, 4, 2, length=5)
  layer.transform_decode_state(_reorder)
  layer.transform_decode_state(_pad(1))
  return jnp.stack([*outputs, *_steps(layer, x, 4, 6, 2)])


def _aligned(layer, x):
  """Aligns prefixes of two lengths to the right, and continues them."""
  if layer.is_initializing():
    return layer(x, x, x, _MASK)[0]
  _prefix(layer, x)
  layer.transform_decode_state(_align_right(2, 3))
  layer.transform_decode_state(_pad(1))
  mask = np.float32([[[0 if row else _HIDDEN, 0, 0, 0]] for row in range(2)])
  return layer.extend_step(
    x[:, 3], atten_mask=mask, time_step=3, segment_pos=np.int32([2, 3])
  )


def _shared(layer, x):
  """Shares prefixes twice: two samples, and two samples of each of them."""
  if layer.is_initializing():
    return layer(x, x, x, _MASK)[0]
  _prefix(layer, x)
  layer.lazy_broadcast_prefix(2, 2)
  outputs = _steps(layer, x, 3, 4, 2, length=5)
  layer.transform_decode_state(_shorten)
  layer.lazy_broadcast_prefix(2, 1)
  layer.transform_decode_state(_pad(1))
  outputs = [jnp.repeat(x, 2, axis=0) for x in outputs]
  return jnp.stack([*outputs, *_steps(layer, x, 4, 6, 4)])


def _merged(layer, x):
  """Shares prefixes, and then gives each sample its own, right-aligned."""
  if layer.is_initializing():
    return layer(x, x, x, _MASK)[0]
  _prefix(layer, x)
  layer.lazy_broadcast_prefix(2, 2)
  _steps(layer, x, 3, 5, 2, length=5)
  layer.right_align_decode_state_with_prefix(2, _align_right(3, 4, 4, 3))
  layer.transform_decode_state(_pad(1))
  mask = np.full([4, 1, 5], 0, np.float32)
  mask[[0, 3], :, 0] = _HIDDEN
  return layer.extend_step(
    jnp.repeat(x[:, 5], 2, axis=0),
    atten_mask=mask,
    time_step=4,
    segment_pos=np.int32([3, 4, 4, 3]),
  )


def _attention(name: str, **fields) -> Callable:
  """Returns the config of an attention."""

  def config(n):
    config = n.Config(getattr(n.layers, name), **_HEADS)
    given = dict(fields)
    if 'relative_bias_tpl' in given:
      given['relative_bias_tpl'] = n.Config(
        n.layers.RelativeBias, use_length_as_position=True
      )
    return config.set(**given)

  return config


def _model(lpb: bool, ngrams: bool = False) -> Callable:
  """Returns the config of a small language model with a repeated stack."""

  def config(n):
    stack = n.Config(
      n.layers.StackedTransformer,
      model_dims=_D,
      hidden_dims=8,
      num_heads=2,
      num_layers=1,
    )
    if lpb:
      stack.transformer_layer_params_tpl.tr_atten_tpl = n.Config(
        n.layers.DotProductAttentionWithLPB
      )
    model = n.Config(n.layers.TransformerLm, model_dims=_D, vocab_size=7)
    model.stacked_transformer_tpl = n.Config(
      n.layers.StackedTransformerRepeated, block=stack, x_times=2
    )
    if ngrams:
      model.ngrammer_tpl = n.Config(
        n.layers.Ngrammer,
        ngram_vocab_size=16,
        unigram_vocab_size=7,
        ngram_emb_dim=2,
        num_heads=2,
        dim_per_head=4,
      )
    return model

  return config


def _logits(model, ids):
  """Returns logits of steps after a prefix; each row is repeated."""
  if model.is_initializing():
    return model(ids, np.zeros(ids.shape, np.float32)).logits
  _read_prefix(model, ids, _PREFIX)
  model.transform_decode_state(_pad(2))
  model.transform_decode_state(_repeat(2))
  return _model_steps(model, ids, _PREFIX)


def _logits_from_start(model, ids):
  """Returns them from the first token on: Pax forgets the one before a step."""
  if model.is_initializing():
    return model(ids, np.zeros(ids.shape, np.float32)).logits
  _read_prefix(model, ids, 0)
  model.transform_decode_state(_repeat(2))
  return _model_steps(model, ids, 0)


def _shared_logits(model, ids):
  """Returns logits after a prefix that the samples of a row share."""
  if model.is_initializing():
    return model(ids, np.zeros(ids.shape, np.float32)).logits
  _read_prefix(model, ids, _PREFIX)
  model.lazy_broadcast_prefix(2, 2)
  return _model_steps(model, ids, _PREFIX)


def _read_prefix(model, ids, start):
  """Fills the cache with prefixes; `start` is the first step after this."""
  prefix = ids[:, :_PREFIX]
  model(prefix, np.zeros(prefix.shape, np.float32), start_time_step=start)


def _model_steps(model, ids, first):
  """Returns the logits of two steps."""
  return jnp.stack(
    [
      model.extend_step(
        np.repeat(ids[:, step], 2), segment_pos=np.full([2 * _B], step)
      ).logits
      for step in (first, first + 1)
    ]
  )


def _case(config: Callable, inputs: tuple, method: Callable) -> Case:
  """Returns a case of decoding, which is never traced for training."""
  return Case(config, inputs, method=method, train=False)


_PLAIN, _GROUPED = 'DotProductAttention', 'MultiQueryDotProductAttention'
_KINDS = {
  'plain': (_PLAIN, {}),
  'rotated': (_PLAIN, dict(_ROTATED, consolidate_rope_key_state=True)),
  'convolved': (_PLAIN, dict(dconv_qkv=True, dconv_kernel_size=2)),
  'one_key_head': (
    _GROUPED,
    dict(_ROTATED, consolidate_rope_key_state=True, num_kv_heads=1),
  ),
}
_OF_SHARED = {
  'plain': ('DotProductAttentionWithLPB', dict(atten_logit_cap=5.0)),
  'rotated': (
    'DotProductAttentionWithLPB',
    dict(_ROTATED, consolidate_rope_key_state=True, combine_qkv=True),
  ),
  'rotated_twice_kept': (
    'DotProductAttentionWithLPB',
    dict(_ROTATED, attention_extra_logit=0.5),
  ),
  'convolved': (
    'DotProductAttentionWithLPB',
    dict(dconv_qkv=True, dconv_kernel_size=3),
  ),
  'biased': ('DotProductAttentionWithLPB', dict(relative_bias_tpl=True)),
  'one_key_head': (
    'MultiQueryDotProductAttentionLPB',
    dict(_ROTATED, consolidate_rope_key_state=True),
  ),
}
CASES = {
  **{
    f'changed_{name}': _case(_attention(kind, **f), (_X,), method=_changed)
    for name, (kind, f) in _KINDS.items()
  },
  **{
    f'aligned_{name}': _case(
      _attention(*_KINDS[name][:1], **_KINDS[name][1]), (_X,), method=_aligned
    )
    for name in ('plain', 'rotated')
  },
  **{
    f'shared_{name}': _case(_attention(kind, **f), (_X,), method=_shared)
    for name, (kind, f) in _OF_SHARED.items()
  },
  'merged': _case(
    _attention(
      'DotProductAttentionWithLPB', consolidate_rope_key_state=True, **_ROTATED
    ),
    (_X,),
    method=_merged,
  ),
  'model': _case(_model(lpb=False), (_IDS,), method=_logits),
  'model_ngrams': _case(
    _model(lpb=False, ngrams=True),
    (_IDS,),
    method=_logits_from_start,
  ),
  'model_shared': _case(_model(lpb=True), (_IDS,), method=_shared_logits),
}
