"""Tests that a run that continues reads the examples that come next."""

import base64
import contextlib
import json
import types

import numpy as np
import pytest

from pax_compat import checkpoints, errors
from pax_compat.inputs import multi_input
from pax_compat.trainer import loop
from pax_compat.trainer.feeding import input_position
from tests.pax_compat import launching, trainer_runs
from tests.pax_compat.trainer import seen

EVERY_2 = seen.steps_of(*range(2, 25, 2))


@pytest.fixture
def log(monkeypatch):
  """Returns the lines that are logged of the training input."""
  lines = []

  def take(text, *args):
    lines.append(text % args)

  logging = types.SimpleNamespace(info=take, warning=take)
  monkeypatch.setattr(input_position, 'logging', logging)
  return lines


def _position(cls=seen.Shuffled, *, demanded=False, **fields):
  data = cls.config(name='train', **fields).Instantiate()
  return data, input_position.InputPosition(data, demanded=demanded)


def _next(data):
  return data.get_next_padded().example.tolist()


# What is saved and restored, without a run.


def test_it_goes_on_after_the_batch_of_the_state(log):
  data, position = _position()
  data.peek_padded()
  states = []
  for _ in range(5):  # Read ahead.
    data.get_next_padded()
    states.append(position.get_state())
  saved = json.loads(json.dumps(position.to_save(states[2])))
  again, position = _position()
  position.begin(3, saved)
  again.peek_padded()
  assert position.get_state() == states[2]
  assert _next(again) == seen.in_order(6, 8).tolist()
  assert log == [
    "the training input 'train' continues exactly after step 3, saved by 1 host"
    ' and read by 1 host'
  ]


@pytest.mark.parametrize('hosts', [1, 2, 4])
def test_a_state_that_fits_any_hosts(hosts, log):
  saved = _position(num_infeed_hosts=2)[1].to_save(b'20')
  read = []
  for host in range(hosts):
    data, position = _position(num_infeed_hosts=hosts, infeed_host_index=host)
    position.begin(5, saved)
    read += _next(data)
  assert read == seen.in_order(20, 20 + 2 * hosts).tolist()
  assert all('continues exactly after step 5' in line for line in log)


@pytest.mark.parametrize('host', [0, 1])
def test_each_host_goes_on_with_a_state_of_its_own(host):
  fields = dict(num_infeed_hosts=2, infeed_host_index=host)
  saved = _position(seen.OfItsHosts, **fields)[1].to_save(b'')
  states = (b'8', b'16')
  saved['input']['states'] = [base64.b64encode(s).decode() for s in states]
  data, position = _position(seen.OfItsHosts, **fields)
  position.begin(2, saved)
  first = (8, 18)[host]
  assert _next(data) == seen.in_order(first, first + 2).tolist()


# Why a state does not fit: who saved it and who reads it, each the class and
# the number of hosts; and the words.
_HOSTS = 'in the checkpoint is for 2 hosts, and this run has 1 host'
MISFITS = {
  'hosts': ((seen.OfItsHosts, 2), (seen.OfItsHosts, 1), _HOSTS),
  'class': (
    (seen.Shuffled, 1),
    (seen.OfItsHosts, 1),
    'has the state of a Shuffled, and the input is a OfItsHosts',
  ),
  'no state': (
    (seen.Shuffled, 1),
    (seen.Stateless, 1),
    'a Stateless has no state',
  ),
  'old checkpoint': (
    None,
    (seen.Shuffled, 1),
    'checkpoint has no state of the',
  ),
}


@pytest.mark.parametrize('why', MISFITS)
def test_a_state_that_does_not_fit(why, log):
  saved_by, (cls, hosts), words = MISFITS[why]
  extra = {}
  if saved_by:
    saver = _position(saved_by[0], num_infeed_hosts=saved_by[1])[1]
    extra = saver.to_save(b'20')
  data, position = _position(cls, num_infeed_hosts=hosts)
  position.begin(7, extra)
  resumes = cls is seen.Stateless
  assert (
    _next(data) == seen.in_order(*((14, 16) if resumes else (0, 2))).tolist()
  )
  [line] = log
  assert line.startswith(
    "the training input 'train' may not continue exactly after step 7: "
  )
  assert words in line
  if resumes:
    assert line.endswith('. So it goes on where its resume_at(step) puts it')
  else:
    assert line.endswith('. So it starts at its first batch again')
    _, position = _position(cls, demanded=True, num_infeed_hosts=hosts)
    with pytest.raises(
      errors.UserError, match=f'exactly after step 7: .*{words}'
    ):
      position.begin(7, extra)


