"""Inputs of tf.data pipelines.

Legend: B examples of a host in a batch, H hosts.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.records import damaged_records, dataset_files
from pax_compat import base_input, errors
from pax_compat.config import REQUIRED
from pax_compat.input_core import example_rows, host_fields, input_fields
from pax_compat.inputs import dataset_functions
from pax_compat.nested_map import NestedMap


class TFDataInput(base_input.BaseInput):
  """Gives the examples of a `tf.data.Dataset`, each exactly once in an epoch.

  `dataset_fn` returns a dataset of single examples, dicts of tensors of one
  shape. This input repeats it, splits it over hosts and batches it: each step
  takes the next B * H examples, and host h the h-th B of these. For that every
  host reads the whole dataset, so what costs time is better done in `map_fn`,
  which a host calls for its own examples (and one more of each step).

  Where the data ends, the last batch is filled up with rows whose
  `eval_sample_weights` are 0, on every host, though it may have no example of
  its own. An evaluation with `reset_for_eval` reads one epoch; training and
  evaluations on a rolling basis go on for ever, unless `num_epochs` says
  otherwise.

  The state is how many examples were read, so a run goes on at the next example
  with any number of hosts, and any batch size; those before are read again and
  skipped. That needs a dataset which is the same each time: to shuffle, it is
  to use the `seed` that `dataset_fn` may ask for.

  A `dataset_fn` that asks for `host` and `hosts` splits the data by itself.
  Such an input is for training, or evaluations on a rolling basis: where each
  host's part ends is not known to the others.

  Attributes:
    batch_size: B, required.
    dataset_fn: a function that returns the dataset, or a `Config` or Fiddle
      `Partial` of one. It gets those of these arguments that it has: `seed`
      (`input_random_seed`, of which None is 0), `is_training`, `host`
      (`infeed_host_index`) and `hosts` (`num_infeed_hosts`).
    map_fn: makes another example of each one, for `Dataset.map`; None for none.
    num_epochs: how many epochs a training input has; None for no end.
    is_deterministic: whether `dataset_fn` returns the same examples in the same
      order each time. Where it does not, a run cannot continue exactly, and
      several hosts need a `dataset_fn` that splits the data.

  Raises:
    UserError: the fields do not go together, or the dataset is none of this
      kind.
  """

  dataset_fn: Any = REQUIRED
  map_fn: Any = None
  num_epochs: int | None = None
  is_deterministic: bool = True

  def __post_init__(self):
    super().__post_init__()
    self._check_numbers()
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
    self._read = 0
    self._first: str | None = None
    self._firsts = hashlib.blake2b(digest_size=8)
    self._batches = None

  @property
  def state_fits_any_hosts(self) -> bool:
    return not self._is_split

  def _check_numbers(self):
    self.get_batch_size(self)  # There must be one.
    epochs = self.num_epochs
    self.check(
      epochs is None
      or (self.is_training and input_fields.is_int(epochs) and epochs >= 1),
      f'num_epochs of {self.name} is {epochs!r}, and is_training is'
      f' {self.is_training}; expected at least 1 of a training input, or None',
    )

  def _check_split(self):
    several = self.num_infeed_hosts > 1
    self.check(
      not (self._is_split and several and self._ends),
      f'dataset_fn of {self.name} splits the data over {self.num_infeed_hosts}'
      ' hosts, which may have more or fewer examples than others, so they would'
      ' not end at the same batch; expected a function that does not ask for'
      ' `host`',
    )
    self.check(
      self._is_split or not several or self.is_deterministic,
      f'is_deterministic of {self.name} is False, so {self.num_infeed_hosts}'
      ' hosts cannot share one order of examples; expected a dataset_fn that'
      ' asks for `host` and `hosts`, and splits the data',
    )

  @property
  def _ends(self) -> bool:
    if self.is_training:
      return self.num_epochs is not None
    return self.reset_for_eval

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Returns:
      The fields of the examples, [B, ...], texts among them, and
      `eval_sample_weights`.

    Raises:
      StopIteration: the data is at its end.
    """
    if self._batches is None:
      self._batches = iter(self._dataset())
    rows = self._next_rows()
    count = example_rows.num_rows(rows)
    weighed = example_rows.weighed(rows, count)
    digest = _digest(jax.tree.map(lambda x: x[:1], rows))
    if self._first is None and not self._read:
      self._first = digest
    self._firsts.update(digest.encode())
    self._read += self.batch_size * self._hosts
    # Of the others, each host has the first, to know that there is a batch.
    other = self._offset > 0
    real = count - other
    own = weighed
    if other and real:
      own = jax.tree.map(lambda x: x[1:], weighed)
    return example_rows.filled(own, real=real, rows=self.batch_size)

  def _next_rows(self) -> NestedMap:
    """Returns this host's examples of a step, behind the first of the step."""
    tf = lingvo_runtime.tensorflow()
    try:
      return NestedMap.from_nested(
        jax.tree.map(lambda x: x.numpy(), next(self._batches))
      )
    except (tf.errors.OpError, UnicodeDecodeError) as e:
      raise self._failure(tf, e) from e

  def _failure(self, tf: Any, error: Exception) -> errors.UserError:
    """Returns an error that says over which record the dataset failed."""
    told = (
      f'{type(self).__name__} {self.name!r}: the dataset fails after'
      f' {self._read} examples'
    )
    files = dataset_files.record_files(self._examples(tf))
    found = damaged_records.explain(error, files)
    if found is not None:
      return errors.UserError(f'{told}: {found}')
    if damaged_records.is_about_a_record(error):
      told += ', over a record of a file that is not known'
      told += f' (none of the {len(files)} that it names)' if files else ''
    else:
      told += ', which are to have one shape'
    text = damaged_records.told_by_tensorflow(error)[1]
    return errors.UserError(f'{told}: {getattr(error, "message", text)}')

  @property
  def _hosts(self) -> int:
    """Over how many hosts this input splits the dataset."""
    return 1 if self._is_split else self.num_infeed_hosts

  @property
  def _offset(self) -> int:
    """Where this host's examples begin among those of a step."""
    return 0 if self._is_split else self.batch_size * self.infeed_host_index

  def _dataset(self) -> Any:
    """Returns the dataset of this host's batches from where it stands.

    On hosts other than the first, each batch begins with the first example of
    the step, whatever host it belongs to.
    """
    tf = lingvo_runtime.tensorflow()
    examples = self._examples(tf).skip(self._read)
    offset, size = self._offset, self.batch_size
    total = size * self._hosts

    def is_read(number, unused_example):
      place = number % total
      own = tf.logical_and(place >= offset, place < offset + size)
      return tf.logical_or(own, place == 0)

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
    """Examples of all hosts in an epoch; None where TensorFlow cannot tell."""
    tf = lingvo_runtime.tensorflow()
    count = int(self._made(tf).cardinality())
    return None if count < 0 or self._is_split else count

  def batch_specs(self) -> NestedMap | None:
    """Returns the shapes of a batch, where the dataset knows its own."""
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
      example_rows.weighed(row, 1),
      rows=self.batch_size + self.batch_padding_size,
    )

  def reset(self):
    self._go_to(0)

  def resume_at(self, step: int):
    """Goes to where `step` batches of this size end, of as many hosts."""
    self._go_to(
      step * self.batch_size * self._hosts if self.is_deterministic else 0
    )

  def _go_to(self, read: int):
    self._read = read
    self._firsts = hashlib.blake2b(digest_size=8)
    self._batches = None

  def after_restart(self) -> str:
    if self.is_deterministic:
      return 'it goes on at the example that comes next in its order'
    return 'its dataset, which is not deterministic, is read from the start'

  def order_digest(self) -> bytes | None:
    """Returns 8 bytes that are the same where hosts read the same examples.

    They are made of the first example of each step. None where each host has a
    part of the data.
    """
    return None if self._is_split else self._firsts.digest()

  def close(self):
    """Frees the pipeline: its threads and files."""
    self._batches = None

  def _get_state_internal(self) -> bytes:
    if not self.is_deterministic:
      raise NotImplementedError(f'{self.name} has is_deterministic=False')
    state = {'examples_read': self._read, 'first_example': self._first}
    return json.dumps(state).encode()

  def _set_state_internal(self, state: bytes):
    if not self.is_deterministic:
      raise NotImplementedError(f'{self.name} has is_deterministic=False')
    try:
      found = json.loads(state)
      read, first = found['examples_read'], found['first_example']
      known = input_fields.is_int(read) and read >= 0
    except (ValueError, KeyError, TypeError):
      known = False
    self.check(
      known,
      f'{state[:80]!r} is no state of {self.name}; expected what get_state()'
      ' returned',
    )
    if first is not None:
      self._check_first(first)
    if read:
      logging.info(
        '%r reads and skips the %d examples that were read before',
        self.name,
        read,
      )
    self._first = first
    self._go_to(read)

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
      f'{self.name} cannot go on where it was: its dataset begins with another'
      ' example than before. If it shuffles, dataset_fn is to take the argument'
      ' `seed` and give it to shuffle(); if nothing can be done, set'
      ' is_deterministic=False',
    )


def _digest(example: NestedMap) -> str:
  digest = hashlib.blake2b(digest_size=8)
  for path, x in example.flatten_items():
    digest.update(f'{path} {x.dtype} {x.shape}'.encode())
    digest.update(host_fields.digestible(x))
  return digest.hexdigest()
