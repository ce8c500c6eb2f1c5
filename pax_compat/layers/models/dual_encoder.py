"""A model that puts several kinds of items, such as images and texts, in one
space, in which items that belong together are close.

Shapes: B batch, N items (B times those of an example), Q queries, R results,
D dims of the space.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, base_model, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.models import token_models
from pax_compat.nested_map import NestedMap

# The labels of a pair; others have no part in the loss.
NEGATIVE, POSITIVE, IGNORED = 0, 1, -1


class ModalityEncoder(base_layer.BaseLayer):
  """Encodes the items of one modality.

  Attributes:
    modality: its name.
    input_fields: paths in the batch of the encoder's arguments,
      [B, ..., ...]: an example has one item, or several.
    id_field: path in the batch of the items' ids, whose shape is that of the
      items: [B], or [B, I] for I items in each example.
    encoder_tpl: maps the arguments, [N, ...], to encodings [N, E], or to these
      and its regularization loss [].
    projection_tpl: maps encodings to D dims; None if they have them.
  """

  modality: str = REQUIRED
  input_fields: Sequence[str] = REQUIRED
  id_field: str = REQUIRED
  encoder_tpl: Config = REQUIRED
  projection_tpl: Config | None = None

  def setup(self):
    self.create_child('encoder', self.encoder_tpl)
    if self.projection_tpl is not None:
      self.create_child('projection', self.projection_tpl)

  def __call__(self, input_batch: NestedMap) -> NestedMap:
    """Returns `encodings` [B, ..., D], `ids`, and `regularization` or None."""
    ids = self._field(input_batch, self.id_field)
    items = jnp.shape(ids)
    inputs = [self._field(input_batch, name) for name in self.input_fields]
    encodings = self.encoder(*(self._flat(x, items) for x in inputs))
    regularization = None
    if isinstance(encodings, tuple):
      encodings, regularization = encodings
    encodings = encodings.reshape([*items, *encodings.shape[1:]])
    if self.projection_tpl is not None:
      encodings = self.projection(encodings)
    return NestedMap(
      encodings=encodings, ids=ids, regularization=regularization
    )

  def _field(self, input_batch: NestedMap, path: str) -> jax.Array:
    value = input_batch.Get(path)
    if value is None:
      raise errors.UserError(
        f'the encoder of {self.modality} reads {path!r}, which is not in the'
        f' batch{errors.did_you_mean(path, input_batch)}'
      )
    return value

  def _flat(self, x: jax.Array, items: tuple[int, ...]) -> jax.Array:
    if x.shape[: len(items)] != items:
      raise errors.UserError(
        f'an input of the encoder of {self.modality} has the shape'
        f' {list(x.shape)}; expected {list(items)}, the shape of'
        f' {self.id_field!r}, as its first dimensions'
      )
    return x.reshape([-1, *x.shape[len(items) :]])


class DotProduct(base_layer.BaseLayer):
  """Scores pairs by the dot product of their encodings."""

  def __call__(self, queries: jax.Array, results: jax.Array) -> jax.Array:
    """Returns the scores [Q, R] of `queries` [Q, D] and `results` [R, D]."""
    return queries @ results.T


class PairLabels(base_layer.BaseLayer):
  """Labels pairs: those of one example are positive, all others negative.

  Attributes:
    ignore_if_equal: paths of fields [B]; pairs of different examples with equal
      values in any of them are ignored.
    ignore_self: whether the pair of an item and itself is ignored, where
      queries and results are of one modality. Else it is positive.
  """

  ignore_if_equal: Sequence[str] = ()
  ignore_self: bool = False

  def __call__(
    self,
    input_batch: NestedMap,
    queries: tuple[int, ...],
    results: tuple[int, ...],
    *,
    is_same: bool,
  ) -> jax.Array:
    """Returns the labels [Q, R], int32.

    Args:
      input_batch: of the examples.
      queries: the shape of the queries, [B, ...].
      results: the shape of the results.
      is_same: whether both are of one modality.

    Raises:
      UserError: a field is not [B], or all positive pairs would be ignored.
    """
    rows = queries[0]
    own = jnp.eye(rows, dtype=bool)
    labels = own.astype(jnp.int32)
    for name in self.ignore_if_equal:
      values = input_batch.Get(name)
      if jnp.shape(values) != (rows,):
        raise errors.UserError(
          f'PairLabels.ignore_if_equal: {name!r} has the shape'
          f' {list(jnp.shape(values))} in the batch; expected [{rows}]'
        )
      equal = values[:, None] == values[None, :]
      labels = jnp.where(equal & ~own, IGNORED, labels)
    per_query, per_result = (_count(s[1:]) for s in (queries, results))
    labels = jnp.repeat(labels, per_query, axis=0)
    labels = jnp.repeat(labels, per_result, axis=1)
    if is_same and self.ignore_self:
      if per_query < 2:
        raise errors.UserError(
          'DualEncoder.loss_weights pairs a modality with itself, whose'
          ' examples have one item each: all positive pairs would be ignored'
        )
      labels = jnp.where(jnp.eye(labels.shape[0], dtype=bool), IGNORED, labels)
    return labels


class DualEncoder(base_model.BaseModel):
  """Learns to find the results that belong to a query among those of a batch.

  The results of all examples of the batch are candidates for each query, those
  on other devices included.

  Metrics have the weight 1 for each batch, or the fraction of its examples that
  count, by `eval_sample_weights` [B]: `loss`; `loss_image_to_text` and so on,
  in nats, the mean over queries; and `loss_regularization` if encoders have
  one. A query without a negative result has a loss of 0.

  Attributes:
    encoder_tpls: a `ModalityEncoder` for each modality.
    score_tpl: maps queries [Q, D] and results [R, D] to scores [Q, R].
    labels_tpl: labels the pairs; see `PairLabels`.
    loss_weights: (modality of the queries, modality of the results, weight),
      for each kind of search in the loss.
    regularization_loss_weight: of the regularization losses of encoders.
  """

  encoder_tpls: Sequence[Config] = REQUIRED
  score_tpl: Config = sub_config_field(DotProduct)
  labels_tpl: Config = sub_config_field(PairLabels)
  loss_weights: Sequence[tuple[str, str, float]] = REQUIRED
  regularization_loss_weight: float = 1.0

  def setup(self):
    names = [tpl.modality for tpl in self.encoder_tpls]
    for name in {n for *pair, _ in self.loss_weights for n in pair}:
      if name not in names:
        raise errors.UserError(
          f'DualEncoder.loss_weights: {name!r} is not a modality'
          + errors.did_you_mean(name, names)
        )
    self.create_children('encoders', self.encoder_tpls)
    self.create_child('score', self.score_tpl)
    self.create_child('labels', self.labels_tpl)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the outputs of each `ModalityEncoder` by modality."""
    return NestedMap(
      {layer.modality: layer(input_batch) for layer in self.encoders}
    )

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the encodings of each modality."""
    weights = token_models.example_weights(input_batch)
    counted = 1.0 if weights is None else jnp.mean(weights)
    terms, metrics = [], NestedMap()
    for query, result, weight in self.loss_weights:
      if weight:
        loss = self._loss(predictions, input_batch, (query, result), weights)
        metrics[f'loss_{query}_to_{result}'] = loss, counted
        terms.append(weight * loss)
    found = [
      predictions[layer.modality].regularization for layer in self.encoders
    ]
    found = [loss for loss in found if loss is not None]
    if found and self.regularization_loss_weight:
      metrics.loss_regularization = sum(found), counted
      terms.append(self.regularization_loss_weight * sum(found))
    metrics.loss = sum(terms), counted
    return metrics, NestedMap(
      {name: made.encodings for name, made in predictions.items()}
    )

  def _loss(
    self,
    predictions: NestedMap,
    input_batch: NestedMap,
    modalities: tuple[str, str],
    weights: jax.Array | None,
  ) -> jax.Array:
    """Returns the mean loss of the queries.

    Args:
      predictions: of `compute_predictions`.
      input_batch: of the examples.
      modalities: of queries and results.
      weights: [B] of examples; those of weight 0 are neither queries nor
        results.
    """
    query, result = (predictions[name].encodings for name in modalities)
    shapes = query.shape[:-1], result.shape[:-1]
    labels = self.labels(
      input_batch, *shapes, is_same=modalities[0] == modalities[1]
    )
    scores = self.score(
      query.reshape([-1, query.shape[-1]]),
      result.reshape([-1, result.shape[-1]]),
    )
    if weights is None:
      return jnp.mean(contrastive_losses(labels, scores))
    of_query, of_result = (
      jnp.repeat(weights, _count(shape[1:])) for shape in shapes
    )
    labels = jnp.where(of_result > 0, labels, IGNORED)
    losses = jnp.where(of_query > 0, contrastive_losses(labels, scores), 0.0)
    return jnp.sum(losses * of_query) / jnp.maximum(jnp.sum(of_query), 1e-6)

  def predict(self, input_batch: NestedMap) -> NestedMap:
    """Returns the `encodings` and `ids` of each modality, by its name."""
    return NestedMap(
      {
        name: NestedMap(encodings=made.encodings, ids=made.ids)
        for name, made in self.compute_predictions(input_batch).items()
      }
    )


def contrastive_losses(labels: jax.Array, scores: jax.Array) -> jax.Array:
  """Returns the mean cross-entropy of each query's positive results.

  Each positive result is classified among itself and all negative ones.

  Args:
    labels: [Q, R], int: `POSITIVE`, `NEGATIVE` or `IGNORED`.
    scores: [Q, R], as logits.

  Returns:
    [Q], in nats; 0 without a positive or without a negative result.
  """
  negative, positive = labels == NEGATIVE, labels == POSITIVE
  has_negative = jnp.any(negative, axis=-1, keepdims=True)
  # Without negative results the sums below are of all, and not used.
  masked = jnp.where(negative | ~has_negative, scores, -jnp.inf)
  # Differences first, which are more precise than large scores.
  most = jax.lax.stop_gradient(jnp.max(masked, axis=-1, keepdims=True))
  logits = (scores - most) - jax.nn.logsumexp(
    masked - most, axis=-1, keepdims=True
  )
  losses = jnp.where(
    positive & has_negative, -jax.nn.log_sigmoid(logits), 0.0
  ).sum(axis=-1)
  return losses / jnp.maximum(positive.sum(axis=-1), 1)


def _count(shape: Sequence[Any]) -> int:
  """Returns the number of items of an example, from their shape."""
  count = 1
  for size in shape:
    count *= size
  return count
