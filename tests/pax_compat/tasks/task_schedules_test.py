"""Tests of task schedules."""

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.tasks.task_schedules import (
  TasksByWeight,
  TasksInPhases,
  TasksInSequence,
  TasksInTurn,
)


def _shares(schedule, step):
  """Returns how often each task is sampled at a step."""
  draws = (np.arange(1000) + 0.5) / 1000
  found = [schedule.task_at(step, draw) for draw in draws]
  return {task: found.count(task) / 1000 for task in schedule.task_names()}


def test_tasks_by_weight():
  made = TasksByWeight.config(weights={'a': 3, 'b': 0, 'c': 1}).Instantiate()
  for step in (0, 10**9):
    assert _shares(made, step) == {'a': 0.75, 'b': 0.0, 'c': 0.25}
  assert made.task_at(0, 0.0) == 'a'
  assert made.task_at(0, np.nextafter(1.0, 0)) == 'c'


def test_weights_that_change():
  made = TasksByWeight.config(
    weights={'a': 1.0, 'b': 0.0},
    final_weights={'b': 3.0, 'a': 1.0},
    rate=np.log(2),
  ).Instantiate()
  assert _shares(made, 0) == {'a': 1.0, 'b': 0.0}
  # Halfway: 1 and 1.5.
  assert _shares(made, 1) == {'a': 0.4, 'b': 0.6}
  assert _shares(made, 100) == {'a': 0.25, 'b': 0.75}


def test_tasks_in_turn():
  made = TasksInTurn.config(tasks=['a', 'b', 'a']).Instantiate()
  assert [made.task_at(n, 0.5) for n in range(5)] == ['a', 'b', 'a', 'a', 'b']
  made = TasksInTurn.config(tasks=['a', 'b'], steps_each=2).Instantiate()
  assert [made.task_at(n, 0.5) for n in range(5)] == ['a', 'a', 'b', 'b', 'a']


def test_tasks_in_sequence():
  steps = [('a', 2), ('b', 1), ('a', 1), ('c', 5)]
  made = TasksInSequence.config(task_steps=steps).Instantiate()
  found = [made.task_at(n, 0.5) for n in (0, 1, 2, 3, 4, 5, 99)]
  assert found == ['a', 'a', 'b', 'a', 'c', 'c', 'c']


def test_tasks_in_phases():
  in_turn = TasksInTurn.config(tasks=['a', 'b'])
  made = TasksInPhases.config(
    phases=[
      (in_turn, 3),
      (TasksInSequence.config(task_steps=[('c', 2), ('b', 1)]), 3),
      (in_turn.clone(), 1),
    ]
  ).Instantiate()
  assert made.task_names() == ['a', 'b', 'c']
  found = ''.join(made.task_at(n, 0.5) for n in range(10))
  assert found == 'aba' + 'ccb' + 'abab'


@pytest.mark.parametrize(
  ('config', 'words'),
  [
    (TasksByWeight.config(weights={'a': -1.0, 'b': 2.0}), 'not negative'),
    (TasksByWeight.config(weights={'a': 0.0}), 'at least one above 0'),
    (
      TasksByWeight.config(weights={'a': 1.0}, final_weights={'b': 1.0}),
      'expected the tasks of weights, a',
    ),
    (TasksByWeight.config(weights={'a': 1.0}, rate=-1.0), 'rate is -1.0'),
    (TasksInTurn.config(tasks=[]), 'tasks is empty'),
    (TasksInTurn.config(tasks=['a'], steps_each=0), 'steps_each is 0'),
    (TasksInSequence.config(task_steps=[('a', 0)]), '1 or more'),
    (TasksInPhases.config(phases=[]), '1 or more'),
    (
      TasksInPhases.config(phases=[(TasksInTurn.config(tasks=['a']), 0)]),
      r'steps \[0\]',
    ),
  ],
)
def test_mistakes(config, words):
  with pytest.raises(errors.UserError, match=words):
    config.Instantiate()
