"""Reads the Params of Lingvo's learners, in their old form and their new one.

It reads what does not depend on the task's variables; `learners` does the rest.
"""

import dataclasses
from typing import Any

from adaptors.params import params_trees
from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.training import optimizers
from adaptors.translate.view import ParamsView, class_path
from pax_compat import learners
from pax_compat.config import Config
from pax_compat.optimizers import WeightedAccumulator

# Fields of a task's `train` that describe a learner, and of a learner.
_FIELDS = (
  'bprop_variable_exclusion',
  'bprop_variable_filter',
  'clip_gradient_norm_to_value',
  'clip_gradient_single_norm_to_value',
  'grad_norm_to_clip_to_zero',
  'grad_norm_tracker',
  'l1_regularizer_weight',
  'l2_regularizer_weight',
  'learning_rate',
  'lr_schedule',
  'optimizer',
  'scale_gradients',
)
_GRAPH_FIELDS = (
  'colocate_gradients_with_ops',
  'gate_gradients',
  'grad_aggregation_method',
  'learner_use_variable_scope',
)


_RATE = ('learning_rate', 'lr_schedule')
_PIECEWISE = 'lingvo.core.schedule.PiecewiseSchedule'


@dataclasses.dataclass(frozen=True)
class LearnerFields:
  """The fields of one of Lingvo's learners.

  Attributes:
    view: its Params, or the task's `train` if that describes it.
    name: its name.
    loss_name: the metric that it minimises.
    optimizer: config with learning rate, schedule and regularization.
    others: the same for other weights; see `optimizers.Composite`.
    zero_norm: gradients with a larger norm are set to zero; 0 for no limit.
    checks: whether gradients that are not finite are set to zero.
    scales: whether gradients are scaled at all.
    tracker: config of the `GradNormTracker`, which skips steps; None if there
      is none.
  """

  view: ParamsView
  name: str
  loss_name: str
  optimizer: Config
  others: dict[str, Config]
  zero_norm: float
  checks: bool
  scales: bool
  tracker: Config | None


def read(view: ParamsView) -> list[LearnerFields] | None:
  """Reads the learners of a task's `train`.

  Args:
    view: the `train` Params.

  Returns:
    The fields of each learner; None after an issue.
  """
  before = len(view.report.issues)
  found = _read_all(view)
  return found if len(view.report.issues) == before else None


def _read_all(view: ParamsView) -> list[LearnerFields | None]:
  given = view.get('learner')
  if given is None:
    view.ignore("it concerns TensorFlow's graphs only", *_GRAPH_FIELDS)
    return [_read(view, name='loss', loss_name='loss')]
  view.ignore('train.learner is set', *_FIELDS, *_GRAPH_FIELDS)
  several = isinstance(given, list | tuple)
  return [
    registry.translate(
      ParamsView(
        params.Copy(),
        f'{view.path}.learner' + (f'[{index}]' if several else ''),
        view.report,
      )
    )
    for index, params in enumerate(given if several else [given])
  ]


@translates('lingvo.core.learner.Learner')
def learner(view: ParamsView) -> LearnerFields | None:
  """Returns the learner's fields; None after an issue."""
  optimizers.layer_fields(view)
  view.ignore("it concerns TensorFlow's graphs only", *_GRAPH_FIELDS)
  view.require('skip_zero_gradients', None)
  view.require('gradient_combiner', None)
  name = view.get('name')
  loss_name = view.get('loss_name') or name
  if not isinstance(loss_name, str):
    view.issue('loss_name', f'several losses, {loss_name}, are not translated')
    loss_name = 'loss'
  return _read(view, name=name, loss_name=loss_name)


