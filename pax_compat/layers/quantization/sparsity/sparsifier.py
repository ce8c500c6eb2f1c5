"""Layers that prune their weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import (
  SPARSITY_NAME_POSTFIX,
  WeightHParams,
  WeightInit,
)
from pax_compat.layers.quantization.sparsity import sparsity
from pax_compat.layers.quantization.sparsity.sparsity_hparams import (
  BINARY_MASK,
  SparsityHParams,
)
from pax_compat.layers.quantization.sparsity.sparsity_modes import (
  FewShotMode,
  MaterializeMode,
  OneShotMode,
)

SPARSITY_PRUNED_VALUE_SUFFIX = '_sparsity_mask_pruned_value'
# The floats by which a weight with a learned mask is multiplied.
_FLOAT_MASK = SPARSITY_NAME_POSTFIX + '_float'
_LEARNED = 'w_mask'
_DIVERGENCE = 'sparse_architecture_divergence'
_COUNTS = ('num_shots', 'mask_update_count', 'step')


class SparsityMethods:
  """Mixin of layers with a sparse weight, which have the field `sparsity`.

  It is not a layer, since its fields would override those of the layer that
  follows it; `SparsityBaseLayer` is. A weight `w` has the non-trainable mask
  `w_sparsity_mask`; a layer has the counts `step`, of calls in training, and
  `mask_update_count`. In evaluation, and where non-trainable weights cannot
  change, masks are those of training.
  """

  def create_sparsity_variables(
    self,
    name: str,
    weight_hparams: WeightHParams,
    scale_shape: Sequence[int] | None = None,
  ) -> None:
    """Creates what a sparse weight needs, once in a layer. Call it in `setup`.

    Args:
      name: name of the weight.
      weight_hparams: its metadata.
      scale_shape: no effect.

    Raises:
      UserError: the layer has a sparse weight already.
    """
    del scale_shape
    if self.sparsity is None or not self.sparsity.is_active:
      return
    if self.__dict__.get('_has_mask'):
      raise errors.UserError(
        f'{type(self).__name__}.{name}: a layer can have one sparse weight'
      )
    object.__setattr__(self, '_has_mask', True)
    params = self.sparsity.weight_params
    mask = weight_hparams.replace(
      init=WeightInit.Constant(True), dtype=jnp.bool_, quantized=None
    )
    self._create_fixed(name + SPARSITY_NAME_POSTFIX, mask)
    if self.sparsity.topk_estimator_type is not None:
      self.create_variable(_LEARNED, weight_hparams)
      floats = mask.replace(init=WeightInit.Constant(1.0), dtype=jnp.float32)
      self._create_fixed(name + _FLOAT_MASK, floats)
    if params is not None and params.has_pruned_value:
      value = WeightInit.Constant(params.pruned_value)
      self.create_variable(
        name + SPARSITY_PRUNED_VALUE_SUFFIX,
        WeightHParams([], value, jnp.float32),
        trainable=params.pruned_value_trainable,
      )
    for count in _COUNTS:
      shots = self.sparsity.mode.get_num_shots() if count == _COUNTS[0] else 0
      init = WeightInit.Constant(shots)
      self._create_fixed(count, WeightHParams([], init, jnp.int32))
    if self.sparsity.track_sad_metric:
      init = WeightInit.Constant(0.0)
      self._create_fixed(_DIVERGENCE, WeightHParams([], init, jnp.float32))

  def _create_fixed(self, name: str, hparams: WeightHParams):
    self.create_variable(name, hparams, trainable=False)

  def sparsifiy(
    self,
    weight: jax.Array,
    name: str,
    inputs: jax.Array | None = None,
    layer_idx: int | None = None,
  ) -> jax.Array:
    """Returns a weight with 0 where it is pruned; in training updates its mask.

    The name is Pax's.

    Args:
      weight: `theta` of the weight; it may be reshaped.
      name: its name.
      inputs: the inputs of its product, for scores that depend on them.
      layer_idx: index of the layer, for `sparsified_layers`.

    Raises:
      UserError: `sparsified_layers` is set, but the index is missing.
    """
    settings = self.sparsity
    if (
      settings is None
      or not settings.is_active
      or settings.weight_params is None
    ):
      return weight
    step = self.get_var('step')
    self._set('step', step + 1)
    if settings.sparsified_layers is not None:
      if layer_idx is None:
        raise errors.UserError(
          f'{type(self).__name__}: sparsified_layers needs a layer that calls'
          ' sparsifiy with layer_idx; set sparsity in the templates of those'
          ' layers only'
        )
      if layer_idx not in settings.sparsified_layers:
        return weight
    if settings.topk_estimator_type is not None:
      return self._with_learned_mask(weight, name, step)
    stored = self.get_var(name + SPARSITY_NAME_POSTFIX)
    if self._updates_masks:
      stored = self._updated_mask(weight, name, inputs, step)
    mask = stored.reshape(weight.shape)
    if settings.weight_params.sparse_ste:
      factor = settings.weight_params.sparse_ste_weight
      return straight_through(weight, mask, factor)
    value = None
    if settings.weight_params.has_pruned_value:
      value = self.get_var(name + SPARSITY_PRUNED_VALUE_SUFFIX)
    return sparsity.apply_sparsity(weight, mask, pruned_value=value)

  @property
  def _updates_masks(self) -> bool:
    return (
      not isinstance(self.sparsity.mode, MaterializeMode)
      and not self.do_eval
      and not self.is_initializing()
      and self.is_mutable_collection(base_layer.NON_TRAINABLE)
    )

  def _set(self, name: str, value: jax.Array):
    """Sets a non-trainable weight in training."""
    if not self.do_eval:
      self.update_var(name, value)

  def _updated_mask(self, weight, name, inputs, step) -> jax.Array:
    """Updates the mask if it is due, and returns it."""
    full_name = name + SPARSITY_NAME_POSTFIX
    mask, count = self.get_var(full_name), self.get_var('mask_update_count')
    # Groups are those of the weight as it is stored.
    stored = jax.lax.stop_gradient(weight).reshape(mask.shape)

    def computed():
      score = sparsity.compute_score(stored, self.sparsity.score, inputs)
      return sparsity.new_mask(score, mask, step, self.sparsity)

    is_due = self.sparsity.mode.update_cond(step, count)
    new = jax.lax.cond(is_due, computed, lambda: mask)
    self._record(full_name, mask, new, count + is_due)
    return new

  def _record(self, name: str, before, after, count: jax.Array):
    """Stores a mask, the number of updates and what changed."""
    self._set(name, after)
    self._set('mask_update_count', count.astype(jnp.int32))
    if self.sparsity.track_sad_metric:
      self._set(_DIVERGENCE, (before ^ after).mean(dtype=jnp.float32))
    if isinstance(self.sparsity.mode, OneShotMode | FewShotMode):
      self.add_summary('mask_update_count', count, verbosity=4)

  def _with_learned_mask(self, weight, name, step) -> jax.Array:
    """Returns the weight times its learned mask, updated if it is due."""
    mask = self.get_var(name + SPARSITY_NAME_POSTFIX)
    floats = self.get_var(name + _FLOAT_MASK)
    if isinstance(self.sparsity.mode, MaterializeMode) or self.do_eval:
      return weight * floats.astype(weight.dtype).reshape(weight.shape)
    count = self.get_var('mask_update_count')
    is_due = self.sparsity.mode.update_cond(step, count)
    learned = self.theta[_LEARNED]
    new, new_floats = jax.lax.cond(
      is_due,
      lambda: learned_mask(
        learned,
        *self.sparsity.prune_rate,
        is_binary=self.sparsity.topk_estimator_type == BINARY_MASK,
      ),
      lambda: (mask, floats.astype(learned.dtype)),
    )
    self._set(name + _FLOAT_MASK, new_floats.astype(floats.dtype))
    self._record(name + SPARSITY_NAME_POSTFIX, mask, new, count + is_due)
    return weight * new_floats.astype(weight.dtype).reshape(weight.shape)


def learned_mask(
  values: jax.Array, n_sparsity: int, m_sparsity: int, *, is_binary: bool
) -> tuple[jax.Array, jax.Array]:
  """Returns a mask and the floats that weights are multiplied by.

  Args:
    values: the trained weight; the largest N of M neighbors are kept.
    n_sparsity: N.
    m_sparsity: M.
    is_binary: whether floats are 0 and 1, and `values` get their gradient; else
      they are N times the softmax of the kept.
  """
  fixed = jax.lax.stop_gradient(values)
  mask = sparsity.largest_in_groups(fixed, n_sparsity, m_sparsity)
  if is_binary:
    ones = mask.astype(values.dtype)
    return mask, ones + (values - fixed)
  groups = values.reshape(-1, m_sparsity)
  kept = mask.reshape(groups.shape)
  shares = jax.nn.softmax(groups, axis=-1, where=kept)
  return mask, (n_sparsity * shares).reshape(values.shape)


@jax.custom_vjp
def straight_through(
  weight: jax.Array, mask: jax.Array, sparse_ste_weight: float
) -> jax.Array:
  """Returns a pruned weight, whose gradient is not pruned.

  A pruned weight times a factor is added to its gradient.

  Args:
    weight: the weight.
    mask: its mask.
    sparse_ste_weight: the factor.
  """
  del sparse_ste_weight
  return sparsity.apply_sparsity(weight, mask)


def _straight_through_forward(weight, mask, sparse_ste_weight):
  pruned = sparsity.apply_sparsity(weight, ~mask)
  decay = (sparse_ste_weight * pruned).astype(weight.dtype)
  return straight_through(weight, mask, sparse_ste_weight), decay


def _straight_through_backward(decay, gradient):
  return gradient + decay, None, None


straight_through.defvjp(_straight_through_forward, _straight_through_backward)


class SparsityBaseLayer(SparsityMethods, base_layer.BaseLayer):
  """Base class of layers with a sparse weight.

  Such a layer calls `create_sparsity_variables` in `setup` and `sparsifiy` in
  `__call__`.

  Attributes:
    sparsity: the settings; None prunes nothing.
  """

  sparsity: SparsityHParams | None = None


class SparseProduct(SparsityMethods):
  """Mixin of layers of this package whose weight `w` is sparse.

  A layer names it before `QuantizationMethods`, and has the field `sparsity`.
  """

  def setup(self):
    """Creates the weights."""
    super().setup()
    if self.prunes and self.is_quantized:
      raise errors.UserError(
        f'{type(self).__name__}.sparsity has the mode'
        f' {type(self.sparsity.mode).__name__}, but the weights are integers;'
        ' expected InferenceMode, with weights of quantize.quantize_variables'
      )
    if self.prunes:
      self.create_sparsity_variables('w', self._weight_hparams['w'])

  @property
  def prunes(self) -> bool:
    """Whether there is a mask."""
    return self.sparsity is not None and self.sparsity.is_active

  def product(
    self, equation: str, inputs: jax.Array, weight: jax.Array, name: str = ''
  ) -> jax.Array:
    """Returns the product with the weight, which is pruned."""
    if self.prunes:
      weight = self.sparsifiy(weight, name or 'w', inputs)
    return super().product(equation, inputs, weight, name)

  def _float_tree(self) -> dict[str, Any]:
    tree = super()._float_tree()
    return materialize(tree) if self.prunes else tree

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns a `BoxedPartitionSpec` for each weight of `quantize_weight`."""
    tree = super().quantized_partition_specs()
    if not self.prunes:
      return tree
    dropped = _of_masks(tree[base_layer.NON_TRAINABLE])
    return {kind: _without(own, dropped) for kind, own in tree.items()}


