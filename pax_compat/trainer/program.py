"""The compiled steps of a task: first state, train step, eval step."""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from pax_compat import base_layer, errors, learners, summaries
from pax_compat import config as config_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning


class TrainState(flax.struct.PyTreeNode):
  """All that changes while a task is trained.

  Attributes:
    step: [], int32, how many steps were made.
    mdl_vars: the model's variables by collection, unboxed.
    opt_state: the learner's state.
  """

  step: jax.Array
  mdl_vars: Any
  opt_state: Any


@dataclasses.dataclass(frozen=True)
class TaskProgram:
  """A task's steps on a mesh.

  Attributes:
    model: the model.
    learner: the learner.
    mesh: the devices.
    abstract_state: shapes, dtypes and shardings of the state.
    weight_metas: what each trainable weight is, by path.
    probes: shapes of the zeros whose gradients are facts about the gradients of
      looked-up tables; see `layers.row_gradients`.
    random_seed: seed of the first state and of each step's random numbers.
  """

  model: Any
  learner: learners.Learner
  mesh: Mesh
  abstract_state: TrainState
  weight_metas: dict[str, base_layer.WeightHParams]
  probes: Any
  random_seed: int

  def init_state(self, batch: NestedMap) -> TrainState:
    """Returns the first state, each part created where it belongs.

    Args:
      batch: arrays or their shapes; only the shapes matter.
    """
    batch = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch
    )
    shardings = jax.tree.map(lambda s: s.sharding, self.abstract_state)

    def init(key):
      zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), batch)
      return _first_state(self.model, self.learner, key, zeros)

    with jax.set_mesh(self.mesh):
      return jax.jit(init, out_shardings=shardings)(
        jax.random.key(self.random_seed)
      )

  @functools.cached_property
  def train_step(self):
    """The compiled function (state, batch) -> (state, metrics).

    The state is donated. Metrics are scalars by name.
    """
    shardings = jax.tree.map(lambda s: s.sharding, self.abstract_state)
    return jax.jit(
      self._train_step,
      donate_argnums=0,
      out_shardings=(shardings, partitioning.replicated(self.mesh)),
    )

  @functools.cached_property
  def eval_step(self):
    """The compiled function (mdl_vars, batch) -> {name: (value, weight)}."""
    return jax.jit(
      self._eval_step, out_shardings=partitioning.replicated(self.mesh)
    )

  def _train_step(self, state: TrainState, batch: NestedMap):
    key = jax.random.fold_in(jax.random.key(self.random_seed), state.step)
    params = state.mdl_vars[base_layer.PARAMS]
    probes = jax.tree.map(lambda s: jnp.zeros(s.shape), self.probes)
    loss_fn = functools.partial(self._loss, state.mdl_vars, batch, key)
    (gradients, facts), (metrics, updated) = jax.grad(
      loss_fn, argnums=(0, 1), has_aux=True
    )(params, probes)
    params, opt_state, described = self.learner.update(
      params,
      state.opt_state,
      gradients,
      weight_metas=self.weight_metas,
      row_facts=learners.by_path(facts, is_leaf=_is_facts),
    )
    state = TrainState(
      step=state.step + 1,
      mdl_vars={**state.mdl_vars, **updated, base_layer.PARAMS: params},
      opt_state=opt_state,
    )
    scalars = {name: value for name, (value, _) in metrics.items()}
    return state, {**scalars, **described}

  def _loss(self, mdl_vars, batch, key, params, probes):
    """Returns (loss, (metrics, updated variables)) at `params`."""
    variables = {
      **mdl_vars,
      base_layer.PARAMS: params,
      base_layer.ROW_PROBES: probes,
    }
    (metrics, _), updated = self.model.apply(
      variables,
      batch,
      rngs={base_layer.RANDOM: key},
      mutable=[
        base_layer.NON_TRAINABLE,
        base_layer.AUX_LOSS,
        base_layer.SUMMARIES,
      ],
    )
    updated = dict(updated)
    metrics = dict(metrics)
    if self.learner.loss_name not in metrics:
      raise errors.UserError(
        f'the model has no metric {self.learner.loss_name!r}, which is the'
        " learner's loss_name"
        + errors.did_you_mean(self.learner.loss_name, metrics)
      )
    loss, weight = metrics[self.learner.loss_name]
    aux_losses = jax.tree.leaves(updated.pop(base_layer.AUX_LOSS, {}))
    if aux_losses:
      metrics['aux_loss'] = (sum(aux_losses), weight)
      loss = loss + sum(aux_losses)
    said = updated.pop(base_layer.SUMMARIES, {})
    for name, summary in learners.by_path(said, summaries.is_summary).items():
      if summary.summary_type is summaries.SummaryType.SCALAR:
        metrics[name] = (summary.value, 1.0)
    return loss, (metrics, updated)

  def _eval_step(self, mdl_vars, batch):
    with base_layer.eval_mode():
      metrics, _ = self.model.apply(mdl_vars, batch)
    return {
      name: (jnp.asarray(value, jnp.float32), jnp.asarray(weight, jnp.float32))
      for name, (value, weight) in metrics.items()
    }


