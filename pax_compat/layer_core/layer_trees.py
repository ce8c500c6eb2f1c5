"""What a layer and its children have in common, as trees: configs, weights."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from pax_compat.config import Config, field_names
from pax_compat.layer_core import templates
from pax_compat.layer_core.sharding import to_partition_spec
from pax_compat.layer_core.weight_groups import BoxedPartitionSpec
from pax_compat.layer_core.weight_hparams import WeightHParams

# The name of a layer's config in `abstract_init_with_mdl_config`.
_CONFIG = '_hparams'
# The collections of weights.
_WEIGHTS = ('params', 'non_trainable')


class LayerTrees:
  """Methods of a layer that call the same method of its children."""

  @nn.nowrap
  def abstract_init_with_mdl_config(
    self,
    *args,
    do_eval: bool = False,
    method: Any = None,
    extra_mutable_list: Sequence[str] | None = None,
    **kwargs,
  ) -> dict[str, Any]:
    """Returns the configs of all layers that a call uses; computes nothing.

    Args:
      *args: arguments of the method, arrays or their shapes.
      do_eval: whether the layer is traced for evaluation.
      method: the method to trace; None for `__call__`.
      extra_mutable_list: collections beside those of `init`.
      **kwargs: keyword arguments of the method.

    Returns:
      {'_hparams': config, child: {'_hparams': config, ...}, ...}, in which
      templates are None, since the children have their configs.
    """
    found: dict[str, Any] = {}

    def record(next_method, args, kwargs, context):
      if isinstance(context.module, LayerTrees):
        node = found
        for name in context.module.path:
          node = node.setdefault(name, {})
        node[_CONFIG] = _config_without_templates(context.module)
      return next_method(*args, **kwargs)

    with nn.intercept_methods(record):
      self.abstract_init_with_metadata(
        *args,
        do_eval=do_eval,
        method=method,
        extra_mutable_list=extra_mutable_list,
        **kwargs,
      )
    return found

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the weights as a quantized layer stores them.

    Layers that can be quantized override it; others return their weights as
    they are, and those of their children as these return them.
    """
    return self._quantized_tree('quantize_weight')

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns a `BoxedPartitionSpec` for each weight of `quantize_weight`."""
    return self._quantized_tree('quantized_partition_specs')

  def _quantized_tree(self, method: str) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for collection in _WEIGHTS:
      for name, value in self.variables.get(collection, {}).items():
        own = tree.setdefault(collection, {})
        if not isinstance(value, Mapping):
          is_value = method == 'quantize_weight'
          own[name] = self.get_var(name) if is_value else self._spec(name)
        elif name not in own:
          for kind, subtree in self._of_child(name, value, method).items():
            tree.setdefault(kind, {})[name] = subtree
    return tree

  def _of_child(self, name: str, variables: Any, method: str) -> dict[str, Any]:
    """Returns what a child's method does, or a library's module has."""
    child = self._child(name)
    if hasattr(type(child), method):
      return getattr(child, method)()
    if method == 'quantized_partition_specs':
      variables = jax.tree.map(lambda _: BoxedPartitionSpec(None), variables)
    return {'params': variables}

  def _child(self, name: str) -> Any:
    """Returns a child, or an element of a list of children, by its name."""
    if hasattr(self, name):
      return getattr(self, name)
    children, _, index = name.rpartition('_')
    with contextlib.suppress(AttributeError, ValueError, IndexError, TypeError):
      return getattr(self, children)[int(index)]
    return None

  def _spec(self, name: str) -> BoxedPartitionSpec:
    # Read as an attribute, which sets up a layer that was not called yet.
    return self._spec_of(getattr(self, '_weight_hparams', {}).get(name))

  def _spec_of(self, weight: WeightHParams | None) -> BoxedPartitionSpec:
    axes = self.mesh_axis_names
    if weight is None:
      return BoxedPartitionSpec(meta=None)
    mapping = weight.tensor_split_dims_mapping
    if mapping is None or axes is None:
      mapping, axes = [None] * len(weight.shape), ()
    return BoxedPartitionSpec(meta=to_partition_spec(mapping, axes))

  @nn.nowrap
  def _keep_hparams(self, name: str, weight: WeightHParams):
    """Keeps the metadata of a weight for `quantized_partition_specs`."""
    kept = self.__dict__.get('_weight_hparams', {})
    object.__setattr__(self, '_weight_hparams', {**kept, name: weight})

  @nn.nowrap
  def _cast_to_fprop_dtype(self, value: Any) -> Any:
    """Returns a tree with its floating arrays in the computation's dtype."""

    def cast(x):
      is_float = jax.numpy.issubdtype(x.dtype, jax.numpy.floating)
      return x.astype(self.compute_dtype) if is_float else x

    return jax.tree.map(cast, value)


def _config_without_templates(layer: nn.Module) -> Config:
  config = Config(type(layer))
  for name in field_names(config):
    value = getattr(layer, name)
    is_layer = templates.is_sublayer_template_or_instance(value)
    setattr(config, name, None if is_layer else value)
  return config
