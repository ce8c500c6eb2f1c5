"""Stages that work at the same time, each on another part of the batch.

The stages' weights are stacked along a new first dimension, which may be split
over an axis of the mesh, so that each device has its stages only. A loop moves
micro-batches from stage to stage; see `pipeline_schedule`. Of bubbles no trace
is left.

Shapes: B batch, M micro-batches, S stages, R ways through the stages.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
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
from pax_compat.layer_core import child_layers, sharding
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers import checkpoint_policy as policies
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.input_checks import check_same_form
from pax_compat.layers.pipelines import microbatches, pipeline_records
from pax_compat.layers.pipelines.pipeline_schedule import Schedule
from pax_compat.layers.template_fields import refuse_mappings


class LayerwiseShardablePipelined(base_layer.BaseLayer):
  """A layer applied again and again, by stages that work at the same time.

  It computes what applying the stages one after the other to each micro-batch
  does. Dropout and the like draw anew for each stage and micro-batch. Auxiliary
  losses, and summaries of scalars, are means over the micro-batches. Statistics
  that a stage keeps are updated by one micro-batch after the other. Decoding
  goes through the stages in turn, without micro-batches. What a stage sows
  elsewhere is lost.

  No config inside `single_stage_body` may be used outside of it as well: its
  layer has one set of weights for each stage.

  Attributes:
    num_stages: S.
    single_stage_body: the layer of a stage. Its output looks like its first
      input.
    num_microbatches: M; B is a multiple of it. None, with no `microbatch_size`
      either, for inputs that are cut already: [M, B / M, ...], as is the
      output.
    microbatch_size: how many examples a micro-batch has, instead of M.
    checkpoint_policy: which values of each stage's work are kept for the
      backward pass; an `AutodiffCheckpointType` or its name. What a stage gets
      is always kept.
    unpack_summaries: whether each stage has summaries of its own, with its
      number at the end of their names (that of its turn, if there are several
      ways); else one summary has the values of all along a new first dimension.
  """

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    """How the stacked weights are split over the mesh.

    Attributes:
      stages: one entry: the mesh axis (or axes) that the dimension of the
        stages is split over, or None; the others are split as the layer says.
    """

    stages: SplitDimsMapping = None

  num_stages: int = 1
  single_stage_body: Config = REQUIRED
  num_microbatches: int | None = None
  microbatch_size: int | None = None
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
    if self.num_stages < 1:
      raise errors.UserError(
        f'{type(self).__name__}.num_stages is {self.num_stages}; expected 1 or'
        ' more'
      )

  @property
  def _ways(self) -> int | None:
    """R, where weights have a dimension for it, before that of the stages."""
    return None

  def __call__(self, inputs: Any, *args, **kwargs) -> Any:
    """Applies the stages.

    Args:
      inputs: arrays [B, ...], what the first stage gets as its first argument.
      *args: further arguments of each stage. Arrays [B, ...] are cut into
        micro-batches as the inputs are; arrays [1, ...] and [], and what is no
        array, are the same for all.
      **kwargs: likewise.

    Returns:
      The output of the last stage, which looks like the inputs.

    Raises:
      UserError: the batch cannot be cut, or a stage's output does not look like
        its input.
    """
    where = type(self).__name__
    batch = len(jax.tree.leaves(inputs)[0])
    number, cut = batch, None
    if (self.num_microbatches, self.microbatch_size) != (None, None):
      number = cut = microbatches.number(
        where, batch, self.num_microbatches, self.microbatch_size
      )
    given = microbatches.PerMicrobatch(where, (args, kwargs), batch, cut)
    parts = microbatches.split(inputs, cut) if cut else inputs
    if self.is_initializing():
      self._initialize(parts, given)
      return inputs
    outputs = self._pipeline(parts, given, self._schedule(number))
    return microbatches.join(outputs) if cut else outputs

  def _schedule(self, number: int) -> Schedule:
    return Schedule(self.num_stages, number, self._ways or 1)

  def _initialize(self, parts: Any, given: microbatches.PerMicrobatch):
    """Creates the variables of all stages."""

    def body(layer, _):
      args, kwargs = given.get(0)
      layer(jax.tree.map(lambda x: x[0], parts), *args, **kwargs)

    self._for_each_layer(body)(self.body, None)

  def _for_each_layer(self, body: Callable) -> Callable:
    """Returns `body` as a function that creates variables of all stages."""
    split = self.weight_split_dims_mapping.stages
    axes = [(self.num_stages, None if split is None else split[0])]
    if self._ways:
      axes.append((self._ways, None))
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
    self, parts: Any, given: microbatches.PerMicrobatch, schedule: Schedule
  ) -> Any:
    """Runs the loop; returns the outputs [M, B / M, ...]."""
    layer, variables = self._unbound(PARAMS, NON_TRAINABLE)
    mutable = [
      name
      for name in (NON_TRAINABLE, AUX_LOSS, SUMMARIES)
      if self.is_mutable_collection(name)
    ]
    state = variables.pop(NON_TRAINABLE, {})
    work = self._work(layer, variables, mutable, given)
    key = self._key()

    def iteration(carry, t):
      buffer, outputs, state = carry
      first = _get(buffer, t % schedule.microbatches)
      inputs = jax.tree.map(self._shift, outputs, first)
      outputs, state, records = work(
        inputs,
        state,
        schedule.at(t, jnp.arange(self.num_stages)),
        None if key is None else jax.random.fold_in(key, t),
      )
      last = schedule.at(t, self.num_stages - 1)
      buffer = _put(buffer, jax.tree.map(lambda x: x[-1], outputs), last)
      return (buffer, outputs, state), records

    # A bubble at the beginning works on a micro-batch, as good as any input.
    at_first = jax.tree.map(
      lambda x: jnp.broadcast_to(x[:1], [self.num_stages, *x.shape[1:]]), parts
    )
    (outputs, _, state), records = jax.lax.scan(
      iteration, (parts, at_first, state), jnp.arange(schedule.iterations)
    )
    self._keep(mutable, state, records, schedule)
    return outputs

  def _unbound(self, *collections: str) -> tuple[nn.Module, dict[str, Any]]:
    """Returns a stage that has no variables, and those of all stages."""
    layer, variables = self.body.unbind()
    return layer, {k: variables[k] for k in collections if k in variables}

  def _key(self) -> jax.Array | None:
    """Returns the key of all random numbers, or None if there are none."""
    name = base_layer.RANDOM
    return self.make_rng(name) if self.has_rng(name) else None

  def _work(
    self,
    layer: nn.Module,
    variables: Mapping[str, Any],
    mutable: list[str],
    given: microbatches.PerMicrobatch,
  ) -> Callable:
    """Returns what all stages do in an iteration.

    Args:
      layer: a stage, unbound.
      variables: of all stages; what is not in `mutable` is among them.
      mutable: the collections that a stage may change.
      given: its further arguments.

    Returns:
      (inputs, statistics, turn, key) -> (outputs, statistics, records), arrays
      of all stages.
    """

    def stage(variables, state, inputs, turn, key):
      microbatch, way, is_item = turn
      # Whatever a bubble computes, no gradient comes from it.
      own = jax.tree.map(
        lambda x: jnp.where(is_item, x, jax.lax.stop_gradient(x)),
        self._of_way(variables, way),
      )
      before = self._of_way(state, way)
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
        lambda new, old: jnp.where(is_item, new, old), after, before
      )
      return outputs, self._with_way(state, after, way), changed

    axis = 0 if self._ways is None else 1
    stages = jax.vmap(
      stage,
      in_axes=(axis, axis, 0, 0, 0),
      out_axes=(0, axis, 0),
      spmd_axis_name=self._mesh_axis(),
    )

    def work(inputs, state, turn, key):
      keys = None if key is None else jax.random.split(key, self.num_stages)
      return stages(variables, state, inputs, turn, keys)

    return jax.checkpoint(work, prevent_cse=False, policy=self._policy)

  def _of_way(self, tree: Any, way: jax.Array) -> Any:
    """Returns a stage's variables on one of its ways."""
    return tree if self._ways is None else _get(tree, way)

  def _with_way(self, tree: Any, new: Any, way: jax.Array) -> Any:
    """Returns a stage's variables with new ones on one of its ways."""
    if self._ways is None:
      return new
    return jax.tree.map(
      lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, way, 0), tree, new
    )

  def _shift(self, outputs: jax.Array, first: jax.Array) -> jax.Array:
    """Returns what the stages get: what the one before has put out, or `first`.

    It is written as a rotation, which a compiler does with neighbours only.
    """
    rotated = jnp.concatenate([outputs[-1:], outputs[:-1]])
    is_first = jnp.arange(self.num_stages) == 0
    is_first = is_first.reshape([-1] + [1] * first.ndim)
    return self._by_stage(jnp.where(is_first, first, rotated))

  def _by_stage(self, x: jax.Array) -> jax.Array:
    """Returns an array [S, ...], split as the stages are."""
    axis = self._mesh_axis()
    if axis is None:
      return x
    rest = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axis, *rest))

  def _mesh_axis(self) -> str | tuple[str, ...] | None:
    """Returns the axis of the mesh in effect that stages are split over."""
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

  def _keep(
    self, mutable: list[str], state: Any, records: Any, schedule: Schedule
  ):
    """Keeps what the stages have told, and their statistics."""
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
        records[SUMMARIES], schedule, unpack=self.unpack_summaries
      )
      self.put_variable(SUMMARIES, 'body', summaries)

  def init_states(self, *args, **kwargs):
    """Calls the method of the same name of all stages."""

    def stage(layer, carry, variables):
      _, changed = layer.apply(
        variables, *args, **kwargs, method='init_states', mutable=[DECODE_CACHE]
      )
      return carry, changed[DECODE_CACHE]

    self._in_turn(stage, None)

  def extend_step(self, inputs: Any, *args, **kwargs) -> Any:
    """Applies the stages' method of the same name, one after the other."""

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

    return self._in_turn(stage, inputs)

  def _in_turn(self, stage: Callable, carry: Any) -> Any:
    """Goes through the stages in turn, and keeps their decode states.

    Args:
      stage: (layer, carry, variables of a stage) -> (carry, decode state).
      carry: what the first one gets.

    Returns:
      What the last one returns.
    """
    layer, variables = self._unbound(PARAMS, NON_TRAINABLE, DECODE_CACHE)
    depth = 1 if self._ways is None else 2
    variables = jax.tree.map(
      lambda x: x.reshape(-1, *x.shape[depth:]), variables
    )
    carry, states = jax.lax.scan(
      lambda carry, own: stage(layer, carry, own), carry, variables
    )
    lengths = [self.num_stages] if depth == 1 else [self._ways, self.num_stages]
    states = jax.tree.map(lambda x: x.reshape(*lengths, *x.shape[1:]), states)
    self.put_variable(DECODE_CACHE, 'body', states)
    return carry


