"""Tests of the step functions; tests/pax/loops_test.py holds their numbers."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from adaptors.pax_names.own import trainer_lib
from pax_compat import errors, py_utils, tasks_lib
from pax_compat.layer_core import summaries
from pax_compat.nested_map import NestedMap
from pax_compat.tasks import train_states
from tests.pax_compat.trainer import lines


def test_a_state_is_known_before_it_is_made():
  config = lines.task()
  config.model.set(ici_mesh_shape=[2, 1], mesh_axis_names=['data', 'mdl'])
  task, batch = config.Instantiate(), lines.rows(0)
  metadata = trainer_lib.create_train_state_metadata(task, batch)
  state, provenance = trainer_lib.initialize_model_state(
    task, jax.random.key(0), batch
  )
  made = jax.tree.map(lambda x: (x.shape, x.dtype), state)
  shapes = metadata.padded_global_shapes
  assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == made
  assert metadata.var_weight_hparams['params']['w'].shape == (lines.DIMS,)
  assert metadata.partition_specs.mdl_vars['params']['b'] == PartitionSpec()
  assert str(provenance.step) == '"(random_init)"'
  restored = train_states.build_train_state_provenance(state, '/a', 3)
  assert str(restored.mdl_vars['params']['w']) == '"(/a:3)"'


def test_decoding():
  task, batch = lines.task().Instantiate(), lines.rows(0)
  state, _ = trainer_lib.initialize_model_state(
    task, jax.random.key(0), batch, discard_opt_states=True
  )
  (weighted, decoded, clu), updated = trainer_lib.decode_step(
    task.model, state, jax.random.key(1), None, batch
  )
  want = np.asarray(batch.x) @ np.full([lines.DIMS], 0.5)
  np.testing.assert_allclose(decoded.y, want, rtol=1e-6)
  assert set(weighted) == {'num_decoded'}
  assert set(clu) == {'decoded_rows'}
  assert not updated


def test_outputs_have_the_provenance_of_examples():
  task, batch = lines.task().Instantiate(), lines.rows(0)
  state, _ = trainer_lib.initialize_model_state(
    task, jax.random.key(0), batch, discard_opt_states=True
  )
  name = py_utils.INDEX_WITHIN_SHARD_KEY
  numbered = NestedMap({**batch, name: np.arange(len(batch.x))})

  _, evaluated = trainer_lib.eval_step_single_learner(
    task, state, jax.random.key(1), numbered
  )
  (_, decoded, _), _ = trainer_lib.decode_step(
    task.model, state, jax.random.key(1), None, numbered
  )

  for found in (evaluated.per_example_out, decoded):
    np.testing.assert_array_equal(found[name], numbered[name])


@pytest.mark.slow
def test_bfloat16_and_own_functions():
  task, batch = lines.task().Instantiate(), lines.rows(0)
  state, _ = trainer_lib.initialize_model_state(task, jax.random.key(0), batch)
  seen = []

  def apply_fn(*, model, variables, inputs, mutable, rngs):
    seen.append(variables['params']['w'].dtype)
    return model.apply(variables, inputs, mutable=mutable, rngs=rngs)

  def no_gradients(loss_fn, learner, mdl_vars, inputs, prng_key):
    del learner
    values = loss_fn(mdl_vars, inputs, prng_key)
    return values, jax.tree.map(np.zeros_like, mdl_vars)

  new, outputs = trainer_lib.train_step_single_learner(
    task,
    state,
    jax.random.key(1),
    batch,
    fprop_dtype='bfloat16',
    grad_fn=no_gradients,
    apply_fn=apply_fn,
  )
  assert seen == ['bfloat16']
  assert outputs.loss.dtype == 'float32'
  assert int(new.step) == 1
  before, after = (s.mdl_vars['params']['w'] for s in (state, new))
  np.testing.assert_array_equal(before, after)


class Summaries(lines.Line):
  """A model with summaries."""

  def compute_predictions(self, input_batch):
    self.add_summary('input', input_batch.x, verbosity=3)
    self.add_summary('detail', input_batch.x, verbosity=4)
    return super().compute_predictions(input_batch)


def test_summaries_have_pax_keys_if_asked():
  batch, config = lines.rows(0), lines.task()
  config.model.cls = Summaries
  task = config.Instantiate()
  state, _ = trainer_lib.initialize_model_state(task, jax.random.key(0), batch)
  for ending in ('', '_scalar'):
    summaries.use_pax_keys(bool(ending))
    try:
      # Traced only.
      _, outputs = jax.eval_shape(
        functools.partial(trainer_lib.train_step_single_learner, task),
        state,
        jax.random.key(1),
        batch,
      )
    finally:
      summaries.use_pax_keys(False)
    found = outputs.summary_tensors
    assert found[f'input{ending}'].shape == batch.x.shape
    assert f'learning/lr{ending}' in found
    assert not [key for key in found if key.startswith('detail')]


def test_what_loops_do_not_support():
  batch = lines.rows(0)
  config = lines.task(
    init_from_checkpoint_rules={
      '/a': tasks_lib.CheckpointLoadingRules(
        load_rules=[('(.*)', '{}')], input_specs_provider_p=None
      )
    }
  )
  with pytest.raises(errors.UserError, match='init_from_checkpoint_rules'):
    trainer_lib.initialize_model_state(
      config.Instantiate(), jax.random.key(0), batch
    )
