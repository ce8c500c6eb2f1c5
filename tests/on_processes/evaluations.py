"""Programs that evaluate and decode."""

import pathlib

from tests.pax_compat.trainer import lines, named_rows, sequences


def print_metrics(path: str, count: str, rows: str):
  """Prints metrics, see `sequences.print_metrics`."""
  sequences.print_metrics(path, int(count), int(rows))


def train_on_host_fields(folder: str):
  """Evaluates rows that alternate in a batch, and rows that are replicas."""
  both = ('data', 'replica')
  _train_named(
    pathlib.Path(folder) / 'interleaved',
    'counted',
    ['replica', 'data'],
    inputs_split_mapping=dict(map_1d=[both], map_2d=[both, None]),
  )
  _train_named(pathlib.Path(folder) / 'repeated', 'all', ['mdl', 'data'])


def _train_named(folder, pairs, axes, **fields):
  task = lines.task(
    num_train_steps=2, decode_interval_steps=2, eval_interval_steps=2, **fields
  )
  task.model = named_rows.Echo.config(
    pairs=pairs, ici_mesh_shape=[2, 2], mesh_axis_names=axes
  )
  task.evaluate.write_per_example_out = True
  named_rows.NamedLines(task).train(folder)


class Halves(lines.Lines):
  """Has batches of half as many rows."""

  def datasets(self):
    return [d.set(batch_size=2) for d in super().datasets()]

  def decode_datasets(self):
    return [d.set(batch_size=2) for d in super().decode_datasets()]


def _decoded_enough(metrics, *unused):
  print('asked')
  return metrics['decode_few/Metrics/processed_rows'] >= 6


def train_halves(folder: str):
  """Prints why the training stops."""
  task = lines.task(
    num_train_steps=5,
    eval_interval_steps=2,
    decode_interval_steps=2,
    eval_skip_train=True,
  )
  task.evaluate.write_per_example_out = True
  task.early_stopping_fn = _decoded_enough
  experiment = Halves(task)
  experiment.train(folder)
  print(experiment.printed[-2])
