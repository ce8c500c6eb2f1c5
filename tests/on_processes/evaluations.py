"""Programs that evaluate and decode."""

import pathlib

import jax

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


class FailingRows(lines.Rows):
  """Fails in the second process, at its second batch."""

  fails: bool = True

  def get_next(self):
    if self.fails and self.read and jax.process_index() == 1:
      raise LookupError('no second batch')
    return super().get_next()


class FailingLine(lines.Line):
  """Its outputs cannot be processed, which only the first process does."""

  place: str = 'process'

  def process_decode_out(self, input_obj, decode_out):
    if self.place == 'process':
      raise KeyError('seqlen')
    return super().process_decode_out(input_obj, decode_out)

  def after_decoding(self):
    def fail(folder, pairs):
      raise ZeroDivisionError('no words')

    return fail if self.place == 'end' else None


class Fails(Halves):
  """An evaluation or a decoding fails, in one process alone."""

  def __init__(self, task, *, data_fail: bool):
    super().__init__(task)
    self._data_fail = data_fail

  def decode_datasets(self):
    return [
      FailingRows.config(
        name='few',
        end=10,
        batch_size=2,
        reset_for_eval=True,
        fails=self._data_fail,
      )
    ]


def fail_alone(folder: str):
  """Prints the errors of decodings that fail in one process alone."""
  for place in ('process', 'end', 'input', ''):
    task = lines.task(num_train_steps=5, decode_interval_steps=2)
    task.model = FailingLine.config(place=place)
    experiment = Fails(task, data_fail=place == 'input')
    try:
      experiment.train(pathlib.Path(folder) / place)
    except Exception as e:  # noqa: BLE001 (all are printed)
      print(f'{type(e).__name__}: {e}')
      print(experiment.printed[-1])