def create(
  task: config_lib.Config, mesh: Mesh, batch: NestedMap
) -> TaskProgram:
  """Returns a task's program; nothing is allocated and nothing compiled.

  Args:
    task: config of a `SingleTask`.
    mesh: the devices.
    batch: a batch, or the shapes and dtypes of one.

  Raises:
    UserError: the task's config cannot be built.
  """
  built = task.Instantiate()
  model = built.model.Instantiate()
  train = built.train.Instantiate()
  learner = train.learner.Instantiate()
  try:
    boxed = jax.eval_shape(
      lambda key, b: model.init({base_layer.PARAMS: key}, b),
      jax.random.key(0),
      batch,
    )
  except config_lib.RequiredError as e:
    raise e.within('task.model') from None
  probes = boxed.get(base_layer.ROW_PROBES, {})
  boxed = _lasting(boxed)
  boxes = learners.by_path(
    boxed[base_layer.PARAMS], is_leaf=base_layer.is_boxed
  )
  return TaskProgram(
    model=model,
    learner=learner,
    mesh=mesh,
    abstract_state=_abstract_state(learner, mesh, boxed),
    weight_metas={path: box.meta for path, box in boxes.items()},
    probes=probes,
    random_seed=train.random_seed,
  )


def _abstract_state(learner, mesh: Mesh, boxed) -> TrainState:
  """Returns the state's shapes, with the shardings that the weights ask for."""
  whole = partitioning.replicated(mesh)

  def placed(x):
    if base_layer.is_boxed(x):
      sharding = partitioning.weight_sharding(mesh, x.meta)
      x = x.value
    else:
      sharding = whole
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  mdl_vars = jax.tree.map(placed, boxed, is_leaf=base_layer.is_boxed)
  params = mdl_vars[base_layer.PARAMS]
  opt_state = jax.eval_shape(learner.init, params)
  return TrainState(
    step=jax.ShapeDtypeStruct([], jnp.int32, sharding=whole),
    mdl_vars=mdl_vars,
    opt_state=optax.tree_utils.tree_map_params(
      learner.init,
      lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p.sharding),
      opt_state,
      params,
      transform_non_params=lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=whole
      ),
    ),
  )


def _lasting(variables) -> dict:
  """Returns the collections that outlast a step."""
  kept = (base_layer.PARAMS, base_layer.NON_TRAINABLE)
  return {name: variables[name] for name in kept if name in variables}


def _first_state(model, learner, key, batch) -> TrainState:
  mdl_vars = base_layer.unbox(
    _lasting(model.init({base_layer.PARAMS: key}, batch))
  )
  return TrainState(
    step=jnp.zeros([], jnp.int32),
    mdl_vars=mdl_vars,
    opt_state=learner.init(mdl_vars[base_layer.PARAMS]),
  )


def _is_facts(x) -> bool:
  return isinstance(x, learners.RowFacts)
