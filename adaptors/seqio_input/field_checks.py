"""Checks of the fields of a `SeqIOInput`, before any data is read."""

from collections.abc import Mapping
from typing import Any

from absl import logging

from adaptors.seqio_input import converters
from adaptors.seqio_input.metrics import task_metrics
from pax_compat import base_input, errors

# Fields for saved iterators of tf.data, with their only supported values.
_OF_SAVED_ITERATORS = {
  'enable_symbolic_checkpointing': True,
  'experimental_enable_index_shuffle': True,
  'deterministic_input_start_index': None,
}


def require(data: base_input.BaseInput, condition: bool, message: str):
  """Raises a UserError that names the input, unless the condition is true."""
  if not condition:
    raise errors.UserError(f'{label(data)}: {message}')


def label(data: base_input.BaseInput) -> str:
  """Returns the name of an input in errors and log lines."""
  return f'{type(data).__name__} {data.name!r}'


def check_fields(data: Any):
  """Raises a UserError if fields of a `SeqIOInput` contradict each other."""
  require(
    data,
    bool(data.mixture_name) != bool(data.mixture_or_task),
    f'mixture_name is {data.mixture_name!r} and mixture_or_task'
    f' {getattr(data.mixture_or_task, "name", data.mixture_or_task)!r};'
    ' expected exactly one of them',
  )
  for field in ('split_name', 'task_feature_lengths', 'feature_converter'):
    require(data, getattr(data, field) is not None, f'{field} is required')
  for field, supported in _OF_SAVED_ITERATORS.items():
    value = getattr(data, field)
    require(
      data,
      value == supported,
      f'{field} is {value!r}; expected {supported}: the position is saved as a'
      ' number of examples, and not as an iterator of tf.data'
      ' (num_batches_to_skip starts later)',
    )
  _check_hosts(data)
  if data.is_training:
    _check_training(data)
  else:
    _check_eval(data)


def _check_hosts(data: Any):
  data.get_batch_size(data)  # Required.
  hosts = data.num_infeed_hosts
  require(
    data,
    data.repeats or data.pads_batches or data.drop_remainder or hosts == 1,
    'drop_remainder is False, and the last batch is not padded; expected'
    f' drop_remainder=True, as {hosts} hosts need batches of one shape',
  )


def _check_training(data: Any):
  if not data.split_name.startswith('train'):
    logging.warning(
      '%s: is_training is True, but split_name is %r',
      label(data),
      data.split_name,
    )
  require(
    data,
    not data.use_targets_from_input_ds,
    'use_targets_from_input_ds is True; expected it in evaluation only',
  )


def _check_eval(data: Any):
  if data.shuffle:
    logging.warning(
      '%s: shuffle has no effect, as eval data always has one order',
      label(data),
    )
  require(
    data,
    not (data.repeat and data.eval_loop_num_batches is None),
    'repeat is True with eval_loop_num_batches=None: the evaluation would never'
    ' end; expected repeat=False, or a number of batches',
  )
  require(
    data,
    not data.num_batches_to_skip,
    f'num_batches_to_skip is {data.num_batches_to_skip}; expected it in'
    ' training only',
  )
  require(
    data,
    not data.deterministic_input,
    'deterministic_input is True; expected it in training only, as eval data'
    ' always has one order',
  )
  if data.use_targets_from_input_ds:
    require(
      data,
      data.num_infeed_hosts == 1 and not data.repeats,
      'use_targets_from_input_ds is True; expected one host, not'
      f' {data.num_infeed_hosts}, and data that ends',
    )


def check_lengths(data: Any):
  """Raises a UserError if the converter lacks the length of a feature."""
  lengths, converter = data.task_feature_lengths, data.feature_converter
  require(
    data,
    isinstance(lengths, Mapping),
    f'task_feature_lengths is {lengths!r}; expected a length by the name of'
    ' each feature',
  )
  for name in getattr(converter, 'NEEDS', ()):
    require(
      data,
      name in lengths,
      f'task_feature_lengths has no {name!r}, which {type(converter).__name__}'
      ' needs' + errors.did_you_mean(name, lengths),
    )


def check_scores(data: Any):
  """Raises a UserError if scores would include more than the targets."""
  converter, task = data.feature_converter, data.mixture_or_task_inst
  scored = not data.is_training and task_metrics.has_metrics(data, 'eval')
  if scored and isinstance(converter, converters.LanguageModelFeatures):
    require(
      data,
      converter.weights_on_targets_only is True,
      f'task {task.name} has metrics of scores, and'
      f' {type(converter).__name__}.weights_on_targets_only is'
      f' {converter.weights_on_targets_only}; expected True',
    )
