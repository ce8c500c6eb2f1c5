"""Tests of what a run writes before it trains."""

import pytest

from pax_compat import base_input
from pax_compat.configs import config_text
from pax_compat.trainer import partitioning
from pax_compat.trainer.reporting import run_folder
from tests.pax_compat.trainer import tiny

# V 16, D 8, hidden 16, 2 heads; the embedding is the softmax's, and positions
# have no weights.
SOFTMAX = 8 * 16 + 16
ATTENTION = 4 * 8 * 8 + 4 * 8 + 4  # weights, biases, scale of a head's dims
FEED_FORWARD = 8 * 16 + 16 + 16 * 8 + 8
NORMS = 3 * 2 * 8
TOTAL = SOFTMAX + ATTENTION + FEED_FORWARD + NORMS


@pytest.fixture(scope='module')
def made():
  mesh = partitioning.create_mesh((1, 1, 1), tiny.MESH_AXES)
  return tiny.make_program(tiny.task(split=True), mesh)


def test_every_parameter_is_counted(made):
  assert run_folder.num_parameters(made) == TOTAL
  table = run_folder.parameter_table(made)
  mesh = 'mesh ' + ' x '.join(f'{axis} 1' for axis in tiny.MESH_AXES)
  assert table.endswith(f'\n{mesh}\ntotal {TOTAL:,}\n')
  rows = [line.split() for line in table.splitlines()[1:-2]]
  assert sum(int(row[2].replace(',', '')) for row in rows) == TOTAL


def test_a_row_says_shape_dtype_and_sharding(made):
  rows = {
    line.split()[0]: line.split(maxsplit=4)[1:]
    for line in run_folder.parameter_table(made).splitlines()
  }
  head = rows['path']
  assert head == ['shape', 'count', 'dtype', 'sharding']
  table = rows['params/lm/softmax/logits_ffn/linear/w']
  assert table == ['8x16', '128', 'float32', "('data', 'mdl')"]
  norm = 'params/lm/transformer/x_layers_0/ff_layer/layer_norm/scale'
  assert rows[norm] == ['8', '8', 'float32', 'replicated']


def test_files(made, tmp_path):
  run_folder.write(
    tmp_path,
    config_text.to_text(
      dict(
        task=tiny.task(), datasets=[base_input.BaseInput.config(name='train')]
      )
    ),
    made,
    {'mine.txt': 'my settings'},
    tiny.batch(),
  )
  assert {p.name for p in tmp_path.iterdir()} == {
    'config.txt',
    'parameters.txt',
    'mine.txt',
    'batch_shapes.json',
  }
  config = (tmp_path / 'config.txt').read_text()
  assert 'task.model.lm_tpl.vocab_size = 16\n' in config
  assert "datasets[0].name = 'train'\n" in config
  assert (tmp_path / 'mine.txt').read_text() == 'my settings'


def test_a_changed_config_is_reported(made, tmp_path, caplog):
  """The two configs differ in one field, which the second start names."""
  for steps in (5, 5, 9):
    task = tiny.task()
    task.train.num_train_steps = steps
    with caplog.at_level('WARNING', logger='absl'):
      text = config_text.to_text({'task': task})
      run_folder.write(tmp_path, text, made, {}, tiny.batch())
  assert [record.getMessage() for record in caplog.records] == [
    'the config differs from that of the last start:'
    ' task.train.num_train_steps = 9, was 5'
  ]