def test_an_input_that_must_have_a_state():
  with pytest.raises(
    errors.UserError,
    match="checkpointing is set.* 'train' .*a Stateless has no state; expected",
  ):
    _position(seen.Stateless, demanded=True)


def test_a_child_without_a_state():
  parts = {'a': seen.Shuffled.config(), 'b': seen.Stateless.config()}
  with pytest.raises(
    errors.UserError,
    match="no state, because its child 'b', a Stateless, has no state",
  ):
    _position(multi_input.MultiInput, demanded=True, input_to_params=parts)


@pytest.mark.parametrize(
  ('cls', 'words'),
  [
    (
      seen.Shuffled,
      'continues exactly after a restart, on any number of hosts',
    ),
    (seen.OfItsHosts, 'continues exactly after a restart, on 3 hosts'),
    (
      seen.Stateless,
      'may not continue exactly after a restart: a Stateless has no state. Then'
      ' it goes on where its resume_at(step) puts it',
    ),
  ],
)
def test_what_is_said_at_the_start(cls, words, log):
  data, position = _position(cls, num_infeed_hosts=3)
  position.begin(0, None)
  assert log == [f"the training input 'train' {words}"]
  assert _next(data) == seen.in_order(0, 2).tolist()
  assert (position.get_state() is None) == (cls is seen.Stateless)
  assert bool(position.to_save(position.get_state())) != (cls is seen.Stateless)


def test_large_states_and_empty_ones():
  for state in (b'', bytes(range(256)) * 4096):
    _, position = _position()
    saved = json.loads(json.dumps(position.to_save(state)))
    data, position = _position()
    taken = []
    data.set_state = taken.append
    position.begin(1, saved)
    assert taken == [state]


# Runs in this process, which read ahead of what they save.


def _train(folder, experiment):
  experiment.train(folder)
  assert seen.examples(folder) == EVERY_2


def test_a_run_that_failed_between_saves(tmp_path, log):
  with pytest.raises(ArithmeticError):
    seen.Experiment(fail_at=6).train(tmp_path)
  assert trainer_runs.steps_saved(tmp_path) == [3]
  demanded = dict(enable_input_checkpointing=True)
  _train(tmp_path, seen.Experiment(train=demanded))
  assert [line.partition(',')[0] for line in log] == [
    "the training input 'train' continues exactly after a restart",
    "the training input 'train' continues exactly after step 3",
  ]


def test_a_run_that_was_stopped_and_saves_by_time(tmp_path):
  with pytest.raises(loop.Stopped):
    seen.Experiment(stop_at=8).train(tmp_path)
  assert trainer_runs.steps_saved(tmp_path)[-1] < 8
  by_time = dict(save_interval_steps=None, save_interval_seconds=1e-9)
  with pytest.raises(ArithmeticError):
    seen.Experiment(train=by_time, fail_at=4).train(tmp_path)
  assert trainer_runs.steps_saved(tmp_path)[-1] not in (3, 6)
  _train(tmp_path, seen.Experiment())


