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
  >>> layer.apply(variables, inputs)
  Array([0., 2., 4.], dtype=float32)
  >>> layer.init_boxed(jax.random.key(0), inputs)['params']['w'].meta.shape
  (3,)

A weight carries its sharding and regularisation metadata (`WeightHParams`) in a
Flax box (`BoxedParam`), which is unboxed before the layer runs.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

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
from pax_compat.layer_core import child_layers, layer_fields, templates
from pax_compat.layer_core.child_layers import PlainFields
from pax_compat.layer_core.constraints import (  # noqa: F401 (for users)
  PMAP_PARALLEL_AXIS_NAME,
  is_running_under_pmap,
  maybe_shard,
  maybe_transpose_mesh_axes,
)
from pax_compat.layer_core.decode_states import (  # noqa: F401 (for users)
  DECODE_CACHE,
  DecodeStates,
)
from pax_compat.layer_core.derived_weights import (  # noqa: F401 (for users)
  QUANTIZED_SCALE_NAME_POSTFIX,
  QUANTIZED_ZP_NAME_POSTFIX,
  SPARSITY_NAME_POSTFIX,
  DerivedWeights,
)
from pax_compat.layer_core.init_functions import (  # noqa: F401 (for users)
  default_param_init,
  get_fan_in_fan_out,
  init_var,
  is_default_param_init,
  scaled_delta_orthogonal,
  scaled_orthogonal,
  var_init_scale,
)
from pax_compat.layer_core.jax_context import (  # noqa: F401 (for users)
  JaxContext,
  add_global_summary,
  all_global_summaries,
  clear_global_summary,
  cur_jax_context,
  eval_mode,
  get_summary_base_type,
  get_summary_type_from_key,
  get_summary_type_suffix,
  trim_summary_type_from_key,
)
from pax_compat.layer_core.layer_fields import (
  ActivationSharding,
  Theta,
  WeightSharding,
)
from pax_compat.layer_core.layer_trees import LayerTrees
from pax_compat.layer_core.losses.aux_losses import (  # noqa: F401 (for users)
  AUX_LOSS,
  AuxLosses,
  AuxLossStruct,
)
from pax_compat.layer_core.sharding import (  # noqa: F401 (for users)
  SplitDimsMapping,
  shard,
  to_partition_spec,
  transpose_one_axis,
  var_partition_specs,
)
from pax_compat.layer_core.summaries import (
  SummaryType,
  key_of,
  stored,
  summary_of,
)
from pax_compat.layer_core.templates import (  # noqa: F401 (for users)
  assert_has_shape,
  compatible_hparams,
  get_template_fields,
  is_sublayer_template_or_instance,
)
from pax_compat.layer_core.weight_groups import (  # noqa: F401 (for users)
  BoxedPartitionSpec,
  WeightHParamsCollection,
  maybe_unbox_value,
  unbox_meta,
  var_disallow_bfloat16_conversion,
  var_not_trainable,
  var_overwrite_with_gradient,
  var_requires_mean_sync,
  var_requires_sum_sync,
  var_skip_lp_regularization,
)
from pax_compat.layer_core.weight_hparams import (  # noqa: F401 (for users)
  SKIP_LP_REGULARIZATION,
  BoxedParam,
  WeightHParams,
  is_boxed,
  unbox,
)
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.nested_map import NestedMap  # noqa: F401 (for users)
from pax_compat.pax_fiddle import (  # noqa: F401 (for users)
  instantiate,
  template_field,
)
from pax_compat.py_utils.pytypes import (  # noqa: F401 (for users)
  JTensor,
  JTensorOrPartitionSpec,
  Nested,
  NestedBool,
  NestedHParams,
  NestedJTensor,
  NestedJTensorOrPartitionSpec,
  NestedPartitionSpec,
  NpTensor,
  PRNGKey,
  SummaryDict,
)

