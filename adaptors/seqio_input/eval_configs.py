"""Configs of SeqIO inputs whose metrics are those of their tasks."""

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
  """Where the metrics of a task come from."""

  PREDICT = 1  # What is decoded.
  SCORE = 2  # What is said of each example while evaluating.


# The kind of the trainer's program that has what the metrics want.
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

  They are for `decode_datasets()` where the type is PREDICT, and for
  `datasets()` where it is SCORE.

  Args:
    task_or_mixture_name: a SeqIO task or mixture, or the name of one.
    batch_size: examples in a batch of one process.
    feature_lengths: the lengths of `inputs` and `targets`, in tokens, to which
      examples are cut; 'targets' is required. Where predictions are wanted, a
      batch has one token of the targets, and the metrics have them whole.
    seed: for what a task draws, such as the examples in a few-shot prompt.
    metric_type: which metrics are wanted.
    split_name: the split, or a function from a task's name to its split.
    feature_converter: a feature converter or its config; None for
      `LanguageModelFeatures` without packing.
    num_infeed_hosts: how many processes feed; with 0 the trainer sets it.
    use_cached: whether the tasks' caches are read.
    shuffle: as of `SeqIOInput`.
    require_metric_fns: whether tasks without a metric of the type are left out;
      a log line tells of each.
    eval_metrics_retain_task_features: whether features beside `inputs` and
      `targets` are cut to the lengths given for them too.
    check_split_exists: whether tasks without the split are left out, with a log
      line. Some tasks look for files to tell.
    eval_loop_num_batches: how many batches an evaluation has; None for all.
    repeat: as of `SeqIOInput`.
    reset_for_eval: as of `BaseInput`.
    pass_entire_feature_lengths: as `eval_metrics_retain_task_features`.

  Raises:
    UserError: there is no such task or mixture, no length of targets, or the
      type is no `MetricType`.
  """
  common = input_adaptor.SeqIOInput.config(
    feature_converter=feature_converter or _language_model(),
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
  """Yields the tasks that have what they are to have, with their splits."""
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
  """Returns the field that says which task: a name can be copied and told."""
  registry = lingvo_runtime.seqio().TaskRegistry
  if task.name in registry.names() and registry.get(task.name) is task:
    return {'mixture_name': task.name}
  return {'mixture_or_task': task}


def _language_model() -> config_lib.Config:
  # Scores are of the targets alone. What is decoded has no weights, but a task
  # may have metrics of both kinds.
  return converters.LanguageModelFeatures.config(weights_on_targets_only=True)


def _lengths(
  lengths: Mapping[str, int], metric_type: MetricType, keeps_all: bool
) -> dict[str, Any]:
  """Returns to which lengths features are cut, for the model and for metrics.

  Raises:
    UserError: there is no length of targets, or no such type.
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
  # What is to be predicted is not shown; a feature has one token at least.
  return {
    'task_feature_lengths': kept | {'targets': 1},
    'eval_metrics_targets_length': lengths['targets'],
  }
