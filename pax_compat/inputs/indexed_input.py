"""Inputs of examples that can be asked for by number.

Legend: B examples of a host in a batch, H hosts, n examples in all.
"""

import functools
import hashlib
import json
from typing import Any

import numpy as np

from pax_compat import base_input, errors
from pax_compat.input_core import example_rows, input_fields
from pax_compat.inputs import shuffled_order
from pax_compat.nested_map import NestedMap


class IndexedInput(base_input.BaseInput):
  """Gives each of n examples exactly once in an epoch, over all hosts.

  A subclass says how many examples there are and what they hold:

      class Squares(indexed_input.IndexedInput):

        num_examples = 1000

        def examples(self, indices):
          return NestedMap(x=indices, y=indices**2)

  There is one order of the examples of all epochs, the same on all hosts. Of it
  each step takes the next B * H, and host h the h-th B of these, so a batch may
  hold the end of one epoch and the beginning of the next. Where the data ends,
  the last batch is filled up with rows whose `eval_sample_weights` are 0, on
  every host, though it may have no example of its own.

  An evaluation with `reset_for_eval` reads one epoch; training and evaluations
  on a rolling basis go on for ever, unless `num_epochs` says otherwise.

  The state is how many examples were read, so a run goes on at the next example
  with any number of hosts, and any batch size.

  Attributes:
    batch_size: B, required.
    shuffle: whether the examples come in random order, another one in each
      epoch, chosen by `input_random_seed`, of which None is 0. None for
      training inputs only.
    num_epochs: how many epochs a training input has; None for no end.

  Raises:
    UserError: the fields do not go together, or data without an end is asked
      for where there is no example.
  """

  shuffle: bool | None = None
  num_epochs: int | None = None

  def __post_init__(self):
    super().__post_init__()
    self._check_numbers()
    if self.shuffle is None:
      self.shuffle = self.is_training
    self._read = 0
    self._last_order: tuple[int, shuffled_order.ShuffledOrder] | None = None

  @property
  def state_fits_any_hosts(self) -> bool:
    return True

  def _check_numbers(self):
    self.get_batch_size(self)  # There must be one.
    seed = self.input_random_seed
    self.check(
      seed is None or (input_fields.is_int(seed) and seed >= 0),
      f'input_random_seed of {self.name} is {seed!r}; expected a number of at'
      ' least 0',
    )
    epochs = self.num_epochs
    self.check(
      epochs is None or (input_fields.is_int(epochs) and epochs >= 1),
      f'num_epochs of {self.name} is {epochs!r}; expected at least 1, or None'
      ' for no end',
    )
    self.check(
      epochs is None or self.is_training,
      f'num_epochs of {self.name} is {epochs}, and is_training is False; an'
      ' evaluation reads one epoch with reset_for_eval, and the next batches of'
      ' data without an end otherwise',
    )

  @property
  def num_examples(self) -> int:
    """How many examples there are; for subclasses to write."""
    raise self._lacking('`num_examples`; expected the number of its examples')

  def examples(self, indices: np.ndarray) -> NestedMap:
    """Returns some examples; for subclasses to write.

    Args:
      indices: [k], int64, from 0 to `num_examples` - 1, k at least 1.

    Returns:
      Arrays [k, ...], and `eval_sample_weights` [k] only where examples do not
      count as one.
    """
    raise self._lacking('method `examples`; expected one that returns some')

  def _lacking(self, what: str) -> errors.UserError:
    return errors.UserError(f'{type(self).__name__} has no {what}')

  def examples_in_epochs(
    self, indices: np.ndarray, epochs: np.ndarray
  ) -> NestedMap:
    """Returns some examples; for subclasses whose examples change by epoch.

    Args:
      indices: as of `examples`.
      epochs: [k], int64, of each example, from 0 on.
    """
    del epochs
    return self.examples(indices)

  @property
  def num_samples(self) -> int:
    """Examples of all hosts in an epoch."""
    return self._size

  @functools.cached_property
  def _size(self) -> int:
    size = self.num_examples
    self.check(
      isinstance(size, int | np.integer) and size >= 0,
      f'num_examples of {self.name} is {size!r}; expected a number of at'
      ' least 0',
    )
    self.check(
      size > 0 or (self.reset_for_eval and not self.is_training),
      f'{self.name} has no examples; expected at least one, as it is read again'
      ' and again',
    )
    return int(size)

  @property
  def _end(self) -> int | None:
    """How many examples there are in all epochs; None for no end."""
    if self.is_training:
      return self._size * self.num_epochs if self.num_epochs else None
    return self._size if self.reset_for_eval else None

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Returns:
      What `examples` returns, [B, ...], with `eval_sample_weights`.

    Raises:
      StopIteration: the data is at its end.
    """
    end, rows = self._end, self.batch_size
    if end is not None and self._read >= end:
      raise StopIteration
    start = self._read + rows * self.infeed_host_index
    real = rows if end is None else min(max(end - start, 0), rows)
    # A host that has none asks for the first of all, to have the shapes.
    positions = start + np.arange(real) if real else np.array([self._read])
    batch = self._examples_at(positions)
    after = self._read + rows * self.num_infeed_hosts
    self._read = after if end is None else min(after, end)
    return example_rows.filled(batch, real=real, rows=rows)

  def _examples_at(self, positions: np.ndarray) -> NestedMap:
    """Returns the examples of positions [k] in the order of all epochs."""
    epochs, places = np.divmod(positions.astype(np.int64), self._size)
    indices = places
    if self.shuffle:
      indices = np.empty_like(places)
      for epoch in np.unique(epochs):
        rows = epochs == epoch
        indices[rows] = self._order(int(epoch)).at(places[rows])
    batch = self.examples_in_epochs(indices, epochs)
    self._check_rows(batch, len(positions))
    return example_rows.weighed(batch, len(positions))

  def _order(self, epoch: int) -> shuffled_order.ShuffledOrder:
    """Returns the order of an epoch; successive batches mostly share one."""
    if self._last_order is None or self._last_order[0] != epoch:
      seed = self.input_random_seed or 0
      order = shuffled_order.ShuffledOrder(self._size, seed=seed, epoch=epoch)
      self._last_order = epoch, order
    return self._last_order[1]

  def _check_rows(self, batch: Any, rows: int):
    self.check(
      isinstance(batch, NestedMap) and bool(batch),
      f'the examples of {self.name} are a {type(batch).__name__}; expected a'
      ' NestedMap of arrays',
    )
    for path, x in batch.flatten_items():
      shape = getattr(x, 'shape', None)
      self.check(
        isinstance(x, np.ndarray) and shape[:1] == (rows,),
        f'the field {path!r} of {rows} examples of {self.name} is a'
        f' {type(x).__name__} of shape {shape}; expected a NumPy array of'
        f' {rows} rows',
      )

  def batch_specs(self) -> NestedMap | None:
    """Returns the shapes of a batch; reads one example, and no batch."""
    if not self._size:
      return None
    example = self._examples_at(np.zeros(1, np.int64))
    return self.specs_of(
      example, rows=self.batch_size + self.batch_padding_size
    )

  def reset(self):
    self._read = 0

  def resume_at(self, step: int):
    """Goes to where `step` batches of this size end, of as many hosts."""
    self._read = step * self.batch_size * self.num_infeed_hosts

  def order_digest(self) -> bytes:
    """Returns 8 bytes that say what all hosts together have read."""
    return hashlib.blake2b(self._get_state_internal(), digest_size=8).digest()

  def _facts(self) -> dict[str, Any]:
    """Returns what the order of examples depends on."""
    seed = (self.input_random_seed or 0) if self.shuffle else None
    return {'num_examples': self._size, 'input_random_seed': seed}

  def _get_state_internal(self) -> bytes:
    return json.dumps({'examples_read': self._read, **self._facts()}).encode()

  def _set_state_internal(self, state: bytes):
    try:
      found = json.loads(state)
      read = found.pop('examples_read')
      known = found.keys() == self._facts().keys() and input_fields.is_int(read)
    except (ValueError, AttributeError, KeyError, TypeError):
      known = False
    self.check(
      known and read >= 0,
      f'{state[:80]!r} is no state of {self.name}; expected what get_state()'
      ' returned',
    )
    differ = [
      f'{name} was {found[name]} and is {value}'
      for name, value in self._facts().items()
      if found[name] != value
    ]
    self.check(
      not differ,
      f'{self.name} cannot go on where it was, after {read} examples:'
      f' {", ".join(differ)} (input_random_seed is None where nothing is'
      ' shuffled)',
    )
    self._read = read
