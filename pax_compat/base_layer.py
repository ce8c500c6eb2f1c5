"""Base class of all layers: a flax.linen module with Pax's API.

A layer declares hyperparameters as fields (or in a nested `class HParams`),
creates weights and children in `setup`, and computes in `__call__` (or `fprop`,
which is the same):

  >>> import jax
  >>> from pax_compat import base_layer
  >>> class Scale(base_layer.BaseLayer):
  ...   class HParams(base_layer.BaseHParams):
  ...     dims: int = 1
  ...
  ...   def setup(self):
  ...     init = base_layer.WeightInit.Constant(2.0)
  ...     self.create_variable('w', base_layer.WeightHParams([self.dims], init))
  ...
  ...   def __call__(self, inputs):
  ...     return inputs * self.theta.w
  >>> layer = Scale.HParams(dims=3).Instantiate()
  >>> inputs = jax.numpy.arange(3.0)
  >>> variables = layer.init(jax.random.key(0), inputs)
  >>> variables['params']['w'].meta.shape
  (3,)
  >>> layer.apply(base_layer.unbox(variables), inputs)
  Array([0., 2., 4.], dtype=float32)

A weight carries its sharding and regularisation metadata (`WeightHParams`) in a
Flax box (`BoxedParam`), which is unboxed before the layer runs.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.config import (  # noqa: F401 (users take them from here)
  BaseHParams,
  instance_field,
  sub_config_field,
)
from pax_compat.layer_core import child_layers
from pax_compat.layer_core.sharding import SplitDimsMapping, shard
from pax_compat.layer_core.summaries import Summary, SummaryType, as_value
from pax_compat.layer_core.weight_hparams import (  # noqa: F401 (for users)
  SKIP_LP_REGULARIZATION,
  BoxedParam,
  WeightHParams,
  is_boxed,
  unbox,
)
from pax_compat.layer_core.weight_init import WeightInit

# Names of the variable collections.
PARAMS = 'params'  # Weights that the learner updates.
NON_TRAINABLE = 'non_trainable'  # Weights that layers update (`update_var`).
AUX_LOSS = 'aux_loss'  # Losses that layers add to the task's loss.
SUMMARIES = 'summaries'  # Values for the summary writer.
DECODE_CACHE = 'decoder_cache'  # State between decoding steps, such as keys.
ROW_PROBES = 'row_probes'  # See `layer_core.row_gradients`.
# Suffix of collections with values before a step; see `BaseModel.after_update`.
BEFORE_STEP = '_before_step'

# The PRNG stream of dropout and the like. Initializers use the stream `params`.
RANDOM = 'random'

_do_eval = contextvars.ContextVar('do_eval', default=False)


@contextlib.contextmanager
def eval_mode(do_eval: bool = True):
  """Context manager in which layers are traced in evaluation mode."""
  token = _do_eval.set(do_eval)
  try:
    yield
  finally:
    _do_eval.reset(token)


class _Theta:
  """A layer's own weights, cast to its compute dtype."""

  def __init__(self, layer: 'BaseLayer'):
    self._layer = layer

  def __getattr__(self, name: str) -> jax.Array:
    return self._layer.get_theta(name)


class WeightSharding(config_lib.Configurable):
  """Sharding of a layer's weights over the mesh.

  A layer with several weights declares a subclass `WeightSharding` with a field
  for each of them.

  Attributes:
    wt: mapping of the main weight: for each dimension a mesh axis, a tuple of
      mesh axes, or None (not split). None for the whole mapping replicates.
  """

  wt: SplitDimsMapping = None


class ActivationSharding(config_lib.Configurable):
  """Sharding of a layer's activations over the mesh.

  Attributes:
    out: mapping of the output, as in `WeightSharding`; None leaves it to the
      compiler.
  """

  out: SplitDimsMapping = None