class CircularLayerwiseShardablePipelined(LayerwiseShardablePipelined):
  """A pipeline that each micro-batch goes through several times.

  Each stage has a layer for each of the ways through: the first layers of all
  stages come before the second ones. So there are fewer bubbles than in a
  pipeline whose stages have as many layers each. Weights are stacked along two
  new dimensions, [R, S, ...].

  Attributes:
    circular_repeat: R. From 2 on, there are at least as many micro-batches as
      stages.
  """

  circular_repeat: int = 1

  @property
  def _ways(self) -> int:
    return self.circular_repeat

  def _check_counts(self):
    super()._check_counts()
    if self.circular_repeat < 1:
      raise errors.UserError(
        f'{type(self).__name__}.circular_repeat is {self.circular_repeat};'
        ' expected 1 or more'
      )

  def _schedule(self, number: int) -> Schedule:
    if self.circular_repeat > 1 and number < self.num_stages:
      raise errors.UserError(
        f'{type(self).__name__} has {number} micro-batches, but num_stages is'
        f' {self.num_stages}; expected as many or more, since a micro-batch'
        ' comes back to the first stage after the last one'
      )
    return super()._schedule(number)


def _get(tree: Any, index: jax.Array) -> Any:
  """Returns what arrays [N, ...] have at an index [] of the first dimension."""
  return jax.tree.map(
    lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), tree
  )


def _put(buffer: Any, outputs: Any, turn: tuple) -> Any:
  """Returns the buffer with what a stage has put out.

  Args:
    buffer: [M, ...], what each micro-batch was when last seen.
    outputs: [...].
    turn: what the stage has worked on; the buffer stays as it is after a
      bubble.
  """
  microbatch, _, is_item = turn

  def put(x, y):
    old = jax.lax.dynamic_index_in_dim(x, microbatch, keepdims=False)
    new = jnp.where(is_item, y, old)
    return jax.lax.dynamic_update_index_in_dim(x, new, microbatch, 0)

  return jax.tree.map(put, buffer, outputs)


def _check_like(where: str, inputs: Any, outputs: Any):
  why = 'which is what the next one gets'
  check_same_form(f'{where}: a stage', inputs, outputs, why)