# Names of the variable collections.
PARAMS = 'params'  # Weights that the learner updates.
NON_TRAINABLE = 'non_trainable'  # Weights that layers update (`update_var`).
SUMMARIES = 'summaries'  # Values for the summary writer.
PREFIX_DECODE_CACHE = 'prefix_decoder_cache'  # State of decoders' prefixes.
INTERMEDIATES = 'intermediates'  # What Flax's `capture_intermediates` records.
ROW_PROBES = 'row_probes'  # See `layer_core.row_gradients`.
# Suffix of collections with values before a step; see `BaseModel.after_update`.
BEFORE_STEP = '_before_step'

# The PRNG stream of dropout and the like. Initializers use the stream `params`.
RANDOM = 'random'

# Collections and the PRNG stream of other libraries' Flax modules.
NON_PAX_VAR_COLLECTION = ['batch_stats', 'params_axes']
NON_PAX_RNG_KEY = 'dropout'
# The collections that `init` returns.
DEFAULT_INIT_MUTABLE_LIST = [PARAMS, NON_TRAINABLE, *NON_PAX_VAR_COLLECTION]

ParamsT = config_lib.Config
NestedWeightHParams = Nested[WeightHParams]
# (state, batch dimension, time dimension or None) -> the transformed state.
DecodeStateTransformFn = Callable[[JTensor, int, int | None], JTensor]
AxisMetadata = flax.core.meta.AxisMetadata


