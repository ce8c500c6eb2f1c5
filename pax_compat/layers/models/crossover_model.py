"""Training a translation model on mixtures of sentence pairs.

Shapes: B batch, S source time, T target time, V vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.layers.models.sequence_model import SequenceModel
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.nested_map import NestedMap

# Attention weights and probabilities below this count as this.
_SMALL = 1e-6
_TINY = 1e-9
# After twice the steps of annealing the attention is as sharp as it gets.
_SHARPEST = 2.0


class _Side(NamedTuple):
  """One of the two sentence pairs of each row.

  Attributes:
    batch: with `src` and `tgt`.
    source: embedded source tokens.
    target: embedded target tokens.
    attention: [B, T, S], which source tokens a target token attends to.
    hidden: the softmax's input.
    predictions: of the softmax.
  """

  batch: NestedMap
  source: jax.Array
  target: jax.Array
  attention: jax.Array
  hidden: jax.Array
  predictions: NestedMap


class CrossoverModel(SequenceModel):
  """A `SequenceModel` that also learns from crossed sentence pairs: XEnDec.

  See https://arxiv.org/abs/2106.04060. Training has three losses: that of the
  batch's pairs; that of its other pairs, `other_src` and `other_tgt`, by
  default the pair of the row before; and that of their mixture. In the mixture
  some words of the source, those where `src.source_mask` [B, S] is 1, are those
  of the other source. The target's words are mixed in proportion to the
  attention that they pay to words of either source.

  Its metrics in training are `clean_loss`, `other_loss` and `mix_loss`, each
  times its weight, and `loss`, their sum, in addition to those of a
  `SequenceModel` of the batch's pairs. An evaluation is that of a
  `SequenceModel`.

  Attributes:
    clean_weight: weight of the loss of the pairs.
    other_weight: of that of the other pairs.
    mix_weight: of that of the mixture.
    anneals_labels: whether the mixture's labels change from those of the data
      to the model's predictions, during `annealing_steps`.
    anneals_attention: whether the attention that mixes changes from a uniform
      one to a sharp one, during twice `annealing_steps`.
    annealing_steps: number of training steps.
    atten_drop_prob: probability of dropping a weight of that attention.
  """

  clean_weight: float = 1.0
  other_weight: float = 1.0
  mix_weight: float = 1.0
  anneals_labels: bool = False
  anneals_attention: bool = True
  annealing_steps: int = 20000
  atten_drop_prob: float = 0.0

  def setup(self):
    super().setup()
    self.create_variable(
      'global_step',
      WeightHParams([], WeightInit.Constant(0), jnp.int32),
      trainable=False,
    )

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the network's output for the batch, in training with `losses`."""
    if self.do_eval:
      return super().compute_predictions(input_batch)
    others = _other_pairs(input_batch)
    progress = self._progress()
    first, second = (self._side(b, progress) for b in (input_batch, others))
    outputs = first.predictions
    outputs.losses = NestedMap()
    for name, weight, (loss, total) in (
      ('clean_loss', self.clean_weight, self._loss(outputs, input_batch)),
      ('other_loss', self.other_weight, self._loss(second.predictions, others)),
      ('mix_loss', self.mix_weight, self._mix(first, second, progress)),
    ):
      outputs.losses[name] = loss * weight, total
    return outputs

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the per-example outputs."""
    metrics, outputs = super().compute_loss(predictions, input_batch)
    if 'losses' in predictions:
      metrics.update(predictions.losses)
      loss = sum(value for value, _ in predictions.losses.values())
      metrics.loss = metrics.total_loss = loss, metrics.loss[1]
    return metrics, outputs

  def _progress(self) -> jax.Array:
    """Counts a step; returns how many `annealing_steps` were done, []."""
    step = self.get_var('global_step')
    self.update_var('global_step', step + 1)
    return step.astype(jnp.float32) / self.annealing_steps

  def _side(self, batch: NestedMap, progress: jax.Array) -> _Side:
    """Computes sentence pairs."""
    src, tgt = batch.src, batch.tgt
    source = self.model.embed_tokens('encoder', src.ids)
    target = self.model.embed_tokens('decoder', tgt.ids)
    hidden, attention = self.model.decode_vectors(
      source, src.paddings, target, tgt.paddings
    )
    labels = NestedMap(class_ids=tgt.labels, class_weights=tgt.weights)
    if self.anneals_attention:
      attention = _sharpened(attention, tgt.paddings, progress)
    return _Side(
      batch,
      source,
      target,
      jax.lax.stop_gradient(self._dropped(attention)),
      hidden,
      sequence_losses.xent(self.model.softmax, hidden, labels),
    )

  def _dropped(self, attention: jax.Array) -> jax.Array:
    if not self.atten_drop_prob:
      return attention
    keep = 1.0 - self.atten_drop_prob
    kept = jax.random.bernoulli(self.next_prng_key(), keep, attention.shape)
    return jnp.where(kept, attention / keep, 0)

  def _loss(
    self, predictions: NestedMap, batch: NestedMap
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the loss of pairs, and its weight."""
    if self.loss_per_sequence:
      return self._sequence_loss(predictions, batch)
    return predictions.avg_xent, predictions.total_weight

  def _mix(
    self, first: _Side, second: _Side, progress: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the loss of the mixture, and its weight."""
    batches = first.batch, second.batch
    sources, inputs, labels = _shares(first, second)
    source, target = (
      sum(s[..., None] * x for s, x in zip(shares, vectors, strict=True))
      for shares, vectors in (
        (sources, (first.source, second.source)),
        (inputs, (first.target, second.target)),
      )
    )
    paddings = [
      jnp.clip(batches[0][k].paddings + batches[1][k].paddings - 1, 0, 1)
      for k in ('src', 'tgt')
    ]
    hidden, _ = self.model.decode_vectors(
      source, paddings[0], target, paddings[1]
    )
    weights = jnp.clip(batches[0].tgt.weights + batches[1].tgt.weights, 0, 1)
    probs = sum(
      share[..., None] * self._labels(side, progress)
      for share, side in zip(labels, (first, second), strict=True)
    )
    probs = probs + _TINY
    probs = probs / jnp.sum(probs, axis=-1, keepdims=True)
    outputs = sequence_losses.xent(
      self.model.softmax,
      hidden,
      NestedMap(class_weights=weights, class_probabilities=probs),
    )
    return self._loss(outputs, batches[0])

  def _labels(self, side: _Side, progress: jax.Array) -> jax.Array:
    """Returns the distributions [B, T, V] that a side's labels stand for."""
    softmax, tgt = self.model.softmax, side.batch.tgt
    target = softmax.smoothed_target(softmax.label_smoothing_prob)
    labels = jax.nn.one_hot(tgt.labels, softmax.num_classes)
    labels = target.off + (target.on - target.off) * labels
    if not self.anneals_labels:
      return labels
    share = tgt.weights[..., None] * jnp.minimum(progress, 1)
    # Gradients do not pass through them.
    logits = jax.lax.stop_gradient(softmax.get_logits(side.hidden))
    predicted = jax.nn.softmax(logits.astype(jnp.float32))
    return labels * (1 - share) + predicted * share


def _other_pairs(batch: NestedMap) -> NestedMap:
  """Returns a batch of the other sentence pairs."""
  if 'other_src' in batch and 'other_tgt' in batch:
    return NestedMap(src=batch.other_src, tgt=batch.other_tgt)
  pairs = NestedMap(src=batch.src, tgt=batch.tgt)
  return jax.tree.map(lambda x: jnp.roll(x, 1, axis=0), pairs)


def _sharpened(
  attention: jax.Array, paddings: jax.Array, progress: jax.Array
) -> jax.Array:
  """Returns attention weights [B, T, S], uniform at first, later sharp."""
  power = jnp.minimum(progress, _SHARPEST)
  powers = jnp.exp(jnp.log(attention + _SMALL) * power)
  powers = powers * (1 - paddings)[..., None] + _SMALL
  return powers / jnp.sum(powers, axis=-1, keepdims=True)


def _shares(first: _Side, second: _Side):
  """Returns the shares of both sides in the mixture.

  Returns:
    Three pairs: of source tokens [B, S], of target input tokens [B, T], and of
    labels [B, T].
  """
  (src, tgt), (other_src, other_tgt) = (
    (1 - side.batch.src.paddings, 1 - side.batch.tgt.paddings)
    for side in (first, second)
  )
  other = first.batch.src.source_mask * other_src
  own = (1 - other) * src
  attended = jnp.einsum('bts,bs->bt', first.attention, own * src) * tgt
  other_attended = (
    jnp.einsum('bts,bs->bt', second.attention, other * other_src) * other_tgt
  )
  share = attended / (attended + other_attended + _TINY)
  # The input token of a position is the label of the position before.
  before = jnp.pad(share[:, :-1], [(0, 0), (1, 0)], constant_values=1)
  return (
    (own, other),
    (before * tgt, (1 - before) * other_tgt),
    (share, 1 - share),
  )
