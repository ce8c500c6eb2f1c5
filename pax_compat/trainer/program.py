"""The compiled functions of a task: initial state, train, eval, decode step."""

import dataclasses
import functools
import os
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pax_compat import base_layer, checkpoints, errors, learners, tasks_lib
from pax_compat.input_core import example_rows
from pax_compat.layer_core.losses import aux_losses
from pax_compat.learners import branches
from pax_compat.learners.gradients import gradient_norms
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import (
  loss_gradients,
  partitioning,
  row_weights,
  step_outputs,
  train_state,
  updates_after,
  variational_noise,
)
from pax_compat.trainer.step_outputs import DecodeOutputs, StepOutputs
from pax_compat.trainer.train_state import TrainState

# Numbers that are folded into the random key of a step, one for each use.
_FOR_LAYERS, _FOR_NOISE = range(2)
_LEVEL = 'xla_backend_optimization_level'


@dataclasses.dataclass(frozen=True)
class TaskProgram:
  """A task's steps on a mesh.

  Attributes:
    task: the task.
    model: the model.
    learner: the learner.
    loss_aggregator: computes the loss from the model's metrics.
    noise: variational noise of the weights.
    mesh: the devices.
    batch_sharding: how batches are split over them.
    abstract_state: shapes, dtypes and shardings of the state.
    weight_metas: metadata of each trainable weight, by path.
    moved_splits: how the variables are split that are stored with another
      sharding than steps compute with, by path with the collection.
    probes: shapes of the zeros whose gradients are metadata of the gradients of
      embedding tables; see `layer_core.row_gradients`.
    init_variables: (key, batch) -> the initial variables as `BoxedParam`s. It
      is jitted: what traced it for the shapes serves the initial state, too.
    skips_nonfinite: whether a train step whose watched numbers are not all
      finite changes nothing but the number of steps.
  """

  task: tasks_lib.SingleTask
  model: Any
  learner: learners.Learner | learners.MultiTaskLearner
  loss_aggregator: Any
  noise: variational_noise.Noise
  mesh: Mesh
  batch_sharding: partitioning.BatchSharding
  abstract_state: TrainState
  weight_metas: dict[str, base_layer.WeightHParams]
  moved_splits: dict[str, partitioning.WeightSplit]
  probes: Any
  init_variables: Callable[[jax.Array, NestedMap], Any]
  skips_nonfinite: bool = False

  def init_state(self, batch: NestedMap) -> TrainState:
    """Returns the initial state; each array is created with its sharding.

    Args:
      batch: a batch of this process, or its shapes; only the shapes matter.
    """
    return self._init(batch, lambda state: state)

  def init_leaves(
    self, batch: NestedMap, paths: Collection[str]
  ) -> dict[str, jax.Array]:
    """Returns some arrays of the initial state, and creates no others.

    Args:
      batch: as of `init_state`.
      paths: of the arrays, as in `checkpoints.state_paths`.
    """

    def select(state):
      leaves = checkpoints.state_paths(state)
      return {path: leaves[path] for path in paths}

    return self._init(batch, select) if paths else {}

  def _init(self, batch: NestedMap, select: Callable[[Any], Any]) -> Any:
    """Returns what `select` returns of the initial state."""
    batch = global_shapes(batch, self.batch_sharding)
    shardings = jax.tree.map(lambda s: s.sharding, self.abstract_state)

    def init(key):
      boxed = self.init_variables(key, _zeros(batch))
      return select(train_state.initial_state(boxed, self.learner))

    compiled = jax.jit(
      init,
      out_shardings=select(shardings),
      compiler_options=_runs_once(self.mesh.devices.flat[0].platform),
    )
    with jax.set_mesh(self.mesh):
      return compiled(jax.random.key(self.task.train.random_seed))

  def put(self, batch: NestedMap) -> NestedMap:
    """Returns the global batch of batches of all processes, on the devices."""
    return partitioning.global_batch(batch, self.batch_sharding)

  def put_to_train(self, batch: NestedMap) -> NestedMap:
    """Returns a global batch to train on; see `put`.

    Args:
      batch: a batch of this process. If its devices do not divide the rows,
        rows of weight 0 are added.

    Raises:
      UserError: rows are added, and the model does not use their weights.
    """
    self.check_rows(batch)
    return self.put(batch)

  @functools.cached_property
  def check_rows(self) -> row_weights.Check:
    """Raises a UserError for a batch, or shapes, that cannot be padded."""
    return row_weights.Check(self)

  @functools.cached_property
  def train_step(self):
    """The compiled function that makes a step.

    It maps (state, batch, with_summaries=True) to (state, `StepOutputs`). The
    state is donated. Without summaries, what only they need is not computed.
    """
    shardings = jax.tree.map(lambda s: s.sharding, self.abstract_state)
    return jax.jit(
      self._train_step,
      donate_argnums=0,
      out_shardings=(shardings, partitioning.replicated(self.mesh)),
    )

  def compile_train_step(self, batch: NestedMap) -> jax.stages.Compiled:
    """Compiles `train_step` in advance, so that its first call does not.

    Args:
      batch: the shapes and dtypes of a batch of this process.
    """
    return self.trace_train_step(batch).lower().compile()

  def trace_train_step(self, batch: NestedMap) -> jax.stages.Traced:
    """Traces `train_step` for the shapes of a batch of this process."""
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=self.batch_sharding.of_shape(x.shape)
      ),
      global_shapes(batch, self.batch_sharding),
    )
    return self.train_step.trace(self.abstract_state, shapes, np.bool_(True))

  @functools.cached_property
  def eval_step(self):
    """The compiled function (mdl_vars, batch, number=0) -> `StepOutputs`.

    The number of the batch is folded into the random key; only batch 0 has
    non-scalar summaries.
    """
    return self._compiled_eval_step(self.task.evaluate.write_per_example_out)

  @functools.cached_property
  def eval_rows_step(self):
    """As `eval_step`, always with per-example outputs."""
    if self.task.evaluate.write_per_example_out:
      return self.eval_step
    return self._compiled_eval_step(True)

  def _compiled_eval_step(self, per_example: bool):
    whole = partitioning.replicated(self.mesh)
    names = (field.name for field in dataclasses.fields(StepOutputs))
    outputs = StepOutputs(**dict.fromkeys(names, whole))
    return jax.jit(
      functools.partial(self._eval_step, per_example),
      out_shardings=outputs.replace(per_example=self.batch_sharding.of(1)),
    )

  @functools.cached_property
  def decode_step(self):
    """The compiled function (mdl_vars, batch, number=0) -> `DecodeOutputs`.

    The number is as in `eval_step`.
    """
    return jax.jit(
      self._decode_step, out_shardings=partitioning.replicated(self.mesh)
    )

  def eval_vars(self, state: TrainState, *, use_ema: bool) -> Any:
    """Returns the variables for an evaluation, averaged if `use_ema`."""
    if not use_ema:
      return state.mdl_vars
    params = self.learner.ema_weights(
      state.opt_state, state.mdl_vars[base_layer.PARAMS]
    )
    others = {k: v for k, v in state.mdl_vars.items() if k != base_layer.PARAMS}
    others = self.learner.ema_of_variables(state.opt_state, others)
    return {**others, base_layer.PARAMS: params}

  def _train_step(
    self, state: TrainState, batch: NestedMap, with_summaries=True
  ):
    key = jax.random.fold_in(
      jax.random.key(self.task.train.random_seed), state.step
    )
    params = state.mdl_vars[base_layer.PARAMS]
    noisy = self.noise.add(
      params, state.step, jax.random.fold_in(key, _FOR_NOISE)
    )
    probes = self._zero_probes()
    learner = self.learner.of(batch)
    others = learner.losses_of(self.weight_metas)
    layers_key = jax.random.fold_in(key, _FOR_LAYERS)
    loss_fn = functools.partial(
      self._losses, sorted(set(others.values())), state.mdl_vars
    )
    with _traced_on(self.mesh):
      gradients, (outputs, updated, non_scalar) = loss_gradients.of_step(
        loss_fn,
        batch,
        layers_key,
        noisy,
        probes,
        learner=learner,
        weight_metas=self.weight_metas,
        variables=state.mdl_vars,
        loss_weight=lambda outputs: self._loss_weight(outputs, {}),
      )
      gradients, row_statistics = gradients
      new_params, opt_state, scalars, norms = learner.update(
        params,
        state.opt_state,
        gradients,
        weight_metas=self.weight_metas,
        row_statistics=learners.by_path(
          row_statistics, is_leaf=loss_gradients.is_row_statistics
        ),
        loss_weight=self._loss_weight(outputs, others),
        with_norms=with_summaries,
        other_norms=lambda: self._norms(params),
      )
      outputs = outputs.replace(
        scalars=outputs.scalars | scalars,
        norms=norms,
        non_scalar_summaries=step_outputs.non_scalar_summaries(
          non_scalar, with_summaries
        ),
        has_summaries=jnp.asarray(with_summaries),
        watched=step_outputs.watched_numbers(
          outputs.weighted[self.loss_aggregator.loss_name][0], scalars
        ),
      )
      updated = updates_after.update(
        self.model,
        state.mdl_vars,
        {**updated, base_layer.PARAMS: new_params},
        batch,
        layers_key,
      )
    before = {name: state.mdl_vars[name] for name in updated}
    mdl_vars = {
      **state.mdl_vars,
      **learner.next_variables(before, updated, scalars),
      base_layer.PARAMS: new_params,
    }
    opt_state = learner.next_averages(state.opt_state, opt_state, mdl_vars)
    if self.skips_nonfinite:
      mdl_vars, opt_state = branches.either(
        jnp.isfinite(outputs.watched).all(),
        lambda: (mdl_vars, opt_state),
        lambda: (state.mdl_vars, state.opt_state),
      )
    state = TrainState(
      step=state.step + 1, mdl_vars=mdl_vars, opt_state=opt_state
    )
    return state, outputs

  def forward(
    self, variables: Any, batch: NestedMap, key: jax.Array, **options: Any
  ) -> tuple[jax.Array, StepOutputs, dict, dict]:
    """Computes the loss of a batch, as a training step does.

    Args:
      variables: the model's, by collection.
      batch: the batch.
      key: for random numbers.
      **options: of flax's `apply`, such as `capture_intermediates`.

    Returns:
      The loss to minimise; the outputs of the step; non-scalar summaries; and
      the collections that the model has updated.
    """
    options = {'mutable': list(self.task.train.apply_mutable_list)} | options
    result, updated = self.model.apply(
      {base_layer.ROW_PROBES: self._zero_probes(), **self._in_step(variables)},
      batch,
      rngs={base_layer.RANDOM: key},
      **options,
    )
    updated = dict(updated)
    metrics, _ = self._split(result)
    return *self._outputs(metrics, updated), updated

  def _in_step(self, variables: Any) -> Any:
    return partitioning.as_in_step(variables, self.moved_splits)

  def _zero_probes(self) -> Any:
    return jax.tree.map(lambda s: jnp.zeros(s.shape), self.probes)

  def _loss_weight(self, outputs: StepOutputs, others):
    """Returns the weight of the loss; with `others` those of all losses."""
    name, metrics = self.loss_aggregator.loss_name, outputs.weighted
    if not others:
      return metrics[name][1]
    return {k: metrics[k][1] for k in (name, *others.values())}

  def _losses(self, others, mdl_vars, batch, key, params, probes):
    """Returns the loss, and (outputs, updated variables, other summaries).

    With the names of other losses, it returns all losses by name, that of the
    task as ''.
    """
    variables = {
      **mdl_vars,
      base_layer.PARAMS: params,
      base_layer.ROW_PROBES: probes,
    }
    loss, outputs, non_scalar, updated = self.forward(variables, batch, key)
    unread = aux_losses.unread(updated.get(base_layer.AUX_LOSS, {}))
    if others and jax.tree.leaves(unread):
      raise errors.UserError(
        f'the model has auxiliary losses, and several losses are minimised:'
        f' {self.loss_aggregator.loss_name}, {", ".join(others)}; expected one'
        ' loss'
      )
    updated = {name: updated[name] for name in updated if name in mdl_vars}
    aux = outputs, updated, non_scalar
    if not others:
      return loss, aux
    losses = {name: _metric(name, outputs.weighted) for name in others}
    return {'': loss, **losses}, aux

  def _split(self, result) -> tuple[Any, Any]:
    """Returns the metrics and the per-example outputs."""
    if not isinstance(result, tuple) or len(result) != 2:
      raise errors.UserError(
        f'{type(self.model).__name__}.compute_loss returns'
        f' {type(result).__name__}; expected a tuple of metrics and per-example'
        ' outputs'
      )
    return result

  def _outputs(self, metrics, updated):
    """Returns the loss to minimise, outputs, and non-scalar summaries."""
    loss, weighted, clu = step_outputs.with_loss(
      self.loss_aggregator, metrics, updated.get(base_layer.AUX_LOSS, {})
    )
    scalars, non_scalar = self._summaries(updated)
    outputs = StepOutputs(
      weighted=weighted,
      scalars=scalars,
      clu=clu,
      norms={},
      non_scalar_summaries={},
      has_summaries=jnp.zeros([], bool),
      per_example={},
    )
    return loss, outputs, non_scalar

  def _norms(self, params: Any) -> dict[str, jax.Array]:
    if not self.task.train.variable_norm_summary:
      return {}
    weights = learners.by_path(params)
    # The same expression as in the learner, so that XLA computes it once.
    stacked = {p: len(self.weight_metas[p].repeat_prefix) for p in weights}
    squares = gradient_norms.squares(weights, stacked)
    return {
      f'vars/{path}': jnp.sqrt(jnp.sum(squares[path]) / float(max(w.size, 1)))
      for path, w in weights.items()
    }

  def _eval_step(self, with_per_example, mdl_vars, batch, number=0):
    key = jax.random.key(self.task.evaluate.random_seed)
    with base_layer.eval_mode(), _traced_on(self.mesh):
      result, updated = self.model.apply(
        self._in_step(mdl_vars),
        batch,
        rngs={base_layer.RANDOM: jax.random.fold_in(key, number)},
        mutable=list(self.task.evaluate.apply_mutable_list),
      )
      metrics, per_example = self._split(result)
      _, outputs, non_scalar = self._outputs(metrics, updated)
      is_first = jnp.asarray(number) == 0
      outputs = outputs.replace(
        non_scalar_summaries=step_outputs.non_scalar_summaries(
          non_scalar, is_first
        ),
        has_summaries=is_first,
      )
    if not with_per_example:
      return outputs
    rows = example_rows.num_rows(batch)
    return outputs.replace(per_example=_checked_rows(per_example, rows))

  def _decode_step(self, mdl_vars, batch, number=0):
    key = jax.random.key(self.task.decode.random_seed)
    if self.task.decode.prng_key_fold_with_batch_index:
      key = jax.random.fold_in(key, number)
    with base_layer.eval_mode(), _traced_on(self.mesh):
      result, updated = self.model.apply(
        self._in_step(mdl_vars),
        batch,
        method='decode',
        rngs={base_layer.RANDOM: key},
        mutable=list(self.task.decode.apply_mutable_list),
      )
    if not isinstance(result, tuple) or len(result) != 3:
      raise errors.UserError(
        f'{type(self.model).__name__}.decode returns {type(result).__name__};'
        ' expected a tuple of weighted scalars, outputs and clu metrics'
      )
    weighted, decoded, clu = result
    scalars, non_scalar = self._summaries(updated)
    is_first = jnp.asarray(number) == 0
    return DecodeOutputs(
      weighted=dict(weighted),
      decoded=decoded,
      clu=dict(clu),
      scalars=scalars,
      non_scalar_summaries=step_outputs.non_scalar_summaries(
        non_scalar, is_first
      ),
      has_summaries=is_first,
    )

  def _summaries(self, updated):
    return step_outputs.split_summaries(
      updated.get(base_layer.SUMMARIES, {}), self.task.summary_verbosity
    )


