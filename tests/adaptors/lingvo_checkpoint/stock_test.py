"""Checkpoints of stock experiments in small, which train on as in Lingvo."""

from adaptors.lingvo_checkpoint import exporting, files, importing, task_facts
from adaptors.translate import task as task_translation
from pax_compat import base_layer, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library, small_experiments
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import parity, task_parity

pytestmark = native_library.NEEDS_LINGVO

_SAVED, _STEPS = 2, 4


def test_repeated_layers_with_adafactor(tmp_path):
  """Lingvo has variables and moments for each layer, here they are stacked."""
  params = small_experiments.task_params(
    'lm.synthetic_packed_input.DenseLm175B32x32'
  )
  # So that weights as small as these have factored moments, and momentum.
  params.train.optimizer.Set(min_dim_size_to_factor=2, beta1=0.9)
  data = [small_experiments.batch(params, seed) for seed in range(_STEPS)]
  weights = lingvo_runs.train(params, data, tmp_path)
  translated = task_translation.translate_task(params, 'task')
  first = task_parity.nested(data[0])
  made = program.create(
    translated.config, partitioning.create_mesh(None, None), first
  )
  facts = task_facts.of(params, translated)
  saved = tmp_path / f'ckpt-{_SAVED:08d}'
  state = importing.read_state(
    files.TensorflowCheckpoint(saved), facts, made, first
  )
  exported = files.TensorflowCheckpoint(
    exporting.write(state, facts, tmp_path / 'exported')
  )
  original = files.TensorflowCheckpoint(saved)
  assert exported.shapes == original.shapes
  assert any('/Adafactor_2' in name for name in original.shapes)
  for name in original.shapes:
    assert exported.read(name).tobytes() == original.read(name).tobytes(), name
  for batch in data[_SAVED:]:
    state, _ = made.train_step(state, task_parity.nested(batch))
  ours = facts.variables.to_lingvo(
    learners.by_path(state.mdl_vars[base_layer.PARAMS])
  )
  for path, value in weights[_STEPS].items():
    parity.assert_close(ours[path], value, 1e-4, path)
