"""A tiny language model and its batches, for the tests of the trainer."""

import numpy as np
from jax.sharding import Mesh

from pax_compat import config as config_lib
from pax_compat import optimizers, tasks_lib
from pax_compat.layers import models
from pax_compat.layers.transformer_models import transformer_lm
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program

VOCAB, LENGTH = 16, 8
MESH, MESH_AXES = (2, 2, 2), ('replica', 'data', 'mdl')


def batch(seed: int = 0, size: int = 8) -> NestedMap:
  """Returns rows that count up from a random number, [size, LENGTH]."""
  start = np.random.default_rng(seed).integers(0, VOCAB, (size, 1))
  ids = ((start + np.arange(LENGTH + 1)) % VOCAB).astype(np.int32)
  weights = np.ones([size, LENGTH], np.float32)
  return NestedMap(
    ids=ids[:, :-1], labels=ids[:, 1:], paddings=1 - weights, weights=weights
  )


def task(*, split=False, layers=1, **train) -> config_lib.Config:
  """Returns the task.

  Args:
    split: whether weights and activations are split over a 2x2x2 mesh of
      replicas, data and model, as usual.
    layers: of the stack.
    **train: fields of `tasks_lib.Train`.
  """
  model = models.LanguageModel.config()
  model.lm_tpl.set(vocab_size=VOCAB, model_dims=8)
  model.lm_tpl.stacked_transformer_tpl.set(
    num_layers=layers, hidden_dims=16, num_heads=2
  )
  if split:
    mesh = dict(ici_mesh_shape=MESH, mesh_axis_names=MESH_AXES)
    model.set(**mesh)
    replica, data, mdl = MESH_AXES
    transformer_lm.TransformerLm.set_sharding_params_v1(
      model.lm_tpl,
      replica_axis=replica,
      data_axis=data,
      mdl_axis=mdl,
      training_optimized=True,
      **mesh,
    )
  made = tasks_lib.SingleTask.config(model=model)
  made.train.set(**train)
  made.train.learner.optimizer = optimizers.Adam.config(learning_rate=0.01)
  return made


def make_program(
  config: config_lib.Config | None = None, mesh: Mesh | None = None
) -> program.TaskProgram:
  """Returns a program of `task()`, on all devices by default."""
  mesh = partitioning.create_mesh(None, None) if mesh is None else mesh
  return program.create((config or task()).Instantiate(), mesh, batch())


def train(made: program.TaskProgram, steps: int):
  """Trains on batches 0, 1, ...

  Returns:
    The last state, and each step's metrics as numbers.
  """
  state = made.init_state(batch())
  history = []
  for step in range(steps):
    state, outputs = made.train_step(state, made.put(batch(step)))
    names = outputs.scalar_names()
    history.append({name: float(outputs[name]) for name in names})
  return state, history
