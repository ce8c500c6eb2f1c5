"""The step that is traced, for layers: training or evaluation.

>>> with JaxContext.new_context(hparams=JaxContext.HParams(do_eval=True)):
...   cur_jax_context().do_eval
True
>>> JaxContext.has_context()
False
"""

import contextlib
import contextvars
import copy
import dataclasses
import sys
from typing import Any

import jax

from pax_compat import errors
from pax_compat.layer_core.summaries import SummaryType, as_value

_current = contextvars.ContextVar('jax_context', default=None)


class GlobalSummaries(dict[str, jax.Array]):
  """Global summaries, {name_type: value}."""

  @property
  def dict(self) -> 'GlobalSummaries':
    """These summaries, by Pax's name."""
    return self

  def add_summary(
    self,
    name: str,
    tensor: Any,
    summary_type: SummaryType = SummaryType.SCALAR,
  ):
    """Adds a summary; a name that is in use gets a number."""
    suffix = get_summary_type_suffix(summary_type)
    key, count = name + suffix, 0
    while key in self:
      count += 1
      key = f'{name}{count}{suffix}'
    self[key] = as_value(tensor, summary_type)


class JaxContext:
  """Context manager that sets how layers are traced.

  Attributes:
    hparams: its settings.
    summary_dict: the global summaries.
  """

  @dataclasses.dataclass
  class HParams:
    """Settings of a context.

    Attributes:
      do_eval: whether layers are traced for evaluation.
      summary_verbosity: summaries above it are not recorded.
      mesh_axes_transpose: the mesh axis that stands for another one in
        `maybe_shard`, by name; None for none.
    """

    do_eval: bool | None = None
    summary_verbosity: int = 3
    mesh_axes_transpose: dict[str, str] | None = None

    def clone(self) -> 'JaxContext.HParams':
      """Returns a deep copy."""
      return copy.deepcopy(self)

  def __init__(self, hparams: 'JaxContext.HParams'):
    self.hparams = hparams.clone()
    self.summary_dict = GlobalSummaries()
    self._tokens: list[contextvars.Token] = []

  @property
  def do_eval(self) -> bool:
    """Whether layers are traced for evaluation."""
    return bool(self.hparams.do_eval)

  @property
  def summary_verbosity(self) -> int:
    """Summaries above it are not recorded."""
    return self.hparams.summary_verbosity

  def __enter__(self) -> 'JaxContext':
    self._tokens.append(_current.set(self))
    return self

  def __exit__(self, *exc_info):
    _current.reset(self._tokens.pop())

  @staticmethod
  def top() -> 'JaxContext | None':
    """Returns the current context, None outside of all."""
    return _current.get()

  @staticmethod
  def has_context() -> bool:
    """Whether there is a current context."""
    return _current.get() is not None

  @staticmethod
  def new_context(
    *, hparams: 'JaxContext.HParams | None' = None
  ) -> 'JaxContext':
    """Returns a context; None takes the settings of the current one."""
    if hparams is None:
      top = _current.get()
      hparams = JaxContext.HParams() if top is None else top.hparams
    return JaxContext(hparams)


def cur_jax_context() -> JaxContext:
  """Returns the current context.

  Raises:
    UserError: there is none.
  """
  top = _current.get()
  if top is None:
    raise errors.UserError(
      'no JaxContext is active; enter JaxContext.new_context() first'
    )
  return top


@contextlib.contextmanager
def eval_mode(do_eval: bool = True):
  """Context manager in which layers are traced in evaluation mode."""
  top = _current.get()
  # The trainer selects summaries by their verbosity, not the layers.
  all_summaries = JaxContext.HParams(summary_verbosity=sys.maxsize)
  settings = all_summaries if top is None else top.hparams.clone()
  settings.do_eval = do_eval
  with JaxContext(settings):
    yield


def add_global_summary(
  name: str,
  tensor: Any,
  summary_type: SummaryType = SummaryType.SCALAR,
  verbosity: int = 2,
):
  """Records a summary in the current context, where no layer can.

  A name that is in use gets a number. The trainer does not write these: read
  them with `all_global_summaries`.
  """
  context = cur_jax_context()
  if verbosity > context.summary_verbosity:
    return
  context.summary_dict.add_summary(name, tensor, summary_type)


def clear_global_summary():
  """Removes the global summaries of the current context."""
  cur_jax_context().summary_dict.clear()


def all_global_summaries() -> dict[str, jax.Array]:
  """Returns the global summaries of the current context."""
  return cur_jax_context().summary_dict


def get_summary_base_type(summary_type: SummaryType) -> SummaryType:
  """Returns the type, which is the same for what Pax aggregates."""
  return summary_type


def get_summary_type_suffix(summary_type: SummaryType) -> str:
  """Returns `_scalar` for SCALAR and so on."""
  return f'_{summary_type.value}'


def get_summary_type_from_key(key: str) -> SummaryType:
  """Returns the type that the key of a global summary ends with.

  Raises:
    UserError: it ends with no type.
  """
  for summary_type in SummaryType:
    if key.endswith(get_summary_type_suffix(summary_type)):
      return summary_type
  raise errors.UserError(f'the summary {key!r} does not end with its type')


def trim_summary_type_from_key(key: str) -> str:
  """Returns the key of a global summary without its type."""
  suffix = get_summary_type_suffix(get_summary_type_from_key(key))
  return key.removesuffix(suffix)
