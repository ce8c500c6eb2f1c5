"""How Transformer models are split over a mesh.

The letters of a tensor's dimensions: b batch, l length, d model dims, f dims of
the feed-forward's inner layer, n heads, h dims of a head, v vocabulary. `w_df`
is the split mapping of a weight [d, f], `a_bld` that of an activation [b, l,
d]; None leaves it as it is. Of experts: e experts, m model dims, h dims of
their inner layers, g groups of tokens, c slots of an expert for a group.
"""

from collections.abc import Sequence
from typing import Any

from pax_compat import errors
from pax_compat.config import Config, field_names
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers.embedding_softmax import GShardSharedEmbeddingSoftmax
from pax_compat.layers.embeddings.embedding_tables import Embedding

# What `split_stack` and `split_vocabulary` split.
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
  """Returns the usual way to split a Transformer, as arguments of `split_lm`.

  Weights are split over the data axis and the model axis, and copied along the
  replica axis; batches are split over the replica axis and the data axis.

  Args:
    replica_axis: name of the mesh axis of the replicas.
    data_axis: of the data axis.
    mdl_axis: of the model axis.
    ici_mesh_shape: devices along each axis, within a slice.
    mesh_axis_names: names of all axes.
    training_optimized: whether activations between the layers are split over
      the model axis, too: less memory between the passes, more communication.
    dcn_mesh_shape: slices along each axis; None for a single slice.
    batch_axes: what batches are split over instead.
    seq_axis: name of an axis that sequences are split over, and weights beside
      the data axis; None for none.
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


def split_lm(lm_p: Config, **shardings) -> Config:
  """Says how a `TransformerLm` is split.

  Args:
    lm_p: its config.
    **shardings: `ici_mesh_shape`, `dcn_mesh_shape` and `mesh_axis_names` of the
      mesh, and what `split_stack` and `split_vocabulary` take.

  Returns:
    `lm_p`, changed.
  """
  return _split(
    lm_p,
    stacks=['stacked_transformer_tpl'],
    vocabularies=['softmax_tpl', 'separate_embedding_tpl'],
    positions=['position_emb_tpl'],
    **shardings,
  )


def split_encoder_decoder(model_p: Config, **shardings) -> Config:
  """Says how a `TransformerEncoderDecoder` is split; see `split_lm`."""
  return _split(
    model_p,
    stacks=[
      'encoder_stacked_transformer_tpl',
      'decoder_stacked_transformer_tpl',
    ],
    vocabularies=[
      'softmax_tpl',
      'encoder_embedding_tpl',
      'decoder_embedding_tpl',
    ],
    positions=[
      'position_emb_tpl',
      'encoder_position_emb_tpl',
      'decoder_position_emb_tpl',
    ],
    **shardings,
  )


def _split(
  model: Config,
  *,
  stacks: Sequence[str],
  vocabularies: Sequence[str],
  positions: Sequence[str],
  ici_mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
  dcn_mesh_shape: Sequence[int] | None = None,
  **tensors: SplitDimsMapping,
) -> Config:
  """Splits a model, whose templates are in the fields of these names.

  Raises:
    UserError: there is no tensor of some name.
  """
  known = {*_OF_STACKS, *_OF_VOCABULARIES}
  for name in tensors.keys() - known:
    raise errors.UserError(
      f'{model.cls.__name__} has no tensor {name!r} to be split'
      + errors.did_you_mean(name, known)
    )
  model.set(
    ici_mesh_shape=ici_mesh_shape,
    dcn_mesh_shape=dcn_mesh_shape,
    mesh_axis_names=mesh_axis_names,
  )

  def templates(fields):
    found = (getattr(model, field) for field in fields)
    return [tpl for tpl in found if tpl is not None]

  def mappings(names):
    return {name: tensors.get(name) for name in names}

  for tpl in templates(stacks):
    split_stack(tpl, **mappings(_OF_STACKS))
  for tpl in templates(vocabularies):
    split_vocabulary(tpl, **mappings(_OF_VOCABULARIES))
  for tpl in templates(positions):
    # A table of positions; positions that are worked out have no weight.
    _set(tpl.weight_split_dims_mapping, wt=tensors.get('w_df'))
  return model


def split_stack(
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
):
  """Says how the layers of a stack, perhaps repeated or in stages, are split.

  Args:
    stack: config of the stack.
    w_df: of the feed-forward's first weights; the last one is turned round.
    w_dnh: of the projections of attention.
    w_emh: of the experts' first weights; the last one is turned round.
    a_bld: of what attention and feed-forward return.
    a_blf: of the feed-forward's inner layer.
    a_blh: of keys and values that have one head.
    a_blnh: of queries, keys and values.
    a_egch: of the experts' inner layers.
    a_egcm: of what experts get and return.
  """
  for inner in ('pipeline_stage', 'block'):
    if inner in field_names(stack):
      stack = getattr(stack, inner)
  layers = stack.transformer_layer_params_tpl
  for layer in [layers] if isinstance(layers, Config) else layers:
    for attention in (layer.tr_atten_tpl, layer.cross_atten_tpl):
      if attention is not None:
        _split_attention(attention, w_dnh, a_bld, a_blh, a_blnh)
    feed_forward = layer.tr_fflayer_tpl
    if feed_forward is not None:
      _set(
        feed_forward.weight_split_dims_mapping,
        ffn0=w_df,
        ffn1=w_df and w_df[::-1],
      )
      _set(feed_forward.activation_split_dims_mapping, ffn0=a_blf, ffn1=a_bld)
      _split_experts(feed_forward, w_emh, a_egch, a_egcm)
  if 'moe_layers' in field_names(stack) and stack.moe_layers:
    _split_experts(stack.moe_layer_tpl, w_emh, a_egch, a_egcm)


def _split_experts(experts: Config, w_emh, a_egch, a_egcm):
  """Splits a mixture of experts; other layers have none of these names.

  Groups are split as experts are, so that tokens go from those who have their
  group to those who have their expert, and back.
  """
  if w_emh is not None:
    _set(
      experts.weight_split_dims_mapping,
      me=[None, None],
      emh=w_emh,
      ehm=[w_emh[0], w_emh[2], w_emh[1]],
    )
  activations = experts.activation_split_dims_mapping
  if a_egch is not None:
    over = a_egch[0]
    _set(
      activations,
      gs=[over, None],
      gsec=[over, None, None, None],
      gecs=[over, None, None, None],
      gec=[over, None, None],
      egch=a_egch,
    )
  if a_egcm is not None:
    gsm = [a_egcm[0], None, a_egcm[3]]
    _set(activations, gsm=gsm, egcm=a_egcm, gecm=a_egcm)


def _split_attention(attention: Config, w_dnh, a_bld, a_blh, a_blnh):
  """Splits attention, whose class has some of these names."""
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


def split_vocabulary(
  tpl: Config,
  *,
  w_vd: SplitDimsMapping = None,
  a_blv: SplitDimsMapping = None,
  a_bld: SplitDimsMapping = None,
):
  """Says how a softmax, an embedding, or both in one, are split.

  Args:
    tpl: its config.
    w_vd: of the matrix, wherever the vocabulary stands in it.
    a_blv: of the logits.
    a_bld: of the vectors that are looked up.
  """
  embeds = issubclass(tpl.cls, Embedding | GShardSharedEmbeddingSoftmax)
  _set(
    tpl.weight_split_dims_mapping,
    wt=w_vd if embeds or w_vd is None else w_vd[::-1],
  )
  logits = None if issubclass(tpl.cls, Embedding) else a_blv
  _set(
    tpl.activation_split_dims_mapping,
    out=logits,
    emb_out_split_dims_mapping=a_bld,
  )


def _set(sharding: Config, **mappings: SplitDimsMapping):
  """Sets the mappings of these names, as far as there are such names."""
  known = field_names(sharding)
  for name, mapping in mappings.items():
    if mapping is not None and name in known:
      setattr(sharding, name, mapping)
