"""Clipping of gradients, and which gradients are invalid."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pax_compat.learners.gradients import gradient_norms

IS_VALID_STEP = 'learning/is_valid_step'

Arrays = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of the norms of gradients; 0 for none.

  Attributes:
    norm: the largest global norm; gradients are scaled down together.
    single_norm: the largest norm of each gradient, which is scaled down.
    zero_norm: gradients of this global norm or a larger one are set to zero.
    invalid_norm: gradients of this global norm or a larger one are invalid.
    zero_nonfinite: whether gradients are set to zero if their global norm is
      not finite.
  """

  norm: float
  single_norm: float
  zero_norm: float
  invalid_norm: float
  zero_nonfinite: bool

  @property
  def may_zero(self) -> bool:
    """Whether gradients can be set to zero."""
    return self.zero_nonfinite or self.zero_norm > 0


class Scaling(NamedTuple):
  """How a group of gradients is scaled.

  Attributes:
    factors: of each gradient by path, for `gradient_norms.scale`.
    is_valid: [], bool, whether the global norm is finite and not too large.
    raw_grad_norm: [], the global norm before scaling.
    clipped_grad_norm: [], the global norm after scaling.
    grad_scale: [], the common factor of the gradients.
  """

  factors: Arrays
  is_valid: jax.Array
  raw_grad_norm: jax.Array
  clipped_grad_norm: jax.Array
  grad_scale: jax.Array

  def times(self, factor: jax.Array) -> 'Scaling':
    """Returns this scaling times `factor` []."""
    return self._replace(
      factors={path: factor * own for path, own in self.factors.items()},
      clipped_grad_norm=factor * self.clipped_grad_norm,
      grad_scale=factor * self.grad_scale,
    )


def scaling(square_sums: Arrays, limits: Limits) -> Scaling:
  """Returns how gradients are scaled.

  Args:
    square_sums: of each gradient by path, of `gradient_norms.squares`.
    limits: the limits of norms.
  """
  raw = gradient_norms.norm(square_sums)
  finite = jnp.isfinite(raw)
  scale = jnp.ones([])
  if limits.norm > 0:
    scale = gradient_norms.limit_factor(raw, limits.norm)
  if limits.zero_norm > 0:
    scale = jnp.where(raw < limits.zero_norm, scale, 0)
  if limits.zero_nonfinite:
    scale = jnp.where(finite, scale, 0)
  factors = {path: scale for path in square_sums}
  if limits.single_norm > 0:
    for path, total in square_sums.items():
      one = gradient_norms.limit_factor(jnp.sqrt(total), limits.single_norm)
      factors[path] = jnp.where(scale == 0, 0, scale * one)
  clipped = gradient_norms.scale(
    square_sums,
    {path: jnp.square(factor) for path, factor in factors.items()},
    or_zero=limits.may_zero,
  )
  too_large = limits.invalid_norm > 0 and raw >= limits.invalid_norm
  return Scaling(
    factors=factors,
    is_valid=finite & ~jnp.asarray(too_large),
    raw_grad_norm=raw,
    clipped_grad_norm=gradient_norms.norm(clipped),
    grad_scale=scale,
  )


def step_metrics(
  scalings: Mapping[str, Scaling], *, norms: bool, check: bool
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns whether a step is valid, as a bool [], and its metrics.

  Args:
    scalings: of groups of gradients by name; '' is the group of all gradients.
    norms: whether norms are reported.
    check: whether validity is checked; if not, every step is valid.
  """
  is_valid = jnp.array(True)
  raw, clipped, metrics = {}, {}, {}
  for name, one in scalings.items():
    own = one.is_valid if check else jnp.array(True)
    is_valid &= own
    prefix = f'learning/{name}/' if name else 'learning/'
    metrics[prefix + 'is_valid_step'] = own.astype(jnp.float32)
    metrics[prefix + 'grad_scale'] = one.grad_scale
    if norms:
      metrics[prefix + 'raw_grad_norm'] = one.raw_grad_norm
      metrics[prefix + 'clipped_grad_norm'] = one.clipped_grad_norm
      raw[name] = jnp.square(one.raw_grad_norm)
      clipped[name] = jnp.square(one.clipped_grad_norm)
  if '' not in scalings:
    metrics[IS_VALID_STEP] = is_valid.astype(jnp.float32)
    if norms:
      metrics['learning/raw_grad_norm'] = gradient_norms.norm(raw)
      metrics['learning/clipped_grad_norm'] = gradient_norms.norm(clipped)
  return is_valid, metrics
