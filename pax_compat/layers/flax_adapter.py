"""Adapters that make any flax.linen module a layer.

The module runs as a function of its variables, which the adapter owns: its
`params` are trained, all its other collections (`batch_stats` and the like) are
non-trainable weights. So the trainer shards, checkpoints and updates them like
those of any layer.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fiddle as fdl
import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import errors as flax_errors
from flax import traverse_util
from flax.core import meta
from flax.linen import partitioning as nn_partitioning

from pax_compat import base_layer, errors
from pax_compat.base_layer import BoxedParam, WeightHParams, unbox
from pax_compat.config import REQUIRED, Config

# Name of the module's variables within the adapter's collections.
_CHILD = 'cld'

# Collection of the axes that `param_with_axes` names, as in T5X.
_AXES = 'params_axes'

# Collections of per-step outputs of Pax layers within the module.
_OUTPUTS = (base_layer.AUX_LOSS, base_layer.SUMMARIES)

# Collections that are not kept between steps.
_TRANSIENT = (
  *_OUTPUTS,
  base_layer.DECODE_CACHE,
  base_layer.ROW_PROBES,
  'intermediates',
)


class FlaxModuleAdapterBase(base_layer.BaseLayer):
  """Base class of the adapters of flax modules.

  The module's own fields decide the dtypes of its weights and of its
  computation; those of the adapter have no effect.

  Attributes:
    logical_axes_rules: the mesh axis (or axes, or None) of each logical axis
      name of the module's partitioning boxes, or of its `param_with_axes`, as a
      dict or as pairs; the first match applies. Names without a rule are not
      split. None takes names of `nn.with_partitioning` as mesh axes, and for
      `nn.with_logical_partitioning` the rules given there.
    var_collection_map: names of the groups (`WeightHParams.collections`) that
      the variables of each flax collection belong to.
    train_argument: keyword argument, such as `train`, that is True in training
      and False at evaluation; None passes none.
    eval_argument: likewise, such as `deterministic`, True at evaluation.
    rng_names: PRNG streams of the module; all are derived from the stream
      `random`.
  """

  logical_axes_rules: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = (
    None
  )
  var_collection_map: Mapping[str, Sequence[str]] | None = None
  train_argument: str | None = None
  eval_argument: str | None = None
  rng_names: Sequence[str] = ('dropout',)

  def setup(self):
    module = self._build_wrapped_module()
    if not isinstance(module, nn.Module):
      raise errors.UserError(
        f'{type(self).__name__}: expected a flax.linen module, got {module!r}'
      )
    self.module = module

  def _build_wrapped_module(self) -> nn.Module:
    raise NotImplementedError(type(self).__name__)

  def __call__(self, *args, **kwargs) -> Any:
    """Calls the module."""
    return self.call_method('__call__', *args, **kwargs)

  def call_method(self, method_name: str, *args, **kwargs) -> Any:
    """Calls a method of the module.

    Raises:
      UserError: the method is unknown; or it draws random numbers or
        writes variables in a mode where it must not.
    """
    if not hasattr(type(self.module), method_name):
      raise errors.UserError(
        f'{type(self.module).__name__} has no method {method_name!r}'
        + errors.did_you_mean(method_name, dir(type(self.module)))
      )
    kwargs = {**self._mode_arguments(), **kwargs}
    run = self._first_call if self.is_initializing() else self._call
    with self._axis_rules():
      return run(method_name, args, kwargs)

  def _mode_arguments(self) -> dict[str, bool]:
    arguments = {}
    if self.train_argument is not None:
      arguments[self.train_argument] = not self.do_eval
    if self.eval_argument is not None:
      arguments[self.eval_argument] = self.do_eval
    return arguments

  def _axis_rules(self) -> contextlib.AbstractContextManager:
    rules = self._rules()
    if rules is None:
      return contextlib.nullcontext()
    return nn.logical_axis_rules(rules)

  def _rules(self) -> tuple[tuple[str, Any], ...] | None:
    rules = self.logical_axes_rules
    if rules is None:
      return None
    pairs = rules.items() if isinstance(rules, Mapping) else rules
    return tuple((name, axes) for name, axes in pairs)

  def _first_call(self, method: str, args, kwargs) -> Any:
    """Creates the variables that the method uses, and runs it."""
    rngs = {
      base_layer.PARAMS: self.make_rng(base_layer.PARAMS),
      **{name: self.next_prng_key() for name in self.rng_names},
    }
    output, created = self.module.init_with_output(
      rngs, *args, method=method, **kwargs
    )
    axes = nn_partitioning.get_axis_names(created.pop(_AXES, {}))
    created = {
      name: self._boxed(name, tree, axes if name == base_layer.PARAMS else {})
      for name, tree in created.items()
      if name not in _TRANSIENT
    }
    trainable = created.pop(base_layer.PARAMS, {})
    for collection, tree in (
      (base_layer.PARAMS, trainable),
      (base_layer.NON_TRAINABLE, created),
    ):
      # Another method may have created some of them already.
      before = self.get_variable(collection, _CHILD, {})
      if tree:
        self.put_variable(collection, _CHILD, _merged(before, tree))
    return output

  def _call(self, method: str, args, kwargs) -> Any:
    kept = unbox(self.get_variable(base_layer.NON_TRAINABLE, _CHILD, {}))
    params = unbox(self.get_variable(base_layer.PARAMS, _CHILD, {}))
    mutable = [name for name in _OUTPUTS if self.is_mutable_collection(name)]
    if self.is_mutable_collection(base_layer.NON_TRAINABLE):
      mutable += kept
    rngs = {}
    if self.has_rng(base_layer.RANDOM):
      rngs = {name: self.next_prng_key() for name in self.rng_names}
    try:
      output, changed = self.module.apply(
        {base_layer.PARAMS: params, **kept},
        *args,
        method=method,
        mutable=mutable,
        rngs=rngs,
        **kwargs,
      )
    except (
      flax_errors.InvalidRngError,
      flax_errors.ModifyScopeVariableError,
    ) as e:
      mode = 'evaluation' if self.do_eval else 'training'
      raise errors.UserError(
        f'{".".join(self.path)}: {type(self.module).__name__} draws random'
        f' numbers or writes variables where it must not, in {mode}; set'
        ' train_argument or eval_argument to the argument that selects its'
        f' mode ({e})'
      ) from None
    self._keep(dict(changed), kept)
    return output

  def _keep(self, changed: dict[str, Any], kept: dict[str, Any]):
    """Stores variables and per-step outputs that a call changed."""
    for name in _OUTPUTS:
      if name in changed:
        self.put_variable(name, _CHILD, changed.pop(name))
    if changed:
      boxes = self.get_variable(base_layer.NON_TRAINABLE, _CHILD)
      new = jax.tree.map(
        lambda box, x: (
          box.replace(value=x) if isinstance(box, BoxedParam) else x
        ),
        boxes,
        {**kept, **changed},
        is_leaf=lambda x: isinstance(x, BoxedParam),
      )
      self.put_variable(base_layer.NON_TRAINABLE, _CHILD, new)

  def _boxed(self, collection: str, tree: Any, axes: Any) -> Any:
    """Returns a collection with each variable as a `BoxedParam`.

    Args:
      collection: its name.
      tree: the variables.
      axes: logical axes of some of them, in a tree of the same form.
    """
    names = traverse_util.flatten_dict(flax.core.unfreeze(axes))
    groups = tuple((self.var_collection_map or {}).get(collection, ()))
    if self.skip_lp_regularization:
      groups += (base_layer.SKIP_LP_REGULARIZATION,)

    def boxed(path, x):
      if isinstance(x, BoxedParam):
        return x
      value = meta.unbox(x)
      own = names.get(tuple(key.key for key in path))
      if own is not None:
        x = nn.LogicallyPartitioned(value, tuple(own))
      weight = WeightHParams(
        shape=jnp.shape(value),
        dtype=jnp.result_type(value),
        collections=groups,
        mesh_shape=self.ici_mesh_shape,
        tensor_split_dims_mapping=self._split_dims_mapping(x),
      )
      return BoxedParam(value=value, meta=weight)

    return jax.tree_util.tree_map_with_path(
      boxed, dict(tree), is_leaf=lambda x: isinstance(x, meta.AxisMetadata)
    )

  def _split_dims_mapping(self, box: Any) -> tuple | None:
    """Returns the split mapping of a variable in a flax box."""
    if not isinstance(box, nn.Partitioned):
      return None
    rules = self._rules()
    if rules is None and isinstance(box, nn.LogicallyPartitioned):
      rules = box.rules or ()
    if rules is None:
      return tuple(box.names)
    return tuple(nn.logical_to_mesh_axes(box.names, tuple(rules)))


def _merged(first: Any, second: Any) -> dict:
  """Returns the union of two nested dicts; leaves of the first one win."""
  return traverse_util.unflatten_dict(
    {**traverse_util.flatten_dict(second), **traverse_util.flatten_dict(first)}
  )


def _built(source: Any) -> Any:
  """Returns the module that a module, a config or a function stands for."""
  if isinstance(source, nn.Module):
    return source
  if isinstance(source, Config):
    return source.Instantiate()
  if isinstance(source, fdl.Buildable):
    built = fdl.build(source)
    return built() if isinstance(source, fdl.Partial) else built
  return source() if callable(source) else source


class FlaxModuleAdapter(FlaxModuleAdapterBase):
  """Adapter of a module that a factory builds.

  Attributes:
    module_factory_method: function without arguments, such as a
      `functools.partial` or a Fiddle `Partial`; or the config of a module.
  """

  module_factory_method: Callable[[], nn.Module] | fdl.Buildable = REQUIRED

  def _build_wrapped_module(self):
    return _built(self.module_factory_method)


class DirectFlaxModuleAdapter(FlaxModuleAdapterBase):
  """Adapter of a module.

  Attributes:
    cld: the module, or its config.
  """

  cld: nn.Module | fdl.Buildable = REQUIRED

  def _build_wrapped_module(self):
    return _built(self.cld)


class EncoderDecoderFlaxModuleAdaptor(FlaxModuleAdapter):
  """Adapter of an encoder-decoder module."""

  def encode(self, *args, **kwargs) -> Any:
    """Calls the module's `encode`."""
    return self.call_method('encode', *args, **kwargs)

  def decode(self, *args, **kwargs) -> Any:
    """Calls the module's `decode`."""
    return self.call_method('decode', *args, **kwargs)

  def compute_logits(self, *args, **kwargs) -> Any:
    """Calls the module's `compute_logits`."""
    return self.call_method('compute_logits', *args, **kwargs)
