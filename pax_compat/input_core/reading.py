"""Reading an input: end of data, padding, peeking, saving the position."""

import functools
import os
import sys

import jax
from etils import epath

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields, token_ids
from pax_compat.nested_map import NestedMap


class ReadableInput(config_lib.Configurable):
  """Base of `BaseInput`: batches one after the other, with a saved position.

  It needs the fields `name`, `known_ids` and `batch_padding_size`.
  """

  # The batch that was peeked at, and the state before it was read.
  _peeked = None
  _state_before = None

  # Whether the leaves of the first batch were checked to be arrays.
  _has_arrays = False

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    # Wrapped, and no template method: as in Pax, users override `reset` itself.
    if 'reset' in vars(cls):
      cls.reset = _dropping_peeked(cls.reset)

  def get_next(self) -> NestedMap:
    """Returns the next batch: NumPy arrays with the batch axis first.

    Raises:
      StopIteration: at the end of the data. TensorFlow's `OutOfRangeError`
        means the same.
    """
    raise errors.UserError(
      f'{type(self).__name__} has no method `get_next`; expected one that'
      ' returns the next batch'
    )

  def get_next_padded(self) -> NestedMap:
    """Returns the next batch, checked and padded; the peeked one first.

    Raises:
      StopIteration: at the end of the data.
      UserError: the batch has an id outside of the vocabulary of the model.
    """
    if self._peeked is not None:
      batch = self._peeked
      self._drop_peeked()
      return batch
    batch = self._next_checked()
    if self.known_ids is not None:
      label = f'{type(self).__name__} {self.name!r}'
      token_ids.check_known(label, batch, self.known_ids)
    return self._padded(batch) if self.batch_padding_size else batch

  def peek_padded(self) -> NestedMap | None:
    """Returns the next batch without consuming it; None at the end."""
    if self._peeked is None:
      before = self._state_or_none()
      try:
        self._peeked = self.get_next_padded()
      except StopIteration:
        return None
      self._state_before = before
    return self._peeked

  def _next_checked(self) -> NestedMap:
    """Returns the batch of `get_next`, after checks of its type."""
    try:
      batch = self.get_next()
    except Exception as e:
      if _is_end_of_tf_data(e) and not isinstance(e, StopIteration):
        raise StopIteration from e
      raise
    instead = ''
    if isinstance(batch, dict):
      instead = ', such as NestedMap.FromNestedDict(batch)'
    self.check(
      isinstance(batch, NestedMap),
      f'get_next of {self.name} returned a {type(batch).__name__}; expected a'
      f' NestedMap of NumPy arrays{instead}',
    )
    if not self._has_arrays:
      for path, x in batch.flatten_items():
        self.check(
          hasattr(x, 'shape') and hasattr(x, 'dtype'),
          f'the field {path!r} of a batch of {self.name} is a'
          f' {type(x).__name__}; expected a NumPy array',
        )
      self._has_arrays = True
    return batch

  def _padded(self, batch: NestedMap) -> NestedMap:
    """Returns the batch with rows of zeros added, which have weight 0."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    batch = example_rows.with_example_weights(batch, rows)
    return jax.tree.map(
      lambda x: host_fields.extended(x, self.batch_padding_size), batch
    )

  def _drop_peeked(self):
    self._peeked = self._state_before = None

  def reset(self):
    """Restarts at the first batch. Called on eval inputs only.

    The peeked batch is dropped, also if a subclass overrides `reset`.
    """
    raise NotImplementedError(type(self).__name__)

  def get_state(self) -> bytes:
    """Returns the position: the state before the next batch.

    A peeked batch is not consumed yet.

    Raises:
      NotImplementedError: the input has no state.
      UserError: the state is not known.
    """
    if self._peeked is None:
      return self._get_state_internal()
    if self._state_before is None:
      raise errors.UserError(
        f'{type(self).__name__} {self.name!r} had no state before'
        ' peek_padded(); expected get_state() before it'
      )
    return self._state_before

  def set_state(self, state: bytes):
    """Moves to the position of `get_state`.

    Raises:
      NotImplementedError: the input has no state.
      UserError: the state is not a state of this input.
    """
    self._drop_peeked()
    self._set_state_internal(state)

  def save(self, path: os.PathLike | str):
    """Writes the state to a file."""
    epath.Path(path).write_bytes(self.get_state())

  def restore(self, path: os.PathLike | str):
    """Reads the state from a file.

    Raises:
      UserError: the file cannot be read, or as for `set_state`.
    """
    try:
      state = epath.Path(path).read_bytes()
    except OSError as e:
      raise errors.UserError(
        f'the state of {type(self).__name__} {self.name!r} cannot be read from'
        f' {path}: {e}'
      ) from e
    self.set_state(state)

  def _get_state_internal(self) -> bytes:
    """Returns the state; for subclasses to override.

    Called after every batch of a training input, in the thread that reads.
    """
    raise NotImplementedError(type(self).__name__)

  def _set_state_internal(self, state: bytes):
    """Moves to the position of a state; for subclasses to override."""
    raise NotImplementedError(type(self).__name__)

  def _state_or_none(self) -> bytes | None:
    try:
      return self._get_state_internal()
    except (NotImplementedError, errors.UserError):
      return None


def _is_end_of_tf_data(error: Exception) -> bool:
  """Whether an error is TensorFlow's end of data, if TensorFlow is loaded."""
  tf = sys.modules.get('tensorflow.python.framework.errors_impl')
  return tf is not None and isinstance(error, tf.OutOfRangeError)


def _dropping_peeked(reset):
  """Returns a `reset` that drops the peeked batch first."""

  @functools.wraps(reset)
  def drops(self):
    self._drop_peeked()
    return reset(self)

  return drops
