"""Tries whether a task's training step can be traced, to the end.

That finds what XLA cannot compile, and what shapes do not fit, without weights
and without compiling: a large model costs no memory.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from adaptors.lingvo_input import input_adaptor
from adaptors.lingvo_parity import batches, synthetic
from adaptors.migrate.examine.routes import Way, told
from adaptors.migrate.findings import Outcome
from pax_compat import errors
from pax_compat.config import Config
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import program


def trace(way: Way) -> Outcome:
  """Returns whether a training step can be traced, on a single device.

  Args:
    way: of the task.
  """
  try:
    batch, made_up = _batch(way.params)
  except Exception as error:  # Files that are not here, among other things.
    return Outcome(None, f'not tried, for want of a batch: {told(error)}')
  try:
    config = way.translated.config
    made = program.create(
      config.Instantiate(), _mesh_of_one(config.model), batch
    )
    made.train_step.eval_shape(made.abstract_state, batch)
  except Exception as error:  # Much of what runs here is the user's.
    return Outcome(False, told(error))
  kind = 'a made-up batch' if made_up else 'a batch of its input'
  return Outcome(True, f'a training step was traced, on {kind}')


def _mesh_of_one(model: Config) -> Mesh:
  """Returns a mesh of a single device, with the axes that a model names."""
  names = tuple(model.mesh_axis_names or ('data',))
  return jax.make_mesh(
    (1,) * len(names),
    names,
    devices=jax.devices()[:1],
    axis_types=(AxisType.Auto,) * len(names),
  )


def _batch(params: Any) -> tuple[NestedMap, bool]:
  """Returns a batch, and whether it is made up."""
  try:
    rows, length = synthetic.shape(params.input)
    made = synthetic.batch(params, rows, length)
    return batches.nested(made), True
  except errors.UserError:
    pass
  data = input_adaptor.LingvoInputAdaptor(
    name='Train',
    input=params.input,
    is_training=True,
    allow_fixed_file_random_seed=True,
  )
  try:
    batch = host_fields.for_devices(data.get_next(), data.is_host_field)
    return jax.tree.map(np.asarray, batch), False
  finally:
    data.close()
