"""Whether attention layers return their weights."""

# Whether the attention of this process returns its weights by default.
_always_returned = False


def return_by_default(always: bool = True):
  """Sets whether all attention of this process returns its weights.

  For code that was written for Pax and reads them; see `return_atten_probs`.
  """
  global _always_returned
  _always_returned = always


def are_returned(asked: bool) -> bool:
  """Whether a layer returns its weights.

  Args:
    asked: its field `return_atten_probs`.
  """
  return asked or _always_returned
