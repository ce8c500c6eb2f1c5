"""Learners: from gradients to the next weights."""

from pax_compat.layers.row_gradients import RowFacts
from pax_compat.learners.learner import Learner, LearnerState
from pax_compat.learners.multi_optimizer import MultiOptimizerLearner
from pax_compat.learners.multi_task import MultiTaskLearner
from pax_compat.learners.variable_names import by_path, path_name

__all__ = [
  'Learner',
  'LearnerState',
  'MultiOptimizerLearner',
  'MultiTaskLearner',
  'RowFacts',
  'by_path',
  'path_name',
]
