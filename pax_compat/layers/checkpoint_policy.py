"""Rematerialisation policies: which values are saved for the backward pass.

Layers name intermediate values by `jax.ad_checkpoint.checkpoint_name`; a policy
selects the ones to save. The others are recomputed.
"""

import enum
from collections.abc import Callable

import jax

from pax_compat import errors


@enum.unique
class AutodiffCheckpointType(enum.StrEnum):
  """Names of the policies; a field also accepts the name as a string.

  Attention weights of a long sequence are always recomputed; see
  `attention_ops`.

  Attributes:
    SAVE_NOTHING: recomputes everything from the layer's input.
    SAVE_EVERYTHING: recomputes nothing.
    SAVE_QKV_OUT_PROJ: saves the projections of queries, keys and values
      (combined or separate) and the attention's output projection.
    SAVE_QKV_OUT_PROJ_SEPARATE: the same.
    SAVE_OUT_PROJ: the attention's output projection.
    SAVE_CONTEXT: the input of that projection.
    SAVE_CONTEXT_AND_OUT_PROJ: both.
    SAVE_DOT_ONLY: every matrix product.
    SAVE_DOT_WITH_NO_BATCH_DIM: every product of an activation and a weight.
    SAVE_DOT_FOR_MLPERF_200B: all projections of attention, and the context.
    SAVE_DOT_EXCEPT_LOGITS_FFN1: these, and the output of the feed-forward.
    SAVE_DOT_EXCEPT_LOGITS: these, and the feed-forward's hidden layer.
    SAVE_TRANSFORMER_LAYER_OUTPUT: the output of each Transformer layer.
    SAVE_ITERATION_INPUT: values that a layer names 'iteration_input'.
    SAVE_UNET_CONV: values that a layer names 'conv_out'.
    SAVE_UNET_ALL_CONV: these, and those named 'conv_0' and 'conv_1'.
    SAVE_QUANTIZED: the combined projection, the context and the output
      projection of attention, and values named 'qlhs', 'qrhs', 'lhs_scale' and
      'rhs_scale'.
  """

  SAVE_NOTHING = 'save_nothing'
  SAVE_EVERYTHING = 'save_everything'
  SAVE_QKV_OUT_PROJ = 'save_qkv_out_proj'
  SAVE_QKV_OUT_PROJ_SEPARATE = 'save_qkv_out_proj_separate'
  SAVE_OUT_PROJ = 'save_out_proj'
  SAVE_CONTEXT = 'save_context'
  SAVE_CONTEXT_AND_OUT_PROJ = 'save_encoded_and_out_proj'
  SAVE_DOT_ONLY = 'save_dot_only'
  SAVE_DOT_WITH_NO_BATCH_DIM = 'save_dot_with_no_batch_dims'
  SAVE_DOT_FOR_MLPERF_200B = 'save_dot_for_mlperf_200b'
  SAVE_DOT_EXCEPT_LOGITS_FFN1 = 'save_dot_except_logits_ffn1'
  SAVE_DOT_EXCEPT_LOGITS = 'save_dot_except_logits'
  SAVE_TRANSFORMER_LAYER_OUTPUT = 'save_transformer_layer_output'
  SAVE_ITERATION_INPUT = 'save_iteration_input'
  SAVE_UNET_CONV = 'save_unet_conv'
  SAVE_UNET_ALL_CONV = 'save_unet_all_conv'
  SAVE_QUANTIZED = 'save_quantized'


_QKV = ('combined_qkv_proj', 'query_proj', 'key_proj', 'value_proj')
_ATTENTION = (*_QKV, 'context', 'out_proj')

# The values that a policy saves, for the policies that select by name.
_SAVED_NAMES = {
  AutodiffCheckpointType.SAVE_QKV_OUT_PROJ: (*_QKV, 'out_proj'),
  AutodiffCheckpointType.SAVE_QKV_OUT_PROJ_SEPARATE: (*_QKV, 'out_proj'),
  AutodiffCheckpointType.SAVE_OUT_PROJ: ('out_proj',),
  AutodiffCheckpointType.SAVE_CONTEXT: ('context',),
  AutodiffCheckpointType.SAVE_CONTEXT_AND_OUT_PROJ: ('context', 'out_proj'),
  AutodiffCheckpointType.SAVE_DOT_FOR_MLPERF_200B: _ATTENTION,
  AutodiffCheckpointType.SAVE_DOT_EXCEPT_LOGITS_FFN1: (*_ATTENTION, 'ffn2'),
  AutodiffCheckpointType.SAVE_DOT_EXCEPT_LOGITS: (
    *_ATTENTION,
    'ffn1',
    'ffn1_gate',
    'ffn2',
  ),
  AutodiffCheckpointType.SAVE_TRANSFORMER_LAYER_OUTPUT: (
    'transformer_layer_out',
  ),
  AutodiffCheckpointType.SAVE_ITERATION_INPUT: ('iteration_input',),
  AutodiffCheckpointType.SAVE_UNET_CONV: ('conv_out',),
  AutodiffCheckpointType.SAVE_UNET_ALL_CONV: ('conv_0', 'conv_1', 'conv_out'),
  AutodiffCheckpointType.SAVE_QUANTIZED: (
    'context',
    'out_proj',
    'combined_qkv_proj',
    'qlhs',
    'qrhs',
    'lhs_scale',
    'rhs_scale',
  ),
}

_OTHERS = {
  AutodiffCheckpointType.SAVE_NOTHING: (
    jax.checkpoint_policies.nothing_saveable
  ),
  AutodiffCheckpointType.SAVE_EVERYTHING: (
    jax.checkpoint_policies.everything_saveable
  ),
  AutodiffCheckpointType.SAVE_DOT_ONLY: jax.checkpoint_policies.dots_saveable,
  AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM: (
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable
  ),
}


def custom_policy(checkpoint_policy: str, *, where: str) -> Callable:
  """Returns a policy for `jax.checkpoint`.

  Args:
    checkpoint_policy: an `AutodiffCheckpointType`, or its name.
    where: prefix of error messages.

  Raises:
    UserError: the policy is unknown.
  """
  known = [policy.value for policy in AutodiffCheckpointType]
  if checkpoint_policy not in known:
    raise errors.UserError(
      f'{where}: unknown checkpoint policy {checkpoint_policy!r}'
      + errors.did_you_mean(str(checkpoint_policy), known)
    )
  policy = AutodiffCheckpointType(checkpoint_policy)
  if policy in _SAVED_NAMES:
    return jax.checkpoint_policies.save_only_these_names(*_SAVED_NAMES[policy])
  return _OTHERS[policy]
