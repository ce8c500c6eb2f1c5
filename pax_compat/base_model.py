"""What the trainer asks of a model."""

from typing import Any

from pax_compat import base_layer
from pax_compat.nested_map import NestedMap

# Scalars with their weights: {name: (value, weight)}.
WeightedScalars = dict[str, tuple[Any, Any]]


class BaseModel(base_layer.BaseLayer):
  """A network with a loss."""

  def __call__(self, input_batch: NestedMap) -> tuple[WeightedScalars, dict]:
    """Returns what `compute_loss` returns of the model's own predictions."""
    return self.compute_loss(self.compute_predictions(input_batch), input_batch)

  def compute_predictions(self, input_batch: NestedMap) -> Any:
    """Computes what the loss needs.

    Args:
      input_batch: arrays with the batch axis first.

    Returns:
      An array, a NestedMap or a namedtuple.
    """
    raise NotImplementedError(type(self).__name__)

  def compute_loss(
    self, predictions: Any, input_batch: NestedMap
  ) -> tuple[WeightedScalars, dict]:
    """Computes the loss and other metrics.

    Args:
      predictions: what `compute_predictions` returned.
      input_batch: the batch.

    Returns:
      The metrics as {name: (value, weight)}, the loss among them, and a dict of
      arrays that say something about each example, batch axis first.
    """
    raise NotImplementedError(type(self).__name__)
