"""Multi-headed dot-product attention.

Shapes: B batch, T target time, S source time, L steps of decoding, D model
dims, N heads, K heads of keys and values (N here, fewer in derived layers), H
dims of a head.
"""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import stochastics
from pax_compat.layers.attentions import (
  attention_decoding,
  attention_kernels,
  attention_masks,
  attention_ops,
)
from pax_compat.layers.attentions.attention_masks import Mask, as_array
from pax_compat.layers.attentions.attention_ops import AttentionInputs
from pax_compat.layers.attentions.attention_projections import (
  AttentionProjection,
  CombinedQKVProjectionLayer,
  PerDimScale,
)
from pax_compat.layers.attentions.relative_bias import or_indices
from pax_compat.layers.convolutions import depthwise_convolutions
from pax_compat.layers.embeddings.rotary_embedding import (
  RotaryPositionalEmbedding,
)
from pax_compat.layers.template_fields import (
  agreed,
  keep_prob,
  refuse_mappings,
  split,
)

_SILENT = attention_decoding.DecodableAttention.SILENT_UNLESS_SET


class DotProductAttention(attention_decoding.DecodableAttention):
  """Multi-headed dot-product attention, https://arxiv.org/abs/1706.03762.

  For decoding, `init_states` allocates the cache of keys and values, and
  `extend_step` adds new positions and attends to all positions so far. For
  cross attention, `init_cross_states` caches the source's keys and values, and
  `cross_step` attends to them.

  Attributes:
    input_dim: D, or a mapping of 'query', 'key' and 'value' to the dims of
      each; the result has those of the queries.
    hidden_dim: N * H.
    num_heads: N.
    dim_per_head: H; None takes hidden_dim / num_heads.
    use_bias: whether the projections have biases.
    internal_enable_query_scale: whether queries are scaled.
    internal_enable_per_dim_scale: whether each dim of the queries is scaled by
      a learned factor; else all by (hidden_dim // num_heads)^-0.5.
    scale_query_by_dim_per_head: whether the latter is dim_per_head^-0.5, if
      `dim_per_head` is set.
    scale_logits_by_head_dims: whether logits, including the relative bias, are
      multiplied by H^-0.5.
    atten_dropout_prob: probability of dropping an attention weight.
    atten_logit_cap: if positive, logits are soft-capped to (-cap, cap); 0 or
      None for no cap.
    cap_before_bias: whether logits are capped before the relative bias is
      added.
    attention_extra_logit: logit of an additional source, whose value is zero;
      None for no source.
    attention_kernel: an `AttentionKernel` or its name.
    zero_fully_masked: whether the context of a target is zero if the mask hides
      all sources; else it is a mean of values.
    return_atten_probs: whether the attention weights are returned too, which
      takes the time and memory of an array [B, N, T, S]; see `atten_probs`.
    combine_qkv: whether queries, keys and values share one weight. For self
      attention only.
    output_proj_use_nhd_shape: whether the weight of the output projection is
      [N, H, D] instead of [D, N, H].
    internal_gshard_gaussian_init: whether the projections have Gaussian
      initializers of deviation (D * H)^-0.5 for queries, D^-0.5 for keys and
      values and (N * H)^-0.5 for the output.
    use_rotary_position_emb: whether queries and keys get rotary position
      embeddings.
    cast_rotary_position_emb: whether rotated queries and keys are cast to the
      compute dtype; else they are float32.
    dconv_qkv: whether queries, keys and values are convolved causally along
      time, as in https://arxiv.org/abs/2109.08668.
    dconv_kernel_size: kernel size of these convolutions.
    proj_tpl: the projections of queries, keys and values.
    combined_qkv_proj_tpl: the single projection for `combine_qkv`.
    post_proj_tpl: the output projection; None takes `proj_tpl`.
    dropout_tpl: dropout of the attention weights.
    per_dim_scale_tpl: the learned scale of the queries.
    rotary_position_emb_tpl: the rotary position embedding.
    relative_bias_tpl: a bias of the logits for each distance, or None.
    causal_depthwise_conv1d_tpl: the convolutions of `dconv_qkv`.
    ln_tpl: normalisation of queries and of keys, over the dims of a head and
      after the rotation, or None.
    ngrammer_tpl: a `VQNgrammer` of the contexts, before `post`; or None.
  """

  SILENT_UNLESS_SET: ClassVar = (*_SILENT, 'return_atten_probs')

  input_dim: int | Mapping[str, int] = REQUIRED
  hidden_dim: int = REQUIRED
  num_heads: int = REQUIRED
  dim_per_head: int | None = None
  use_bias: bool = True
  internal_enable_query_scale: bool = True
  internal_enable_per_dim_scale: bool = True
  scale_query_by_dim_per_head: bool = False
  scale_logits_by_head_dims: bool = False
  atten_dropout_prob: float = 0.0
  atten_logit_cap: float | None = 0.0
  cap_before_bias: bool = False
  attention_extra_logit: float | None = None
  attention_kernel: str = attention_kernels.AttentionKernel.AUTO
  zero_fully_masked: bool = False
  return_atten_probs: bool = False
  combine_qkv: bool = False
  output_proj_use_nhd_shape: bool = False
  internal_gshard_gaussian_init: bool = False
  use_rotary_position_emb: bool = False
  cast_rotary_position_emb: bool = True
  dconv_qkv: bool = False
  dconv_kernel_size: int = 3
  proj_tpl: Config = sub_config_field(AttentionProjection)
  combined_qkv_proj_tpl: Config = sub_config_field(CombinedQKVProjectionLayer)
  post_proj_tpl: Config | None = None
  dropout_tpl: Config = sub_config_field(stochastics.Dropout)
  per_dim_scale_tpl: Config = sub_config_field(PerDimScale)
  rotary_position_emb_tpl: Config = sub_config_field(RotaryPositionalEmbedding)
  relative_bias_tpl: Config | None = None
  causal_depthwise_conv1d_tpl: Config = sub_config_field(
    depthwise_convolutions.CausalDepthwiseConv1D
  )
  ln_tpl: Config | None = None
  ngrammer_tpl: Config | None = None

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the weights over the mesh.

    Attributes:
      proj: mapping of the weights [D, N, H] of all projections.
      dconv: mapping of the weights [N, H] of the convolutions.
    """

    proj: SplitDimsMapping = None
    dconv: SplitDimsMapping = None

  class ActivationSharding(base_layer.BaseLayer.ActivationSharding):
    """Sharding of activations over the mesh.

    While decoding, the time dimension is not split.

    Attributes:
      blnh: mapping of queries, keys, values and contexts [B, T, N, H].
      bld: mapping of the output [B, T, D].
    """

    blnh: SplitDimsMapping = None
    bld: SplitDimsMapping = None

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    self._check_fields()
    dims = self._input_dims()
    if self.combine_qkv:
      self._create_combined_qkv(dims)
    else:
      self._create_query(dims['query'])
      self._create_key_or_value('key', dims['key'])
      self._create_key_or_value('value', dims['value'])
    self._create_post(dims['query'])
    self._create_position_layers()
    if self.dconv_qkv:
      self._create_convolutions()
    self._create_norms_and_scale()
    if self.ngrammer_tpl is not None:
      self._create_ngrammer()
    self._create(
      'atten_dropout',
      'dropout_tpl',
      self.dropout_tpl,
      keep_prob=keep_prob(self.atten_dropout_prob),
    )

  def _check_fields(self):
    where = type(self).__name__
    self._check_cache()
    attention_kernels.check(
      self.attention_kernel, where=f'{where}.attention_kernel'
    )
    if self.dim_per_head is None and self.hidden_dim % self.num_heads:
      raise errors.wrong_field(
        self, 'hidden_dim', f'a multiple of num_heads, {self.num_heads}'
      )
    if self.num_heads % self._kv_heads():
      raise errors.UserError(
        f'{where}.num_kv_heads is {self._kv_heads()}; expected a divisor of'
        f' num_heads, {self.num_heads}'
      )

  def _head_dims(self) -> int:
    """Returns H."""
    if self.dim_per_head is not None:
      return self.dim_per_head
    return self.hidden_dim // self.num_heads

  def _kv_heads(self) -> int:
    """Returns K."""
    return self.num_heads

  def _input_dims(self) -> dict[str, int]:
    names = ('query', 'key', 'value')
    if not isinstance(self.input_dim, Mapping):
      return dict.fromkeys(names, self.input_dim)
    if set(self.input_dim) != set(names):
      raise errors.UserError(
        f'{type(self).__name__}.input_dim has {sorted(self.input_dim)};'
        f' expected {sorted(names)}, or an int for all'
      )
    return dict(self.input_dim)

  def _create(self, name: str, tpl_field: str, tpl: Config, **fields):
    """Creates the child `name` from a template.

    Args:
      name: name of the child.
      tpl_field: the field of this layer that contains the template.
      tpl: the template.
      **fields: see `template_fields.agreed`.
    """
    where = f'{type(self).__name__}.{tpl_field}'
    self.create_child(name, tpl, **agreed(where, tpl, **fields))

  def _create_projection(
    self, name, tpl_field, mapping, *, deviation=None, roles=(), **fields
  ):
    """Creates a projection from a copy of the template in `tpl_field`.

    Args:
      name: name of the child.
      tpl_field: the field of this layer that contains the template.
      mapping: split mapping of the weight.
      deviation: deviation of the `internal_gshard_gaussian_init`.
      roles: names of fields that become True, whatever the template has.
      **fields: see `template_fields.agreed`.
    """
    tpl = getattr(self, tpl_field).clone().set(**dict.fromkeys(roles, True))
    if self.internal_gshard_gaussian_init:
      fields['params_init'] = WeightInit.Gaussian(deviation)
    tpl.set(**split(tpl, 'weight_split_dims_mapping', wt=mapping))
    self._create(name, tpl_field, tpl, use_bias=self.use_bias, **fields)

  def _heads(self, heads: int) -> dict[str, int]:
    return dict(num_heads=heads, dim_per_head=self._head_dims())

  def _create_query(self, dims: int):
    self._create_projection(
      'query',
      'proj_tpl',
      self._query_weight_mapping(),
      deviation=(dims * self._head_dims()) ** -0.5,
      input_dim=dims,
      **self._heads(self.num_heads),
    )

  def _create_key_or_value(self, name: str, dims: int):
    self._create_projection(
      name,
      'proj_tpl',
      self._key_weight_mapping(),
      deviation=dims**-0.5,
      input_dim=dims,
      **self._heads(self._kv_heads()),
    )

  def _create_combined_qkv(self, dims: dict[str, int]):
    where = f'{type(self).__name__}.combine_qkv'
    if len(set(dims.values())) > 1 or self._kv_heads() != self.num_heads:
      raise errors.UserError(
        f'{where}: queries, keys and values share one weight; expected the same'
        ' input_dim and number of heads for each'
      )
    if self.internal_gshard_gaussian_init:
      raise errors.UserError(
        f'{where}: internal_gshard_gaussian_init initialises queries, keys and'
        ' values differently; expected only one of the two'
      )
    self._create_projection(
      'combined_qkv',
      'combined_qkv_proj_tpl',
      self._query_weight_mapping(),
      input_dim=dims['query'],
      **self._heads(self.num_heads),
    )

  def _create_post(self, dims: int):
    mapping = self._query_weight_mapping()
    if self.output_proj_use_nhd_shape and mapping is not None:
      mapping = [*mapping[1:], mapping[0]]
    nhd = ['use_nhd_shape'] if self.output_proj_use_nhd_shape else []
    self._create_projection(
      'post',
      'proj_tpl' if self.post_proj_tpl is None else 'post_proj_tpl',
      mapping,
      deviation=(self.num_heads * self._head_dims()) ** -0.5,
      input_dim=dims,
      roles=['is_output_projection', *nhd],
      **self._heads(self.num_heads),
    )

  def _create_position_layers(self):
    if self._rotates():
      self._create(
        'rotary_position_emb',
        'rotary_position_emb_tpl',
        self.rotary_position_emb_tpl,
        embedding_dims=self._head_dims(),
        cast_as_fprop_dtype=self.cast_rotary_position_emb,
        **self._timescales(),
      )
    if self.relative_bias_tpl is not None:
      self._create(
        'relative_bias',
        'relative_bias_tpl',
        self.relative_bias_tpl,
        num_heads=self.num_heads,
      )

  def _rotates(self) -> bool:
    """Whether queries and keys are rotated by position."""
    return self.use_rotary_position_emb

  def _timescales(self) -> dict[str, int]:
    """Returns the timescales of the rotation that this layer sets."""
    return {}

  def _create_convolutions(self):
    mapping = self.weight_split_dims_mapping.dconv
    for name, heads in (
      ('dconv_q', self.num_heads),
      ('dconv_k', self._kv_heads()),
      ('dconv_v', self._kv_heads()),
    ):
      tpl = self.causal_depthwise_conv1d_tpl.clone()
      self._create(
        name,
        'causal_depthwise_conv1d_tpl',
        tpl.set(**split(tpl, 'weight_split_dims_mapping', wt=mapping)),
        kernel_size=self.dconv_kernel_size,
        hidden_dims=[heads, self._head_dims()],
      )

  def _create_norms_and_scale(self):
    if self.ln_tpl is not None:
      for name in ('layer_norm_q', 'layer_norm_k'):
        self._create(name, 'ln_tpl', self.ln_tpl.clone(), dim=self._head_dims())
    if self.internal_enable_query_scale and self.internal_enable_per_dim_scale:
      self._create(
        'per_dim_scale',
        'per_dim_scale_tpl',
        self.per_dim_scale_tpl,
        dim=self._head_dims(),
      )

  def _query_weight_mapping(self) -> SplitDimsMapping:
    """Returns the mapping of the weights [D, N, H] of queries and output."""
    return self.weight_split_dims_mapping.proj

  def _key_weight_mapping(self) -> SplitDimsMapping:
    """Returns the mapping of the weights of keys and values."""
    return self.weight_split_dims_mapping.proj

  def _query_mapping(self) -> SplitDimsMapping:
    """Returns the mapping of queries [B, T, N, H]."""
    return self.activation_split_dims_mapping.blnh

  def _key_mapping(self) -> SplitDimsMapping:
    """Returns the mapping of keys and values [B, S, K, H]."""
    return self.activation_split_dims_mapping.blnh

  def _output_mapping(self) -> SplitDimsMapping:
    """Returns the mapping of the output [B, T, D]."""
    return self.activation_split_dims_mapping.bld

  @attention_masks.takes_structure
  def __call__(
    self,
    query_vec: jax.Array,
    key_vec: jax.Array,
    value_vec: jax.Array,
    atten_mask: Mask = None,
    query_segment_pos: jax.Array | None = None,
    key_segment_pos: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Attends.

    Args:
      query_vec: [B, T, D].
      key_vec: [B, S, D].
      value_vec: [B, S, D].
      atten_mask: an `AttentionMask`, or an additive or boolean array that
        broadcasts to [B, N, T, S]; None hides nothing.
      query_segment_pos: [B, T], positions for rotary embeddings, relative
        biases and convolutions; None takes 0..T-1. In packed rows, positions
        restart from 0 in each example.
      key_segment_pos: [B, S], likewise.

    Returns:
      [B, T, D]; and the attention weights [B, N, T, S] if `return_atten_probs`,
      else None.

    Raises:
      UserError: the mask is not one of these.
    """
    mask = self._mask(atten_mask)
    query, key, value = self._project(query_vec, key_vec, value_vec)
    if self.dconv_qkv:
      query = self._convolved('dconv_q', query, query_segment_pos)
      key = self._convolved('dconv_k', key, key_segment_pos)
      value = self._convolved('dconv_v', value, key_segment_pos)
    bias = None
    if self.relative_bias_tpl is not None:
      bias = self.relative_bias(
        or_indices(query_segment_pos, query), or_indices(key_segment_pos, key)
      )
    query = self._finish_query(query, query_segment_pos)
    key = self._finish_key(key, key_segment_pos)
    self._fill_cache(key, value, key_segment_pos)
    inputs = AttentionInputs(query, key, value, mask.visible, bias, mask.causal)
    return self._attend(inputs, positions=query_segment_pos)

  def _mask(self, mask: Mask) -> attention_masks.AttentionMask:
    return attention_masks.AttentionMask.of(mask, where=type(self).__name__)

  def _project(
    self, query_vec, key_vec, value_vec
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns queries [B, T, N, H], keys and values [B, S, K, H]."""
    if not self.combine_qkv:
      key, value = self._project_source(key_vec, value_vec)
      return self._project_query(query_vec), key, value
    if not (query_vec is key_vec is value_vec):
      raise errors.UserError(
        f'{type(self).__name__}.combine_qkv is for self attention;'
        ' expected the same array as queries, keys and values'
      )
    combined = self.combined_qkv(query_vec)
    query, key, value = checkpoint_name(combined, 'combined_qkv_proj')
    return self._named_query(query), *self._named_source(key, value)

  def _project_query(self, query_vec: jax.Array) -> jax.Array:
    return self._named_query(self.query(query_vec))

  def _named_query(self, query: jax.Array) -> jax.Array:
    """Returns queries [B, T, N, H], named and sharded."""
    query = checkpoint_name(query, 'query_proj')
    return self._shard_heads(query, self._query_mapping())

  def _project_source(
    self, key_vec: jax.Array, value_vec: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    return self._named_source(self.key(key_vec), self.value(value_vec))

  def _named_source(
    self, key: jax.Array, value: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns keys and values [B, S, K, H], named and sharded."""
    key = checkpoint_name(key, 'key_proj')
    value = checkpoint_name(value, 'value_proj')
    mapping = self._key_mapping()
    return self._shard_heads(key, mapping), self._shard_heads(value, mapping)

  def _finish_query(
    self, query: jax.Array, positions: jax.Array | None
  ) -> jax.Array:
    """Returns queries as they are multiplied with keys."""
    if self._rotates():
      query = self.rotary_position_emb(query, positions)
    if self.ln_tpl is not None:
      query = self.layer_norm_q(query)
    return self._scale(query)

  def _finish_key(
    self, key: jax.Array, positions: jax.Array | None
  ) -> jax.Array:
    """Returns keys as they are multiplied with queries."""
    if self._rotates():
      key = self.rotary_position_emb(key, positions)
    return key if self.ln_tpl is None else self.layer_norm_k(key)

  def _scale(self, query: jax.Array) -> jax.Array:
    if not self.internal_enable_query_scale:
      return query
    if self.internal_enable_per_dim_scale:
      return self.per_dim_scale(query)
    return query * self._scale_dims() ** -0.5

  def _scale_dims(self) -> int:
    """Returns the dims whose square root divides the queries."""
    if self.scale_query_by_dim_per_head:
      return self._head_dims()
    return self.hidden_dim // self.num_heads

  def _attend(
    self,
    inputs: AttentionInputs,
    *,
    one_step: bool = False,
    time_step: jax.Array | int | None = None,
    positions: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns the projected result [B, T, D], and the weights if asked.

    Args:
      inputs: queries and keys as they are multiplied with each other.
      one_step: whether T are steps of decoding.
      time_step: see `_encode`.
      positions: [B, T], see `query_segment_pos`.
    """
    probs = None
    returns = self._returns_probs() and not one_step
    if returns or self._pairs_by_attention():
      encoded, probs = self._encode_with_probs(inputs, time_step)
    else:
      encoded = self._encode(inputs, time_step)
    encoded = checkpoint_name(encoded, 'context')
    encoded = self._shard_heads(encoded, self._query_mapping(), one_step)
    if self.ngrammer_tpl is not None:
      encoded = self._add_ngrams(encoded, probs, positions, time_step)
    output = self.post(encoded)
    output = self._shard_heads(output, self._output_mapping(), one_step)
    return checkpoint_name(output, 'out_proj'), probs if returns else None

  def _encode(
    self, inputs: AttentionInputs, time_step: jax.Array | int | None = None
  ) -> jax.Array:
    """Returns the context of each query, [B, T, N, H].

    Args:
      inputs: queries and keys as they are multiplied with each other.
      time_step: while decoding, index of the first query among the sources;
        else None.
    """
    if self.scale_logits_by_head_dims:
      factor = inputs.query.shape[-1] ** -0.5
      inputs = inputs._replace(
        query=inputs.query * factor,
        bias=None if inputs.bias is None else inputs.bias * factor,
      )
    drop = self.atten_dropout
    drops = drop.keep_prob < 1 and (drop.dropout_at_eval or not self.do_eval)
    broadcasts = drop.noise_shape or drop.noise_shape_broadcast_dims
    encoded = self._run_kernel(
      inputs,
      attention_ops.AttentionOptions(
        logit_cap=self.atten_logit_cap or 0.0,
        cap_before_bias=self.cap_before_bias,
        extra_logit=self.attention_extra_logit,
        dropout=drop if drops else None,
        by_blocks=not (drops and (broadcasts or drop.transpose_qk)),
        kernel=self.attention_kernel,
        split=self._query_mapping(),
      ),
    )
    if self.zero_fully_masked and inputs.mask is not None:
      visible = attention_ops.has_visible_source(
        as_array(inputs.mask),
        targets=inputs.query.shape[1],
        causal=inputs.causal,
      )
      encoded = jnp.where(jnp.swapaxes(visible, 1, 2)[..., None], encoded, 0)
    return encoded

  def _shard_heads(
    self, x: jax.Array, mapping: SplitDimsMapping, one_step: bool = False
  ) -> jax.Array:
    """Returns `x` [B, T, ...] sharded; T is not split while decoding."""
    if one_step and mapping is not None:
      mapping = [mapping[0], None, *mapping[2:]]
    return self.shard(x, mapping)

  @classmethod
  def takes_segments(cls, tpl: Config) -> bool:
    """Whether the mask of a layer with the config may be a `SegmentMask`."""
    plain = DotProductAttention
    return (
      (cls.__call__, cls._encode) == (plain.__call__, plain._encode)
      and not tpl.zero_fully_masked
      and attention_kernels.takes_segments(tpl.attention_kernel)
    )
