"""Translates Lingvo's learners to one equivalent learner."""

import re
from collections.abc import Sequence

from adaptors.equivalents import lingvo_optimizers, lingvo_schedules
from adaptors.translate.training import optimizers
from adaptors.translate.training.learner_fields import LearnerFields
from adaptors.translate.training.variable_layout import (
  TaskFacts,
  around,
  as_in_lingvo,
  check_whole,
  is_stack,
)
from adaptors.translate.variable_names import VariableNames, exactly
from adaptors.translate.view import ParamsView
from pax_compat import learners
from pax_compat.config import Config
from pax_compat.optimizers import Shampoo
from pax_compat.schedules import evaluated

_SINGLE = 'clip_gradient_single_norm_to_value'


def combined(
  view: ParamsView, found: Sequence[LearnerFields], facts: TaskFacts
) -> Config | None:
  """Returns the learner that is equivalent to all of a task's.

  Args:
    view: the task's `train` Params.
    found: the fields of each learner.
    facts: of the task.

  Returns:
    The config of a `learners.Learner`; None after an issue.
  """
  before = len(view.report.issues)
  config = _combined(view, found, facts)
  return config if len(view.report.issues) == before else None


def _combined(
  view: ParamsView, found: Sequence[LearnerFields], facts: TaskFacts
) -> Config | None:
  """Returns the learner that is equivalent to all of Lingvo's."""
  trained = [_trained(one, facts) for one in found]
  _check_together(view, found, trained)
  first = found[0]
  for one, paths in zip(found, trained, strict=True):
    if getattr(one.optimizer, _SINGLE):
      check_whole(one.view, _SINGLE, facts, paths)
  groups = _groups(found, trained, facts, view)
  taken = set().union(*(paths for _, paths, _ in groups))
  optimizer = as_in_lingvo(
    first.view,
    _stepping(first, facts, view),
    facts,
    set().union(*trained) - taken,
  )
  groups = [
    (name, paths, as_in_lingvo(first.view, one, facts, paths))
    for name, paths, one in groups
  ]
  if facts.clipped_norm and first.scales:
    optimizer = _group_clipped(view, found, optimizer, facts)
  fields = dict(
    optimizer=optimizer,
    loss_name=first.loss_name,
    regularize_before_clipping=True,
    grad_norm_to_clip_to_zero=first.zero_norm,
    grad_norm_tracker=first.tracker,
    nonfinite_gradients='zero' if first.checks else 'skip',
    check_valid_step=first.checks,
    vectorize_on_repeat_prefix=any(
      is_stack(v.transform) for v in facts.names.variables
    ),
  )
  excluded = {v.jax for v in facts.names.variables}.difference(*trained)
  if excluded:
    fields |= dict(bprop_variable_exclusion=exactly(excluded))
  if by_source := facts.trained_by_source():
    fields |= dict(
      bprop_variable_inclusion_by_source=[
        ['.*'] if paths is None else exactly(paths) for paths in by_source
      ]
    )
  if not groups:
    return learners.Learner.config(**fields)
  names, paths, configs = zip(*groups, strict=True)
  return learners.MultiOptimizerLearner.config(
    auxiliary_names=list(names),
    auxiliary_regex=[rf'(?:{"|".join(exactly(own))})\Z' for own in paths],
    auxiliary_optimizers=list(configs),
    auxiliary_loss_names=_other_losses(found),
    apply_separate_scaling=len(found) > 1,
    **fields,
  )


def _other_losses(found: Sequence[LearnerFields]) -> list[str]:
  """Returns the losses of the learners after the first, if they differ."""
  names = [one.loss_name for one in found]
  return names[1:] if len(set(names)) > 1 else []


def _trained(one: LearnerFields, facts: TaskFacts) -> set[str]:
  """Returns the paths of the weights that a learner trains."""
  chosen = _selected(one, facts.names) - facts.left_alone
  if not chosen and facts.left_alone:
    one.view.issue('', "it trains none of the variables of the task's BProp")
  return chosen


def _selected(one: LearnerFields, names: VariableNames) -> set[str]:
  """Returns the paths of the weights that a learner's expressions select."""
  field = 'bprop_variable_filter'
  keep = one.view.get(field)
  drop = one.view.get('bprop_variable_exclusion')
  if not keep and not drop:
    return {variable.jax for variable in names.variables}

  def selects(name: str) -> bool:
    kept = not keep or re.search(keep, name)
    return kept and not (drop and re.search(drop, name))

  field = field if keep else 'bprop_variable_exclusion'
  chosen = names.selected(selects, one.view, field)
  if not chosen and tuple(names.variables):
    one.view.issue(field, 'no variable is left to train')
  return chosen


