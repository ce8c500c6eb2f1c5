"""JAX counterparts of Python functions that Lingvo's layers call.

`FnLayer`, `MapLayer` and `ParallelLayer` hold functions of TensorFlow's
tensors. What such a function computes cannot be told from outside, so only
functions that somebody has translated are. `tensorflow_functions` has those of
TensorFlow; a module of yours adds its own:

    @translates_fn('my.layers.Gated')
    def gated(x, y, *, scale):
      return jax.nn.gelu(x) * y * scale

for

    def Gated(x, y, scale=2.0):      # in my/layers.py
      return tf.nn.gelu(x, approximate=True) * y * scale

Import that module before the experiment is translated, for instance by
`--import_modules`.
"""

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from adaptors.translate.view import ParamsView, short

# What `tf` in a registered name stands for.
_TENSORFLOWS = ('tensorflow', 'tensorflow.compat.v1', 'lingvo.compat')
_LOCALS = '.<locals>.'

_functions: dict[str, Callable] = {}


def translates_fn(*dotted_names: str):
  """Registers the decorated JAX function for functions of these names.

  A function that is local to another one is called `module.outer.<locals>.fn`,
  or `module.outer.<locals>.<lambda>` if that is the only lambda there. Values
  that it takes from around it, and defaults of its arguments, are given to the
  JAX function by keyword; functions among them are translated first.

  Args:
    *dotted_names: such as `my.module.fn`; `tf.nn.relu` means that of
      TensorFlow 1 and 2.
  """

  def register(fn):
    _functions.update(dict.fromkeys(dotted_names, fn))
    return fn

  return register


def translate(view: ParamsView, name: str) -> Callable | None:
  """Translates the function in a field.

  Args:
    view: the layer's; gets an issue if there is no translation.
    name: the field.

  Returns:
    The JAX function, or None.
  """
  try:
    return _translated(view.get(name))
  except _UntranslatedError as e:
    view.issue(name, str(e))
    return None


def qualified_name(fn: Any) -> str:
  """Returns the name under which a function is to be registered."""
  name = getattr(fn, '__qualname__', None) or type(fn).__qualname__
  return f'{getattr(fn, "__module__", None) or "?"}.{name}'


class _UntranslatedError(Exception):
  """A function that nobody has translated; says why."""


def _translated(fn: Any) -> Callable:
  if not callable(fn):
    raise _UntranslatedError(f'{short(fn)} is no function')
  if isinstance(fn, functools.partial):
    return _bound(fn, _translated(fn.func), fn.args, fn.keywords)
  found = _by_identity(fn)
  if found is not None:
    return found
  name = qualified_name(fn)
  if name not in _functions or not isinstance(fn, types.FunctionType):
    raise _UntranslatedError(
      f'nobody has translated the function {name}; a JAX function decorated'
      f' with @translates_fn({name!r}) (adaptors.translate.functions) does'
    )
  _check_only_one(fn, name)
  return _bound(fn, _functions[name], (), _taken_from_around(fn))


def _by_identity(fn: Any) -> Callable | None:
  """Returns the translation of a function that a registered name leads to."""
  for name, translated in _functions.items():
    if _LOCALS not in name and any(f is fn for f in _resolved(name)):
      return translated
  return None


def _resolved(dotted_name: str) -> Iterator[Any]:
  """Yields what a name leads to, in modules that are loaded."""
  root, _, rest = dotted_name.partition('.')
  roots = _TENSORFLOWS if root == 'tf' else (root,)
  for full in (f'{root}.{rest}' for root in roots):
    parts = full.split('.')
    for cut in range(len(parts) - 1, 0, -1):
      found = sys.modules.get('.'.join(parts[:cut]))
      if found is None:
        continue
      for part in parts[cut:]:
        is_dict = isinstance(found, dict)
        found = found.get(part) if is_dict else getattr(found, part, None)
      if found is not None:
        yield found
        break


def _check_only_one(fn: types.FunctionType, name: str):
  """Raises an error unless only one function can have the name of a local one.

  Two lambdas of one function, for instance, cannot be told apart.
  """
  outer, *inner = name.split(_LOCALS)
  codes = [inspect.unwrap(f).__code__ for f in _resolved(outer)][:1]
  for step in '.'.join(inner).split('.'):
    codes = [
      const
      for code in codes
      for const in code.co_consts
      if isinstance(const, types.CodeType) and const.co_name == step
    ]
  if len(codes) > 1:
    raise _UntranslatedError(
      f'{name} is one of {len(codes)} functions of this name, which cannot be'
      ' told apart; give it a name of its own'
    )
  if codes != [fn.__code__]:
    raise _UntranslatedError(
      f'{name} is not the function that is found under this name'
    )


def _taken_from_around(fn: types.FunctionType) -> dict[str, Any]:
  """Returns what a function has of values by name, but for its arguments.

  Modules and classes are part of its code.
  """
  taken = {
    name: parameter.default
    for name, parameter in inspect.signature(fn).parameters.items()
    if parameter.default is not inspect.Parameter.empty
  }
  cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
  taken |= {name: cell.cell_contents for name, cell in cells}
  return {
    name: value
    for name, value in taken.items()
    if not isinstance(value, type | types.ModuleType)
  }


def _bound(fn: Any, translated: Callable, args, keywords) -> Callable:
  """Returns a JAX function with some arguments given."""
  if not args and not keywords:
    return translated
  args = [_plain(fn, 'an argument', value) for value in args]
  keywords = {k: _plain(fn, k, value) for k, value in keywords.items()}
  try:
    inspect.signature(translated).bind_partial(*args, **keywords)
  except TypeError as e:
    raise _UntranslatedError(
      f'{qualified_name(getattr(fn, "func", fn))} has values for'
      f' {", ".join(keywords) or "arguments"}, and its translation'
      f' {qualified_name(translated)} does not take them: {e}'
    ) from None
  return functools.partial(translated, *args, **keywords)


def _plain(fn: Any, name: str, value: Any) -> Any:
  """Returns a value that a function is given, as JAX takes it."""
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, list | tuple):
    return type(value)(_plain(fn, name, v) for v in value)
  if hasattr(value, 'as_numpy_dtype'):
    return value.as_numpy_dtype
  if callable(value) and not isinstance(value, type):
    return _translated(value)
  raise _UntranslatedError(
    f'{qualified_name(getattr(fn, "func", fn))} has {name} ='
    f' {short(value)}, a {type(value).__name__}; expected a number, a text, a'
    ' function, or a list of these'
  )
