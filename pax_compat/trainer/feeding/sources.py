"""What the batches of a pipeline come from, for messages to the user."""

import dataclasses
import inspect

from pax_compat import base_input, errors


@dataclasses.dataclass(frozen=True)
class Source:
  """The input of a pipeline.

  Attributes:
    data: the input; None if it is not known.
    first_step: the train step of the first batch; None if its batches are not
      trained on.
  """

  data: base_input.BaseInput | None = None
  first_step: int | None = None

  def __str__(self) -> str:
    return 'the input' if self.data is None else f'the input {self.data.name!r}'

  def batch(self, number: int) -> str:
    """Returns a description of a batch.

    >>> Source(None, first_step=5).batch(2)
    'batch 2 of the input, for step 6'

    Args:
      number: of the batch, from 1 on.
    """
    step = ''
    if self.first_step is not None:
      step = f', for step {self.first_step + number - 1}'
    return f'batch {number} of {self}{step}{self._location()}'

  def _location(self) -> str:
    """Returns where the user defines `get_next`; '' if not in user code."""
    try:
      function = type(self.data).get_next
      file = inspect.getsourcefile(function)
      line = inspect.getsourcelines(function)[1]
    except (AttributeError, TypeError, OSError):
      return ''
    if file is None or not errors.is_user_code(file):
      return ''
    return f' ({file}:{line})'


def explain(error: BaseException, source: Source, number: int) -> BaseException:
  """Returns the error to raise in place of one of a pipeline.

  Args:
    error: a UserError, to whose message the batch is added; any other error,
      which gets a note; or an exception such as SystemExit, which is replaced.
    source: of the pipeline.
    number: of the batch that was read, from 1 on.
  """
  batch = source.batch(number)
  if isinstance(error, errors.UserError):
    error.args = (f'{error}\n  in {batch}',)
  elif isinstance(error, Exception):
    error.add_note(f'in {batch}')
  else:
    return errors.UserError(
      f'{error!r} was raised by {batch}; expected a batch, or StopIteration at'
      ' the end of the data'
    ).with_traceback(error.__traceback__)
  return error
