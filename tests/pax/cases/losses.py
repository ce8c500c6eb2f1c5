"""Networks whose layers add auxiliary losses: experts and softmaxes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.pax.layer_cases import Case, paddings

_V, _D, _T = 11, 8, 6
_IDS = np.random.default_rng(5).integers(1, _V, (4, _T)).astype(np.int32)
_PADDINGS = paddings(_T, 6, 4, 6, 5)


class _Labels(dict):
  """The tokens to predict, and their weights, as both frameworks read them."""

  @property
  def class_ids(self) -> np.ndarray:
    return self['class_ids']

  @property
  def class_weights(self) -> np.ndarray:
    return self['class_weights']


def _labels() -> _Labels:
  labels = np.roll(_IDS, -1, axis=1)
  return _Labels(class_ids=labels, class_weights=1 - _PADDINGS)


def _losses(output: Any) -> list:
  """Returns the losses of a network, and the weight of the auxiliary ones."""
  names = 'total_loss', 'avg_xent', 'aux_loss', 'aux_loss_weight'
  return [output[name] for name in names]


def _of_lm(model, ids):
  return _losses(model(ids, _PADDINGS, _labels()))


def _of_pair(model, ids):
  return _losses(model(ids, _PADDINGS, ids, _PADDINGS, _labels()))


def _of_two_calls(model, ids):
  """Returns the losses of two calls: the second one has those of both."""
  first = _of_lm(model, ids)
  return first + _of_lm(model, np.flip(ids, axis=0))


def _experts(n, layers: int = 2) -> Any:
  """Returns a stack whose last layer has experts."""
  stack = n.Config(
    n.layers.StackedTransformer,
    model_dims=_D,
    hidden_dims=16,
    num_heads=2,
    num_layers=layers,
    num_experts=2,
    num_groups=1,
    moe_layers=[layers - 1],
    unadjusted_expert_capacity_factor=2,
  )
  stack.moe_layer_tpl.moe_load_balance_loss_weight = 0.5
  return stack


def _stacked(n) -> Any:
  return _experts(n)


def _repeated(**fields) -> Callable:
  def config(n):
    block = _experts(n, layers=1)
    return n.Config(
      n.layers.StackedTransformerRepeated, block=block, x_times=3, **fields
    )

  return config


def _pipelined(**fields) -> Callable:
  def config(n):
    stage = _experts(n, layers=1)
    return n.Config(
      n.layers.PipelinedTransformer,
      pipeline_stage=stage,
      num_pipeline_stages=2,
      num_pipeline_microbatches=2,
      **fields,
    )

  return config


def _lm(stack: Callable, z_loss: float = 0.1) -> Callable:
  """Returns the config of a language model with a z-loss."""

  def config(n):
    model = n.Config(n.layers.TransformerLm, model_dims=_D, vocab_size=_V)
    model.softmax_tpl.z_loss_weight = z_loss
    model.softmax_tpl.scale_sqrt_depth = True
    model.stacked_transformer_tpl = stack(n)
    return model

  return config


def _pair(n) -> Any:
  """Returns the config of an encoder-decoder with experts on both sides."""
  model = n.Config(n.layers.TransformerEncoderDecoder, model_dims=_D)
  model.softmax_tpl = n.Config(
    n.layers.SharedEmbeddingSoftmax,
    num_classes=_V,
    input_dims=_D,
    z_loss_weight=0.1,
  )
  for side in ('encoder', 'decoder'):
    setattr(model, f'{side}_stacked_transformer_tpl', _experts(n))
  model.encoder_stacked_transformer_tpl.mask_self_attention = False
  model.decoder_stacked_transformer_tpl.mask_self_attention = True
  model.decoder_stacked_transformer_tpl.use_cross_attention = True
  return model


def _case(config: Callable, method: Callable = _of_lm) -> Case:
  # Pax's pipelines refuse weights that may change.
  collections = ('aux_loss', 'summaries', 'non_trainable')
  return Case(config, (_IDS,), method=method, mutable=collections)


CASES = {
  'softmax': _case(_lm(lambda n: _experts(n).set(moe_layers=[]))),
  'stacked': _case(_lm(_stacked, z_loss=0.0)),
  'repeated': _case(_lm(_repeated())),
  'repeated_saving_all': _case(
    _lm(_repeated(checkpoint_policy='save_everything'))
  ),
  'pipelined': _case(_lm(_pipelined())),
  'circular': _case(_lm(_pipelined(circular_repeat=2))),
  'streamed': _case(_lm(_pipelined(stream_io=True))),
  'two_calls': _case(_lm(_stacked), method=_of_two_calls),
  'encoder_decoder': _case(_pair, method=_of_pair),
}
