"""Inputs: where a program gets its batches from."""

import re

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.nested_map import NestedMap

_NAME = re.compile(r'[a-zA-Z0-9.:_+-]+')


class BaseInput(config_lib.Configurable):
  """An iterator over batches, one instance for each process.

  Attributes:
    name: names the dataset in logs, metrics and summary folders.
    batch_size: examples in a batch of this process; None where the input
      decides by itself.
    num_infeed_hosts: how many processes feed; the trainer sets it.
    infeed_host_index: which of them this one is; the trainer sets it.
    input_random_seed: seed for shuffling.
    reset_for_eval: whether an evaluation reads to the end of the data and then
      calls `reset`.
    eval_loop_num_batches: batches of one evaluation where `reset_for_eval` is
      False; None or -1 for all that there are.
    is_training: whether this is the training input.

  Raises:
    UserError: the name has other characters than letters, digits and `.:_+-`,
      or `eval_loop_num_batches` is 0 or below -1.
  """

  name: str = 'input'
  batch_size: int | None = None
  num_infeed_hosts: int = 1
  infeed_host_index: int = 0
  input_random_seed: int | None = None
  reset_for_eval: bool = False
  eval_loop_num_batches: int | None = 1
  is_training: bool = False

  def __post_init__(self):
    if not _NAME.fullmatch(self.name):
      raise errors.UserError(
        f'{type(self).__name__}.name is {self.name!r}; only letters, digits'
        ' and the characters .:_+- may be in it'
      )
    if self.eval_loop_num_batches == -1:
      self.eval_loop_num_batches = None
    count = self.eval_loop_num_batches
    if count is not None and count < 1:
      raise errors.UserError(
        f'{self.name}: {type(self).__name__}.eval_loop_num_batches is {count};'
        ' expected at least 1, or None or -1 for all batches'
      )

  def get_next(self) -> NestedMap:
    """Returns the next batch: numpy arrays with the batch axis first.

    Raises:
      StopIteration: the data is at its end.
    """
    raise NotImplementedError(type(self).__name__)

  def reset(self):
    """Starts again at the first batch. Called on eval inputs only."""
    raise NotImplementedError(type(self).__name__)

  def close(self):
    """Frees threads and files. The input cannot be used afterwards."""

  def resume_at(self, step: int):
    """Tells a training input that `step` batches were consumed before.

    Called once, before the first `get_next`, when a run continues from a
    checkpoint. An input that can continue exactly there does; one that cannot
    says in a log line what it does instead.
    """
    del step

  def example_batch(self, first: NestedMap) -> NestedMap:
    """Returns a batch that a model is initialised with; only shapes matter.

    It is `first`, unless not every batch reaches all of the model's weights.

    Args:
      first: the first batch of `get_next`.
    """
    return first

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Makes texts of tokens; here the numbers, for an input that has no words.

    Args:
      ids: [B, T], int.
      lengths: [B], int, how many of a row's tokens count.
      key: which tokenizer, for inputs that have several, such as 'src' and
        'tgt'; None for the only one.

    Returns:
      B texts.
    """
    del key
    return [
      ' '.join(str(token) for token in row[:length])
      for row, length in zip(ids, lengths, strict=True)
    ]
