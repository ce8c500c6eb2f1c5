"""Weights of a layer under Lingvo's names, for `praxis.test_utils`.

Unit tests compare a layer with Lingvo's of the same weights. A table has rows
of a path in Lingvo's theta and one among our weights; Lingvo also asks for maps
of layers without weights.
"""

import copy
from typing import Any

import jax
import numpy as np

from adaptors import lingvo_runtime
from pax_compat.nested_map import NestedMap

_FEED_FORWARD = (
  'layer_norm layer_norm',
  'fflayer.fc[0].w ffn_layer1.linear.w',
  'fflayer.fc[0].b ffn_layer1.bias.b',
  'fflayer.fc[1].w ffn_layer2.linear.w',
  'fflayer.fc[1].b ffn_layer2.bias.b',
)
_EXPERTS = (
  'layer_norm layer_norm',
  'fflayer.layer_norm layer_norm',
  'fflayer.gate gate',
  'fflayer.wi_0 wi_0',
  'fflayer.wo_0 wo_0',
)
_LIGHT_CONVOLUTION = (
  'ln.bias ln.bias',
  'ln.scale ln.scale',
  'norm.beta conv_norm.beta',
  'norm.gamma conv_norm.gamma',
  'linear_end.w linear_end.linear.w',
  'linear_end.b linear_end.bias.b',
)


def to_tf_nmap(x_nmap: NestedMap) -> NestedMap:
  """Returns a nest of arrays as TensorFlow's tensors."""
  tf = lingvo_runtime.tensorflow()
  return jax.tree.map(lambda x: tf.constant(np.asarray(x)), x_nmap)


def _renamed(weights: NestedMap, rows: tuple[str, ...]) -> NestedMap:
  found = NestedMap()
  for row in rows:
    theirs, ours = row.split()
    found.Set(theirs, copy.copy(weights.GetItem(ours)))
  return found


def _feed_forward(weights: NestedMap) -> NestedMap:
  is_moe = 'gate' in weights
  found = _renamed(weights, _EXPERTS if is_moe else _FEED_FORWARD)
  found.residual_dropout = NestedMap()
  if not is_moe:
    found.fflayer.dropout = [NestedMap(), NestedMap()]
  return found


def replace_jax_transformer_ffwd_vars_to_tf(
  jax_initial_vars: NestedMap,
) -> NestedMap:
  """Returns the weights of a `TransformerFeedForward` as Lingvo's."""
  return NestedMap(
    _feed_forward(jax_initial_vars), residual_droppath=NestedMap()
  )


def _attention(weights: NestedMap, norm: NestedMap) -> NestedMap:
  atten = NestedMap(weights, atten_dropout=NestedMap())
  return NestedMap(layer_norm=norm, atten=atten, residual_dropout=NestedMap())


def replace_jax_attention_vars_to_tf(
  jax_initial_vars: NestedMap, cross_attention: bool | None = False
) -> NestedMap:
  """Returns the weights of a `Transformer` under Lingvo's names, too."""
  weights = jax_initial_vars
  found = NestedMap(weights, fflayer=_feed_forward(weights.ff_layer))
  norm = weights.layer_norm
  found.self_atten = _attention(weights.self_attention, norm)
  if cross_attention:
    found.cross_atten = _attention(weights.cross_attention, norm)
  return found


def replace_jax_single_shard_full_softmax_vars_to_tf(
  jax_initial_vars: NestedMap,
) -> NestedMap:
  """Returns the weights of a softmax as those of `SingleShardFullSoftmax`."""
  rows = ('linear.w logits_ffn.linear.w', 'bias.b logits_ffn.bias.b')
  return _in_place_of('logits_ffn', jax_initial_vars, rows)


def replace_jax_simple_full_softmax_vars_to_tf(
  jax_initial_vars: NestedMap,
) -> NestedMap:
  """Returns the weights of a softmax as those of `SimpleFullSoftmax`."""
  rows = ('weight_0 logits_ffn.linear.w', 'bias_0 logits_ffn.bias.b')
  return _in_place_of('logits_ffn', jax_initial_vars, rows)


def _in_place_of(name: str, weights: NestedMap, rows: tuple[str, ...]):
  kept = {key: value for key, value in weights.items() if key != name}
  return NestedMap(kept, **_renamed(weights, rows))


def replace_jax_conv_bnact_vars_to_tf(jax_initial_vars: NestedMap) -> NestedMap:
  """Returns the weights of a `ConvBNAct` as Lingvo's."""
  found = _in_place_of('w', jax_initial_vars, ('conv.w w',))
  found.act = NestedMap()
  return found


def replace_jax_res_net_block_vars_to_tf(
  jax_initial_vars: NestedMap,
) -> NestedMap:
  """Returns the weights of a `ResNetBlock` as Lingvo's."""
  found = NestedMap(jax_initial_vars, postact=NestedMap())
  count = sum(key.startswith('body_') for key in found)
  found.body = [
    replace_jax_conv_bnact_vars_to_tf(found[f'body_{i}']) for i in range(count)
  ]
  if 'shortcut' in found:
    found.shortcut = replace_jax_conv_bnact_vars_to_tf(found.shortcut)
  return found


def replace_jax_res_net_vars_to_tf(jax_initial_vars: NestedMap) -> NestedMap:
  """Returns the weights of a `ResNet` as Lingvo's."""
  found = NestedMap(
    jax_initial_vars,
    entryflow_maxpool=NestedMap(),
    output_spatial_pooling=NestedMap(),
  )
  found.entryflow_conv = replace_jax_conv_bnact_vars_to_tf(found.entryflow_conv)
  for key, value in jax_initial_vars.items():
    if key.startswith('stage_'):
      found[key] = replace_jax_res_net_block_vars_to_tf(value)
  return found


def replace_jax_light_conv_vars_to_tf(
  jax_initial_vars: NestedMap, jax_initial_non_trainable_vars: NestedMap
) -> NestedMap:
  """Returns the variables of a `LightConv1D` as Lingvo's."""
  weights = jax_initial_vars
  found = _renamed(weights, _LIGHT_CONVOLUTION)
  found.norm.update(jax_initial_non_trainable_vars.conv_norm)
  found.dropout = [NestedMap(), NestedMap()]
  kernel = np.asarray(weights.depthwise_conv1d.w)
  found.depthwise_conv1d = NestedMap(w=kernel[..., None])
  starts = weights.linear_start_gated, weights.linear_start_act
  found.linear_start = NestedMap(
    w=np.concatenate([start.linear.w for start in starts], axis=-1),
    b=np.concatenate([start.bias.b for start in starts], axis=-1),
  )
  return to_tf_nmap(found)


def replace_jax_conformer_layer_vars_to_tf(
  jax_initial_vars: NestedMap, jax_initial_non_trainable_vars: NestedMap
) -> NestedMap:
  """Returns the variables of a `Conformer` as Lingvo's."""
  weights: Any = jax_initial_vars
  found = NestedMap(
    lconv=replace_jax_light_conv_vars_to_tf(
      weights.lconv, jax_initial_non_trainable_vars.lconv
    ),
    final_ln=weights.final_ln,
    fflayer_start=_feed_forward(weights.fflayer_start),
    fflayer_end=_feed_forward(weights.fflayer_end),
    trans_atten=_attention(
      weights.trans_atten.self_atten, weights.trans_atten.norm
    ),
  )
  return to_tf_nmap(found)
