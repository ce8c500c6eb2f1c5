"""Step functions for loops of one's own: `paxml.trainer_lib`.

They have Pax's arguments and results, and compute with the pieces of the
trainer. Within `jax.pmap(axis_name='batch')`, metrics and gradients are
those of the batches of all devices.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from adaptors.pax_names.own import replicas
from pax_compat import base_layer, errors, learners, py_utils, tasks_lib
from pax_compat.layer_core import summaries
from pax_compat.learners import sgf
from pax_compat.nested_map import NestedMap
from pax_compat.tasks import train_states
from pax_compat.tasks.early_stopping import EarlyStoppingFn, RunningMode
from pax_compat.tasks.train_states import TrainState
from pax_compat.trainer import (
  step_outputs,
  updates_after,
  variational_noise,
)
from pax_compat.trainer import train_state as shapes_of_state

__all__ = [
  'BaseStepFnStaticArgs',
  'EarlyStoppingFn',
  'RunningMode',
  'StepFnOutput',
  'TrainState',
  'TrainStateMetadata',
  'create_train_state_metadata',
  'decode_step',
  'eval_step_single_learner',
  'initialize_model_state',
  'initialize_replicate_model_state',
  'replicate_model_state',
  'train_step_single_learner',
]

_KEPT = (base_layer.PARAMS, base_layer.NON_TRAINABLE)
_INSTEAD = 'train it as an experiment'


@flax.struct.dataclass
class BaseStepFnStaticArgs:
  """Static arguments of a step function, which must be hashable.

  Attributes:
    unpadded_global_batch_size: rows of the batch that are not padding.
  """

  unpadded_global_batch_size: int | None


@flax.struct.dataclass
class StepFnOutput:
  """What a step returns beside the state.

  Attributes:
    loss: [], the mean loss of the batch; None after decoding.
    weighted_scalars: metrics, {name: (value, weight)}.
    per_example_out: outputs [B, ...].
    summary_tensors: summaries by name, which ends with the type after
      `install(pax_summary_keys=True)`. Repeated layers stack theirs.
    clu_metrics: clu metrics by name.
  """

  loss: Any
  weighted_scalars: Any
  per_example_out: Any
  summary_tensors: Any
  clu_metrics: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class TrainStateMetadata:
  """What is known of a state before there is one.

  Attributes:
    input_shape_dtype: shapes of a batch.
    var_weight_hparams: metadata of the variables.
    padded_global_shapes: a `TrainState` of shapes.
    unpadded_global_shapes: the same.
    partition_specs: a `TrainState` of `PartitionSpec`s; None without a mesh.
  """

  input_shape_dtype: Any
  var_weight_hparams: Any
  padded_global_shapes: Any = None
  unpadded_global_shapes: Any = None
  partition_specs: Any = None


class _Parts:
  """A task, and what its steps need to know of its variables.

  Attributes:
    metas: metadata of each weight, by path.
    boxed: the shapes of the kept variables, with their metadata.
    var_weight_hparams: metadata of the kept variables.
  """

  def __init__(
    self, task: tasks_lib.SingleTask, inputs: Any, do_eval: bool = False
  ):
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), inputs
    )
    with base_layer.eval_mode(do_eval):
      boxed = jax.eval_shape(
        lambda b: task.model.init_boxed(_rngs(jax.random.key(0)), b), shapes
      )
    self._task = task
    self.boxed = shapes_of_state.kept_collections(boxed)
    self.metas = shapes_of_state.metas(self.boxed)
    self.var_weight_hparams = base_layer.unbox_meta(dict(self.boxed))
    _refuse(
      boxed.get(base_layer.ROW_PROBES), 'embeddings have sparse_gradients'
    )

  @functools.cached_property
  def learner(self) -> learners.Learner:
    """The learner.

    Raises:
      UserError: it has several losses.
    """
    found = self._task.learners[0]
    _refuse(found.losses_of(self.metas), 'the learner has several losses')
    return found

  def state(self, mdl_vars: Any, discard_opt_states: bool) -> TrainState:
    """Returns the first state with these variables."""
    opt_states = []
    if not discard_opt_states:
      opt_states = [
        self.learner.init(
          mdl_vars[base_layer.PARAMS],
          weight_metas=self.metas,
          variables=mdl_vars,
        )
      ]
    return TrainState(jnp.zeros([], jnp.uint32), mdl_vars, opt_states)


def _refuse(found: Any, what: str):
  if found:
    raise errors.UserError(
      f'{what}, which trainer_lib does not support; {_INSTEAD}'
    )


def _rngs(key: jax.Array) -> dict[str, jax.Array]:
  names = base_layer.PARAMS, base_layer.RANDOM, base_layer.NON_PAX_RNG_KEY
  return dict(zip(names, jax.random.split(key, 3), strict=True))


def initialize_model_state(
  jax_task: tasks_lib.SingleTask,
  prng_key: jax.Array,
  inputs_shape_dtype: Any,
  discard_opt_states: bool = False,
  do_init_checkpoint_rules: bool = True,
  is_eval: bool = False,
  checkpoint_type: Any = None,
  var_weight_hparams: Any = None,
) -> tuple[TrainState, train_states.TrainStateProvenance]:
  """Returns the state before the first step, and where its arrays are from.

  Args:
    jax_task: the task.
    prng_key: for the initial weights.
    inputs_shape_dtype: a batch, or the shapes of one; of one device for pmap.
    discard_opt_states: whether the state is for evaluations.
    do_init_checkpoint_rules: whether the task may have rules for loading other
      checkpoints, which are refused.
    is_eval: whether the model is traced for evaluation.
    checkpoint_type: has no effect: nothing is loaded.
    var_weight_hparams: has no effect: the model is traced.

  Raises:
    UserError: the task has rules for loading checkpoints.
  """
  del checkpoint_type, var_weight_hparams
  if do_init_checkpoint_rules and jax_task.train.init_from_checkpoint_rules:
    raise errors.UserError(
      'task.train.init_from_checkpoint_rules is set, which'
      f' initialize_model_state does not apply; {_INSTEAD}, or give'
      ' do_init_checkpoint_rules=False'
    )
  parts = _Parts(jax_task, inputs_shape_dtype, is_eval)

  @jax.jit
  def init(key):
    batch = jax.tree.map(
      lambda x: jnp.zeros(jnp.shape(x), x.dtype), inputs_shape_dtype
    )
    with base_layer.eval_mode(is_eval):
      found = jax_task.model.init(_rngs(key), batch)
    mdl_vars = {name: found[name] for name in _KEPT if name in found}
    return parts.state(mdl_vars, discard_opt_states)

  state = init(prng_key)
  return state, train_states.build_train_state_provenance(state)


def create_train_state_metadata(
  jax_task: tasks_lib.SingleTask,
  train_shape_dtype: Any,
  discard_opt_states: bool = False,
  do_eval: bool = False,
) -> TrainStateMetadata:
  """Returns what is known of a task's state before there is one.

  Args:
    jax_task: the task.
    train_shape_dtype: the shapes of a batch.
    discard_opt_states: whether the state is for evaluations.
    do_eval: whether the model is traced for evaluation.
  """
  parts = _Parts(jax_task, train_shape_dtype, do_eval)
  shapes = jax.eval_shape(
    lambda v: parts.state(v, discard_opt_states), base_layer.unbox(parts.boxed)
  )
  specs = jax_task.create_train_state_partition_specs(
    parts.var_weight_hparams, discard_opt_states
  )
  return TrainStateMetadata(
    input_shape_dtype=train_shape_dtype,
    var_weight_hparams=parts.var_weight_hparams,
    padded_global_shapes=shapes,
    unpadded_global_shapes=shapes,
    partition_specs=specs,
  )


def replicate_model_state(model_states: TrainState) -> TrainState:
  """Returns the state with a copy of each array [devices, ...] per device.

  Arrays that are on several devices stay as they are.
  """
  devices = jax.local_devices()
  mesh = jax.sharding.Mesh(np.array(devices), ('devices',))
  split = jax.sharding.NamedSharding(
    mesh, jax.sharding.PartitionSpec('devices')
  )

  def replicated(x):
    if isinstance(x, jax.Array) and len(x.devices()) > 1:
      return x
    return jax.device_put(jnp.stack([x] * len(devices)), split)

  return jax.tree.map(replicated, model_states)


def initialize_replicate_model_state(
  jax_task: tasks_lib.SingleTask,
  prng_key: jax.Array,
  inputs_shape_dtype: Any,
  discard_opt_states: bool = False,
) -> TrainState:
  """Returns `initialize_model_state`, replicated."""
  state, _ = initialize_model_state(
    jax_task, prng_key, inputs_shape_dtype, discard_opt_states
  )
  return replicate_model_state(state)


def _applied(model, variables, inputs, mutable, rngs):
  return model.apply(variables, inputs, mutable=mutable, rngs=rngs)


def _loss_fn(task, context, fprop_dtype, metas, apply_fn) -> Callable[..., Any]:
  """Returns the loss of variables, a batch and a key.

  It returns the loss to differentiate, and a `GradAuxInfo` of a `StepFnOutput`
  and the updated variables.
  """
  apply_fn = apply_fn or _applied
  mutable = list(
    task.evaluate.apply_mutable_list
    if context.do_eval
    else task.train.apply_mutable_list
  )

  def loss_fn(mdl_vars, inputs, prng_key):
    keys, inputs = _split_keys(inputs) if context.do_eval else ({}, inputs)
    with base_layer.JaxContext.new_context(hparams=context):
      (metrics, per_example), updated = apply_fn(
        model=task.model,
        variables=_cast_weights(mdl_vars, fprop_dtype, metas),
        inputs=_cast(inputs, fprop_dtype),
        mutable=mutable,
        rngs=_rngs(prng_key),
      )
    if keys:
      per_example = NestedMap({**per_example, **keys})
    updated = dict(updated)
    aggregator = task.create_loss_aggregator()
    loss, weighted, clu = step_outputs.with_loss(
      aggregator, metrics, updated.get(base_layer.AUX_LOSS, {})
    )
    loss = jnp.asarray(loss, jnp.float32)
    weight = weighted[aggregator.loss_name][1]
    if replicas.are_several():
      loss = replicas.share(loss, weight, aggregator)
    weighted, clu, per_example, found = replicas.merged(
      weighted,
      clu,
      _cast(per_example, jnp.float32, jnp.bfloat16),
      _split_summaries(
        updated.get(base_layer.SUMMARIES, {}), context.summary_verbosity
      ),
    )
    outputs = StepFnOutput(
      loss=weighted[aggregator.loss_name][0],
      weighted_scalars=NestedMap(weighted),
      per_example_out=per_example,
      summary_tensors=NestedMap(found),
      clu_metrics=clu,
    )
    updated = {k: v for k, v in updated.items() if k in mdl_vars}
    return loss, sgf.GradAuxInfo((outputs, updated), weight)

  return loss_fn


def _split_keys(batch: Any) -> tuple[Mapping[str, Any], Any]:
  """Returns the provenance of examples in a batch, and the other fields."""
  if not isinstance(batch, Mapping):
    return {}, batch
  return py_utils.filter_by_matching_keys(batch, [py_utils.PROVENANCE_PREFIX])


def _split_summaries(collection: Any, verbosity: int) -> tuple[dict, dict]:
  """Returns the summaries that are scalars, and others, by key."""
  scalars, others = {}, {}
  found = step_outputs.summaries_by_key(collection, verbosity)
  for key, summary in found.items():
    if summary.summary_type is base_layer.SummaryType.SCALAR:
      scalars[key] = jnp.asarray(summary.value, jnp.float32)
    else:
      others[key] = summary
  return scalars, others


def _cast(tree: Any, dtype: Any, only: Any = jnp.float32) -> Any:
  """Returns a tree whose arrays of the dtype `only` have another one."""

  def cast(x):
    return x.astype(dtype) if getattr(x, 'dtype', None) == only else x

  return jax.tree.map(cast, tree)


def _cast_weights(mdl_vars: Any, dtype: Any, metas: Any) -> Any:
  """Returns variables in another dtype, but for weights that forbid it."""
  if dtype == jnp.float32:
    return mdl_vars
  group = base_layer.WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION
  params = learners.by_path(mdl_vars[base_layer.PARAMS])
  cast = {
    path: _cast(x, dtype)
    for path, x in params.items()
    if group not in (metas[path].collections or ())
  }
  params = learners.replace_leaves(mdl_vars[base_layer.PARAMS], cast)
  others = {k: v for k, v in mdl_vars.items() if k != base_layer.PARAMS}
  return {**_cast(others, dtype), base_layer.PARAMS: params}


def _gradients(loss_fn, learner, mdl_vars, inputs, prng_key):
  """Pax's default `grad_fn`: the gradients of the weights."""
  others = {k: v for k, v in mdl_vars.items() if k != base_layer.PARAMS}

  def loss(weights, others_and_inputs, key):
    others, inputs = others_and_inputs
    return loss_fn({**others, **weights}, inputs, key)

  weights = {base_layer.PARAMS: mdl_vars[base_layer.PARAMS]}
  grad_fn = jax.value_and_grad(loss, has_aux=True)
  if learner.stochastic_gradient is not None:

    def grad_fn(*args):
      return learner.stochastic_gradient.grad_fn(loss, *args)

  return grad_fn(weights, (others, inputs), prng_key)


