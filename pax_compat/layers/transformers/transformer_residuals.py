"""Residual connections of Transformer blocks, and their normalisations.

Shapes: B batch, T time, D model dims.
"""

from collections.abc import Callable

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import stochastics
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.template_fields import agreed, create_agreed, keep_prob

# Norm policy -> names of the norms of the branch's input, of its output, and of
# the sum.
_NORMS = {
  'pre': ('layer_norm', None, None),
  'post': (None, 'layer_norm', None),
  'primer_hybrid': ('pre_layer_norm', 'post_layer_norm', None),
  'post_skip': (None, None, 'layer_norm'),
}


class ResidualBlock(base_layer.BaseLayer):
  """Base of layers with residual branches: inputs + branch(inputs).

  Attributes:
    input_dims: D.
    ln_tpl: the normalisation, copied if there are several.
    norm_policy: what is normalised: 'pre', the branch's input; 'post', the
      branch's output; 'primer_hybrid', both; 'post_skip', the sum.
    residual_dropout_prob: dropout probability of the branch's output.
    residual_droppath_prob: probability of dropping the branch of an example
      (stochastic depth).
  """

  input_dims: int = REQUIRED
  ln_tpl: Config = sub_config_field(norm_layers.LayerNorm)
  norm_policy: str = 'pre'
  residual_dropout_prob: float = 0.0
  residual_droppath_prob: float = 0.0

  def _create_norms(self, kind: str, dims: int):
    """Creates the norms of a residual branch.

    Args:
      kind: infix of the norms' names, such as 'cross'; '' for none.
      dims: of the branch's output.
    """
    errors.check_choice(self, 'norm_policy', _NORMS)
    is_first = not kind
    for index, name in enumerate(_NORMS[self.norm_policy]):
      if name is not None:
        tpl = self.ln_tpl if is_first else self.ln_tpl.clone()
        dim = self.input_dims if index == 0 else dims
        where = f'{type(self).__name__}.ln_tpl'
        self.create_child(
          _norm_name(name, kind), tpl, **agreed(where, tpl, dim=dim)
        )
        is_first = False

  def _create_dropouts(
    self, tpl_field: str, tpl: Config, residual_weight: float = 1.0
  ):
    """Creates the dropout and droppath of the branch's output."""
    where = f'{type(self).__name__}.{tpl_field}'
    drop = agreed(where, tpl, keep_prob=keep_prob(self.residual_dropout_prob))
    self.create_child('residual_dropout', tpl, **drop)
    if self.residual_droppath_prob:
      droppath = stochastics.StochasticResidual.config(
        residual_weight=residual_weight,
        survival_prob=1.0 - self.residual_droppath_prob,
      )
      self.create_child('residual_droppath', droppath)

  def _add_residual(
    self,
    inputs: jax.Array,
    compute: Callable[[jax.Array], jax.Array],
    *,
    kind: str = '',
    skip: bool = True,
    skip_from_normalized: bool = False,
    residual_weight: float = 1.0,
  ) -> jax.Array:
    """Returns `inputs` [B, T, D] plus the branch's output.

    Args:
      inputs: [B, T, D].
      compute: the branch, a function of its normalised inputs.
      kind: see `_create_norms`.
      skip: whether the inputs are added; else the branch's output is returned.
      skip_from_normalized: whether the normalised inputs are added instead, if
        the branch's input is normalised.
      residual_weight: factor of the branch's output.
    """
    before, after, at_end = (
      name and getattr(self, _norm_name(name, kind))
      for name in _NORMS[self.norm_policy]
    )
    normalized = before(inputs) if before else inputs
    outputs = compute(normalized)
    outputs = after(outputs) if after else outputs
    outputs = self.residual_dropout(outputs)
    if skip:
      skipped = normalized if skip_from_normalized else inputs
      if self.residual_droppath_prob:
        outputs = self.residual_droppath(skipped, outputs)
      else:
        outputs = skipped + outputs * residual_weight
    return at_end(outputs) if at_end else outputs


class FeedForwardBlock(ResidualBlock):
  """Base of feed-forward layers with a residual branch."""

  def _create_all_dropouts(self):
    """Creates the dropouts of the hidden layer and of the branch's output."""
    name = type(self).__name__
    if self.residual_droppath_prob and not self.add_skip_connection:
      raise errors.UserError(
        f'{name}.residual_droppath_prob is {self.residual_droppath_prob}, but'
        ' add_skip_connection is False'
      )
    drop = keep_prob(self.relu_dropout_prob)
    create_agreed(self, 'relu_dropout', 'relu_dropout_tpl', keep_prob=drop)
    self._create_dropouts(
      'residual_dropout_tpl', self.residual_dropout_tpl, self.residual_weight
    )

  def extend_step(
    self, inputs: jax.Array, *, time_step: jax.Array
  ) -> jax.Array:
    """Computes the block for new positions [B, L, D], or one [B, D]."""
    del time_step
    if inputs.ndim == 2:
      return self(inputs[:, None])[:, 0]
    return self(inputs)


def _norm_name(name: str, kind: str) -> str:
  """Returns a norm's name, such as `pre_layer_norm` or `cross_layer_norm`."""
  return name.replace('layer_norm', f'{kind}_layer_norm') if kind else name
