"""How gradients are computed from a loss, as an object: Pax's `sgf`.

Shapes: B rows of the batch.
"""

import abc
from collections.abc import Callable
from typing import Any

import flax.struct
import jax

from pax_compat import config as config_lib

# (weights to train, (other variables, batch), random key) -> (loss [], aux).
LossFn = Callable[[Any, tuple[Any, Any], jax.Array], tuple[jax.Array, Any]]


class GradAuxInfo(flax.struct.PyTreeNode):
  """What a loss function returns besides the loss.

  Attributes:
    aux_info: arrays: metrics, updated variables, summaries.
    loss_weight: [], the weight of the loss.
  """

  aux_info: Any
  loss_weight: Any = 1.0


class DPGradAuxInfo(GradAuxInfo):
  """The same of private gradients.

  Attributes:
    dp_aux_info: arrays [] to report, or trees of them, by name.
  """

  dp_aux_info: Any = None


class BaseStochasticGradient(config_lib.Configurable, abc.ABC):
  """Base of what `Learner.stochastic_gradient` can be.

  A subclass implements `grad_fn`.
  """

  def process_aux_info(self, aux_info: GradAuxInfo) -> GradAuxInfo:
    """Returns the aux info of the loss function, as `grad_fn` returns it."""
    return aux_info

  @abc.abstractmethod
  def grad_fn(
    self,
    loss_fn: LossFn,
    mdl_vars_grad: Any,
    mdl_vars_nograd_and_inputs: tuple[Any, Any],
    prng_key: jax.Array,
  ) -> tuple[tuple[jax.Array, GradAuxInfo], Any]:
    """Returns (loss, aux info) and gradients.

    Args:
      loss_fn: maps the other arguments to the loss [] and a `GradAuxInfo`.
      mdl_vars_grad: the weights that gradients are of.
      mdl_vars_nograd_and_inputs: other variables, and the batch [B, ...].
      prng_key: a random key.
    """


class StandardGradient(BaseStochasticGradient):
  """The gradient of the loss of the whole batch."""

  def grad_fn(
    self, loss_fn, mdl_vars_grad, mdl_vars_nograd_and_inputs, prng_key
  ):
    compute = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, aux), gradients = compute(
      mdl_vars_grad, mdl_vars_nograd_and_inputs, prng_key
    )
    return (loss, self.process_aux_info(aux)), gradients
