"""How layers describe which products belong to a model's FLOPs.

`trainer.model_flops` counts the products of a forward pass.
"""

import contextlib
import contextvars
import fractions
import functools
import re
from collections.abc import Callable

import jax

from pax_compat.config_core import context_values

# Names in the stack of JAX's name scopes.
SELECTION = 'selection_by_one_hot'
_USEFUL = 'useful_part'
_PARTS = re.compile(rf'{_USEFUL}_(\d+)_of_(\d+)')

_is_counting = contextvars.ContextVar('is_counting_flops', default=False)


def selection() -> contextlib.AbstractContextManager:
  """Within it, products with one-hot arrays are not counted.

  They select, as an index would: a lookup in a table, the dispatch of tokens to
  experts.
  """
  return jax.named_scope(SELECTION)


def useful_part(fn: Callable, part: int, whole: int) -> Callable:
  """Returns a function of whose products only `part / whole` are counted.

  A stage of a pipeline, for example, computes bubbles, too.
  """

  @functools.wraps(fn)
  def wrapped(*args, **kwargs):
    with jax.named_scope(f'{_USEFUL}_{part}_of_{whole}'):
      return fn(*args, **kwargs)

  return wrapped


def counted_part(name_stack: str) -> fractions.Fraction:
  """Returns the part of a product that is counted, by its name scopes."""
  if SELECTION in name_stack:
    return fractions.Fraction(0)
  part = fractions.Fraction(1)
  for useful, whole in _PARTS.findall(name_stack):
    part *= fractions.Fraction(int(useful), int(whole))
  return part


def counting() -> contextlib.AbstractContextManager:
  """Within it, layers are traced with products that can be counted."""
  return context_values.set_within(_is_counting, True)


def is_counting() -> bool:
  """Whether a layer must not use a fused kernel, which hides its products."""
  return _is_counting.get()
