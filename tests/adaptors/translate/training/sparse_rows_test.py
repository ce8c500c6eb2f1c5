"""Sparse gradients: rows of a table that a batch does not look up.

Whole steps of a tiny task, with the slots of the table, against Lingvo. Rows
come and go, and come more than once in a batch.
"""

import jax
import numpy as np
import pytest

from adaptors.bridge import task as bridge_task
from adaptors.bridge.functional import fed_task
from pax_compat import learners
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate import parity, tiny_task
from tests.adaptors.translate.tiny_task import optimizer

_TABLE = 'emb.wm[0]'
_IDS = [[0, 0, 3], [1, 3, 2], [0, 5, 5], [2, 2, 2], [0, 1, 4]]
_TOLERANCE = 1e-5
_RARELY = {'l2_regularizer_weight': 0.1, 'clip_gradient_norm_to_value': 0.25}
# By class: fields, and our names of the slots that TensorFlow has.
_CASES = {
  'Momentum': ({'use_nesterov': True}, {'momentum': 'trace'}),
  'RMSProp': ({}, {'rms': 'nu', 'momentum': 'trace'}),
  'AdaDelta': ({'epsilon': 1e-3}, {'accum': 'e_g', 'accum_update': 'e_x'}),
  'Adam': ({'epsilon': 1e-3}, {'m': 'mu', 'v': 'nu'}),
  'Adagrad': ({}, {'accumulator': 'sum_of_squares'}),
  'SGD': ({}, {}),
}


def _batches():
  rng = np.random.default_rng(3)
  return [
    NestedMap(
      ids=np.array(ids, np.int32),
      targets=rng.normal(size=[3, 2]).astype(np.float32),
      scale=np.ones([3, 1], np.float32),
    )
    for ids in _IDS
  ]


def _graft():
  return optimizer(
    'AdaGraft',
    magnitude_optimizer=optimizer('Adagrad').Instantiate(),
    direction_optimizer=optimizer('Adam', epsilon=1e-3).Instantiate(),
  )


def _lingvo(params, data, slots):
  """Returns weights and slots of the table before and after each step."""
  with fed_task.build(params, data[0], optimized=False) as made:
    table = made.variables[_TABLE]
    [learner] = made.task.learners
    of_table = {
      name: learner.optimizer._optimizer.get_slot(table, name) for name in slots
    }
    asked = [made.variables, of_table]
    made.start()
    found = [made.session.run(asked)]
    for batch in data:
      made.session.run(made.task.train_op, made.feed_dict(batch))
      found.append(made.session.run(asked))
  return found


def _ours(params, data, first, slots, translated):
  """Returns the same of a task in JAX, after each step."""
  translated, made, state = tiny_task.start(params, data[0], first, translated)
  [path] = [v.jax for v in translated.variables if v.theta == (_TABLE,)]
  found = []
  for batch in data:
    state, _ = made.train_step(state, batch)
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.opt_state)
    of_table = {
      str(keys[i - 1]).lstrip('.'): np.asarray(leaf)
      for keys, leaf in leaves
      for i in range(len(keys))
      if learners.path_name(keys[i:]) == path
    }
    weights = learners.by_path(state.mdl_vars['params'])
    found.append((translated.variables.to_lingvo(weights), of_table))
  return found


def check(params, slots=None, translated=None):
  """Compares all steps; returns the table after each step in Lingvo."""
  slots, data = slots or {}, _batches()
  theirs = _lingvo(params, data, slots)
  ours = _ours(params, data, theirs[0][0], slots, translated)
  for step, (mine, want) in enumerate(zip(ours, theirs[1:], strict=True)):
    for path, value in want[0].items():
      what = f'{path} after step {step}'
      parity.assert_close(mine[0][path], value, _TOLERANCE, what)
    for name, field in slots.items():
      value = want[1][name]
      if (field, 'rms' in slots) == ('trace', True):
        value = -value  # TensorFlow accumulates what is subtracted.
      what = f'slot {name} after step {step}'
      parity.assert_close(mine[1][field], value, _TOLERANCE, what)
  return [weights[_TABLE] for weights, _ in theirs]


@pytest.mark.parametrize(
  'name',
  [
    'Momentum',
    *(
      pytest.param(name, marks=pytest.mark.slow)
      for name in _CASES
      if name != 'Momentum'
    ),
  ],
)
def test_rows_and_slots_are_as_in_lingvo(name):
  fields, slots = _CASES[name]
  tables = check(
    tiny_task.params(optimizer=optimizer(name, **fields), **_RARELY), slots
  )
  # Row 3 is looked up in the first two steps only.
  stays = np.array_equal(tables[2][3], tables[-1][3])
  assert stays == (name != 'Adam')


def test_a_bridged_table():
  params = tiny_task.params(
    optimizer=optimizer('Momentum'), l1_regularizer_weight=0.05, **_RARELY
  )
  check(params, {'momentum': 'trace'}, bridge_task.bridge_task(params, 'tiny'))


def test_a_grafted_optimizer_trains_no_table():
  params = tiny_task.params(optimizer=_graft(), **_RARELY)
  translated = tiny_task.translate(params)
  tables = check(params, translated=translated)
  assert all(np.array_equal(table, tables[0]) for table in tables)
  [note] = [n for n in translated.notes if 'does not train tables' in n]
  assert 'emb/emb_var' in note


@pytest.mark.slow
def test_shampoo_trains_no_table():
  params = tiny_task.params(
    optimizer=optimizer('DistributedShampoo', matrix_epsilon=1e-2),
    tpu_steps_per_loop=100,
    **_RARELY,
  )
  tables = check(params)
  assert all(np.array_equal(table, tables[0]) for table in tables)


@pytest.mark.slow
def test_several_optimizers():
  """Each treats its own tables."""
  params = tiny_task.params(
    optimizer=optimizer(
      'CompositeOptimizer',
      optimizer_map={
        '.*emb': (optimizer('Momentum'), 0.3),
        'default_optimizer': (optimizer('RMSProp'), 0.05),
      },
    )
  )
  check(params)


@pytest.mark.slow
def test_a_table_that_skips_regularization_does_not_in_lingvo():
  params = tiny_task.params(optimizer=optimizer('SGD'), **_RARELY)
  params.emb.skip_lp_regularization = True
  check(params)
