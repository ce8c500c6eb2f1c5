"""Metric objects of a SeqIO task, and the names of metrics."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from clu import metrics as clu_metrics

from adaptors import lingvo_runtime
from adaptors.seqio_input.metrics import matching

# Name of the model output with predicted tokens.
_TOKENS = 'decoded_ids'


def kind_of(metric: Any) -> str | None:
  """Returns the kind of evaluation with the outputs that an object needs.

  Args:
    metric: an object, or its class.

  Returns:
    'decode' or 'eval'; None if the object has no known output type.
  """
  kinds = lingvo_runtime.seqio().metrics.ModelOutputType
  return {
    kinds.PREDICTION: 'decode',
    kinds.PREDICTION_WITH_AUX: 'decode',
    kinds.SCORE: 'eval',
    kinds.SCORE_WITH_INTERMEDIATES: 'eval',
  }.get(getattr(metric, 'model_output_type', None))


def function_name(function: Any) -> str:
  """Returns the name of a metric function."""
  while isinstance(function, functools.partial):
    function = function.func
  return getattr(function, '__name__', type(function).__name__)


def name_of(metric: Any) -> str:
  """Returns the name of the function that an object calls, or of its class."""
  cls = metric if inspect.isclass(metric) else type(metric)
  function = getattr(metric, '_metric_fn', None)
  compute_it = getattr(cls, 'actual_compute', None)
  if function is None and inspect.isfunction(compute_it):
    # SeqIO makes a class for each function, all of the same name.
    function = inspect.getclosurevars(compute_it).nonlocals.get('metric_fn')
  return cls.__name__ if function is None else function_name(function)


def compute(
  metric: Any, matched: matching.Matched, features: Mapping[str, Any]
) -> Mapping[str, Any]:
  """Computes the metric of an object.

  It gets predictions as strings [N]; with auxiliary values, as tokens [N, T],
  the `decoded_ids` of the outputs. Auxiliary values, and intermediates of
  scores, are all other values of the outputs.

  Args:
    metric: the object, or its class.
    matched: the examples with their outputs.
    features: the task's output features.

  Raises:
    TypeError: its output type is not known.
    UserError: the outputs do not have what it needs.
  """
  metrics = lingvo_runtime.seqio().metrics
  kind = getattr(metric, 'model_output_type', None)
  if kind_of(metric) is None:
    raise TypeError(
      f'the metric object has the model_output_type {kind!r}; expected one of'
      f' {", ".join(k.name for k in metrics.ModelOutputType)}'
    )
  if _only_calls_a_function(metric):
    return _call_function(metric, matched)
  made = metric.from_model_output(
    matched.examples, _model_output(kind, matched), features
  )
  if isinstance(made, metrics.CollectingMetric):
    values, _ = made.actual_compute(matched.examples, features)
    return values
  if isinstance(made, clu_metrics.Metric):
    return made.compute()
  raise TypeError(
    f'the metric object made a {type(made).__name__}; expected a'
    ' seqio.metrics.CollectingMetric or another metric of clu'
  )


def _model_output(kind: Any, matched: matching.Matched) -> Any:
  kinds = lingvo_runtime.seqio().metrics.ModelOutputType
  if kind == kinds.PREDICTION:
    return matching.column(matched.prediction_texts)
  if kind == kinds.PREDICTION_WITH_AUX:
    tokens = matched.values(_TOKENS, 'predicted tokens')
    others = matched.others(matching.PREDICTION)
    return matching.column(tokens), others
  if kind == kinds.SCORE:
    return matched.scores
  return matched.scores, matched.others(matching.SCORE)


def _only_calls_a_function(metric: Any) -> bool:
  legacy = lingvo_runtime.seqio().metrics.LegacyMetric
  return (
    isinstance(metric, legacy)
    and type(metric).from_model_output is legacy.from_model_output
  )


def _call_function(metric: Any, matched: matching.Matched) -> Mapping[str, Any]:
  """Computes the metric of a `LegacyMetric` by its function.

  The object itself would keep the targets of the first evaluation for all later
  ones, and takes predictions only as tokens.
  """
  kinds = lingvo_runtime.seqio().metrics.ModelOutputType

  def postprocessed(values: list[Any], is_target: bool) -> list[Any]:
    return matched.postprocessed(
      values, metric.postprocess_fn, is_target=is_target
    )

  given = {'targets': postprocessed(matched.target_texts, True)}
  if metric.model_output_type == kinds.SCORE:
    given['scores'] = matched.scores.copy()
  else:
    given['predictions'] = postprocessed(matched.prediction_texts, False)
  if metric.model_output_type == kinds.PREDICTION_WITH_AUX:
    given['aux_values'] = matched.others(matching.PREDICTION)
  return metric.replace(metric_fn_kwargs=given).compute()
