"""Inputs whose position is the number of examples read, by all hosts."""

import json
from typing import Any

from pax_compat import base_input
from pax_compat.input_core import input_fields


class EpochInput(base_input.BaseInput):
  """Base of inputs with one order of the examples of all epochs.

  Each step takes the next B * H examples, for B examples in a batch of each of
  H hosts. An evaluation with `reset_for_eval` reads one epoch; training and
  evaluations on a rolling basis never end, unless `num_epochs` is set.

  Subclasses move to `_examples_read` at the next batch, or override `_go_to`.

  Attributes:
    batch_size: B, required.
    num_epochs: number of epochs of a training input; None for no end.
  """

  num_epochs: int | None = None

  # The position: examples of all epochs read by all hosts.
  _examples_read = 0

  def __post_init__(self):
    super().__post_init__()
    self.get_batch_size(self)  # Required.
    epochs = self.num_epochs
    self.check(
      epochs is None
      or (self.is_training and input_fields.is_int(epochs) and epochs >= 1),
      f'num_epochs of {self.name} is {epochs!r}, and is_training is'
      f' {self.is_training}; expected None, or at least 1 of a training input'
      ' (an evaluation reads one epoch with reset_for_eval, and the next'
      ' batches of repeated data otherwise)',
    )

  @property
  def _ends(self) -> bool:
    """Whether the data ends, after one or several epochs."""
    if self.is_training:
      return self.num_epochs is not None
    return self.reset_for_eval

  @property
  def _global_batch_size(self) -> int:
    """Examples of a step: B * H."""
    return self.batch_size * self.num_infeed_hosts

  def _go_to(self, examples_read: int):
    self._examples_read = examples_read

  def reset(self):
    self._go_to(0)

  def resume_at(self, step: int):
    """Moves past `step` batches of the current size, on as many hosts."""
    self._go_to(step * self._global_batch_size)

  def _metadata(self) -> dict[str, Any]:
    """Returns what the order depends on, as JSON values, for the state."""
    return {}

  def _check_metadata(self, saved: dict[str, Any], examples_read: int):
    """Raises a UserError if a state's metadata is of another order."""

  def _get_state_internal(self) -> bytes:
    state = {'examples_read': self._examples_read, **self._metadata()}
    return json.dumps(state).encode()

  def _set_state_internal(self, state: bytes):
    metadata = self._metadata()
    try:
      saved = json.loads(state)
      read = saved.pop('examples_read')
      is_valid = (
        saved.keys() == metadata.keys()
        and input_fields.is_int(read)
        and read >= 0
      )
    except (ValueError, AttributeError, KeyError, TypeError):
      is_valid = False
    self.check(
      is_valid,
      f'{state[:80]!r} is not a state of {self.name}; expected what get_state()'
      ' returned',
    )
    self._check_metadata(saved, read)
    self._go_to(read)
