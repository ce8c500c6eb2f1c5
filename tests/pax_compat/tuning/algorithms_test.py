"""Tests of the search algorithms."""

import builtins
import functools
import math
import statistics

import pytest

from pax_compat import errors
from pax_compat.tuning import algorithms, records, spaces

_MIXED = spaces.parsed(
  ['task.lr=log:1e-5..1e-1', 'task.n=log:1..64', 'task.p=-1..1', 'attr:A=x,y']
)


def _search(
  search,
  space,
  count,
  *,
  seed=0,
  loss=lambda values: 0.0,
  old=(),
  **settings,
):
  """Returns the trials of a study, each with a loss."""
  trials = {trial.number: trial for trial in old}
  for _ in range(count):
    found = algorithms.next_values(
      search, space, trials, seed=seed, goal='min', **settings
    )
    if found is None:
      break
    trials[found[0]] = records.Trial(
      number=found[0],
      values=found[1],
      status=records.DONE,
      metric=loss(found[1]),
      step=1,
    )
  return list(trials.values())


def _values(trials):
  return [tuple(trial.values.values()) for trial in trials]


def test_grid_visits_each_combination_once():
  space = spaces.parsed(['task.n=1..3', 'attr:A=x,y'])
  trials = _search(algorithms.GRID, space, 100)
  assert sorted(_values(trials)) == [(n, a) for n in (1, 2, 3) for a in 'xy']
  assert [trial.number for trial in trials] == [1, 2, 3, 4, 5, 6]


def test_random_values_are_within_limits_and_of_the_seed():
  trials = _search(algorithms.RANDOM, _MIXED, 200)
  for values in (trial.values for trial in trials):
    assert 1e-5 <= values['task.lr'] <= 1e-1
    assert 1 <= values['task.n'] <= 64 and type(values['task.n']) is int
    assert values['task.p'] in (-1, 0, 1)
    assert values['A'] in 'xy'
  for name in ('task.lr', 'task.n'):
    # Half of the values are below the geometric mean.
    mean = {'task.lr': 1e-3, 'task.n': 8}[name]
    below = sum(trial.values[name] < mean for trial in trials)
    assert 70 <= below <= 130, name
  assert _values(_search(algorithms.RANDOM, _MIXED, 200)) == _values(trials)
  assert _values(_search(algorithms.RANDOM, _MIXED, 9, seed=1)) != _values(
    trials[:9]
  )
  # A study that was interrupted goes on with the same values.
  again = _search(algorithms.RANDOM, _MIXED, 100, old=trials[:100])
  assert _values(again) == _values(trials)


def test_random_tries_no_combination_twice():
  space = spaces.parsed(['task.n=1..4', 'attr:A=x,y,z'])
  trials = _search(algorithms.RANDOM, space, 100)
  assert len(set(_values(trials))) == len(trials) == 12


def _distance(values):
  """A loss with its minimum at 1e-3."""
  return abs(math.log10(values['task.lr']) + 3)


@pytest.mark.slow
def test_bayesian_search_learns_from_other_trials():
  space = spaces.parsed(['task.lr=log:1e-6..1', 'attr:A=x,y'])

  def late(search, seed):
    trials = _search(search, space, 30, seed=seed, loss=_distance)
    return statistics.median(trial.metric for trial in trials[-15:])

  bayesian = sum(late(algorithms.BAYESIAN, seed) for seed in range(2))
  assert bayesian < 0.7 * sum(late(algorithms.RANDOM, s) for s in range(2))


def test_bayesian_search_is_of_the_seed_and_the_trials():
  first = _search(algorithms.BAYESIAN, _MIXED, 12, loss=_distance)
  again = _search(algorithms.BAYESIAN, _MIXED, 6, loss=_distance, old=first[:6])
  assert _values(again) == _values(first)
  failed = records.Trial(
    number=1, values=first[0].values, status=records.FAILED
  )
  nan = records.Trial(
    number=2, values=first[1].values, status=records.DONE, metric=math.nan
  )
  assert len(_search(algorithms.BAYESIAN, _MIXED, 9, old=[failed, nan])) == 11


_EVOLUTION = records.Evolution(population_size=8, tournament_size=3)


def test_evolution_mutates_one_value_of_a_good_recent_trial():
  space = spaces.parsed(['task.lr=log:1e-6..1', 'attr:A=x,y', 'attr:B=1,2,3'])
  evolve = functools.partial(
    _search, algorithms.EVOLUTION, space, loss=_distance, evolution=_EVOLUTION
  )
  trials = evolve(60)
  random = _search(algorithms.RANDOM, space, 60, loss=_distance)
  assert _values(trials[:8]) == _values(random[:8])
  for i, trial in enumerate(trials[8:], 8):
    population = trials[i - 8 : i]
    parents = [
      parent
      for parent in population
      if sum(parent.values[n] != trial.values[n] for n in space.names) == 1
    ]
    # The worst two of the population cannot win a tournament of three.
    limit = sorted(parent.metric for parent in population)[-3]
    assert any(parent.metric <= limit for parent in parents)
  late = [
    statistics.median(trial.metric for trial in found[-20:])
    for found in (trials, random)
  ]
  assert late[0] < 0.5 * late[1]
  assert _values(evolve(30, old=trials[:30])) == _values(trials)


def test_evolution_tries_no_combination_twice():
  space = spaces.parsed(['task.n=1..4', 'attr:A=x,y,z', 'attr:B=1'])
  trials = _search(algorithms.EVOLUTION, space, 100, evolution=_EVOLUTION)
  assert len(set(_values(trials))) == len(trials) == 12


def test_mistakes(monkeypatch):
  with pytest.raises(errors.UserError, match='task.lr is a range of real numb'):
    algorithms.check(algorithms.GRID, _MIXED)
  real = builtins.__import__

  def without_optuna(name, *args, **kwargs):
    if name == 'optuna':
      raise ImportError(name)
    return real(name, *args, **kwargs)

  monkeypatch.setattr(builtins, '__import__', without_optuna)
  with pytest.raises(errors.UserError, match=r"pip install 'pax-compat\[tune"):
    algorithms.check(algorithms.BAYESIAN, _MIXED)
  algorithms.check(algorithms.RANDOM, _MIXED)
