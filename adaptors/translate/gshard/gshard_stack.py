"""Translates the stacks of GShard's `DenseBuilder`.

In Lingvo attention and feed-forward are separate layers, `layer_000`,
`layer_001` and so on, each with its norm and its residual; here two of them are
one `Transformer`. Repeated layers have separate variables in Lingvo, which are
stacked here.
"""

import dataclasses
from typing import Any

from adaptors.translate.activations import GSHARD_LAYERS
from adaptors.translate.gshard import gshard_mesh, gshard_moe
from adaptors.translate.gshard.gshard_attention import attention
from adaptors.translate.gshard.gshard_norms import norm
from adaptors.translate.registry import Translated
from adaptors.translate.variables import (
  Chain,
  Identity,
  Map,
  Stack,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView
from pax_compat.config import Config
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers import linears
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
  StackedTransformerRepeated,
)
from pax_compat.layers.transformers.transformer_feed_forward import (
  TransformerFeedForward,
)
from pax_compat.layers.transformers.transformer_layers import Transformer

# The type of a relative bias that all layers share.
_SHARED = 'bias_shared'
# The norm policies of attention and feed-forward.
_NORM_POLICIES = {
  'pre': ('pre', 'pre'),
  'primer': ('pre', 'post'),
  'primer_hybrid': ('primer_hybrid', 'primer_hybrid'),
}


@dataclasses.dataclass(frozen=True)
class Layers:
  """A task's settings of its layers, in addition to its builder.

  Attributes:
    is_decoder: whether attention is causal.
    attention: the name of the attention's variables.
    relative: whether attention has a relative bias.
    activation: of the feed-forwards.
    is_gated: whether they are gated.
    norm_type: see `gshard_norms.norm`.
    norm_policy: 'pre', 'primer' or 'primer_hybrid'.
    blocks: the number of blocks.
    seconds: for each layer of a block, what follows the attention: 'ffw' or
      'moe'.
    gated_experts: whether the feed-forwards of experts are gated.
    aux_loss_coef: factor of the auxiliary loss of mixtures of experts.
    is_repeated: whether the blocks are a repeated layer.
  """

  is_decoder: bool
  attention: str
  relative: bool
  activation: str
  is_gated: bool
  norm_type: str
  norm_policy: str
  blocks: int
  seconds: tuple[str, ...]
  gated_experts: bool
  aux_loss_coef: float
  is_repeated: bool


def stack(view: ParamsView, builder: Any, layers: Layers) -> Translated | None:
  """Returns the stack of a network.

  Args:
    view: of the task, for its issues.
    builder: a `gshard_builder.Builder`.
    layers: of the stack.

  Returns:
    A `StackedTransformer`, or a `StackedTransformerRepeated`, with variables by
    their paths below the stack in Lingvo; None after an issue.
  """
  if layers.norm_policy not in _NORM_POLICIES:
    view.require('norm_policy', *_NORM_POLICIES)
    return None
  block = [
    _transformer(view, builder, layers, second) for second in layers.seconds
  ]
  if None in block:
    return None
  tpls = [layer.config for layer in block]
  times = 1 if layers.is_repeated else layers.blocks
  shared = layers.relative and builder.relative_attention_type == _SHARED
  config = StackedTransformer.config(
    model_dims=builder.model_dim,
    num_layers=times * len(tpls),
    transformer_layer_params_tpl=_templates(tpls, times, shared),
    activation_split_dims_mapping=StackedTransformer.ActivationSharding.config(
      out=gshard_mesh.split(builder, 'blm_split', 3)
    ),
  )
  if layers.is_repeated:
    if shared:
      view.issue(
        'use_repeat_layer',
        f'with relative_attention_type {_SHARED!r} it is not translated',
      )
    return _repeated(config, block, layers.blocks)
  variables = VariableMap()
  if shared:
    variables = _shared_bias(layers)
  for number in range(layers.blocks * len(block)):
    of_layer = block[number % len(block)].variables
    variables += _numbered(of_layer, number, f'x_layers_{number}')
  return Translated(config, variables)


def _templates(
  tpls: list[Config], times: int, shared: bool
) -> Config | list[Config]:
  """Returns the template of all layers, or those of each.

  Args:
    tpls: of the layers of a block.
    times: the number of blocks.
    shared: whether all layers have one relative bias, the first one's.
  """
  if len(tpls) == 1 and not shared:
    return tpls[0]
  copies = [tpl.clone() for _ in range(times) for tpl in tpls]
  if shared:
    for tpl in copies:
      bias = copies[0].tr_atten_tpl.relative_bias_tpl
      tpl.tr_atten_tpl.relative_bias_tpl = bias
  return copies


def _shared_bias(layers: Layers) -> VariableMap:
  """Returns the shared relative bias, which belongs to the first layer."""
  part = 'dec_self' if layers.is_decoder else 'self'
  theta = f'layer_000.{layers.attention}.wrb_{part}_attention_shared_var.wrb'
  jax = 'x_layers_0/self_attention/relative_bias/wrb'
  return VariableMap([Variable((theta,), jax)])


def _repeated(
  config: Config, block: list[Translated], times: int
) -> Translated:
  """Returns a repeated block."""
  stacked = []
  for number, layer in enumerate(block):
    jax = f'repeat/sub/x_layers_{number}'
    for one in _numbered(layer.variables, number, jax):
      (theta,) = one.theta
      each = (f'blocks.body_iter_{i:05d}.{theta}' for i in range(times))
      stacked.append(Variable(tuple(each), one.jax, _stacked(one.transform)))
  config = StackedTransformerRepeated.config(block=config, x_times=times)
  return Translated(config, VariableMap(stacked))