def _read(
  view: ParamsView, *, name: str, loss_name: str
) -> LearnerFields | None:
  """Reads the fields that both forms have."""
  fields, zero_norm, checks = _read_scaling(view)
  fields |= _read_regularization(view)
  for field in ('bprop_variable_filter', 'bprop_variable_exclusion'):
    view.compiled(view.get(field) or '', field)
  optimizer = registry.translate(_part(view, 'optimizer'))
  others = {}
  if isinstance(optimizer, optimizers.Composite):
    view.ignore('a CompositeOptimizer has its own', *_RATE)
    others = {k: o.set(**_lp(fields)) for k, o in optimizer.others.items()}
    optimizer = optimizer.default
  else:
    schedule = registry.translate(_part(view, 'lr_schedule'))
    fields |= dict(
      learning_rate=float(view.get('learning_rate')), lr_schedule=schedule
    )
  if optimizer is None or None in fields.values():
    return None
  if optimizers.has(optimizer, WeightedAccumulator) and _has_class(
    view.params.lr_schedule, _PIECEWISE
  ):
    view.issue(
      'lr_schedule',
      f'{_PIECEWISE} is not translated with a DynamicAccumulator: the two'
      ' disagree on the step at which a piece begins',
    )
  return LearnerFields(
    view=view,
    name=name,
    loss_name=loss_name,
    optimizer=optimizer.set(**fields),
    others=others,
    zero_norm=zero_norm,
    checks=checks,
    scales=view.get('scale_gradients'),
    tracker=_read_tracker(view, checks),
  )


def _part(view: ParamsView, name: str) -> ParamsView:
  return ParamsView(view.get(name).Copy(), f'{view.path}.{name}', view.report)


def _has_class(params: Any, path: str) -> bool:
  """Whether Params, or Params within them, have a class."""
  return any(
    'cls' in node and class_path(node.cls) == path
    for node in params_trees.all_params(params)
  )


def _lp(fields: dict) -> dict:
  """Returns the fields of regularization, which each optimizer has."""
  return {k: v for k, v in fields.items() if 'regularizer' in k}


def _read_scaling(view: ParamsView) -> tuple[dict, float, bool]:
  """Reads how gradients are scaled.

  Returns:
    Fields of the optimizer; the norm above which gradients are set to zero;
    whether gradients that are not finite are set to zero.
  """
  together = 'clip_gradient_norm_to_value'
  single = 'clip_gradient_single_norm_to_value'
  to_zero = 'grad_norm_to_clip_to_zero'
  if not view.get('scale_gradients'):
    view.ignore('scale_gradients is False', together, single, to_zero)
    return {}, 0.0, False
  norm, single_norm = view.get(together), view.get(single)
  if single_norm:
    # Lingvo checks that gradients are finite only if it scales all of them
    # together.
    view.ignore(f'{single} is set', to_zero)
    if norm:
      view.issue(single, f'it is set, and so is {together}; set one of them')
    return {single: float(single_norm)}, 0.0, False
  fields = {together: float(norm)} if norm else {}
  return fields, float(view.get(to_zero) or 0.0), True


def _read_tracker(view: ParamsView, measures: bool) -> Config | None:
  """Reads the tracker that skips steps by the norms of their gradients.

  Args:
    view: with the fields of a learner.
    measures: whether Lingvo computes the norm of all gradients.
  """
  name = 'grad_norm_tracker'
  if not view.get(name):
    return None
  if not measures:
    view.ignore('gradients are not scaled together', name)
    return None
  return registry.translate(_part(view, name))


@translates('lingvo.core.layers.GradNormTracker')
def grad_norm_tracker(view: ParamsView) -> Config:
  """Returns a tracker, whose statistics belong to the learner."""
  optimizers.layer_fields(view)
  names = (
    'decay',
    'grad_norm_lower_cap',
    'clip_threshold',
    'grad_norm_clip_cap_min',
  )
  return learners.GradNormTracker.config(
    dry_run=bool(view.get('dry_run')),
    **{name: float(view.get(name)) for name in names},
  )


def _read_regularization(view: ParamsView) -> dict:
  """Returns the fields of L1 and L2 regularisation."""
  names = ('l2_regularizer_weight', 'l1_regularizer_weight')
  return {name: view.get(name) for name in names if view.get(name)}
