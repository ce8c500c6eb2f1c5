"""Small language models that train on eight devices as on one, for 20 steps.

The vocabulary has 13 tokens, so no mesh axis divides it. Batches have 12 rows:
if they are split in eight, there are four padding rows.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from lm_tasks import model_params
from lm_tasks.params import lm_cloud
from pax_compat import layers, learners, schedules
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program

VOCAB, LENGTH, ROWS, STEPS = 13, 8, 12, 20


class Dense(model_params.TransformerLmSpmdAdafactor):
  NUM_LAYERS = 1
  VOCAB_SIZE = VOCAB
  MODEL_DIMS = 16
  HIDDEN_DIMS = 32
  NUM_HEADS = 4
  DIMS_PER_HEAD = 4
  FPROP_DTYPE = jnp.float32
  LEARNING_RATE = 2e-3
  ACTIVATION_CLS = layers.GELU  # At the kink of a ReLU, rounding would matter.
  USE_REPEATED_LAYER = False
  PACKED_INPUT = False

  def datasets(self):
    return []

  def task(self):
    task = super().task()
    task.train.learner.optimizer.lr_schedule = schedules.Constant.config()
    task.train.variable_norm_summary = False
    return task


class Experts(Dense):
  USE_EXPERT_PARALLEL = True
  DCN_MESH_SHAPE = [1, 1, 1, 1]

  def _stack(self):
    stack = super()._stack()
    stack.set(num_experts=4, num_groups=2, moe_layers=[0])
    return stack


class Pipeline(model_params.TransformerLmSpmdPipelineAdafactor, Dense):
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_EVERYTHING
  PACKED_INPUT = False
  NUM_LAYERS = 2
  NUM_STAGES = 2
  NUM_MICROBATCHES = 2


class Replicated(lm_cloud.LmCloudTransformerAdamTest):
  """An experiment that Pax trains by pmap: it has no mesh."""

  VOCAB_SIZE = VOCAB
  MODEL_DIMS = 16
  HIDDEN_DIMS = 32
  NUM_HEADS = 4
  LEARNING_RATE = 2e-3
  ACTIVATION_CLS = layers.GELU
  PACKED_INPUT = False

  def task(self):
    task = super().task()
    task.train.learner.optimizer.lr_schedule = schedules.Constant.config()
    task.train.variable_norm_summary = False
    return task


def _batch(step: int) -> NestedMap:
  random = np.random.default_rng(step)
  start = random.integers(0, VOCAB, [ROWS, 1])
  ids = ((start + np.arange(LENGTH + 1)) % VOCAB).astype(np.int32)
  weights = (random.random([ROWS, LENGTH]) < 0.8).astype(np.float32)
  return NestedMap(
    ids=ids[:, :-1], labels=ids[:, 1:], paddings=1 - weights, weights=weights
  )


def program_of(cls, shape, slices=None, devices=None) -> program.TaskProgram:
  attributes = {} if shape is None else dict(ICI_MESH_SHAPE=shape)
  if slices is not None:
    attributes['DCN_MESH_SHAPE'] = slices
  task = type(cls.__name__, (cls,), attributes)().task().Instantiate()
  if devices == 1:
    mesh = partitioning.create_mesh(
      None if shape is None else [1] * len(shape),
      task.model.mesh_axis_names,
      devices=jax.devices()[:1],
    )
  else:
    mesh = partitioning.mesh_of(task.model)
  return program.create(task, mesh, _batch(0))


def _train(made: program.TaskProgram):
  """Returns the losses of all steps, and the last state by path."""
  state = _initial_state(made)
  losses = []
  for step in range(STEPS):
    batch = made.put(_batch(step))
    state, outputs = made.train_step(state, batch, np.bool_(False))
    losses.append(float(outputs['loss']))
  return losses, learners.by_path(jax.device_get(state))


def _initial_state(made: program.TaskProgram):
  """Returns random weights; they are not compiled."""
  random = np.random.default_rng(0)

  def weight(x):
    value = random.normal(0, 0.1, x.shape).astype(x.dtype)
    return jax.device_put(value, x.sharding)

  def zeros(x):
    return jax.device_put(np.zeros(x.shape, x.dtype), x.sharding)

  abstract = made.abstract_state
  return jax.tree.map(zeros, abstract).replace(
    mdl_vars=jax.tree.map(weight, abstract.mdl_vars)
  )


@functools.cache
def one_device(cls):
  """Returns the losses and the last state on one device."""
  if issubclass(cls, Replicated):
    return _train(program_of(cls, None, devices=1))
  stages = cls.NUM_STAGES if issubclass(cls, Pipeline) else 1
  axes = len(cls.DCN_MESH_SHAPE)
  return _train(program_of(cls, [stages, *[1] * (axes - 1)], devices=1))


def assert_follows_one_device(cls, shape, slices=None):
  """Trains on eight devices, and compares losses and the last state.

  Args:
    cls: of the experiment.
    shape: of its mesh within a slice; None for an experiment without a mesh.
    slices: of its mesh of slices, or None.
  """
  assert jax.device_count() == 8
  if shape is not None:
    assert math.prod(shape) * math.prod(slices or [1]) == 8
  want, last = one_device(cls)
  losses, state = _train(program_of(cls, shape, slices))
  assert want[-1] < want[0] - 0.03
  np.testing.assert_allclose(losses, want, rtol=1e-5)
  assert state.keys() == last.keys()
  for path, x in state.items():
    atol = 1e-3 * max(np.abs(last[path]).max(), 1e-3)
    if x.dtype == np.int8:
      # A quantized slot: where a value is half way between two integers,
      # rounding decides.
      atol = 1
    np.testing.assert_allclose(
      x.astype(np.float32), last[path], atol=atol, rtol=0, err_msg=path
    )
