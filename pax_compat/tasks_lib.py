"""Tasks: a model and how it is trained."""

from pax_compat import config as config_lib
from pax_compat import learners
from pax_compat.config import REQUIRED, Config, sub_config_field


class Train(config_lib.Configurable):
  """How a task is trained.

  Attributes:
    learner: what optimizes the loss.
    num_train_steps: how many steps a whole run makes.
    save_interval_steps: a checkpoint every this many steps; None to save by
      time only.
    save_interval_seconds: a checkpoint when this much time has passed since the
      last; None to save by steps only.
    save_max_to_keep: how many of the newest checkpoints are kept.
    summary_interval_steps: summaries and a progress line every this many steps.
    eval_interval_steps: an evaluation every this many steps; 0 for none but the
      last.
    eval_during_training: names of the eval datasets that are evaluated every
      `eval_interval_steps`; None for all. All are evaluated at the end.
    random_seed: seed of the first weights and of all random numbers.
  """

  learner: Config = sub_config_field(learners.Learner)
  num_train_steps: int = 10_000_000
  save_interval_steps: int | None = 5000
  save_interval_seconds: float | None = None
  save_max_to_keep: int = 10
  summary_interval_steps: int = 100
  eval_interval_steps: int = 100
  eval_during_training: tuple[str, ...] | None = None
  random_seed: int = 1234


class SingleTask(config_lib.Configurable):
  """One model and how it is trained.

  Attributes:
    name: names the task.
    model: the model.
    train: how it is trained.
  """

  name: str = 'task'
  model: Config = REQUIRED
  train: Config = sub_config_field(Train)
