"""Tests of runs that start from other checkpoints, or continue transformed."""

import pathlib
import re
import shlex
import types

import numpy as np
import orbax.checkpoint as ocp
import pytest

from pax_compat import errors, tasks_lib
from pax_compat.configs import config_overrides
from tests.pax_compat import trainer_runs
from tests.pax_compat.trainer import lines

_WEIGHT = 'mdl_vars.params.w'


def test_a_run_starts_from_another_one(tmp_path):
  old, new, whole = tmp_path / 'old', tmp_path / 'new', tmp_path / 'whole'
  lines.train(old, num_train_steps=2)
  before = trainer_runs.state(old, 2)
  rules = {str(old): dict(load_rules=[('params/(w)', 'params/{}')])}
  frozen = tasks_lib.SingleTask.config().train.learner.clone()
  frozen.optimizer = lines.task().train.learner.optimizer
  frozen.bprop_variable_exclusion = ['params/w']
  experiment = lines.train(
    new, num_train_steps=1, init_from_checkpoint_rules=rules, learner=frozen
  )
  [said] = [line for line in experiment.printed if line.startswith('starts')]
  assert f'checkpoint 2 in {old}/checkpoints' in said
  after = trainer_runs.state(new, 1)
  np.testing.assert_array_equal(after[_WEIGHT], before[_WEIGHT])
  assert (new / 'warm_start.txt').read_text().splitlines()[:3] == [
    '1 of 3 variables are loaded; the run starts at step 0',
    f'loaded  params/w from mdl_vars/params/w of checkpoint 2 in'
    f' {old}/checkpoints',
    'initial non_trainable/calls',
  ]
  # Everything, the step included: the run continues where the other one ended.
  lines.train(whole, num_train_steps=3, external_checkpoint_path=str(old))
  lines.train(old, num_train_steps=3)
  trainer_runs.assert_same_state(whole, old, 3)


def test_a_run_continues_with_transformations(tmp_path):
  lines.train(tmp_path, num_train_steps=1)
  before = trainer_runs.state(tmp_path, 1)

  def train(steps, transformations):
    config = lines.task(
      num_train_steps=steps, restore_transformations=transformations
    )
    config.train.learner.optimizer.ema_decay = 0.5
    lines.Lines(config).train(tmp_path)

  with pytest.raises(errors.UserError, match='does not fit the experiment'):
    train(2, None)
  new = {'opt_state/average/.*': ocp.Transform(use_fallback=True)}
  train(2, new)
  after = trainer_runs.state(tmp_path, 2)
  assert not np.array_equal(after[_WEIGHT], before[_WEIGHT])
  # They do not apply to the checkpoint that they have made.
  train(3, new)
  assert int(trainer_runs.state(tmp_path, 3)['opt_state.average.count']) == 2


def test_the_page_of_warm_starts():
  page = pathlib.Path(__file__).parents[3] / 'docs/warm_start.md'
  text = page.read_text('utf-8')
  [command] = re.findall(r'```bash\n(.*?)```', text, re.DOTALL)
  [setting] = [
    one.removeprefix('--set=')
    for one in shlex.split(command)
    if one.startswith('--set=')
  ]
  config = tasks_lib.SingleTask.config()
  config_overrides.apply({'task': config}, [setting])
  [rules] = config.train.Instantiate().init_from_checkpoint_rules.values()
  assert rules.load_rules == [tasks_lib.LOAD_ALL]
  names = dict(
    task=config,
    tasks_lib=tasks_lib,
    orbax=types.SimpleNamespace(checkpoint=ocp),
  )
  for block in re.findall(r'```python\n(.*?)```', text, re.DOTALL):
    exec(compile(block, page.name, 'exec'), names)
  train = config.train.Instantiate()
  [rules] = train.init_from_checkpoint_rules.values()
  assert rules.ignore_rules == ['params/lm/softmax/.*']
  assert len(train.restore_transformations) == 2
