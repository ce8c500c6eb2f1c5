"""Checkpoints of shrunk stock experiments; training continues as in Lingvo."""

import pytest

from adaptors.checkpoints import exporting, files, importing, task_metadata
from adaptors.translate.tasks import single as task_translation
from pax_compat import base_layer, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library, small_experiments
from tests.adaptors.bridge.families import (
  asr_wpm,
  lenet5_batch_norm,
  mt_rnmt,
  mt_transformer,
  mt_xendec,
  starnet_kitti,
)
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import parity, task_parity

pytestmark = native_library.NEEDS_LINGVO


def _continued(params, data, folder, saved, without=(), static=False):
  """Trains in Lingvo; then here, from its checkpoint of a step, to the end.

  Compares the last weights with Lingvo's, and an export of the import with the
  checkpoint, bit by bit.

  Args:
    params: of the task.
    data: a batch for each step.
    folder: of Lingvo's checkpoints.
    saved: the step of the checkpoint.
    without: parts of the theta paths of weights that are not compared.
    static: whether Lingvo needs the shapes of batches.

  Returns:
    The metadata, and our last state.
  """
  weights = lingvo_runs.train(params, data, folder, static_shapes=static)
  translated = task_translation.translate_task(params, 'task')
  first = task_parity.nested(data[0])
  made = program.create(
    translated.config.Instantiate(), partitioning.create_mesh(None, None), first
  )
  metadata = task_metadata.of(params, translated)
  original = files.TensorflowCheckpoint(folder / f'ckpt-{saved:08d}')
  state = importing.read_state(original, metadata, made, first)
  exported = files.TensorflowCheckpoint(
    exporting.write(state, metadata, folder / 'exported')
  )
  assert exported.shapes == original.shapes
  for name in original.shapes:
    assert exported.read(name).tobytes() == original.read(name).tobytes(), name
  for batch in data[saved:]:
    state, _ = made.train_step(state, task_parity.nested(batch))
  ours = {}
  for name, is_trainable in (
    (base_layer.PARAMS, True),
    (base_layer.NON_TRAINABLE, False),
  ):
    own = translated.variables.only(is_trainable=is_trainable)
    ours |= own.to_lingvo(learners.by_path(state.mdl_vars.get(name, {})))
  for path, value in weights[len(data)].items():
    if any(part in path for part in without):
      continue
    parity.assert_close(ours[path], value, 1e-4, path)
  return metadata, state


def _batches(params, count):
  return [small_experiments.batch(params, seed) for seed in range(count)]


def test_repeated_layers_with_adafactor(tmp_path):
  """Lingvo has variables and moments for each layer, here they are stacked."""
  params = small_experiments.task_params(
    'lm.synthetic_packed_input.DenseLm175B32x32'
  )
  # So that weights as small as these have factored moments, and momentum.
  params.train.optimizer.Set(min_dim_size_to_factor=2, beta1=0.9)
  _continued(params, _batches(params, 4), tmp_path, 2)
  saved = files.TensorflowCheckpoint(tmp_path / 'ckpt-00000002')
  assert any(name.endswith('/Adafactor_2') for name in saved.shapes)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('family', 'without'),
  [
    # Of no gradient but for rounding errors, which Adam normalizes.
    (mt_transformer, ('source_proj_b',)),
    # Of the learner: its norms of gradients.
    (mt_rnmt, ('learners[',)),
    (lenet5_batch_norm, ()),
    (asr_wpm, ('learners[',)),
    # It counts steps in addition.
    (mt_xendec, ('source_proj_b',)),
    (starnet_kitti, ()),
  ],
)
def test_other_families(family, without, tmp_path):
  data = [family.batch(seed) for seed in range(6)]
  static = getattr(family, 'STATIC_SHAPES', False)
  params = family.task_params()
  _, state = _continued(params, data, tmp_path, 3, without, static)
  if family is mt_xendec:
    assert state.mdl_vars[base_layer.NON_TRAINABLE]['global_step'] == 6


@pytest.mark.slow
def test_twenty_steps_and_twenty_more(tmp_path):
  """Then Lingvo evaluates what we trained as we do."""
  params = small_experiments.task_params(
    'lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmaxTiny'
  )
  params.lm.embedding_dropout_keep_prob = params.lm.rnns.dropout.keep_prob = 1.0
  params.lm.softmax.num_sampled = 0  # All classes, so nothing is random.
  data = _batches(params, 40)
  metadata, state = _continued(params, data, tmp_path, 20)
  back = files.TensorflowCheckpoint(
    exporting.write(state, metadata, tmp_path / 'back')
  )
  theirs = task_parity.evaluate_in_lingvo(
    params,
    data[0],
    {theta: back.read(n) for theta, n in metadata.names.items()},
  )
  ours = task_parity.Ours.create(params, data[0], theirs.weights)
  evaluated = ours.evaluate(data[0])
  for name in ('log_pplx', 'loss'):
    parity.assert_close(evaluated[name][0], theirs.metrics[name][0], 1e-6, name)
