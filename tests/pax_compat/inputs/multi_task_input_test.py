"""Tests of inputs of several tasks."""

import itertools

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.input_core import host_fields
from pax_compat.inputs.multi_task_input import MultiTaskInput, TaskInput
from pax_compat.tasks.task_schedules import TasksByWeight, TasksInTurn
from tests.pax_compat.two_tasks import DIMS, Points, points


def _made(**fields):
  settings = dict(
    inputs={name: Points.config(dims=n) for name, n in DIMS.items()},
    schedule=TasksByWeight.config(weights={'short': 2.0, 'long': 1.0}),
  )
  return MultiTaskInput.config(**settings | fields).Instantiate()


def _tasks(data, count) -> list[str]:
  """Returns the tasks of some batches, checking the batches."""
  found = []
  for _ in range(count):
    [(task, batch)] = data.get_next().items()
    number = data._inputs[task].number
    np.testing.assert_array_equal(
      batch.points, points(DIMS[task], number).points
    )
    found.append(task)
  return found


def test_tasks_are_drawn_by_their_weights():
  found = _tasks(_made(), 600)
  assert 360 < found.count('short') < 440
  # Not in turn.
  assert len(set(itertools.pairwise(found))) == 4


def test_a_draw_may_last_some_steps():
  found = _tasks(_made(steps_per_draw=5), 200)
  turns = [found[i : i + 5] for i in range(0, 200, 5)]
  assert all(len(set(turn)) == 1 for turn in turns)
  assert {turn[0] for turn in turns} == {'short', 'long'}


def test_draws_depend_on_the_seed():
  first = _tasks(_made(input_random_seed=3), 50)
  assert first == _tasks(_made(input_random_seed=3), 50)
  assert first != _tasks(_made(input_random_seed=4), 50)


@pytest.mark.parametrize('step', [0, 1, 17])
@pytest.mark.parametrize('held', [1, 3])
def test_a_run_that_continues_draws_the_same(step, held):
  data = _made(steps_per_draw=held)
  whole = [data.get_next() for _ in range(30)]
  continued = _made(steps_per_draw=held)
  continued.resume_at(step)
  for want in whole[step:]:
    found = continued.get_next()
    assert found.keys() == want.keys()
    for task in want:
      np.testing.assert_array_equal(found[task].points, want[task].points)


@pytest.mark.parametrize('first', ['short', 'long'])
def test_no_batch_of_an_example_is_lost(first):
  second = 'long' if first == 'short' else 'short'
  data = _made(schedule=TasksInTurn.config(tasks=[first, second]))
  example = data.example_batch(data.get_next())
  assert example.keys() == DIMS.keys()
  for _ in range(2):  # Asked again, it takes no more.
    again = data.example_batch(example)
    np.testing.assert_array_equal(again[second].points, example[second].points)
  [batch] = data.get_next().values()
  np.testing.assert_array_equal(batch.points, points(DIMS[second], 1).points)
  [batch] = data.get_next().values()
  np.testing.assert_array_equal(batch.points, points(DIMS[first], 2).points)


class Standing(Points):
  """Has a state."""

  state_fits_any_hosts = True

  def _get_state_internal(self):
    return bytes([self.number])

  def _set_state_internal(self, state):
    [self.number] = state


def _standing(cls=Standing):
  return _made(
    inputs={'short': Standing.config(dims=2), 'long': cls.config(dims=3)},
    steps_per_draw=3,
  )


@pytest.mark.parametrize('step', [0, 1, 17])
def test_a_state_has_draws_and_positions(step):
  data = _standing()
  for _ in range(step):
    data.get_next_padded()
  data.example_batch(data.peek_padded())
  state = data.get_state()
  continued = _standing()
  continued.example_batch(continued.peek_padded())
  continued.set_state(state)
  for _ in range(20):
    assert continued.get_state() == data.get_state()
    [(task, batch)] = data.get_next_padded().items()
    np.testing.assert_array_equal(
      continued.get_next_padded()[task].points, batch.points
    )


def test_the_state_of_one_task_is_missing():
  assert _standing().state_fits_any_hosts
  data = _standing(Points)
  assert not data.state_fits_any_hosts
  with pytest.raises(NotImplementedError, match='Points'):
    data.get_state()
  data.example_batch(data.peek_padded())
  assert _tasks_of(data, 8) == _tasks(_standing(), 8)
  assert data.after_restart().startswith(
    'short: it goes on where its resume_at'
  )
  with pytest.raises(errors.UserError, match='state of train cannot be read'):
    _standing().set_state(b'{"inputs": {}}')


