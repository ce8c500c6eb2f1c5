"""A model's config and its trained weights are quantized."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, layers
from pax_compat.config import Config, sub_config_field
from pax_compat.layers.quantization import quantize, utils
from pax_compat.layers.quantization.quantization_hparams import (
  QuantizationMode,
  QuantizationParams,
  QuantizationType,
  TransformerLayer,
  WeightQuantizationParams,
)

_X = jax.random.normal(jax.random.key(2), [2, 5, 16])


def _stack(repeated: bool):
  stack = layers.StackedTransformer.config(
    num_layers=2,
    model_dims=16,
    hidden_dims=32,
    num_heads=2,
    mask_self_attention=True,
  )
  stack.transformer_layer_params_tpl.tr_atten_tpl.combine_qkv = True
  if not repeated:
    return stack
  stack.num_layers = 1
  return layers.StackedTransformerRepeated.config(block=stack, x_times=2)


def _run(config, variables):
  outputs = config.Instantiate().apply(variables, _X, jnp.zeros([2, 5]))
  return outputs[0] if isinstance(outputs, tuple) else outputs


def _trained(config):
  keys = jax.random.key(0)
  return base_layer.unbox(
    config.Instantiate().init(keys, _X, jnp.zeros([2, 5]))
  )


@pytest.mark.parametrize(
  'repeated, settings, error',
  [
    (False, {}, 0.02),
    (True, dict(num_bits=4), 0.3),
    (True, dict(use_symmetric=False, linear_only=True), 0.02),
    (
      False,
      dict(weight_quant_only=False, num_bits_act=8, use_symmetric_act=True),
      0.04,
    ),
  ],
)
def test_a_transformer_is_quantized_after_training(repeated, settings, error):
  config = _stack(repeated)
  variables = _trained(config)
  outputs = _run(config, variables)
  quantize.set_transformer_quantization(config, **settings)
  converted = quantize.quantize_variables(
    config, variables, _X, jnp.zeros([2, 5])
  )
  difference = np.abs(_run(config, converted) - outputs).mean()
  assert 0 < difference < error * np.abs(outputs).mean()
  sizes = [
    sum(x.nbytes for x in jax.tree.leaves(tree))
    for tree in (variables, converted)
  ]
  assert sizes[1] < 0.7 * sizes[0]


def test_training_rounds_weights_as_inference_does():
  config = _stack(False)
  variables = _trained(config)
  quantize.set_transformer_quantization(
    config,
    quantization_type=QuantizationType.FQ,
    mode=QuantizationMode.TRAINING,
  )
  rounded = _run(config, variables)
  grads = jax.grad(lambda v: _run(config, v).sum())(variables)
  assert all(
    np.any(x)
    for x in jax.tree.leaves(
      grads['params']['x_layers_0']['ff_layer']['ffn_layer1']
    )
  )
  config = copy.deepcopy(config)
  quantize.set_inference_mode(config)
  converted = quantize.quantize_variables(
    config, variables, _X, jnp.zeros([2, 5])
  )
  np.testing.assert_allclose(
    _run(config, converted), rounded, rtol=1e-4, atol=1e-5
  )


@pytest.mark.parametrize('transposed', [True, False])
def test_a_softmax_is_quantized(transposed):
  cls = (
    layers.NClassMajorSharedEmbeddingSoftmax
    if transposed
    else layers.SharedEmbeddingSoftmax
  )
  config = layers.TransformerLm.config(
    vocab_size=24,
    model_dims=16,
    softmax_tpl=cls.config(scale_sqrt_depth=True),
    stacked_transformer_tpl=_stack(False),
  )
  quantize.set_transformer_quantization(
    config,
    num_bits=4,
    quantize_embedding_softmax=True,
    transposed_embedding_softmax=transposed,
  )
  softmax = config.softmax_tpl
  assert softmax.cls is getattr(layers.quantization, cls.__name__)
  assert softmax.quantization.weight_params.precision == 4
  softmax = softmax.set(num_classes=24, input_dims=16).Instantiate()
  variables = softmax.init(jax.random.key(0), _X, method='get_logits')
  integers = [
    x.dtype for x in jax.tree.leaves(variables) if x.dtype == jnp.int32
  ]
  assert len(integers) == 1


def test_an_experiment_is_decorated():
  class Experiment:
    def task(self):
      return layers.FeedForward.config(name='task').set() and _Task(
        _stack(False)
      )

  class _Task:
    def __init__(self, model):
      self.model = model

  decorated = quantize.for_transformer(num_bits=8)(Experiment)
  tpl = decorated().task().model.transformer_layer_params_tpl
  linear = tpl.tr_fflayer_tpl.fflayer_tpl.linear_tpl
  assert decorated.__name__ == 'Experiment'
  assert linear.cls is layers.quantization.Linear
  assert linear.quantization.quantization_type == QuantizationType.FQ


@pytest.mark.parametrize('dtype', [jnp.int32, jnp.int8])
def test_packing_keeps_values(dtype):
  x = jax.random.randint(jax.random.key(0), [3, 16, 2], -8, 8).astype(jnp.int8)
  packed = utils.pack_4bit(x, 1, dtype)
  assert packed.nbytes == x.nbytes // 2 and packed.dtype == dtype
  np.testing.assert_array_equal(utils.unpack_4bit(packed, 1), x)


@pytest.mark.parametrize(
  'settings, message',
  [
    (dict(quantization_type=QuantizationType.FR), 'mode is .* not supported'),
    (
      dict(
        quantization_type=QuantizationType.AQT,
        weight_params=WeightQuantizationParams(block_size=2),
      ),
      'block_size is 2, which is not supported; expected 0',
    ),
    (dict(weight_params=WeightQuantizationParams(precision=16)), 'precision'),
    (
      dict(weight_params=WeightQuantizationParams(precision=4)),
      'cannot be packed along dimension 0: 4 is not a multiple of 8',
    ),
    (
      dict(weight_params=WeightQuantizationParams(dtype=jnp.int4)),
      "dtype is 'int4', which is not supported; expected 'int8' or 'uint8'",
    ),
  ],
)
def test_settings_that_are_not_supported_are_refused(settings, message):
  layer = layers.quantization.Linear.config(
    input_dims=4, output_dims=3, quantization=QuantizationParams(**settings)
  ).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init(jax.random.key(0), jnp.ones([2, 4]))


def test_kinds_of_layers_have_different_bits():
  kinds = TransformerLayer
  config = layers.TransformerLm.config(
    vocab_size=24,
    model_dims=16,
    stacked_transformer_tpl=_stack(False),
    ngrammer_tpl=layers.Ngrammer.config(),
  )
  quantize.set_transformer_mixed_precision_quantization(
    config,
    num_bits={
      kinds.LINEAR: 4,
      kinds.LINEAR_ACT: 8,
      kinds.EMBEDDING_SOFTMAX: 8,
      kinds.EMBEDDING_NGRAMMER: 8,
    },
    sub_channel_blocksize={kinds.LINEAR: 8},
    dtype={kinds.LINEAR: jnp.int4},
    transposed_embedding_softmax=True,
  )
  tpl = config.stacked_transformer_tpl.transformer_layer_params_tpl
  linear = tpl.tr_fflayer_tpl.fflayer_tpl.linear_tpl.quantization
  assert (linear.weight_params.precision, linear.act_params.precision) == (4, 8)
  assert linear.weight_params.block_size == 8
  assert not linear.weight_params.is_packed
  assert tpl.tr_atten_tpl.proj_tpl.cls is layers.AttentionProjection
  quantized = layers.quantization
  assert config.softmax_tpl.cls is quantized.NClassMajorSharedEmbeddingSoftmax
  assert config.softmax_tpl.quantization.weight_params.block_size == 0
  assert config.ngrammer_tpl.cls is quantized.Ngrammer


def test_blocks_have_smaller_errors_and_stacked_weights_are_in_blocks():
  config = _stack(True)
  variables = _trained(config)
  outputs = _run(config, variables)
  errors_of = []
  for size in (0, 8):
    tpl = config.clone()
    quantize.set_transformer_quantization(tpl, num_bits=4, block_size=size)
    converted = quantize.quantize_variables(
      tpl, variables, _X, jnp.zeros([2, 5])
    )
    errors_of.append(np.abs(_run(tpl, converted) - outputs).mean())
  assert 0 < errors_of[1] < 0.9 * errors_of[0]


def test_convolutions_are_quantized():
  class Unet(layers.Conv2D):
    conv_tpl: Config = sub_config_field(layers.Conv2D)

  config = Unet.config(
    conv_tpl=layers.Conv2D.config(filter_shape=[3, 3, 4, 8], bias=True)
  )
  quantize.set_diffusion_quantization(config, Unet, weight_quant_only=False)
  x = jax.random.normal(jax.random.key(3), [2, 6, 6, 4])
  conv = layers.Conv2D.config(filter_shape=[3, 3, 4, 8], bias=True)
  variables = base_layer.unbox(conv.Instantiate().init(jax.random.key(0), x))
  converted = quantize.quantize_variables(config.conv_tpl, variables, x)
  assert converted['params']['w'].dtype == jnp.int8
  outputs = conv.Instantiate().apply(variables, x)
  found = config.conv_tpl.Instantiate().apply(converted, x)
  assert 0 < np.abs(found - outputs).mean() < 0.02 * np.abs(outputs).mean()
  config.conv_tpl.quantization.quantization_type = QuantizationType.FQ
  config.conv_tpl.quantization.mode = QuantizationMode.TRAINING
  with pytest.raises(errors.UserError, match="type 'fq'; expected 'ptq'"):
    config.conv_tpl.Instantiate().init(jax.random.key(0), x)


def test_unknown_settings_are_named():
  with pytest.raises(errors.UserError, match='did you mean: block_size'):
    quantize.set_transformer_quantization(_stack(False), block_sizes=2)


def test_layers_that_cannot_be_quantized_are_named():
  config = _stack(False)
  tpl = config.transformer_layer_params_tpl
  tpl.tr_fflayer_tpl = layers.TransformerFeedForwardMoe.config()
  with pytest.raises(errors.UserError, match='TransformerFeedForwardMoe'):
    quantize.set_transformer_quantization(config)
  with pytest.raises(errors.UserError, match='if and only if'):
    quantize.set_transformer_quantization(config, num_bits_act=8)
