"""Quantizes a model: its config, and its trained weights.

model = experiment.task().model
variables = ...  # of the trained model
quantize.set_transformer_quantization(model, num_bits=4)
variables = quantize.quantize_variables(model, variables, batch)
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from fiddle import daglish

from pax_compat import base_layer, errors
from pax_compat.config import Config
from pax_compat.layers import (
  attentions,
  embedding_softmax,
  transformer_models,
  transformers,
)
from pax_compat.layers.quantization import attentions as quantized_attentions
from pax_compat.layers.quantization import (
  embedding_softmax as quantized_softmax,
)
from pax_compat.layers.quantization import linears as quantized_linears
from pax_compat.layers.quantization import quantizer
from pax_compat.layers.quantization.quantization_hparams import (
  ActQuantizationParams,
  QuantizationMode,
  QuantizationParams,
  QuantizationType,
  WeightQuantizationParams,
)


def set_transformer_quantization(
  config: Config,
  quantization_type: QuantizationType = QuantizationType.PTQ,
  mode: QuantizationMode = QuantizationMode.INFERENCE,
  num_bits: int = 8,
  linear_only: bool = False,
  use_symmetric: bool = True,
  *,
  weight_quant_only: bool = True,
  quantize_self_attention: bool = True,
  quantize_cross_attention: bool = True,
  quantize_embedding_softmax: bool = False,
  transposed_embedding_softmax: bool = False,
  softmax_only: bool = True,
  dtype: Any = jnp.int8,
  use_int4_packed_weights: bool = True,
  int4_packed_weights_container_dtype: Any = jnp.int32,
  num_bits_act: int | None = None,
  use_symmetric_act: bool | None = None,
  skip_transformers: list[str] | None = None,
  clipping_coeff: float = 1.0,
):
  """Quantizes the layers of all Transformers in a config, in place.

  Args:
    config: config of a model, a task or a layer.
    quantization_type: see `QuantizationType`.
    mode: see `QuantizationMode`.
    num_bits: bits of weights.
    linear_only: whether only feed-forward layers are quantized.
    use_symmetric: see `WeightQuantizationParams`.
    weight_quant_only: False quantizes inputs of products too; then
      `num_bits_act` and `use_symmetric_act` are required.
    quantize_self_attention: whether self-attention is quantized.
    quantize_cross_attention: whether cross-attention is quantized.
    quantize_embedding_softmax: whether the softmax of a `TransformerLm` or
      `TransformerEncoderDecoder` is quantized.
    transposed_embedding_softmax: whether it is the class-major one.
    softmax_only: False quantizes their separate embeddings too.
    dtype: see `WeightQuantizationParams`.
    use_int4_packed_weights: likewise.
    int4_packed_weights_container_dtype: likewise.
    num_bits_act: bits of inputs.
    use_symmetric_act: must be True if it is set.
    skip_transformers: names of Transformer layers that stay as they are.
    clipping_coeff: see `WeightQuantizationParams`.

  Raises:
    UserError: the settings do not fit, or a layer cannot be quantized.
  """
  settings = QuantizationParams(
    quantization_type=QuantizationType(quantization_type),
    mode=QuantizationMode(mode),
    act_params=_act_params(weight_quant_only, num_bits_act, use_symmetric_act),
    weight_params=WeightQuantizationParams(
      precision=num_bits,
      clipping_coeff=clipping_coeff,
      use_symmetric=use_symmetric,
      dtype=dtype,
      use_int4_packed_weights=use_int4_packed_weights,
      int4_packed_weights_container_dtype=int4_packed_weights_container_dtype,
    ),
  )
  settings.check('set_transformer_quantization')
  attention = {'of_self': quantize_self_attention}
  attention['of_cross'] = quantize_cross_attention
  _quantize_layers(
    config,
    settings,
    skip_transformers or (),
    None if linear_only else attention,
  )
  if quantize_embedding_softmax:
    _quantize_softmaxes(
      config,
      settings,
      transposed=transposed_embedding_softmax,
      softmax_only=softmax_only,
    )


def _act_params(
  weight_quant_only: bool, bits: int | None, symmetric: bool | None
) -> ActQuantizationParams | None:
  if weight_quant_only and bits is None and symmetric is None:
    return None
  if not weight_quant_only and bits is not None and symmetric is not None:
    return ActQuantizationParams(precision=bits, symmetric=symmetric)
  raise errors.UserError(
    f'weight_quant_only is {weight_quant_only}, num_bits_act {bits} and'
    f' use_symmetric_act {symmetric}; expected the last two if and only if the'
    ' first is False'
  )


def _quantize_layers(
  config: Config,
  settings: QuantizationParams,
  skipped: Sequence[str],
  attention: Mapping[str, bool] | None,
):
  """Quantizes the Transformer layers whose names are not `skipped`."""
  for tpl in _templates(config, transformers.Transformer):
    if tpl.name not in skipped:
      _quantize_feed_forward(tpl.tr_fflayer_tpl, settings)
      if attention is not None:
        _quantize_attentions(tpl, settings, **attention)


def for_transformer(
  num_bits: int = 8,
  quantization_type: QuantizationType = QuantizationType.FQ,
  mode: QuantizationMode = QuantizationMode.TRAINING,
  use_symmetric: bool = True,
  **settings,
):
  """Returns a decorator of an experiment whose model is quantized.

  Args:
    num_bits: see `set_transformer_quantization`.
    quantization_type: likewise.
    mode: likewise.
    use_symmetric: likewise.
    **settings: its other arguments.
  """

  def decorator(cls):
    @functools.wraps(cls, updated=())
    class Wrapper(cls):
      def task(self):
        task = super().task()
        set_transformer_quantization(
          task.model,
          quantization_type=quantization_type,
          mode=mode,
          num_bits=num_bits,
          use_symmetric=use_symmetric,
          **settings,
        )
        return task

    return Wrapper

  return decorator


def set_inference_mode(config: Config):
  """Sets the mode INFERENCE of all quantized layers in a config, in place."""
  for value, _ in daglish.iterate(config):
    settings = getattr(value, 'quantization', None)
    if isinstance(value, Config) and settings is not None:
      settings.mode = QuantizationMode.INFERENCE


def quantize_variables(
  config: Config, variables: Mapping[str, Any], *inputs, **named
) -> dict[str, Any]:
  """Converts the weights of a model to those of its quantized config.

  Args:
    config: config of the model or layer, whose quantized layers have the mode
      INFERENCE.
    variables: variables of the same model with floats, unboxed.
    *inputs: arguments of the model; only their shapes are used.
    **named: arguments by name.

  Returns:
    The variables of the quantized model; other weights are those given.

  Raises:
    UserError: a weight is missing or has another shape.
  """
  model = config.Instantiate()

  def init():
    keys = {'params': jax.random.key(0), 'random': jax.random.key(0)}
    return model.init_boxed(keys, *inputs, **named)

  boxes = jax.eval_shape(init)[base_layer.PARAMS]
  params = _converted(boxes, variables[base_layer.PARAMS], '', model.dtype)
  return {**variables, base_layer.PARAMS: params}


def _converted(boxes, params, path: str, dtype) -> dict[str, Any]:
  """Returns the weights of a layer and its children, converted."""
  found = {}
  for name, box in boxes.items():
    where = f'{path}/{name}'.strip('/')
    if not base_layer.is_boxed(box):
      if name not in params:
        raise errors.UserError(f'the weights of {where} are missing')
      found[name] = _converted(box, params[name], where, dtype)
    elif box.meta.quantized is not None:
      stacked = len(box.meta.repeat_prefix)
      found |= quantizer.quantized_weight(
        name, jnp.asarray(params[name]), box.meta.quantized, dtype, stacked
      )
      if found[name].shape != box.value.shape:
        raise errors.UserError(
          f'{where} is {list(found[name].shape)} after quantization, but the'
          f' model expects {list(box.value.shape)}'
        )
    elif not name.endswith((quantizer.SCALE, quantizer.ZERO_POINT)):
      if name not in params:
        raise errors.UserError(f'the weight {where} is missing')
      found[name] = params[name]
  return found


def _templates(config: Config, *classes: type) -> Iterator[Config]:
  """Yields the templates of the classes, or of their subclasses, once each."""
  seen = set()
  for value, _ in daglish.iterate(config):
    if not isinstance(value, Config) or id(value) in seen:
      continue
    seen.add(id(value))
    if isinstance(value.cls, type) and issubclass(value.cls, classes):
      yield value


def _quantize_feed_forward(tpl: Config | None, settings: QuantizationParams):
  if tpl is None:
    return
  if not issubclass(tpl.cls, transformers.TransformerFeedForward):
    raise errors.UserError(
      f'the feed-forward layer {tpl.cls.__name__} cannot be quantized; expected'
      ' a TransformerFeedForward; name its Transformer in skip_transformers'
    )
  linear = tpl.fflayer_tpl.linear_tpl
  tpl.fflayer_tpl.linear_tpl = quantizer.quantized(
    linear, quantized_linears.Linear, settings
  )


_PROJECTIONS = {
  'proj_tpl': quantized_attentions.AttentionProjection,
  'combined_qkv_proj_tpl': quantized_attentions.CombinedQKVProjectionLayer,
  'headless_proj_tpl': quantized_attentions.OneHeadedAttentionProjection,
}


def _quantize_attentions(
  tpl: Config, settings: QuantizationParams, *, of_self: bool, of_cross: bool
):
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


def _quantize_softmaxes(
  config: Config,
  settings: QuantizationParams,
  *,
  transposed: bool,
  softmax_only: bool,
):
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
  models = (
    transformer_models.TransformerLm,
    transformer_models.TransformerEncoderDecoder,
  )
  for tpl in _templates(config, *models):
    for name in names:
      old = getattr(tpl, name, None)
      if old is not None:
        is_table = issubclass(old.cls, embedding_softmax.Embedding)
        new = quantized_softmax.Embedding if is_table else cls
        setattr(tpl, name, quantizer.quantized(old, new, settings))