def materialize(variables: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the variables of a model whose layers have the InferenceMode.

  Pruned weights are replaced by 0, or by their pruned value; masks and counts
  are left out.

  Args:
    variables: those of the model with masks, unboxed.
  """
  params, fixed = (
    variables.get(kind, {})
    for kind in (base_layer.PARAMS, base_layer.NON_TRAINABLE)
  )
  new_params, new_fixed = _pruned(params, fixed)
  tree = {**variables, base_layer.PARAMS: new_params}
  if base_layer.NON_TRAINABLE in tree:
    tree[base_layer.NON_TRAINABLE] = new_fixed
  if not new_fixed:
    tree.pop(base_layer.NON_TRAINABLE, None)
  return tree


def _pruned(params, fixed) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the trainable and other weights of a layer, without masks."""
  dropped = _of_masks(fixed)
  new_params, new_fixed = _without(params, dropped), _without(fixed, dropped)
  for name in dropped & set(fixed):
    if name.endswith(SPARSITY_NAME_POSTFIX):
      weight = name.removesuffix(SPARSITY_NAME_POSTFIX)
      new_params[weight] = _pruned_weight(weight, {**params, **fixed})
  for name, own in fixed.items():
    if isinstance(own, Mapping):
      children = _pruned(params.get(name, {}), own)
      for new, child in zip((new_params, new_fixed), children, strict=True):
        new.pop(name, None)
        if child:
          new[name] = child
  return new_params, new_fixed


def _pruned_weight(name: str, own: Mapping[str, Any]) -> jax.Array:
  """Returns a weight of a layer, or of stacked layers, pruned."""
  weight = jnp.asarray(own[name])
  if name + _FLOAT_MASK in own:
    floats = own[name + _FLOAT_MASK].reshape(weight.shape)
    return weight * floats.astype(weight.dtype)
  value = own.get(name + SPARSITY_PRUNED_VALUE_SUFFIX)
  if value is not None:
    ones = (1,) * (weight.ndim - jnp.ndim(value))
    value = jnp.reshape(value, (*jnp.shape(value), *ones))
  mask = own[name + SPARSITY_NAME_POSTFIX]
  return sparsity.apply_sparsity(weight, mask, pruned_value=value)


def _of_masks(fixed: Mapping[str, Any]) -> set[str]:
  """Returns the names of what `create_sparsity_variables` created in a layer.

  Args:
    fixed: its non-trainable weights.
  """
  names = [name for name in fixed if name.endswith(SPARSITY_NAME_POSTFIX)]
  if not names or 'mask_update_count' not in fixed:
    return set()  # Masks of `create_sparse_variable` are left alone.
  (name,) = names
  weight = name.removesuffix(SPARSITY_NAME_POSTFIX)
  suffixes = SPARSITY_PRUNED_VALUE_SUFFIX, _FLOAT_MASK
  return {
    name,
    *(weight + x for x in suffixes),
    *_COUNTS,
    _DIVERGENCE,
    _LEARNED,
  }


def _without(own: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
  return {name: value for name, value in own.items() if name not in names}
