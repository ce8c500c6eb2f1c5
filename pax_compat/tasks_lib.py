"""Tasks: a model and how it is trained, evaluated and decoded."""

from collections.abc import Callable
from typing import Any

from pax_compat import base_metrics, errors
from pax_compat import config as config_lib
from pax_compat.config import REQUIRED, Config, instance_field
from pax_compat.tasks.early_stopping import EarlyStoppingFn
from pax_compat.tasks.task_settings import (
  Decode,
  Evaluate,
  Infer,
  InferWriter,
  Settings,
  Train,
  VariationalNoise,
)


class SingleTask(Settings):
  """One model, and what is done with it.

  `SingleTask.Train` and `tasks_lib.Train` are the same class, and so on.

  Attributes:
    name: names the task.
    model: the model, a `BaseModel`.
    train: how it is trained.
    decode: how it is decoded while it is trained.
    evaluate: how it is evaluated.
    infer: how it is used for inference.
    metrics: how metrics of several batches are put together, a
      `base_metrics.BaseMetrics`; None, the default, for weighted means of all.
    loss_aggregator: what makes one loss of the model's metrics, a
      `base_metrics.LossAggregator`; None, the default, takes the metric that
      the learner's `loss_name` names. Where it is set, the learner's is not.
    vn: noise on the weights while training.
    infer_writer: refused.
    early_stopping_fn: a function, or the config of an object that can be
      called, that says after evaluations whether the run ends; see
      `early_stopping.EarlyStoppingFn`. None, the default, never ends it. A run
      that ended so is not continued, unless this is None then.
    summary_verbosity: summaries that layers give a higher verbosity than this
      are not collected; by default 3. Layers give 2 where they say nothing.
  """

  Train = Train
  Decode = Decode
  Evaluate = Evaluate
  Infer = Infer
  InferWriter = InferWriter
  VariationalNoise = VariationalNoise

  name: str = 'task'
  model: Config = REQUIRED
  train: Train | Config = instance_field(Train)
  decode: Decode | Config = instance_field(Decode)
  evaluate: Evaluate | Config = instance_field(Evaluate)
  infer: Infer | Config = instance_field(Infer)
  metrics: Config | None = None
  loss_aggregator: Config | None = None
  vn: VariationalNoise | Config = instance_field(VariationalNoise)
  infer_writer: Config | None = None
  early_stopping_fn: EarlyStoppingFn | Config | None = None
  summary_verbosity: int = 3

  REFUSED = {'infer_writer': 'there is no inference'}

  def __post_init__(self):
    super().__post_init__()
    if not isinstance(self.model, Config):
      raise errors.UserError(
        f'SingleTask.model is {self.model!r}; expected the config of a model,'
        ' such as LanguageModel.config()'
      )
    self._check_loss()

  def _check_loss(self):
    learner = self.train.learner
    is_config = isinstance(learner, Config)
    fields = config_lib.set_fields(learner) if is_config else {}
    given = fields.get('loss_name')
    if self.loss_aggregator is not None and given is not None:
      raise errors.UserError(
        f'SingleTask.loss_aggregator is set, and so is Learner.loss_name, to'
        f' {given!r}; expected one of them'
      )

  def create_loss_aggregator(self) -> base_metrics.LossAggregator:
    """Returns what makes the loss of the model's metrics."""
    if self.loss_aggregator is not None:
      return self.loss_aggregator.Instantiate()
    name = config_lib.field_values(self.train.learner)['loss_name'] or 'loss'
    return base_metrics.LossAggregator(loss_key=name)

  def create_metrics(self) -> base_metrics.BaseMetrics:
    """Returns what puts together the metrics of several batches."""
    if self.metrics is None:
      return base_metrics.MeanMetrics()
    return self.metrics.Instantiate()

  def create_early_stopping_fn(self) -> Callable[..., Any] | None:
    """Returns the function that may end a run, None if nothing may."""
    if isinstance(self.early_stopping_fn, Config):
      return self.early_stopping_fn.Instantiate()
    return self.early_stopping_fn
