"""Tests of what a run reports, without a run."""

from pax_compat import metric_writers, progress
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import actions, feeding


def test_the_loss_that_is_reported_is_the_learners(tmp_path):
  said = []
  writer = metric_writers.MetricWriter(tmp_path)
  report = actions.Report(
    every=10,
    loss_name='total_loss',
    progress=progress.Progress(2),
    writer=writer,
    say=said.append,
  )
  for step in (1, 2):
    report(
      actions.Moment(
        step=step,
        is_last=step == 2,
        is_stopping=False,
        state=None,
        metrics={'total_loss': float(step)},
        fed=feeding.FedBatch(NestedMap(), 'x[1]', 5.0, 0.0),
      )
    )
  writer.close()
  assert said[0] == 'step 1  loss 1'
  assert said[1].startswith('step 2/2  loss 2')
