"""Translators of Lingvo's common layers."""

from adaptors.translate import activations, registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers import linears
from pax_compat.layers.embeddings import positional_embeddings, scaled_positions
from pax_compat.layers.normalizations import norm_layers


def weight_init(view: ParamsView, shape: tuple[int, ...]) -> WeightInit:
  """Returns the initializer of a weight that has another shape here.

  Args:
    view: of the layer with `params_init`.
    shape: the weight's shape in Lingvo, from which its scale is computed.
  """
  return same_init(view, 'params_init').for_shape(shape)


def same_init(view: ParamsView, name: str) -> WeightInit:
  """Returns the initializer of weights that have Lingvo's shape here."""
  p = view.get(name)
  if p.method in ('custom', 'custom_constant', 'delta_orthogonal'):
    view.issue(name, f'the method {p.method!r} is not translated')
    return WeightInit.Constant(0.0)
  return WeightInit(p.method, p.scale)


@translates('lingvo.core.layers.LayerNorm')
def layer_norm(view: ParamsView) -> Translated:
  """Returns a layer norm; Lingvo's equivalent implementations are one here."""
  view.get('params_init')  # Scale and bias start as constants.
  view.ignore(
    'the result is the same',
    'use_fused_layernorm',
    'use_defun',
    'use_batch_norm_backend',
  )
  view.require('center', True)
  view.require('trainable_scale_and_bias', True)
  use_bias = view.get('bias')
  config = norm_layers.LayerNorm.config(
    dim=view.get('input_dim'),
    epsilon=view.get('epsilon'),
    direct_scale=view.get('direct_scale'),
    use_bias=use_bias,
  )
  names = ['scale', 'bias'] if use_bias else ['scale']
  return Translated(config, VariableMap(Variable((n,), n) for n in names))


@translates('lingvo.core.layers.DropoutLayer')
@translates('lingvo.core.layers.DeterministicDropoutLayer')
def dropout(view: ParamsView) -> float:
  """Returns the keep probability.

  The deterministic one differs only in the source of its random numbers.
  """
  view.base_fields()
  view.get('params_init')
  view.require('noise_shape', None)
  view.require('noise_shape_broadcast_dims', None)
  view.require('dropout_at_eval', False)
  return view.get('keep_prob')


@translates('lingvo.core.layers.UniformLabelSmoother')
def uniform_label_smoother(view: ParamsView) -> float:
  """Returns the probability that is taken from the label's class."""
  view.base_fields()
  view.get('params_init')
  view.get('num_classes')  # The softmax checks it.
  view.require('token_id_uncertainty_larger', None)
  view.ignore('the token is not used', 'uncertainty_larger')
  return view.get('uncertainty')


@translates('lingvo.core.layers.ProjectionLayer')
def projection(view: ParamsView) -> Translated:
  """Returns a `FeedForward`."""
  view.require('batch_norm', False)
  view.require('affine_last', False)
  view.require('weight_norm', False)
  view.require('use_block_diagonal_matmul', False)
  view.require('use_blocked_matmul', False)
  view.require('apply_pruning', False)
  view.get('enable_vn')  # `VariableNames.noisy` finds it out.
  view.ignore(
    'without batch norm it does nothing', 'bn_params', 'bn_fold_weights'
  )
  view.ignore('the result is the same', 'use_einsum', 'bd_num_blocks')
  shape = (view.get('input_dim'), view.get('output_dim'))
  config = linears.FeedForward.config(
    input_dims=shape[0],
    output_dims=shape[1],
    has_bias=view.get('has_bias'),
    bias_init=view.get('bias_init'),
    activation_tpl=activations.layer(view, 'activation'),
  )
  config.linear_tpl.params_init = weight_init(view, shape)
  variables = [Variable(('w',), 'linear/w')]
  if config.has_bias:
    variables.append(Variable(('b',), 'bias/b'))
  return Translated(config, VariableMap(variables))


@translates('lingvo.core.layers.PositionalEmbeddingLayer')
def positional_embedding(view: ParamsView) -> Translated:
  view.get('params_init')  # Its scales start at 0.
  cls, fields, names = positional_embeddings.PositionalEmbedding, {}, []
  if view.get('trainable_scaling'):
    fields['scaling_init'] = float(view.get('trainable_scaling_init'))
    names.append('scale')
  else:
    view.ignore('trainable_scaling is off', 'trainable_scaling_init')
  if view.get('frequency_scaling'):
    names.append('freq_scale')
  if names:
    cls = scaled_positions.ScaledPositionalEmbedding
    fields['trainable_scaling'] = 'scale' in names
    fields['frequency_scaling'] = 'freq_scale' in names
  config = cls.config(
    embedding_dims=view.get('embedding_dim'),
    min_timescale=view.get('min_timescale'),
    max_timescale=view.get('max_timescale'),
    **fields,
  )
  return Translated(config, VariableMap(Variable((n,), n) for n in names))


@translates('lingvo.core.layers.FeedForwardNet')
def feed_forward_net(view: ParamsView) -> list[tuple] | None:
  """Returns (projection, keep probability) of each layer."""
  view.base_fields()
  dims = view.get('hidden_layer_dims')
  view.require('skip_connections', None)
  view.require('memory_augmentation', False)
  view.require('use_block_diagonal_matmul_pl', [])
  view.ignore('no block-diagonal products', 'num_blocks_pl')
  each = [
    _for_each(view.get(name), len(dims))
    for name in (
      'projection',
      'activation',
      'batch_norm',
      'weight_norm',
      'has_bias',
      'dropout',
    )
  ]
  layers = []
  input_dim = view.get('input_dim')
  for i, fields in enumerate(zip(*each, strict=True)):
    template, act, batch_norm, weight_norm, bias, dropout_tpl = fields
    child = view.adopt(
      template,
      f'projection[{i}]',
      batch_norm=batch_norm,
      weight_norm=weight_norm,
      has_bias=not batch_norm if bias is None else bias,
      input_dim=input_dim,
      output_dim=dims[i],
      activation=act,
    )
    keep = registry.translate(view.adopt(dropout_tpl, f'dropout[{i}]'))
    layers.append((registry.translate(child), keep))
    input_dim = dims[i]
  return None if any(None in layer for layer in layers) else layers


def _for_each(value, count: int) -> list:
  """Returns a value for each layer: a list as it is, other values repeated."""
  return list(value) if isinstance(value, list | tuple) else [value] * count
