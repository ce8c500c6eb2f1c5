"""Bridged tasks that are trained in turn, against Lingvo's models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import multi_task
from adaptors.bridge.model import BridgedModel
from pax_compat import base_layer, errors, learners
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.adaptors.bridge import sharing_model
from tests.adaptors.translate import parity, tiny_model, tiny_task
from tests.adaptors.translate.tasks import multi_task_test

TOLERANCE = 1e-5
_ORDER = [('tag', 1), ('words', 2), ('tag', 1)]


def _check(params, translation, order):
  """Holds weights and averages after each step against Lingvo's.

  Returns:
    Lingvo's weights before and after each step, and our task.
  """
  scales = [1.0, 3.0, 0.5, 2.0][: len(order)]
  batches = tiny_task.batches(scales)
  theirs, wanted, averages = multi_task_test._run_lingvo(params, batches)
  assert theirs == order
  task = multi_task.translate_model(params, 'both', translation).task
  example = NestedMap(tag=batches[0], words=batches[0])
  made = program.create(
    task.config.Instantiate(), partitioning.create_mesh(None, None), example
  )
  state = _state(made, task.variables, example, wanted[0])
  for step, name in enumerate(order):
    state, _ = made.train_step(state, NestedMap({name: batches[step]}))
    _compare(task, state.mdl_vars, wanted[step + 1], f'after {step}')
    if made.learner.has_ema:
      found = made.eval_vars(state, use_ema=True)
      _compare(task, found, averages[step], f'average after {step}')
  counted = state.mdl_vars[base_layer.NON_TRAINABLE]
  # Each bridged task counts the steps of all.
  assert {int(own['global_step']) for own in counted.values()} == {len(order)}
  return wanted, task


def _state(made, variables, example, first):
  initial = made.init_state(example)
  values = jax.tree.map(jnp.asarray, variables.to_jax(first))
  mdl_vars = {**initial.mdl_vars, base_layer.PARAMS: values}
  copies = jax.tree.map(jnp.copy, mdl_vars)
  opt_state = made.learner.init(
    copies[base_layer.PARAMS],
    weight_metas=made.weight_metas,
    variables=copies,
  )
  return program.TrainState(
    step=initial.step, mdl_vars=mdl_vars, opt_state=opt_state
  )


def _compare(task, mdl_vars, wanted, what):
  found = task.variables.to_lingvo(
    learners.by_path(mdl_vars[base_layer.PARAMS])
  )
  for path, value in wanted.items():
    parity.assert_close(found[path], value, TOLERANCE, f'{path}, {what}')


@pytest.mark.slow
def test_bridged_tasks_train_as_in_lingvo():
  """One is bridged, with a user's optimizer, the other one translated."""
  params = tiny_model.params(
    tiny_model.scheduler('SequentialScheduler', task_steps=_ORDER),
    train=dict(ema_decay=0.5),
    **{task: made() for task, made in multi_task_test.TASKS.items()},
  )
  own = params.task_params.tag
  own.cls = type('Own', (own.cls,), {'OwnMethod': lambda self: None})
  training = lingvo_runtime.module('tests.adaptors.bridge.own_training')
  own.train.optimizer = training.ByStep.Params()
  _, task = _check(params, 'auto', ['tag', 'words', 'words', 'tag'])
  models = task.config.model.tasks
  assert models['tag'].cls is BridgedModel
  assert models['words'].cls is tiny_task.TinyModel


def test_tasks_that_share_an_encoder():
  params = sharing_model.params(
    tiny_model.scheduler('SequentialScheduler', task_steps=_ORDER),
    ema_decay=0.5,
  )
  weights, task = _check(params, 'auto', ['tag', 'words', 'words', 'tag'])
  assert task.config.model.tasks['words'].cls is BridgedModel
  for step in range(1, 5):
    before, after = weights[step - 1 : step + 1]
    assert np.any(before['tag.encoder.w'] != after['tag.encoder.w'])
  # New values are equal, too.
  made = program.create(
    task.config.Instantiate(),
    partitioning.create_mesh(None, None),
    example := NestedMap.fromkeys(('tag', 'words'), tiny_task.batches()[0]),
  )
  new = made.init_state(example).mdl_vars[base_layer.PARAMS]
  np.testing.assert_array_equal(
    *(new[f'task_{name}']['encoder']['w'] for name in ('tag', 'words'))
  )
  assert np.any(np.asarray(new['task_tag']['encoder']['w']))


def test_tasks_that_share_an_encoder_may_evaluate_everything():
  params = sharing_model.params()
  for _, task in params.task_params.IterParams():
    task.eval.samples_per_summary = 0
  made = multi_task.translate_model(params, 'both', 'bridge').task
  for name in ('tag', 'words'):
    one = made.config.model.tasks[name].Instantiate().lingvo_task
    assert one.at_evaluation.do_eval


def test_sharing_is_not_translated():
  with pytest.raises(errors.UserError, match='share layers, which is not'):
    multi_task.translate_model(sharing_model.params(), 'both', 'native')
