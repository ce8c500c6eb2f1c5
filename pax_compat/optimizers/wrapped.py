"""Any optax transformation as an optimizer."""

from typing import Any

import fiddle as fdl
import jax.numpy as jnp
import optax

from pax_compat.config import REQUIRED
from pax_compat.optimizers.base import BaseOptimizer, counted


class OptaxOptimizer(BaseOptimizer):
  """Any optax transformation, with the fields of `BaseOptimizer`.

  Attributes:
    grad_tx: the transformation, or a config of the function that returns it, or
      a list of these, which are chained. A config is written into the
      experiment's config dump: `Config(optax.adam, learning_rate=1e-3)`.
    scale_by_learning_rate: whether `grad_tx` returns a direction
      (`optax.scale_by_adam`), so that `learning_rate` and `lr_schedule` are
      applied after it. Otherwise, as in Pax, it returns the update itself
      (`optax.adam`), and those two fields are only for the reported rate (0 if
      `learning_rate` is not set) and for decoupled decay.

  Raises:
    UserError: `grad_tx` does not return a transformation.
  """

  grad_tx: Any = REQUIRED
  scale_by_learning_rate: bool = False

  def __post_init__(self):
    super().__post_init__()
    items = [self.grad_tx]
    if not _is_transformation(self.grad_tx) and isinstance(
      self.grad_tx, list | tuple
    ):
      items = self.grad_tx
    made = [fdl.build(i) if isinstance(i, fdl.Buildable) else i for i in items]
    for item in made:
      self.check(
        _is_transformation(item),
        f'grad_tx has {item!r}; expected an optax transformation',
      )
    self._transformation = made[0] if len(made) == 1 else optax.chain(*made)

  def learning_rate_fn(self):
    needs = self.scale_by_learning_rate or self.decoupled_weight_decay
    if self.learning_rate is None and not needs:
      return jnp.zeros_like
    return super().learning_rate_fn()

  def direction(self):
    return self._transformation

  def grad_transformation(self):
    if self.scale_by_learning_rate:
      return super().grad_transformation()
    return counted(self._transformation)

  def check_supports_no_op_steps(self):
    if not self.scale_by_learning_rate:
      super().check_supports_no_op_steps()


def _is_transformation(value: Any) -> bool:
  return hasattr(value, 'init') and hasattr(value, 'update')
