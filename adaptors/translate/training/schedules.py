"""Translators of Lingvo's learning-rate schedules: Params to a config."""

import math
import re
from collections.abc import Callable

import jax

from adaptors.equivalents import lingvo_schedules
from adaptors.params import params_trees
from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.view import ParamsView
from pax_compat import schedules
from pax_compat.config import Config


def layer_fields(view: ParamsView):
  """Reads fields of layers that do nothing in schedules and optimizers."""
  for name in ('params_init', 'dtype', 'fprop_dtype'):
    view.get(name)


def same_fields(
  dotted_path: str,
  cls: type,
  *names: str,
  read: Callable = layer_fields,
  **renamed: str,
):
  """Registers a translator that copies fields.

  Args:
    dotted_path: of the Lingvo class.
    cls: our class.
    *names: of fields that have the same name in both classes.
    read: reads the fields that all classes of its kind have.
    **renamed: Lingvo's names of our fields.
  """
  fields = dict(zip(names, names, strict=True)) | renamed

  @translates(dotted_path)
  def translate(view: ParamsView) -> Config:
    read(view)
    return cls.config(**{k: view.get(name) for k, name in fields.items()})


# Lingvo's names of evaluations begin with the job, such as `eval_dev`.
_EVAL_JOB = 'eval_'
_SCHEDULE = 'lingvo.core.schedule'
same_fields(f'{_SCHEDULE}.Constant', schedules.Constant, 'value')
same_fields(
  f'{_SCHEDULE}.PiecewiseConstantSchedule',
  schedules.PiecewiseConstant,
  'boundaries',
  'values',
)
same_fields(
  f'{_SCHEDULE}.ContinuousSchedule',
  schedules.ContinuousSchedule,
  'initial_value',
  'start_step',
  'half_life_steps',
  'min',
)
same_fields(
  f'{_SCHEDULE}.PolynomialSchedule',
  schedules.Polynomial,
  'power',
  'start',
  'limit',
  'origin',
)
same_fields(
  f'{_SCHEDULE}.ExponentialSchedule', schedules.Exponential, 'start', 'limit'
)
same_fields(
  f'{_SCHEDULE}.CosineSchedule',
  schedules.Cosine,
  'initial_value',
  'final_value',
  'total_steps',
  'cyclical',
  'half_cycle',
)
same_fields(
  f'{_SCHEDULE}.TransformerSchedule',
  schedules.Transformer,
  'warmup_steps',
  'model_dim',
  'worker_replicas',
  'decay_end',
  'decay_factor',
  'start_step',
  'cyclical_step',
)
same_fields(
  f'{_SCHEDULE}.LinearRampupSqrtDecay',
  schedules.LinearRampupSqrtDecay,
  'peak',
  'warmup_steps',
)
same_fields(
  f'{_SCHEDULE}.StepwiseExponentialSchedule',
  lingvo_schedules.StepwiseExponential,
  'decay',
  'num_steps_per_decay',
)
same_fields(
  f'{_SCHEDULE}.TransformerMLPerfSchedule',
  lingvo_schedules.TransformerMlPerf,
  'warmup_steps',
  'warmup_init_fraction',
  'model_dim',
)
same_fields(
  f'{_SCHEDULE}.SqrtDecayToZero',
  lingvo_schedules.SqrtDecayToZero,
  'warmup_steps',
  'starting_lr',
  'final_steps',
)
same_fields(f'{_SCHEDULE}.InverseSigmoid', lingvo_schedules.InverseSigmoid, 'k')
same_fields(
  f'{_SCHEDULE}.EmaDecaySchedule', lingvo_schedules.EmaDecay, 'ema_decay'
)
same_fields(
  f'{_SCHEDULE}.SqrtDecay',
  schedules.SqrtDecay,
  'multiplier',
  'offset',
  decay_start='warmup_steps',
)


@translates(f'{_SCHEDULE}.LinearRampupDecaySchedule')
def linear_rampup_decay(view: ParamsView) -> Config:
  """Returns a linear rise to 1, directly followed by a fall to 0."""
  layer_fields(view)
  peak = view.get('peak')
  return schedules.LinearRampupPolynomialDecay.config(
    warmup_steps=peak,
    decay_start=peak,
    decay_end=view.get('end'),
    max=1.0,
    min_ratio=0.0,
  )


