"""What is checked of datasets before the first step."""

import logging

import jax.numpy as jnp
import pytest

from pax_compat import base_model
from pax_compat.nested_map import NestedMap
from tests.pax_compat.trainer import lines


class Unweighted(lines.Line):
  """A line whose loss counts all rows equally."""

  def compute_loss(self, predictions, input_batch):
    squares = (input_batch.y - predictions) ** 2
    weights = input_batch.eval_sample_weights
    return NestedMap(
      loss=(jnp.mean(squares), 1.0),
      mean=(jnp.sum(squares * weights) / jnp.sum(weights), 1.0),
    ), NestedMap()


def _warnings(
  model: type[base_model.BaseModel], folder, caplog: pytest.LogCaptureFixture
) -> list[str]:
  task = lines.task(num_train_steps=1)
  task.model = model.config()
  caplog.clear()
  with caplog.at_level(logging.WARNING):
    lines.Lines(task).train(folder)
  return [
    record.getMessage()
    for record in caplog.records
    if 'eval_sample_weights' in record.getMessage()
  ]


def test_a_loss_that_counts_padding_rows_is_logged(tmp_path, caplog):
  (line,) = _warnings(Unweighted, tmp_path / 'counts', caplog)
  assert line.startswith(
    'Unweighted.compute_loss does not use eval_sample_weights of the dataset'
    " 'dev': padding rows"
  )
  assert not _warnings(lines.Line, tmp_path / 'weighs', caplog)
