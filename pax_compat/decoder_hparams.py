"""Settings of decoders."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# (network, decoded) -> decoded; post-processing on the accelerators.
ProcessResultFn = Callable[[Any, NestedMap], NestedMap]


class DecoderHParams(config_lib.Configurable):
  """Base of the settings of decoders.

  Steps are decoded tokens, without those of the prefix.

  Attributes:
    seqlen: maximum number of tokens of an output, prefix included; longer
      prefixes are truncated. It must be set.
    eos_id: the token that ends a sequence, or several such tokens; by default
      2. It is the last token of an output.
    min_decode_steps: minimum number of steps, by default 0.
    max_decode_steps: maximum number of steps; None, the default, is limited by
      `seqlen` only.
    fprop_for_prefix: whether the network reads the prefix in one step instead
      of token by token. It needs `max_decode_steps`: an output has as many
      positions after the longest prefix.
    process_result_fn: a function (network, decoded) -> decoded that
      post-processes the result; or None, the default.

  Raises:
    UserError: a value has a wrong type or range.
  """

  seqlen: int = 0
  eos_id: int | Sequence[int] = 2
  min_decode_steps: int = 0
  max_decode_steps: int | None = None
  fprop_for_prefix: bool = False
  process_result_fn: ProcessResultFn | None = None

  def __post_init__(self):
    for name, least in (
      ('seqlen', 0),
      ('min_decode_steps', 0),
      ('max_decode_steps', 1),
    ):
      value = getattr(self, name)
      if value is None and name == 'max_decode_steps':
        continue
      if not isinstance(value, Integral) or value < least:
        raise errors.UserError(
          f'{type(self).__name__}.{name} is {value!r}; expected an integer of'
          f' at least {least}'
        )
    ids = self.eos_id
    if isinstance(ids, Sequence) and not isinstance(ids, str):
      is_valid = bool(ids) and all(isinstance(i, Integral) for i in ids)
    else:
      is_valid = isinstance(ids, Integral)
    if not is_valid:
      raise errors.UserError(
        f'{type(self).__name__}.eos_id is {ids!r}; expected a token id (an'
        ' integer), or several'
      )

  @property
  def eos_ids(self) -> tuple[int, ...]:
    """The tokens that end a sequence."""
    ids = self.eos_id
    return (ids,) if isinstance(ids, Integral) else tuple(ids)

  def check_complete(self):
    """Raises a UserError unless all required settings are set."""
    self.check(
      self.seqlen > 0,
      f'seqlen is {self.seqlen}; expected a number above 0, the maximum number'
      ' of tokens of an output',
    )
    self.check(
      not self.fprop_for_prefix or self.max_decode_steps is not None,
      'max_decode_steps is None; expected a number, since fprop_for_prefix is'
      ' True',
    )


class GreedyDecoderHParams(DecoderHParams):
  """Settings of greedy decoding: the most likely token in each step."""