def _runs_once(platform: str) -> dict[str, int] | None:
  """Returns the compiler options of a program that runs once.

  On a CPU, optimizing the initial state takes longer than creating it. The
  values are the same. XLA_FLAGS come first.
  """
  is_set = _LEVEL in os.environ.get('XLA_FLAGS', '')
  return {_LEVEL: 1} if platform == 'cpu' and not is_set else None


def create(
  task: tasks_lib.SingleTask,
  mesh: Mesh,
  batch: NestedMap,
  *,
  skips_nonfinite: bool = False,
) -> TaskProgram:
  """Returns a task's program; it allocates and compiles nothing.

  Args:
    task: the task.
    mesh: the devices.
    batch: a batch of this process, or the shapes and dtypes of one.
    skips_nonfinite: see `TaskProgram`.

  Raises:
    UserError: the model or the learner cannot be built.
  """
  learner = task.train.learner.Instantiate()
  model = task.model
  _check_ema(task.train, learner)
  sharding = partitioning.batch_sharding(mesh, task.train.inputs_split_mapping)

  @jax.jit
  def init_variables(key, batch):
    return model.init_boxed({base_layer.PARAMS: key}, batch)

  with jax.set_mesh(mesh):
    # Nothing is computed on the devices, which may be simulated.
    key = jax.eval_shape(lambda: jax.random.key(0))
    # With the type of the key of `init_state`, which is not traced again then.
    key = key.update(sharding=partitioning.replicated(mesh))
    shapes = global_shapes(batch, sharding)
    boxed = jax.eval_shape(lambda key: init_variables(key, _zeros(shapes)), key)
  probes = boxed.get(base_layer.ROW_PROBES, {})
  boxed = train_state.kept_collections(boxed)
  if task.train.auto_sharding:
    boxed = partitioning.fully_sharded(mesh, boxed)
  learner.check_names(learners.by_path(boxed, is_leaf=base_layer.is_boxed))
  metas = train_state.metas(boxed)
  return TaskProgram(
    task=task,
    model=model,
    learner=learner,
    loss_aggregator=task.create_loss_aggregator(),
    noise=variational_noise.Noise(task.vn, list(metas)),
    mesh=mesh,
    batch_sharding=sharding,
    abstract_state=train_state.abstract_state(learner, mesh, boxed),
    weight_metas=metas,
    moved_splits=partitioning.moved_splits(mesh, boxed),
    probes=probes,
    init_variables=init_variables,
    skips_nonfinite=skips_nonfinite,
  )


