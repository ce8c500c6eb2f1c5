"""Pipelines: stages that run in parallel, each on another microbatch.

The stages' weights are stacked along a new first dimension, which may be
sharded over a mesh axis, so that each device has only its own stages. A loop
moves microbatches from stage to stage; `pipeline_schedule` draws it. Bubbles
change neither outputs nor gradients nor variables.

Shapes: B batch, M microbatches, S stages, R circular repeats.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import logging
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import PartitionSpec

from pax_compat import base_layer, errors
from pax_compat.base_layer import (
  AUX_LOSS,
  DECODE_CACHE,
  NON_TRAINABLE,
  PARAMS,
  SUMMARIES,
)
from pax_compat.config import REQUIRED, Config
from pax_compat.layer_core import child_layers, flop_scopes, sharding
from pax_compat.layer_core.decode_states import StateFn
from pax_compat.layer_core.gradients import overwritten
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layer_core.summaries import stored, typed
from pax_compat.layers import checkpoint_policy as policies
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.input_checks import check_same_form
from pax_compat.layers.pipelines import microbatches, pipeline_records
from pax_compat.layers.pipelines.microbatch_moves import Replicated, Streamed
from pax_compat.layers.pipelines.pipeline_schedule import Schedule
from pax_compat.layers.template_fields import refuse_mappings


class LayerwiseShardablePipelined(base_layer.BaseLayer):
  """A layer applied S times, by stages that run in parallel.

  The result is that of applying the stages in sequence to each microbatch. Each
  stage and microbatch draws its own random numbers. Auxiliary losses and scalar
  summaries are averaged over microbatches; a stage's statistics are updated by
  one microbatch after the other. Decoding applies the stages in sequence,
  without microbatches. Other collections that a stage sows into are dropped.

  Two stages on three microbatches, each of two examples:

  >>> from pax_compat.layers import linears
  >>> tpl = LayerwiseShardablePipelined.config(
  ...   num_stages=2,
  ...   num_microbatches=3,
  ...   single_stage_body=linears.Linear.config(input_dims=4, output_dims=4),
  ... )
  >>> layer = tpl.Instantiate()
  >>> x = jnp.ones([6, 4])
  >>> variables = layer.init(jax.random.key(0), x)
  >>> base_layer.unbox(variables)['params']['body']['w'].shape
  (2, 4, 4)
  >>> layer.apply(variables, x).shape
  (6, 4)

  A config inside `single_stage_body` must not be used outside of it too, since
  its layer has one set of weights per stage.

  Attributes:
    num_stages: S.
    single_stage_body: the layer of a stage. Its output has the structure,
      shapes and dtypes of its first input.
    num_microbatches: M, a divisor of B. If both this and `microbatch_size` are
      None, inputs and outputs are microbatches already: [M, B / M, ...].
    microbatch_size: examples per microbatch, instead of M.
    stream_io: whether inputs and outputs are spread over the devices of all
      stages, and move one stage further in each iteration, instead of being on
      all of these devices. Saves memory, and traffic where the links between
      stages are slow. M must be a multiple of S. Not for circular pipelines.
    checkpoint_policy: which values of a stage are saved for the backward pass;
      an `AutodiffCheckpointType` or its name. A stage's inputs are always
      saved.
    unpack_summaries: whether each layer has separate summaries, with its index
      appended to their names; else one summary has the values of all layers
      along a new first dimension.
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """Sharding of the stacked weights.

    Attributes:
      stages: one entry: the mesh axis (or axes) over which the dimension of the
        stages is sharded, or None. The layer shards the other dimensions.
    """

    stages: SplitDimsMapping = None

  num_stages: int = 1
  single_stage_body: Config = REQUIRED
  num_microbatches: int | None = None
  microbatch_size: int | None = None
  stream_io: bool = False
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING
  unpack_summaries: bool = True

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    self._check_counts()
    split = self.weight_split_dims_mapping.stages
    if split is not None and len(split) != 1:
      raise errors.UserError(
        f'{type(self).__name__}.weight_split_dims_mapping.stages is'
        f' {list(split)}; expected one entry, for the dimension of the stages'
      )
    self._policy = policies.custom_policy(
      self.checkpoint_policy,
      where=f'{type(self).__name__}.checkpoint_policy',
    )
    child_layers.keep_apart(self, 'body', self.single_stage_body)
    self.create_child('body', self.single_stage_body)

  def _check_counts(self):
    errors.check_least(self, 1, 'num_stages')

  @property
  def _repeats(self) -> int | None:
    """R, if weights have a dimension of repeats before that of stages."""
    return None

  @property
  def _layers(self) -> tuple[int, ...]:
    """The numbers of layers that decode: by repeat, if any, and stage."""
    return (self.num_stages,)

  def __call__(self, inputs: Any, *args, **kwargs) -> Any:
    """Applies the stages.

    Args:
      inputs: arrays [B, ...], the first argument of the first stage.
      *args: further arguments of each stage; see `PerMicrobatch`.
      **kwargs: likewise.

    Returns:
      The outputs of the last stage, arrays [B, ...].

    Raises:
      UserError: the batch cannot be split, or a stage's outputs have another
        structure, shape or dtype than its inputs.
    """
    where = type(self).__name__
    batch = len(jax.tree.leaves(inputs)[0])
    number, splits = batch, None
    if (self.num_microbatches, self.microbatch_size) != (None, None):
      number = splits = microbatches.number(
        where, batch, self.num_microbatches, self.microbatch_size
      )
    chunks = self.num_stages if self._streams(number) else 1
    given = microbatches.PerMicrobatch(
      where, (args, kwargs), batch, splits, chunks
    )
    buffer = microbatches.split(inputs, splits, chunks) if splits else inputs
    if self.is_initializing():
      self._initialize(buffer, given)
      return inputs
    outputs = self._pipeline(buffer, given, self._schedule(number))
    return microbatches.join(outputs, chunks) if splits else outputs

  def _streams(self, number: int) -> bool:
    """Whether inputs and outputs are streamed through the stages."""
    if not self.stream_io:
      return False
    if number % self.num_stages:
      raise errors.UserError(
        f'{type(self).__name__}.stream_io is True and num_stages is'
        f' {self.num_stages}, but there are {number} microbatches; expected a'
        ' multiple of num_stages'
      )
    return True

  def _schedule(self, number: int) -> Schedule:
    repeats = math.prod(self._layers) // self.num_stages
    return Schedule(self.num_stages, number, repeats)

  def _initialize(self, buffer: Any, given: microbatches.PerMicrobatch):
    """Creates the variables of all stages."""

    def body(layer, _):
      args, kwargs = given.get(0)
      layer(jax.tree.map(lambda x: x[0], buffer), *args, **kwargs)

    self._for_each_layer(body)(self.body, None)

  def _for_each_layer(self, body: Callable) -> Callable:
    """Returns `body` vectorized over stages (and repeats)."""
    split = self.weight_split_dims_mapping.stages
    axes = [(self.num_stages, None if split is None else split[0])]
    if self._repeats:
      axes.append((self._repeats, None))
    for size, mesh_axis in axes:
      body = nn.vmap(
        body,
        in_axes=None,
        axis_size=size,
        variable_axes={PARAMS: 0, NON_TRAINABLE: 0},
        split_rngs={True: True},
        metadata_params={'x_times': size, 'mesh_axis': mesh_axis},
      )
    return body

  def _pipeline(
    self, buffer: Any, given: microbatches.PerMicrobatch, schedule: Schedule
  ) -> Any:
    """Runs the loop on microbatches [M, B / M, ...]; returns the outputs."""
    layer, variables = self._unbound(PARAMS, NON_TRAINABLE)
    mutable = [
      name
      for name in (NON_TRAINABLE, AUX_LOSS, SUMMARIES)
      if self.is_mutable_collection(name)
    ]
    state = variables.pop(NON_TRAINABLE, {})
    weights = _by_path(variables.get(PARAMS, {}))
    replaced = {
      path: overwritten.copies(weights[path], schedule.iterations)
      for path in self._replaced_paths(buffer, given)
    }
    # The other iterations of a stage are bubbles.
    run_stages = flop_scopes.useful_part(
      self._run_stages(layer, variables, mutable, given),
      schedule.microbatch_steps,
      schedule.iterations,
    )
    key = self._key()

    streams = self._streams(schedule.microbatches)
    moves = (Streamed if streams else Replicated)(schedule, self._by_stage)

    def iteration(carry, of_iteration):
      t, replaced = of_iteration
      buffer, outputs, state = carry
      inputs = moves.inputs(buffer, outputs, t)
      outputs, state, records = run_stages(
        inputs,
        state,
        schedule.at(t, jnp.arange(self.num_stages)),
        None if key is None else jax.random.fold_in(key, t),
        replaced,
      )
      return (moves.store(buffer, outputs, t), outputs, state), records

    # Bubbles at the start run a microbatch, since they need some finite input.
    initial_outputs = jax.tree.map(
      lambda x: jnp.broadcast_to(x[:1], [self.num_stages, *x.shape[1:]]), buffer
    )
    (buffer, _, state), records = jax.lax.scan(
      iteration,
      (moves.loaded(buffer), initial_outputs, state),
      (jnp.arange(schedule.iterations), replaced),
    )
    outputs = moves.unloaded(buffer)
    self._store(mutable, state, records, schedule)
    return outputs

  def _replaced_paths(
    self, buffer: Any, given: microbatches.PerMicrobatch
  ) -> set[str]:
    """Returns the paths of weights that a step replaces by their gradients."""
    known = overwritten.PATHS.get()
    if known is not None:
      prefix = '/'.join((*self.scope.path, 'body', ''))
      return {p.removeprefix(prefix) for p in known if p.startswith(prefix)}
    if self.do_eval:
      return set()
    args, kwargs = given.get(0)
    layer, _ = self._unbound()
    metas = layer.abstract_init_with_metadata(
      jax.tree.map(lambda x: x[0], buffer), *args, **kwargs
    )
    return {
      path
      for path, weight in _by_path(metas.get(PARAMS, {})).items()
      if base_layer.var_overwrite_with_gradient(weight)
    }

  def _unbound(self, *collections: str) -> tuple[nn.Module, dict[str, Any]]:
    """Returns an unbound stage, and the variables of all stages."""
    layer, variables = self.body.unbind()
    # A stage may read its name, which `unbind` removes.
    return layer.clone(name='body'), {
      k: variables[k] for k in collections if k in variables
    }

  def _key(self) -> jax.Array | None:
    """Returns the key of all random numbers, None without a random stream."""
    name = base_layer.RANDOM
    return self.make_rng(name) if self.has_rng(name) else None

  def _run_stages(
    self,
    layer: nn.Module,
    variables: Mapping[str, Any],
    mutable: list[str],
    given: microbatches.PerMicrobatch,
  ) -> Callable:
    """Returns the function that runs all stages in an iteration.

    Args:
      layer: a stage, unbound.
      variables: of all stages, except the mutable collections.
      mutable: the collections that a stage may change.
      given: its further arguments.

    Returns:
      (inputs, statistics, step, key, replaced) -> (outputs, statistics,
      records), arrays [S, ...]; step is what `Schedule.at` returns, replaced
      are weights of this iteration, by path.
    """

    def stage(variables, state, inputs, step, key):
      microbatch, repeat, is_valid = step
      # Bubbles have no gradient.
      own = jax.tree.map(
        lambda x: jnp.where(is_valid, x, jax.lax.stop_gradient(x)),
        self._of_repeat(variables, repeat),
      )
      before = self._of_repeat(state, repeat)
      args, kwargs = given.get(microbatch)
      outputs, changed = layer.apply(
        {**own, NON_TRAINABLE: before},
        inputs,
        *args,
        **kwargs,
        rngs={} if key is None else {base_layer.RANDOM: key},
        mutable=mutable,
      )
      _check_like(type(self).__name__, inputs, outputs)
      after = changed.pop(NON_TRAINABLE, before)
      after = jax.tree.map(
        lambda new, old: jnp.where(is_valid, new, old), after, before
      )
      return outputs, self._with_repeat(state, after, repeat), changed

    axis = 0 if self._repeats is None else 1
    stages = jax.vmap(
      stage,
      in_axes=(axis, axis, 0, 0, 0),
      out_axes=(0, axis, 0),
      spmd_axis_name=self._mesh_axis(),
    )

    def run(inputs, state, step, key, replaced):
      keys = None if key is None else jax.random.split(key, self.num_stages)
      own = variables
      if replaced:
        params = _by_path(variables[PARAMS]) | replaced
        own = {**variables, PARAMS: unflatten_dict(params, sep='/')}
      return stages(own, state, inputs, step, keys)

    return jax.checkpoint(run, prevent_cse=False, policy=self._policy)

  def _of_repeat(self, tree: Any, repeat: jax.Array) -> Any:
    """Returns a stage's variables of one repeat."""
    return tree if self._repeats is None else microbatches.get(tree, repeat)

  def _with_repeat(self, tree: Any, new: Any, repeat: jax.Array) -> Any:
    """Returns a stage's variables with those of one repeat replaced."""
    if self._repeats is None:
      return new
    return jax.tree.map(
      lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, repeat, 0),
      tree,
      new,
    )

  def _by_stage(self, x: jax.Array) -> jax.Array:
    """Constrains an array [S, ...] to the sharding of the stages."""
    axis = self._mesh_axis()
    if axis is None:
      return x
    rest = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axis, *rest))

  def _mesh_axis(self) -> str | tuple[str, ...] | None:
    """Returns the mesh axis over which stages are sharded, if any."""
    split = self.weight_split_dims_mapping.stages
    mesh = jax.sharding.get_abstract_mesh()
    if split is None or mesh.empty:
      return None
    (axis,) = sharding.partition_spec(
      split,
      [self.num_stages],
      mesh.axis_names,
      where=f'{type(self).__name__}.weight_split_dims_mapping.stages',
    )
    return axis

  def _store(
    self, mutable: list[str], state: Any, records: Any, schedule: Schedule
  ):
    """Stores the stages' statistics, auxiliary losses and summaries."""
    if NON_TRAINABLE in mutable and state:
      self.put_variable(NON_TRAINABLE, 'body', state)
    if records.get(AUX_LOSS):
      losses = pipeline_records.mean_losses(records[AUX_LOSS], schedule)
      if self.has_variable(AUX_LOSS, 'body'):
        before = self.get_variable(AUX_LOSS, 'body')
        losses = jax.tree.map(jnp.add, before, losses)
      self.put_variable(AUX_LOSS, 'body', losses)
    if records.get(SUMMARIES):
      summaries = pipeline_records.summaries_of_layers(
        typed(records[SUMMARIES]),
        schedule,
        unpack=self.unpack_summaries,
        shared=self._repeats is None,
      )
      self.put_variable(SUMMARIES, 'body', stored(summaries))

  def init_states(self, *args, **kwargs):
    """Calls `init_states` of all stages."""
    self._call_each('init_states', *args, **kwargs)

  def transform_decode_state(self, transform_fn: StateFn):
    """Changes the decode states of all stages; see `ForwardsDecodeStates`."""
    self._call_each('transform_decode_state', transform_fn)

  def _call_each(self, method: str, *args, **kwargs):
    """Calls a method without results of all stages."""

    def stage(layer, carry, variables):
      _, changed = layer.apply(
        variables, *args, **kwargs, method=method, mutable=[DECODE_CACHE]
      )
      return carry, changed[DECODE_CACHE]

    self._in_sequence(stage, None)

  def extend_step(self, inputs: Any, *args, **kwargs) -> Any:
    """Applies the stages' `extend_step` in sequence."""

    def stage(layer, carry, variables):
      outputs, changed = layer.apply(
        variables,
        carry,
        *args,
        **kwargs,
        method='extend_step',
        mutable=[DECODE_CACHE],
      )
      _check_like(type(self).__name__, carry, outputs)
      return outputs, changed[DECODE_CACHE]

    return self._in_sequence(stage, inputs)

  def _in_sequence(self, stage: Callable, carry: Any) -> Any:
    """Runs the stages in sequence, and stores their decode states.

    Args:
      stage: (layer, carry, variables of a stage) -> (carry, decode state).
      carry: the argument of the first stage.

    Returns:
      The carry of the last stage.
    """
    layer, variables = self._unbound(PARAMS, NON_TRAINABLE, DECODE_CACHE)
    states = variables.pop(DECODE_CACHE, {})
    variables = _flat(variables, 1 if self._repeats is None else 2)

    def body(carry, step):
      i, own = step
      variables_i = jax.tree.map(lambda x: x[i % len(x)], variables)
      return stage(layer, carry, {**variables_i, DECODE_CACHE: own})

    carry, states = jax.lax.scan(
      body,
      carry,
      (jnp.arange(math.prod(self._layers)), _flat(states, len(self._layers))),
    )
    states = jax.tree.map(
      lambda x: x.reshape(*self._layers, *x.shape[1:]), states
    )
    self.put_variable(DECODE_CACHE, 'body', states)
    return carry


