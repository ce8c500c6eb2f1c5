"""A linear model with every kind of output, and its runs.

Its loss is the mean square of `y - x w - b`, over the rows that count.
"""

import json
import pathlib
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from clu import metrics as clu_metrics

from pax_compat import (
  base_experiment,
  base_input,
  base_metrics,
  base_model,
  optimizers,
  tasks_lib,
)
from pax_compat import config as config_lib
from pax_compat.base_layer import SummaryType, WeightHParams
from pax_compat.experiments import resolved
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program, run

DIMS = 3
BATCH = 4


@flax.struct.dataclass
class Total(clu_metrics.Metric):
  """The sum of something over all batches."""

  total: Any

  def merge(self, other):
    return type(self)(self.total + other.total)

  def compute(self):
    return self.total


class Line(base_model.BaseModel):
  """The line.

  Attributes:
    noise: how much normal noise is added to the loss.
    has_summaries: whether there are summaries.
  """

  noise: float = 0.0
  has_summaries: bool = False

  def setup(self):
    self.create_variable('w', WeightHParams([DIMS], WeightInit.Constant(0.5)))
    self.create_variable('b', WeightHParams([], WeightInit.Constant(0.0)))
    self.create_variable(
      'calls', WeightHParams([], WeightInit.Constant(0.0)), trainable=False
    )

  def compute_predictions(self, input_batch):
    if not self.do_eval:
      self.update_var('calls', self.theta.calls + 1)
    return input_batch.x @ self.theta.w + self.theta.b

  def compute_loss(self, predictions, input_batch):
    weights = input_batch.eval_sample_weights
    total = jnp.sum(weights)
    squares = (input_batch.y - predictions) ** 2
    loss = jnp.sum(squares * weights) / total
    if self.noise:
      loss += self.noise * jax.random.normal(self.next_prng_key())
    if self.has_summaries:
      self._say(input_batch.x)
    metrics = NestedMap(
      loss=(loss, total),
      largest=(jnp.max(squares * weights), total),
      spread=(jnp.array([1.0, 3.0]), total),
      rows=Total(total),
      mean_square=base_metrics.WeightedScalarCluMetric.create(squares, weights),
    )
    return metrics, NestedMap(square=squares, x=input_batch.x)

  def _say(self, x):
    self.add_summary('first', x[0, 0])
    self.add_summary('quiet', x[0, 1], verbosity=4)
    self.add_summary('all', x, SummaryType.HISTOGRAM)
    self.add_summary('picture', x[None, :, :, None], SummaryType.IMAGE)
    self.add_summary('words', 'said', SummaryType.TEXT)

  def decode(self, input_batch):
    predictions = self.compute_predictions(input_batch)
    weights = input_batch.eval_sample_weights
    drawn = jax.random.normal(self.next_prng_key())
    if self.has_summaries:
      self._say(input_batch.x)
    return (
      NestedMap(num_decoded=(jnp.sum(weights), 1.0)),
      NestedMap(
        y=predictions, weights=weights, drawn=jnp.full_like(weights, drawn)
      ),
      NestedMap(decoded_rows=Total(jnp.sum(weights))),
    )

  def process_decode_out(self, input_obj, decode_out):
    assert isinstance(decode_out.y, np.ndarray)
    pairs = [
      (f'{input_obj.name}{i}', {'y': y, 'drawn': drawn})
      for i, (y, drawn, weight) in enumerate(
        zip(decode_out.y, decode_out.drawn, decode_out.weights, strict=True)
      )
      if weight
    ]
    return (
      NestedMap(num_processed=(float(len(pairs)), 1.0)),
      pairs,
      NestedMap(processed_rows=Total(jnp.float32(len(pairs)))),
    )


