"""Checkpoints of optimizers whose slots have names of their own kind."""

import numpy as np
import pytest

from adaptors.bridge import task as bridge_task
from adaptors.checkpoints import (
  exporting,
  files,
  importing,
  mapping,
  task_metadata,
)
from pax_compat import base_layer, errors, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import parity, tiny_task

pytestmark = native_library.NEEDS_LINGVO

# Steps of a loop of Shampoo's, and between checkpoints.
_LOOP = 2
_SAVED, _EXPORTED, _STEPS = 4, 6, 8


def _made(name, **fields):
  return tiny_task.optimizer(name, **fields).Instantiate()


def _grafted(magnitude, direction, **fields):
  return tiny_task.optimizer(
    'AdaGraft',
    magnitude_optimizer=magnitude,
    direction_optimizer=direction,
    **fields,
  )


def _weighted(optimizer):
  return tiny_task.optimizer(
    'DynamicAccumulator', min_accum_weight=3.4, optimizer_tpl=optimizer
  )


_OPTIMIZERS = {
  # At the checkpoint gradients of one batch are waiting.
  'weighted': lambda: _weighted(tiny_task.optimizer('Adam')),
  'weighted_graft': lambda: _weighted(
    _grafted(_made('Adagrad'), _made('Adam'))
  ),
  # Four slots of one name, and norms of steps.
  'graft': lambda: _grafted(
    _made('Adam'), _made('Adam', beta1=0.8), diagnostic=True
  ),
  'graft_of_others': lambda: _grafted(
    _made('Momentum'), _made('RMSProp'), direction_optimizer_lr=0.5
  ),
  'accumulated_graft': lambda: tiny_task.optimizer(
    'Accumulator',
    accum_steps=3,
    optimizer_tpl=_grafted(_made('SGD'), _made('Adam')),
  ),
  'shampoo': lambda: _shampoo(),
  'shampoo_without_momentum': lambda: _shampoo(
    momentum=0.0, second_moment_averaging=0.8, max_any_dim=3
  ),
}


def _shampoo(**fields):
  return tiny_task.optimizer(
    'DistributedShampoo',
    start_preconditioning_steps=2,
    matrix_epsilon=1e-2,
    **fields,
  )


def _params(kind):
  params = tiny_task.params(
    optimizer=_OPTIMIZERS[kind](),
    tpu_steps_per_loop=_LOOP,
    bprop_variable_exclusion='emb',
  )
  # With names of its own, since Shampoo's matrices outlive a graph.
  return params.Set(name=f'tiny_{kind}')


def _check(kind, translate, folder):
  """Checks that a run goes to and fro between Lingvo and us."""
  params = _params(kind)
  loop_steps = _LOOP if 'shampoo' in kind else None
  data = tiny_task.batches([1.0, 3.0, 0.5, 2.0] * 2)
  weights = lingvo_runs.train(
    params, data, folder, every=_LOOP, loop_steps=loop_steps
  )
  original = files.newest(folder / f'ckpt-{_SAVED:08d}')

  translated = translate(params)
  made = program.create(
    translated.config.Instantiate(),
    partitioning.create_mesh(None, None),
    data[0],
  )
  metadata = task_metadata.of(params, translated)
  state = importing.read_state(original, metadata, made, data[0])
  exported = files.TensorflowCheckpoint(
    exporting.write(state, metadata, folder / 'exported')
  )
  assert exported.shapes == original.shapes
  assert exported.dtypes == original.dtypes
  unread = {one.name for one in mapping.constants_of(state, metadata)}
  for name in original.shapes:
    same = exported.read(name).tobytes() == original.read(name).tobytes()
    assert same or name in unread, name

  for step, batch in enumerate(data[_SAVED:], start=_SAVED):
    if step == _EXPORTED:
      middle = exporting.write(state, metadata, folder / 'middle')
    state, _ = made.train_step(state, batch)
  found = learners.by_path(state.mdl_vars[base_layer.PARAMS])
  for path, value in metadata.variables.to_lingvo(found).items():
    parity.assert_close(value, weights[_STEPS][path], 1e-5, path)
    if not path.startswith('emb'):
      # Gradients of three steps make an update: the last one is that of step 6.
      assert np.any(value != weights[_SAVED][path]), path
  again = lingvo_runs.train(
    params,
    data[_EXPORTED:],
    folder / 'middle',
    restored=middle,
    every=_LOOP,
    loop_steps=loop_steps,
  )
  for path, value in again[_STEPS - _EXPORTED].items():
    # Lingvo resets the sum of weights while it copies it for summaries.
    if metadata.names[path] not in unread:
      parity.assert_close(value, weights[_STEPS][path], 1e-5, path)


@pytest.mark.slow
@pytest.mark.parametrize('kind', [k for k in _OPTIMIZERS if k != 'weighted'])
def test_to_and_fro(kind, tmp_path):
  _check(kind, tiny_task.translate, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['weighted', 'shampoo'])
def test_of_a_bridged_task(kind, tmp_path):
  def bridged(params):
    return bridge_task.bridge_parts(params, 'tiny')

  _check(kind, bridged, tmp_path)


@pytest.mark.parametrize(
  ('parts', 'message'),
  [
    (('Adam', 'AdamV2'), 'since AdamV2 does not work within it'),
    (('SGD', 'SGD'), 'neither has state'),
    (('XLAShardingAdafactor', 'Adam'), 'Graft, Shampoo or Adafactor'),
  ],
)
def test_grafted_optimizers_that_are_refused(parts, message):
  params = tiny_task.params(optimizer=_grafted(*map(_made, parts)))
  with pytest.raises(errors.UserError, match=message):
    task_metadata.check(params, tiny_task.translate(params))
