"""Finds and reads TensorFlow checkpoints on disk, one tensor at a time.

A checkpoint is a prefix of files, such as `train/ckpt-00012000`: `.index` lists
its tensors, `.data-?????-of-?????` contain them with checksums.
"""

import os
import pathlib
import re

import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from pax_compat import errors

_INDEX = '.index'
# The tensor of an object-based checkpoint that describes its objects.
_OBJECT_GRAPH = '_CHECKPOINTABLE_OBJECT_GRAPH'
_OBJECT_GRAPH_PROTO = 'tensorflow.core.protobuf.trackable_object_graph_pb2'
_STEP = re.compile(r'-(\d+)$')
# Subfolders of a run with checkpoints, by Lingvo's trainer and (object-based)
# by its executor.
_FOLDERS = ('train', 'train/ckpt_V2', 'ckpt_V2', '')


class TensorflowCheckpoint:
  """A checkpoint, with tensors by variable name.

  Attributes:
    prefix: path of its files, without their suffixes.
    shapes: the tensors' shapes by name.
    dtypes: the tensors' numpy dtypes by name.
  """

  def __init__(self, prefix: str | os.PathLike):
    """Opens a checkpoint.

    Args:
      prefix: path of its files, with or without '.index'.

    Raises:
      UserError: the checkpoint is missing, or its index is damaged.
    """
    self.prefix = str(prefix).removesuffix(_INDEX)
    tf = lingvo_runtime.module('tensorflow')
    if not pathlib.Path(self.prefix + _INDEX).is_file():
      raise errors.UserError(
        f'{self.prefix}{_INDEX} does not exist; expected the prefix of a'
        ' TensorFlow checkpoint, such as .../train/ckpt-00001000'
        + errors.did_you_mean(self.prefix, _sibling_prefixes(self.prefix))
      )
    try:
      self._reader = tf.train.load_checkpoint(self.prefix)
      shapes = self._reader.get_variable_to_shape_map()
      dtypes = self._reader.get_variable_to_dtype_map()
    except Exception as error:  # TensorFlow maps its errors to many types.
      raise self._damaged(error) from error
    self._keys = self._names(shapes)
    self.shapes = {n: tuple(shapes[k]) for n, k in self._keys.items()}
    self.dtypes = {
      n: np.dtype(dtypes[k].as_numpy_dtype) for n, k in self._keys.items()
    }

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor; TensorFlow verifies its checksum.

    Raises:
      UserError: a file is damaged or truncated.
    """
    try:
      return np.asarray(self._reader.get_tensor(self._keys[name]))
    except Exception as error:  # As above.
      raise self._damaged(error, name) from error

  def _names(self, shapes) -> dict[str, str]:
    """Returns the key of each variable name in the files.

    Keys are names, except in object-based checkpoints: there they are paths
    through objects, and the object graph has the variables' full names.
    """
    if _OBJECT_GRAPH not in shapes:
      return {name: name for name in shapes}
    graph = lingvo_runtime.module(_OBJECT_GRAPH_PROTO).TrackableObjectGraph()
    graph.ParseFromString(self._reader.get_tensor(_OBJECT_GRAPH))
    names: dict[str, str] = {}
    for node in graph.nodes:
      for attribute in node.attributes:
        name, key = attribute.full_name, attribute.checkpoint_key
        if key not in shapes or not name:
          continue
        if names.setdefault(name, key) != key:
          raise errors.UserError(
            f'{self.prefix} has two variables called {name}, as Lingvo writes'
            ' them in eager mode without task_name_var_scope; expected unique'
            ' names'
          )
    return names

  def _damaged(self, error: Exception, name: str = '') -> errors.UserError:
    what = f', tensor {name}' if name else ''
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return errors.UserError(
      f'the checkpoint {self.prefix}{what}: {lines[0]}; expected complete files'
      ' of a TensorFlow checkpoint, perhaps an older one of the run'
    )


def newest(path: str | os.PathLike) -> TensorflowCheckpoint:
  """Returns the checkpoint at a path.

  Args:
    path: the prefix of a checkpoint's files; or a run's folder or its `train`,
      for the newest checkpoint that can be opened. Newer ones that cannot are
      logged.

  Raises:
    UserError: there is none.
  """
  folder = pathlib.Path(path).expanduser()
  if not folder.is_dir():
    return TensorflowCheckpoint(folder)
  for name in _FOLDERS:
    found = sorted((folder / name).glob(f'*{_INDEX}'), key=_step, reverse=True)
    for index in found:
      try:
        return TensorflowCheckpoint(index)
      except errors.UserError as error:
        logging.warning('%s; using an older checkpoint instead', error)
  raise errors.UserError(
    f'{folder} has no TensorFlow checkpoint that can be read; expected'
    f' ckpt-*{_INDEX} in it or in its folder train'
  )


def indices(path: str | os.PathLike) -> dict[int, pathlib.Path]:
  """Returns the index files of the checkpoints of a run, by step.

  Args:
    path: a run's folder or its `train`.
  """
  found = {}
  for name in reversed(_FOLDERS):
    for index in (pathlib.Path(path).expanduser() / name).glob(f'*{_INDEX}'):
      found[_step(index)] = index
  return found


def _step(index: pathlib.Path) -> int:
  found = _STEP.search(index.name.removesuffix(_INDEX))
  return int(found.group(1)) if found else -1


def _sibling_prefixes(prefix: str) -> list[str]:
  siblings = pathlib.Path(prefix).parent.glob(f'*{_INDEX}')
  return [str(index).removesuffix(_INDEX) for index in siblings]
