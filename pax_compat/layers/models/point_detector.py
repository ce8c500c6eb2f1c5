"""A model that detects objects in point clouds, around sampled centers.

As StarNet, https://arxiv.org/abs/1908.11069. Shapes: B batch, C centers, P
points around a center, F features of a point, O offsets of a center, A anchor
boxes of a center, K classes.
"""

import math

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.config import REQUIRED, Config
from pax_compat.layers.detection import box_losses, boxes
from pax_compat.layers.models import base_detector
from pax_compat.nested_map import NestedMap


class PointDetector(base_detector.BaseDetector):
  """Predicts a box and its class for each anchor box of sampled centers.

  A batch has `cell_center_xyz` [B, C, 3]; of the points around them
  `cell_points_xyz` [B, C, P, 3], `cell_feature` [B, C, P, F] and
  `cell_points_padding` [B, C, P]; of the anchors `anchor_bboxes` and
  `anchor_localization_residuals` [B, C, A, 7] (see `boxes`),
  `assigned_gt_labels` [B, C, A] int, 0 for background, and
  `assigned_cls_mask` and `assigned_reg_mask` [B, C, A], the weights of their
  classes and boxes.

  Attributes:
    featurizer_tpl: maps a NestedMap of `points`, `features` and `padding` to
      features [B, C, D].
    projector_tpl: maps them to the features of all offsets, [B, C, O * D];
      None if there is one offset.
    regressor_tpl: maps features to residuals, [B, C, O, A / O * 7].
    classifier_tpl: maps features to logits, [B, C, O, A / O * K].
    num_offsets: O.
    num_anchors: A.
    centers_as_features: whether features start with the center's position.
    huber_delta: see `box_losses.scaled_huber`.
    corner_weight: weight of the distance of corners in the loss of boxes; 0 for
      none.
    normalizes_by_positives: whether losses are divided by the number of
      centers, and at each center by its number of boxes.
    squashes_rotation: whether predicted rotations lie between -pi and pi.
    is_direction_aware: whether opposite headings differ in the loss.
  """

  featurizer_tpl: Config = REQUIRED
  projector_tpl: Config | None = None
  regressor_tpl: Config = REQUIRED
  classifier_tpl: Config = REQUIRED
  num_offsets: int = 1
  num_anchors: int = REQUIRED
  centers_as_features: bool = False
  huber_delta: float = 1 / 9
  corner_weight: float = 0.0
  normalizes_by_positives: bool = False
  squashes_rotation: bool = False
  is_direction_aware: bool = False

  def setup(self):
    self.create_child('featurizer', self.featurizer_tpl)
    if self.projector_tpl is not None:
      self.create_child('projector', self.projector_tpl)
    self.create_child('regressor', self.regressor_tpl)
    self.create_child('classifier', self.classifier_tpl)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns `residuals` [B, C, A, 7], `classification_logits` [B, C, A, K].

    Raises:
      UserError: the anchors are not as many as `num_anchors`.
    """
    found = jnp.shape(input_batch.anchor_bboxes)[2]
    if found != self.num_anchors:
      raise errors.UserError(
        f'PointDetector.num_anchors is {self.num_anchors}, and the batch has'
        f' {found} anchor boxes of each center'
      )
    features = self._features(input_batch)
    rows = *features.shape[:2], self.num_offsets
    features = features.reshape([*rows, -1])
    anchors = *rows[:2], self.num_anchors
    residuals = self.regressor(features).reshape([*anchors, boxes.SIZE])
    if self.squashes_rotation:
      rotations = math.pi * jnp.tanh(residuals[..., 6:])
      residuals = jnp.concatenate([residuals[..., :6], rotations], axis=-1)
    logits = self.classifier(features).reshape([*anchors, -1])
    return NestedMap(residuals=residuals, classification_logits=logits)

  def _features(self, input_batch: NestedMap) -> jax.Array:
    """Returns the features of all offsets, [B, C, O * D]."""
    centers = input_batch.cell_center_xyz[:, :, None]
    points = input_batch.cell_points_xyz - centers
    features = [points, input_batch.cell_feature]
    if self.centers_as_features:
      features = [jnp.broadcast_to(centers, points.shape), *features]
    features = self.featurizer(
      NestedMap(
        points=points,
        features=jnp.concatenate(features, axis=-1),
        padding=input_batch.cell_points_padding,
      )
    )
    return features if self.projector_tpl is None else self.projector(features)

  def _losses(self, predictions, input_batch, of_examples, count):
    per_anchor = of_examples[:, None, None]
    norm = self._norm(input_batch)
    classes = self._class_loss(predictions, input_batch, per_anchor / norm)
    anchors = input_batch.anchor_bboxes
    wanted, predicted = (
      boxes.from_residuals(anchors, residuals)
      for residuals in (
        input_batch.anchor_localization_residuals,
        predictions.residuals,
      )
    )
    weights = input_batch.assigned_reg_mask * per_anchor / norm
    parts = self._box_losses(
      predictions.residuals - input_batch.anchor_localization_residuals,
      (wanted, predicted),
      weights[..., None],
    )
    location, dimension, rotation, corner = (
      jnp.sum(part) / count for part in parts
    )
    box = (
      self.location_weight * location
      + self.dimension_weight * dimension
      + self.rotation_weight * rotation
      + self.corner_weight * corner
    )
    classes = jnp.sum(classes) / count
    return {
      'loss': self.box_loss_weight * box + self.class_loss_weight * classes,
      'loss/regression': box,
      'loss/regression/loc': location,
      'loss/regression/dim': dimension,
      'loss/regression/rot': rotation,
      'loss/regression/corner': corner,
      'loss/classification': classes,
      **box_losses.mean_errors(wanted, predicted, weights[..., None]),
    }

  def _norm(self, input_batch: NestedMap) -> jax.Array:
    """Returns what losses are divided by, [B, C, 1]."""
    masks = input_batch.assigned_reg_mask
    if not self.normalizes_by_positives:
      return jnp.ones_like(masks[..., :1])
    positives = jnp.sum(masks, axis=2, keepdims=True)
    return jnp.maximum(positives, 1) * masks.shape[1]

  def _class_loss(
    self, predictions: NestedMap, input_batch: NestedMap, weights: jax.Array
  ) -> jax.Array:
    """Returns the weighted losses of classes, [B, C, A, K].

    Args:
      predictions: of `compute_predictions`.
      input_batch: the batch.
      weights: [B, C, 1].
    """
    logits = predictions.classification_logits
    of_classes = jnp.asarray(self.class_loss_weights, jnp.float32)
    if logits.shape[-1:] != of_classes.shape:
      raise errors.UserError(
        f'PointDetector.class_loss_weights has {len(of_classes)} classes, and'
        f' the classifier {logits.shape[-1]}'
      )
    labels = jax.nn.one_hot(input_batch.assigned_gt_labels, logits.shape[-1])
    losses = box_losses.focal_loss(
      logits, labels, alpha=self.focal_alpha, gamma=self.focal_gamma
    )
    of_anchors = input_batch.assigned_cls_mask * weights
    return losses * of_anchors[..., None] * of_classes

  def _box_losses(
    self,
    error: jax.Array,
    pair: tuple[jax.Array, jax.Array],
    weights: jax.Array,
  ) -> tuple[jax.Array, ...]:
    """Returns weighted losses of location, dimension, rotation and corners.

    Args:
      error: of residuals, [B, C, A, 7].
      pair: the wanted and the predicted boxes.
      weights: [B, C, A, 1].

    Returns:
      Arrays [B, C, A, ...]; the last one is 0 without a weight of corners.
    """
    turn = error[..., 6:]
    turn = boxes.wrap_angle(turn) if self.is_direction_aware else jnp.sin(turn)
    moved = box_losses.scaled_huber(error[..., :6], self.huber_delta)
    rotation = box_losses.scaled_huber(turn, self.huber_delta)
    corners = jnp.zeros_like(weights)
    if self.corner_weight:
      corners = box_losses.corner_loss(*pair)[..., None]
    losses = moved[..., :3], moved[..., 3:], rotation, corners
    return tuple(loss * weights for loss in losses)
