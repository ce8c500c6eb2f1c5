"""Learners: gradient processing and optimizer updates."""

from pax_compat.layer_core.row_gradients import RowStatistics
from pax_compat.learners.gradients.data_sources import SOURCE_SELECTED
from pax_compat.learners.gradients.norm_tracking import (
  GradNormTracker,
  NormStatistics,
)
from pax_compat.learners.learner import Learner, LearnerState
from pax_compat.learners.multi_optimizer import MultiOptimizerLearner
from pax_compat.learners.multi_task import MultiTaskLearner
from pax_compat.learners.variable_names import (
  as_tree,
  by_path,
  path_name,
  replace_leaves,
)

__all__ = [
  'GradNormTracker',
  'Learner',
  'LearnerState',
  'MultiOptimizerLearner',
  'MultiTaskLearner',
  'NormStatistics',
  'RowStatistics',
  'SOURCE_SELECTED',
  'as_tree',
  'by_path',
  'path_name',
  'replace_leaves',
]