class BaseLayer(
  LayerTrees,
  DecodeStates,
  DerivedWeights,
  AuxLosses,
  PlainFields,
  nn.Module,
):
  """Base class of all layers.

  Children inherit `dtype`, `fprop_dtype`, `params_init`,
  `skip_lp_regularization` and the mesh fields from their parent, unless their
  template sets them; without a template, where they have the default.

  Attributes:
    dtype: dtype of the weights.
    fprop_dtype: dtype of the computation; None is `dtype` in a layer.
    params_init: default initializer of the weights.
    skip_lp_regularization: True exempts all weights of this layer and of its
      children from L1/L2 regularisation.
    mesh_axis_names: names of the axes of the device mesh.
    ici_mesh_shape: devices along each axis, within a slice.
    dcn_mesh_shape: slices along each axis; None for a single slice.
    contiguous_submeshes: whether the devices of each process are neighbours on
      the mesh; matters on TPUs only, and None means False.
    shared_weight_layer_id: layers with the same id are one layer with shared
      weights, even if their templates are copies; None does not share. The
      weights are those of a child of the outermost layer with the id as name.
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
    layer_fields.share_no_defaults(cls)
    child_layers.declare_shardings(cls)
    # `fprop` and `__call__` are aliases: a class defines either.
    if 'fprop' in cls.__dict__ and '__call__' not in cls.__dict__:
      cls.__call__ = cls.__dict__['fprop']
    elif '__call__' in cls.__dict__ and 'fprop' not in cls.__dict__:
      cls.fprop = cls.__dict__['__call__']
    super().__init_subclass__(**kwargs)

  def __post_init__(self):
    layer_fields.check_dtype(self)
    super().__post_init__()
    if isinstance(self.parent, BaseLayer) and not child_layers.adopts():
      templates.copy_base_hparams(self.parent, self)  # Not a template.
    if self.fprop_dtype is None:
      object.__setattr__(self, 'fprop_dtype', self.dtype)

  @classmethod
  def config(cls, **fields) -> config_lib.Config[Self]:
    """Returns a `Config` of this class."""
    return config_lib.Config(cls, **fields)

  @classmethod
  def check_required(cls, config: config_lib.Config):
    """Raises a `RequiredError` if the layer cannot be set up from `config`.

    Parents set fields of their children, so the whole layer is set up
    abstractly to find missing fields. Nothing is computed.
    """
    child_layers.set_up(config)

  copy_base_hparams = staticmethod(templates.copy_base_hparams)

  @property
  def compute_dtype(self) -> Any:
    """dtype of the computation."""
    return self.fprop_dtype

  @property
  def do_eval(self) -> bool:
    """Whether the layer is being traced for evaluation."""
    context = JaxContext.top()
    return context is not None and context.do_eval

  @property
  def jax_context(self) -> JaxContext:
    """The current context; a UserError outside of all."""
    return cur_jax_context()

  @property
  def mesh_shape(self) -> Sequence[int] | None:
    """Devices along each axis over all slices; None without a mesh."""
    return config_lib.whole_mesh_shape(self.ici_mesh_shape, self.dcn_mesh_shape)

  def get_shard_count_on_dim(
    self, dim_sharding: str | Sequence[str] | None
  ) -> int:
    """Returns in how many parts one entry of a split mapping splits."""
    if dim_sharding is None or self.mesh_axis_names is None:
      return 1
    names = [dim_sharding] if isinstance(dim_sharding, str) else dim_sharding
    sizes = zip(self.mesh_axis_names, self.mesh_shape or (), strict=False)
    return math.prod(size for name, size in sizes if name in names)

  @property
  def hparams(self) -> config_lib.Config:
    """A new config with the fields of this layer."""
    return templates.config_of(self)

  @property
  def theta(self) -> Theta:
    """The layer's own weights by name, cast to `fprop_dtype`."""
    return Theta(self)

  @nn.nowrap
  def init(self, rngs: Any, *args, mutable: Any = None, **kwargs) -> Any:
    """Returns the initial variables as arrays, {collection: {name: array}}.

    Args:
      rngs: a key, or keys by PRNG stream.
      *args: arguments of the method.
      mutable: collections to return; None for weights, trained or not.
      **kwargs: as in flax, such as `method`.
    """
    mutable = mutable or DEFAULT_INIT_MUTABLE_LIST
    return unbox(super().init(rngs, *args, mutable=mutable, **kwargs))

  @nn.nowrap
  def init_boxed(self, rngs: Any, *args, **kwargs) -> Any:
    """Returns the initial variables of all collections as `BoxedParam`s."""
    return super().init(rngs, *args, **kwargs)

  @nn.nowrap
  def abstract_init_with_metadata(
    self,
    *args,
    do_eval: bool = False,
    method: Any = None,
    extra_mutable_list: Sequence[str] | None = None,
    **kwargs,
  ) -> NestedWeightHParams:
    """Returns the `WeightHParams` of all variables; computes nothing.

    Args:
      *args: arguments of the method, arrays or their shapes.
      do_eval: whether the layer is traced for evaluation.
      method: the method to trace; None for `__call__`.
      extra_mutable_list: collections beside those of `init`.
      **kwargs: keyword arguments of the method.
    """
    mutable = [*DEFAULT_INIT_MUTABLE_LIST, *(extra_mutable_list or ())]

    def boxed(key, args, kwargs):
      rngs = dict.fromkeys((PARAMS, RANDOM, NON_PAX_RNG_KEY), key)
      return self.init_boxed(
        rngs, *args, method=method, mutable=mutable, **kwargs
      )

    with eval_mode(do_eval):
      made = jax.eval_shape(boxed, jax.random.key(1), args, kwargs)
    return unbox_meta(dict(made))

  def create_variable(
    self, name: str, var_hparams: WeightHParams, trainable: bool = True
  ) -> jax.Array:
    """Creates a weight of this layer. Call it in `setup`.

    Args:
      name: name of the weight within the layer.
      var_hparams: shape, initializer and sharding.
      trainable: whether the learner updates it; else only `update_var` does.

    Returns:
      The weight, as `get_theta` does.

    Raises:
      UserError: the name is in use, or `var_hparams` is inconsistent.
    """
    where, weight = f'{type(self).__name__}.{name}', var_hparams
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
    self._keep_hparams(name, weight)

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
    if WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION in collections:
      kept = {*self.__dict__.get('_kept_dtypes', ()), name}
      object.__setattr__(self, '_kept_dtypes', kept)
    return self.get_theta(name)

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
      UserError: the weight is unknown.
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
      UserError: the weight is unknown.
    """
    value = self.get_var(name)
    if not jnp.issubdtype(value.dtype, jnp.floating):
      return value
    kept = name in self.__dict__.get('_kept_dtypes', ())
    if kept and self.compute_dtype == jnp.bfloat16:
      return value
    return value.astype(self.compute_dtype)

  def update_var(self, name: str, new_val: jax.Array):
    """Sets a non-trainable weight.

    While the model is being initialised, and where the collection is not
    mutable, the weight keeps its value.

    Raises:
      UserError: the non-trainable weight is unknown.
    """
    if not self.has_variable(NON_TRAINABLE, name):
      raise errors.UserError(
        f'{type(self).__name__}.update_var: no non-trainable weight {name!r}'
        + errors.did_you_mean(name, self.variables.get(NON_TRAINABLE, {}))
      )
    if self.is_initializing() or not self.is_mutable_collection(NON_TRAINABLE):
      return
    box = self.get_variable(NON_TRAINABLE, name)
    new = box.replace(value=new_val) if is_boxed(box) else new_val
    self.put_variable(NON_TRAINABLE, name, new)

  def create_child(
    self,
    name: str,
    params: config_lib.Config,
    *,
    skip_clone: bool = False,
    **fields,
  ) -> nn.Module:
    """Builds the child `name` from a template, in `setup` or `nn.compact`.

    One template in two fields, anywhere in the model, is one layer with shared
    weights; a copy of a template (`tpl.clone()`) is another layer. A layer that
    uses the template of one field for several children gets several layers.

      self.create_child('linear', self.linear_tpl, input_dims=8, output_dims=4)

    Args:
      name: the attribute of this layer that holds the child; none does in a
        method with the decorator `nn.compact`.
      params: the template; it is not modified.
      skip_clone: no effect; templates are not cloned.
      **fields: fields of the child; they override those of the template.

    Returns:
      The child.

    Raises:
      RequiredError: a required field of the child is not set.
      UserError: `params` is not a template, lacks the field, or is used twice
        with different fields.
    """
    del skip_clone
    child = child_layers.build_child(self, name, params, fields)
    return child_layers.adopt(self, name, child)

  def create_children(
    self,
    name: str,
    params: Sequence[config_lib.Config],
    *,
    skip_clone: bool = False,
    **fields,
  ) -> Sequence[nn.Module]:
    """Builds the children `name_0`, `name_1` and so on, as a list.

    Args:
      name: name of the list.
      params: their templates. The same one twice, of a field that is a list, is
        the same layer twice; see `create_child`.
      skip_clone: no effect; templates are not cloned.
      **fields: fields of all the children; they override those of `params`.
    """
    del skip_clone
    children = [
      child_layers.build_child(self, f'{name}_{i}', tpl, fields)
      for i, tpl in enumerate(params)
    ]
    return child_layers.adopt(self, name, children)

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
    tensor: Any,
    summary_type: SummaryType = SummaryType.SCALAR,
    verbosity: int = 2,
  ):
    """Records a summary if the collection `summaries` is mutable.

    Args:
      name: name of the summary within the layer.
      tensor: [] for a scalar, any shape for a histogram, [N, H, W, C] with
        values in 0..1 (or uint8) for images; a string, or its UTF-8 bytes as
        uint8 [N], for text. Or a function that returns it.
      summary_type: type of the summary.
      verbosity: written if the task's `summary_verbosity` is at least this.
    """
    context = JaxContext.top()
    is_wanted = context is None or verbosity <= context.summary_verbosity
    if not is_wanted or not self.is_mutable_collection(SUMMARIES):
      return
    summary = summary_of(tensor, summary_type, verbosity)
    key = key_of(name, summary_type)
    newest = dict(init_fn=lambda: None, reduce_fn=lambda _, new: new)
    self.sow(SUMMARIES, key, stored(summary), **newest)

  def next_prng_key(self, name: str = RANDOM) -> jax.Array:
    """Returns a fresh key of a PRNG stream."""
    return self.make_rng(name)


BaseLayerApi = BaseLayer
# Subclasses declare theirs; older code has `HParams(BaseLayer.HParams)`.
config_lib.declare_hparams(BaseLayer)
