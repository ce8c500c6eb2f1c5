"""Translators of Lingvo's learning-rate schedules: Params to a config."""

import math

import jax

from adaptors.equivalents import lingvo_schedules
from adaptors.params import params_trees
from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.view import ParamsView
from pax_compat import schedules
from pax_compat.config import Config


def layer_fields(view: ParamsView):
  """Reads what schedules and optimizers have only because they are layers."""
  for name in ('params_init', 'dtype', 'fprop_dtype'):
    view.get(name)


def _same_fields(lingvo: str, cls: type, *names: str):
  """Registers a translator of a schedule whose fields have the same names."""

  @translates(f'lingvo.core.schedule.{lingvo}')
  def translate(view: ParamsView) -> Config:
    layer_fields(view)
    return cls.config(**{name: view.get(name) for name in names})

  return translate


_same_fields('Constant', schedules.Constant, 'value')
_same_fields(
  'PiecewiseConstantSchedule',
  schedules.PiecewiseConstant,
  'boundaries',
  'values',
)
_same_fields(
  'ContinuousSchedule',
  schedules.ContinuousSchedule,
  'initial_value',
  'start_step',
  'half_life_steps',
  'min',
)
_same_fields(
  'PolynomialSchedule',
  schedules.Polynomial,
  'power',
  'start',
  'limit',
  'origin',
)
_same_fields('ExponentialSchedule', schedules.Exponential, 'start', 'limit')
_same_fields(
  'CosineSchedule',
  schedules.Cosine,
  'initial_value',
  'final_value',
  'total_steps',
  'cyclical',
  'half_cycle',
)
_same_fields(
  'TransformerSchedule',
  schedules.Transformer,
  'warmup_steps',
  'model_dim',
  'worker_replicas',
  'decay_end',
  'decay_factor',
  'start_step',
  'cyclical_step',
)
_same_fields(
  'LinearRampupSqrtDecay',
  schedules.LinearRampupSqrtDecay,
  'peak',
  'warmup_steps',
)
_same_fields(
  'StepwiseExponentialSchedule',
  lingvo_schedules.StepwiseExponential,
  'decay',
  'num_steps_per_decay',
)
_same_fields(
  'TransformerMLPerfSchedule',
  lingvo_schedules.TransformerMlPerf,
  'warmup_steps',
  'warmup_init_fraction',
  'model_dim',
)
_same_fields(
  'SqrtDecayToZero',
  lingvo_schedules.SqrtDecayToZero,
  'warmup_steps',
  'starting_lr',
  'final_steps',
)
_same_fields('InverseSigmoid', lingvo_schedules.InverseSigmoid, 'k')
_same_fields('EmaDecaySchedule', lingvo_schedules.EmaDecay, 'ema_decay')


@translates('lingvo.core.schedule.SqrtDecay')
def sqrt_decay(view: ParamsView) -> Config:
  """`SqrtDecay`."""
  layer_fields(view)
  return schedules.SqrtDecay.config(
    decay_start=view.get('warmup_steps'),
    multiplier=view.get('multiplier'),
    offset=view.get('offset'),
  )


@translates('lingvo.core.schedule.LinearRampupDecaySchedule')
def linear_rampup_decay(view: ParamsView) -> Config:
  """`LinearRampupDecaySchedule`: up to 1 and, at once, down to 0."""
  layer_fields(view)
  peak = view.get('peak')
  return schedules.LinearRampupPolynomialDecay.config(
    warmup_steps=peak,
    decay_start=peak,
    decay_end=view.get('end'),
    max=1.0,
    min_ratio=0.0,
  )


@translates('lingvo.core.schedule.AnnealingSchedule')
def annealing(view: ParamsView) -> Config:
  """`AnnealingSchedule`: a power of the step, down to a smallest value."""
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


@translates('lingvo.core.schedule.TransformerScheduleNoWarmUp')
def transformer_no_warmup(view: ParamsView) -> Config:
  """`TransformerScheduleNoWarmUp`: constant, then the root, then constant."""
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


