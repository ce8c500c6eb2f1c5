"""Evaluation against numpy over the rows with a weight."""

import json

import numpy as np
import pytest

from pax_compat import base_metrics, errors
from pax_compat.inputs import multi_input
from pax_compat.trainer import partitioning, program
from pax_compat.trainer.evaluating import batch_results, evaluation
from tests.pax_compat.trainer import lines

END = 10  # rows, in batches of 4
ROWS = lines.rows(0, count=END)
SQUARES = (ROWS.y - ROWS.x @ np.full(lines.DIMS, 0.5)) ** 2


@pytest.fixture(scope='module')
def made():
  return lines.make_program(lines.task(model=dict(has_summaries=True)))


def _evaluate(made, data, **kwargs):
  return evaluation.evaluate(
    data,
    task_program=made,
    mdl_vars=made.init_state(lines.rows(0)).mdl_vars,
    **kwargs,
  )


def _rows(**fields):
  return lines.Rows.config(
    name='dev', **dict(end=END, reset_for_eval=True) | fields
  ).Instantiate()


def test_every_row_with_a_weight_counts_once(made):
  data = _rows()
  for _ in range(2):  # The next evaluation reads the same again.
    found = _evaluate(made, data)
    assert data.read == 0
    numbers = batch_results.numbers(found)
    np.testing.assert_allclose(numbers['loss'], SQUARES.mean(), rtol=1e-6)
    np.testing.assert_allclose(numbers['mean_square'], SQUARES.mean(), 1e-6)
    assert numbers['rows'] == END
    assert numbers['num_batches'] == 3


def test_a_batch_of_padding_rows_does_not_count(made):
  """Its loss is 0/0."""
  data = _rows(end=4, batch_size=2)
  data.end, want = 3, SQUARES[:3].mean()
  np.testing.assert_allclose(_evaluate(made, data)['loss'], want, rtol=1e-6)
  padding = lines.rows(0, end=0)
  outputs = made.eval_step(made.init_state(padding).mdl_vars, padding)
  assert np.isnan(outputs['loss'])
  means = batch_results.StepAggregator(made)
  means.add(outputs)
  assert 'loss' not in means.result()


def test_without_reset_the_next_batches_are_read(made):
  data = _rows(end=None, reset_for_eval=False, eval_loop_num_batches=2)
  for first in (0, 8):
    found = _evaluate(made, data)
    rows = lines.rows(first, count=8)
    squares = (rows.y - rows.x @ np.full(lines.DIMS, 0.5)) ** 2
    np.testing.assert_allclose(found['loss'], squares.mean(), rtol=1e-6)
    assert found['num_batches'] == 2
  assert data.read == 4


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (
      dict(end=8, reset_for_eval=False, eval_loop_num_batches=3),
      "'dev' has 2 batches; expected 3",
    ),
    (dict(end=0), "'dev' has 0 batches; expected at least one"),
  ],
)
def test_too_few_batches(made, fields, message):
  with pytest.raises(errors.UserError, match=message):
    _evaluate(made, _rows(**fields))


def test_summaries_of_layers(made):
  found = _evaluate(made, _rows())
  batches = [lines.rows(first) for first in (0, 4, 8)]
  first = np.mean([batch.x[0, 0] for batch in batches])
  np.testing.assert_allclose(found['first'], first, rtol=1e-6)
  assert 'quiet' not in found
  assert found['words'].value == 'said'
  # Large ones are of the first batch alone.
  x = batches[0].x
  np.testing.assert_allclose(found['picture'].value[0, :, :, 0], x, rtol=1e-6)
  assert found['all'].counts.sum() == x.size
  assert found['all'].low == x.min()


def test_the_metrics_of_the_task():
  task = lines.task()
  task.metrics = base_metrics.CompositeMetrics.config(
    metrics_p=[
      base_metrics.MaxMetrics.config(metric_keys=['largest']),
      base_metrics.HistogramMetrics.config(histogram_key='spread'),
    ]
  )
  found = _evaluate(lines.make_program(task), _rows())
  np.testing.assert_allclose(found['largest'], SQUARES.max(), rtol=1e-6)
  assert found['spread_coverage'] == 1
  # The loss is its mean nevertheless.
  np.testing.assert_allclose(found['loss'], SQUARES.mean(), rtol=1e-6)


def test_a_metric_that_the_model_does_not_have():
  task = lines.task()
  task.metrics = base_metrics.MeanMetrics.config(metric_keys=['los'])
  made = lines.make_program(task)
  with pytest.raises(
    errors.UserError, match="'los', which is not .* mean: loss"
  ):
    _evaluate(made, _rows())


def test_a_loss_of_several_metrics():
  task = lines.task()
  task.loss_aggregator = base_metrics.MultiLossAggregator.config(
    loss_keys=['loss', 'mean_square'], loss_weights=[1.0, 2.0]
  )
  found = _evaluate(lines.make_program(task), _rows())
  np.testing.assert_allclose(found['total_loss'], 3 * SQUARES.mean(), 1e-6)


def test_per_example_outputs(tmp_path):
  task = lines.task()
  task.evaluate.write_per_example_out = True
  path = tmp_path / 'eval_out' / 'dev.jsonl'
  _evaluate(lines.make_program(task), _rows(), examples_path=path)
  found = list(map(json.loads, path.read_text().splitlines()))
  assert [(x['batch'], x['row']) for x in found] == [
    divmod(i, lines.BATCH) for i in range(END)
  ]
  np.testing.assert_allclose([x['square'] for x in found], SQUARES, rtol=1e-5)
  np.testing.assert_allclose([x['x'] for x in found], ROWS.x, rtol=1e-6)


class Beside(lines.Line):
  """Learns from one of two inputs side by side."""

  def compute_predictions(self, input_batch):
    return super().compute_predictions(input_batch.b)

  def compute_loss(self, predictions, input_batch):
    return super().compute_loss(predictions, input_batch.b)


def test_rows_of_several_examples(tmp_path):
  inputs = {
    'a': lines.Rows.config(batch_size=8),
    'b': lines.Rows.config(batch_size=4),
  }
  data = multi_input.MultiInput.config(
    name='dev', input_to_params=inputs, eval_loop_num_batches=2
  ).Instantiate()
  task = lines.task()
  task.model = Beside.config()
  task.evaluate.write_per_example_out = True
  first = data.peek_padded()
  mesh = partitioning.create_mesh(None, None)
  made = program.create(task.Instantiate(), mesh, first)
  path = tmp_path / 'eval_out' / 'dev.jsonl'
  evaluation.evaluate(
    data,
    task_program=made,
    mdl_vars=made.init_state(first).mdl_vars,
    examples_path=path,
  )
  found = list(map(json.loads, path.read_text().splitlines()))
  assert [(x['batch'], x['row']) for x in found] == [
    divmod(i, 4) for i in range(8)
  ]


def test_random_numbers_differ_by_batch_and_are_repeatable():
  task = lines.task(model=dict(noise=1.0))
  made = lines.make_program(task)
  batch = lines.rows(0)
  mdl_vars = made.init_state(batch).mdl_vars
  losses = [made.eval_step(mdl_vars, batch, n)['loss'] for n in (0, 1, 0)]
  assert losses[0] == losses[2] != losses[1]
  task.evaluate.random_seed = 5
  other = lines.make_program(task).eval_step(mdl_vars, batch)['loss']
  assert other != losses[0]
