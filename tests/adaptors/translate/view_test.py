"""Tests of adaptors.translate.view: what a class's Params start with."""

from adaptors import lingvo_runtime
from adaptors.translate.view import ParamsView, Report


def test_a_class_that_makes_its_params_of_arguments():
  """The defaults are those of a base class; other fields must be read."""
  starnet = lingvo_runtime.module('lingvo.tasks.car.starnet')
  p = starnet.ModelV1.Params(num_classes=2, num_anchor_bboxes_per_center=1)
  p.train.max_steps = 7
  report = Report()
  view = ParamsView(p, 'task', report)
  view.group('train').finish()
  view.finish()
  told = {issue.path: issue.message for issue in report.issues}
  assert '7 is not translated' in told['task.train.max_steps']
  assert '2 is not translated' in told['task.num_classes']
  assert 'task.train.learning_rate' not in told
