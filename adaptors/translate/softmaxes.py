"""Translators of Lingvo's softmaxes.

Shapes: D input dims, V classes.
"""

from adaptors.translate.layers import base_fields, weight_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import Concat, Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers import embedding_softmax, sampled_softmax, softmaxes


@translates('lingvo.core.layers.SimpleFullSoftmax')
def full_softmax(view: ParamsView) -> Translated:
  """`SimpleFullSoftmax`: its shards are one matrix here.

  The matrix is [V, D] where Lingvo's is: for samples of classes, or if asked
  for. Lingvo takes no samples where it computes in chunks.
  """
  view.require('apply_pruning', False)
  view.require('pruning_hparams_dict', None)
  num_sampled, chunk_size = view.get('num_sampled'), view.get('chunk_size')
  by_class = view.get('use_num_classes_major_weight') or num_sampled > 0
  dims, classes = view.get('input_dim'), view.get('num_classes')
  shards, use_bias = view.get('num_shards'), view.get('use_bias')
  if classes % shards:
    view.issue('num_shards', f'{shards} does not divide num_classes, {classes}')
  if num_sampled and not use_bias:
    view.issue('use_bias', 'num_sampled needs a bias')
  part = classes // shards
  fields = dict(
    input_dims=dims,
    num_classes=classes,
    use_bias=use_bias,
    bias_init=float(view.get('bias_init')),
    soft_cap_logits=view.get('logits_soft_max'),
    logits_abs_max=view.get('logits_abs_max'),
    params_init=weight_init(view, (part, dims) if by_class else (dims, part)),
    **base_fields(view),
  )
  samples = bool(num_sampled and not chunk_size)
  if samples:
    config = sampled_softmax.SampledSoftmax.config(
      num_sampled=num_sampled, sparse_gradients=True, **fields
    )
    paths = 'w', 'b'
  elif by_class:
    config = embedding_softmax.NClassMajorSharedEmbeddingSoftmax.config(
      **fields
    )
    paths = 'w', 'bias/b'
  else:
    config = softmaxes.FullSoftmax.config(**fields)
    paths = 'logits_ffn/linear/w', 'logits_ffn/bias/b'

  def joined(name: str, jax: str, axis: int) -> Variable:
    theta = tuple(f'{name}_{i}' for i in range(shards))
    shape = Concat(axis, (part,) * shards, classes)
    return Variable(theta, jax, shape, is_sparse=samples)

  variables = [joined('weight', paths[0], 0 if by_class else 1)]
  if use_bias:
    variables.append(joined('bias', paths[1], 0))
  return Translated(config, VariableMap(variables))


@translates('lingvo.core.layers.FocalFullSoftmax')
def focal_softmax(view: ParamsView) -> Translated:
  """`FocalFullSoftmax` without a focal loss, which is `SimpleFullSoftmax`."""
  view.require('focal_loss_alpha', None)
  view.require('focal_loss_gamma', None)
  return full_softmax(view)
