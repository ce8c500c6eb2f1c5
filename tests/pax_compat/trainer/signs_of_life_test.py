"""Where a run shows signs of life, and what has no limit or a longer one."""

import contextlib
import math

import orbax.checkpoint as ocp
import pytest

from pax_compat.processes import watchdog
from pax_compat.trainer import run_options
from tests.pax_compat.trainer import lines


@pytest.fixture
def signs(monkeypatch) -> list[str]:
  """Returns the signs of life of watchdogs, as they are shown."""
  found = []
  alive, longer = watchdog.Watchdog.alive, watchdog.Watchdog.longer

  def recording(self, text, *args):
    found.append(text % args)
    alive(self, text, *args)

  @contextlib.contextmanager
  def limits(self, text, seconds=math.inf):
    found.append(f'{seconds} more seconds: {text}')
    with longer(self, text, seconds):
      yield

  monkeypatch.setattr(watchdog.Watchdog, 'alive', recording)
  monkeypatch.setattr(watchdog.Watchdog, 'longer', limits)
  return found


def test_steps_evaluations_and_saves_are_signs(tmp_path, signs):
  lines.train(
    tmp_path / 'run',
    num_train_steps=2,
    save_interval_steps=1,
    eval_interval_steps=0,
  )
  for step in (1, 2):
    for what in ('begins', 'ends'):
      assert signs.count(f'step {step} {what}') == 1
    assert signs.count(f'step {step} is being saved') == 1
  dataset = next(s for s in signs if s.startswith('batch 1 of '))[11:-7]
  ordered = [
    'step 2 begins',
    f'batch 1 of {dataset} begins',
    f'inf more seconds: computing the metrics of {dataset}',
    f'computing the metrics of {dataset} ends',
  ]
  places = [signs.index(sign) for sign in ordered]
  assert places == sorted(places)
  waits = [s for s in signs if s.endswith('for the save of step 2')]
  default = ocp.AsyncOptions().timeout_secs
  assert waits == [f'{default} more seconds: waiting for the save of step 2']


def test_the_limit_of_saves_is_added(tmp_path, signs):
  experiment = lines.Lines(lines.task(num_train_steps=1, eval_interval_steps=0))
  experiment.train(
    tmp_path / 'run', options=run_options.RunOptions(save_timeout_seconds=77)
  )
  assert '77 more seconds: waiting for the save of step 1' in signs
