"""The base of all layers: a flax.linen module with Pax's ways.

A layer declares hyperparameters as fields, creates weights and children in
`setup`, and computes in `__call__`. Weights carry what the trainer has to know
about them (how they are split over the mesh, whether they are regularised) as
`WeightHParams`, in a box that is opened before the layer computes.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from flax.core import meta

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.config import (  # noqa: F401 (users take them from here)
  BaseHParams,
  instance_field,
  sub_config_field,
)
from pax_compat.weight_init import WeightInit

# Names of the variable collections.
PARAMS = 'params'
NON_TRAINABLE = 'non_trainable'
AUX_LOSS = 'aux_loss'
SUMMARIES = 'summaries'
ROW_PROBES = 'row_probes'

# Names of the random streams.
RANDOM = 'random'

# A weight whose collections hold this name is not L1/L2-regularised.
SKIP_LP_REGULARIZATION = '__lingvo_skip_lp_regularization'


@dataclasses.dataclass(frozen=True)
class WeightHParams:
  """What a weight is.

  Attributes:
    shape: its dimensions.
    init: its first value; None takes the layer's `params_init`.
    dtype: None takes the layer's `dtype`.
    collections: names of groups that it belongs to.
    tensor_split_dims_mapping: for each dimension the mesh axis (or axes) that
      it is split over, or None for a dimension that is not; None replicates
      the weight.
  """

  shape: Sequence[int]
  init: WeightInit | None = None
  dtype: Any = None
  collections: Sequence[str] = ()
  tensor_split_dims_mapping: Sequence[Any] | None = None


class BoxedParam(flax.struct.PyTreeNode, meta.AxisMetadata):
  """A weight together with its `WeightHParams`."""

  value: Any
  meta: WeightHParams = flax.struct.field(pytree_node=False)

  def unbox(self):
    return self.value

  def replace_boxed(self, val):
    return self.replace(value=val)

  def add_axis(self, index, params):
    return self._with_axis(index, insert=True)

  def remove_axis(self, index, params):
    return self._with_axis(index, insert=False)

  def _with_axis(self, index, insert):
    mapping = self.meta.tensor_split_dims_mapping
    if mapping is None:
      return self
    mapping = list(mapping)
    if insert:
      mapping.insert(index, None)
    else:
      mapping.pop(index)
    return self.replace(
      meta=dataclasses.replace(
        self.meta, tensor_split_dims_mapping=tuple(mapping)
      )
    )


def is_boxed(x) -> bool:
  """Whether `x` is a boxed weight; for `is_leaf` of tree functions."""
  return isinstance(x, BoxedParam)


def unbox(tree):
  """Returns the tree with every boxed weight replaced by its value."""
  return jax.tree.map(
    lambda x: x.value if is_boxed(x) else x, tree, is_leaf=is_boxed
  )


_do_eval = contextvars.ContextVar('do_eval', default=False)


@contextlib.contextmanager
def eval_mode(do_eval: bool = True):
  """While it is entered, layers that are traced behave as at evaluation."""
  token = _do_eval.set(do_eval)
  try:
    yield
  finally:
    _do_eval.reset(token)


class _Theta:
  """A layer's own weights, cast to the dtype that it computes in."""

  def __init__(self, layer: 'BaseLayer'):
    self._layer = layer

  def __getattr__(self, name: str) -> jax.Array:
    return self._layer.get_theta(name)


