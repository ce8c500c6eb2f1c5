"""Inputs of tf.data pipelines.

Legend: B examples of a host in a batch, H hosts.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl
import jax
import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.records import damaged_records, dataset_files
from pax_compat import errors
from pax_compat.config import REQUIRED, Config
from pax_compat.input_core import example_rows, host_fields
from pax_compat.inputs import dataset_functions, epoch_input
from pax_compat.nested_map import NestedMap


class TFDataInput(epoch_input.EpochInput):
  """Gives the examples of a `tf.data.Dataset`, each exactly once in an epoch.

  `dataset_fn` returns a dataset of single examples, dicts of tensors of one
  shape. This input repeats it, splits it over hosts and batches it: each step
  takes the next B * H examples, and host h the h-th B of these. So every host
  reads the whole dataset, and costly work belongs in `map_fn`, which a host
  calls only for its own examples (and one more of each step).

  At the end of the data the last batch is padded with rows whose
  `eval_sample_weights` are 0, on every host, also if it has no example.

  The state is the number of examples read, so a run continues on any number of
  hosts, with any batch size; earlier examples are read again and skipped. That
  needs a dataset with the same order each time: to shuffle, it has to use the
  `seed` argument of `dataset_fn`.

  A `dataset_fn` with the arguments `host` and `hosts` splits the data by
  itself. Such an input is for training, or evaluations on a rolling basis: the
  hosts do not know where each other's data ends.

  Attributes:
    batch_size: B, required.
    dataset_fn: a function that returns the dataset, or a `Config` or Fiddle
      `Partial` of one. It gets those of these arguments that it has: `seed`
      (`input_random_seed`, of which None is 0), `is_training`, `host`
      (`infeed_host_index`) and `hosts` (`num_infeed_hosts`).
    map_fn: maps each example, for `Dataset.map`; None for no mapping.
    is_deterministic: whether `dataset_fn` returns the same examples in the same
      order each time. If not, a run cannot continue exactly, and several hosts
      need a `dataset_fn` that splits the data.

  Raises:
    UserError: the fields contradict each other, or the dataset is not of this
      kind.
  """

  dataset_fn: Callable[..., Any] | Config | fdl.Partial = REQUIRED
  map_fn: Any = None
  is_deterministic: bool = True

  def __post_init__(self):
    super().__post_init__()
    where = f'{type(self).__name__}.dataset_fn of {self.name}'
    offered = {
      'seed': self.input_random_seed or 0,
      'is_training': self.is_training,
      'host': self.infeed_host_index,
      'hosts': self.num_infeed_hosts,
    }
    self._make = dataset_functions.bound(self.dataset_fn, offered, where=where)
    self.check(
      self.map_fn is None or callable(self.map_fn),
      f'map_fn of {self.name} is {self.map_fn!r}; expected a function of an'
      ' example',
    )
    self._is_split = dataset_functions.asks_for(self.dataset_fn, 'host')
    self._check_split()
    # Digests of the first example of all, and of the first of each step.
    self._first: str | None = None
    self._firsts = hashlib.blake2b(digest_size=8)
    self._batches = None

  @property
  def state_fits_any_hosts(self) -> bool:
    return not self._is_split

  def _check_split(self):
    several = self.num_infeed_hosts > 1
    self.check(
      not (self._is_split and several and self._ends),
      f'dataset_fn of {self.name} splits the data over {self.num_infeed_hosts}'
      ' hosts, which may have different numbers of examples, so they would not'
      ' end at the same batch; expected a function without the argument `host`',
    )
    self.check(
      self._is_split or not several or self.is_deterministic,
      f'is_deterministic of {self.name} is False, so {self.num_infeed_hosts}'
      ' hosts cannot share one order of examples; expected a dataset_fn with'
      ' the arguments `host` and `hosts`, which splits the data',
    )

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Returns:
      The fields of the examples, [B, ...], with strings, and
      `eval_sample_weights`.

    Raises:
      StopIteration: at the end of the data.
    """
    if self._batches is None:
      self._batches = iter(self._dataset())
    rows = self._next_rows()
    count = example_rows.num_rows(rows)
    weighted = example_rows.with_example_weights(rows, count)
    digest = _digest(jax.tree.map(lambda x: x[:1], rows))
    if self._first is None and not self._examples_read:
      self._first = digest
    self._firsts.update(digest.encode())
    self._examples_read += self._global_batch_size
    # Hosts but the first also read the first example of the step, to know
    # that there is a batch.
    other = self._offset > 0
    real = count - other
    own = weighted
    if other and real:
      own = jax.tree.map(lambda x: x[1:], weighted)
    return example_rows.pad_batch(own, real=real, rows=self.batch_size)

  def _next_rows(self) -> NestedMap:
    """Returns this host's examples of a step, after the first of the step."""
    tf = lingvo_runtime.tensorflow()
    try:
      return NestedMap.from_nested(
        jax.tree.map(lambda x: x.numpy(), next(self._batches))
      )
    except (tf.errors.OpError, UnicodeDecodeError) as e:
      raise self._failure(tf, e) from e

  def _failure(self, tf: Any, error: Exception) -> errors.UserError:
    """Returns an error that names the record on which the dataset failed."""
    message = (
      f'{type(self).__name__} {self.name!r}: the dataset fails after'
      f' {self._examples_read} examples'
    )
    files = dataset_files.record_files(self._examples(tf))
    found = damaged_records.explain(error, files)
    if found is not None:
      return errors.UserError(f'{message}: {found}')
    if damaged_records.is_about_a_record(error):
      message += ', at a record of an unknown file'
      message += f' (none of the {len(files)} known files)' if files else ''
    else:
      message += ', which must have one shape'
    text = damaged_records.tensorflow_error(error)[1]
    return errors.UserError(f'{message}: {getattr(error, "message", text)}')

  @property
  def _hosts(self) -> int:
    """The number of hosts over which this input splits the dataset."""
    return 1 if self._is_split else self.num_infeed_hosts

  @property
  def _offset(self) -> int:
    """The index of this host's first example among those of a step."""
    return 0 if self._is_split else self.batch_size * self.infeed_host_index

  def _dataset(self) -> Any:
    """Returns the dataset of this host's batches from the position on.

    On all hosts but the first, each batch begins with the first example of the
    step, which belongs to the first host.
    """
    tf = lingvo_runtime.tensorflow()
    examples = self._examples(tf).skip(self._examples_read)
    offset, size = self._offset, self.batch_size
    total = self._global_batch_size

    def is_read(number, unused_example):
      index = number % total
      own = tf.logical_and(index >= offset, index < offset + size)
      return tf.logical_or(own, index == 0)

    if total > size:
      examples = examples.enumerate().filter(is_read)
      examples = examples.map(lambda unused_number, example: example)
    return self._mapped(tf, examples).batch(size + (offset > 0)).prefetch(1)

  def _mapped(self, tf, examples) -> Any:
    if self.map_fn is None:
      return examples
    return examples.map(
      self.map_fn, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )

  def _examples(self, tf) -> Any:
    """Returns the dataset of the examples of all epochs."""
    dataset = self._made(tf)
    self.check(
      isinstance(dataset, tf.data.Dataset),
      f'dataset_fn of {self.name} returns a {type(dataset).__name__}; expected'
      ' a tf.data.Dataset of single examples',
    )
    self._check_spec(tf, self._mapped(tf, dataset).element_spec)
    self.check(
      not self._ends or dataset.cardinality() != tf.data.INFINITE_CARDINALITY,
      f'the dataset of {self.name} never ends; leave out repeat(), as this'
      ' input repeats its data by itself',
    )
    return dataset if self._reads_once else dataset.repeat(self.num_epochs)

  def _made(self, tf) -> Any:
    try:
      return self._make()
    except tf.errors.OpError as e:
      raise errors.UserError(
        f'dataset_fn of {self.name} fails: {e.message}'
      ) from e

  @property
  def _reads_once(self) -> bool:
    return self._ends and not self.is_training

  def _check_spec(self, tf, spec):
    self.check(
      isinstance(spec, Mapping),
      f'the examples of {self.name} are {spec}; expected dicts of tensors',
    )
    for path, leaf in NestedMap.from_nested(spec).flatten_items():
      self.check(
        isinstance(leaf, tf.TensorSpec),
        f'the field {path!r} of the examples of {self.name} is a {leaf};'
        ' expected a dense tensor',
      )

  @property
  def num_samples(self) -> int | None:
    """Examples in an epoch, of all hosts; None if TensorFlow cannot count."""
    tf = lingvo_runtime.tensorflow()
    count = int(self._made(tf).cardinality())
    return None if count < 0 or self._is_split else count

  def batch_specs(self) -> NestedMap | None:
    """Returns the specs of a batch, if the dataset has static shapes."""
    tf = lingvo_runtime.tensorflow()
    spec = NestedMap.from_nested(
      self._mapped(tf, self._examples(tf)).element_spec
    )
    if any(not x.shape.is_fully_defined() for x in jax.tree.leaves(spec)):
      return None
    row = jax.tree.map(
      lambda x: np.zeros((1, *x.shape), x.dtype.as_numpy_dtype), spec
    )
    return self.specs_of(
      example_rows.with_example_weights(row, 1),
      rows=self.batch_size + self.batch_padding_size,
    )

  @property
  def _global_batch_size(self) -> int:
    return self.batch_size * self._hosts

  def resume_at(self, step: int):
    """Moves past `step` batches of the current size, on as many hosts."""
    super().resume_at(step if self.is_deterministic else 0)

  def _go_to(self, examples_read: int):
    super()._go_to(examples_read)
    self._firsts = hashlib.blake2b(digest_size=8)
    self._batches = None

  def after_restart(self) -> str:
    if self.is_deterministic:
      return 'it continues at the next example of its order'
    return 'its dataset, which is not deterministic, is read from the start'

  def order_digest(self) -> bytes | None:
    """Returns an 8-byte digest of the first examples of the steps.

    None if `dataset_fn` splits the data over hosts.
    """
    return None if self._is_split else self._firsts.digest()

  def close(self):
    """Frees the pipeline: its threads and files."""
    self._batches = None

  def _metadata(self) -> dict[str, Any]:
    if not self.is_deterministic:
      raise NotImplementedError(f'{self.name} has is_deterministic=False')
    return {'first_example': self._first}

  def _check_metadata(self, saved: dict[str, Any], examples_read: int):
    first = saved['first_example']
    if first is not None:
      self._check_first(first)
    if examples_read:
      logging.info(
        '%r reads and skips the %d examples that were read before',
        self.name,
        examples_read,
      )
    self._first = first

  def _check_first(self, expected: str):
    tf = lingvo_runtime.tensorflow()
    try:
      [batch] = self._mapped(tf, self._examples(tf).take(1)).batch(1)
    except (tf.errors.OpError, UnicodeDecodeError) as e:
      raise self._failure(tf, e) from e
    found = _digest(
      NestedMap.from_nested(jax.tree.map(lambda x: x.numpy(), batch))
    )
    self.check(
      found == expected,
      f'{self.name} cannot continue: its dataset begins with another'
      ' example than before. If it shuffles, give dataset_fn the argument'
      ' `seed` and pass it to shuffle(); otherwise set is_deterministic=False',
    )


def _digest(example: NestedMap) -> str:
  digest = hashlib.blake2b(digest_size=8)
  for path, x in example.flatten_items():
    digest.update(f'{path} {x.dtype} {x.shape}'.encode())
    digest.update(host_fields.canonical_bytes(x))
  return digest.hexdigest()
