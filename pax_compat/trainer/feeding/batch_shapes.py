"""The shapes of an experiment's training batches, if possible without data."""

import json
from collections.abc import Mapping
from typing import Any

import fiddle as fdl
import jax
from absl import logging

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap
from pax_compat.runs import files

# A file in the folder of a run with the shapes of a batch.
FILE = 'batch_shapes.json'
# The shapes were found without data: by the config of the training input, or
# by the experiment.
BY_CONFIG = 'by its config'


def of(experiment: Any) -> tuple[NestedMap, str]:
  """Returns the specs of a batch of this process, and where they are from.

  In this order: the class of the training input computes them from its config
  (`BaseInput.specs_of_config`), the experiment's
  `get_input_specs_provider_params` does without an input (with
  `train.enforce_input_specs`), the input knows them, or one batch is read.

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
  provider = _provider(experiment)
  if provider is not None:
    return provider.Instantiate().get_input_specs(), BY_CONFIG
  try:
    return _of_input(config)
  except errors.UserError as e:
    raise errors.UserError(
      f'the shapes of batches are not known: {cls.__name__} needs its data for'
      f' them, which cannot be read: {e}'
    ) from e


def recorded_or_of(folder: Any, experiment: Any) -> NestedMap:
  """Returns the specs of a batch that a run has recorded, or else `of`.

  Args:
    folder: of the run.
    experiment: the `experiments.resolved.ResolvedExperiment`.

  Raises:
    UserError: the record is damaged; or as of `of`.
  """
  path = folder / FILE
  if not path.exists():
    return of(experiment)[0]
  try:
    return from_json(files.read_bytes(path).decode('utf-8'))
  except ValueError as e:
    raise errors.UserError(f'{path} is damaged: {e}') from e


def _provider(experiment: Any) -> Any:
  """Returns the config of the provider of shapes if it builds no input."""
  if not experiment.task.train.enforce_input_specs:
    return None
  provider = experiment.get_input_specs_provider_params()
  if provider is None or issubclass(
    fdl.get_callable(provider), base_input.DatasetInputSpecsProvider
  ):
    return None
  return provider


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


def to_json(specs: Any) -> str:
  """Returns the shapes and dtypes of a batch as text.

  >>> specs = NestedMap(ids=jax.ShapeDtypeStruct((2, 3), 'int32'))
  >>> from_json(to_json(specs))
  {'ids': ShapeDtypeStruct(shape=(2, 3), dtype=int32)}

  Args:
    specs: nested mappings and sequences of arrays, or of shapes and dtypes.
  """
  return json.dumps(_described(specs), indent=1) + '\n'


def from_json(text: str) -> Any:
  """Inverts `to_json`; mappings are NestedMaps, and sequences lists.

  Raises:
    ValueError: the text is damaged.
  """
  try:
    return _specs(json.loads(text))
  except (KeyError, TypeError, AttributeError) as e:
    raise ValueError(f'expected shapes of a batch, found {e!r}') from e


def _described(specs: Any) -> Any:
  if isinstance(specs, Mapping):
    return {'fields': {str(k): _described(v) for k, v in specs.items()}}
  if isinstance(specs, list | tuple):
    return {'items': [_described(one) for one in specs]}
  if specs is None:
    return {}
  return {'shape': list(specs.shape), 'dtype': str(specs.dtype)}


def _specs(described: dict) -> Any:
  if 'fields' in described:
    fields = described['fields'].items()
    return NestedMap({name: _specs(one) for name, one in fields})
  if 'items' in described:
    return [_specs(one) for one in described['items']]
  if not described:
    return None
  return jax.ShapeDtypeStruct(tuple(described['shape']), described['dtype'])