def _check_together(
  view: ParamsView, found: Sequence[LearnerFields], trained: Sequence[set[str]]
):
  """Adds issues if several learners cannot be combined."""
  if len(found) == 1:
    return
  for what, values in (
    ('grad_norm_to_clip_to_zero', {one.zero_norm for one in found}),
    ('checks of gradients', {one.checks for one in found}),
  ):
    if len(values) > 1:
      found = ', '.join(map(str, sorted(values)))
      view.issue(
        'learner',
        f'several learners with different {what} ({found}) are not translated',
      )
  if any(one.others for one in found):
    view.issue(
      'learner', 'a CompositeOptimizer is translated in a single learner only'
    )
  seen = set()
  for one, paths in zip(found, trained, strict=True):
    if paths & seen:
      one.view.issue(
        '',
        f'another learner trains {min(paths & seen)} too; learners of the same'
        ' variables are not translated',
      )
    seen |= paths
    if one.tracker is not None:
      one.view.issue(
        'grad_norm_tracker', 'it is not translated with several learners'
      )


def _groups(
  found: Sequence[LearnerFields],
  trained: Sequence[set[str]],
  facts: TaskFacts,
  view: ParamsView,
) -> list[tuple[str, set[str], Config]]:
  """Returns (name, paths, optimizer) of weights with a separate optimizer.

  They belong to a composite optimizer, or to the learners after the first.
  """
  if len(found) > 1:
    return [
      (one.name, paths, _stepping(one, facts, view))
      for one, paths in zip(found[1:], trained[1:], strict=True)
    ]
  groups, seen = [], set()
  for index, (pattern, optimizer) in enumerate(found[0].others.items()):
    field = f'optimizer.optimizer_map[{pattern!r}]'
    paths = facts.names.selected(
      re.compile(pattern).match, found[0].view, field
    )
    paths &= trained[0]
    if paths & seen:
      found[0].view.issue(
        field, f'another expression matches {min(paths & seen)} too'
      )
    seen |= paths
    if paths:
      groups.append((f'optimizer_{index}', paths, optimizer))
    else:
      view.report.notes.append(
        f'{found[0].view.path}.{field} matches no variable'
      )
  return groups


def _stepping(one: LearnerFields, facts: TaskFacts, view: ParamsView) -> Config:
  """Returns an optimizer whose schedule reads Lingvo's global step."""
  if optimizers.has(one.optimizer, Shampoo):
    return _with_roots(one, view)
  count = micro_batches(one.view.get('optimizer'))
  if count <= 1 or facts.defers_steps:
    return one.optimizer
  if optimizers.is_adafactor(one.optimizer):
    one.view.issue(
      'optimizer.num_micro_batches',
      f'{count} is translated only with task.defer_global_step_update = True:'
      ' without it the global step, which the optimizer reads, grows twice',
    )
  if evaluated.configs_within(one.optimizer):
    one.view.issue(
      'lr_schedule',
      'a schedule that depends on evaluations is translated with'
      ' num_micro_batches only if task.defer_global_step_update is True',
    )
  view.report.notes.append(
    f'{one.view.path}.optimizer.num_micro_batches = {count} makes the global'
    f' step grow by {count + 1} in {count} batches; schedules here read the'
    ' same step'
  )
  return one.optimizer.clone().set(
    lr_schedule=lingvo_schedules.AtLingvoSteps.config(
      schedule=one.optimizer.lr_schedule,
      steps_per_update=count + 1,
      first=count - 1,
    )
  )


def _with_roots(one: LearnerFields, view: ParamsView) -> Config:
  """Returns Shampoo that computes roots whenever a loop on a TPU would end."""
  steps = view.get('tpu_steps_per_loop')
  view.report.notes.append(
    f'{one.view.path}.optimizer computes its preconditioners after each'
    f' {steps} steps (tpu_steps_per_loop), and uses them from the next step on;'
    ' Lingvo starts to compute them then, on TPUs only, and uses them from the'
    ' end of a later loop on'
  )
  return one.optimizer.clone().set(root_interval_steps=steps)


def micro_batches(params) -> int:
  """Returns the number of batches of one update of an optimizer in Lingvo.

  Unlike those of an `Accumulator`, they change how steps are counted.
  """
  name = 'num_micro_batches'
  return params.Get(name) if name in params else 1


def all_micro_batches(train) -> set[int]:
  """Returns the `micro_batches` of a task's optimizers, by its `train`."""
  found = train.learner or train
  several = found if isinstance(found, list | tuple) else [found]
  return {micro_batches(one.optimizer) for one in several}


def _group_clipped(
  view: ParamsView,
  found: Sequence[LearnerFields],
  optimizer: Config,
  facts: TaskFacts,
) -> Config:
  """Returns an optimizer that clips the gradients of some weights by norm."""
  field = 'max_lstm_gradient_norm'
  if len(found) > 1 or found[0].others:
    view.issue(field, 'it is not translated with several optimizers')
  for clipping in ('clip_gradient_norm_to_value', _SINGLE):
    if found[0].view.get(clipping):
      view.issue(field, f'it is not translated together with {clipping}')
  paths = [
    v.jax
    for v in facts.names.variables
    if any(t.startswith(facts.clipped_theta) for t in v.theta)
  ]
  if not paths and tuple(facts.names.variables):
    view.issue(field, f'there are no variables below {facts.clipped_theta}')
  return around(
    optimizer,
    lingvo_optimizers.GroupClipped,
    paths=sorted(paths),
    norm=facts.clipped_norm,
  )
