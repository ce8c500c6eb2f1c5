"""A tiny language model and its batches, for the tests of the trainer."""

import jax
import numpy as np
from jax.sharding import Mesh

from pax_compat import config as config_lib
from pax_compat import optimizers, tasks_lib
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program

VOCAB, LENGTH = 16, 8


def batch(seed: int = 0, size: int = 8) -> NestedMap:
  """Returns rows that count up from a random number, [size, LENGTH]."""
  start = np.random.default_rng(seed).integers(0, VOCAB, (size, 1))
  ids = ((start + np.arange(LENGTH + 1)) % VOCAB).astype(np.int32)
  weights = np.ones([size, LENGTH], np.float32)
  return NestedMap(
    ids=ids[:, :-1], labels=ids[:, 1:], paddings=1 - weights, weights=weights
  )


def task(*, split=False, **train) -> config_lib.Config:
  """Returns the task.

  Args:
    split: whether weights are split over the mesh axes 'data' and 'mdl'.
    **train: fields of `tasks_lib.Train`.
  """
  model = models.LanguageModel.config()
  model.lm_tpl.set(vocab_size=VOCAB, model_dims=8)
  stack = model.lm_tpl.stacked_transformer_tpl.set(num_layers=1)
  layer = stack.transformer_layer_params_tpl
  layer.set(hidden_dims=16, num_heads=2, causal=True)
  if split:
    by = 'weight_split_dims_mapping'
    model.lm_tpl.embedding_tpl.set(**{by: ('mdl', 'data')})
    model.lm_tpl.softmax_tpl.set(**{by: (None, 'mdl')})
    layer.tr_fflayer_tpl.fflayer1_tpl.set(**{by: ('data', 'mdl')})
    layer.tr_atten_tpl.atten_tpl.proj_tpl.set(**{by: (None, 'mdl', None)})
  made = tasks_lib.SingleTask.config(model=model)
  made.train.set(**train)
  made.train.learner.optimizer = optimizers.Adam.config(learning_rate=0.01)
  return made


def make_program(
  config: config_lib.Config | None = None, mesh: Mesh | None = None
) -> program.TaskProgram:
  """Returns a program of `task()`, on all devices unless said."""
  mesh = partitioning.create_mesh(None, None) if mesh is None else mesh
  return program.create(config or task(), mesh, batch())


def put(made: program.TaskProgram, data: NestedMap) -> NestedMap:
  """Sends a batch to the devices of a program."""
  return partitioning.global_batch(data, partitioning.batch_sharding(made.mesh))


def train(made: program.TaskProgram, steps: int):
  """Trains on batches 0, 1, ...

  Returns:
    The last state, and each step's metrics as numbers.
  """
  state = made.init_state(batch())
  history = []
  for step in range(steps):
    state, metrics = made.train_step(state, put(made, batch(step)))
    history.append(jax.tree.map(float, metrics))
  return state, history
