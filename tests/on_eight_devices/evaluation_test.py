"""Evaluation on eight devices against numpy."""

import json

import numpy as np

from pax_compat.trainer.evaluating import batch_results, evaluation
from tests.pax_compat.trainer import lines
from tests.pax_compat.trainer.evaluating import evaluation_test


def test_every_row_with_a_weight_counts_once(tmp_path):
  task = lines.task()
  task.evaluate.write_per_example_out = True
  made = lines.make_program(task)
  data = lines.Rows.config(
    end=evaluation_test.END, reset_for_eval=True, batch_size=8
  )
  path = tmp_path / 'x.jsonl'
  found = evaluation.evaluate(
    data.Instantiate(),
    task_program=made,
    mdl_vars=made.init_state(lines.rows(0, count=8)).mdl_vars,
    examples_path=path,
  )
  numbers = batch_results.numbers(found)
  squares = evaluation_test.SQUARES
  np.testing.assert_allclose(numbers['loss'], squares.mean(), rtol=1e-6)
  np.testing.assert_allclose(numbers['mean_square'], squares.mean(), rtol=1e-6)
  assert numbers['rows'] == evaluation_test.END
  rows = [json.loads(line)['square'] for line in path.read_text().splitlines()]
  np.testing.assert_allclose(rows, squares, rtol=1e-5)
