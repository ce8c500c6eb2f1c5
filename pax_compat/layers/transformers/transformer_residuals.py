"""What the blocks of a Transformer have in common: a residual and its norms.

Shapes: B batch, T time, D model dims.
"""

from collections.abc import Callable

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import stochastics
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.template_fields import agreed, keep_prob

# Where a block normalises: what it computes from, what it computed, and the sum
# of that and its input.
_NORMS = {
  'pre': ('layer_norm', None, None),
  'post': (None, 'layer_norm', None),
  'primer_hybrid': ('pre_layer_norm', 'post_layer_norm', None),
  'post_skip': (None, None, 'layer_norm'),
}


class ResidualBlock(base_layer.BaseLayer):
  """Base of the layers that add what they compute to their input.

  Attributes:
    input_dims: D.
    ln_tpl: the normalisation; where there are several, a copy for each.
    norm_policy: what is normalised: 'pre', what the layer computes from;
      'post', what it computed, before that is added to the input;
      'primer_hybrid', both; 'post_skip', the sum.
    residual_dropout_prob: probability of dropping an element of what is added.
    residual_droppath_prob: probability that nothing is added to an example.
  """

  input_dims: int = REQUIRED
  ln_tpl: Config = sub_config_field(norm_layers.LayerNorm)
  norm_policy: str = 'pre'
  residual_dropout_prob: float = 0.0
  residual_droppath_prob: float = 0.0

  def _create_norms(self, kind: str, dims: int):
    """Creates the norms of a residual; `kind` tells it from others, or is ''.

    Args:
      kind: part of the norms' names.
      dims: of what is added.
    """
    if self.norm_policy not in _NORMS:
      raise errors.UserError(
        f'{type(self).__name__}.norm_policy is {self.norm_policy!r}'
        + errors.did_you_mean(self.norm_policy, _NORMS)
      )
    own = not kind
    for place, name in enumerate(_NORMS[self.norm_policy]):
      if name is not None:
        tpl = self.ln_tpl if own else self.ln_tpl.clone()
        dim = self.input_dims if place == 0 else dims
        where = f'{type(self).__name__}.ln_tpl'
        self.create_child(
          _of_kind(name, kind), tpl, **agreed(where, tpl, dim=dim)
        )
        own = False

  def _create_dropouts(
    self, tpl_field: str, tpl: Config, residual_weight: float = 1.0
  ):
    """Creates what leaves out elements, or all, of what is added."""
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
    """Returns `inputs` [B, T, D] plus what is computed from them.

    Args:
      inputs: [B, T, D].
      compute: maps [B, T, D] to what is added.
      kind: as given to `_create_norms`.
      skip: whether the inputs are added; False returns what was computed.
      skip_from_normalized: whether, where the inputs are normalised before the
        computation, the result is added to that.
      residual_weight: factor of what is added.
    """
    before, after, at_end = (
      name and getattr(self, _of_kind(name, kind))
      for name in _NORMS[self.norm_policy]
    )
    normalized = before(inputs) if before else inputs
    outputs = compute(normalized)
    outputs = after(outputs) if after else outputs
    outputs = self.residual_dropout(outputs)
    if skip:
      kept = normalized if skip_from_normalized else inputs
      if self.residual_droppath_prob:
        outputs = self.residual_droppath(kept, outputs)
      else:
        outputs = kept + outputs * residual_weight
    return at_end(outputs) if at_end else outputs


def _of_kind(name: str, kind: str) -> str:
  """Returns a norm's name: `cross_layer_norm`, or `pre_cross_layer_norm`."""
  return name.replace('layer_norm', f'{kind}_layer_norm') if kind else name
