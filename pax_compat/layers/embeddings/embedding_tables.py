"""Embedding tables.

Shapes: D model dims, V vocabulary.
"""

import math

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED
from pax_compat.layer_core import flop_scopes, sharding
from pax_compat.layer_core.gradients import ghost_norms
from pax_compat.layer_core.row_gradients import (
  lookup_with_row_statistics,
  no_statistics,
)
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import base_ops
from pax_compat.layers.input_checks import check_integers


def lookup(table: jax.Array, ids: jax.Array, style: str) -> jax.Array:
  """Returns rows of a table, [..., D].

  Args:
    table: [V, D].
    ids: [...], int.
    style: 'index' gathers the rows; an id that is too large gets the last row.
      'matmul' multiplies one-hot vectors with the table, which suits a table
      whose rows are split over the mesh; an id out of range gets zeros. On a
      single CPU, the same numbers are gathered.

  Raises:
    UserError: the style is unknown.
  """
  if style == 'index':
    return table[ids]
  if style == 'matmul' and sharding.is_one_cpu():
    known = (ids >= 0) & (ids < table.shape[0])
    # The gradient of a row is summed in float32, as by a product.
    rows = table.astype(jnp.promote_types(table.dtype, jnp.float32))
    rows = rows.at[ids].get(mode='clip').astype(table.dtype)
    return jnp.where(known[..., None], rows, 0)
  if style == 'matmul':
    one_hot = jax.nn.one_hot(ids, table.shape[0], dtype=table.dtype)
    with flop_scopes.selection():
      return jnp.einsum('...v,vd->...d', one_hot, table)
  raise errors.UserError(
    f"lookup_style is {style!r}; expected 'index' or 'matmul'"
  )


def replaceable_lookup(
  layer: base_layer.BaseLayer, table: jax.Array, ids: jax.Array
) -> jax.Array:
  """Returns rows of a table, by the operations that a layer's config sets.

  Args:
    layer: has the field `lookup_style`, see `lookup`, and the fields and
      children of `base_ops`: `array_lookup` for 'index', `einsum` for 'matmul'.
    table: [V, D].
    ids: [...], int.
  """
  if layer.lookup_style == 'index':
    return layer.array_lookup(table, (ids,))
  if layer.lookup_style == 'matmul' and base_ops.is_replaced(
    layer.einsum_tpl, base_ops.EinsumOp
  ):
    one_hot = jax.nn.one_hot(ids, table.shape[0], dtype=table.dtype)
    return layer.einsum('...y,yz->...z', one_hot, table)
  return lookup(table, ids, layer.lookup_style)


def with_tap(
  layer: base_layer.BaseLayer,
  table: jax.Array,
  ids: jax.Array,
  vectors: jax.Array,
  num_rows: int,
) -> jax.Array:
  """Returns `vectors` with a tap of the weight `emb_var`; see `ghost_norms`.

  Args:
    layer: has the field `lookup_style`, see `lookup`.
    table: [V, D], the first rows of the weight.
    ids: [...], int.
    vectors: [..., D], those of `ids`.
    num_rows: number of rows of the weight.
  """
  if not ghost_norms.is_active():
    return vectors
  if layer.lookup_style == 'index':  # As an index does.
    ids = jnp.where(ids < 0, ids + len(table), ids)
  rows = jnp.where(ids < len(table), ids, num_rows)
  return ghost_norms.looked_up(layer, 'emb_var', rows, vectors, num_rows)


class VectorsSharding(base_layer.BaseLayer.ActivationSharding):
  """Sharding of embedding vectors over the mesh.

  Attributes:
    emb_out_split_dims_mapping: mapping of the vectors; None takes `out`.
  """

  emb_out_split_dims_mapping: SplitDimsMapping = None


def shard_vectors(layer: base_layer.BaseLayer, vectors: jax.Array) -> jax.Array:
  """Returns `vectors` [..., D], sharded by the layer's `VectorsSharding`."""
  mappings = layer.activation_split_dims_mapping
  mapping = mappings.emb_out_split_dims_mapping
  return layer.shard(vectors, mappings.out if mapping is None else mapping)


class Embedding(base_layer.BaseLayer):
  """Token embedding: a table [V, D] with one row for each token.

  Attributes:
    num_classes: V.
    input_dims: D.
    lookup_style: 'index' or 'matmul'; see `lookup`.
    scale_sqrt_depth: whether the vectors are multiplied by sqrt(D).
    set_nan_for_oob_id: whether an id outside 0..V-1 gets NaN, for debugging.
    sparse_gradients: whether the learner treats the table's gradient like a
      sparse gradient of TensorFlow; see `row_gradients`.
  """

  ActivationSharding = VectorsSharding

  num_classes: int = REQUIRED
  input_dims: int = REQUIRED
  lookup_style: str = 'index'
  scale_sqrt_depth: bool = False
  set_nan_for_oob_id: bool = False
  sparse_gradients: bool = False

  def setup(self):
    if self.sparse_gradients and self.lookup_style != 'index':
      raise errors.UserError(
        'Embedding.sparse_gradients needs the lookup_style'
        f" 'index', not {self.lookup_style!r}"
      )
    self.create_variable(
      'emb_var',
      WeightHParams(
        [self.num_classes, self.input_dims],
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )
    makes_probes = self.is_mutable_collection(base_layer.ROW_PROBES)
    if self.sparse_gradients and self.is_initializing() and makes_probes:
      self.variable(
        base_layer.ROW_PROBES, 'emb_var', no_statistics, self.num_classes
      )

  def __call__(self, ids: jax.Array) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...]."""
    return self.emb_lookup(ids)

  def emb_lookup(self, ids: jax.Array) -> jax.Array:
    """Returns the vectors [..., D] of `ids` [...]."""
    ids = jnp.asarray(ids)
    check_integers(self, ids)
    if self.has_variable(base_layer.ROW_PROBES, 'emb_var'):
      probe = self.get_variable(base_layer.ROW_PROBES, 'emb_var')
      vectors = lookup_with_row_statistics(self.theta.emb_var, ids, probe)
    else:
      vectors = self._vectors(ids)
    if self.set_nan_for_oob_id:
      known = (ids >= 0) & (ids < self.num_classes)
      vectors = jnp.where(known[..., None], vectors, jnp.nan)
    if self.scale_sqrt_depth:
      vectors = vectors * math.sqrt(self.input_dims)
    return shard_vectors(self, vectors)

  def _vectors(self, ids: jax.Array) -> jax.Array:
    """Returns the rows [..., D] of the table."""
    table = self._table()
    vectors = lookup(table, ids, self.lookup_style)
    return with_tap(self, table, ids, vectors, self.num_classes)

  def _table(self) -> jax.Array:
    """Returns the table [V, D]."""
    return self.theta.emb_var

  def extend_step(self, ids: jax.Array, *, time_step: jax.Array) -> jax.Array:
    """Returns the vectors of a decoding step; they do not depend on it."""
    del time_step
    return self.emb_lookup(ids)
