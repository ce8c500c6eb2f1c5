"""Kinds of input generators, by their Lingvo Params, and their special cases.

Legend: B batch, T time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.params import params_trees
from pax_compat import errors
from pax_compat.nested_map import NestedMap

_BERT = 'lingvo.tasks.lm.input_generator.TFRecordBertInput'


def is_tf_data(params) -> bool:
  """Returns whether a generator reads through `tf.data`."""
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  sources = lingvo_runtime.module('lingvo.core.datasource')
  source = getattr(params, 'file_datasource', None)
  return issubclass(
    params.cls,
    (
      generators.TFDataSequenceInputGenerator,
      generators.BaseDataExampleInputGenerator,
    ),
  ) or (source is not None and issubclass(source.cls, sources.TFDatasetSource))


def is_permuted(params) -> bool:
  """Returns whether a generator draws few examples in a random order."""
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  return issubclass(params.cls, generators.BaseTinyDatasetInput)


def check_unpacked(name: str, params: Any, *, do_eval: bool):
  """Checks that a generator makes one example of each record.

  Args:
    name: of the input, in messages.
    params: Lingvo Params.
    do_eval: whether the generator finds `do_eval` set.

  Raises:
    UserError: it packs several into a row, and drops what does not fit.
  """
  if do_eval and _is_bert(params):
    return  # It does not pack then.
  for field in ('packing_factor', 'enable_packing'):
    if getattr(params, field, None):
      raise errors.UserError(
        f'{name}: input.{field} is {getattr(params, field)}, so records that'
        ' do not fit into a row would be dropped; expected it off where each'
        ' is to be evaluated once'
      )


def marks_padding_rows(params: Any) -> Callable[[NestedMap], NestedMap]:
  """Returns a function that marks the padding rows of a generator's batches.

  Args:
    params: Lingvo Params of the generator.

  Returns:
    A function of a batch, leaves [B, ...], that sets `eval_sample_weights` [B]
    to 0 at padding rows. It is the identity for generators that are not known
    to make any.
  """
  if is_permuted(params):
    return _with_given_weight
  return _with_bert_weights if _is_bert(params) else lambda batch: batch


def _with_given_weight(batch: NestedMap) -> NestedMap:
  if 'weight' not in batch:
    return batch
  return NestedMap({**batch, 'eval_sample_weights': batch.weight})


def _with_bert_weights(batch: NestedMap) -> NestedMap:
  real = (batch.segment_ids > 0).any(axis=1)
  # Lingvo's code means to set these, but does not find them.
  paddings = np.where(real[:, None], batch.paddings, 1)
  return NestedMap(
    {
      **batch,
      'paddings': paddings.astype(batch.paddings.dtype),
      'eval_sample_weights': real.astype(np.float32),
    }
  )


def _is_bert(params) -> bool:
  return params_trees.has_base(params.cls, _BERT)
