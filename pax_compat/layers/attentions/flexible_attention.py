"""Attention with optional projections and a limited window of sources.

Shapes: T target time, S source time, N heads, H dims of a head.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.layers.attentions.attention_masks import (
  CAUSAL,
  Mask,
  combine_masks,
  takes_structure,
)
from pax_compat.layers.attentions.dot_product import DotProductAttention


class HeadSplit(base_layer.BaseLayer):
  """Splits dims into heads, in place of a projection.

  Attributes:
    num_heads: N.
    is_output_projection: whether it merges heads instead.
  """

  num_heads: int = REQUIRED
  is_output_projection: bool = False

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps [..., N * H] to [..., N, H], or [..., N, H] to [..., N * H]."""
    if self.is_output_projection:
      return inputs.reshape([*inputs.shape[:-2], -1])
    return inputs.reshape([*inputs.shape[:-1], self.num_heads, -1])


class FlexibleAttention(DotProductAttention):
  """A `DotProductAttention` with optional projections.

  Inputs without a projection are split into heads, so they need N * H dims.

  Attributes:
    project_query: whether queries are projected.
    project_key: whether keys are projected.
    project_value: whether values are projected.
    project_output: whether the output is projected; else it has N * H dims.
    value_from_key: whether values are the projected keys (before any rotation
      and normalisation), so that `value_vec` is ignored.
    output_dim: dims of the projected output; None takes those of the queries.
    key_proj_tpl: the projection of keys; None takes `proj_tpl`.
    value_proj_tpl: the projection of values; None takes `proj_tpl`.
    left_context: maximum number of sources up to the target's own position
      that it sees; None for no limit. Later sources are not affected.
    sees_itself: whether a target sees the source at its own position.
  """

  project_query: bool = True
  project_key: bool = True
  project_value: bool = True
  project_output: bool = True
  value_from_key: bool = False
  output_dim: int | None = None
  key_proj_tpl: Config | None = None
  value_proj_tpl: Config | None = None
  left_context: int | None = None
  sees_itself: bool = True

  def _check_fields(self):
    super()._check_fields()
    errors.check_least(self, 1, 'left_context')
    if self.combine_qkv:
      raise errors.UserError(
        'FlexibleAttention.combine_qkv is not supported; use a'
        ' DotProductAttention'
      )
    dims = self._input_dims()
    heads = self.num_heads * self._head_dims()
    for name in ('query', 'key', 'value'):
      if name == 'value' and self.value_from_key:
        continue
      if not getattr(self, f'project_{name}') and dims[name] != heads:
        raise errors.UserError(
          f'FlexibleAttention.project_{name} is False, but a {name} has'
          f' {dims[name]} dims; expected N * H, {heads}'
        )

  def _create_projection(self, name, tpl_field, mapping, **fields):
    """Creates a projection, or a `HeadSplit` in its place."""
    is_output = name == 'post'
    if not getattr(self, 'project_output' if is_output else f'project_{name}'):
      self.create_child(
        name,
        HeadSplit.config(
          num_heads=self.num_heads, is_output_projection=is_output
        ),
      )
      return
    own = f'{name}_proj_tpl'
    if getattr(self, own, None) is not None:
      tpl_field = own
    super()._create_projection(name, tpl_field, mapping, **fields)

  def _create_key_or_value(self, name: str, dims: int):
    if name == 'key' or not self.value_from_key:
      super()._create_key_or_value(name, dims)

  def _create_post(self, dims: int):
    super()._create_post(self.output_dim or dims)

  def _project_source(
    self, key_vec: jax.Array, value_vec: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    if not self.value_from_key:
      return super()._project_source(key_vec, value_vec)
    key = self.key(key_vec)
    return self._named_source(key, key)

  @takes_structure
  def __call__(
    self,
    query_vec: jax.Array,
    key_vec: jax.Array,
    value_vec: jax.Array,
    atten_mask: Mask = None,
    query_segment_pos: jax.Array | None = None,
    key_segment_pos: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Attends; see `DotProductAttention`. The mask hides further sources."""
    seen = self._visible(jnp.arange(query_vec.shape[1]), key_vec.shape[1])
    return super().__call__(
      query_vec,
      key_vec,
      value_vec,
      self._mask(atten_mask).restricted(seen),
      query_segment_pos,
      key_segment_pos,
    )

  @takes_structure
  def extend_step(
    self,
    query_vec: jax.Array,
    *,
    atten_mask: Mask = None,
    time_step: jax.Array | int,
    segment_pos: jax.Array | None = None,
    is_cross_attention: bool = False,
  ) -> jax.Array:
    """Attends; see `DecodableAttention`. The mask hides further sources."""
    if query_vec.ndim == 3 and not is_cross_attention:
      mask = CAUSAL if atten_mask is None else self._mask(atten_mask)
      targets = time_step + jnp.arange(query_vec.shape[1])
      atten_mask = mask.restricted(
        self._visible(targets, self._check_capacity(query_vec))
      )
    return super().extend_step(
      query_vec,
      atten_mask=atten_mask,
      time_step=time_step,
      segment_pos=segment_pos,
      is_cross_attention=is_cross_attention,
    )

  def _visible(self, targets: jax.Array, sources: int) -> jax.Array | None:
    """Returns the mask [1, 1, T, S] of this layer for the targets [T]."""
    distance = targets[:, None] - jnp.arange(sources)
    masks = []
    if self.left_context is not None:
      masks.append(distance < self.left_context)
    if not self.sees_itself:
      masks.append(distance != 0)
    seen = combine_masks(*masks)
    return None if seen is None else seen[None, None]