def _context(task, do_eval: bool) -> base_layer.JaxContext.HParams:
  return base_layer.JaxContext.HParams(
    do_eval=do_eval, summary_verbosity=task.summary_verbosity
  )


def train_step_single_learner(
  jax_task: tasks_lib.SingleTask,
  states: TrainState,
  prng_key: jax.Array,
  inputs: Any,
  fprop_dtype: Any = jnp.float32,
  var_weight_hparams: Any = None,
  static_args: BaseStepFnStaticArgs | None = None,
  *,
  grad_fn: Callable[..., Any] | None = None,
  apply_fn: Callable[..., Any] | None = None,
) -> tuple[TrainState, StepFnOutput]:
  """Makes a step; returns the next state, and outputs.

  Args:
    jax_task: the task.
    states: the state.
    prng_key: for random numbers, which also depend on the number of steps.
    inputs: the batch, for pmap that of this device.
    fprop_dtype: float32 or bfloat16, for weights and batch.
    var_weight_hparams: has no effect: the model is traced.
    static_args: has no effect.
    grad_fn: (loss_fn, learner, mdl_vars, inputs, prng_key) -> ((loss, aux),
      gradients); None for the gradients of the loss.
    apply_fn: (model, variables, inputs, mutable, rngs) -> (outputs, updated
      variables), all by keyword; None for `model.apply`.

  Raises:
    UserError: the task uses something that loops of one's own do not have.
  """
  del var_weight_hparams, static_args
  parts = _Parts(jax_task, inputs)
  context = _context(jax_task, do_eval=False)
  key = jax.random.fold_in(prng_key, states.step)
  noise = variational_noise.Noise(jax_task.vn, list(parts.metas))
  weights = states.mdl_vars[base_layer.PARAMS]
  noisy = noise.add(weights, states.step, jax.random.fold_in(key, 1))
  _, key = jax.random.split(key)
  learner = parts.learner.of(inputs)
  (_, aux), gradients = (grad_fn or _gradients)(
    loss_fn=_loss_fn(jax_task, context, fprop_dtype, parts.metas, apply_fn),
    learner=learner,
    mdl_vars={**states.mdl_vars, base_layer.PARAMS: noisy},
    inputs=inputs,
    prng_key=key,
  )
  outputs, updated = aux.aux_info
  params, opt_state, metrics, norms = learner.update(
    weights,
    states.opt_states[0],
    replicas.sum_of(gradients[base_layer.PARAMS]),
    weight_metas=parts.metas,
    loss_weight=replicas.sum_of(aux.loss_weight),
  )
  before = {name: states.mdl_vars[name] for name in updated}
  updated = replicas.synchronized(before, updated, parts.var_weight_hparams)
  with base_layer.JaxContext.new_context(hparams=context):
    updated = updates_after.update(
      jax_task.model,
      states.mdl_vars,
      {**updated, base_layer.PARAMS: params},
      inputs,
      key,
    )
  mdl_vars = {
    **states.mdl_vars,
    **learner.next_variables(before, updated, metrics),
    base_layer.PARAMS: params,
  }
  opt_state = learner.next_averages(states.opt_states[0], opt_state, mdl_vars)
  learned = {
    summaries.key_of(name, base_layer.SummaryType.SCALAR): value
    for name, value in {**metrics, **norms}.items()
  }
  outputs = outputs.replace(
    summary_tensors=NestedMap({**outputs.summary_tensors, **learned})
  )
  return states.new_state(mdl_vars, [opt_state]), outputs


