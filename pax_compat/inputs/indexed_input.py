"""Inputs of examples that are read by index.

Legend: B examples of a host in a batch, H hosts, n examples in all.
"""

import functools
import hashlib
from typing import Any

import numpy as np

from pax_compat import errors
from pax_compat.input_core import example_rows, input_fields
from pax_compat.inputs import epoch_input, shuffled_order
from pax_compat.nested_map import NestedMap


class IndexedInput(epoch_input.EpochInput):
  """Gives each of n examples exactly once in an epoch, over all hosts.

  A subclass defines the number of examples and reads them by index:

  >>> class Squares(IndexedInput):
  ...   num_examples = 5
  ...
  ...   def examples(self, indices):
  ...     return NestedMap(x=indices, y=indices**2)
  >>> config = Squares.config(batch_size=2, reset_for_eval=True)
  >>> data = config.Instantiate()
  >>> while (batch := data.peek_padded()) is not None:
  ...   print(data.get_next_padded().y, batch.eval_sample_weights)
  [0 1] [1. 1.]
  [4 9] [1. 1.]
  [16 16] [1. 0.]

  The state is the number of examples read, so a run continues on any number of
  hosts, with any batch size:

  >>> data.set_state(b'{"num_examples": 5, "input_random_seed": null, '
  ...                b'"examples_read": 2}')
  >>> data.get_next().x
  array([2, 3])

  There is one order of the examples of all epochs, the same on all hosts. Each
  step takes the next B * H of it, and host h the h-th B of these, so a batch
  may contain the end of one epoch and the start of the next. At the end of the
  data the last batch is padded with rows whose `eval_sample_weights` are 0, on
  every host, also if it has no example.

  Attributes:
    batch_size: B, required.
    shuffle: whether the examples come in random order, a different one in each
      epoch, chosen by `input_random_seed` (None is 0). None for training inputs
      only.

  Raises:
    UserError: the fields contradict each other, or data that never ends has no
      example.
  """

  shuffle: bool | None = None

  def __post_init__(self):
    super().__post_init__()
    seed = self.input_random_seed
    self.check(
      seed is None or (input_fields.is_int(seed) and seed >= 0),
      f'input_random_seed of {self.name} is {seed!r}; expected a number of at'
      ' least 0',
    )
    if self.shuffle is None:
      self.shuffle = self.is_training
    self._last_order: tuple[int, shuffled_order.ShuffledOrder] | None = None

  @property
  def state_fits_any_hosts(self) -> bool:
    return True

  @property
  def num_examples(self) -> int:
    """The number of examples; for subclasses."""
    raise self._lacking('`num_examples`; expected the number of its examples')

  def examples(self, indices: np.ndarray) -> NestedMap:
    """Returns the examples of some indices; for subclasses.

    Args:
      indices: [k], int64, from 0 to `num_examples` - 1, k at least 1.

    Returns:
      Arrays [k, ...]; with `eval_sample_weights` [k] if weights differ from 1.
    """
    raise self._lacking('method `examples`; expected one that returns examples')

  def _lacking(self, what: str) -> errors.UserError:
    return errors.UserError(f'{type(self).__name__} has no {what}')

  def examples_in_epochs(
    self, indices: np.ndarray, epochs: np.ndarray
  ) -> NestedMap:
    """Returns examples; for subclasses whose examples depend on the epoch.

    Args:
      indices: as of `examples`.
      epochs: [k], int64, epoch of each example, from 0 on.
    """
    del epochs
    return self.examples(indices)

  @property
  def num_samples(self) -> int:
    """Examples in an epoch, of all hosts."""
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
      f'{self.name} has no examples; expected at least one, as its data is'
      ' repeated',
    )
    return int(size)

  @property
  def _end(self) -> int | None:
    """The number of examples in all epochs; None for no end."""
    return self._size * (self.num_epochs or 1) if self._ends else None

  def get_next(self) -> NestedMap:
    """Returns the next batch.

    Returns:
      The arrays of `examples`, [B, ...], with `eval_sample_weights`.

    Raises:
      StopIteration: at the end of the data.
    """
    end, rows = self._end, self.batch_size
    if end is not None and self._examples_read >= end:
      raise StopIteration
    first = self._examples_read
    start = first + rows * self.infeed_host_index
    real = rows if end is None else min(max(end - start, 0), rows)
    # A host without an example reads the first of the step, for its shapes.
    positions = start + np.arange(real) if real else np.array([first])
    batch = self._examples_at(positions)
    after = first + self._global_batch_size
    self._examples_read = after if end is None else min(after, end)
    return example_rows.pad_batch(batch, real=real, rows=rows)

  def _examples_at(self, positions: np.ndarray) -> NestedMap:
    """Returns the examples at positions [k] of the order of all epochs."""
    epochs, offsets = np.divmod(positions.astype(np.int64), self._size)
    indices = offsets
    if self.shuffle:
      indices = np.empty_like(offsets)
      for epoch in np.unique(epochs):
        rows = epochs == epoch
        indices[rows] = self._order(int(epoch)).at(offsets[rows])
    batch = self.examples_in_epochs(indices, epochs)
    self._check_rows(batch, len(positions))
    return example_rows.with_example_weights(batch, len(positions))

  def _order(self, epoch: int) -> shuffled_order.ShuffledOrder:
    """Returns the order of an epoch; the last one used is kept."""
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
    """Returns the specs of a batch; reads one example."""
    if not self._size:
      return None
    example = self._examples_at(np.zeros(1, np.int64))
    return self.specs_of(
      example, rows=self.batch_size + self.batch_padding_size
    )

  def order_digest(self) -> bytes:
    """Returns an 8-byte digest of what all hosts together have read."""
    return hashlib.blake2b(self._get_state_internal(), digest_size=8).digest()

  def _metadata(self) -> dict[str, Any]:
    seed = (self.input_random_seed or 0) if self.shuffle else None
    return {'num_examples': self._size, 'input_random_seed': seed}

  def _check_metadata(self, saved: dict[str, Any], examples_read: int):
    differ = [
      f'{name} was {saved[name]} and is {value}'
      for name, value in self._metadata().items()
      if saved[name] != value
    ]
    self.check(
      not differ,
      f'{self.name} cannot continue after {examples_read} examples:'
      f' {", ".join(differ)} (input_random_seed is None without shuffling);'
      ' expected the same data. A run with other data begins in a new'
      ' --job_log_dir, from a checkpoint of this one:'
      ' task.train.init_from_checkpoint_rules',
    )