def _metric(name: str, weighted: dict) -> jax.Array:
  if name not in weighted:
    raise errors.UserError(
      f"the learner's loss {name!r} is not among the model's metrics"
      + errors.did_you_mean(name, weighted)
    )
  return weighted[name][0]


def _check_ema(train: tasks_lib.Train, learner: learners.Learner):
  for field in ('eval_use_ema_states', 'decode_use_ema_states'):
    if getattr(train, field) and not learner.has_ema:
      raise errors.UserError(
        f"Train.{field} is set, and the learner's optimizer does not keep"
        ' moving averages; expected an ema_decay above 0'
      )


def _traced_on(mesh: Mesh):
  """Within it, traced arrays can be sharded by names of the mesh's axes."""
  return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def global_shapes(
  batch: NestedMap, sharding: partitioning.BatchSharding
) -> NestedMap:
  """Returns the shapes of the global batch, with padding rows if needed.

  Args:
    batch: a batch of this process, or its shapes.
    sharding: how batches are split.
  """
  batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)

  def shape(x):
    rows = (x.shape[0] * sharding.num_infeed_hosts,) if x.shape else ()
    return jax.ShapeDtypeStruct((*rows, *x.shape[1:]), x.dtype)

  return jax.tree.map(shape, partitioning.padded(batch, sharding))


def _zeros(shapes: NestedMap) -> NestedMap:
  """Returns arrays of these shapes and dtypes, as devices have them.

  NumPy's int64 is int32 on a device, unless jax_enable_x64 is set.
  """
  return jax.tree.map(
    lambda s: jnp.zeros(s.shape, jax.dtypes.canonicalize_dtype(s.dtype)), shapes
  )


def _checked_rows(per_example: Any, rows: int) -> dict[str, jax.Array]:
  """Returns the arrays by path; each must have the rows of the batch."""
  found = learners.by_path(per_example)
  for name, x in found.items():
    if jnp.ndim(x) == 0 or x.shape[0] != rows:
      raise errors.UserError(
        f'the per-example output {name!r} has the shape {list(jnp.shape(x))};'
        f' expected {rows} rows, one for each example'
      )
  return found
