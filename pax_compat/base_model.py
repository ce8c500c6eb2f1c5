"""The contract between a model and the trainer.

Shapes: B batch.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from clu import metrics as clu_metrics

from pax_compat import base_input, base_layer, errors
from pax_compat.config import Config
from pax_compat.input_core import token_ids
from pax_compat.nested_map import NestedMap

# Scalars with their weights: {name: (value, weight)}. A `BaseMetrics`
# aggregates them over batches, by default as weighted means.
WeightedScalars = dict[str, tuple[Any, Any]]

# clu metrics by name; each defines its own `merge`.
Metrics = dict[str, clu_metrics.Metric]

DecodeOut = tuple[WeightedScalars, NestedMap, Metrics]
ProcessDecodeOut = tuple[WeightedScalars, Sequence[tuple[str, Any]], Metrics]


class BaseModel(base_layer.BaseLayer):
  """A network with a loss.

  A subclass defines `compute_predictions` and `compute_loss`; `decode` and
  `process_decode_out` too if it is decoded:

  >>> import jax.numpy as jnp
  >>> class Regression(BaseModel):
  ...   def setup(self):
  ...     self.create_variable('w', base_layer.WeightHParams([3]))
  ...
  ...   def compute_predictions(self, input_batch):
  ...     return input_batch.x @ self.theta.w
  ...
  ...   def compute_loss(self, predictions, input_batch):
  ...     squares = (predictions - input_batch.y) ** 2
  ...     return {'loss': (squares.mean(), len(squares))}, {'squares': squares}
  >>> model = Regression.HParams(name='regression').Instantiate()
  >>> batch = NestedMap(x=jnp.ones([2, 3]), y=jnp.array([0.0, 1.0]))
  >>> weights = {'params': {'w': jnp.array([1.0, 0.0, 0.0])}}
  >>> metrics, per_example_out = model.apply(weights, batch)
  >>> print(*metrics['loss'], per_example_out['squares'])
  0.5 2 [1. 0.]
  """

  @classmethod
  def known_ids(cls, config: Config) -> int | None:
    """Returns the vocabulary size: token ids are below it.

    The trainer refuses a batch with another id in a leaf called `ids`.

    Args:
      config: of this class.

    Returns:
      The rows of the largest embedding table; None, for no check, if a layer is
      not of this package.
    """
    return token_ids.known_to(config)

  @property
  def counts_padding_rows(self) -> bool:
    """Whether metrics may count rows of weight 0 as examples.

    Then an evaluation on a single process leaves out the padding rows of its
    inputs, though it compiles a step for each number of rows.
    """
    return False

  def __call__(
    self, input_batch: NestedMap
  ) -> tuple[WeightedScalars | Metrics, dict[str, Any]]:
    """Returns `compute_loss` of the model's predictions."""
    return self.compute_loss(self.compute_predictions(input_batch), input_batch)

  def compute_predictions(self, input_batch: NestedMap) -> Any:
    """Computes the predictions that `compute_loss` takes.

    Args:
      input_batch: arrays [B, ...].

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
      predictions: returned by `compute_predictions`.
      input_batch: arrays [B, ...].

    Returns:
      The metrics, {name: (value, weight)} or clu metrics by name, with the loss
      or losses among them; and the per-example outputs, {name: [B, ...]}.
    """
    raise NotImplementedError(type(self).__name__)

  def decode(self, input_batch: NestedMap) -> DecodeOut:
    """Decodes a batch, on the accelerators.

    Args:
      input_batch: arrays [B, ...].

    Returns:
      The metrics of the batch as {name: (value, weight)}; the decoded arrays
      [B, ...]; and clu metrics by name.

    Raises:
      UserError: the model does not support decoding.
    """
    raise errors.UserError(f'{type(self).__name__} has no decode()')

  def process_decode_out(
    self, input_obj: base_input.BaseInput, decode_out: NestedMap
  ) -> ProcessDecodeOut:
    """Post-processes a decoded batch on the host: detokenizes, adds metrics.

    Args:
      input_obj: the input that the batch came from; it has the tokenizer.
      decode_out: the decoded arrays of `decode`, as numpy arrays [B, ...].
        Fields of the batch that stay on the host, such as strings, are in its
        `host_fields` by dotted path: [B, ...], the rows of all processes.

    Returns:
      The metrics of the batch as {name: (value, weight)}; a (key, value) pair
      for each example that is not padding, in order; and clu metrics by name.

    Raises:
      UserError: the model does not support decoding.
    """
    raise errors.UserError(f'{type(self).__name__} has no process_decode_out()')

  def skip_step(self):
    """Is called, instead of `compute_loss`, while another task is trained.

    A model that counts the steps of a run counts it. The default does nothing.
    """

  def after_update(self, input_batch: NestedMap):
    """Updates non-trainable variables once the learner has updated weights.

    It is part of a training step. Variables have their new values; those before
    the step are in the collections `params_before_step` and
    `non_trainable_before_step`. Random keys are those of the step's forward
    pass. The default does nothing.

    Args:
      input_batch: that of the step: arrays [B, ...].
    """

  def after_step(self) -> Callable[[int, WeightedScalars], None] | None:
    """Returns a function to call on the first process after training steps.

    It takes the number of steps and the metrics of the last one, as numpy
    arrays, one step late. None, the default, for none.
    """
    return None

  def after_decoding(
    self,
  ) -> Callable[[pathlib.Path, Sequence[tuple[str, Any]]], None] | None:
    """Returns a function to call on the first process after a decoding.

    It takes a path for a file of its own, and the (key, value) pairs of all
    examples, which are kept for it. None, the default, for none.
    """
    return None
