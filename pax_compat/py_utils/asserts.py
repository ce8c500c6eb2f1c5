"""Checks of arguments that raise an exception with both values.

>>> eq(2, 1 + 1)
>>> lt(3, 2, value_str1='rank')
Traceback (most recent call last):
ValueError: `rank` must be strictly less than `2`.

Without `value_str`, and where the call is on one line, a message shows the
arguments as they are written in the source. `msg` replaces the message,
`exception_type` the ValueError.
"""

import ast
import contextvars
import inspect
import operator
from collections.abc import Callable, Collection
from typing import Any

import jax

_enabled = contextvars.ContextVar('asserts_enabled', default=True)


class AssertsContext:
  """Context manager in which these checks are on or off; on by default."""

  def __init__(self, enabled: bool = True):
    self.enabled = enabled
    self._tokens: list[contextvars.Token] = []

  def __enter__(self) -> 'AssertsContext':
    self._tokens.append(_enabled.set(self.enabled))
    return self

  def __exit__(self, *exc_info):
    _enabled.reset(self._tokens.pop())

  @staticmethod
  def assertions_enabled() -> bool:
    """Whether the checks are on."""
    return _enabled.get()


def _arguments(frame: Any) -> list[str]:
  """Returns the source of the positional arguments of a call, if known."""
  context = inspect.getframeinfo(frame).code_context
  try:
    tree = ast.parse((context or [''])[0].strip())
  except SyntaxError:
    return []
  call = next((n for n in ast.walk(tree) if isinstance(n, ast.Call)), None)
  return [ast.unparse(arg) for arg in call.args] if call else []


def _check(holds, values, strs, relation, msg, exception_type, others=()):
  """Raises the exception of a check, which calls this, unless it holds.

  Args:
    holds: whether the check holds.
    values: what was checked.
    strs: `value_str` of each.
    relation: the message, with a `{}` for each value and each of `others`.
    msg: see above.
    exception_type: see above.
    others: what the values are compared with.
  """
  if holds or not _enabled.get():
    return
  if not msg:
    frame = inspect.currentframe().f_back.f_back
    sources = _arguments(frame)
    shown = []
    for i, (value, text) in enumerate(zip(values, strs, strict=True)):
      if text is None:
        source = sources[i] if i < len(sources) else ''
        literal = source in ('', str(value), repr(value))
        text = f'{value}' if literal else f'{source}={value}'
      shown.append(f'`{text}`')
    msg = relation.format(*shown, *others)
  raise exception_type(msg)


def none(
  value: Any,
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
):
  """Raises unless `value` is None."""
  relation = '{} must be `None`.'
  _check(value is None, [value], [value_str], relation, msg, exception_type)


def not_none(
  value: Any,
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
):
  """Raises if `value` is None."""
  fits, relation = value is not None, '{} must not be `None`.'
  _check(fits, [value], [value_str], relation, msg, exception_type)


def _comparison(
  name: str, holds: Callable[[Any, Any], bool], relation: str
) -> Callable[..., None]:
  """Returns a check of two values."""

  def check(
    value1: Any,
    value2: Any,
    *,
    value_str1: str | None = None,
    value_str2: str | None = None,
    msg: str | None = None,
    exception_type: type[Exception] = ValueError,
  ):
    fits = not _enabled.get() or holds(value1, value2)
    values, strs = [value1, value2], [value_str1, value_str2]
    text = f'{{}} must {relation} {{}}.'
    _check(fits, values, strs, text, msg, exception_type)

  check.__name__ = check.__qualname__ = name
  check.__doc__ = f'Raises where `value1` must {relation} `value2`, and is not.'
  return check


eq = _comparison('eq', operator.eq, 'be equal to')
ne = _comparison('ne', operator.ne, 'not be equal to')
le = _comparison('le', operator.le, 'be less than or equal to')
lt = _comparison('lt', operator.lt, 'be strictly less than')
ge = _comparison('ge', operator.ge, 'be greater than or equal to')
gt = _comparison('gt', operator.gt, 'be strictly greater than')


def instance(
  value: Any,
  instances: Any,
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
):
  """Raises unless `value` is an instance of a class, or of one of a tuple."""
  fits = isinstance(value, instances)
  relation, others = '{} must be of type `{}`.', [instances]
  _check(fits, [value], [value_str], relation, msg, exception_type, others)


def subclass(
  value: Any,
  subclasses: Any,
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
):
  """Raises unless `value` is a subclass of a class, or of one of a tuple."""
  fits = isinstance(value, type) and issubclass(value, subclasses)
  relation, others = '{} must be a subclass of `{}`.', [subclasses]
  _check(fits, [value], [value_str], relation, msg, exception_type, others)


def in_set(
  value: Any,
  elements: Collection[Any],
  *,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
):
  """Raises unless `value` is one of `elements`."""
  fits = value in elements
  relation, others = '{} must be within `{}`.', [elements]
  _check(fits, [value], [value_str], relation, msg, exception_type, others)


def between(
  value: Any,
  min_value: Any,
  max_value: Any,
  *,
  left_strict: bool = False,
  right_strict: bool = False,
  value_str: str | None = None,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
):
  """Raises unless `value` is in a range; a strict end does not belong to it."""
  above = min_value < value if left_strict else min_value <= value
  below = value < max_value if right_strict else value <= max_value
  fits, relation = above and below, '{} must be in the range `{}{}, {}{}`.'
  start, end = '(' if left_strict else '[', ')' if right_strict else ']'
  others = start, min_value, max_value, end
  _check(fits, [value], [value_str], relation, msg, exception_type, others)


def assert_same_structure(
  x: Any,
  y: Any,
  msg: str | None = None,
  exception_type: type[Exception] = ValueError,
):
  """Raises unless two nests of dicts, lists and tuples have one structure.

  A NestedMap counts as a dict.
  """
  if not _enabled.get():
    return
  one, other = (jax.tree.structure(_as_dicts(tree)) for tree in (x, y))
  if one != other:
    raise exception_type(
      msg or f'Not the same structure: `{one}` and `{other}`'
    )


def _as_dicts(tree: Any) -> Any:
  """Returns a nest with plain dicts, and 0 for each leaf, None among them."""
  if isinstance(tree, dict):
    return {key: _as_dicts(value) for key, value in tree.items()}
  if isinstance(tree, tuple) and hasattr(tree, '_fields'):
    return type(tree)(*map(_as_dicts, tree))
  if isinstance(tree, list | tuple):
    return type(tree)(map(_as_dicts, tree))
  return 0
