"""Variational noise, which is added to weights in each training step."""

import re
from collections.abc import Sequence
from typing import Any

import jax

from pax_compat import base_layer, errors, learners
from pax_compat.tasks import task_settings


class Noise:
  """Adds noise to selected weights.

  Attributes:
    paths: of the weights that get noise, such as `params/lm/softmax/w`.
  """

  def __init__(
    self, settings: task_settings.VariationalNoise, weights: Sequence[str]
  ):
    """Selects the weights.

    Args:
      settings: the scale, the weights and the first step of the noise.
      weights: the paths of all trainable weights, within their collection.

    Raises:
      UserError: the scale is not 0, and no weight is selected.
    """
    self._scale = settings.vn_scale
    self._start_step = settings.vn_start_step
    known = [f'{base_layer.PARAMS}/{path}' for path in weights]
    chosen = re.compile(settings.vn_regex)
    self.paths = frozenset(p for p in known if self._scale and chosen.match(p))
    if self._scale and not self.paths:
      raise errors.UserError(
        f'VariationalNoise.vn_regex {settings.vn_regex!r} matches no weight'
        f' from its beginning{errors.did_you_mean(settings.vn_regex, known)}'
      )

  def add(self, params: Any, step: jax.Array, key: jax.Array) -> Any:
    """Returns the weights with noise.

    Args:
      params: the trainable weights.
      step: [], number of steps made.
      key: the random key for the noise of this step.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    clean = {
      path: leaf
      for path, leaf in learners.by_path(params).items()
      if f'{base_layer.PARAMS}/{path}' in self.paths
    }
    if not clean:
      return params
    if self._start_step:
      # A branch, so that no noise is drawn before the first step.
      noisy = jax.lax.cond(
        step >= self._start_step,
        self._noisy,
        lambda weights, _: weights,
        clean,
        key,
      )
    else:
      noisy = self._noisy(clean, key)
    return jax.tree.unflatten(
      structure,
      [noisy.get(learners.path_name(path), leaf) for path, leaf in leaves],
    )

  def _noisy(self, weights: dict[str, jax.Array], key: jax.Array):
    keys = jax.random.split(key, len(weights))
    return {
      path: (w + self._scale * jax.random.normal(k, w.shape)).astype(w.dtype)
      for (path, w), k in zip(sorted(weights.items()), keys, strict=True)
    }
