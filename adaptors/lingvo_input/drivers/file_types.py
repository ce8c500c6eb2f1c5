"""Types of files whose patterns in a generator's Params have no type.

Some generators, and data sources with a `file_type`, add the type to the
patterns themselves. The graph contains the patterns that readers get.
"""

from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.checks import params_checks, reader_params
from adaptors.lingvo_input.drivers import backends
from pax_compat import errors


def in_graph(settings: backends.Settings, params: Any) -> dict[str, str]:
  """Returns the types of the files that readers get, by path.

  A graph is built for that, and never run.

  Args:
    settings: what the generator finds while it is built.
    params: Lingvo Params of the generator; not changed.

  Returns:
    Such as 'tfrecord'. Files that are read as two types are left out; all
    files if no graph can be built.
  """
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  graph = tf.Graph()
  try:
    with graph.as_default(), settings.context(), tf.device('/cpu:0'):
      step = tf.compat.v1.placeholder(tf.int64, [])
      with py_utils.GlobalStepContext(step):
        params.Copy().Instantiate().GetPreprocessedInputBatch()
    readers = reader_params.readers(tf, graph.as_graph_def())
    types = _types(settings.name, readers)
  except Exception as e:  # noqa: BLE001 (the driver's build reports it)
    logging.info(
      '%s: unknown file types: %s', settings.name, errors.one_line(e)
    )
    return {}
  return {path: first for path, [first, *more] in types.items() if not more}


def _types(
  name: str, readers: list[reader_params.Reader]
) -> dict[str, list[str]]:
  """Returns the types with which each file is read."""
  types = {}
  for reader in readers:
    for pattern in reader.patterns:
      file_type = params_checks.split_type(pattern)[0]
      for path in reader_params.files_of(name, pattern):
        known = types.setdefault(path, [])
        if file_type not in known:
          known.append(file_type)
  return types
