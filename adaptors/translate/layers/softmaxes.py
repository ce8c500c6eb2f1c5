"""Translators of Lingvo's softmaxes.

Shapes: D input dims, V classes.
"""

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import weight_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import Concat, Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat import config as config_lib
from pax_compat.config import Config
from pax_compat.layers import embedding_softmax
from pax_compat.layers.softmaxes import (
  full_softmax as softmaxes,
)
from pax_compat.layers.softmaxes import (
  sampled_softmax,
)
from pax_compat.layers.softmaxes.focal_softmax import FocalSoftmax


@translates('lingvo.core.layers.SimpleFullSoftmax')
def full_softmax(view: ParamsView) -> Translated:
  """Returns a softmax with one matrix, made of Lingvo's shards.

  The matrix is [V, D] if Lingvo's is: for a sampled softmax, or with
  `use_num_classes_major_weight`. With `chunk_size` Lingvo does not sample.
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
def focal_softmax(view: ParamsView) -> Translated | None:
  """Returns a `FocalSoftmax`, or the same as `full_softmax` if it has none."""
  focal = _focal(view)
  translated = full_softmax(view)
  if focal and (
    translated.config.cls is not softmaxes.FullSoftmax
    or view.params.chunk_size
    or view.params.num_sampled
  ):
    view.issue(
      'focal_loss_gamma',
      'a focal loss is not translated together with chunk_size, num_sampled or'
      ' use_num_classes_major_weight; with the first two Lingvo trains on other'
      ' losses',
    )
    return None
  return _with_focal(translated, focal)


def _focal(view: ParamsView) -> dict:
  """Returns the fields of a focal loss; empty for the cross-entropy."""
  fields = {}
  if view.get('focal_loss_gamma'):
    fields['focal_gamma'] = float(view.params.focal_loss_gamma)
  factors = view.get('focal_loss_alpha')
  if factors is not None:
    fields['class_factors'] = tuple(map(float, factors))
  return fields


def _with_focal(translated: Translated, focal: dict) -> Translated:
  if not focal:
    return translated
  config = FocalSoftmax.config(
    **config_lib.set_fields(translated.config), **focal
  )
  return Translated(config, translated.variables)


@translates('lingvo.core.layers.EinsumSoftmax')
def einsum_softmax(view: ParamsView) -> Translated:
  """Returns a softmax whose mean loss differs slightly from Lingvo's.

  Lingvo divides by the sum of weights plus 1e-6; here the sum is at least that.
  """
  config = softmaxes.FullSoftmax.config(
    use_bias=view.get('use_bias'), **_fields(view)
  )
  translated = Translated(config, _matrix('w', 'b', config.use_bias))
  return _with_focal(translated, _focal(view))


@translates('lingvo.core.layers.SingleShardFullSoftmax')
def single_shard_softmax(view: ParamsView) -> Translated:
  """Returns a softmax; see `einsum_softmax` for the mean loss."""
  view.ignore('the result is the same', 'chunk_size')
  config = softmaxes.FullSoftmax.config(**_fields(view))
  return Translated(config, _matrix('linear.w', 'bias.b', True))


@translates('lingvo.core.layers.SingleShardSharedEmbeddingSoftmax')
def single_shard_shared_softmax(view: ParamsView) -> Translated:
  """Returns a softmax that is an embedding as well."""
  translated = single_shard_softmax(view)
  for name, of_softmax in (
    ('vocab_size', 'num_classes'),
    ('embedding_dim', 'input_dim'),
  ):
    view.require(name, view.params.Get(of_softmax))
  view.ignore('the result is the same', 'emb_with_matmul')
  return Translated(
    _shared(translated.config, view.get('scale_sqrt_depth')),
    translated.variables,
  )


@translates('lingvo.core.layers.SharedSoftmaxLayer')
def shared_softmax(view: ParamsView) -> Translated | None:
  """Returns a softmax that is an embedding as well."""
  template = view.get('softmax')
  own = {
    name: view.get(name) or template.Get(name)
    for name in ('input_dim', 'num_classes', 'chunk_size')
  }
  softmax = registry.translate(view.child('softmax', **own))
  # If set, they must equal the fields of the softmax.
  view.require('vocab_size', 0, own['num_classes'])
  view.require('embedding_dim', 0, own['input_dim'])
  scale = view.get('scale_sqrt_depth')
  if softmax is None:
    return None
  if softmax.config.cls not in _WITH_EMBEDDING:
    view.issue(
      'softmax',
      'a sampled softmax is not translated together with an embedding',
    )
    return None
  return Translated(
    _shared(softmax.config, scale), softmax.variables.under('softmax', '')
  )


# By the class of a softmax: the class that is an embedding as well.
_WITH_EMBEDDING = {
  softmaxes.FullSoftmax: embedding_softmax.SharedEmbeddingSoftmax,
  embedding_softmax.NClassMajorSharedEmbeddingSoftmax: (
    embedding_softmax.NClassMajorSharedEmbeddingSoftmax
  ),
}


def _shared(config: Config, scale_sqrt_depth: bool) -> Config:
  """Returns the config of the softmax that is an embedding as well."""
  fields = config_lib.set_fields(config)
  # The other class has another type for this field, which is not set here.
  fields.pop('activation_split_dims_mapping', None)
  return _WITH_EMBEDDING[config.cls].config(
    **fields, scale_sqrt_depth=scale_sqrt_depth
  )


def _fields(view: ParamsView) -> dict:
  """Returns the fields of a softmax whose matrix [D, V] is one variable."""
  dims, classes = view.get('input_dim'), view.get('num_classes')
  return dict(
    input_dims=dims,
    num_classes=classes,
    soft_cap_logits=view.get('logits_soft_max'),
    logits_abs_max=view.get('logits_abs_max'),
    params_init=weight_init(view, (dims, classes)),
  )


def _matrix(weight: str, bias: str, use_bias: bool) -> VariableMap:
  """Returns the variables of a `FullSoftmax`, given their Lingvo names."""
  variables = [Variable((weight,), 'logits_ffn/linear/w')]
  if use_bias:
    variables.append(Variable((bias,), 'logits_ffn/bias/b'))
  return VariableMap(variables)