@translates(f'{_SCHEDULE}.AnnealingSchedule')
def annealing(view: ParamsView) -> Config:
  """Returns factor^step, but at least `lower_bound`."""
  layer_fields(view)
  view.ignore('the schedule does not read it in Lingvo either', 'init')
  factor, low = view.get('factor'), view.get('lower_bound')
  if not low or not factor or not 0 < factor <= 1:
    view.issue('factor', f'{factor} and lower_bound {low} are not valid')
    return schedules.Constant.config()
  if factor == 1 or low >= 1:
    return schedules.Constant.config(value=float(max(low, 1.0)))
  return schedules.Exponential.config(
    start=(0, 1.0), limit=(math.log(low) / math.log(factor), low)
  )


@translates(f'{_SCHEDULE}.TransformerScheduleNoWarmUp')
def transformer_no_warmup(view: ParamsView) -> Config:
  """Returns a constant, the inverse square root of the step, a constant."""
  layer_fields(view)
  start = float(view.get('decay_start') * view.get('worker_replicas'))
  scale = view.get('model_dim') ** -0.5
  end = view.get('decay_end')
  decay = schedules.SqrtDecay.config(
    decay_start=start, multiplier=scale, offset=-1.0
  )
  if end is None:
    return decay
  last = schedules.Constant.config(value=scale * max(end + 1, start) ** -0.5)
  return schedules.PiecewiseSchedule.config(
    boundaries=[end], schedules=[decay, last]
  )


@translates(f'{_SCHEDULE}.LinearRampupExponentialDecay')
@translates(f'{_SCHEDULE}.LinearRampupExponentialDecayScaledByNumSplitSchedule')
def linear_rampup_exponential_decay(view: ParamsView) -> Config:
  """Returns a linear rise and an exponential fall.

  In Lingvo it is the minimum of a rise, a constant, a fall and a bound.
  """
  layer_fields(view)
  splits = _splits(view, 'num_splits')
  peak, bound = float(splits), view.get('max')
  warmup = view.get('warmup') * splits
  decay_start = max(warmup + 1.0, view.get('decay_start') / splits)
  config = schedules.LinearRampupExponentialDecay.config(
    warmup_steps=warmup,
    warmup_init=min(view.get('warmup_init'), peak),
    decay_start=decay_start,
    decay_end=max(decay_start + 1.0, view.get('decay_end') / splits),
    max=peak,
    min_ratio=min(view.get('min') / peak, 1.0),
  )
  if bound >= peak:
    return config
  return lingvo_schedules.Minimum.config(
    schedules=[config, schedules.Constant.config(value=bound)]
  )


@translates(f'{_SCHEDULE}.LinearRampupSqrtDecayByBatchSizeAndReplicas')
def linear_rampup_sqrt_decay_by_batch_size(view: ParamsView) -> Config:
  """Returns a schedule by steps; Lingvo's counts examples."""
  layer_fields(view)
  batch_size = view.get('batch_size')
  if not batch_size:
    view.issue('batch_size', f'it is {batch_size!r}; expected a number')
    return schedules.Constant.config()
  examples = batch_size * _splits(view, 'num_replicas')
  return schedules.Transformer.config(
    warmup_steps=view.get('warmup_examples') / examples, model_dim=1
  )


@translates(f'{_SCHEDULE}.LinearRampupPiecewiseConstantSchedule')
def linear_rampup_piecewise_constant(view: ParamsView) -> Config:
  layer_fields(view)
  splits = _splits(view, 'num_splits')
  return schedules.LinearRampupPiecewiseConstant.config(
    boundaries=[step / splits for step in view.get('boundaries')],
    values=[float(value * splits) for value in view.get('lrs')],
    capped=True,
  )