class BaseLayer(nn.Module):
  """Base of all layers.

  Attributes:
    dtype: of the weights.
    fprop_dtype: of the computation; None takes `dtype`.
    params_init: first value of weights that declare none of their own.
    skip_lp_regularization: True exempts all weights of this layer and of its
      children from L1/L2 regularisation.
    mesh_axis_names: names of the axes of the device mesh.
    ici_mesh_shape: devices along each axis, within a slice.
    weight_split_dims_mapping: how the layer's main weight is split over the
      mesh; see `WeightHParams`.
    activation_split_dims_mapping: likewise for its output.
  """

  dtype: Any = jnp.float32
  fprop_dtype: Any = None
  params_init: WeightInit = WeightInit.Xavier(1.0)
  skip_lp_regularization: bool | None = None
  mesh_axis_names: Sequence[str] | None = None
  ici_mesh_shape: Sequence[int] | None = None
  weight_split_dims_mapping: Sequence[Any] | None = None
  activation_split_dims_mapping: Sequence[Any] | None = None

  def __init_subclass__(cls, **kwargs):
    config_lib.declare_hparams(cls)
    super().__init_subclass__(**kwargs)

  @classmethod
  def config(cls, **fields) -> config_lib.Config:
    """Returns a `Config` of this class."""
    return config_lib.Config(cls, **fields)

  @property
  def compute_dtype(self) -> Any:
    """The dtype of the computation."""
    return self.dtype if self.fprop_dtype is None else self.fprop_dtype

  @property
  def do_eval(self) -> bool:
    """Whether the layer is being traced for evaluation."""
    return _do_eval.get()

  @property
  def theta(self) -> _Theta:
    """The layer's own weights by name, cast to `fprop_dtype`."""
    return _Theta(self)

  def fprop(self, *args, **kwargs):
    """The computation; another name for `__call__`."""
    return self(*args, **kwargs)

  def create_variable(
    self, name: str, weight: WeightHParams, trainable: bool = True
  ):
    """Creates a weight of this layer. Call it in `setup`.

    Args:
      name: its name within the layer.
      weight: its shape, first value and placement.
      trainable: whether the learner may change it.
    """
    dtype = self.dtype if weight.dtype is None else weight.dtype
    init = self.params_init if weight.init is None else weight.init
    collections = tuple(weight.collections)
    if self.skip_lp_regularization:
      collections += (SKIP_LP_REGULARIZATION,)
    weight = dataclasses.replace(
      weight,
      shape=tuple(weight.shape),
      init=init,
      dtype=dtype,
      collections=collections,
    )

    def boxed(key):
      return BoxedParam(init(key, weight.shape, dtype), weight)

    if trainable:
      self.param(name, boxed)
    else:
      self.variable(NON_TRAINABLE, name, lambda: boxed(self.make_rng(PARAMS)))

  def get_theta(self, name: str) -> jax.Array:
    """Returns the weight `name` of this layer in the computation's dtype.

    Raises:
      UserError: the layer has no such weight.
    """
    for collection in (PARAMS, NON_TRAINABLE):
      if self.has_variable(collection, name):
        value = jnp.asarray(unbox(self.get_variable(collection, name)))
        if jnp.issubdtype(value.dtype, jnp.floating):
          value = value.astype(self.compute_dtype)
        return value
    own = [
      k for c in (PARAMS, NON_TRAINABLE) for k in self.variables.get(c, {})
    ]
    raise errors.UserError(
      f'{type(self).__name__} has no weight {name!r}'
      + errors.did_you_mean(name, own)
    )

  def update_var(self, name: str, value: jax.Array):
    """Gives a weight that is not trainable its next value.

    While the model is being initialised, the weight keeps its first value.
    """
    if self.is_initializing():
      return
    box = self.get_variable(NON_TRAINABLE, name)
    new = box.replace(value=value) if is_boxed(box) else value
    self.put_variable(NON_TRAINABLE, name, new)

  def create_child(self, name: str, tpl: config_lib.Config):
    """Builds `tpl` as the child called `name`. Call it in `setup`.

    What this layer says of dtypes, regularisation and the mesh passes on to a
    child whose template says nothing of it.
    """
    setattr(self, name, self._build_child(name, tpl))

  def create_children(self, name: str, tpls: Sequence[config_lib.Config]):
    """Builds the children `name_0`, `name_1` and so on, as a list."""
    children = [self._build_child(f'{name}_{i}', t) for i, t in enumerate(tpls)]
    setattr(self, name, children)

  def _build_child(self, name: str, tpl: config_lib.Config):
    inherited = {
      field: getattr(self, field)
      for field in _INHERITED
      if field in config_lib.field_names(tpl) and field not in tpl.__arguments__
    }
    try:
      return tpl.Instantiate(**inherited)
    except config_lib.RequiredError as e:
      raise e.within('.'.join((*self.path, name))) from None

  def add_summary(self, name: str, value: jax.Array):
    """Records a scalar, where the caller collects summaries."""
    self.sow(SUMMARIES, name, value, init_fn=lambda: None, reduce_fn=_newer)

  def add_aux_loss(self, name: str, value: jax.Array):
    """Adds `value` to the loss, where the caller collects auxiliary losses."""
    self.sow(AUX_LOSS, name, value, init_fn=lambda: 0.0, reduce_fn=jnp.add)

  def next_prng_key(self) -> jax.Array:
    """Returns a fresh key of the stream `random`."""
    return self.make_rng(RANDOM)


def _newer(old, new):
  del old
  return new


_INHERITED = (
  'dtype',
  'fprop_dtype',
  'skip_lp_regularization',
  'mesh_axis_names',
  'ici_mesh_shape',
)
