"""The fields of tasks that differ from Pax's, each with its reason.

`_TABLE` is the whole list. A row is for the paths that its pattern matches from
their start to their end; `_ANY` in a row is any value.
"""

import dataclasses
import functools
import re
from typing import Any

from pax_compat import config


class _Name:
  """A constant that prints as its name."""

  def __init__(self, name: str):
    self._name = name

  def __repr__(self):
    return self._name


_REQUIRED = config.REQUIRED
_MUTABLE = ('aux_loss', 'summaries', 'non_trainable')
# There is no such field.
ABSENT = _Name('ABSENT')
_ANY = _Name('ANY')


@dataclasses.dataclass(frozen=True)
class Difference:
  """A known difference.

  Attributes:
    path: a pattern of paths.
    pax: the value in Pax.
    ours: the value here.
    why: the reason.
  """

  path: str
  pax: Any
  ours: Any
  why: str


# Fields of layers that are the default in every experiment, and what is so
# instead of their other values.
_ABSENT_FIELDS = {
  'bi_tempered_loss_tpl': (None, 'the loss is the cross entropy'),
  'skip_aux_loss': (False, 'total_loss always has the losses of layers'),
  'expert_weight_shards': (1, 'Pax accepts no other value'),
  'attention_mask_summary': (False, 'masks are in no summaries'),
  'decoding_maybe_shard_projections': (False, 'XLA shards decoding steps'),
  'ffn0_extend_step': (None, 'XLA shards decoding steps'),
  'ffn1_extend_step': (None, 'XLA shards decoding steps'),
  'repeat_optimizer_dims_mapping': (
    None,
    'the state of the optimizer is sharded as the weights',
  ),
  'bf16_accum_in_fp32': (
    False,
    'gradients of float32 weights are summed in float32',
  ),
  'pipeline_broadcast_inputs': (
    False,
    'XLA overlaps transfers between stages where it can',
  ),
  'enable_async_circular_transfer': (
    True,
    'XLA overlaps transfers between stages where it can',
  ),
  'decode_loop_mesh_axes_transpose': (None, 'decoding uses the same mesh'),
  'emb_lookup_style': ('matmul', 'decoding uses that of the softmax'),
  'lazy_prefix_broadcast': (False, 'each sample has its own cache'),
  'num_cache_slots': (0, 'a server of texts reads it, decode does not'),
  'precompute_kv_cache_prefix_ids': (None, 'prefixes are computed each time'),
  'use_extra_input_kwargs': (False, 'networks have no extra inputs'),
  'min_prefix_len': (
    5,
    'without prefix_lengths in a batch, all of its tokens are the prefix; in'
    ' Pax a random number of them, at least this',
  ),
}

# What a stack leaves to its parent or to the template of its layers, None, has
# the value of that template, which is Pax's.
_LEFT_TO_TEMPLATES = {
  'gating_func': 'top2',
  'num_experts': 0,
  'num_groups': 1,
  'unadjusted_expert_capacity_factor': 2.0,
  'use_cross_attention': False,
  'mask_self_attention': False,
}

_STACK = r'.*stacked_transformer_tpl(\.pipeline_stage)?(\.block)?'
_LAYER = rf'{_STACK}\.transformer_layer_params_tpl'
_OPS = r'.*\.(\w*einsum_tpl|einsum_gated_tpl|array_lookup_tpl)'
_NO_OPS = 'products and lookups are functions, not layers'

_TABLE: tuple[Difference, ...] = (
  *(
    Difference(rf'.*\.{name}', pax, ABSENT, why)
    for name, (pax, why) in _ABSENT_FIELDS.items()
  ),
  *(
    Difference(rf'{_STACK}\.{name}', pax, None, 'left to the template')
    for name, pax in _LEFT_TO_TEMPLATES.items()
  ),
  Difference(rf'{_OPS}\.cls', 'EinsumOp', ABSENT, _NO_OPS),
  Difference(rf'{_OPS}\.cls', 'EinsumGatedOp', ABSENT, _NO_OPS),
  Difference(rf'{_OPS}\.cls', 'ArrayLookup', ABSENT, _NO_OPS),
  Difference(rf'{_OPS}\.(?!cls).*', _ANY, ABSENT, _NO_OPS),
  Difference(
    r'.*\.params_init\.scale',
    1.000001,
    1.0,
    'in Pax this number marks an initializer that is not set; it makes initial'
    ' weights larger by a millionth',
  ),
  Difference(
    r'.*\.bias_init', 0.0, None, 'left to the template of the bias, 0.0'
  ),
  Difference(rf'{_LAYER}\.hidden_dims', 0, None, 'not set; the stack sets it'),
  Difference(
    rf'{_LAYER}\.tr_atten_tpl\.num_heads',
    1,
    _REQUIRED,
    'not set; the stack sets it',
  ),
  *(
    Difference(rf'.*\.conv_params\.{name}', pax, ours, 'not set')
    for name, pax, ours in (
      ('dilations', [1, 1], None),
      ('filter_shape', [0, 0, 0, 0], _REQUIRED),
      ('filter_stride', [0, 0], None),
    )
  ),
  Difference(
    r'.*\.position_emb_tpl\.(max|min)_timescale',
    _ANY,
    ABSENT,
    'learned positions do not use them',
  ),
  Difference(
    r'model\.model_type', 'causal', None, 'left to the network, which is causal'
  ),
  Difference(
    r'train\.apply_mutable_list',
    [*_MUTABLE, 'batch_stats', 'params_axes'],
    [*_MUTABLE],
    'variables of flax modules that are not trained are in `non_trainable`',
  ),
  Difference(r'train\.learner\.name', '', 'learner', 'used in messages only'),
  Difference(r'.*\.name', '', ABSENT, 'optimizers and schedules have no names'),
)


def is_known(path: str, pax: Any, ours: Any) -> bool:
  """Returns whether a difference is in the table.

  Args:
    path: path of the field.
    pax: its value in Pax; `ABSENT` if Pax does not have it.
    ours: its value here; `ABSENT` if it is not here.
  """
  return any(
    _matches(row.pax, pax) and _matches(row.ours, ours) for row in _rows(path)
  )


@functools.cache
def _rows(path: str) -> list[Difference]:
  return [row for row in _TABLE if re.fullmatch(row.path, path)]


def _matches(wanted: Any, value: Any) -> bool:
  return (
    wanted is _ANY
    or wanted is value
    or (
      type(wanted) is not _Name
      and type(wanted) is type(value)
      and wanted == value
    )
  )
