"""Tests of starting with values of this package's checkpoints."""

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from pax_compat import checkpoints, errors, optimizers, tasks_lib
from pax_compat.warm_start import opening, start, transforming
from tests.pax_compat.trainer import tiny

_SOFTMAX = 'params/lm/softmax/logits_ffn/linear/w'
_Rules = tasks_lib.CheckpointLoadingRules


def _program(**train):
  config = tiny.task(**train)
  config.train.learner.optimizer.ema_decay = 0.5
  return tiny.make_program(config)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with a checkpoint, and its program and state."""
  folder = tmp_path_factory.mktemp('run')
  made = _program()
  state, _ = tiny.train(made, 3)
  checkpointer = checkpoints.Checkpointer(folder / 'checkpoints', max_to_keep=1)
  checkpointer.save(3, state, {})
  checkpointer.close()
  return folder, made, state


def _leaves(state):
  return checkpoints.state_paths(state)


def _differing(one, other) -> set[str]:
  one, other = _leaves(one), _leaves(other)
  assert one.keys() == other.keys()
  return {path for path in one if not np.array_equal(one[path], other[path])}


def test_everything_or_the_weights_only(trained):
  folder, made, state = trained
  whole = start.Start(
    {str(folder): _Rules(load_step=True, load_opt_states=True)}
  )
  assert whole.step == 3
  assert not _differing(whole.state(made, tiny.batch()), state)
  weights = start.Start({str(folder / 'checkpoints' / '3'): _Rules()})
  found = weights.state(made, tiny.batch())
  assert weights.step == 0
  changed = _differing(found, state)
  assert 'step' in changed
  assert all(p == 'step' or p.startswith('opt_state.') for p in changed)
  # As a new run begins: averages at the weights, no moments.
  average = _leaves(found)['opt_state.average.ema.lm.final_ln.scale']
  np.testing.assert_array_equal(
    average, _leaves(state)['mdl_vars.params.lm.final_ln.scale']
  )
  shardings = jax.tree.map(lambda x: x.sharding, made.abstract_state)
  assert jax.tree.map(lambda x: x.sharding, found) == shardings


def test_rules_select_and_rename(trained):
  folder, made, state = trained
  new = made.init_state(tiny.batch())
  one = start.Start(
    {
      str(folder): _Rules(
        load_rules=[
          ('params/lm/final_ln/bias', 'params/lm/final_ln/scale'),
          ('params.lm.final_ln.(.*)', 'ema.params.lm.final_ln.{}'),
          ('params/lm/(softmax/.*)', 'params/lm/{}'),
          ('params/lm/sotfmax/(.*)', 'params/lm/{}'),
        ],
        ignore_rules=[f'{_SOFTMAX}$'],
      )
    }
  )
  found = _leaves(one.state(made, tiny.batch()))
  old, fresh = _leaves(state), _leaves(new)
  head = 'mdl_vars.params.lm.'
  for path, wanted in {
    'final_ln.bias': old[f'{head}final_ln.scale'],
    'final_ln.scale': old['opt_state.average.ema.lm.final_ln.scale'],
    'softmax.logits_ffn.bias.b': old[f'{head}softmax.logits_ffn.bias.b'],
    'softmax.logits_ffn.linear.w': fresh[f'{head}softmax.logits_ffn.linear.w'],
  }.items():
    np.testing.assert_array_equal(found[head + path], wanted, path)
  assert 'params/lm/final_ln/bias from mdl_vars/params/lm/final_ln/sc' in (
    one.report
  )
  assert f'initial {_SOFTMAX}' in one.report.splitlines()
  assert f'unused  mdl_vars/{_SOFTMAX} of {one._opened[0].source.path}' in (
    one.report
  )
  assert "'params/lm/sotfmax/(.*)'; did you mean: params/lm/softmax" in (
    one.report
  )


@pytest.mark.parametrize(
  ('rules', 'message'),
  [
    (
      dict(load_rules=[('params/lm/sotfmax/(.*)', 'params/{}')]),
      r'no rule .* matches a variable: .*did you mean: params/lm/softmax',
    ),
    (
      dict(
        load_rules=[
          ('params/lm/final_ln', 'params/lm/final_ln/scale'),
          ('x', ''),
        ],
        safe_load=True,
      ),
      "with safe_load, .*these do not: 'x'",
    ),
    (
      dict(load_rules=[(_SOFTMAX, 'params/lm/softmax/linear/w')]),
      'lacks these variables:\n  params/lm/softmax/linear/w for .*did you me',
    ),
    (
      dict(load_rules=[(_SOFTMAX, 'params/lm/final_ln/scale')]),
      r'other shapes:\n .*linear/w \[8, 16\] from .*/scale \[8\]\nexpected',
    ),
    (dict(load_rules=[('params/(.*)', '{}/{}')]), 'does not fit the groups'),
    (
      dict(load_rules=[('(.*)', 'ema/{}')], load_ema_states=False),
      'load_ema_states is False',
    ),
    (dict(step=4), 'no checkpoint of step 4; the nearest are: 3'),
  ],
)
def test_rules_that_do_not_fit(trained, rules, message):
  folder, made, _ = trained
  with pytest.raises(errors.UserError, match=message):
    start.Start({str(folder): _Rules(**rules)}).state(made, tiny.batch())


def test_an_optimizer_of_another_kind(trained):
  folder, _, _ = trained
  other = tiny.task()
  other.train.learner.optimizer.set(ema_decay=0.5)
  other.train.learner.bprop_variable_exclusion = ['params/lm/softmax/.*']
  frozen = tiny.make_program(other)
  rules = _Rules(load_opt_states=True)
  found = start.Start({str(folder): rules}).state(frozen, tiny.batch())
  # Frozen weights have no state, and keep the loaded value.
  before = _leaves(found)['mdl_vars.' + _SOFTMAX.replace('/', '.')]
  before = np.array(before)
  after, _ = frozen.train_step(found, frozen.put(tiny.batch()))
  kept = _leaves(after)['mdl_vars.' + _SOFTMAX.replace('/', '.')]
  np.testing.assert_array_equal(kept, before)


def test_parts_of_an_optimizers_state(trained):
  folder, made, state = trained
  config = tiny.task()
  config.train.learner.optimizer = optimizers.Sgd.config(
    learning_rate=0.1, momentum=0.9
  )
  other = tiny.make_program(config)
  rules = _Rules(load_opt_states=True)
  with pytest.raises(errors.UserError, match='lacks parts of the .*trace/lm'):
    start.Start({str(folder): rules}).state(other, tiny.batch())
  rules = _Rules(
    ignore_rules=['opt_states/(average|.*/nu/)', 'params/lm/softmax'],
    partial_load_opt_states=True,
  )
  found = start.Start({str(folder): rules}).state(made, tiny.batch())
  found, old = _leaves(found), _leaves(state)
  for path, is_loaded in {
    'opt_state.optimizer.0.1.mu.lm.final_ln.scale': True,
    'opt_state.optimizer.0.1.nu.lm.final_ln.scale': False,
    'mdl_vars.params.lm.final_ln.scale': True,
    'mdl_vars.params.lm.softmax.logits_ffn.linear.w': False,
  }.items():
    assert np.array_equal(found[path], old[path]) == is_loaded, path


def test_transformations_rename_and_make_anew(trained):
  folder, _, state = trained
  stored = checkpoints.StoredCheckpoint(folder / 'checkpoints')
  renamed = _program(
    restore_transformations={
      '(.*)lm/final_ln/bias': ocp.Transform(
        original_key=r'\1lm/final_ln/scale'
      ),
      f'mdl_vars/{_SOFTMAX}': ocp.Transform(value_fn=lambda w: 2 * w),
      'mdl_vars/params/lm/softmax/logits_ffn/bias/b': ocp.Transform(
        use_fallback=True
      ),
    }
  )
  assert not transforming.needed(
    renamed.task.train, stored, renamed.abstract_state
  )
  found = _leaves(transforming.restore(renamed, stored, tiny.batch()))
  old = _leaves(state)
  for path, like in old.items():
    wanted = old[path.replace('final_ln.bias', 'final_ln.scale')]
    if path == 'mdl_vars.' + _SOFTMAX.replace('/', '.'):
      wanted = 2 * wanted
    if path == 'mdl_vars.params.lm.softmax.logits_ffn.bias.b':
      wanted = np.zeros_like(like)
    np.testing.assert_array_equal(found[path], wanted, path)
  wrong = _program(restore_transformations={'mdl_var/(.*)': ocp.Transform()})
  with pytest.raises(errors.UserError, match="'mdl_var/.*' matches no array"):
    transforming.restore(wrong, stored, tiny.batch())


def test_folders_without_a_checkpoint(tmp_path):
  with pytest.raises(errors.UserError, match='no checkpoint; .*empty or miss'):
    opening.open_checkpoint(tmp_path / 'none')
  (tmp_path / 'readme.txt').write_text('')
  with pytest.raises(errors.UserError, match='it contains readme.txt'):
    opening.open_checkpoint(tmp_path)


@pytest.mark.parametrize(
  ('rules', 'message'),
  [
    (
      {'a': {'load_rule': []}},
      "no field 'load_rule'; did you mean: load_rules",
    ),
    ({'a': 'rules'}, r"\['a'\] is 'rules'; expected CheckpointLoadingRules"),
    ({'': {}}, 'the path of a checkpoint'),
    ({'a': {'load_rules': ['(.*)']}}, 'expected a pair'),
    ({'a': {'load_rules': [('(', '')]}}, 'not a regular expression'),
  ],
)
def test_rules_are_checked_when_a_task_is_made(rules, message):
  with pytest.raises(errors.UserError, match=message):
    tasks_lib.Train.config(init_from_checkpoint_rules=rules).Instantiate()
  made = tasks_lib.Train.config(
    init_from_checkpoint_rules={'a': {'load_rules': [tasks_lib.LOAD_ALL]}}
  ).Instantiate()
  [found] = made.init_from_checkpoint_rules.values()
  assert found.load_rules == [tasks_lib.LOAD_ALL]
