"""A learner with several optimizers for different weights."""

from collections.abc import Collection, Sequence

from pax_compat import errors, optimizers
from pax_compat.config import Config, InvalidConfigError
from pax_compat.learners import variable_names
from pax_compat.learners.learner import Learner
from pax_compat.learners.param_groups import ParamGroup

PRIMARY = 'main'

_CLIPPING = (
  'clip_gradient_norm_to_value',
  'clip_gradient_single_norm_to_value',
)


class MultiOptimizerLearner(Learner):
  """Optimizes one loss by several optimizers.

  An auxiliary optimizer updates the weights whose names start with a match of
  its regular expression (`params/lm/emb` matches
  `params/lm/embedding/emb_var`); `optimizer` updates the others. Regularization
  and decoupled decay are those of a weight's optimizer. The moving average of
  all weights is that of `optimizer`.

  Learning rates are reported as `learning/lr_main` and `learning/lr_<name>`.

  Attributes:
    auxiliary_optimizers: optimizers in addition to `optimizer`.
    auxiliary_regex: expressions for the weights of each auxiliary optimizer.
    auxiliary_names: the name of each auxiliary optimizer.
    auxiliary_loss_names: the metric that each of them minimises; None for that
      of `loss_name`, which must be set if another one is. Empty, the default,
      if all minimise the same.
    apply_separate_scaling: whether the gradients of each optimizer are measured
      and clipped separately, by the optimizer's own fields; the metrics are
      then `learning/main/raw_grad_norm` and so on, and a step is valid if all
      are. Otherwise all gradients are clipped together, by the fields of
      `optimizer`.

  Raises:
    UserError: the lists differ in length, a name is used twice, an auxiliary
      optimizer has a field set that has no effect, or `grad_norm_tracker` is
      combined with `apply_separate_scaling`.
  """

  auxiliary_optimizers: Sequence[Config] = ()
  auxiliary_regex: Sequence[str] = ()
  auxiliary_names: Sequence[str] = ()
  auxiliary_loss_names: Sequence[str | None] = ()
  apply_separate_scaling: bool = False

  def __post_init__(self):
    super().__post_init__()
    lengths = {
      field: len(getattr(self, field))
      for field in (
        'auxiliary_optimizers',
        'auxiliary_regex',
        'auxiliary_names',
        *(['auxiliary_loss_names'] if self.auxiliary_loss_names else []),
      )
    }
    if len(set(lengths.values())) > 1:
      found = ', '.join(f'{field} {n}' for field, n in lengths.items())
      raise errors.UserError(
        f'{self.name}: MultiOptimizerLearner has lists of different lengths:'
        f' {found}; expected one of each for each optimizer'
      )
    names = [PRIMARY, *self.auxiliary_names]
    for name in names:
      if not name or '/' in name or names.count(name) > 1:
        raise errors.UserError(
          f'{self._where("auxiliary_names")} has {name!r}; expected names that'
          f' are all different, not {PRIMARY!r}, not empty and without a slash'
        )
    if self.other_losses and self.loss_name is None:
      raise errors.UserError(
        f'{self._where("auxiliary_loss_names")} is'
        f' {self.auxiliary_loss_names!r}, and loss_name is not set; expected'
        ' the loss of the primary optimizer'
      )
    self._regex = variable_names.compiled(
      self.auxiliary_regex, self._where('auxiliary_regex')
    )
    self._auxiliaries = [self._built(o) for o in self.auxiliary_optimizers]
    for name, optimizer in zip(names[1:], self._auxiliaries, strict=True):
      self._check_effect(name, optimizer)
    if self.grad_norm_tracker is not None and self.apply_separate_scaling:
      raise errors.UserError(
        f'{self._where("grad_norm_tracker")} needs the norm of all gradients,'
        ' and apply_separate_scaling measures those of each optimizer; expected'
        ' one of the two'
      )

  @property
  def other_losses(self):
    losses = dict(
      zip(self.auxiliary_names, self.auxiliary_loss_names, strict=False)
    )
    return {k: v for k, v in losses.items() if v not in (None, self.loss_name)}

  def _check_effect(self, name: str, optimizer: optimizers.BaseOptimizer):
    """Refuses fields that would have no effect on an auxiliary optimizer."""
    if optimizer.ema_decay not in (0, self._primary.ema_decay):
      raise errors.UserError(
        f'{self.name}: ema_decay of the auxiliary optimizer {name!r} is'
        f' {optimizer.ema_decay}; expected it on the primary optimizer, for all'
        ' weights'
      )
    for field in _CLIPPING:
      if getattr(optimizer, field) and not self.apply_separate_scaling:
        raise errors.UserError(
          f'{self.name}: {field} of the auxiliary optimizer {name!r} is'
          f' {getattr(optimizer, field)}, but all gradients are scaled'
          ' together; expected apply_separate_scaling=True, or no clipping here'
        )

  def named_optimizers(self):
    names = [PRIMARY, *self.auxiliary_names]
    optimizers_of = [self._primary, *self._auxiliaries]
    return dict(zip(names, optimizers_of, strict=True))

  @property
  def _optimizer_configs(self):
    return [self._optimizer_config, *self.auxiliary_optimizers]

  def _assigned(self, paths: Collection[str]):
    owner: dict[str, int] = {}
    names = {variable_names.full_name(path): path for path in paths}
    for number, pattern in enumerate(self._regex):
      found = [path for name, path in names.items() if pattern.match(name)]
      variable_names.check_matched(
        pattern, bool(found), names, self._where('auxiliary_regex')
      )
      for path in found:
        if path in owner:
          first = self.auxiliary_regex[owner[path]]
          raise InvalidConfigError(
            f'{self._where("auxiliary_regex")}: both {first!r} and'
            f' {pattern.pattern!r} match {variable_names.full_name(path)!r};'
            ' expected one optimizer for each weight'
          )
        owner[path] = number
    groups = [(PRIMARY, self._primary, [p for p in paths if p not in owner])]
    for number, optimizer in enumerate(self._auxiliaries):
      own = [path for path in paths if owner.get(path) == number]
      groups.append((self.auxiliary_names[number], optimizer, own))
    return groups

  def _scaled_together(self, groups: Sequence[ParamGroup]):
    if not self.apply_separate_scaling:
      return super()._scaled_together(groups)
    return [(g.name, g.optimizer, g.paths) for g in groups]
