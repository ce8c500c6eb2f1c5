"""Lingvo's readers of records, found in a graph before one of them starts.

A reader ends the process at most mistakes, and waits forever at others. The
Params are not always what it gets, as generators may change them; its op in the
graph is.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from adaptors.lingvo_input.checks import params_checks
from pax_compat import errors

_OPS = ('GenericInput', 'GenericInputV2Create')

# The formats that Lingvo registers, and the one that does not read files.
_FORMATS = ('text', 'tfrecord', 'tfrecord_gzip', 'iota')
COUNTER = 'iota'

# The types of tensors that the batcher can stack.
_TYPES = ('float', 'int32', 'int64', 'uint8', 'bool', 'string', 'bfloat16')


@dataclasses.dataclass(frozen=True)
class Reader:
  """The attributes of a reader's op.

  Attributes:
    patterns: a pattern for each source, such as `text:/a/b*,/a/c*`.
    weights: the sampling weight of each source; empty if there is only one.
    repeat_count: the number of epochs; -1 for endless.
    in_order: whether it is read in the order of the files.
    bounds: the largest bucket key of each bucket.
    limits: the batch size of each bucket.
    sizes: numbers that must be at least 1, by name.
    processor: the name of the function that makes an example of a record.
    types: the names of the types of its tensors.
    padded: whether examples are padded to one shape before they are batched.
  """

  patterns: tuple[str, ...]
  weights: tuple[float, ...]
  repeat_count: int
  in_order: bool
  bounds: tuple[int, ...]
  limits: tuple[int, ...]
  sizes: dict[str, int]
  processor: str
  types: tuple[str, ...]
  padded: bool

  def ends(self) -> bool:
    """Returns whether the data is finite."""
    counts_on = any(
      form == COUNTER and not (rest.isdigit() and rest.isascii())
      for form, rest in map(params_checks.split_type, self.patterns)
    )
    return self.repeat_count > 0 and not counts_on


def nodes_of(graph_def: Any) -> Iterator[Any]:
  """Yields the nodes of a graph and of the functions in it."""
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def readers(tf: Any, graph_def: Any) -> list[Reader]:
  """Returns the readers of a graph.

  Args:
    tf: TensorFlow.
    graph_def: the GraphDef.
  """
  return [_reader(tf, n.attr) for n in nodes_of(graph_def) if n.op in _OPS]


def _reader(tf, attr) -> Reader:
  weights = tuple(attr['input_source_weights'].list.f)
  pattern = attr['file_pattern'].s.decode()
  names = ('file_buffer_size', 'file_parallelism', 'num_threads')
  return Reader(
    patterns=tuple(pattern.split(',')) if weights else (pattern,),
    weights=weights,
    repeat_count=attr['repeat_count'].i,
    in_order=attr['require_sequential_order'].b,
    bounds=tuple(attr['bucket_upper_bound'].list.i),
    limits=tuple(attr['bucket_batch_limit'].list.i),
    sizes={name: attr[name].i for name in names},
    processor=attr['processor'].func.name,
    types=tuple(
      tf.dtypes.as_dtype(t).name.replace('float32', 'float')
      for t in attr['out_types'].list.type
    ),
    padded=bool(attr['dynamic_padding_dimensions'].list.i),
  )


def check_reader(name: str, reader: Reader):
  """Checks the attributes of a reader, but not its files' contents.

  Args:
    name: of the input, in messages.
    reader: of its graph.

  Raises:
    UserError: the reader would end the process, or wait forever.
  """
  _check_numbers(name, reader)
  _check_order(name, reader)
  for pattern in reader.patterns:
    files_of(name, pattern)
  wrong = sorted(set(reader.types) - set(_TYPES))
  if wrong:
    raise errors.UserError(
      f'{name}: the generator makes tensors of {", ".join(wrong)} of a record;'
      f' a reader takes only {", ".join(_TYPES)}'
    )


def _check_numbers(name, reader):
  small = {k: n for k, n in reader.sizes.items() if n < 1}
  if min(reader.limits, default=1) < 1:
    small['bucket_batch_limit'] = list(reader.limits)
  if small:
    wrong = ', '.join(f'{k} is {n}' for k, n in small.items())
    raise errors.UserError(f'{name}: {wrong}; expected at least 1')
  rising = sorted(reader.bounds) == list(reader.bounds)
  as_many = len(reader.bounds) == len(reader.limits)
  if not reader.bounds or not as_many or not rising:
    raise errors.UserError(
      f'{name}: the reader gets the buckets {list(reader.bounds)} and batch'
      f' sizes {list(reader.limits)}; expected rising bounds and one size for'
      ' each'
    )


def _check_order(name, reader):
  patterns = ', '.join(reader.patterns)
  if reader.weights and len(reader.weights) != len(reader.patterns):
    raise errors.UserError(
      f'{name}: the reader gets {len(reader.weights)} weights for the'
      f' {len(reader.patterns)} patterns {patterns!r}; expected one for each,'
      ' with a comma between patterns only'
    )
  if reader.in_order and len(reader.patterns) > 1:
    raise errors.UserError(
      f'{name}: the files are to be read in order, but {patterns!r} are mixed'
      ' by weight; expected one pattern'
    )
  count, in_order = reader.repeat_count, reader.in_order
  if count != -1 and not (in_order and count > 0):
    raise errors.UserError(
      f'{name}: the reader gets repeat_count {count}'
      f' {"and" if in_order else "without"} require_sequential_order; expected'
      ' -1, or at least 1 together with it'
    )


def files_of(name: str, pattern: str) -> list[str]:
  """Returns the files of one pattern of a reader.

  Args:
    name: of the input, in messages.
    pattern: such as `text:/a/b*,/a/c*`.

  Raises:
    UserError: the format is unknown, or a path is not an existing file.
  """
  form, rest = params_checks.split_type(pattern)
  if form == COUNTER:
    return []
  if form not in _FORMATS:
    found = f'has the format {form!r}' if form else 'has no format'
    raise errors.UserError(
      f'{name}: the file pattern {pattern!r} {found}; expected one of'
      f' {", ".join(_FORMATS)} in front of it and a colon'
      + errors.did_you_mean(form, _FORMATS)
    )
  for path in rest.split(','):
    inner = params_checks.split_type(path)[0]
    if inner in _FORMATS:
      raise errors.UserError(
        f'{name}: the file pattern {pattern!r} has the format {inner!r} again'
        f' at {path!r}, where the reader takes it as part of the path;'
        ' expected it at the start only'
      )
    if ';' in path:
      raise errors.UserError(
        f'{name}: the file pattern {path!r} joins files by ";", which no reader'
        f' of {form} can; expected commas'
      )
  return params_checks.files_of(name, pattern)
