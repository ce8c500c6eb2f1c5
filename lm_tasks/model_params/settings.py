"""Settings of tasks that several base classes share.

The functions change the config of a task, and have the names and defaults of
Pax's functions in `paxml.tasks.lm.model_params`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pax_compat import config as config_lib
from pax_compat import errors, layers, optimizers, schedules
from pax_compat.config import REQUIRED, Config
from pax_compat.layer_core import child_layers

# Names of mesh axes.
STAGE, _REPLICA, _DATA, _EXPERT, MDL = (
  'stage',
  'replica',
  'data',
  'data_expert',
  'mdl',
)

# Fields whose default in Pax differs from that of this project. Experiments
# with Pax's names have Pax's values.
_PAX_DEFAULTS = (
  (layers.LanguageModel, 'apply_eval_sample_weights', False),
  (layers.LayerNorm, 'reductions_in_fp32', False),
  (layers.RmsNorm, 'intermediate_dtype', None),
)

# What the experts take over from the feed-forward that they replace.
_OF_FEED_FORWARDS = (
  'input_dims',
  'ln_tpl',
  'activation_tpl',
  'relu_dropout_tpl',
  'relu_dropout_prob',
  'residual_dropout_tpl',
  'residual_dropout_prob',
  'add_skip_connection',
  'norm_policy',
)


def set_default_adam(
  task: Config,
  learning_rate: float,
  weight_decay: float,
  *,
  warmup_steps: int = 4000,
  decay_start: int = 4001,
  decay_end: int = 300_000,
):
  """Sets Adam with a linear rise and an exponential decay.

  Args:
    task: config of the task.
    learning_rate: the peak learning rate.
    weight_decay: rate of the decay of weights per step.
    warmup_steps: length of the rise.
    decay_start: the step where the decay starts.
    decay_end: the step where the learning rate is a tenth of its peak.
  """
  optimizer = optimizers.Adam.config(
    beta1=0.9,
    beta2=0.99,
    weight_decay=weight_decay,
    clip_gradient_norm_to_value=5.0,
  )
  _set_optimizer(
    task, optimizer, learning_rate, warmup_steps, decay_start, decay_end
  )


def set_default_adafactor(
  task: Config,
  learning_rate: float,
  weight_decay: float,
  *,
  warmup_steps: int = 4000,
  decay_start: int = 4001,
  decay_end: int = 100_000,
  clip_gradient_norm_to_value: float = 5.0,
):
  """Sets Adafactor with the schedule of `set_default_adam`.

  Args:
    task: config of the task.
    learning_rate: the peak learning rate.
    weight_decay: rate of the decay of weights per step.
    warmup_steps: length of the rise.
    decay_start: the step where the decay starts.
    decay_end: the step where the learning rate is a tenth of its peak.
    clip_gradient_norm_to_value: the largest norm of all gradients.
  """
  optimizer = optimizers.ShardedAdafactor.config(
    decay_method='adam',
    beta1=0.9,
    decay_adam=0.99,
    weight_decay=weight_decay,
    clip_gradient_norm_to_value=clip_gradient_norm_to_value,
  )
  _set_optimizer(
    task, optimizer, learning_rate, warmup_steps, decay_start, decay_end
  )


def _set_optimizer(
  task, optimizer, learning_rate, warmup_steps, decay_start, decay_end
):
  optimizer.set(
    learning_rate=learning_rate,
    lr_schedule=schedules.LinearRampupExponentialDecay.config(
      warmup_steps=warmup_steps,
      decay_start=decay_start,
      decay_end=decay_end,
      min_ratio=0.1,
      max=1.0,
    ),
  )
  task.train.learner.set(loss_name='total_loss', optimizer=optimizer)


def set_sharding_annotations_v1(
  task: Config,
  training_optimized: bool,
  ici_mesh_shape: Sequence[int] | None,
  dcn_mesh_shape: Sequence[int] | None = None,
):
  """Shards a model over the axes replica, data and mdl.

  Args:
    task: config of the task.
    training_optimized: see `TransformerLm.set_sharding_params_v1`.
    ici_mesh_shape: devices along each axis within a slice.
    dcn_mesh_shape: slices along each axis; None for a single slice.
  """
  _set_sharding(
    task,
    'set_sharding_params_v1',
    dict(replica_axis=_REPLICA, data_axis=_DATA, mdl_axis=MDL),
    ici_mesh_shape,
    dcn_mesh_shape,
    training_optimized,
  )


def set_sharding_annotations_with_expert_parallelism(
  task: Config,
  training_optimized: bool,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
):
  """Shards a model over the axes replica, data, data_expert and mdl.

  Args:
    task: config of the task.
    training_optimized: see `TransformerLm.set_sharding_params_v1`.
    ici_mesh_shape: devices along each axis within a slice.
    dcn_mesh_shape: slices along each axis; None for a single slice.

  Raises:
    UserError: a shape does not have four numbers.
  """
  for field, shape in (
    ('ici_mesh_shape', ici_mesh_shape),
    ('dcn_mesh_shape', dcn_mesh_shape),
  ):
    if shape is not None and len(shape) != 4:
      raise errors.UserError(
        f'{field} is {list(shape)}; with expert parallelism, expected four'
        f' numbers, for {_REPLICA}, {_DATA}, {_EXPERT} and {MDL}'
      )
  _set_sharding(
    task,
    'set_sharding_params_with_expert_parallelism',
    dict(
      replica_axis=_REPLICA,
      data_axis=_DATA,
      data_expert_axis=_EXPERT,
      mdl_axis=MDL,
    ),
    ici_mesh_shape,
    dcn_mesh_shape,
    training_optimized,
  )


def set_pipeline_sharding(
  task: Config,
  training_optimized: bool,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int],
  *,
  expert_parallelism: bool,
) -> tuple[str, ...]:
  """Shards a pipelined model over stage, replica, data and mdl.

  Args:
    task: config of the task.
    training_optimized: see `TransformerLm.set_sharding_params_v1`.
    ici_mesh_shape: devices along each axis within a slice.
    dcn_mesh_shape: slices along each axis.
    expert_parallelism: whether there is an axis data_expert before mdl.

  Returns:
    The mesh axes over which batches are split outside the pipeline.
  """
  axes = dict(replica_axis=_REPLICA, data_axis=_DATA)
  method = 'set_sharding_params_v1'
  if expert_parallelism:
    method = 'set_sharding_params_with_expert_parallelism'
    axes['data_expert_axis'] = _EXPERT
  _set_sharding(
    task,
    method,
    {**axes, 'mdl_axis': MDL},
    ici_mesh_shape,
    dcn_mesh_shape,
    training_optimized,
    stage_axes=(STAGE,),
  )
  batch = (STAGE, _REPLICA, _DATA)
  set_batch_sharding(task, batch)
  return batch


def set_batch_sharding(task: Config, axes: tuple[str, ...]):
  """Splits batches over mesh axes: the first dimension of each field."""
  task.train.inputs_split_mapping = dict(map_1d=(axes,), map_2d=(axes, None))


def _set_sharding(
  task: Config,
  method: str,
  axes: dict[str, str],
  ici_mesh_shape: Sequence[int] | None,
  dcn_mesh_shape: Sequence[int] | None,
  training_optimized: bool,
  stage_axes: tuple[str, ...] = (),
):
  """Sets the mesh of a task, and the sharding of its network if it has one.

  Args:
    task: config of the task.
    method: the network's class method that shards it.
    axes: arguments of the method, with the mesh axes in order.
    ici_mesh_shape: devices along each axis within a slice.
    dcn_mesh_shape: slices along each axis, or None.
    training_optimized: argument of the method.
    stage_axes: mesh axes before the others.
  """
  set_batch_sharding(task, tuple(axes.values())[:-1])
  names = [*stage_axes, *axes.values()]
  mesh: dict[str, Any] = dict(
    ici_mesh_shape=ici_mesh_shape, mesh_axis_names=names
  )
  if dcn_mesh_shape is not None:
    mesh['dcn_mesh_shape'] = dcn_mesh_shape
  model = task.model.set(**mesh)
  if 'lm_tpl' in config_lib.field_names(model):
    shard = getattr(model.lm_tpl.cls, method)
    model.lm_tpl = shard(
      model.lm_tpl, training_optimized=training_optimized, **axes, **mesh
    )


def maybe_setup_moe_params(stack: Config):
  """Copies the settings of a stack's feed-forward to its mixture of experts.

  Does nothing for a stack without experts.

  Args:
    stack: config of a `StackedTransformer`, perhaps repeated or pipelined.
  """
  if issubclass(stack.cls, layers.PipelinedTransformer):
    stack = stack.pipeline_stage
  if issubclass(stack.cls, layers.StackedTransformerRepeated):
    stack = stack.block
  if not stack.num_experts:
    return
  feed_forward = stack.transformer_layer_params_tpl.tr_fflayer_tpl
  experts = stack.moe_layer_tpl
  values = config_lib.set_fields(feed_forward)
  shared = {*child_layers.INHERITED, *_OF_FEED_FORWARDS}
  for name in shared & values.keys():
    value = values[name]
    if isinstance(value, Config):
      value = value.clone()
    setattr(experts, name, value)
  if experts.hidden_dims in (REQUIRED, 0):
    experts.hidden_dims = values.get('hidden_dims', REQUIRED)


def set_pax_defaults(task: Config):
  """Sets fields of a task whose default in Pax differs from the one here.

  Fields that are set already are kept.

  Args:
    task: config of the task.
  """
  for config in _configs(task):
    for cls, field, value in _PAX_DEFAULTS:
      if not isinstance(config.cls, type) or not issubclass(config.cls, cls):
        continue
      if not config_lib.is_set(config, field):
        setattr(config, field, value)


def _configs(value: Any) -> Iterator[Config]:
  """Yields a config and all configs in its fields."""
  if isinstance(value, Config):
    yield value
    value = list(config_lib.set_fields(value).values())
  if isinstance(value, list | tuple):
    for item in value:
      yield from _configs(item)


def num_heads(
  cls: type,
  *,
  model_dims: int,
  dims_per_head: int | None,
  given: int | None,
) -> int:
  """Returns the number of attention heads of an experiment.

  Args:
    cls: the class of the experiment, for messages.
    model_dims: its MODEL_DIMS.
    dims_per_head: its DIMS_PER_HEAD; None for no constraint.
    given: its NUM_HEADS; None computes it from the other two.

  Raises:
    UserError: the three contradict each other, or are not enough.
  """
  heads = given
  if given is None and dims_per_head:
    heads = model_dims // dims_per_head
  if heads is None:
    raise errors.UserError(
      f'{cls.__name__} has neither NUM_HEADS nor DIMS_PER_HEAD; set one of them'
    )
  if dims_per_head is not None and heads * dims_per_head != model_dims:
    raise errors.UserError(
      f'{cls.__name__}.MODEL_DIMS is {model_dims}; expected NUM_HEADS times'
      f' DIMS_PER_HEAD, {given} * {dims_per_head}'
      if given is not None
      else f'{cls.__name__}.MODEL_DIMS is {model_dims}; expected a multiple of'
      f' DIMS_PER_HEAD, {dims_per_head}'
    )
  return heads
