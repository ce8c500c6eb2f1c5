"""Traces a task's steps of training and of an evaluation.

Tracing finds ops that XLA cannot compile, and shapes that do not fit, without
weights and without compiling: even a large model needs no memory.
"""

from typing import Any

import jax
import numpy as np

from adaptors.lingvo_input import input_adaptor
from adaptors.lingvo_parity import synthetic
from adaptors.migrate.examine.routes import Route, describe_error
from adaptors.migrate.findings import Outcome
from pax_compat import errors
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program


def trace(route: Route) -> Outcome:
  """Returns whether a step of training and of an evaluation can be traced.

  Args:
    route: of the task. It is traced for a single device.
  """
  try:
    batch, is_synthetic = _batch(route.params)
  except Exception as error:  # Missing files, for example.
    return Outcome(None, f'not traced without a batch: {describe_error(error)}')
  try:
    config = route.translated.config
    mesh = partitioning.mesh_of_one(config.model.mesh_axis_names)
    made = program.create(config.Instantiate(), mesh, batch)
    made.train_step.eval_shape(made.abstract_state, batch)
    weights = made.eval_vars(made.abstract_state, use_ema=False)
    made.eval_step.eval_shape(weights, batch)
  except Exception as error:  # User code runs here.
    return Outcome(False, describe_error(error))
  kind = 'a synthetic batch' if is_synthetic else 'a batch of its input'
  return Outcome(
    True, f'traced a step of training and of an evaluation on {kind}'
  )


def _batch(params: Any) -> tuple[NestedMap, bool]:
  """Returns a batch, and whether it is synthetic."""
  try:
    [made] = synthetic.batches(params)
    return made, True
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
