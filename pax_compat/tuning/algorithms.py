"""Search algorithms: the values of the next trial.

The values of trial N depend on the seed, on N and on the trials before it, not
on when the study was interrupted.
"""

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

from pax_compat import errors
from pax_compat.tuning import metric_values, records, spaces

RANDOM, GRID, BAYESIAN = 'random', 'grid', 'bayesian'
EVOLUTION = 'evolution'
NAMES = (RANDOM, GRID, BAYESIAN, EVOLUTION)
_INSTALL = "pip install 'pax-compat[tune]'"
# Random trials before the first one that depends on others.
_STARTUP_TRIALS = 8
_EVOLUTION = records.Evolution()


def check(search: str, space: spaces.Space):
  """Raises a UserError if an algorithm cannot search a space.

  A library that is missing is an error, too.
  """
  if search == GRID and space.size is None:
    name = next(one.name for one in space.parameters if one.size is None)
    raise errors.UserError(
      f'--search=grid: {name} is a range of real numbers; expected values'
      ' separated by commas, a range of integers, or --search=random'
    )
  if search == BAYESIAN:
    _optuna()


def next_values(
  search: str,
  space: spaces.Space,
  trials: Mapping[int, records.Trial],
  *,
  seed: int,
  goal: str,
  evolution: records.Evolution = _EVOLUTION,
) -> tuple[int, spaces.Values] | None:
  """Returns the number and the values of the next trial; None at the end.

  Args:
    search: one of NAMES.
    space: the parameters.
    trials: all trials so far.
    seed: of the study.
    goal: of its metric.
    evolution: settings of EVOLUTION.
  """
  number = max(trials, default=0) + 1
  if search == GRID:
    values = next(
      itertools.islice(space.combinations(), number - 1, None), None
    )
    return None if values is None else (number, values)
  if space.size is not None and number > space.size:
    return None
  draw = random.Random(f'{seed} {number}')
  if search == BAYESIAN:
    values = _bayesian(space, trials, goal, draw.getrandbits(31))
  elif search == EVOLUTION:
    values = _evolved(space, trials, goal, draw, evolution)
  else:
    values = _random(space, draw)
  tried = [dict(trial.values) for trial in trials.values()]
  # A combination of a finite space is not tried twice.
  while space.size is not None and dict(values) in tried:
    values = (
      _mutated(space, values, draw)
      if search == EVOLUTION
      else _random(space, draw)
    )
  return number, values


def _random(space: spaces.Space, draw: random.Random) -> spaces.Values:
  return {one.name: _one(one, draw) for one in space.parameters}


def _evolved(
  space: spaces.Space,
  trials: Mapping[int, records.Trial],
  goal: str,
  draw: random.Random,
  settings: records.Evolution,
) -> spaces.Values:
  """Returns a mutation of the best of some recent trials.

  Regularized evolution (Real et al., 2019, arXiv:1802.01548): the oldest trials
  leave the population, not the worst ones.
  """
  known = [
    trials[number]
    for number in sorted(trials)
    if trials[number].status in (records.DONE, records.STOPPED)
    and trials[number].metric is not None
    and math.isfinite(trials[number].metric)
  ]
  population = known[-settings.population_size :]
  if len(population) < settings.population_size:
    return _random(space, draw)
  sign = 1 if goal == metric_values.MIN else -1
  parent = min(
    draw.sample(population, settings.tournament_size),
    key=lambda trial: sign * trial.metric,
  )
  return _mutated(space, parent.values, draw)


def _mutated(
  space: spaces.Space, values: spaces.Values, draw: random.Random
) -> spaces.Values:
  """Returns the values with another one of a random parameter."""
  choices = [one for one in space.parameters if one.size != 1]
  if not choices:
    return dict(values)
  parameter = draw.choice(choices)
  value = values[parameter.name]
  while value == values[parameter.name]:
    value = _one(parameter, draw)
  return {**values, parameter.name: value}


def _one(parameter: spaces.Parameter, draw: random.Random) -> Any:
  if isinstance(parameter, spaces.Choices):
    return draw.choice(parameter.labels)
  low, high = parameter.low, parameter.high
  if parameter.whole and not parameter.log:
    return draw.randint(int(low), int(high))
  if parameter.whole:  # Each integer n is drawn within [n - 0.5, n + 0.5].
    low, high = low - 0.5, high + 0.5
  if parameter.log:
    value = math.exp(draw.uniform(math.log(low), math.log(high)))
  else:
    value = draw.uniform(low, high)
  value = min(max(value, parameter.low), parameter.high)
  return round(value) if parameter.whole else value


def _optuna() -> Any:
  try:
    import optuna  # Imported late: an extra.
  except ImportError:
    raise errors.UserError(
      f'--search=bayesian needs Optuna: {_INSTALL}; --search=random and grid'
      ' need no package'
    ) from None
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  return optuna


def _bayesian(
  space: spaces.Space,
  trials: Mapping[int, records.Trial],
  goal: str,
  seed: int,
) -> spaces.Values:
  """Returns what Optuna's TPE suggests, given the trials that ended."""
  optuna = _optuna()
  kinds = {
    one.name: _distribution(optuna.distributions, one)
    for one in space.parameters
  }
  study = optuna.create_study(
    direction='minimize' if goal == metric_values.MIN else 'maximize',
    sampler=optuna.samplers.TPESampler(
      seed=seed, n_startup_trials=_STARTUP_TRIALS
    ),
  )
  for trial in trials.values():
    if trial.status in (records.DONE, records.STOPPED):
      study.add_trial(_past(optuna.trial, trial, kinds))
  asked = study.ask(kinds)
  return {name: asked.params[name] for name in space.names}


def _distribution(kinds: Any, parameter: spaces.Parameter) -> Any:
  if isinstance(parameter, spaces.Choices):
    return kinds.CategoricalDistribution(parameter.labels)
  kind = kinds.IntDistribution if parameter.whole else kinds.FloatDistribution
  return kind(parameter.low, parameter.high, log=parameter.log)


def _past(optuna_trial: Any, trial: records.Trial, kinds: Any) -> Any:
  """Returns a trial that ended, as Optuna's."""
  known = trial.metric is not None and math.isfinite(trial.metric)
  state = optuna_trial.TrialState
  return optuna_trial.create_trial(
    state=state.COMPLETE if known else state.FAIL,
    value=trial.metric if known else None,
    params=dict(trial.values),
    distributions=kinds,
  )
