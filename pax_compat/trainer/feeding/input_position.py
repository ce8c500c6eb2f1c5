"""Input checkpointing: saves and restores the training input's position."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from pax_compat import base_input, errors

# Key of the training input's state in a checkpoint.
_INPUT = 'input'
# States are padded to a multiple of this length before they are gathered, so
# that few lengths are compiled.
_ROUND_BYTES = 1 << 12


class InputPosition:
  """Gets, saves and restores the state of the training input.

  The prefetching thread gets the state after each batch, ahead of the steps. So
  a checkpoint has the state that came with its step's batch.

  All processes make the same calls.
  """

  def __init__(self, data: base_input.BaseInput, *, demanded: bool):
    """Checks whether the input has a state.

    Args:
      data: the training input, from which nothing was read yet.
      demanded: whether it must have one.

    Raises:
      UserError: it must, and does not.
    """
    self._data = data
    self._demanded = demanded
    self._wrong = self._why_no_state()
    if self._wrong and demanded:
      raise errors.UserError(
        'Train.enable_input_checkpointing is set, and the training input'
        f' {data.name!r} does not support it: {self._wrong}; expected an input'
        ' with get_state() and set_state(), or the field not to be set'
      )

  def get_state(self) -> bytes | None:
    """Returns the state of the input; None if it does not have one."""
    return None if self._wrong else self._data.get_state()

  def begin(self, step: int, extra: Mapping[str, Any] | None):
    """Moves the input to its start, and logs whether that is exact.

    Args:
      step: number of steps made before.
      extra: metadata of the checkpoint that the run continues from; None for a
        run without a checkpoint.

    Raises:
      UserError: the input refuses the state, or an exact start is demanded and
        not possible.
    """
    if extra is None:
      self._start(step)
      return
    saved = extra.get(_INPUT)
    wrong = self._wrong or self._why_not_fitting(saved)
    if wrong:
      self._go_on_without(step, wrong)
    else:
      self._go_on(step, saved)

  def _start(self, step: int):
    data = self._data
    data.resume_at(step)
    if self._wrong:
      logging.warning(
        'the training input %r may not continue exactly after a restart: %s.'
        ' Then %s',
        data.name,
        self._wrong,
        data.after_restart(),
      )
    else:
      logging.info(
        'the training input %r continues exactly after a restart, on %s',
        data.name,
        'any number of hosts'
        if data.state_fits_any_hosts
        else _hosts_text(data.num_infeed_hosts),
      )

  def _go_on(self, step: int, saved: Mapping[str, Any]):
    data = self._data
    states = saved['states']  # One for each host, or one for all.
    mine = states[data.infeed_host_index % len(states)]
    data.set_state(base64.b64decode(mine))
    logging.info(
      'the training input %r continues exactly after step %d, saved by %s and'
      ' read by %s',
      data.name,
      step,
      _hosts_text(saved['hosts']),
      _hosts_text(data.num_infeed_hosts),
    )

  def _go_on_without(self, step: int, wrong: str):
    data = self._data
    if self._demanded:
      raise errors.UserError(
        'Train.enable_input_checkpointing is set, and the training input'
        f' {data.name!r} cannot continue exactly after step {step}: {wrong};'
        ' without the field it continues as well as it can'
      )
    data.resume_at(step)
    logging.warning(
      'the training input %r may not continue exactly after step %d: %s. So %s',
      data.name,
      step,
      wrong,
      data.after_restart(),
    )

  def to_save(self, state: bytes | None) -> dict[str, Any]:
    """Returns the input's entry in a checkpoint, as JSON values.

    Args:
      state: what this process's `get_state` returned after the step's batch.

    Raises:
      UserError: the state must be the same on all hosts, and differs.
    """
    if state is None:
      return {}
    states = self._states_of_hosts(state)
    return {
      _INPUT: {
        'class': _class_name(self._data),
        'hosts': self._data.num_infeed_hosts,
        'fits_any_hosts': self._data.state_fits_any_hosts,
        'states': [base64.b64encode(s).decode() for s in states],
      }
    }

  def _why_no_state(self) -> str:
    """Returns why the input has no state; '' if it has one on all hosts."""
    wrong = ''
    try:
      self._data.get_state()
    except NotImplementedError as e:
      wrong = f'a {_class_name(self._data)} has no state'
      if self._data.children():
        wrong += f', because {e} has no state'
    except errors.UserError as e:
      wrong = f'its state is not available: {e}'
    if jax.process_count() > 1:
      none = multihost_utils.process_allgather(np.bool_(wrong))
      wrong = wrong or ('it has no state on some hosts' if none.any() else '')
    return wrong

  def _why_not_fitting(self, saved: Mapping[str, Any] | None) -> str:
    """Returns why a checkpoint's state does not fit; '' if it does."""
    data = self._data
    if saved is None:
      return 'the checkpoint has no state of the input'
    if saved['class'] != _class_name(data):
      return (
        f'the checkpoint has the state of a {saved["class"]}, and the input'
        f' is a {_class_name(data)}'
      )
    if saved['hosts'] == data.num_infeed_hosts or (
      saved['fits_any_hosts'] and data.state_fits_any_hosts
    ):
      return ''
    return (
      f'the state in the checkpoint is for {_hosts_text(saved["hosts"])}, and'
      f' this run has {_hosts_text(data.num_infeed_hosts)}'
    )

  def _states_of_hosts(self, state: bytes) -> list[bytes]:
    """Returns the state of each infeed host, or a single state for all."""
    if jax.process_count() == 1:
      return [state]
    local = [self._data.infeed_host_index, len(state), zlib.crc32(state)]
    gathered = multihost_utils.process_allgather(np.array(local, np.uint32))
    hosts, sizes, sums = gathered.T.tolist()
    if self._data.state_fits_any_hosts:
      if len(set(sums)) > 1:
        raise errors.UserError(
          f'the states of {_class_name(self._data)} differ between hosts;'
          ' expected the same, as state_fits_any_hosts is True'
        )
      return [state]
    padded = np.zeros((max(sizes) // _ROUND_BYTES + 1) * _ROUND_BYTES, np.uint8)
    padded[: len(state)] = np.frombuffer(state, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    firsts = [hosts.index(h) for h in range(self._data.num_infeed_hosts)]
    return [rows[i, : sizes[i]].tobytes() for i in firsts]


def _class_name(data: base_input.BaseInput) -> str:
  return type(data).__qualname__


def _hosts_text(count: int) -> str:
  return f'{count} host{"s" if count != 1 else ""}'