def _stacked(transform: Any) -> Any:
  """Returns the transform of a stack of variables, given that of one."""
  if isinstance(transform, Identity):
    return Stack()
  return Chain((Stack(), Map(transform)))


def _numbered(variables: VariableMap, number: int, jax: str) -> VariableMap:
  """Returns the variables of a layer by their paths in a stack.

  Args:
    variables: of a layer; their paths begin with 'first' or 'second'.
    number: the index of the layer.
    jax: its path.
  """
  names = {'first': 2 * number, 'second': 2 * number + 1}

  def renamed(theta: str) -> str:
    half, _, rest = theta.partition('.')
    return f'layer_{names[half]:03d}.{rest}'

  return VariableMap(
    dataclasses.replace(
      v, theta=tuple(map(renamed, v.theta)), jax=f'{jax}/{v.jax}'
    )
    for v in variables
  )


def _transformer(
  view: ParamsView, builder: Any, layers: Layers, second: str
) -> Translated | None:
  """Returns a layer of a block.

  Args:
    view: of the task.
    builder: of the task.
    layers: of the stack.
    second: what follows the attention: 'ffw' or 'moe'.
  """
  policies = _NORM_POLICIES[layers.norm_policy]
  bidirectional = (
    not layers.is_decoder or builder.decoder_bidirectional_relative_attention
  )
  atten = attention(
    builder, relative=layers.relative, bidirectional=bidirectional
  )
  if second == 'moe':
    after = gshard_moe.mixture(
      builder, is_gated=layers.gated_experts, loss_weight=layers.aux_loss_coef
    )
  else:
    after = _feed_forward(view, builder, layers)
  norms = [_norms(view, builder, layers, policy) for policy in policies]
  if None in (atten, after):
    return None
  first_norms, second_norms = norms
  after.config.set(
    ln_tpl=second_norms.config,
    norm_policy=policies[1],
    residual_dropout_prob=builder.dropout_rate,
  )
  config = Transformer.config(
    norm_policy=policies[0],
    ln_tpl=first_norms.config,
    residual_dropout_prob=builder.dropout_rate,
    tr_atten_tpl=atten.config,
    tr_fflayer_tpl=after.config,
  )
  name = 'moe' if second == 'moe' else 'dense_relu_dense'
  variables = first_norms.variables.under('first', '')
  variables += atten.variables.under(
    f'first.{layers.attention}', 'self_attention'
  )
  variables += second_norms.variables.under('second', 'ff_layer')
  variables += after.variables.under(f'second.{name}', 'ff_layer')
  return Translated(config, variables)


def _norms(
  view: ParamsView, builder: Any, layers: Layers, policy: str
) -> Translated:
  """Returns the norm of a sub-layer, with the variables of all its copies."""
  kind = layers.norm_type
  names = {kind: 'layer_norm'}
  if policy == 'primer_hybrid':
    names = {kind: 'pre_layer_norm', f'post_{kind}': 'post_layer_norm'}
  return norm(builder, view, 'norm_type', kind=kind, names=names)


def _feed_forward(
  view: ParamsView, builder: Any, layers: Layers
) -> Translated | None:
  """Returns a feed-forward without its norm."""
  if layers.activation not in GSHARD_LAYERS:
    known = ', '.join(GSHARD_LAYERS)
    field = 'gated_ffn_activation' if layers.is_gated else 'activation'
    view.issue(field, f'{layers.activation!r} is not translated, only {known}')
    return None
  use_bias = builder.ff_use_bias and not layers.is_gated
  dims, hidden = builder.model_dim, builder.ff_dim
  config = TransformerFeedForward.config(
    hidden_dims=hidden,
    has_bias=use_bias,
    activation_tpl=GSHARD_LAYERS[layers.activation](),
    use_gated_activation=layers.is_gated,
    relu_dropout_prob=builder.dropout_rate,
    fflayer_tpl=linears.FeedForward.config(weight_init=_init(dims)),
    fflayer2_tpl=linears.FeedForward.config(weight_init=_init(hidden)),
  )
  config.weight_split_dims_mapping.set(
    ffn0=gshard_mesh.split(builder, 'mh_wi_split', 2),
    ffn1=gshard_mesh.split(builder, 'hm_wo_split', 2),
  )
  config.activation_split_dims_mapping.set(
    ffn0=gshard_mesh.split(builder, 'blh_split', 3),
    ffn1=gshard_mesh.split(builder, 'blm_split', 3),
  )
  names = {'wi': 'ffn_layer1/linear/w'}
  if layers.is_gated:
    names = {'wi_0': 'ffn_layer1_gate/linear/w', 'wi_1': 'ffn_layer1/linear/w'}
  names['wo'] = 'ffn_layer2/linear/w'
  if use_bias:
    names |= {'bi': 'ffn_layer1/bias/b', 'bo': 'ffn_layer2/bias/b'}
  return Translated(
    config,
    VariableMap(Variable((f'w.{t}',), jax) for t, jax in names.items()),
  )


def _init(dims: int) -> WeightInit:
  """Returns the initializer of a weight with `dims` input dims."""
  return WeightInit.Uniform((3 / dims) ** 0.5)
