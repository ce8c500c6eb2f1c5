"""The registry of JAX counterparts of the functions in Lingvo Params.

`FnLayer`, `MapLayer` and `ParallelLayer` have fields with functions of
TensorFlow tensors. Only registered functions are translated.
`tensorflow_functions` registers those of TensorFlow, `activations` those of
Lingvo; your module registers its own:

    @translates_fn('my.layers.Gated')
    def gated(x, y, *, scale):
      return jax.nn.gelu(x) * y * scale

for

    def Gated(x, y, scale=2.0):      # in my/layers.py
      return tf.nn.gelu(x, approximate=True) * y * scale

Import that module before the experiment is translated, for instance with
`--import_modules`.
"""

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from adaptors.translate.view import ParamsView, short

# The modules that `tf` in a registered name means.
_TENSORFLOWS = ('tensorflow', 'tensorflow.compat.v1', 'lingvo.compat')
_LOCALS = '.<locals>.'

_functions: dict[str, Callable] = {}


def translates_fn(*dotted_names: str):
  """Registers the decorated JAX function for functions of these names.

  The name of a local function is `module.outer.<locals>.fn`, or
  `module.outer.<locals>.<lambda>` if that is the only lambda there; the second
  one of several is `module.outer.<locals>.<lambda>[1]`. The values of its
  closure and the defaults of its arguments are passed to the JAX function by
  keyword; functions among them are translated first.

  Args:
    *dotted_names: such as `my.module.fn`; `tf.nn.relu` means that of
      TensorFlow 1 and 2.
  """

  def register(fn):
    _functions.update(dict.fromkeys(dotted_names, fn))
    return fn

  return register


def translate(view: ParamsView, name: str) -> Callable | None:
  """Translates the function in a field; returns the JAX function, or None.

  Args:
    view: the layer's; gets an issue if no function is registered.
    name: the field.
  """
  try:
    return _translated(view.get(name))
  except _UntranslatedError as e:
    view.issue(name, str(e))
    return None


def qualified_name(fn: Any) -> str:
  """Returns the name to register a function under."""
  name = getattr(fn, '__qualname__', None) or type(fn).__qualname__
  return f'{getattr(fn, "__module__", None) or "?"}.{name}'


class _UntranslatedError(Exception):
  """A function that cannot be translated; the message says why."""


def _translated(fn: Any) -> Callable:
  if not callable(fn):
    raise _UntranslatedError(f'{short(fn)} is not a function')
  if isinstance(fn, functools.partial):
    return _bound(fn, _translated(fn.func), fn.args, fn.keywords)
  found = _by_identity(fn)
  if found is not None:
    return found
  name = qualified_name(fn)
  if name not in _functions:
    name = _numbered(fn, name)
  if name not in _functions or not isinstance(fn, types.FunctionType):
    raise _UntranslatedError(
      f'no translation is registered for the function {name}; register a JAX'
      f' function with @translates_fn({name!r}) (adaptors.translate.functions)'
    )
  _check_only_one(fn, name)
  return _bound(fn, _functions[name], (), _captured(fn))


def _by_identity(fn: Any) -> Callable | None:
  """Returns the translation of a function that is found by its name."""
  for name, translated in _functions.items():
    if _LOCALS not in name and any(f is fn for f in _resolved(name)):
      return translated
  return None


def _resolved(dotted_name: str) -> Iterator[Any]:
  """Yields the objects that a name means, in loaded modules."""
  root, _, rest = dotted_name.partition('.')
  roots = _TENSORFLOWS if root == 'tf' else (root,)
  for full in (f'{root}.{rest}' for root in roots):
    parts = full.split('.')
    for split in range(len(parts) - 1, 0, -1):
      found = sys.modules.get('.'.join(parts[:split]))
      if found is None:
        continue
      for part in parts[split:]:
        is_dict = isinstance(found, dict)
        found = found.get(part) if is_dict else getattr(found, part, None)
      if found is not None:
        yield found
        break


def _check_only_one(fn: types.FunctionType, name: str):
  """Raises an error unless a local function's name is unique.

  Two lambdas within one function, for instance, have the same name.
  """
  codes = _codes(name)
  if len(codes) > 1 and not name.endswith(']'):
    raise _UntranslatedError(
      f'{name} is the name of {len(codes)} functions; give each of them its'
      ' own name'
    )
  if fn.__code__ not in codes:
    raise _UntranslatedError(
      f'{name} is not the function that its module has under this name'
    )


def _numbered(fn: Any, name: str) -> str:
  """Returns the name of one of several local functions of the same name."""
  codes = _codes(name) if _LOCALS in name else []
  code = getattr(fn, '__code__', None)
  if len(codes) < 2 or code not in codes:
    return name
  return f'{name}[{codes.index(code)}]'


def _codes(name: str) -> list[types.CodeType]:
  """Returns the code of all functions that a qualified name means."""
  outer, *inner = name.partition('[')[0].split(_LOCALS)
  found = [_undecorated(f, outer) for f in _resolved(outer)][:1]
  codes = [f.__code__ for f in found]
  for step in '.'.join(inner).split('.') if inner else ():
    codes = [
      const
      for code in codes
      for const in code.co_consts
      if isinstance(const, types.CodeType) and const.co_name == step
    ]
  return codes


def _undecorated(fn: Any, name: str) -> Any:
  """Returns the function that decorators wrap, with `functools.wraps` or not.

  Without it the function is in the closure of its wrapper.

  Args:
    fn: what the module has under the name.
    name: its qualified name.
  """
  fn = inspect.unwrap(fn)
  cells = [c.cell_contents for c in getattr(fn, '__closure__', None) or ()]
  if qualified_name(fn) != name:
    for inside in filter(inspect.isfunction, cells):
      found = _undecorated(inside, name)
      if qualified_name(found) == name:
        return found
  return fn


def _captured(fn: types.FunctionType) -> dict[str, Any]:
  """Returns a function's defaults and closure by name.

  Modules and classes are left out.
  """
  found = {
    name: parameter.default
    for name, parameter in inspect.signature(fn).parameters.items()
    if parameter.default is not inspect.Parameter.empty
  }
  cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
  found |= {name: cell.cell_contents for name, cell in cells}
  return {
    name: value
    for name, value in found.items()
    if not isinstance(value, type | types.ModuleType)
  }


def _bound(fn: Any, translated: Callable, args, keywords) -> Callable:
  """Returns a JAX function with some arguments bound."""
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
  """Returns the value of a function's argument for JAX."""
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, list | tuple | set | frozenset):
    return type(value)(_plain(fn, name, v) for v in value)
  if hasattr(value, 'as_numpy_dtype'):
    return value.as_numpy_dtype
  if callable(value) and not isinstance(value, type):
    return _translated(value)
  raise _UntranslatedError(
    f'{qualified_name(getattr(fn, "func", fn))} has {name} ='
    f' {short(value)}, a {type(value).__name__}; expected a number, a string,'
    ' a function, or a list of these'
  )
