"""A model that detects objects in the cells of a grid, without anchor boxes.

As CenterPoint, https://arxiv.org/abs/2006.11275, with pillars. Shapes: B batch,
X, Y and Z cells of the grid, N = X * Y * Z, K classes, A bins of headings, D
features.
"""

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.detection import box_losses, boxes, target_losses
from pax_compat.layers.models import base_detector
from pax_compat.nested_map import NestedMap

# Of positions in the bin of a heading.
_ANGLE_DELTA = 1 / 9


class GridDetector(base_detector.BaseDetector):
  """Predicts a box and its class for each cell of a grid.

  A batch has what the featurizer reads, and of the cells `anchor_centers` [B,
  X, Y, Z, 3], their positions; `target_predictions` [B, X, Y, Z, 7], the wanted
  boxes, relative to these positions; `assigned_gt_labels` [B, X, Y, Z] int, 0
  for background; `assigned_cls_mask` [B, X, Y, Z] and `assigned_reg_mask` [B,
  X, Y, Z, K], the weights of their classes and boxes; and
  `assigned_gt_center_ness` [B, X, Y, Z], if that is predicted.

  Attributes:
    featurizer_tpl: maps a batch to features [B, X', Y', D'].
    backbone_tpl: maps them to features [B, X, Y, D].
    classifier_tpl: maps these to logits [B, X, Y, Z * K].
    regressor_tpl: maps them to residuals [B, X, Y, Z * R]: six parameters of
      location and size, A logits of the heading's bin, A positions in the bin,
      and what else the losses of location and size take.
    centerness_tpl: maps them to logits of how central a cell is in its object,
      [B, X, Y, Z * K]; None for no loss.
    grid_size_z: Z.
    num_angle_bins: A.
    is_focal: whether the loss of classes is focal, or a cross-entropy.
    location_loss_tpl: the loss of locations, one of `target_losses`.
    dimension_loss_tpl: the loss of sizes, one of `target_losses`.
    centerness_loss_weight: weight of the loss of the logits of centers.
    corner_weight: weight of the distance of corners in the loss of boxes.
    normalizes_by_positives: whether the losses of an example are divided by
      its number of boxes.
  """

  featurizer_tpl: Config = REQUIRED
  backbone_tpl: Config = REQUIRED
  classifier_tpl: Config = REQUIRED
  regressor_tpl: Config = REQUIRED
  centerness_tpl: Config | None = None
  grid_size_z: int = 1
  num_angle_bins: int = 12
  is_focal: bool = True
  location_loss_tpl: Config = sub_config_field(target_losses.HuberLoss)
  dimension_loss_tpl: Config = sub_config_field(target_losses.HuberLoss)
  centerness_loss_weight: float = 0.0
  corner_weight: float = 1.0
  normalizes_by_positives: bool = True

  def setup(self):
    self.create_child('featurizer', self.featurizer_tpl)
    self.create_child('backbone', self.backbone_tpl)
    self.create_child('classifier', self.classifier_tpl)
    self.create_child('regressor', self.regressor_tpl)
    if self.centerness_tpl is not None:
      self.create_child('centerness', self.centerness_tpl)
    self.create_child('location_loss', self.location_loss_tpl)
    self.create_child('dimension_loss', self.dimension_loss_tpl)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns `residuals` [B, N, R] and `classification_logits` [B, N, K].

    Also `centerness_logits` [B, N, K] if they are predicted.

    Args:
      input_batch: the batch.

    Raises:
      UserError: the grid of the batch is another one, or a layer has another
        number of outputs.
    """
    features = self.backbone(self.featurizer(input_batch))
    shape = *features.shape[:3], self.grid_size_z
    found = jnp.shape(input_batch.anchor_centers)[:4]
    if found != shape:
      raise errors.UserError(
        f'GridDetector: the backbone and grid_size_z make a grid {list(shape)},'
        f' and the anchor_centers of the batch have {list(found)}'
      )
    classes, per_box = len(self.class_loss_weights), self._residuals_per_box
    predictions = NestedMap(
      residuals=self._cells(self.regressor(features), per_box, 'regressor'),
      classification_logits=self._cells(
        self.classifier(features), classes, 'classifier'
      ),
    )
    if self.centerness_tpl is not None:
      predictions.centerness_logits = self._cells(
        self.centerness(features), classes, 'centerness'
      )
    return predictions

  @property
  def _residuals_per_box(self) -> int:
    losses = self.location_loss, self.dimension_loss
    params = sum(3 * loss.num_params for loss in losses)
    return params + 2 * self.num_angle_bins

  def _cells(self, outputs: jax.Array, size: int, name: str) -> jax.Array:
    """Returns outputs [B, X, Y, Z * size] of a layer as [B, N, size]."""
    if outputs.shape[-1] != self.grid_size_z * size:
      raise errors.UserError(
        f'GridDetector.{name}_tpl has {outputs.shape[-1]} outputs; expected'
        f' {size} for each of {self.grid_size_z} cells'
      )
    return outputs.reshape([len(outputs), -1, size])

  def _losses(self, predictions, input_batch, of_examples, count):
    of_boxes, of_classes = self._weights(input_batch, of_examples)
    losses = self._box_losses(predictions, input_batch, of_boxes, count)
    losses |= self._class_losses(predictions, input_batch, of_classes, count)
    losses['loss'] = (
      self.class_loss_weight * losses['loss/class']
      + self.box_loss_weight * losses['loss/reg']
    )
    if self.centerness_tpl is not None:
      losses['loss'] += self.centerness_loss_weight * losses['loss/centerness']
    return losses

  def _weights(
    self, input_batch: NestedMap, of_examples: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns weights of boxes [B, N, 1], and of classes [B, N, K].

    Args:
      input_batch: the batch.
      of_examples: [B].
    """
    rows = len(of_examples)
    boxes_of = jnp.sum(input_batch.assigned_reg_mask, axis=-1)
    boxes_of = boxes_of.reshape([rows, -1, 1])
    classes_of = input_batch.assigned_cls_mask.reshape([rows, -1, 1])
    factor = of_examples[:, None, None]
    if self.normalizes_by_positives:
      factor /= jnp.maximum(jnp.sum(boxes_of, axis=1, keepdims=True), 1)
    weights = jnp.asarray(self.class_loss_weights, jnp.float32)
    return boxes_of * factor, classes_of * factor * weights

  def _class_losses(
    self,
    predictions: NestedMap,
    input_batch: NestedMap,
    weights: jax.Array,
    count: jax.Array,
  ) -> dict[str, jax.Array]:
    """Returns the losses of classes, and of centers, by name.

    Args:
      predictions: of `compute_predictions`.
      input_batch: the batch.
      weights: [B, N, K].
      count: number of examples.
    """
    logits = predictions.classification_logits
    rows, _, classes = logits.shape
    labels = input_batch.assigned_gt_labels.reshape([rows, -1])
    labels = jax.nn.one_hot(labels, classes)
    if self.is_focal:
      losses = box_losses.focal_loss(
        logits, labels, alpha=self.focal_alpha, gamma=self.focal_gamma
      )
    else:
      losses = box_losses.sigmoid_loss(logits, labels)
    metrics = {'loss/class': jnp.sum(losses * weights) / count}
    if self.centerness_tpl is not None:
      wanted = input_batch.assigned_gt_center_ness.reshape([rows, -1, 1])
      losses = box_losses.sigmoid_loss(
        predictions.centerness_logits, wanted * labels
      )
      metrics['loss/centerness'] = jnp.sum(losses * weights) / count
    return metrics

  def _box_losses(
    self,
    predictions: NestedMap,
    input_batch: NestedMap,
    weights: jax.Array,
    count: jax.Array,
  ) -> dict[str, jax.Array]:
    """Returns the losses and mean errors of boxes by name.

    Args:
      predictions: of `compute_predictions`.
      input_batch: the batch.
      weights: [B, N, 1].
      count: number of examples.
    """
    bins = self.num_angle_bins
    residuals, logits, turns, scales = jnp.split(
      predictions.residuals, [6, 6 + bins, 6 + 2 * bins], axis=-1
    )
    rows = len(residuals)
    wanted = input_batch.target_predictions.reshape([rows, -1, boxes.SIZE])
    scales = jnp.split(scales, [3 * (self.location_loss.num_params - 1)], -1)
    location = self.location_loss(
      jnp.concatenate([residuals[..., :3], scales[0]], axis=-1), wanted[..., :3]
    )
    dimension = self.dimension_loss(
      jnp.concatenate([residuals[..., 3:], scales[1]], axis=-1),
      wanted[..., 3:6],
    )
    which, where = boxes.angle_to_bin(wanted[..., 6], bins)
    rotation = self._rotation_loss(logits, turns, which, where)
    centers = input_batch.anchor_centers.reshape([rows, -1, 3])
    where = jnp.broadcast_to(where[..., None], turns.shape)
    wanted = _boxes(centers, wanted[..., :6], which, where)
    predicted = _boxes(centers, residuals, which, turns)
    corner = box_losses.corner_loss(wanted, predicted, is_symmetric=False)
    location, dimension, rotation, corner = (
      jnp.sum(loss * weights) / count
      for loss in (location, dimension, rotation[..., None], corner[..., None])
    )
    location += dimension * (self.dimension_weight / self.location_weight)
    box = (
      self.location_weight * location
      + self.rotation_weight * rotation
      + self.corner_weight * corner
    )
    return {
      'loss/reg': box,
      'loss/reg/rot': rotation,
      'loss/reg/loc': location,
      'loss/reg/corner': corner,
      **box_losses.mean_errors(wanted, predicted, weights),
    }

  def _rotation_loss(
    self,
    logits: jax.Array,
    turns: jax.Array,
    which: jax.Array,
    where: jax.Array,
  ) -> jax.Array:
    """Returns the losses of headings, [B, N].

    Args:
      logits: [B, N, A].
      turns: [B, N, A], predicted positions in each bin.
      which: [B, N] int, the wanted bins.
      where: [B, N], the wanted positions in them.
    """
    of_bins = jax.nn.log_softmax(logits)
    chosen = which[..., None]
    right = jnp.take_along_axis(of_bins, chosen, axis=-1)[..., 0]
    turn = jnp.take_along_axis(turns, chosen, axis=-1)[..., 0]
    return box_losses.scaled_huber(turn - where, _ANGLE_DELTA) - right


def _boxes(
  centers: jax.Array, residuals: jax.Array, bins: jax.Array, turns: jax.Array
) -> jax.Array:
  """Returns boxes [B, N, 7].

  Args:
    centers: positions of the cells, [B, N, 3].
    residuals: locations relative to the cells, and sizes, [B, N, 6].
    bins: of the headings, [B, N] int.
    turns: positions in each bin, [B, N, A].
  """
  return jnp.concatenate(
    [
      residuals[..., :3] + centers,
      residuals[..., 3:],
      boxes.bin_to_angle(bins, turns)[..., None],
    ],
    axis=-1,
  )
