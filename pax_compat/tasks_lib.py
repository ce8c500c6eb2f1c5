"""Tasks: a model with settings of training, evaluation and decoding."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from pax_compat import base_metrics, errors, learners
from pax_compat import config as config_lib
from pax_compat.config import REQUIRED, Config, instance_field
from pax_compat.tasks import loading_rules, state_shapes, train_states
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

CheckpointLoadingRules = loading_rules.CheckpointLoadingRules
LOAD_ALL = loading_rules.LOAD_ALL


class SingleTask(Settings):
  """A model with settings of training, evaluation and decoding.

  `SingleTask.Train`, `SingleTask.TrainHParams` and `tasks_lib.Train` are the
  same class, and so on.

  >>> from pax_compat import layers, optimizers, tasks_lib
  >>> task = tasks_lib.SingleTask.config(model=layers.LanguageModel.config())
  >>> task.train.num_train_steps = 1000
  >>> task.train.learner.optimizer = optimizers.Adam.config(learning_rate=1e-3)
  >>> task.Instantiate().train.num_train_steps
  1000
  >>> task.clone().set(model=None).Instantiate()
  Traceback (most recent call last):
  ...
  pax_compat.errors.UserError: SingleTask.model is None; expected the config ...

  Attributes:
    name: name of the task.
    model: the config of a `BaseModel`; of a task that is built, the model.
    train: settings of training.
    decode: settings of decoding while training.
    evaluate: settings of evaluation.
    infer: settings of inference.
    metrics: aggregates metrics over batches, a `base_metrics.BaseMetrics`;
      None, the default, for weighted means of all.
    loss_aggregator: computes the loss from the model's metrics, a
      `base_metrics.LossAggregator`; None, the default, for the metric of the
      learner's `loss_name`. Not together with `loss_name`.
    vn: noise on the weights while training.
    infer_writer: settings of `--mode=infer`; None, the default, if it is not
      used.
    early_stopping_fn: a function, or the config of a callable object, that
      returns after evaluations whether the run ends; see
      `early_stopping.EarlyStoppingFn`. None, the default, never ends it. A run
      that it ended continues only if this is set to None.
    summary_verbosity: summaries of layers with a higher verbosity than this are
      not collected; by default 3. The default of layers is 2.
  """

  Train = Train
  Decode = Decode
  Evaluate = Evaluate
  Infer = Infer
  InferWriter = InferWriter
  VariationalNoise = VariationalNoise
  TrainHParams = Train
  DecodeHParams = Decode
  EvaluateHParams = Evaluate
  InferHParams = Infer
  InferWriterHParams = InferWriter
  VariationalNoiseHParams = VariationalNoise

  name: str = 'task'
  model: Config = REQUIRED
  train: Train | Config = instance_field(Train)
  decode: Decode | Config = instance_field(Decode)
  evaluate: Evaluate | Config = instance_field(Evaluate)
  infer: Infer | Config = instance_field(Infer)
  metrics: Config | None = None
  loss_aggregator: Config | None = None
  vn: VariationalNoise | Config = instance_field(VariationalNoise)
  infer_writer: InferWriter | Config | None = None
  early_stopping_fn: EarlyStoppingFn | Config | None = None
  summary_verbosity: int = 3

  def __post_init__(self):
    super().__post_init__()
    if not isinstance(self.model, Config):
      raise errors.wrong_field(
        self, 'model', 'the config of a model, such as LanguageModel.config()'
      )
    self._check_loss()
    self.create_infer_writer()
    self._check_early_stopping_fn()
    self._model_config = self.model
    self.model = self.model.Instantiate()

  @property
  def hparams(self) -> Config:
    """A new config with the fields of this task."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return Config(type(self), **fields | {'model': self.model_config})

  @property
  def model_config(self) -> Config:
    """The config of the model."""
    return self._model_config

  @functools.cached_property
  def learners(self) -> tuple[Any, ...]:
    """The learner of `train`, as Pax names it."""
    learner = self.train.learner
    if isinstance(learner, learners.Learner):
      return (learner,)
    return (learner.Instantiate(),)

  @property
  def has_ema_decay(self) -> bool:
    """Whether the learner keeps a moving average of the weights."""
    return self.learners[0].has_ema

  @functools.cached_property
  def loss_aggregator_inst(self) -> base_metrics.LossAggregator:
    """The aggregator that computes the loss from metrics."""
    return self.create_loss_aggregator()

  @functools.cached_property
  def metrics_aggregator(self) -> base_metrics.BaseMetrics:
    """An aggregator of metrics over batches, one for this task."""
    return self.create_metrics()

  def create_opt_states(self, mdl_vars: Any, var_weight_hparams: Any) -> list:
    """Returns the first states of the learners.

    Args:
      mdl_vars: the variables by collection.
      var_weight_hparams: their metadata, `WeightHParams`.
    """
    return self.create_train_state(mdl_vars, var_weight_hparams).opt_states

  def create_train_state(
    self, mdl_vars: Any, var_weight_hparams: Any, discard_opt_states=False
  ) -> train_states.TrainState:
    """Returns the state of training before the first step.

    Args:
      mdl_vars: the variables by collection.
      var_weight_hparams: their metadata, `WeightHParams`.
      discard_opt_states: whether the state has none of the learners.
    """
    owners = None if discard_opt_states else self.learners
    return state_shapes.create_state(
      mdl_vars, var_weight_hparams, discard_opt_states, owners
    )

  def create_train_state_unpadded_shapes(
    self, var_weight_hparams: Any, discard_opt_states: bool = False
  ) -> train_states.TrainState:
    """Returns the shapes of `create_train_state`."""
    owners = None if discard_opt_states else self.learners
    return state_shapes.create_state_unpadded_shapes(
      var_weight_hparams, discard_opt_states, owners
    )

  # Uneven shards need no padding.
  create_train_state_padded_shapes = create_train_state_unpadded_shapes

  def create_train_state_partition_specs(
    self, var_weight_hparams: Any, discard_opt_states: bool = False
  ) -> train_states.TrainState | None:
    """Returns its `PartitionSpec`s; None if the model has no mesh."""
    if self.model.mesh_shape is None:
      return None
    return state_shapes.create_state_partition_specs(
      var_weight_hparams,
      self.model.mesh_shape,
      self.model.mesh_axis_names,
      discard_opt_states,
      None if discard_opt_states else self.learners,
    )

  def _check_loss(self):
    learner = self.train.learner
    is_config = isinstance(learner, Config)
    fields = config_lib.set_fields(learner) if is_config else {}
    given = fields.get('loss_name')
    if self.loss_aggregator is not None and given is not None:
      raise errors.UserError(
        f'SingleTask.loss_aggregator and Learner.loss_name ({given!r}) are both'
        ' set; expected one of them'
      )

  def _check_early_stopping_fn(self):
    fn = self.early_stopping_fn
    if fn is not None and not _is_config(fn) and not callable(fn):
      raise errors.wrong_field(
        self, 'early_stopping_fn', 'a function, a config of one, or None'
      )

  def create_loss_aggregator(self) -> base_metrics.LossAggregator:
    """Returns the aggregator that computes the loss from metrics."""
    if self.loss_aggregator is not None:
      return self.loss_aggregator.Instantiate()
    learner = self.train.learner
    name = (
      config_lib.field_values(learner)['loss_name']
      if isinstance(learner, Config)
      else learner.loss_name
    )
    return base_metrics.LossAggregator(loss_key=name or 'loss')

  def create_metrics(self) -> base_metrics.BaseMetrics:
    """Returns the aggregator of metrics over batches."""
    if self.metrics is None:
      return base_metrics.MeanMetrics()
    return self.metrics.Instantiate()

  def create_infer_writer(self) -> InferWriter | None:
    """Returns the settings of `--mode=infer`, None if there are none.

    Raises:
      UserError: they are something else, or not valid.
    """
    writer = self.infer_writer
    if isinstance(writer, Config):
      writer = writer.Instantiate()
    if writer is not None and not isinstance(writer, InferWriter):
      raise errors.UserError(
        f'SingleTask.infer_writer is a {type(writer).__name__}; expected'
        ' InferWriter.config(inference_runner=MyRunner.config())'
      )
    return writer

  def create_early_stopping_fn(self) -> Callable[..., Any] | None:
    """Returns the function that can end a run, or None."""
    fn = self.early_stopping_fn
    return fn.Instantiate() if _is_config(fn) else fn


def _is_config(value: Any) -> bool:
  """Whether a value is a config, or an object of older `HParams`."""
  return isinstance(value, Config) or hasattr(value, 'Instantiate')