class BaseLayer(nn.Module):
  """Base class of all layers.

  Children inherit `dtype`, `fprop_dtype`, `params_init`,
  `skip_lp_regularization` and the mesh fields from their parent, unless their
  template sets them.

  Attributes:
    dtype: dtype of the weights.
    fprop_dtype: dtype of the computation; None takes `dtype`.
    params_init: default initializer of the weights.
    skip_lp_regularization: True exempts all weights of this layer and of its
      children from L1/L2 regularisation.
    mesh_axis_names: names of the axes of the device mesh.
    ici_mesh_shape: devices along each axis, within a slice.
    dcn_mesh_shape: slices along each axis; None for a single slice.
    contiguous_submeshes: whether the devices of each process are neighbours on
      the mesh; matters on TPUs only, and None means False.
    shared_weight_layer_id: layers with the same id are one layer with shared
      weights, even if their templates are copies; None does not share.
    weight_split_dims_mapping: sharding of the weights.
    activation_split_dims_mapping: sharding of the activations.
  """

  WeightSharding = WeightSharding
  ActivationSharding = ActivationSharding
  # Fields that a config printed as text omits unless set; see `config_text`.
  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *child_layers.INHERITED,
    'shared_weight_layer_id',
    'weight_split_dims_mapping',
    'activation_split_dims_mapping',
    'name',
  )

  dtype: Any = jnp.float32
  fprop_dtype: Any = None
  params_init: WeightInit = WeightInit.Xavier(1.0)
  skip_lp_regularization: bool | None = None
  mesh_axis_names: Sequence[str] | None = None
  ici_mesh_shape: Sequence[int] | None = None
  dcn_mesh_shape: Sequence[int] | None = None
  contiguous_submeshes: bool | None = None
  shared_weight_layer_id: str | None = None
  weight_split_dims_mapping: config_lib.Config = sub_config_field(
    WeightSharding
  )
  activation_split_dims_mapping: config_lib.Config = sub_config_field(
    ActivationSharding
  )

  def __init_subclass__(cls, **kwargs):
    config_lib.declare_hparams(cls)
    child_layers.declare_shardings(cls)
    # `fprop` and `__call__` are aliases: a class defines either.
    if 'fprop' in cls.__dict__ and '__call__' not in cls.__dict__:
      cls.__call__ = cls.__dict__['fprop']
    elif '__call__' in cls.__dict__ and 'fprop' not in cls.__dict__:
      cls.fprop = cls.__dict__['__call__']
    super().__init_subclass__(**kwargs)

  @classmethod
  def config(cls, **fields) -> config_lib.Config:
    """Returns a `Config` of this class."""
    return config_lib.Config(cls, **fields)

  @classmethod
  def check_required(cls, config: config_lib.Config):
    """Raises a `RequiredError` if the layer cannot be set up from `config`.

    Parents set fields of their children, so the whole layer is set up
    abstractly to find missing fields. Nothing is computed.
    """
    child_layers.set_up(config)

  @property
  def compute_dtype(self) -> Any:
    """dtype of the computation."""
    return self.dtype if self.fprop_dtype is None else self.fprop_dtype

  @property
  def do_eval(self) -> bool:
    """Whether the layer is being traced for evaluation."""
    return _do_eval.get()

  @property
  def theta(self) -> _Theta:
    """The layer's own weights by name, cast to `fprop_dtype`."""
    return _Theta(self)

  def create_variable(
    self, name: str, weight: WeightHParams, trainable: bool = True
  ):
    """Creates a weight of this layer. Call it in `setup`.

    Args:
      name: name of the weight within the layer.
      weight: shape, initializer and sharding.
      trainable: whether the learner updates it; else only `update_var` does.

    Raises:
      UserError: the name is in use, or `weight` is inconsistent.
    """
    where = f'{type(self).__name__}.{name}'
    weight.check(where)
    dtype = self.dtype if weight.dtype is None else weight.dtype
    init = self.params_init if weight.init is None else weight.init
    fans = weight.fan_in_axes, weight.fan_out_axes
    if fans != (None, None):
      init = init.for_shape(weight.shape, *fans)
    mesh_shape = weight.mesh_shape or self.ici_mesh_shape
    collections = tuple(weight.collections)
    if self.skip_lp_regularization:
      collections += (SKIP_LP_REGULARIZATION,)
    weight = dataclasses.replace(
      weight,
      shape=tuple(weight.shape),
      init=init,
      dtype=dtype,
      mesh_shape=mesh_shape,
      collections=collections,
    )

    def boxed(key):
      return BoxedParam(init(key, weight.shape, dtype), weight)

    try:
      if trainable and self.has_variable(PARAMS, name):
        # Not `param`: it traces the initial value anew to learn its shape.
        self._check_shape(name, self.variable(PARAMS, name).value, weight.shape)
      elif trainable:
        self.param(name, boxed)
      else:
        self.variable(NON_TRAINABLE, name, lambda: boxed(self.make_rng(PARAMS)))
    except flax.errors.NameInUseError:
      raise errors.UserError(
        f'{where} was created twice; expected different names for the weights'
        ' and children of a layer'
      ) from None

  def _check_shape(self, name: str, value, shape: tuple[int, ...]):
    """Raises flax's error if the value of a weight has the wrong shape."""
    given = jnp.shape(value)
    if given != shape:
      raise flax.errors.ScopeParamShapeError(
        name, self.scope.path_text, given, shape
      )

  def get_var(self, name: str) -> jax.Array:
    """Returns the weight `name` of this layer as it is stored.

    Raises:
      UserError: the layer has no such weight.
    """
    for collection in (PARAMS, NON_TRAINABLE):
      if self.has_variable(collection, name):
        return jnp.asarray(unbox(self.get_variable(collection, name)))
    own = [
      k for c in (PARAMS, NON_TRAINABLE) for k in self.variables.get(c, {})
    ]
    raise errors.UserError(
      f'{type(self).__name__} has no weight {name!r}'
      + errors.did_you_mean(name, own)
    )

  def get_theta(self, name: str) -> jax.Array:
    """Returns the weight `name` of this layer in the computation's dtype.

    Raises:
      UserError: the layer has no such weight.
    """
    value = self.get_var(name)
    if jnp.issubdtype(value.dtype, jnp.floating):
      value = value.astype(self.compute_dtype)
    return value

  def update_var(self, name: str, value: jax.Array):
    """Sets a non-trainable weight.

    While the model is being initialised, the weight keeps its initial value.

    Raises:
      UserError: the layer has no such non-trainable weight.
    """
    if not self.has_variable(NON_TRAINABLE, name):
      raise errors.UserError(
        f'{type(self).__name__}.update_var: no non-trainable weight {name!r}'
        + errors.did_you_mean(name, self.variables.get(NON_TRAINABLE, {}))
      )
    if self.is_initializing():
      return
    box = self.get_variable(NON_TRAINABLE, name)
    new = box.replace(value=value) if is_boxed(box) else value
    self.put_variable(NON_TRAINABLE, name, new)

  def get_decode_state(self, name: str) -> jax.Array:
    """Returns the decode state `name`, set in an earlier decoding step.

    Raises:
      UserError: there is no such state.
    """
    if not self.has_variable(DECODE_CACHE, name):
      raise errors.UserError(
        f'{type(self).__name__} has no decode state {name!r}; call'
        ' init_states() first'
      )
    return self.get_variable(DECODE_CACHE, name)

  def update_decode_state(self, name: str, value: jax.Array):
    """Stores `value` for the next decoding step."""
    self.put_variable(DECODE_CACHE, name, value)

  def create_child(self, name: str, tpl: config_lib.Config, **fields):
    """Builds the child `name` from a template. Call it in `setup`.

    One template that is used twice, anywhere in the model, is one layer with
    shared weights; a copy of a template (`tpl.clone()`) is another layer. E.g.

      self.create_child('linear', self.linear_tpl, input_dims=8, output_dims=4)

    Args:
      name: the attribute of this layer that holds the child.
      tpl: the template; it is not modified.
      **fields: fields of the child; they override those of the template.

    Raises:
      RequiredError: a required field of the child is not set.
      UserError: `tpl` is not a template, has no such field, or is used twice
        with different fields.
    """
    child = child_layers.build_child(self, name, tpl, fields)
    try:
      setattr(self, name, child)
    except flax.errors.SetAttributeFrozenModuleError:
      raise errors.UserError(
        f'{type(self).__name__} creates the child {name!r} outside of `setup`;'
        ' call create_child in `setup`'
      ) from None

  def create_children(
    self, name: str, tpls: Sequence[config_lib.Config], **fields
  ):
    """Builds the children `name_0`, `name_1` and so on, as a list.

    Args:
      name: name of the list.
      tpls: their templates. The same template twice is the same layer twice.
      **fields: fields of all the children; they override those of `tpls`.
    """
    children = [
      child_layers.build_child(self, f'{name}_{i}', tpl, fields)
      for i, tpl in enumerate(tpls)
    ]
    setattr(self, name, children)

  def shard(self, x: jax.Array, mapping: SplitDimsMapping) -> jax.Array:
    """Returns `x` with a sharding constraint; without a mesh, returns `x`.

    Args:
      x: an array.
      mapping: as in `WeightSharding`; None leaves `x` to the compiler.

    Raises:
      UserError: the mapping does not fit the array or the mesh.
    """
    return shard(x, mapping, where=type(self).__name__)

  def add_summary(
    self,
    name: str,
    value: Any,
    summary_type: SummaryType = SummaryType.SCALAR,
    verbosity: int = 2,
  ):
    """Records a summary if the collection `summaries` is mutable.

    Args:
      name: name of the summary within the layer.
      value: [] for a scalar, any shape for a histogram, [N, H, W, C] with
        values in 0..1 (or uint8) for images; a string, or its UTF-8 bytes as
        uint8 [N], for text.
      summary_type: type of the summary.
      verbosity: written if the task's `summary_verbosity` is at least this.
    """
    summary = Summary(as_value(value, summary_type), summary_type, verbosity)
    self.sow(SUMMARIES, name, summary, init_fn=lambda: None, reduce_fn=_newer)

  def add_aux_loss(self, name: str, value: jax.Array):
    """Adds `value` [] to the loss if the collection `aux_loss` is mutable."""
    self.sow(AUX_LOSS, name, value, init_fn=lambda: 0.0, reduce_fn=jnp.add)

  def next_prng_key(self) -> jax.Array:
    """Returns a fresh key of the PRNG stream `random`."""
    return self.make_rng(RANDOM)


def _newer(old, new):
  del old
  return new
