"""Fields of Pax's classes that do not exist here, with the reasons.

Setting one to Pax's default is valid and changes nothing, so that configs that
were copied from Pax load. Another value is an error with the reason, unless
results do not depend on the field.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import logging


class AbsentField(NamedTuple):
  """A field of Pax.

  Attributes:
    default: its default in Pax.
    why: why it is not here, and what to use instead.
    has_no_effect: whether other values of the type of the default are valid,
      too, since results are the same.
  """

  default: Any
  why: str
  has_no_effect: bool = False

  def accepts(self, name: str, value: Any) -> bool:
    """Whether a value is valid, and changes nothing; logs another than Pax's.

    Args:
      name: of the field.
      value: of the field.
    """
    if type(value) is not type(self.default):
      return False
    if value == self.default:
      return True
    if self.has_no_effect:
      logging.info('%s=%r has no effect: %s', name, value, self.why)
    return self.has_no_effect


_SCHEDULE = 'XLA schedules the transfers of microbatches; expected a bool'
_STATE = 'the state of an optimizer is split like its weights'
_ROUNDING = 'set fprop_dtype to float32 where sums in bfloat16 are too coarse'
_PRODUCT = (
  'attention has fused products; einsum_tpl of its projections replaces theirs'
)
_NO_NANS = "it is for Pax's tests"
_LAST_STAGE = 'a pipeline returns the outputs of its last stage'
_AUXILIARY = 'total_loss has the auxiliary losses; avg_xent is without them'
_LOSS = 'use BiTemperedLoss in compute_loss of a model of your own'
_MASK = 'add_summary of a layer of your own has the mask'
_ORDER = 'the mesh has the order of the devices'
_SHARDED = 'set activation_split_dims_mapping'
_REMOTE = 'each host reads its own part of the data'
_STEPS = 'the cache is updated in each step, or never (enable_cache_updates)'

# By class; fields of a class are those of its subclasses, too.
_FIELDS: Mapping[str, Mapping[str, AbsentField]] = {
  'BaseInput': {
    'experimental_remote_input': AbsentField(False, _REMOTE),
    'tf_data_service_address': AbsentField(None, _REMOTE),
    'custom_device_order': AbsentField(None, _ORDER),
  },
  'Chain': {'preserve_adopted_names': AbsentField(True, 'it is always so')},
  'CircularLayerwiseShardablePipelined': {
    'enable_async_circular_transfer': AbsentField(
      True, _SCHEDULE, has_no_effect=True
    ),
  },
  'DotProductAttention': {
    'attention_mask_summary': AbsentField(False, _MASK),
    'decoding_maybe_shard_projections': AbsentField(False, _SHARDED),
    'qk_einsum_tpl': AbsentField(None, _PRODUCT),
    'pv_einsum_tpl': AbsentField(None, _PRODUCT),
  },
  'FullSoftmax': {'bi_tempered_loss_tpl': AbsentField(None, _LOSS)},
  'LayerwiseShardablePipelined': {
    'polluting_bubbles_with_nan': AbsentField(False, _NO_NANS),
    'pipeline_broadcast_inputs': AbsentField(
      False, _SCHEDULE, has_no_effect=True
    ),
    'optimizer_dims_mapping': AbsentField(None, _STATE),
    'collect_intermediate_outputs': AbsentField(False, _LAST_STAGE),
    'bf16_accum_in_fp32': AbsentField(False, _ROUNDING),
    'enable_bubble_grad_skipping': AbsentField(
      True, _SCHEDULE, has_no_effect=True
    ),
  },
  'MultiQueryDotProductAttention': {
    'qk_einsum_tpl': AbsentField(None, _PRODUCT),
    'pv_einsum_tpl': AbsentField(None, _PRODUCT),
  },
  'PipelinedTransformer': {
    'pipeline_broadcast_inputs': AbsentField(
      False, _SCHEDULE, has_no_effect=True
    ),
    'enable_async_circular_transfer': AbsentField(
      True, _SCHEDULE, has_no_effect=True
    ),
    'bf16_accum_in_fp32': AbsentField(False, _ROUNDING),
  },
  'PositionalEmbedding2D': {
    'pos_transform': AbsentField('hwd->(hw)d', 'it is always so'),
  },
  'Repeat': {
    'optimizer_dims_mapping': AbsentField(None, _STATE),
  },
  'StackedTransformerRepeated': {
    'repeat_optimizer_dims_mapping': AbsentField(None, _STATE),
  },
  'TransformerFeedForwardMoe': {
    'expert_weight_shards': AbsentField(1, 'it is always 1, as in Pax'),
  },
  'TransformerLm': {'skip_aux_loss': AbsentField(False, _AUXILIARY)},
  'VQNgrammer': {
    'full_update_cache_frequency': AbsentField(0, _STEPS),
    'full_update_cache_steps': AbsentField((), _STEPS),
  },
}


def find(cls: Any, name: str) -> AbsentField | None:
  """Returns the field of Pax that a class (or function) lacks, or None."""
  for base in getattr(cls, '__mro__', ()):
    if name in _FIELDS.get(base.__name__, ()):
      return _FIELDS[base.__name__][name]
  return None


def names() -> list[tuple[str, str]]:
  """Returns (class, field) of all rows."""
  return [(cls, field) for cls, fields in _FIELDS.items() for field in fields]
