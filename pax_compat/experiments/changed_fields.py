"""Errors of experiments whose fields were changed on the command line.

A value that no check refuses, such as a function's name or a width of 0, fails
somewhere in a layer. Then the error names what was changed, and the place, in
place of a traceback.
"""

from collections.abc import Sequence

from absl import logging

from pax_compat import errors

_MAX_CHANGES = 5


class SetUp:
  """Within it, errors of an experiment with changed fields are `UserError`s.

  Errors of an experiment without changes, and those after `done()`, are raised
  as they are: the traceback is of use to who wrote its code.

  """

  def __init__(self, changes: Sequence[str]):
    """Starts.

    Args:
      changes: the flags that changed the experiment.
    """
    self._changes = changes
    self._is_done = False

  def done(self):
    """Ends the set-up: later errors are not of the fields."""
    self._is_done = True

  def __enter__(self) -> 'SetUp':
    return self

  def __exit__(self, kind, error, traceback) -> None:
    if self._is_done or not self._changes:
      return
    if not isinstance(error, Exception) or isinstance(error, errors.UserError):
      return
    logging.debug('the set-up failed', exc_info=error)
    place = errors.location_of(error)
    shown = ' '.join(self._changes[:_MAX_CHANGES])
    more = len(self._changes) - _MAX_CHANGES
    shown += f' and {more} more changes' if more > 0 else ''
    raise errors.UserError(
      f'the experiment cannot be set up with {shown}:'
      f' {errors.one_line(error)} (at {place}; -v=1 shows the traceback)'
    ) from error
