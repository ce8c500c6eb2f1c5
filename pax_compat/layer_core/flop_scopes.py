"""How layers describe which products belong to a model's FLOPs.

`trainer.model_flops` counts the products of a forward pass.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

# A name in the stack of JAX's name scopes.
SELECTION = 'selection_by_one_hot'

_is_counting = contextvars.ContextVar('is_counting_flops', default=False)


def selection() -> contextlib.AbstractContextManager:
  """Within it, products with one-hot arrays are not counted.

  They select, as an index would: a lookup in a table, the dispatch of tokens to
  experts.
  """
  return jax.named_scope(SELECTION)


@contextlib.contextmanager
def counting() -> Iterator[None]:
  """Within it, layers are traced with products that can be counted."""
  token = _is_counting.set(True)
  try:
    yield
  finally:
    _is_counting.reset(token)


def is_counting() -> bool:
  """Whether a layer must not use a fused kernel, which hides its products."""
  return _is_counting.get()
