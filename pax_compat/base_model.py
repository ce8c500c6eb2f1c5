"""What the trainer asks of a model.

Shapes: B batch.
"""

from collections.abc import Sequence
from typing import Any

from clu import metrics as clu_metrics

from pax_compat import base_input, base_layer, errors
from pax_compat.config import Config
from pax_compat.input_core import token_ids
from pax_compat.nested_map import NestedMap

# Scalars with their weights: {name: (value, weight)}. Those of several batches
# are put together as weighted means.
WeightedScalars = dict[str, tuple[Any, Any]]

# Metrics of clu by name, which merge in ways of their own.
Metrics = dict[str, clu_metrics.Metric]

DecodeOut = tuple[WeightedScalars, NestedMap, Metrics]
ProcessDecodeOut = tuple[WeightedScalars, Sequence[tuple[str, Any]], Metrics]


class BaseModel(base_layer.BaseLayer):
  """A network with a loss.

  A model computes predictions and a loss; one that is decoded has the two
  further methods.
  """

  @classmethod
  def known_ids(cls, config: Config) -> int | None:
    """Returns how many ids of tokens the model knows, from 0 on.

    An input that gives another one, in a leaf called `ids`, is refused.

    Args:
      config: of this class.

    Returns:
      The rows of the largest table, where all layers are of this package; else
      None, for no check.
    """
    return token_ids.known_to(config)

  def __call__(
    self, input_batch: NestedMap
  ) -> tuple[WeightedScalars | Metrics, dict[str, Any]]:
    """Returns what `compute_loss` returns of the model's own predictions."""
    return self.compute_loss(self.compute_predictions(input_batch), input_batch)

  def compute_predictions(self, input_batch: NestedMap) -> Any:
    """Computes what the loss needs.

    Args:
      input_batch: arrays with the batch axis first.

    Returns:
      An array, a NestedMap or a namedtuple: logits, parameters of
      distributions, values of a regression.
    """
    raise NotImplementedError(type(self).__name__)

  def compute_loss(
    self, predictions: Any, input_batch: NestedMap
  ) -> tuple[WeightedScalars | Metrics, dict[str, Any]]:
    """Computes the loss and other metrics.

    Args:
      predictions: what `compute_predictions` returned.
      input_batch: the batch.

    Returns:
      The metrics as {name: (value, weight)}, the loss (or losses) among them,
      or as metrics of clu; and a dict of arrays [B, ...] that say something
      about each example.
    """
    raise NotImplementedError(type(self).__name__)

  def decode(self, input_batch: NestedMap) -> DecodeOut:
    """Decodes a batch, on the accelerators.

    Args:
      input_batch: the batch.

    Returns:
      The metrics of the batch as {name: (value, weight)}; the decoded arrays
      [B, ...]; and metrics of clu by name.

    Raises:
      UserError: the model cannot be decoded.
    """
    raise errors.UserError(f'{type(self).__name__} has no decode()')

  def process_decode_out(
    self, input_obj: base_input.BaseInput, decode_out: NestedMap
  ) -> ProcessDecodeOut:
    """Makes sense of a decoded batch, on the host: texts out of tokens.

    Args:
      input_obj: the input that the batch came from, which knows the tokenizer.
      decode_out: the decoded arrays of `decode`, as numpy arrays [B, ...]. If
        the batch had fields that stay on the host, such as texts, they are in
        its `host_fields`, by dotted path; likewise [B, ...], of all processes'
        rows.

    Returns:
      The metrics of the batch as {name: (value, weight)}; a (key, value) pair
      for each example that counts, in order; and metrics of clu by name.

    Raises:
      UserError: the model cannot be decoded.
    """
    raise errors.UserError(f'{type(self).__name__} has no process_decode_out()')