@translates('lingvo.core.schedule.LinearRampupExponentialDecay')
@translates(
  'lingvo.core.schedule.LinearRampupExponentialDecayScaledByNumSplitSchedule'
)
def linear_rampup_exponential_decay(view: ParamsView) -> Config:
  """Both schedules that rise linearly and fall exponentially.

  In Lingvo each is the smallest of a rise, a constant, a fall, and a bound, so
  that nothing is above the constant or the bound.
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


@translates('lingvo.core.schedule.LinearRampupSqrtDecayByBatchSizeAndReplicas')
def linear_rampup_sqrt_decay_by_batch_size(view: ParamsView) -> Config:
  """`LinearRampupSqrtDecayByBatchSizeAndReplicas`: its steps are examples."""
  layer_fields(view)
  batch_size = view.get('batch_size')
  if not batch_size:
    view.issue('batch_size', f'it is {batch_size!r}; expected a number')
    return schedules.Constant.config()
  examples = batch_size * _splits(view, 'num_replicas')
  return schedules.Transformer.config(
    warmup_steps=view.get('warmup_examples') / examples, model_dim=1
  )


@translates('lingvo.core.schedule.LinearRampupPiecewiseConstantSchedule')
def linear_rampup_piecewise_constant(view: ParamsView) -> Config:
  """`LinearRampupPiecewiseConstantSchedule`."""
  layer_fields(view)
  splits = _splits(view, 'num_splits')
  return schedules.LinearRampupPiecewiseConstant.config(
    boundaries=[step / splits for step in view.get('boundaries')],
    values=[float(value * splits) for value in view.get('lrs')],
    capped=True,
  )


@translates('lingvo.core.schedule.LinearRampupCosineSchedule')
def linear_rampup_cosine(view: ParamsView) -> Config:
  """`LinearRampupCosineSchedule`: the smaller of a rise and a cosine."""
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


@translates('lingvo.core.schedule.CombinedMinimumSchedule')
def combined_minimum(view: ParamsView) -> Config | None:
  """`CombinedMinimumSchedule`."""
  layer_fields(view)
  parts = _parts(view)
  if None in parts:
    return None
  return lingvo_schedules.Minimum.config(schedules=parts)


@translates('lingvo.core.schedule.PiecewiseSchedule')
def piecewise(view: ParamsView) -> Config | None:
  """`PiecewiseSchedule`."""
  layer_fields(view)
  boundaries, parts = view.get('boundaries'), _parts(view)
  if None in parts:
    return None
  return schedules.PiecewiseSchedule.config(
    boundaries=boundaries, schedules=parts
  )


@translates('lingvo.core.schedule.CycleSchedule')
def cycle(view: ParamsView) -> Config | None:
  """`CycleSchedule`."""
  layer_fields(view)
  fields = {name: view.get(name) for name in ('steps', 'pass_absolute_step')}
  for index, params in enumerate(view.get('schedules')):
    if _holds_pieces(params):
      view.issue(
        f'schedules[{index}]',
        'a PiecewiseSchedule in a CycleSchedule, which in Lingvo mixes up the'
        ' steps of both, is not translated',
      )
  parts = _parts(view)
  if None in parts:
    return None
  return schedules.CycleSchedule.config(schedules=parts, **fields)


@translates('lingvo.core.schedule.DevBasedSchedule')
def dev_based(view: ParamsView) -> None:
  """`DevBasedSchedule`, which is refused."""
  view.issue(
    '',
    'a schedule that goes by the history of an evaluation is not translated;'
    ' a schedule here knows the step only',
  )


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
  """Returns into how many splits a batch is divided, which scales schedules.

  Where the Params leave it to Lingvo's cluster it is the number of processes:
  each of them reads a batch as Lingvo does for one split.
  """
  splits = view.get(name)
  if splits and splits > 0:
    return splits
  splits = jax.process_count()
  view.report.notes.append(
    f"{view.path}.{name} leaves it to Lingvo's cluster: taken as {splits}, the"
    ' number of processes'
  )
  return splits
