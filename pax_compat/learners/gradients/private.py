"""Private gradients (DP-SGD): each example's gradient is clipped, then noise.

Shapes: B rows of the batch; M rows of a microbatch; N = B / M microbatches; I
rows of an inner batch, whose gradients are in memory at a time.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from pax_compat import errors
from pax_compat.learners.gradients.stochastic import (
  BaseStochasticGradient,
  DPGradAuxInfo,
  GradAuxInfo,
  LossFn,
)


class DpSgdStochasticGradient(BaseStochasticGradient):
  """DP-SGD, https://arxiv.org/abs/1607.00133, as Pax's: the same numbers.

  The loss of each example is that of a batch of this example. Its gradient is
  scaled down to a norm of `l2_norm_clip`. The mean of these gradients gets
  Gaussian noise with the standard deviation `noise_multiplier` times
  `l2_norm_clip` divided by B. All examples of an inner batch have the same
  random key; metrics, summaries and updated variables are means over examples.

  Accounting for the privacy that is spent is left to a library for it.

  Attributes:
    l2_norm_clip: the largest norm of an example's gradient; above 0.
    noise_multiplier: see above; 0 for no noise.
    use_loss_weight_scaling: whether the largest norm is times the weight of the
      example's loss; only without noise.
    normalize_gradients: whether the clipped gradients are divided by
      `l2_norm_clip`, and the noise with them.
    inner_batch_size: I, which must divide B; None for the whole batch. It does
      not change the gradients, if no layer draws random numbers.
    spmd_axis_name: the mesh axis, or axes, over which batches are split; see
      `jax.vmap`. JAX refuses a model that splits its activations by them.

  Raises:
    UserError: `l2_norm_clip` is not positive, or there is noise with
      `use_loss_weight_scaling`.
  """

  l2_norm_clip: float = 0.0
  noise_multiplier: float = 0.0
  use_loss_weight_scaling: bool = False
  normalize_gradients: bool = False
  inner_batch_size: int | None = None
  spmd_axis_name: str | tuple[str, ...] | None = None

  def __post_init__(self):
    self.check(
      self.l2_norm_clip > 0,
      f'l2_norm_clip is {self.l2_norm_clip}; expected a number above 0',
    )
    self.check(
      not (self.use_loss_weight_scaling and self.noise_multiplier),
      'use_loss_weight_scaling is set, and noise_multiplier is'
      f' {self.noise_multiplier}; expected 0 with it',
    )

  def process_aux_info(self, aux_info):
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), aux_info)

  def grad_fn(
    self, loss_fn, mdl_vars_grad, mdl_vars_nograd_and_inputs, prng_key
  ):
    others, batch = mdl_vars_nograd_and_inputs
    batch = self._prepare_inputs(batch)
    num, rows = jax.tree.leaves(batch)[0].shape[:2]
    inner = self.inner_batch_size or num * rows
    if num * rows % inner:
      raise errors.UserError(
        f'{type(self).__name__}.inner_batch_size is {inner}, which does not'
        f' divide the batch of {num * rows} rows'
      )
    # Microbatches are split, and their parts averaged, so that as many rows as
    # possible are computed together.
    splits = math.gcd(num, inner)
    parts = inner // splits
    steps = num // splits
    batch = jax.tree.map(
      lambda x: x.reshape(inner, -1, rows // parts, *x.shape[2:]), batch
    )
    keys = jax.random.split(prng_key, steps)

    def of_inner_batch(step):
      own = jax.tree.map(lambda x: x[:, step], batch)
      (losses, aux), gradients, reported = self._clipped(
        loss_fn, mdl_vars_grad, (others, own), keys[step], parts
      )
      aux = self.process_aux_info(aux)
      aux = DPGradAuxInfo(aux.aux_info, aux.loss_weight, reported)
      return (jnp.mean(losses), aux), gradients

    sums = jax.lax.fori_loop(
      1,
      steps,
      lambda step, sums: jax.tree.map(jnp.add, sums, of_inner_batch(step)),
      of_inner_batch(0),
    )
    result, gradients = jax.tree.map(lambda x: x * (1.0 / steps), sums)
    scale = 1.0 if self.normalize_gradients else self.l2_norm_clip
    if self.normalize_gradients:
      gradients = jax.tree.map(lambda g: g / self.l2_norm_clip, gradients)
    deviation = self.noise_multiplier / num * scale
    return result, _with_noise(gradients, deviation, prng_key)

  def _prepare_inputs(self, batch: Any) -> Any:
    """Returns a batch [B, ...] as microbatches [N, M, ...]."""
    return jax.tree.map(lambda x: jnp.expand_dims(x, 1), batch)

  def _clipped(
    self,
    loss_fn: LossFn,
    weights: Any,
    others_and_batch: tuple[Any, Any],
    key: jax.Array,
    parts: int,
  ) -> tuple[tuple[jax.Array, Any], Any, dict[str, Any]]:
    """Returns (losses [I], aux info), mean clipped gradients, what to report.

    Args:
      loss_fn: see `grad_fn`.
      weights: likewise.
      others_and_batch: other variables, and the inner batch [I, ...].
      key: the random key of all examples.
      parts: how many neighbouring rows of the inner batch are parts of one
        example, whose gradient is the mean of theirs.
    """
    compute = self._for_each(jax.value_and_grad(loss_fn, has_aux=True))
    (losses, aux), gradients = compute(weights, others_and_batch, key)
    gradients = jax.tree.map(
      lambda g: jnp.mean(g.reshape(-1, parts, *g.shape[1:]), axis=1),
      gradients,
    )
    mean, reported = self._clip_and_mean(gradients, self._limit(aux))
    return (losses, aux), mean, reported

  def _for_each(self, fn: Callable[..., Any], *mapped: int) -> Callable:
    """Returns a function of inner batches, of one (w, (others, batch), key).

    Args:
      fn: the function of one example.
      *mapped: axes of further arguments.
    """
    return jax.vmap(
      fn,
      in_axes=(None, (None, 0), None, *mapped),
      spmd_axis_name=self.spmd_axis_name,
    )

  def _limit(self, aux: GradAuxInfo) -> Any:
    """Returns the largest norm, [] or [I]."""
    weight = aux.loss_weight if self.use_loss_weight_scaling else 1.0
    return weight * self.l2_norm_clip

  def _clip_and_mean(self, gradients: Any, limit: Any) -> tuple[Any, dict]:
    """Returns the mean of clipped gradients, and what to report.

    Args:
      gradients: of each example, [I, ...].
      limit: the largest norm, [] or [I].
    """
    leaves, structure = jax.tree.flatten(gradients)
    sums, clipped = optax.per_example_global_norm_clip(leaves, limit)
    num = leaves[0].shape[0]
    mean = structure.unflatten([x / num for x in sums])
    return mean, {'frac_clipped': clipped / num}


class MicrobatchDpSgdStochasticGradient(DpSgdStochasticGradient):
  """DP-SGD that clips the gradients of microbatches of M neighbouring rows.

  The noise is divided by N then.

  Attributes:
    microbatch_size: M, which must divide B.
  """

  microbatch_size: int = 1

  def _prepare_inputs(self, batch):
    return jax.tree.map(self._microbatches, batch)

  def _microbatches(self, x: jax.Array) -> jax.Array:
    size = self.microbatch_size
    if x.shape[0] % size:
      raise errors.UserError(
        f'{type(self).__name__}.microbatch_size is {size}, which does not'
        f' divide the batch of {x.shape[0]} rows'
      )
    return x.reshape(-1, size, *x.shape[1:])


class AugMulDpSgdStochasticGradient(MicrobatchDpSgdStochasticGradient):
  """DP-SGD with augmentation multiplicity: each row is M times in a microbatch.

  For models that augment their inputs: what is clipped is the mean gradient of
  the augmented copies of an example.

  Attributes:
    microbatch_size: M.
  """

  def _microbatches(self, x):
    return jnp.repeat(x[:, None], self.microbatch_size, axis=1)


class PerLayerDpSgdStochasticGradient(DpSgdStochasticGradient):
  """DP-SGD that clips the gradient of each weight by itself.

  Attributes:
    use_uniform: whether the largest norm of each weight is the same; otherwise
      its square is proportional to the weight's size.
  """

  use_uniform: bool = True

  def _clip_and_mean(self, gradients, limit):
    leaves, structure = jax.tree.flatten(gradients)
    num = leaves[0].shape[0]
    sums, clipped = optax.per_example_layer_norm_clip(
      leaves, limit, self.use_uniform
    )
    shares = jnp.stack([x / num for x in clipped])
    norms = [
      jnp.mean(jnp.linalg.norm(x.reshape(num, -1), axis=1)) for x in leaves
    ]
    reported = {
      'frac_clipped': structure.unflatten(list(shares)),
      'mean_frac_clipped': jnp.mean(shares),
      'stdev_frac_clipped': jnp.std(shares),
      'mean_layer_grad_norms': structure.unflatten(norms),
    }
    return structure.unflatten([x / num for x in sums]), reported


def _with_noise(gradients: Any, deviation: float, key: jax.Array) -> Any:
  """Returns gradients with Gaussian noise, each leaf with its own key."""
  if not deviation:
    return gradients
  leaves, structure = jax.tree.flatten(gradients)
  keys = jax.random.split(key, len(leaves))
  return structure.unflatten(
    x + deviation * jax.random.normal(key, x.shape)
    for x, key in zip(leaves, keys, strict=True)
  )
