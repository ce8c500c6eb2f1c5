"""Of which type files are that a generator's Params name without one.

Some generators, and data sources with a `file_type`, put the type in front of
the patterns themselves. What readers get in the end stands in the graph.
"""

from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.checks import params_checks, reader_params
from adaptors.lingvo_input.drivers import backends
from pax_compat import errors


def in_graph(settings: backends.Settings, params: Any) -> dict[str, str]:
  """Returns the types of files by path, of those that readers are given.

  A graph is built for that, and never run.

  Args:
    settings: what the generator finds.
    params: Lingvo Params of the generator; not changed.

  Returns:
    Such as 'tfrecord'. Files that are read as two types are left out, and all
    of them where no graph can be built.
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
  except Exception as e:  # noqa: BLE001 (it is told when it is built to be run)
    logging.info('%s: no types of files: %s', settings.name, errors.one_line(e))
    return {}
  return {path: only for path, [only, *more] in types.items() if not more}


def _types(
  name: str, readers: list[reader_params.Reader]
) -> dict[str, list[str]]:
  """Returns the types as which each file is read."""
  types = {}
  for reader in readers:
    for pattern in reader.patterns:
      file_type = params_checks.split_type(pattern)[0]
      for path in reader_params.files_of(name, pattern):
        known = types.setdefault(path, [])
        if file_type not in known:
          known.append(file_type)
  return types