def eval_step_single_learner(
  jax_task: tasks_lib.SingleTask,
  states: TrainState,
  prng_key: jax.Array,
  inputs: Any,
  fprop_dtype: Any = jnp.float32,
  var_weight_hparams: Any = None,
  static_args: BaseStepFnStaticArgs | None = None,
) -> tuple[None, StepFnOutput]:
  """Evaluates a batch.

  Args:
    jax_task: the task.
    states: the state.
    prng_key: for random numbers, which also depend on the number of steps.
    inputs: the batch, for pmap that of this device.
    fprop_dtype: float32 or bfloat16, for weights and batch.
    var_weight_hparams: has no effect: the model is traced.
    static_args: has no effect.

  Returns:
    None, where a train step has the state; and outputs, those of examples with
    their provenance, if the batch has it.
  """
  del var_weight_hparams, static_args
  metas = {}
  if fprop_dtype != jnp.float32:
    metas = _Parts(jax_task, inputs, do_eval=True).metas
  loss_fn = _loss_fn(
    jax_task, _context(jax_task, do_eval=True), fprop_dtype, metas, None
  )
  key = jax.random.fold_in(prng_key, states.step)
  _, aux = loss_fn(states.mdl_vars, inputs, key)
  return None, aux.aux_info[0]


def decode_step(
  model: Any,
  states: TrainState,
  prng_key: jax.Array,
  var_weight_hparams: Any,
  inputs: Any,
  fprop_dtype: Any = jnp.float32,
  apply_mutable_list: Sequence[str] = (
    base_layer.DECODE_CACHE,
    base_layer.SUMMARIES,
  ),
  decode_method: str = 'decode',
) -> tuple[Any, Any]:
  """Decodes a batch.

  Args:
    model: the model.
    states: a state without those of learners.
    prng_key: for random numbers, which also depend on the number of steps.
    var_weight_hparams: has no effect.
    inputs: the batch.
    fprop_dtype: float32 or bfloat16, for all variables and the batch.
    apply_mutable_list: collections that the model may change.
    decode_method: name of the method.

  Returns:
    (weighted scalars, outputs, clu metrics), and the changed collections but
    the decoding cache. The outputs of `decode` have the provenance of the
    examples, if the batch has it.
  """
  del var_weight_hparams
  keys, inputs = _split_keys(inputs)
  key = jax.random.fold_in(prng_key, states.step)
  context = base_layer.JaxContext.HParams(do_eval=True, summary_verbosity=2)
  with base_layer.JaxContext.new_context(hparams=context):
    outputs, updated = model.apply(
      _cast(states.mdl_vars, fprop_dtype),
      _cast(inputs, fprop_dtype),
      method=getattr(model, decode_method),
      rngs=_rngs(key),
      mutable=list(apply_mutable_list),
    )
  if len(outputs) == 2:
    outputs = (*outputs, {})
  if decode_method == 'decode':
    outputs[1].update(keys)
  updated = {k: v for k, v in updated.items() if k != base_layer.DECODE_CACHE}
  return outputs, updated
