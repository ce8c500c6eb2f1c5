"""Which kind of a generator Lingvo Params are of, and what is special to it.

Legend: B batch, T time.
"""

import functools
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
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
  """Returns whether a generator draws from few examples in a random order."""
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  return issubclass(params.cls, generators.BaseTinyDatasetInput)


def check_unpacked(name: str, params: Any, *, do_eval: bool):
  """Checks that a generator makes an example of each record.

  Args:
    name: how messages call the input.
    params: Lingvo Params.
    do_eval: whether the generator finds `do_eval` set.

  Raises:
    UserError: it packs several in a row, and drops what does not fit.
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


def with_fillers_told(params: Any, batch: NestedMap) -> NestedMap:
  """Returns a batch that says which rows a generator only filled it up with.

  Args:
    params: Lingvo Params of the generator.
    batch: its leaves [B, ...].

  Returns:
    The batch with `eval_sample_weights` [B] of 0 at such rows; unchanged for a
    generator that fills up none, or is not known to.
  """
  if is_permuted(params) and 'weight' in batch:
    return NestedMap({**batch, 'eval_sample_weights': batch.weight})
  if not _is_bert(params):
    return batch
  real = (batch.segment_ids > 0).any(axis=1)
  # It means to set these, but does not find them.
  paddings = np.where(real[:, None], batch.paddings, 1)
  return NestedMap(
    {
      **batch,
      'paddings': paddings.astype(batch.paddings.dtype),
      'eval_sample_weights': real.astype(np.float32),
    }
  )


def _is_bert(params) -> bool:
  return _descends_from_bert(params.cls)


@functools.cache
def _descends_from_bert(cls: type) -> bool:
  # Asked with each batch.
  return any(f'{c.__module__}.{c.__name__}' == _BERT for c in cls.mro())
