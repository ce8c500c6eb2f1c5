"""Translates Lingvo's variational noise: noise on weights in training."""

import fractions
import math

from adaptors.translate.variable_names import VariableNames, exactly
from adaptors.translate.view import ParamsView
from pax_compat import tasks_lib
from pax_compat.config import Config

_KIND = ('per_step_vn', 'use_uniform_noise', 'weight_norm_type')


def is_added(task) -> bool:
  """Whether Lingvo adds noise: both `train.vn_std` and `vn` are set."""
  noise = task.vn
  return bool(
    task.train.vn_std > 0 and noise and (noise.global_vn or noise.per_step_vn)
  )


def translate(
  view: ParamsView,
  train: ParamsView,
  names: VariableNames,
  batches_per_step: fractions.Fraction,
) -> Config | None:
  """Translates the noise of a task.

  Args:
    view: the task's Params.
    train: its `train`.
    names: of its variables.
    batches_per_step: batches per increment of Lingvo's global step.

  Returns:
    The config of `tasks_lib.VariationalNoise`; None without noise or after an
    issue.
  """
  if not is_added(view.params):
    train.ignore('noise is off', 'vn_std', 'vn_start_step')
    return None
  noise = view.group('vn')
  noise.ignore("random numbers come from the run's own seed", 'seed')
  noise.ignore('noise is always reproducible', 'deterministic')
  noise.ignore('weight_norm_type is not set', 'weight_norm_stop_grad')
  for name in _KIND:
    noise.require(name, None if name == _KIND[-1] else False)
  noise.require('global_vn', True)
  noise.finish()
  paths = names.noisy(view)
  if not paths:
    train.issue('vn_std', 'no layer takes part in the noise')
    return None
  start = math.ceil(train.get('vn_start_step') * batches_per_step)
  return tasks_lib.VariationalNoise.config(
    vn_scale=float(train.get('vn_std')),
    vn_regex=rf'(?:{"|".join(exactly(paths))})\Z',
    vn_start_step=start,
  )
