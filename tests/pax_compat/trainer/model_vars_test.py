"""Tests of restoring a model's variables without the learner's state."""

import jax
import numpy as np
import pytest

from pax_compat import checkpoints, errors
from pax_compat.trainer import model_vars
from tests.pax_compat.trainer import tiny


def _same(found, wanted):
  assert jax.tree.structure(found) == jax.tree.structure(wanted)
  for path, x in checkpoints.state_paths(wanted).items():
    np.testing.assert_array_equal(checkpoints.state_paths(found)[path], x)


def test_variables_or_their_averages_without_the_rest(tmp_path, monkeypatch):
  config = tiny.task()
  config.train.learner.optimizer.ema_decay = 0.5
  program = tiny.make_program(config)
  state, _ = tiny.train(program, 2)
  checkpointer = checkpoints.Checkpointer(tmp_path, max_to_keep=1)
  checkpointer.save(2, state, {})
  checkpointer.close()
  read = []
  original = checkpoints.StoredCheckpoint.read

  def recorded(self, wanted):
    read.append(set(wanted))
    return original(self, wanted)

  monkeypatch.setattr(checkpoints.StoredCheckpoint, 'read', recorded)
  stored = checkpoints.StoredCheckpoint(tmp_path)
  for use_ema in (False, True):
    found = model_vars.restore(program, stored, use_ema=use_ema)
    _same(found, program.eval_vars(state, use_ema=use_ema))
    for x, like in zip(
      jax.tree.leaves(found),
      jax.tree.leaves(program.abstract_state.mdl_vars),
      strict=True,
    ):
      assert x.sharding == like.sharding
  plain, averaged = read
  assert plain and all(path.startswith('mdl_vars.params.') for path in plain)
  assert len(averaged) == len(plain)
  assert all(p.startswith('opt_state.average.ema.') for p in averaged)
  without = tiny.make_program()
  with pytest.raises(errors.UserError, match='no moving average'):
    model_vars.restore(without, stored, use_ema=True)
