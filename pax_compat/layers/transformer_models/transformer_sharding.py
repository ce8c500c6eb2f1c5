"""Sharding of Transformer models over a mesh.

The letters of a tensor's dimensions: b batch, l length, d model dims, f hidden
dims of the feed-forward, n heads, h dims of a head, v vocabulary. `w_df` is the
split mapping of a weight [d, f], `a_bld` that of an activation [b, l, d]; None
keeps the mapping of the config. Of experts: e experts, m model dims, h hidden
dims, g groups of tokens, c slots of an expert per group.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import Config, field_names
from pax_compat.layer_core.decode_states import ForwardsDecodeStates
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers.embedding_softmax import GShardSharedEmbeddingSoftmax
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.embeddings.positional_embeddings import (
  TrainablePositionalEmbedding,
)
from pax_compat.layers.template_fields import create_agreed
from pax_compat.nested_map import NestedMap

# The tensors of `shard_stack` and `shard_vocabulary`.
_OF_STACKS = (
  'w_df',
  'w_dnh',
  'w_emh',
  'a_bld',
  'a_blf',
  'a_blh',
  'a_blnh',
  'a_egch',
  'a_egcm',
  'a_gs',
)
_OF_VOCABULARIES = ('w_vd', 'a_blv', 'a_bld')


def canonical_shardings(
  *,
  replica_axis: str,
  data_axis: str,
  mdl_axis: str,
  ici_mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
  training_optimized: bool,
  dcn_mesh_shape: Sequence[int] | None = None,
  batch_axes: Sequence[str] | None = None,
  seq_axis: str | None = None,
) -> dict[str, Any]:
  """Returns the usual sharding of a Transformer, as arguments of `shard_model`.

  Weights are sharded over the data and model axes, and replicated over the
  replica axis; batches are sharded over the replica and data axes.

  Args:
    replica_axis: name of the replica axis of the mesh.
    data_axis: of the data axis.
    mdl_axis: of the model axis.
    ici_mesh_shape: devices along each axis within a slice.
    mesh_axis_names: names of all axes.
    training_optimized: whether activations between layers are sharded over the
      model axis too, for less memory and more communication.
    dcn_mesh_shape: slices along each axis; None for a single slice.
    batch_axes: axes over which batches are sharded instead.
    seq_axis: name of an axis over which sequences are sharded, and weights in
      addition to the data axis; or None.
  """
  batch = tuple(batch_axes or (replica_axis, data_axis))
  data = data_axis if seq_axis is None else (data_axis, seq_axis)
  return dict(
    ici_mesh_shape=ici_mesh_shape,
    dcn_mesh_shape=dcn_mesh_shape,
    mesh_axis_names=mesh_axis_names,
    w_df=[data, mdl_axis],
    w_dnh=[data, mdl_axis, None],
    w_emh=[data_axis, None, mdl_axis],
    w_vd=[mdl_axis, data],
    a_bld=(
      [batch, seq_axis, mdl_axis] if training_optimized else [batch, None, None]
    ),
    a_blf=[batch, seq_axis, mdl_axis],
    a_blnh=[batch, seq_axis, mdl_axis, None],
    a_blv=[batch, seq_axis, mdl_axis],
    a_egch=[data_axis, None, None, mdl_axis],
    a_egcm=(
      [data_axis, None, None, mdl_axis]
      if training_optimized
      else [batch, None, None, None]
    ),
  )


def expert_parallel_shardings(
  *,
  replica_axis: str,
  data_axis: str,
  data_expert_axis: str,
  mdl_axis: str,
  training_optimized: bool,
  batch_axes: Sequence[str] | None = None,
  seq_axis: str | None = None,
  **mesh: Sequence[int] | Sequence[str] | None,
) -> dict[str, Any]:
  """Returns a sharding with an axis of experts, as `canonical_shardings`.

  Experts are sharded over the axis `data_expert_axis`; all other weights are
  sharded over it and the data axis together, and batches over it, too.

  Args:
    replica_axis: name of the replica axis of the mesh.
    data_axis: of the data axis.
    data_expert_axis: of the axis of experts.
    mdl_axis: of the model axis.
    training_optimized: see `canonical_shardings`.
    batch_axes: see there.
    seq_axis: see there.
    **mesh: `ici_mesh_shape`, `dcn_mesh_shape` and `mesh_axis_names`, as there.
  """
  batch = tuple(batch_axes or (replica_axis, data_axis, data_expert_axis))
  data: tuple[str, ...] = (data_axis, data_expert_axis)
  if seq_axis is not None:
    data = (*data, seq_axis)
  per_token = [batch, seq_axis, mdl_axis]
  groups = (replica_axis, data_axis)
  return dict(
    **mesh,
    w_df=[data, mdl_axis],
    w_dnh=[data, mdl_axis, None],
    w_emh=[data_expert_axis, data_axis, mdl_axis],
    w_vd=[mdl_axis, data],
    a_bld=per_token if training_optimized else [batch, None, None],
    a_blf=per_token,
    a_blnh=[*per_token, None],
    a_blv=per_token,
    a_egch=[data_expert_axis, data_axis, None, mdl_axis],
    a_egcm=(
      [data_expert_axis, groups, None, mdl_axis]
      if training_optimized
      else [batch, None, None, None]
    ),
    a_gs=[batch, None],
  )


class Templates(NamedTuple):
  """Names of a model's fields whose templates are sharded.

  Attributes:
    stacks: of stacks of layers.
    vocabularies: of softmaxes and token embeddings.
    positions: of position embeddings.
    ngrammers: of n-grammers.
  """

  stacks: Sequence[str]
  vocabularies: Sequence[str]
  positions: Sequence[str]
  ngrammers: Sequence[str] = ()


class TransformerModel(ForwardsDecodeStates, base_layer.BaseLayer):
  """Base of Transformer models: sharding, child creation and decode states."""

  SHARDED_TEMPLATES: ClassVar[Templates]

  @classmethod
  def set_sharding_params_v1(cls, lm_p: Config, **axes) -> Config:
    """Shards a model over a mesh with replica, data and model axes.

    Args:
      lm_p: config of this class.
      **axes: see `canonical_shardings`.

    Returns:
      `lm_p`, modified.
    """
    return cls.set_custom_sharding_params(lm_p, **canonical_shardings(**axes))

  @classmethod
  def set_sharding_params_with_expert_parallelism(
    cls, lm_p: Config, **axes
  ) -> Config:
    """Shards a model over a mesh with an additional axis, for experts.

    Args:
      lm_p: config of this class.
      **axes: see `expert_parallel_shardings`.

    Returns:
      `lm_p`, modified.
    """
    shardings = expert_parallel_shardings(**axes)
    return cls.set_custom_sharding_params(lm_p, **shardings)

  @classmethod
  def set_custom_sharding_params(cls, lm_p: Config, **shardings) -> Config:
    """Shards a model tensor by tensor; returns `lm_p`, modified.

    Args:
      lm_p: config of this class.
      **shardings: see `shard_model`.
    """
    return shard_model(lm_p, cls.SHARDED_TEMPLATES, **shardings)

  def _create(self, name: str, field: str, **fields):
    """Creates a child from the template in `field`, unless it is None."""
    if getattr(self, field) is not None:
      create_agreed(self, name, field, **fields)

  def _add_aux_loss(self, output: NestedMap):
    """Adds the auxiliary losses of all layers in it to the output.

    They are `aux_loss` [], `aux_loss_weight` [], both 0 if they are not
    collected, and a summand of `total_loss`.
    """
    loss = self.total_aux_loss()
    output.aux_loss, output.aux_loss_weight = loss.value, loss.weight
    output.total_loss += loss.value

  def _keeps_states(self) -> bool:
    """Whether a call fills the decode states."""
    return (
      self.is_mutable_collection(base_layer.DECODE_CACHE)
      and not self.is_initializing()
    )

  def _store_time_step(self, time_step: jax.Array | int):
    self.update_decode_state('time_step', jnp.asarray(time_step, jnp.int32))


def shard_model(
  model: Config,
  fields: Templates,
  *,
  ici_mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
  dcn_mesh_shape: Sequence[int] | None = None,
  **tensors: SplitDimsMapping,
) -> Config:
  """Sets the mesh of a model, and the split mappings of its templates.

  Args:
    model: its config.
    fields: names of the fields with its templates.
    ici_mesh_shape: see `canonical_shardings`.
    mesh_axis_names: see there.
    dcn_mesh_shape: see there.
    **tensors: arguments of `shard_stack` and `shard_vocabulary`.

  Returns:
    `model`, modified.

  Raises:
    UserError: the name of a tensor is unknown.
  """
  known = {*_OF_STACKS, *_OF_VOCABULARIES}
  for name in tensors.keys() - known:
    raise errors.UserError(
      f'{model.cls.__name__} has no tensor {name!r} to shard'
      + errors.did_you_mean(name, known)
    )
  mesh = dict(
    ici_mesh_shape=ici_mesh_shape,
    dcn_mesh_shape=dcn_mesh_shape,
    mesh_axis_names=mesh_axis_names,
  )
  model.set(**mesh)

  def templates(names):
    tpls = (getattr(model, name) for name in names)
    return [tpl for tpl in tpls if tpl is not None]

  def mappings(names):
    return {name: tensors.get(name) for name in names}

  for tpl in templates(fields.stacks):
    shard_stack(tpl, **mappings(_OF_STACKS))
  for tpl in templates(fields.vocabularies):
    shard_vocabulary(tpl.set(**mesh), **mappings(_OF_VOCABULARIES))
  for tpl in templates(fields.ngrammers):
    _set(tpl.weight_split_dims_mapping, wt=tensors.get('w_vd'))
  for tpl in templates(fields.positions):
    if issubclass(tpl.cls, TrainablePositionalEmbedding):
      _set(tpl.weight_split_dims_mapping, wt=tensors.get('w_df'))
      _set(
        tpl.activation_split_dims_mapping,
        emb_out_split_dims_mapping=tensors.get('a_bld'),
      )
  return model


def shard_stack(
  stack: Config,
  *,
  w_df: SplitDimsMapping = None,
  w_dnh: SplitDimsMapping = None,
  w_emh: SplitDimsMapping = None,
  a_bld: SplitDimsMapping = None,
  a_blf: SplitDimsMapping = None,
  a_blh: SplitDimsMapping = None,
  a_blnh: SplitDimsMapping = None,
  a_egch: SplitDimsMapping = None,
  a_egcm: SplitDimsMapping = None,
  a_gs: SplitDimsMapping = None,
):
  """Sets the split mappings of a stack's layers.

  Args:
    stack: config of the stack, which may be repeated or pipelined.
    w_df: of the feed-forward's projections to the hidden layer; the output
      projection uses the transposed mapping.
    w_dnh: of the projections of attention.
    w_emh: of the experts' projections to the hidden layer; the output
      projection uses the transposed mapping.
    a_bld: of the outputs of attention and feed-forward.
    a_blf: of the feed-forward's hidden layer.
    a_blh: of keys and values with a single head.
    a_blnh: of queries, keys and values.
    a_egch: of the experts' hidden layers.
    a_egcm: of the experts' inputs and outputs.
    a_gs: of the tokens in groups; None shards groups as experts, over `a_egch`.
  """
  for inner in ('pipeline_stage', 'block'):
    if inner in field_names(stack):
      stack = getattr(stack, inner)
  layers = stack.transformer_layer_params_tpl
  for layer in [layers] if isinstance(layers, Config) else layers:
    for attention in (layer.tr_atten_tpl, layer.cross_atten_tpl):
      if attention is not None:
        _shard_attention(attention, w_dnh, a_bld, a_blh, a_blnh)
    feed_forward = layer.tr_fflayer_tpl
    if feed_forward is not None:
      _set(
        feed_forward.weight_split_dims_mapping,
        ffn0=w_df,
        ffn1=w_df and w_df[::-1],
      )
      _set(feed_forward.activation_split_dims_mapping, ffn0=a_blf, ffn1=a_bld)
      _shard_experts(feed_forward, w_emh, a_egch, a_egcm, a_gs)
  if 'moe_layer_tpl' in field_names(stack):
    _shard_experts(stack.moe_layer_tpl, w_emh, a_egch, a_egcm, a_gs)


def _shard_experts(experts: Config, w_emh, a_egch, a_egcm, a_gs):
  """Sets the split mappings of a mixture of experts; of other layers, none.

  Groups are sharded over the axes of experts, so that dispatch and combine
  compile to an all-to-all.
  """
  if w_emh is not None:
    _set(
      experts.weight_split_dims_mapping,
      me=[None, None],
      emh=w_emh,
      ehm=[w_emh[0], w_emh[2], w_emh[1]],
    )
  activations = experts.activation_split_dims_mapping
  axes = a_gs and a_gs[0]
  if a_egch is not None:
    axes = axes or a_egch[0]
    _set(
      activations,
      gs=[axes, None],
      gsec=[axes, None, None, None],
      gecs=[axes, None, None, None],
      gec=[axes, None, None],
      egch=a_egch,
    )
  if a_egcm is not None:
    experts, groups, slots, dims = a_egcm
    _set(
      activations,
      gsm=[experts if a_gs is None else a_gs[0], None, dims],
      egcm=a_egcm,
      gecm=a_egcm if a_gs is None else [groups, experts, slots, dims],
    )


def _shard_attention(attention: Config, w_dnh, a_bld, a_blh, a_blnh):
  """Sets those of the split mappings that the class of attention has."""
  if w_dnh is not None:
    dims, heads, per_head = w_dnh
    _set(
      attention.weight_split_dims_mapping,
      proj=w_dnh,
      dnh=w_dnh,
      proj_headless=[dims, per_head],
      dconv=[heads, None],
    )
  if a_blh is None and a_blnh is not None:
    a_blh = [*a_blnh[:2], a_blnh[3]]
  _set(
    attention.activation_split_dims_mapping,
    bld=a_bld,
    btd=a_bld,
    blh=a_blh,
    blnh=a_blnh,
    btnh=a_blnh,
    bskh=a_blnh,
  )


def shard_vocabulary(
  tpl: Config,
  *,
  w_vd: SplitDimsMapping = None,
  a_blv: SplitDimsMapping = None,
  a_bld: SplitDimsMapping = None,
):
  """Sets the split mappings of a softmax, an embedding, or a shared one.

  Args:
    tpl: its config.
    w_vd: of the matrix; transposed if the vocabulary is its last dimension.
    a_blv: of the logits.
    a_bld: of the embedded tokens.
  """
  embeds = issubclass(tpl.cls, Embedding | GShardSharedEmbeddingSoftmax)
  _set(
    tpl.weight_split_dims_mapping,
    wt=w_vd if embeds or w_vd is None else w_vd[::-1],
  )
  if w_vd is not None and 'lookup_style' in field_names(tpl):
    # As in Pax. The product does not move the table, which is sharded.
    tpl.lookup_style = 'matmul'
  logits = None if issubclass(tpl.cls, Embedding) else a_blv
  _set(
    tpl.activation_split_dims_mapping,
    out=logits,
    emb_out_split_dims_mapping=a_bld,
  )


def _set(sharding: Config, **mappings: SplitDimsMapping):
  """Sets those of the mappings that `sharding` has a field for."""
  known = field_names(sharding)
  for name, mapping in mappings.items():
    if mapping is not None and name in known:
      setattr(sharding, name, mapping)