def test_a_run_that_stopped_early(tmp_path):
  # It evaluates the next training batch, which is trained on later.
  evaluates = dict(eval_skip_train=False, eval_interval_steps=2)
  stops = seen.Experiment(
    train=evaluates, early_stopping_fn=lambda metrics, mode, step, *_: step == 4
  )
  stops.train(tmp_path)
  assert trainer_runs.steps_saved(tmp_path) == [3, 4]
  # It is over, and does not read a batch or the state to find that out.
  over = seen.Experiment(
    train=evaluates, early_stopping_fn=lambda *_: False, fail_at=1
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(checkpoints.Checkpointer, 'restore', None)
    over.train(tmp_path)
  _train(tmp_path, seen.Experiment(train=evaluates))


def test_a_checkpoint_without_a_state(tmp_path, log):
  with pytest.raises(ArithmeticError):
    seen.Experiment(seen.Stateless, fail_at=6).train(tmp_path)
  _train(tmp_path, seen.Experiment(seen.Stateless))
  _train_on = tmp_path / 'demanded'
  demanded = dict(enable_input_checkpointing=True)
  with pytest.raises(errors.UserError, match='a Stateless has no state'):
    seen.Experiment(seen.Stateless, train=demanded).train(_train_on)
  assert 'may not continue exactly after step 3' in log[1]


# Processes that train together, and are killed.


_HOST = """
import json, pathlib, sys
import jax
index, count, port, folder, hold_at = sys.argv[1:]
index, count = int(index), int(count)
jax.distributed.initialize(f'localhost:{port}', count, index)

from pax_compat import errors
from pax_compat.inputs import multi_input
from pax_compat.trainer.feeding import input_position
from tests.pax_compat.trainer import seen

def position(cls, host=index, hosts=count):
  config = cls.config(num_infeed_hosts=hosts, infeed_host_index=host)
  return input_position.InputPosition(config.Instantiate(), demanded=False)

mine = bytes([index]) * (5000 + index)
print(json.dumps(dict(
  each_its_own=position(seen.OfItsHosts).to_save(mine),
  hosts_that_read_the_same=position(seen.OfItsHosts, 0, 1).to_save(b'same'),
  fits_any=position(seen.Shuffled).to_save(b'same'),
  one_has_none=position(seen.Stateless if index else seen.Shuffled).get_state(),
)))
try:
  position(seen.Shuffled).to_save(mine)
except errors.UserError as e:
  print(e, flush=True)

seen.Experiment(
  hold_at=int(hold_at), hold_file=f'{folder}.held.{count}.'
).train(pathlib.Path(folder))
"""


def _killed_on(count, *, folder, at, step) -> list[str]:
  """Trains on some processes, and kills them.

  Args:
    count: of the processes.
    folder: of the run.
    at: the batch that they wait for, of those since the start.
    step: what they are to save before.

  Returns:
    What each of them printed.
  """
  held = [folder.with_name(f'run.held.{count}.{i}') for i in range(count)]
  with contextlib.ExitStack() as stack:
    port = stack.enter_context(launching.free_port())
    hosts = [
      stack.enter_context(
        trainer_runs.start(
          ['-c', _HOST, index, count, port, folder, at],
          output=folder.with_name(f'{count}_{index}'),
        )
      )
      for index in range(count)
    ]
    for host, file in zip(hosts, held, strict=True):
      host.wait_until(file.exists)
    hosts[0].wait_until(lambda: trainer_runs.steps_saved(folder)[-1:] == [step])
  return [host.stdout for host in hosts]


@pytest.fixture(scope='module')
def killed(tmp_path_factory):
  """Returns the folder of a run that was killed on two and on four hosts.

  And what each of the two printed.
  """
  folder = tmp_path_factory.mktemp('killed') / 'run'
  printed = _killed_on(2, folder=folder, at=5, step=3)
  _killed_on(4, folder=folder, at=5, step=6)
  return folder, printed


def test_states_of_several_processes(killed):
  outputs = [text.split('{"each_its', 1)[1] for text in killed[1]]
  assert outputs[0].splitlines()[:2] == outputs[1].splitlines()[:2]
  line, mistake = outputs[0].splitlines()[:2]
  saved = json.loads('{"each_its' + line)
  assert saved.pop('one_has_none') is None
  states = {
    name: [base64.b64decode(s) for s in of['input']['states']]
    for name, of in saved.items()
  }
  assert states == {
    'each_its_own': [bytes(5000), b'\1' * 5001],
    'hosts_that_read_the_same': [b'same'],
    'fits_any': [b'same'],
  }
  assert mistake.startswith('the states of Shuffled differ between hosts')


def test_each_example_is_seen_once_whatever_the_number_of_hosts(killed):
  folder, _ = killed
  seen.Experiment().train(folder)
  steps = seen.examples(folder)
  assert [len(step) for step in steps] == [4] * 3 + [8] * 3 + [2] * 6
  assert np.bincount(np.concatenate(steps)).tolist() == [2] * seen.COUNT
  ends = np.cumsum([len(step) for step in steps]).tolist()
  assert steps == seen.steps_of(*ends)
