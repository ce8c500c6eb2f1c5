"""A layer repeated N times, with separate weights for each repeat.

The layer is traced and compiled once, as the body of a scan. Its variables
(weights, statistics, decode states) are stacked along a new first dimension.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.layer_core import child_layers
from pax_compat.layer_core.decode_states import StateFn
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layer_core.summaries import is_summary, key_of, name_of
from pax_compat.layer_core.weight_groups import BoxedPartitionSpec
from pax_compat.layers import checkpoint_policy as policies
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.input_checks import check_same_form
from pax_compat.layers.template_fields import refuse_mappings

# Collection of the outputs of the repeats.
INTERMEDIATES = 'intermediates'


class Repeat(base_layer.BaseLayer):
  """Applies a layer repeatedly to its own output.

  Each repeat draws its own random numbers. Auxiliary losses are summed.

  A config inside `sub_tpl` must not be used outside it: its layer has separate
  weights for each repeat.

  Attributes:
    sub_tpl: the layer. Its output has the shapes and dtypes of its first input.
    x_times: number of repeats.
    checkpoint_policy: which values each repeat saves for the backward pass; an
      `AutodiffCheckpointType` or its name. The input of each is always saved.
    unpack_summaries: whether each repeat has separate summaries, with its
      number as suffix of their names; else one summary contains the values of
      all repeats along a new first dimension.
    unroll_in_decode: whether decoding unrolls the loop over the repeats, which
      takes longer to compile and does not copy the decode states.
    sublayer_name: name of the layer in the variable tree.
    return_intermediate_outputs: whether to return the outputs of all repeats,
      along a new first dimension, instead of the last one's.
    collect_intermediate_outputs: whether to sow those outputs into the
      collection 'intermediates' under the name 'repeat_intermediates'.
    nd_prefix_shape: shape of several first dimensions, in place of one with
      `x_times`, which is its product. [R, S] is that of a circular pipeline.
    positional_args_as_scan_carry: whether the layer maps all its positional
      arguments to as many outputs, which the next repeat takes. The output is
      then a tuple.
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the stacked weights over the mesh.

    Attributes:
      sub: one entry, the mesh axis (or axes, or None) of the new first
        dimension; the layer's own mappings apply to the others.
    """

    sub: SplitDimsMapping = None

  sub_tpl: Config = REQUIRED
  x_times: int = REQUIRED
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING
  unpack_summaries: bool = False
  unroll_in_decode: bool = False
  sublayer_name: str = 'sub'
  return_intermediate_outputs: bool = False
  collect_intermediate_outputs: bool = False
  nd_prefix_shape: Sequence[int] | None = None
  positional_args_as_scan_carry: bool = False

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    errors.check_least(self, 1, 'x_times')
    split = self.weight_split_dims_mapping.sub
    if split is not None and len(split) != 1:
      raise errors.UserError(
        f'Repeat.weight_split_dims_mapping.sub is {list(split)}; expected one'
        ' entry, for the dimension of the repeats'
      )
    if self.nd_prefix_shape is not None:
      self._check_prefix(self.nd_prefix_shape)
    self._policy = policies.custom_policy(
      self.checkpoint_policy, where='Repeat.checkpoint_policy'
    )
    child_layers.keep_apart(self, self.sublayer_name, self.sub_tpl)
    self.create_child(self.sublayer_name, self.sub_tpl)

  def _check_prefix(self, shape: Sequence[int]):
    if not shape or min(shape) < 1 or math.prod(shape) != self.x_times:
      raise errors.UserError(
        f'Repeat.nd_prefix_shape is {list(shape)}; expected sizes whose product'
        f' is x_times, {self.x_times}'
      )
    if self.weight_split_dims_mapping.sub is not None and len(shape) > 1:
      raise errors.UserError(
        'Repeat.weight_split_dims_mapping.sub splits one dimension, and'
        f' nd_prefix_shape is {list(shape)}; set only one of them'
      )

  @property
  def _prefix(self) -> tuple[int, ...]:
    """The first dimensions of the stacked variables."""
    return tuple(self.nd_prefix_shape or (self.x_times,))

  def __call__(
    self,
    inputs: Any,
    *args,
    method_name: str | None = None,
    per_layer_kwargs: Mapping[str, Any] | None = None,
    reversed_per_layer_kwargs: Mapping[str, Any] | None = None,
    **kwargs,
  ) -> Any:
    """Applies the layer.

    Args:
      inputs: first argument of the first repeat.
      *args: further arguments, the same for all repeats; of the first repeat,
        if `positional_args_as_scan_carry`.
      method_name: the layer's method that is called; None for `__call__`.
      per_layer_kwargs: further arguments, trees of arrays [x_times, ...], of
        which each repeat gets its own.
      reversed_per_layer_kwargs: likewise, in reversed order.
      **kwargs: further arguments, the same for all repeats.

    Returns:
      The output of the last repeat, or of all of them.

    Raises:
      UserError: the layer's output differs from its input in shape or dtype.
    """
    keeps = self.return_intermediate_outputs or (
      self.collect_intermediate_outputs
    )

    carries_all = self.positional_args_as_scan_carry

    def body(sub, inputs, own):
      method = getattr(sub, method_name or '__call__')
      if carries_all:
        outputs = method(*inputs, **kwargs, **own)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
      else:
        outputs = method(inputs, *args, **kwargs, **own)
      _check_like(inputs, outputs, type(sub).__name__)
      return outputs, outputs if keeps else None

    body = nn.remat(body, prevent_cse=False, policy=self._policy)
    first = (inputs, *args) if carries_all else inputs
    own = self._stacked(per_layer_kwargs, reversed_per_layer_kwargs)
    last, all_outputs = self._scan(body, first, own)
    all_outputs = jax.tree.map(self._flat, all_outputs)
    if self.collect_intermediate_outputs:
      self.sow(INTERMEDIATES, 'repeat_intermediates', all_outputs)
    return all_outputs if self.return_intermediate_outputs else last

  def _stacked(self, own: Mapping | None, from_last: Mapping | None) -> dict:
    """Returns the arguments of each repeat, stacked as the variables are.

    Args:
      own: arrays [x_times, ...].
      from_last: likewise, in reversed order.
    """

    def stacked(x):
      if jnp.shape(x)[:1] != (self.x_times,):
        raise errors.UserError(
          f'Repeat: an argument of each repeat has the shape {jnp.shape(x)};'
          f' expected x_times, {self.x_times}, first'
        )
      return jnp.reshape(x, (*self._prefix, *jnp.shape(x)[1:]))

    reverse = jax.tree.map(lambda x: x[::-1], dict(from_last or {}))
    return jax.tree.map(stacked, {**(own or {}), **reverse})

  def init_states(self, *args, **kwargs):
    """Calls the layer's `init_states` for all repeats."""
    self._call_each('init_states', *args, **kwargs)

  def extend_step(self, inputs: Any, *args, **kwargs) -> Any:
    """Applies the layer's `extend_step` repeatedly, as `__call__` does."""

    def body(sub, inputs):
      outputs = sub.extend_step(inputs, *args, **kwargs)
      _check_like(inputs, outputs, type(sub).__name__)
      return outputs, None

    return self._scan(body, inputs, unroll=self.unroll_in_decode)[0]

  def transform_decode_state(self, transform_fn: StateFn):
    """Changes the decode states of all repeats; see `ForwardsDecodeStates`."""
    self._call_each('transform_decode_state', transform_fn)

  def lazy_broadcast_prefix(self, num_suffix_samples: int, suffix_length: int):
    """Makes what is cached so far the prefix of several samples, likewise."""
    self._call_each('lazy_broadcast_prefix', num_suffix_samples, suffix_length)

  def right_align_decode_state_with_prefix(
    self, max_prefix_size: int, right_align_fn: StateFn
  ):
    """Puts shared prefixes before the states of each sample, likewise."""
    self._call_each(
      'right_align_decode_state_with_prefix', max_prefix_size, right_align_fn
    )

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the weights of all repeats as a quantized layer stores them."""

    def body(sub, _):
      return None, sub.quantize_weight()

    tree = self._scan(body, None)[1]
    return {name: {self.sublayer_name: x} for name, x in tree.items()}

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns a `BoxedPartitionSpec` for each weight of `quantize_weight`."""
    found: dict[str, Any] = {}

    def body(sub, _):
      found.update(sub.quantized_partition_specs())
      return None, None

    self._scan(body, None)
    first = self.weight_split_dims_mapping.sub or [None] * len(self._prefix)

    def stacked(spec: BoxedPartitionSpec) -> BoxedPartitionSpec:
      if spec.meta is None:
        return spec
      return BoxedPartitionSpec(
        meta=jax.sharding.PartitionSpec(*first, *spec.meta)
      )

    tree = jax.tree.map(
      stacked, found, is_leaf=lambda x: isinstance(x, BoxedPartitionSpec)
    )
    return {name: {self.sublayer_name: x} for name, x in tree.items()}

  def _call_each(self, method: str, *args, **kwargs):
    """Calls a method without results of all repeats."""

    def body(sub, _):
      getattr(sub, method)(*args, **kwargs)
      return None, None

    self._scan(body, None)

  def _scan(
    self, body: Callable, carry: Any, *stacked, unroll: bool = False
  ) -> Any:
    """Scans over the repeats.

    Args:
      body: (layer, carry, *arguments) -> (carry, output).
      carry: of the first repeat.
      *stacked: the arguments, stacked as the variables are.
      unroll: whether to unroll the loop.
    """
    split = self.weight_split_dims_mapping.sub
    scan = body
    for size in reversed(self._prefix):
      scan = nn.scan(
        scan,
        variable_axes={True: 0},
        split_rngs={True: True},
        length=size,
        unroll=size if unroll else 1,
        # Nothing is broadcast; the check traces the layer once more.
        check_constancy_invariants=False,
        metadata_params={
          'x_times': size,
          'mesh_axis': None if split is None else split[0],
        },
      )
    for collection, before, after in (
      (base_layer.AUX_LOSS, self._spread, self._sum),
      (base_layer.SUMMARIES, _discard, self._unpack),
    ):
      scan = nn.map_variables(
        scan,
        collection,
        trans_in_fn=before,
        trans_out_fn=after,
        mutable=self.is_mutable_collection(collection),
      )
    return scan(getattr(self, self.sublayer_name), carry, *stacked)

  def _spread(self, tree: Any) -> Any:
    """Returns losses assigned to the first repeat: the inverse of `_sum`.

    Losses exist before the scan if this layer was called before.
    """
    first = (0,) * len(self._prefix)
    return jax.tree.map(
      lambda x: jnp.zeros([*self._prefix, *jnp.shape(x)]).at[first].set(x), tree
    )

  def _sum(self, tree: Any) -> Any:
    """Returns stacked losses, summed over the repeats."""
    return jax.tree.map(lambda x: jnp.sum(self._flat(x), axis=0), tree)

  def _flat(self, x: jax.Array) -> jax.Array:
    """Returns a stacked array with one first dimension."""
    return x.reshape(self.x_times, *x.shape[len(self._prefix) :])

  def _unpack(self, tree: Any) -> Any:
    """Returns stacked summaries, split by repeat if `unpack_summaries`."""
    if not isinstance(tree, dict):
      return jax.tree.map(self._flat, tree)
    unpacked = {}
    for name, value in tree.items():
      if isinstance(value, jax.Array) and self.unpack_summaries:
        # As in Pax, whose keys are in use.
        unpacked[name] = jnp.split(self._flat(value), self.x_times)
        continue
      if not is_summary(value):
        unpacked[name] = self._unpack(value)
        continue
      values = self._flat(value.value)
      if not self.unpack_summaries:
        unpacked[name] = value.replace(value=values)
        continue
      for i, one in enumerate(values):
        kind = value.summary_type
        key = key_of(f'{name_of(name, kind)}_{i}', kind)
        unpacked[key] = value.replace(value=one)
    return unpacked


def _discard(tree: Any) -> Any:
  """Discards the summaries of an earlier call; new ones replace them."""
  del tree
  return {}


def _check_like(inputs: Any, outputs: Any, name: str):
  why = 'so that it can be repeated'
  check_same_form(f'Repeat: {name}', inputs, outputs, why)
