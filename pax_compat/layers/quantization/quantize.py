"""Quantizes a model: its config, and its trained weights.

model = experiment.task().model
variables = ...  # of the trained model
quantize.set_transformer_quantization(model, num_bits=4)
variables = quantize.quantize_variables(model, variables, batch)
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from fiddle import daglish

from pax_compat import base_layer, errors
from pax_compat import config as config_lib
from pax_compat.config import Config
from pax_compat.layers import transformers
from pax_compat.layers.quantization import (
  convolutions,
  quantized_templates,
  quantizer,
  stored_weights,
  utils,
)
from pax_compat.layers.quantization.quantization_hparams import (
  ActQuantizationParams,
  QuantizationMode,
  QuantizationParams,
  QuantizationType,
  TransformerLayer,
  WeightQuantizationParams,
)
from pax_compat.layers.quantization.sparsity import sparsifier


def set_transformer_quantization(
  config: Config,
  quantization_type: QuantizationType = QuantizationType.PTQ,
  mode: QuantizationMode = QuantizationMode.INFERENCE,
  num_bits: int = 8,
  linear_only: bool = False,
  use_symmetric: bool = True,
  rank: int = -1,
  *,
  weight_quant_only: bool = True,
  quantize_self_attention: bool = True,
  quantize_cross_attention: bool = True,
  quantize_embedding_softmax: bool = False,
  transposed_embedding_softmax: bool = False,
  softmax_only: bool = True,
  quantize_ngrammer_embedding: bool = False,
  num_bits_act: int | None = None,
  use_symmetric_act: bool | None = None,
  skip_transformers: list[str] | None = None,
  **weight_settings: Any,
):
  """Quantizes the layers of all Transformers in a config, in place.

  Args:
    config: config of a model, a task or a layer.
    quantization_type: see `QuantizationType`.
    mode: see `QuantizationMode`.
    num_bits: bits of weights.
    linear_only: whether only feed-forward layers are quantized.
    use_symmetric: see `WeightQuantizationParams`.
    rank: of feed-forward layers, see `linears.Linear`.
    weight_quant_only: False quantizes inputs of products too; then
      `num_bits_act` and `use_symmetric_act` are required.
    quantize_self_attention: whether self-attention is quantized.
    quantize_cross_attention: whether cross-attention is quantized.
    quantize_embedding_softmax: whether the softmax of a `TransformerLm` or
      `TransformerEncoderDecoder` is quantized.
    transposed_embedding_softmax: whether it is, or becomes, the class-major
      one.
    softmax_only: False quantizes their separate embeddings too.
    quantize_ngrammer_embedding: whether their n-grammers are quantized.
    num_bits_act: bits of inputs.
    use_symmetric_act: see `ActQuantizationParams`.
    skip_transformers: names of Transformer layers that stay as they are.
    **weight_settings: further fields of `WeightQuantizationParams`, such as
      `dtype`, `block_size` and `clipping_coeff`.

  Raises:
    UserError: the settings do not fit, or a layer cannot be quantized.
  """
  settings = _checked(
    'set_transformer_quantization',
    quantization_type,
    mode,
    _weight_params(num_bits, use_symmetric, weight_settings),
    _act_params(weight_quant_only, num_bits_act, use_symmetric_act),
  )
  for tpl in utils.find_target_tpl(config, transformers.Transformer):
    if tpl.name not in (skip_transformers or ()):
      _quantize_transformer(
        tpl,
        settings,
        rank,
        linear_only=linear_only,
        of_self=quantize_self_attention,
        of_cross=quantize_cross_attention,
      )
  if quantize_embedding_softmax:
    quantized_templates.quantize_softmaxes(
      config,
      settings,
      transposed=transposed_embedding_softmax,
      softmax_only=softmax_only,
    )
  if quantize_ngrammer_embedding:
    quantized_templates.quantize_ngrammers(config, settings)


def _weight_params(
  bits: int, symmetric: bool, settings: Mapping[str, Any]
) -> WeightQuantizationParams:
  known = [field.name for field in dataclasses.fields(WeightQuantizationParams)]
  for name in settings:
    if name not in known:
      raise errors.UserError(
        f'{name} is not a setting of quantization'
        + errors.did_you_mean(name, known)
      )
  settings = {k: v for k, v in settings.items() if v is not None}
  return WeightQuantizationParams(
    precision=bits, use_symmetric=symmetric, **settings
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


def set_transformer_mixed_precision_quantization(
  config: Config,
  quantization_type: QuantizationType = QuantizationType.PTQ,
  mode: QuantizationMode = QuantizationMode.INFERENCE,
  num_bits: Mapping[TransformerLayer, int] | None = None,
  sub_channel_blocksize: Mapping[TransformerLayer, int] | None = None,
  use_symmetric: Mapping[TransformerLayer, bool] | None = None,
  dtype: Mapping[TransformerLayer, Any] | None = None,
  *,
  default_sub_channel_blocksize: int = 0,
  default_use_symmetric: bool = True,
  default_dtype: Any = jnp.int8,
  transposed_embedding_softmax: bool = False,
  quantize_self_attention: bool = True,
  quantize_cross_attention: bool = True,
):
  """Quantizes the layers of all Transformers by kind of layer, in place.

  Args:
    config: config of a model, a task or a layer.
    quantization_type: see `QuantizationType`.
    mode: see `QuantizationMode`.
    num_bits: bits by kind of layer. Kinds that are missing are not quantized.
    sub_channel_blocksize: `block_size`, see `WeightQuantizationParams`, by kind
      of layer.
    use_symmetric: likewise.
    dtype: likewise; values of the type `int4` are not packed.
    default_sub_channel_blocksize: that of kinds that are missing.
    default_use_symmetric: likewise.
    default_dtype: likewise.
    transposed_embedding_softmax: see `set_transformer_quantization`.
    quantize_self_attention: likewise.
    quantize_cross_attention: likewise.

  Raises:
    UserError: the settings do not fit, or a layer cannot be quantized.
  """
  bits, kinds = dict(num_bits or {}), TransformerLayer

  by_kind = (sub_channel_blocksize, use_symmetric, dtype)
  defaults = default_sub_channel_blocksize, default_use_symmetric, default_dtype

  def settings(kind: TransformerLayer) -> QuantizationParams:
    weights, act = _params_of(kind, bits, by_kind, defaults)
    where = f'num_bits[{kind.name}]'
    return _checked(where, quantization_type, mode, weights, act)

  for tpl in utils.find_target_tpl(config, transformers.Transformer):
    if kinds.LINEAR in bits:
      quantized_templates.quantize_feed_forward(
        tpl.tr_fflayer_tpl, settings(kinds.LINEAR)
      )
    if kinds.ATTENTION in bits:
      quantized_templates.quantize_attentions(
        tpl,
        settings(kinds.ATTENTION),
        of_self=quantize_self_attention,
        of_cross=quantize_cross_attention,
      )
  if kinds.EMBEDDING_SOFTMAX in bits:
    quantized_templates.quantize_softmaxes(
      config,
      settings(kinds.EMBEDDING_SOFTMAX),
      transposed=transposed_embedding_softmax,
      softmax_only=True,
    )
  if kinds.EMBEDDING_NGRAMMER in bits:
    quantized_templates.quantize_ngrammers(
      config, settings(kinds.EMBEDDING_NGRAMMER)
    )


def _params_of(kind: TransformerLayer, bits, by_kind, defaults):
  """Returns the settings of weights and inputs of a kind of layer."""

  def values(kind):
    pairs = zip(by_kind, defaults, strict=True)
    return [(given or {}).get(kind, default) for given, default in pairs]

  block_size, symmetric, dtype = values(kind)
  weights = WeightQuantizationParams(
    precision=bits[kind],
    use_symmetric=symmetric,
    dtype=dtype,
    use_int4_packed_weights=jnp.dtype(dtype) != jnp.int4,
    block_size=block_size,
  )
  of_inputs = TransformerLayer.__members__.get(f'{kind.name}_ACT')
  if of_inputs not in bits:
    return weights, None
  act = ActQuantizationParams(
    precision=bits[of_inputs], symmetric=values(of_inputs)[1]
  )
  return weights, act


def _checked(where, quantization_type, mode, weights, act):
  """Returns settings of a layer; see `QuantizationParams.check`."""
  settings = QuantizationParams(
    QuantizationType(quantization_type), QuantizationMode(mode), act, weights
  )
  settings.check(where)
  return settings


def set_diffusion_quantization(
  config: Config,
  target: type,
  quantization_type: QuantizationType = QuantizationType.PTQ,
  mode: QuantizationMode = QuantizationMode.INFERENCE,
  num_bits: int = 8,
  use_symmetric: bool = True,
  weight_quant_only: bool = True,
  dtype: Any = jnp.int8,
):
  """Quantizes the template `conv_tpl` of all layers of a class, in place.

  Args:
    config: config of a model.
    target: the class.
    quantization_type: see `QuantizationType`.
    mode: see `QuantizationMode`.
    num_bits: bits of weights, and of inputs.
    use_symmetric: see `WeightQuantizationParams`.
    weight_quant_only: False quantizes inputs too.
    dtype: see `WeightQuantizationParams`.
  """
  settings = _checked(
    'set_diffusion_quantization',
    quantization_type,
    mode,
    _weight_params(num_bits, use_symmetric, {'dtype': dtype}),
    None if weight_quant_only else ActQuantizationParams(precision=num_bits),
  )
  for tpl in utils.find_target_tpl(config, target):
    if 'conv_tpl' in config_lib.field_names(tpl):
      tpl.conv_tpl = quantizer.quantized(
        tpl.conv_tpl, convolutions.Conv2D, settings
      )


def quantize_transformer_layer_weights(
  tr_tpl: Config,
  quantization_type: QuantizationType,
  mode: QuantizationMode,
  weight_quantization_params: WeightQuantizationParams,
  act_quantization_params: ActQuantizationParams | None = None,
  linear_only: bool = False,
  rank: int = -1,
  quantize_self_attention: bool = True,
  quantize_cross_attention: bool = True,
):
  """Quantizes the layers of one `Transformer`, in place.

  Args:
    tr_tpl: its template.
    quantization_type: see `QuantizationType`.
    mode: see `QuantizationMode`.
    weight_quantization_params: settings of weights.
    act_quantization_params: settings of inputs; None leaves them as they are.
    linear_only: see `set_transformer_quantization`.
    rank: likewise.
    quantize_self_attention: likewise.
    quantize_cross_attention: likewise.

  Raises:
    UserError: the settings do not fit, or a layer cannot be quantized.
  """
  settings = _checked(
    'quantize_transformer_layer_weights',
    quantization_type,
    mode,
    weight_quantization_params,
    act_quantization_params,
  )
  _quantize_transformer(
    tr_tpl,
    settings,
    rank,
    linear_only=linear_only,
    of_self=quantize_self_attention,
    of_cross=quantize_cross_attention,
  )


def _quantize_transformer(
  tpl: Config,
  settings: QuantizationParams,
  rank: int,
  *,
  linear_only: bool,
  **attentions: bool,
):
  """Quantizes the layers of a `Transformer`, in place."""
  quantized_templates.quantize_feed_forward(tpl.tr_fflayer_tpl, settings, rank)
  if not linear_only:
    quantized_templates.quantize_attentions(tpl, settings, **attentions)


def for_transformer(
  num_bits: int = 8,
  quantization_type: QuantizationType = QuantizationType.FQ,
  mode: QuantizationMode = QuantizationMode.TRAINING,
  use_symmetric: bool = True,
  rank: int = -1,
  *,
  quantize_init_from_checkpoint_rules_task: bool = False,
  **settings,
):
  """Returns a decorator of an experiment whose model is quantized.

  Args:
    num_bits: see `set_transformer_quantization`.
    quantization_type: likewise.
    mode: likewise.
    use_symmetric: likewise.
    rank: likewise.
    quantize_init_from_checkpoint_rules_task: whether models of the tasks in
      `train.init_from_checkpoint_rules` are quantized, too.
    **settings: its other arguments.
  """
  return _decorator(
    set_transformer_quantization,
    quantize_init_from_checkpoint_rules_task,
    quantization_type=quantization_type,
    mode=mode,
    num_bits=num_bits,
    use_symmetric=use_symmetric,
    rank=rank,
    **settings,
  )


def mixed_precision_for_transformer(
  quantization_type: QuantizationType = QuantizationType.PTQ,
  mode: QuantizationMode = QuantizationMode.INFERENCE,
  num_bits: Mapping[TransformerLayer, int] | None = None,
  *args,
  **settings,
):
  """Returns a decorator of an experiment whose layers differ in bits.

  Args:
    quantization_type: see `set_transformer_mixed_precision_quantization`.
    mode: likewise.
    num_bits: likewise.
    *args: its other arguments.
    **settings: likewise.
  """
  return _decorator(
    set_transformer_mixed_precision_quantization,
    False,
    quantization_type,
    mode,
    num_bits,
    *args,
    **settings,
  )


def for_diffusion(
  target: type,
  num_bits: int = 8,
  quantization_type: QuantizationType = QuantizationType.FQ,
  mode: QuantizationMode = QuantizationMode.TRAINING,
  *,
  quantize_init_from_checkpoint_rules_task: bool = False,
  **settings,
):
  """Returns a decorator of an experiment whose convolutions are quantized.

  Args:
    target: see `set_diffusion_quantization`.
    num_bits: likewise.
    quantization_type: likewise; a convolution supports PTQ only.
    mode: likewise.
    quantize_init_from_checkpoint_rules_task: see `for_transformer`.
    **settings: its other arguments.
  """
  return _decorator(
    set_diffusion_quantization,
    quantize_init_from_checkpoint_rules_task,
    target,
    num_bits=num_bits,
    quantization_type=quantization_type,
    mode=mode,
    **settings,
  )


def _decorator(set_quantization: Callable, of_rules: bool, *args, **settings):
  """Returns a decorator of an experiment, which changes its model."""

  def decorator(cls):
    @functools.wraps(cls, updated=())
    class Wrapper(cls):
      def task(self):
        task = super().task()
        models = [task.model]
        if of_rules:
          rules = task.train.init_from_checkpoint_rules or {}
          models += [rule.task_p.model for rule in rules.values()]
        for model in models:
          set_quantization(model, *args, **settings)
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
    variables: variables of the same model with floats, unboxed; its sparse
      weights are pruned.
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
  variables = sparsifier.materialize(variables)
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
      found |= stored_weights.quantized_weight(
        name, jnp.asarray(params[name]), box.meta.quantized, dtype, stacked
      )
      if found[name].shape != box.value.shape:
        raise errors.UserError(
          f'{where} is {list(found[name].shape)} after quantization, but the'
          f' model expects {list(box.value.shape)}'
        )
    elif not name.endswith((stored_weights.SCALE, stored_weights.ZERO_POINT)):
      if name not in params:
        raise errors.UserError(f'the weight {where} is missing')
      found[name] = params[name]
  return found