@translates(f'{_SCHEDULE}.LinearRampupCosineSchedule')
def linear_rampup_cosine(view: ParamsView) -> Config:
  """Returns the minimum of a rise and a cosine."""
  layer_fields(view)
  splits = _splits(view, 'num_splits')
  first = float(view.get('initial_value') * splits)
  return lingvo_schedules.Minimum.config(
    schedules=[
      schedules.Linear.config(
        start=(0, float(view.get('warmup_init') * splits)),
        limit=(view.get('warmup_steps') // splits, first),
      ),
      schedules.Cosine.config(
        initial_value=first,
        final_value=float(view.get('final_value') * splits),
        total_steps=view.get('total_steps') // splits,
        cyclical=view.get('cyclical'),
      ),
    ]
  )


@translates(f'{_SCHEDULE}.CombinedMinimumSchedule')
def combined_minimum(view: ParamsView) -> Config | None:
  layer_fields(view)
  parts = _parts(view)
  if None in parts:
    return None
  return lingvo_schedules.Minimum.config(schedules=parts)


@translates(f'{_SCHEDULE}.PiecewiseSchedule')
def piecewise(view: ParamsView) -> Config | None:
  layer_fields(view)
  boundaries, parts = view.get('boundaries'), _parts(view)
  if None in parts:
    return None
  return schedules.PiecewiseSchedule.config(
    boundaries=boundaries, schedules=parts
  )


@translates(f'{_SCHEDULE}.CycleSchedule')
def cycle(view: ParamsView) -> Config | None:
  layer_fields(view)
  fields = {name: view.get(name) for name in ('steps', 'pass_absolute_step')}
  for index, params in enumerate(view.get('schedules')):
    if _holds_pieces(params):
      view.issue(
        f'schedules[{index}]',
        'a PiecewiseSchedule in a CycleSchedule is not translated: Lingvo'
        ' confuses the steps of the two',
      )
  parts = _parts(view)
  if None in parts:
    return None
  return schedules.CycleSchedule.config(schedules=parts, **fields)


@translates(f'{_SCHEDULE}.DevBasedSchedule')
def dev_based(view: ParamsView) -> Config:
  """Returns a schedule by a metric of an evaluation.

  Its `split` is Lingvo's name of the evaluation, such as `eval_dev`; the
  experiment replaces it.
  """
  layer_fields(view)
  history = view.group('metric_history')
  job, metric = metric_of_history(history)
  if not history.get('minimize'):
    view.report.notes.append(
      f'{history.path}.minimize = False has no effect: the schedule of Lingvo'
      ' does not read it, and expects the metric to fall'
    )
  history.finish()
  window = view.get('window')
  if window <= 0:
    view.issue('window', f'{window} makes it decay at every step')
    return schedules.Constant.config()
  return lingvo_schedules.DevBased.config(
    key=re.sub(r'\W+', '_', view.path).strip('_'),
    split=job,
    metric=metric,
    window=window,
    **{name: view.get(name) for name in ('tolerance', 'decay', 'min_factor')},
  )


def metric_of_history(history: ParamsView) -> tuple[str, str]:
  """Reads a `MetricHistory`; returns the evaluation and its metric.

  Args:
    history: the Params; `minimize` is not read.

  Returns:
    Lingvo's name of the evaluation, such as `eval_dev`, and the metric's.
  """
  history.ignore('it concerns files only', 'logdir', 'local_filesystem')
  history.require('tfevent_file', False)
  job = history.get('jobname')
  if not job.startswith(_EVAL_JOB):
    history.issue('jobname', f'{job!r} is not translated, only {_EVAL_JOB}...')
  return job, history.get('metric')


def _parts(view: ParamsView) -> list[Config | None]:
  """Translates a list of schedules."""
  return [
    registry.translate(view.adopt(params, f'schedules[{index}]'))
    for index, params in enumerate(view.get('schedules'))
  ]


_PIECEWISE = 'lingvo.core.schedule.PiecewiseSchedule'


def _holds_pieces(params) -> bool:
  """Whether Params of a schedule are or hold those of a `PiecewiseSchedule`."""
  if params_trees.has_base(params.cls, _PIECEWISE):
    return True
  parts = params.schedules if 'schedules' in params else ()
  return any(map(_holds_pieces, parts))


def _splits(view: ParamsView, name: str) -> int:
  """Returns the number of splits of a batch, which scales schedules.

  If the Params leave it to Lingvo's cluster it is the number of processes: each
  of them reads a batch, as Lingvo does for each split.
  """
  splits = view.get(name)
  if splits and splits > 0:
    return splits
  splits = jax.process_count()
  view.report.notes.append(
    f"{view.path}.{name} is set by Lingvo's cluster: here it is {splits}, the"
    ' number of processes'
  )
  return splits
