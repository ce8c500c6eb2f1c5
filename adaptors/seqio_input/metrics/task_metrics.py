"""The metrics of a SeqIO task, over all examples of an evaluation.

Decoding computes the metrics of predictions, evaluation those of scores. A
metric function gets the same arguments as from `seqio.Evaluator`: the targets
as strings, postprocessed, in the order of the data, and the predictions,
postprocessed too, or the scores as an array.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from absl import logging

from adaptors import lingvo_runtime
from adaptors.seqio_input.metrics import matching, metric_objects, metric_values
from adaptors.seqio_input.reading import host_rows
from pax_compat import errors


class EvalInput(Protocol):
  """The interface of `SeqIOInput` that metrics use.

  Attributes:
    name: name of the dataset.
    mixture_or_task_inst: the SeqIO task or mixture.
    feature_converter: makes batches of its examples.
    reset_for_eval: whether each evaluation restarts at the first example.
    eval_loop_num_batches: number of batches of an evaluation; None for all.
    batch_size: examples in a batch of one process.
    num_infeed_hosts: number of processes.
  """

  name: str
  mixture_or_task_inst: Any
  feature_converter: Any
  reset_for_eval: bool
  eval_loop_num_batches: int | None
  batch_size: int
  num_infeed_hosts: int

  def targets(self, first: int = 0) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the indices and examples of the task's dataset."""


@dataclasses.dataclass(frozen=True)
class _Metric:
  """One metric of a task.

  Attributes:
    name: its name in messages.
    compute: returns its values, by name.
  """

  name: str
  compute: Callable[[matching.Matched], Mapping[str, Any]]


def has_metrics(data: EvalInput, kind: str) -> bool:
  """Returns whether an input's task has metrics that can be computed.

  A mixture has none, nor has a task with packed examples, which have no
  per-example outputs; both are logged.

  Args:
    data: the input.
    kind: 'decode' or 'eval'.

  Raises:
    UserError: a metric function has arguments that SeqIO does not support.
  """
  task = data.mixture_or_task_inst
  if not isinstance(task, lingvo_runtime.seqio().Task):
    _warn_once(
      f'the SeqIO mixture {task.name!r} has no metrics; those of its tasks are'
      ' computed if each task is a separate dataset: see'
      ' adaptors.seqio_input.eval_configs.get_eval_hparams_for_seqio'
    )
    return False
  if not names_of(task, kind):
    return False
  if getattr(data.feature_converter, 'pack', False):
    _warn_once(
      f'the metrics of the SeqIO task {task.name!r} are not computed, as its'
      ' examples are packed; expected a feature converter with pack=False'
    )
    return False
  return True


def names_of(task: Any, kind: str) -> list[str]:
  """Returns the names of a task's metrics, as in messages.

  Args:
    task: the SeqIO task.
    kind: 'decode' or 'eval'.

  Raises:
    UserError: a metric function has arguments that SeqIO does not support.
  """
  return [metric.name for metric in _metrics_of(task, kind)]


@functools.cache
def _warn_once(text: str):
  logging.warning('%s', text)


