"""Templates of layers are replaced by those of quantized layers."""

import dataclasses

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.config import Config
from pax_compat.layers import (
  attentions,
  embedding_softmax,
  transformer_models,
  transformers,
)
from pax_compat.layers import ngrammer as layers_ngrammer
from pax_compat.layers.quantization import attentions as quantized_attentions
from pax_compat.layers.quantization import (
  embedding_softmax as quantized_softmax,
)
from pax_compat.layers.quantization import linears as quantized_linears
from pax_compat.layers.quantization import (
  multi_query_attention,
  ngrammer,
  quantizer,
  utils,
)
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationParams,
)

MODELS = (
  transformer_models.TransformerLm,
  transformer_models.TransformerEncoderDecoder,
)


def quantize_feed_forward(
  tpl: Config | None, settings: QuantizationParams, rank: int = -1
):
  """Quantizes the products of a `TransformerFeedForward`, in place.

  Args:
    tpl: its template; None is left as it is.
    settings: the settings.
    rank: see `linears.Linear`.

  Raises:
    UserError: it is another layer.
  """
  if tpl is None:
    return
  if not issubclass(tpl.cls, transformers.TransformerFeedForward):
    raise errors.UserError(
      f'the feed-forward layer {tpl.cls.__name__} cannot be quantized; expected'
      ' a TransformerFeedForward; name its Transformer in skip_transformers'
    )
  linear = quantizer.quantized(
    tpl.fflayer_tpl.linear_tpl, quantized_linears.Linear, settings
  )
  tpl.fflayer_tpl.linear_tpl = linear.set(rank=rank) if rank > 0 else linear


_PROJECTIONS = {
  'proj_tpl': quantized_attentions.AttentionProjection,
  'combined_qkv_proj_tpl': quantized_attentions.CombinedQKVProjectionLayer,
  'headless_proj_tpl': multi_query_attention.OneHeadedAttentionProjection,
}


def quantize_attentions(
  tpl: Config, settings: QuantizationParams, *, of_self: bool, of_cross: bool
):
  """Quantizes the projections of a `Transformer`, in place.

  Args:
    tpl: its template.
    settings: the settings.
    of_self: whether those of self-attention are quantized.
    of_cross: whether those of cross-attention are.

  Raises:
    UserError: an attention cannot be quantized.
  """
  if of_self != of_cross and tpl.cross_atten_tpl is None:
    tpl.cross_atten_tpl = tpl.tr_atten_tpl.clone()
  if of_self:
    _quantize_attention(tpl.tr_atten_tpl, settings)
  if of_cross and tpl.cross_atten_tpl is not None:
    _quantize_attention(tpl.cross_atten_tpl, settings)


def _quantize_attention(tpl: Config, settings: QuantizationParams):
  if not issubclass(tpl.cls, attentions.DotProductAttention):
    raise errors.UserError(
      f'the attention {tpl.cls.__name__} cannot be quantized; expected a'
      ' DotProductAttention'
    )
  for name, cls in _PROJECTIONS.items():
    old = getattr(tpl, name, None)
    if old is not None:
      setattr(tpl, name, quantizer.quantized(old, cls, settings))


def quantize_softmaxes(
  config: Config,
  settings: QuantizationParams,
  *,
  transposed: bool,
  softmax_only: bool,
):
  """Quantizes the softmax of all models in a config, in place.

  Args:
    config: the config.
    settings: the settings.
    transposed: whether it is, or becomes, the class-major one.
    softmax_only: False quantizes separate embeddings too.

  Raises:
    UserError: a softmax cannot be quantized.
  """
  cls = (
    quantized_softmax.NClassMajorSharedEmbeddingSoftmax
    if transposed
    else quantized_softmax.SharedEmbeddingSoftmax
  )
  names = ['softmax_tpl']
  if not softmax_only:
    names += [
      'separate_embedding_tpl',
      'encoder_embedding_tpl',
      'decoder_embedding_tpl',
    ]
  for tpl in utils.find_target_tpl(config, MODELS):
    for name in names:
      old = getattr(tpl, name, None)
      if old is None:
        continue
      is_table = issubclass(old.cls, embedding_softmax.Embedding)
      new = quantized_softmax.Embedding if is_table else cls
      if transposed and not is_table and _is_plain_softmax(old.cls):
        # The same layer with its matrix transposed.
        old = _class_major(old)
      setattr(tpl, name, quantizer.quantized(old, new, settings))


def _is_plain_softmax(cls: type) -> bool:
  """Whether a class computes as `SharedEmbeddingSoftmax` does."""
  plain = embedding_softmax.SharedEmbeddingSoftmax
  methods = ('setup', '__call__', 'get_logits', 'emb_lookup')
  return issubclass(cls, plain) and all(
    getattr(cls, name) is getattr(plain, name) for name in methods
  )


def _class_major(tpl: Config) -> Config:
  """Returns the template of the class-major softmax with the same fields."""
  fields = config_lib.set_fields(tpl)
  new = embedding_softmax.NClassMajorSharedEmbeddingSoftmax.config()
  feed_forward = fields.pop('feed_forward_tpl', None)
  fields.pop('array_lookup_tpl', None)
  new.set(**fields)
  if feed_forward is not None:
    new.use_bias = feed_forward.has_bias
  return new


def quantize_ngrammers(config: Config, settings: QuantizationParams):
  """Quantizes the n-grammers of models; inputs stay as they are."""
  settings = dataclasses.replace(settings, act_params=None)
  for tpl in utils.find_target_tpl(config, MODELS):
    for name in (
      'ngrammer_tpl',
      'encoder_ngrammer_tpl',
      'decoder_ngrammer_tpl',
    ):
      old = getattr(tpl, name, None)
      if old is None:
        continue
      is_vq = issubclass(old.cls, layers_ngrammer.VQNgrammer)
      cls = ngrammer.VQNgrammer if is_vq else ngrammer.Ngrammer
      setattr(tpl, name, quantizer.quantized(old, cls, settings))