class Rows(base_input.BaseInput):
  """Batches of rows that depend on their number only.

  Attributes:
    batch_size: rows of a batch of this process.
    end: how many rows there are; None for no end. The last batch of all
      processes together is filled up with rows that do not count.
  """

  batch_size: int = BATCH
  end: int | None = None

  def __post_init__(self):
    super().__post_init__()
    self.read = 0

  def get_next(self):
    size = self.batch_size
    first = self.read * self.num_infeed_hosts * size
    if self.end is not None and first >= self.end:
      raise StopIteration
    self.read += 1
    mine = first + self.infeed_host_index * size
    return rows(mine, count=size, end=self.end)

  def reset(self):
    self.read = 0

  def resume_at(self, step):
    self.read = step


def rows(first: int, *, count: int = BATCH, end: int | None = None):
  """Returns a batch of rows; those from `end` on are there to mislead."""
  drawn = np.stack(
    [
      np.random.default_rng(first + i).normal(size=DIMS + 1)
      for i in range(count)
    ]
  ).astype(np.float32)
  counts = np.arange(first, first + count) < (np.inf if end is None else end)
  return NestedMap(
    x=drawn[:, :DIMS],
    y=np.where(counts, drawn[:, DIMS], 1e6).astype(np.float32),
    eval_sample_weights=counts.astype(np.float32),
  )


def task(*, model: dict | None = None, **train) -> config_lib.Config:
  """Returns the task.

  Args:
    model: fields of `Line`.
    **train: fields of `tasks_lib.Train`.
  """
  made = tasks_lib.SingleTask.config(model=Line.config(**model or {}))
  made.train.set(**train)
  made.train.learner.optimizer = optimizers.Sgd.config(learning_rate=0.1)
  return made


def make_program(config: config_lib.Config) -> program.TaskProgram:
  """Returns the program of a task, on all devices."""
  mesh = partitioning.create_mesh(None, None)
  return program.create(config.Instantiate(), mesh, rows(0, count=8))


class Lines(base_experiment.BaseExperiment):
  """An experiment with a task that is given, 10 rows to evaluate, 6 to decode.

  Attributes:
    printed: the lines that its runs print.
  """

  def __init__(self, config: config_lib.Config):
    self._task = config
    self.printed: list[str] = []

  def task(self):
    return self._task.clone()

  def datasets(self):
    return [
      Rows.config(name='train', is_training=True),
      Rows.config(name='dev', end=10, reset_for_eval=True),
    ]

  def decode_datasets(self):
    return [Rows.config(name='few', end=6, reset_for_eval=True)]

  def train(self, folder: pathlib.Path, **options):
    """Runs it, in this process."""
    experiment = resolved.resolve(self, name='lines')
    run.train(
      experiment,
      job_log_dir=str(folder),
      print_line=self.printed.append,
      **options,
    )


def train(folder: pathlib.Path, **fields) -> Lines:
  """Runs `task(**fields)` for 4 steps by default; returns the experiment."""
  experiment = Lines(task(**dict(num_train_steps=4) | fields))
  experiment.train(folder)
  return experiment


def metrics(folder: pathlib.Path, split: str) -> dict[tuple[int, str], float]:
  """Returns what metrics.jsonl has of a split, by step and name."""
  lines = map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())
  return {
    (x['step'], x['name']): x['value'] for x in lines if x['split'] == split
  }


def steps(folder: pathlib.Path, split: str, name: str = 'loss') -> list[int]:
  """Returns the steps at which metrics.jsonl has a metric of a split."""
  return [step for step, found in metrics(folder, split) if found == name]


def losses(count: int, *, w: np.ndarray, b: float) -> tuple[list, Any, Any]:
  """Returns the losses of steps of gradient descent, in numpy, and w and b."""
  found = []
  for step in range(count):
    batch = rows(step * BATCH)
    error = batch.x @ w + b - batch.y
    found.append(float(np.mean(error**2)))
    w = w - 0.1 * 2 * batch.x.T @ error / BATCH
    b = b - 0.1 * 2 * np.mean(error)
  return found, w, b
