"""Tests of adaptors.translate.view: the default Params of a class."""

import doctest

from adaptors import lingvo_runtime
from adaptors.translate import view as view_lib
from adaptors.translate.view import ParamsView, Report


def test_the_example():
  results = doctest.testmod(view_lib)
  assert results.attempted > 0 and results.failed == 0


def test_params_that_take_arguments():
  """The defaults are those of a base class; the other fields must be read."""
  starnet = lingvo_runtime.module('lingvo.tasks.car.starnet')
  p = starnet.ModelV1.Params(num_classes=2, num_anchor_bboxes_per_center=1)
  p.train.max_steps = 7
  report = Report()
  view = ParamsView(p, 'task', report)
  view.group('train').finish()
  view.finish()
  messages = {issue.path: issue.message for issue in report.issues}
  assert '7 is not translated' in messages['task.train.max_steps']
  assert '2 is not translated' in messages['task.num_classes']
  assert 'task.train.learning_rate' not in messages