def _tasks_of(data, count):
  return [task for _ in range(count) for task in data.get_next_padded()]


def test_processes_feed_parts_of_each_task():
  data = _made(num_infeed_hosts=4, infeed_host_index=2)
  for child in data._inputs.values():
    assert (child.num_infeed_hosts, child.infeed_host_index) == (4, 2)


def test_a_dataset_of_one_task():
  inner = Points.config(dims=3, eval_loop_num_batches=5)
  data = TaskInput.config(name='dev', task='long', input=inner).Instantiate()
  assert data.eval_loop_num_batches == 5 and not data.reset_for_eval
  for _ in range(2):
    np.testing.assert_array_equal(
      data.get_next().long.points, points(3, 1).points
    )
    data.reset()
  assert data.ids_to_strings(np.array([[4, 5]]), np.array([2])) == ['4 5']
  inner.reset_for_eval = True
  data = TaskInput.config(name='dev', task='long', input=inner).Instantiate()
  assert data.reset_for_eval


class Unbuilt(Points):
  """An input that must not be built."""

  def __post_init__(self):
    raise AssertionError('it was built')


def test_fields_are_checked_before_the_tasks_input_is_built():
  config = TaskInput.config(name='a/b', task='long', input=Unbuilt.config())
  with pytest.raises(errors.UserError, match="name is 'a/b'"):
    config.Instantiate()


class Ordered(Points):
  def order_digest(self):
    return bytes([self.number])


def test_the_order_digest_of_a_task():
  config = TaskInput.config(task='long', input=Ordered.config(dims=3))
  data = config.Instantiate()
  data.get_next()
  assert data.order_digest() == b'\1'


class Skipping(Points):
  def input_metrics(self):
    return {'input/skipped_records': float(self.dims)}


def test_metrics_of_children_are_added():
  inputs = {name: Skipping.config(dims=n) for name, n in DIMS.items()}
  metrics = _made(inputs=inputs).input_metrics()
  assert metrics == {'input/skipped_records': float(sum(DIMS.values()))}
  one = TaskInput.config(name='dev', task='long', input=inputs['long'])
  assert one.Instantiate().input_metrics() == {
    'input/skipped_records': float(DIMS['long'])
  }


def test_invalid_fields():
  with pytest.raises(errors.UserError, match="'shrot'.*mean: short"):
    _made(schedule=TasksInTurn.config(tasks=['shrot']))
  with pytest.raises(errors.UserError, match='steps_per_draw is 0'):
    _made(steps_per_draw=0)
  with pytest.raises(errors.UserError, match="on the tasks' inputs"):
    _made(batch_size=3)
  with pytest.raises(errors.UserError, match='expected it on its input'):
    inner = Points.config()
    TaskInput.config(task='a', input=inner, reset_for_eval=True).Instantiate()


class Named(Points):
  """Points with names and example metrics."""

  def get_next(self):
    batch = super().get_next()
    batch.name = np.array(['a'] * len(batch.points))
    return batch

  def is_host_field(self, path, leaf):
    assert path in ('name', 'points', 'eval_sample_weights')
    return super().is_host_field(path, leaf)

  def has_example_metrics(self, kind):
    return kind == 'eval'

  def example_metrics(self, kind, examples):
    return {kind: list(examples)}

  def example_lines(self, kind, examples):
    return [{kind: example} for example in examples]


def test_strings_and_metrics_of_a_task():
  named = Named.config(dims=DIMS['long'])
  one = TaskInput.config(task='long', input=named).Instantiate()
  several = _made(inputs={name: named.clone() for name in DIMS})
  for data in (one, several):
    [(task, batch)] = data.get_next().items()
    rest, host = host_fields.split({task: batch}, data.is_host_field)
    assert list(host) == [f'{task}.name']
    assert sorted(rest[task]) == ['eval_sample_weights', 'points']
  assert not one.is_host_field('eval_sample_weights', np.ones(2))
  assert not several.is_host_field('eval_sample_weights', np.ones(2))
  assert one.has_example_metrics('eval')
  assert not one.has_example_metrics('decode')
  host = {'long.name': 'a'}
  examples = [(host, {'long/score': 1.0})]
  assert one.example_metrics('eval', examples) == {
    'eval': [({'name': 'a'}, {'score': 1.0})]
  }
  assert one.example_lines('eval', examples) == [
    {'eval': ({'name': 'a'}, {'score': 1.0})}
  ]
  # Of a decoding it is what the task's own model has returned.
  assert one.example_metrics('decode', [(host, 'text')]) == {
    'decode': [({'name': 'a'}, 'text')]
  }