def compute(
  data: EvalInput,
  kind: str,
  examples: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> dict[str, Any]:
  """Computes the metrics of an input's task.

  A metric that fails is logged with its traceback, and counted; the others are
  still computed.

  Args:
    data: the input, whose `has_metrics` is true.
    kind: 'decode' or 'eval'.
    examples: for each example of all hosts, in any order, its host fields, with
      its index in the data; and the outputs of the model by name:
      `decoded_substr` is the predicted text, `scores` the score.

  Returns:
    The values of the metrics by their names, for a `MetricWriter`;
    `num_failed_metrics`; and `<name>/failed`, 1, for each metric that failed.
    Empty without examples.

  Raises:
    UserError: an example has no output or more than one, an output belongs to
      no example, or does not have what the metrics need.
  """
  whole = matched(data, examples)
  if not whole.examples:
    logging.info(
      '%r has no examples: its SeqIO metrics are not computed', data.name
    )
    return {}
  found, failed = {}, {}
  for metric in _metrics_of(data.mixture_or_task_inst, kind):
    try:
      computed = metric_values.translate(metric.name, metric.compute(whole))
      if twice := sorted(computed.keys() & found.keys()):
        raise ValueError(f'another metric returned {", ".join(twice)} too')
      found |= computed
    except errors.UserError:
      raise
    except Exception:
      logging.exception(
        'metric failed: %s, of the dataset %r', metric.name, data.name
      )
      failed[f'{metric.name}/failed'] = 1.0
  return {**found, **failed, 'num_failed_metrics': float(len(failed))}


def values(
  data: EvalInput, kind: str, whole: matching.Matched
) -> list[Mapping[str, Any]]:
  """Returns what each metric of an input's task computes; errors are raised.

  Args:
    data: as for `compute`.
    kind: as for `compute`.
    whole: of `matched`.
  """
  return [
    metric.compute(whole)
    for metric in _metrics_of(data.mixture_or_task_inst, kind)
  ]


def matched(
  data: EvalInput,
  examples: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> matching.Matched:
  """Returns the examples of an evaluation with their outputs, in order.

  Args:
    data: the input.
    examples: as for `compute`.

  Raises:
    UserError: an example has no output or more than one, or an output belongs
      to no example.
  """
  outputs = [(int(host[host_rows.INDEX]), out) for host, out in examples]
  return matching.match(
    data.mixture_or_task_inst,
    outputs,
    _targets(data, outputs),
    name=data.name,
  )


def _targets(
  data: EvalInput, outputs: list[tuple[int, Any]]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """Returns the expected examples of an evaluation."""
  first, count = 0, data.eval_loop_num_batches
  if not data.reset_for_eval:
    first = min((index for index, _ in outputs), default=0)
  if count is not None:
    count *= data.batch_size * data.num_infeed_hosts
  return itertools.islice(data.targets(first), count)


def _metrics_of(task: Any, kind: str) -> list[_Metric]:
  """Returns the metrics of a task for a kind of evaluation."""
  try:
    functions = _function_metrics(task, kind)
  except ValueError as e:
    raise errors.UserError(f'SeqIO task {task.name!r}: {e}') from e
  # SeqIO appends an object for each function to the task's own objects.
  own = task.metric_objs[: len(task.metric_objs) - len(task.metric_fns)]
  objects = [
    (
      metric_objects.name_of(metric),
      functools.partial(
        metric_objects.compute, metric, features=task.output_features
      ),
    )
    for metric in own
    if metric_objects.kind_of(metric) in (kind, None)
  ]
  return [_Metric(*both) for both in _numbered([*functions, *objects])]


def _function_metrics(task: Any, kind: str) -> list[tuple[str, Callable]]:
  if kind == 'eval':
    pairs = [(_of_scores, task.score_metric_fns)]
  else:
    pairs = [
      (_of_predictions, task.predict_metric_fns),
      (_of_predictions_with_aux, task.predict_with_aux_metric_fns),
    ]
  return [
    (
      metric_objects.function_name(function),
      functools.partial(compute_it, function),
    )
    for compute_it, functions in pairs
    for function in functions
  ]


def _numbered(named: list[tuple[str, Callable]]):
  """Yields the pairs, with a number after repeated names."""
  seen = collections.Counter()
  for name, value in named:
    seen[name] += 1
    yield name if seen[name] == 1 else f'{name}_{seen[name]}', value


def _of_scores(function: Callable, found: matching.Matched):
  return function(targets=list(found.targets), scores=found.scores.copy())


def _of_predictions(function: Callable, found: matching.Matched):
  return function(
    targets=list(found.targets), predictions=list(found.predictions)
  )


def _of_predictions_with_aux(function: Callable, found: matching.Matched):
  return function(
    targets=list(found.targets),
    predictions=list(found.predictions),
    aux_values=found.others(matching.PREDICTION),
  )
