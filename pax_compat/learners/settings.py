"""The fields of a learner, and checks of their combinations."""

from collections.abc import Sequence
from typing import Any

from pax_compat import base_layer, errors
from pax_compat import config as config_lib
from pax_compat.config import REQUIRED, Config, instance_field
from pax_compat.learners import variable_names
from pax_compat.learners.gradients.stochastic import BaseStochasticGradient

NONFINITE_CHOICES = ('skip', 'zero')
# Methods that the trainer does not call; see `step_methods`.
_NEVER_CALLED = (
  'apply_gradient',
  'get_grad_tx',
  'get_masks',
  'plot_learning_rate',
  'scale_gradients',
  'scale_gradients_by_optimizer',
  'summarize_norms',
  'update_states',
)
BY_SOURCE = 'bprop_variable_inclusion_by_source'


class LearnerSettings(config_lib.Configurable):
  """The fields of a learner.

  Attributes:
    name: name of the learner in messages.
    optimizer: the optimizer, or its config, with its learning rate,
      regularization, clipping and moving average. Clipping acts on the
      gradients of each batch, also where an optimizer accumulates those of
      several.
    loss_name: which of the model's metrics is the loss; None leaves it to the
      task, which takes `loss`.
    stochastic_gradient: how gradients are computed: one of `learners.sgf`, such
      as `DpSgdStochasticGradient` for private training, or its config; None for
      the gradient of the loss of the batch.
    skip_zero_gradients: refused, as in Pax.
    grad_norm_summary: whether the norms of all gradients are reported.
    grad_norm_individual_vars: whether the norm of each gradient is reported.
    var_norm_summary: whether the norm of the trained weights is reported.
    var_norm_individual_vars: whether the norm of each of them is reported.
    check_valid_step: whether steps are checked at all; if not, all are valid.
    vectorize_on_repeat_prefix: whether each of several stacked layers is
      treated separately; if not, a stack is one weight.
    force_repeat_prefix_structure: whether the optimizer's state has the
      structure for stacked layers even if there are none.
    repeat_prefix_sep: separator in the names of groups of stacked weights in
      the optimizer's state.
    skip_step_gradient_norm_value: if positive, a step is invalid if the norm of
      its gradients is this or larger.
    enable_skip_step_on_gradient_anomalies: whether invalid steps are skipped.
    bprop_variable_exclusion: names of weights that are not trained.
    bprop_variable_inclusion: names of the only weights that are trained.
    bprop_variable_inclusion_by_source: for each data source the names of the
      weights that its batches train. Other weights have gradients of zero in
      such a batch, regularization included, and their optimizers step on.
      Batches must have a field `source_selected` [batch, sources], one-hot and
      equal for all examples of a batch.
    keep_optimizer_state_for_excluded_vars: whether weights that are not trained
      have optimizer state (updated with gradients of zero) and a moving
      average.
    scale_update_by_var_norm: whether updates of weights of rank 2 or more are
      multiplied by the scale of the weight's initializer.
    regularize_before_clipping: whether the gradients of L1 and L2
      regularization are added before gradients are measured and scaled, as in
      Lingvo. Then an optimizer may have both.
    grad_norm_to_clip_to_zero: if positive, gradients are set to zero if their
      norm is this or larger (the optimizer steps on), as in Lingvo.
    grad_norm_tracker: config of a `GradNormTracker`, which rejects steps whose
      gradients are much larger than usual; None for none.
    nonfinite_gradients: 'skip' makes steps whose gradients are not finite
      invalid; 'zero' sets the gradients to zero, as in Lingvo.
    ema_after_update: whether the moving average averages the weights after a
      step, as in Lingvo, instead of those before it.
    ema_every_step: whether steps that only accumulate gradients count for the
      moving average, as in Lingvo.
    ema_step: config of a schedule whose value at the number of averaged steps
      is the step that the decay of the moving average depends on; None, the
      default, for that number.
    ema_variables: names of non-trainable variables, such as
      `non_trainable/bn/moving_mean`, that are averaged like the weights.

  Raises:
    UserError: a refused field is set, or fields exclude each other.
  """

  name: str = 'learner'
  optimizer: Config = REQUIRED
  loss_name: str | None = None
  stochastic_gradient: Any = None
  skip_zero_gradients: str | bool | None = None
  grad_norm_summary: bool = True
  grad_norm_individual_vars: bool = False
  var_norm_summary: bool = True
  var_norm_individual_vars: bool = False
  check_valid_step: bool = True
  vectorize_on_repeat_prefix: bool = True
  force_repeat_prefix_structure: bool = False
  repeat_prefix_sep: str = '#'
  skip_step_gradient_norm_value: float = 0.0
  enable_skip_step_on_gradient_anomalies: bool = True
  bprop_variable_exclusion: str | Sequence[str] = instance_field(list)
  bprop_variable_inclusion: str | Sequence[str] = instance_field(list)
  bprop_variable_inclusion_by_source: Sequence[str | Sequence[str]] = (
    instance_field(list)
  )
  keep_optimizer_state_for_excluded_vars: bool = False
  scale_update_by_var_norm: bool = False
  regularize_before_clipping: bool = False
  grad_norm_to_clip_to_zero: float = 0.0
  grad_norm_tracker: Config | None = None
  nonfinite_gradients: str = 'skip'
  ema_after_update: bool = False
  ema_every_step: bool = False
  ema_step: Config | None = None
  ema_variables: str | Sequence[str] = instance_field(list)

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    for name in _NEVER_CALLED:
      if name in vars(cls):
        raise errors.UserError(
          f'{cls.__qualname__}.{name} would never be called: a step is'
          " computed by `update`. Use the learner's fields, or an optimizer"
          ' with an own `grad_transformation`'
        )

  def __post_init__(self):
    self._check_refused()
    if isinstance(self.stochastic_gradient, Config):
      self.stochastic_gradient = self.stochastic_gradient.Instantiate()
    if not isinstance(self.stochastic_gradient, BaseStochasticGradient | None):
      raise errors.UserError(
        f'{self._where("stochastic_gradient")} is {self.stochastic_gradient!r};'
        ' expected one of learners.sgf, or its config'
      )
    self._check_together()
    self._excluding = self._patterns('bprop_variable_exclusion')
    self._including = self._patterns('bprop_variable_inclusion')
    self._averaged = self._patterns('ema_variables')
    schedule = self.ema_step and self.ema_step.Instantiate()
    self.ema_step_of = schedule.value_at if schedule else lambda count: count
    self._by_source = [
      variable_names.compiled(patterns, self._where(BY_SOURCE))
      for patterns in self.bprop_variable_inclusion_by_source
    ]

  @property
  def skips_invalid_steps(self) -> bool:
    """Whether invalid steps are skipped."""
    return (
      self.check_valid_step
      and self.enable_skip_step_on_gradient_anomalies
      and self.nonfinite_gradients == 'skip'
    )

  def stacked_sizes(self, meta: base_layer.WeightHParams) -> tuple[int, ...]:
    """Returns the sizes of the dimensions that are stacked layers."""
    return tuple(meta.repeat_prefix) if self.vectorize_on_repeat_prefix else ()

  def excludes(self, name: str) -> bool:
    """Whether the variable of some name is not trained."""
    if self._including:
      return not any(p.fullmatch(name) for p in self._including)
    return any(p.fullmatch(name) for p in self._excluding)

  def _check_refused(self):
    reasons = {
      'skip_zero_gradients': 'gradients are summed over all devices before the'
      ' learner gets them; leave it None',
    }
    for field, reason in reasons.items():
      if getattr(self, field) is not None:
        raise errors.UserError(
          f'{self._where(field)} is {getattr(self, field)!r}, which is not'
          f' supported: {reason}'
        )

  def _check_together(self):
    errors.check_known(
      self._where('nonfinite_gradients'),
      self.nonfinite_gradients,
      NONFINITE_CHOICES,
    )
    self._exclude(
      'bprop_variable_exclusion', 'bprop_variable_inclusion', 'set one of them'
    )
    if self.force_repeat_prefix_structure:
      self._need('force_repeat_prefix_structure', 'vectorize_on_repeat_prefix')
    if self.skip_step_gradient_norm_value:
      self._need('skip_step_gradient_norm_value', 'check_valid_step')
    if (
      self.nonfinite_gradients == 'zero' and self.skip_step_gradient_norm_value
    ):
      raise errors.UserError(
        f"{self._where('nonfinite_gradients')} is 'zero', and"
        ' skip_step_gradient_norm_value is set, which skips; expected'
        ' grad_norm_to_clip_to_zero with it'
      )

  def _exclude(self, one: str, other: str, remedy: str):
    if getattr(self, one) and getattr(self, other):
      raise errors.UserError(
        f'{self._where(one)} and {other} exclude each other; {remedy}'
      )

  def _need(self, field: str, needed: str):
    if not getattr(self, needed):
      raise errors.UserError(
        f'{self._where(field)} has no effect without {needed}=True'
      )

  def _where(self, field: str) -> str:
    return f'{self.name}: {type(self).__name__}.{field}'

  def _patterns(self, field: str):
    return variable_names.compiled(getattr(self, field), self._where(field))
