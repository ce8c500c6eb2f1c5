"""How sequences are decoded: the settings of decoders."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# (network, decoded) -> decoded, the last step on the accelerators.
ProcessResultFn = Callable[[Any, NestedMap], NestedMap]


class DecoderHParams(config_lib.Configurable):
  """Base of the settings of decoders.

  Steps are decoded tokens; the tokens of the prefix are not counted among them.

  Attributes:
    seqlen: tokens of an output at most, its prefix included; a prefix that is
      longer is cut off. It must be set.
    eos_id: the token that ends a sequence, or several such tokens; by default
      2. It is the last token of an output.
    min_decode_steps: steps before which no sequence ends, by default 0.
    max_decode_steps: steps that a sequence has at most; None, the default, for
      as many as `seqlen` leaves room for.
    fprop_for_prefix: whether the network reads the prefix at once, rather than
      token by token. It needs `max_decode_steps`: outputs have that much room
      after the longest prefix.
    process_result_fn: a function (network, decoded) -> decoded of the last
      step; None, the default, for none.

  Raises:
    UserError: a value is not one of these.
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
          f'{type(self).__name__}.{name} is {value!r}; expected one whole'
          f' number of at least {least}'
        )
    ids = self.eos_id
    if isinstance(ids, Sequence) and not isinstance(ids, str):
      known = bool(ids) and all(isinstance(i, Integral) for i in ids)
    else:
      known = isinstance(ids, Integral)
    if not known:
      raise errors.UserError(
        f'{type(self).__name__}.eos_id is {ids!r}; expected a token, which is a'
        ' whole number, or several'
      )

  @property
  def eos_ids(self) -> tuple[int, ...]:
    """The tokens that end a sequence."""
    ids = self.eos_id
    return (ids,) if isinstance(ids, Integral) else tuple(ids)

  def check_complete(self):
    """Raises a UserError unless there are all settings to decode with."""
    self.check(
      self.seqlen > 0,
      f'seqlen is {self.seqlen}; expected a number above 0, the tokens of an'
      ' output at most',
    )
    self.check(
      not self.fprop_for_prefix or self.max_decode_steps is not None,
      'max_decode_steps is None; expected a number, which fprop_for_prefix'
      ' needs',
    )


class GreedyDecoderHParams(DecoderHParams):
  """Takes the most likely token in each step."""
