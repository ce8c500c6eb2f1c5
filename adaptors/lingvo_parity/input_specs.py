"""The shapes of an input's batches, traced without reading its files.

Lingvo's generators know most sizes of their batches when their graph is built.
Sizes that vary are taken from the generator's Params.

Legend: B batch, T time.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.drivers import backends, batch_leaves
from adaptors.params import params_trees
from adaptors.translate.view import class_path
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# Sizes of an input whose Params do not have them.
_ROWS, _LENGTH = 4, 16
# Number of words in a stand-in for a vocabulary.
_WORDS = 100
# Fields of Params by what they limit, the first that is set counts.
_ROWS_OF = ('bucket_batch_limit', 'batch_size')
_LENGTHS_OF = (
  'bucket_upper_bound',
  'max_sequence_length',
  'seq_len',
  'seq_length',
  'source_max_length',
  'target_max_length',
)
# Fields [B, T] if their number of axes is unknown; others are [B].
_SEQUENCES = ('ids', 'labels', 'paddings', 'weights')
# Further limits of the fields below a name.
_LENGTHS_BELOW = {'src': 'source_max_length', 'tgt': 'target_max_length'}


@dataclasses.dataclass(frozen=True)
class Spec:
  """A field of a batch.

  Attributes:
    path: in the batch, such as `src.ids`.
    shape: its sizes.
    dtype: of an array of JAX, so without 64 bits.
  """

  path: str
  shape: tuple[int, ...]
  dtype: np.dtype


def trace(params: Any) -> NestedMap:
  """Returns the fields of an input's batches, nested as the batches are.

  Fields of strings, and sparse or ragged ones, are left out, as the adaptor of
  inputs does.

  Args:
    params: of the input; not modified.

  Raises:
    UserError: the graph of the input cannot be built.
  """
  failures = []
  with tempfile.TemporaryDirectory() as folder:
    params = _with_vocabularies(params, pathlib.Path(folder))
    for tracer in _in_graph, _in_function:
      try:
        return tracer(params, _described(params))
      except Exception as error:  # User code runs here.
        if isinstance(error, errors.UserError):
          raise
        failures.append(error)
        if lingvo_runtime.is_wrong_name(error):
          break
  first = failures[0]
  raise errors.UserError(
    f'{class_path(params.cls)}: the shapes of its batches cannot be traced:'
    f' {errors.with_location(first, brief=True)}; expected an input whose graph'
    ' can be built without its data, or a run without --synthetic'
  ) from first


def _with_vocabularies(params: Any, folder: pathlib.Path) -> Any:
  """Returns a copy of Params with stand-ins for missing vocabulary files.

  Some generators read them while their graph is built. Shapes do not depend on
  the words.
  """
  params = params.Copy()
  for node in params_trees.all_params(params):
    for name, value in list(node.IterParams()):
      is_path = isinstance(value, str) and 'vocab' in name and value
      if is_path and not pathlib.Path(value).exists():
        file = folder / pathlib.Path(value).name
        words = ('<s>', '</s>', '<unk>', *(f'w{i}' for i in range(_WORDS)))
        file.write_text(
          ''.join(f'{word}\t{i}\n' for i, word in enumerate(words)),
          encoding='utf-8',
        )
        node.Set(**{name: str(file)})
        logging.info('%s is missing: shapes are traced without it', value)
  return params


def _in_graph(params: Any, describe: Callable) -> NestedMap:
  tf = lingvo_runtime.module('tensorflow')
  with tf.Graph().as_default(), _settings(params).context():
    return describe(_batch(params))


def _in_function(params: Any, describe: Callable) -> NestedMap:
  tf = lingvo_runtime.module('tensorflow')
  found = []

  def next_batch():
    found.append(describe(_batch(params)))

  with _settings(params).context():
    tf.function(next_batch, autograph=False).get_concrete_function()
  return found[-1]


def _settings(params: Any) -> backends.Settings:
  return backends.Settings(name=class_path(params.cls), cluster_options={})


def _batch(params: Any) -> Any:
  """Returns the symbolic batch of an input."""
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  with py_utils.GlobalStepContext(tf.constant(0, tf.int64)):
    generator = params.Copy().Instantiate()
    if hasattr(generator, 'Shape') and hasattr(generator, 'DType'):
      return _declared(generator)
    batch = generator.GetPreprocessedInputBatch()
  if not isinstance(batch, dict):
    raise errors.UserError(
      f'{class_path(params.cls)} returns a {type(batch).__name__} of batches,'
      ' one for each core; only one NestedMap is supported'
    )
  kept, dropped = batch_leaves.kept_leaves(tf, batch, keeps_strings=False)
  if dropped:
    logging.info('synthetic batches are without %s', ', '.join(dropped))
  return kept


def _declared(generator: Any) -> Any:
  """Returns the batch that a generator of `car` declares, as placeholders.

  Its preprocessors, a large graph, are not built.
  """
  tf = lingvo_runtime.module('tensorflow')

  def placeholder(dtype, shape):
    return tf.compat.v1.placeholder(dtype, [None, *shape])

  batch = tf.nest.map_structure(
    placeholder,
    generator.DType(),
    generator.Shape().Transform(lambda shape: tf.TensorShape(shape)),
  )
  return batch.Filter(lambda tensor: tensor.dtype != tf.string)


def _described(params: Any) -> Callable[[Any], NestedMap]:
  """Returns a function from a symbolic batch to its specs."""
  rows = _first_of(params, _ROWS_OF) or _ROWS
  length = _first_of(params, _LENGTHS_OF) or _LENGTH

  def describe(node: Any, path: str = '') -> Any:
    if isinstance(node, dict):
      below = {k: f'{path}.{k}' if path else k for k in node}
      return NestedMap({k: describe(v, below[k]) for k, v in node.items()})
    if isinstance(node, list):
      return [describe(v, f'{path}[{i}]') for i, v in enumerate(node)]
    return None if node is None else spec(node, path)

  def spec(tensor: Any, path: str) -> Spec:
    own = params_trees.get(params, _LENGTHS_BELOW.get(path.split('.')[0], ''))
    rank = tensor.shape.rank
    if rank is None:
      rank = 2 if path.split('.')[-1] in _SEQUENCES else 1
    unknown = [rows] + [min(own or length, length)] * (rank - 1)
    known = tensor.shape.rank is not None
    sizes = tensor.shape.as_list() if known else [None] * rank
    return Spec(
      path,
      tuple(
        u if n is None else n for n, u in zip(sizes, unknown, strict=False)
      ),
      _narrow(tensor.dtype.as_numpy_dtype),
    )

  return describe


def _first_of(params: Any, names: tuple[str, ...]) -> int | None:
  """Returns the first of some fields that is set; of a list its last item."""
  for name in names:
    value = params_trees.get(params, name)
    if value:
      return int(value[-1] if isinstance(value, (list, tuple)) else value)
  return None


def _narrow(dtype: Any) -> np.dtype:
  """Returns a dtype without 64 bits."""
  narrow = {'int64': 'int32', 'uint64': 'uint32', 'float64': 'float32'}
  name = np.dtype(dtype).name
  return np.dtype(dtype) if name not in narrow else np.dtype(narrow[name])
