"""What models that detect objects share: settings of losses, and metrics.

Shapes: B batch, K classes.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_model
from pax_compat.config import REQUIRED
from pax_compat.input_core import example_rows
from pax_compat.layers.models import token_models
from pax_compat.nested_map import NestedMap


class BaseDetector(base_model.BaseModel):
  """Base class of models that predict boxes and their classes.

  Metrics are the loss and its parts, with Lingvo's names, and `error/...`, the
  mean errors of boxes in the units of the data. Their weights are the number of
  examples. It has no suppression of overlapping boxes of its own. Optional in a
  batch is `eval_sample_weights` [B].

  Attributes:
    class_loss_weights: K weights of the classes' losses.
    focal_alpha: see `box_losses.focal_loss`.
    focal_gamma: see `box_losses.focal_loss`.
    box_loss_weight: weight of the loss of boxes.
    class_loss_weight: weight of the loss of classes.
    location_weight: weight of locations in the loss of boxes.
    dimension_weight: weight of sizes in it.
    rotation_weight: weight of headings in it.
  """

  class_loss_weights: Sequence[float] = REQUIRED
  focal_alpha: float = 0.25
  focal_gamma: float = 2.0
  box_loss_weight: float = 2.0
  class_loss_weight: float = 1.0
  location_weight: float = 1.0
  dimension_weight: float = 1.0
  rotation_weight: float = 1.0

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the predictions."""
    outputs = NestedMap(predictions)
    of_examples = token_models.example_weights(input_batch)
    if of_examples is None:
      of_examples = jnp.ones([len(predictions.residuals)], jnp.float32)
    else:
      outputs[example_rows.WEIGHTS] = of_examples
    count = jnp.maximum(jnp.sum(of_examples), 1e-6)
    losses = self._losses(predictions, input_batch, of_examples, count)
    losses['total_loss'] = losses['loss']
    return NestedMap({k: (v, count) for k, v in losses.items()}), outputs

  def _losses(
    self,
    predictions: NestedMap,
    input_batch: NestedMap,
    of_examples: jax.Array,
    count: jax.Array,
  ) -> dict[str, jax.Array]:
    """Returns the `loss`, its parts and the mean errors of boxes by name.

    Args:
      predictions: of `compute_predictions`; `residuals` [B, ...] among them.
      input_batch: the batch.
      of_examples: [B], weights of the examples.
      count: number of examples.
    """
    raise NotImplementedError(type(self).__name__)
