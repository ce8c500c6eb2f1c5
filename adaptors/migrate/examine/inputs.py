"""The datasets of an experiment: sources, adaptors, shapes and limitations."""

import re
from collections.abc import Iterator
from typing import Any

from adaptors.lingvo_input import eval_adaptors
from adaptors.lingvo_input.checks import generator_kinds, params_checks
from adaptors.lingvo_input.shapes import bucket_shapes
from adaptors.migrate.findings import Input
from adaptors.params import params_trees
from adaptors.translate.view import class_path
from pax_compat import errors
from pax_compat.config import Config

_FILE_TYPE = re.compile(r'([a-z_]+):(?!//)')
_LENGTHS = ('target_max_length', 'max_sequence_length', 'seq_len', 'seq_length')


def of(datasets: list[Config]) -> tuple[Input, ...]:
  """Returns the findings about datasets.

  Args:
    datasets: of `LingvoExperiment.datasets`.
  """
  return tuple(_input(one) for d in datasets for one in _adaptors(d))


def _adaptors(dataset: Config) -> Iterator[Config]:
  """Yields the configs with a Lingvo input generator."""
  inputs = getattr(dataset, 'inputs', None)
  if inputs is not None:  # Of several tasks.
    for one in inputs.values():
      yield from _adaptors(one)
  elif isinstance(dataset.input, Config):
    yield from _adaptors(dataset.input)
  else:
    yield dataset


def _input(dataset: Config) -> Input:
  params = dataset.input
  return Input(
    dataset=dataset.name,
    class_path=class_path(params.cls),
    kind=_kind(params),
    driven=_driven(dataset, params),
    shapes=_shapes(params),
    remarks=tuple(_remarks(dataset, params)),
  )


def _kind(params: Any) -> str:
  """Returns a description of the source of examples."""
  source = params_trees.get(params, 'file_datasource')
  if generator_kinds.is_tf_data(params):
    what = f' of {class_path(source.cls)}' if source is not None else ''
    return f'tf.data{what}'
  if source is not None:
    return f'data source {class_path(source.cls)}'
  if 'file_pattern' in params:
    types = sorted(set(_FILE_TYPE.findall(repr(params.file_pattern))))
    return f'records ({", ".join(types)})' if types else 'records'
  files = [name for name, value in params.IterParams() if _names(name, value)]
  if files:
    return f'custom reader of {", ".join(files)}'
  return 'synthetic, or a custom reader: its Params name no files'


def _names(name: str, value: Any) -> bool:
  """Whether a field is the path of a file or folder."""
  words = name.split('_')
  is_about = {'ckpt', 'dir', 'file', 'filepath', 'files', 'path'} & set(words)
  return bool(is_about and isinstance(value, str) and value)


def _driven(dataset: Config, params: Any) -> str:
  backends = ['a TensorFlow session', 'a tf.function']
  if generator_kinds.is_tf_data(params):
    backends.reverse()
  kind = dataset.cls
  driver = f'{kind.__name__}, by {backends[0]}; if that fails, by {backends[1]}'
  if issubclass(kind, eval_adaptors.LingvoEvalAdaptor):
    return f'{driver}; all of it, in batches of {dataset.batch_size}'
  if dataset.is_training:
    return driver
  return f'{driver}; {dataset.eval_loop_num_batches} batches each time'


def _shapes(params: Any) -> tuple[tuple[int, int | None], ...]:
  buckets = bucket_shapes.Buckets(params, fit_lengths=True)
  shapes = buckets.shapes()
  if not shapes and params_trees.get(params, 'batch_size'):
    shapes = [(params.batch_size, None)]
  lengths = [
    params_trees.get(params, n) for n in _LENGTHS if params_trees.get(params, n)
  ]
  length = lengths[0] if lengths else None
  return tuple((rows, length if n is None else n) for rows, n in shapes)


def _remarks(dataset: Config, params: Any) -> Iterator[str]:
  """Yields limitations, and differences from Lingvo."""
  try:
    params_checks.check_input(dataset.name, params)
  except errors.UserError as error:
    yield f'it cannot be read on this machine: {error}'
  if not dataset.is_training:
    return
  if (
    'file_pattern' in params
    or params_trees.get(params, 'file_datasource') is not None
  ):
    yield (
      'its position cannot be restored: after a restart it reads in a new order'
    )
    yield (
      'on several hosts each reads all files in a separate order, unless the'
      ' generator itself shards them'
    )