class CircularLayerwiseShardablePipelined(LayerwiseShardablePipelined):
  """A pipeline through which each microbatch passes several times.

  Each stage has R layers. A microbatch passes the first layer of every stage,
  then the second one of every stage, and so on. There are fewer bubbles than in
  a pipeline with R consecutive layers per stage. Weights are stacked along two
  new dimensions, [R, S, ...].

  Attributes:
    circular_repeat: R. If it is 2 or more, M must be at least S.
    share_weights: whether the layers of a stage share their weights and
      statistics, which then are [S, ...]. A microbatch after the other updates
      the statistics, in each repeat.
  """

  circular_repeat: int = 1
  share_weights: bool = False

  def _streams(self, number: int) -> bool:
    if self.stream_io and self.circular_repeat > 1:
      logging.log_first_n(
        logging.INFO,
        'stream_io has no effect on circular pipelines: microbatches wait'
        ' between their repeats on the devices of all stages',
        1,
      )
      return False
    return super()._streams(number)

  @property
  def _repeats(self) -> int | None:
    return None if self.share_weights else self.circular_repeat

  @property
  def _layers(self) -> tuple[int, ...]:
    return (self.circular_repeat, self.num_stages)

  def _check_counts(self):
    super()._check_counts()
    errors.check_least(self, 1, 'circular_repeat')

  def _schedule(self, number: int) -> Schedule:
    if self.circular_repeat > 1 and number < self.num_stages:
      raise errors.UserError(
        f'{type(self).__name__} has {number} microbatches, but num_stages is'
        f' {self.num_stages}; expected at least as many, since circular_repeat'
        ' sends each microbatch from the last stage back to the first'
      )
    return super()._schedule(number)


def _flat(tree: Any, dims: int) -> Any:
  """Returns arrays with the first dimensions as one."""
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[dims:]), tree)


def _by_path(tree: Any) -> dict[str, Any]:
  return flatten_dict(tree, sep='/')


def _check_like(where: str, inputs: Any, outputs: Any):
  why = 'which the next stage takes as its input'
  check_same_form(f'{where}: a stage', inputs, outputs, why)
