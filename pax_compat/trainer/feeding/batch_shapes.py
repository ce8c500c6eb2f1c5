"""The shapes of an experiment's training batches, if possible without data."""

from typing import Any

import fiddle as fdl
import jax
from absl import logging

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap

# The shapes were found without data.
BY_CONFIG = 'by its config'


def of(experiment: Any) -> tuple[NestedMap, str]:
  """Returns the specs of a batch of this process, and where they are from.

  In this order: the class of the training input computes them from its config
  (`BaseInput.specs_of_config`), the input knows them, or one batch is read.

  Args:
    experiment: the `experiments.resolved.ResolvedExperiment`.

  Raises:
    UserError: they are not known without data, which cannot be read.
  """
  if len(experiment.train_datasets) != 1:
    raise errors.UserError(
      f'{experiment.name} has {len(experiment.train_datasets)} training'
      ' datasets; expected exactly one'
    )
  config = experiment.train_datasets[0]
  cls = fdl.get_callable(config)
  specs = cls.specs_of_config(config)
  if specs is not None:
    return specs, BY_CONFIG
  try:
    return _of_input(config)
  except errors.UserError as e:
    raise errors.UserError(
      f'the shapes of batches are not known: {cls.__name__} needs its data for'
      f' them, which cannot be read: {e}'
    ) from e


def _of_input(config: Any) -> tuple[NestedMap, str]:
  logging.info('building the training input for the shapes of its batches')
  data: base_input.BaseInput = config.Instantiate()
  try:
    specs = data.batch_specs()
    if specs is not None:
      return specs, 'of its data'
    batch = data.peek_padded()
    if batch is None:
      raise errors.UserError(f'the dataset {data.name!r} has no batch')
    example = data.example_batch(batch)
    specs = data.specs_of(example)
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), specs
    ), 'of its first batch'
  finally:
    data.close()
