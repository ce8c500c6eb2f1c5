"""Where the training input stands: in a checkpoint, and after a restart."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from pax_compat import base_input, errors

# What a checkpoint calls the training input's state.
_INPUT = 'input'
# States of several processes are sent as arrays of a multiple of this length,
# so that few lengths are compiled.
_ROUND_BYTES = 1 << 12


class InputPosition:
  """Takes the state of the training input, and takes the input to a state.

  An input that has a state is asked for it after each batch, in the thread that
  reads, which is ahead of the steps. So the state that is saved with a step is
  the one that came with the step's batch.

  All processes make the same calls.
  """

  def __init__(self, data: base_input.BaseInput, *, demanded: bool):
    """Asks the input whether it has a state.

    Args:
      data: the training input, from which nothing was read yet.
      demanded: whether it must have one.

    Raises:
      UserError: it must, and has none.
    """
    self._data = data
    self._demanded = demanded
    self._wrong = self._why_no_state()
    if self._wrong and demanded:
      raise errors.UserError(
        'Train.enable_input_checkpointing is set, and the training input'
        f' {data.name!r} has no part in that: {self._wrong}; expected an input'
        ' with get_state() and set_state(), or the field not to be set'
      )

  def get_state(self) -> bytes | None:
    """Returns where the input stands; None where it cannot tell."""
    return None if self._wrong else self._data.get_state()

  def begin(self, step: int, extra: Mapping[str, Any] | None):
    """Takes the input to where it should go on, and logs how exact that is.

    Args:
      step: how many steps were made before.
      extra: what the checkpoint that the run continues from says beside the
        weights; None for a run that has no checkpoint of its own.

    Raises:
      UserError: the state is not one of the input's, or it does not fit and is
        demanded.
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
    """Returns what a checkpoint is to say of the input, as JSON values.

    Args:
      state: what this process's `get_state` returned after the step's batch.

    Raises:
      UserError: the state should be the same on all hosts, and is not.
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
    """Returns why the input has no state, '' if it has one, on all hosts."""
    wrong = ''
    try:
      self._data.get_state()
    except NotImplementedError as e:
      wrong = f'a {_class_name(self._data)} has no state'
      if self._data.children():
        wrong += f', as {e} has none'
    except errors.UserError as e:
      wrong = f'it cannot tell its state: {e}'
    if jax.process_count() > 1:
      none = multihost_utils.process_allgather(np.bool_(wrong))
      wrong = wrong or ('it has no state on some hosts' if none.any() else '')
    return wrong

  def _why_not_fitting(self, saved: Mapping[str, Any] | None) -> str:
    """Returns why a checkpoint's state is not for this input, '' if it is."""
    data = self._data
    if saved is None:
      return 'the checkpoint has no state of it'
    if saved['class'] != _class_name(data):
      return (
        f'the state in the checkpoint is of a {saved["class"]}, and the input'
        f' is a {_class_name(data)}'
      )
    if saved['hosts'] == data.num_infeed_hosts or (
      saved['fits_any_hosts'] and data.state_fits_any_hosts
    ):
      return ''
    return (
      f'the state in the checkpoint is for {_hosts_text(saved["hosts"])}, and'
      f' now it is read by {_hosts_text(data.num_infeed_hosts)}'
    )

  def _states_of_hosts(self, state: bytes) -> list[bytes]:
    """Returns the state of each infeed host, or a single one for all."""
    if jax.process_count() == 1:
      return [state]
    about = [self._data.infeed_host_index, len(state), zlib.crc32(state)]
    gathered = multihost_utils.process_allgather(np.array(about, np.uint32))
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
