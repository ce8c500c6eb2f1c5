"""Configs of SeqIO inputs with the metrics of their tasks."""

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.seqio_input import converters, input_adaptor
from adaptors.seqio_input.metrics import task_metrics
from adaptors.seqio_input.reading import task_reading
from pax_compat import config as config_lib
from pax_compat import errors


class MetricType(enum.Enum):
  """The model outputs that metrics of a task are computed from."""

  PREDICT = 1  # Decoded outputs.
  SCORE = 2  # Per-example outputs of an evaluation.


# The kind of example metrics; see `BaseInput.has_example_metrics`.
_KINDS = {MetricType.PREDICT: 'decode', MetricType.SCORE: 'eval'}


def get_eval_hparams_for_seqio(
  task_or_mixture_name: Any,
  batch_size: int,
  feature_lengths: Mapping[str, int],
  seed: int,
  metric_type: MetricType,
  split_name: str | Callable[[str], str] = 'validation',
  feature_converter: Any = None,
  num_infeed_hosts: int = 0,
  use_cached: bool = False,
  shuffle: bool | None = None,
  require_metric_fns: bool = True,
  eval_metrics_retain_task_features: bool = False,
  check_split_exists: bool = False,
  eval_loop_num_batches: int | None = None,
  repeat: bool | None = None,
  reset_for_eval: bool = True,
  pass_entire_feature_lengths: bool = False,
) -> list[config_lib.Config]:
  """Returns a config of a `SeqIOInput` for each task of a mixture.

  They are for `decode_datasets()` if the type is PREDICT, and for `datasets()`
  if it is SCORE.

  Args:
    task_or_mixture_name: a SeqIO task or mixture, or its name.
    batch_size: examples in a batch of one process.
    feature_lengths: lengths of `inputs` and `targets`, in tokens, to which
      examples are truncated; 'targets' is required. For PREDICT, a batch has
      one token of the targets, and metrics have all of them.
    seed: seed of the task's preprocessing, such as the examples in a few-shot
      prompt.
    metric_type: the type of metrics.
    split_name: the split, or a function from a task's name to its split.
    feature_converter: a feature converter or its config; None for
      `LanguageModelFeatures` without packing.
    num_infeed_hosts: number of processes that feed; 0: set by the trainer.
    use_cached: whether the tasks' caches are read.
    shuffle: as of `SeqIOInput`.
    require_metric_fns: whether tasks without a metric of the type are left out,
      with a log line.
    eval_metrics_retain_task_features: whether features other than `inputs` and
      `targets` are also truncated to their `feature_lengths`.
    check_split_exists: whether tasks without the split are left out, with a log
      line. Some tasks list files to find their splits.
    eval_loop_num_batches: number of batches of an evaluation; None for all.
    repeat: as of `SeqIOInput`.
    reset_for_eval: as of `BaseInput`.
    pass_entire_feature_lengths: as `eval_metrics_retain_task_features`.

  Raises:
    UserError: the task or mixture does not exist, the length of targets is
      missing, or the type is not a `MetricType`.
  """
  # Scores are of the targets only. Decoding uses no weights, but a task may
  # have metrics of both types.
  language_model = converters.LanguageModelFeatures.config(
    weights_on_targets_only=True
  )
  common = input_adaptor.SeqIOInput.config(
    feature_converter=feature_converter or language_model,
    reset_for_eval=reset_for_eval,
    shuffle=shuffle,
    batch_size=batch_size,
    num_infeed_hosts=num_infeed_hosts or 1,
    input_random_seed=seed,
    eval_loop_num_batches=eval_loop_num_batches,
    repeat=repeat,
    use_cached=use_cached,
    **_lengths(
      feature_lengths,
      metric_type,
      eval_metrics_retain_task_features or pass_entire_feature_lengths,
    ),
  )
  chosen = _chosen(
    task_or_mixture_name,
    split_name,
    checks_split=check_split_exists,
    wanted=metric_type if require_metric_fns else None,
  )
  return [
    common.clone().set(name=task.name, split_name=split, **_provider(task))
    for task, split in chosen
  ]


def _chosen(
  task_or_mixture: Any,
  split_name: str | Callable[[str], str],
  *,
  checks_split: bool,
  wanted: MetricType | None,
) -> Iterator[tuple[Any, str]]:
  """Yields the tasks with the split and metrics wanted, with their splits."""
  if isinstance(task_or_mixture, str):
    task_or_mixture = task_reading.find(task_or_mixture)
  for task in task_reading.tasks_of(task_or_mixture):
    split = split_name(task.name) if callable(split_name) else split_name
    missing = None
    if checks_split and split not in task.splits:
      missing = f'split {split!r}'
    elif wanted and not task_metrics.names_of(task, _KINDS[wanted]):
      missing = f'{wanted.name} metric (require_metric_fns=False would keep it)'
    if missing:
      logging.warning('SeqIO task %r is left out: no %s', task.name, missing)
    else:
      yield task, split


def _provider(task: Any) -> dict[str, Any]:
  """Returns the field with the task; its name if registered, for printing."""
  registry = lingvo_runtime.seqio().TaskRegistry
  if task.name in registry.names() and registry.get(task.name) is task:
    return {'mixture_name': task.name}
  return {'mixture_or_task': task}


def _lengths(
  lengths: Mapping[str, int], metric_type: MetricType, keeps_all: bool
) -> dict[str, Any]:
  """Returns the lengths of features, for the model and for metrics.

  Raises:
    UserError: the length of targets is missing, or the type is invalid.
  """
  if not isinstance(metric_type, MetricType):
    raise errors.UserError(
      f'metric_type is {metric_type!r}; expected MetricType.PREDICT or'
      ' MetricType.SCORE'
    )
  if 'targets' not in lengths:
    raise errors.UserError(
      f'feature_lengths has {", ".join(sorted(lengths)) or "nothing"}; expected'
      " the length of 'targets' among them"
    )
  known = lengths if keeps_all else ('inputs', 'targets')
  kept = {name: length for name, length in lengths.items() if name in known}
  if metric_type is MetricType.SCORE:
    return {'task_feature_lengths': kept}
  # The model does not see the targets; a feature has at least one token.
  return {
    'task_feature_lengths': kept | {'targets': 1},
    'eval_metrics_targets_length': lengths['targets'],
  }
