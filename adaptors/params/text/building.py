"""Builds Lingvo Params from the nodes of a text.

Params with a class start from the class's `Params()`; then each field of the
text is set. Information that the text lost, such as digits beyond 32 bits, is
taken from the default if that agrees with the text.
"""

import dataclasses
import enum
import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import message, text_format

from adaptors import lingvo_runtime
from adaptors.params import param_values, params_trees
from adaptors.params.text import arrays, classes, nodes
from pax_compat import errors


@dataclasses.dataclass(frozen=True)
class Issue:
  """Something in a text that cannot be built.

  Attributes:
    path: its path, as in `Params.ToText`; '' for the whole text.
    message: the reason.
  """

  path: str
  message: str

  def __str__(self):
    return f'{self.path}: {self.message}' if self.path else self.message


class Builder:
  """Builds Params from nodes, and records what it cannot build.

  Attributes:
    issues: what cannot be built; the text is rejected unless it is empty.
    defaulted: paths of fields that are not in the text and have their class's
      defaults.
    emptied: paths of fields that are not in the text and are set to an empty
      list, since this form of text omits those.
    dropped: paths of fields that match `drop`.
  """

  def __init__(
    self,
    finder: classes.Finder,
    *,
    values: Mapping[str, Any],
    drop: Iterable[str] = (),
  ):
    """Creates a builder.

    Args:
      finder: of classes and functions.
      values: values by path, used instead of those in the text.
      drop: `fnmatch` patterns of paths of fields that may be dropped if the
        class no longer has them.
    """
    self.issues: list[Issue] = []
    self.defaulted: list[str] = []
    self.emptied: list[str] = []
    self.dropped: list[str] = []
    self._finder = finder
    self._values = dict(values)
    self._unused = set(values)
    self._built: dict[str, Any] = {}
    self._drop = tuple(drop)
    self._hyperparams = lingvo_runtime.module('lingvo.core.hyperparams')
    self._base_model = lingvo_runtime.module('lingvo.core.base_model')
    self._tf = lingvo_runtime.module('tensorflow')
    self._makers = {
      nodes.Fields: self._params,
      nodes.TypeName: self._type,
      nodes.DTypeName: self._dtype,
      nodes.EnumName: self._enum,
      nodes.Record: self._record,
      nodes.Message: self._message,
      nodes.Float32: self._float,
      nodes.Items: self._items,
      nodes.ArrayText: self._array,
      nodes.Bare: self._bare,
      list: self._sequence,
      tuple: self._sequence,
      dict: self._dict,
    }

  def finish(self):
    """Adds an issue for each of `values` that was not used."""
    for path in sorted(self._unused):
      self.issues.append(
        Issue(path, 'a value is given for it, but the text lacks the field')
      )

  def build(self, node: Any, old: Any = None, path: str = '') -> Any:
    """Returns the value of a node; None after adding an issue.

    Args:
      node: see `nodes`.
      old: the default of the field, a guide to its type.
      path: the field's path.
    """
    if path in self._values:
      self._unused.discard(path)
      return self._values[path]
    if path in self._built:
      return self._built[path]
    maker = self._makers.get(type(node))
    try:
      if isinstance(node, nodes.Unreadable):
        raise _CannotMakeError(node.why)
      return maker(node, old, path) if maker else node
    except (_CannotMakeError, classes.NotFoundError) as error:
      self.issues.append(Issue(path, str(error)))
      return None

  def _params(self, node: nodes.Fields, old: Any, path: str) -> Any:
    if 'cls' in node.items:
      params, known = self._of_class(node, old, path)
    else:
      # Plain Params whose default is empty take fields of any name.
      known = params_trees.is_params(old) and 'cls' not in old and len(old) > 0
      params = old if known else None
    if not known:
      return self._without_class(params, node, path)
    frozen = params.IsImmutable()
    if frozen:
      params = self._thawed(params)
    for name, child in node.items.items():
      here = _join(path, name)
      if name == 'cls':
        continue
      if name in params:
        params.Set(**{name: self.build(child, params.Get(name), here)})
      else:
        self._no_field(name, params, here)
    for name in params.GetKeys():
      if name not in node.items:
        self._absent(name, params, path, node.lacks_empty)
    if frozen:
      params.Freeze()
    return params

  def _of_class(
    self, node: nodes.Fields, old: Any, path: str
  ) -> tuple[Any, bool]:
    """Returns the initial Params, and whether their fields are known."""
    name = node.items['cls']
    cls = self.build(name, None, _join(path, 'cls'))
    if cls is None:
      return self._hyperparams.InstantiableParams(None), False
    if not isinstance(cls, type):
      raise _CannotMakeError(f'{name} is not a class')
    if params_trees.is_params(old) and 'cls' in old and old.cls is cls:
      return old, True
    arguments = ()
    if issubclass(cls, self._base_model.SingleTaskModel):
      # Its `Params()` takes the task's, and copies from them.
      here = _join(path, 'task')
      task = self.build(node.items.get('task'), None, here)
      if task is None:
        self.issues.append(Issue(here, 'the model has no task'))
        return self._hyperparams.InstantiableParams(cls), False
      self._built[here] = task
      arguments = (task.Copy(),)
    try:
      return cls.Params(*arguments), True
    except Exception as error:
      raise _CannotMakeError(
        f'{name}: its Params() fails: {type(error).__name__}: {error}'
      ) from error

  def _without_class(self, params: Any, node: nodes.Fields, path: str) -> Any:
    """Returns Params with only the fields of the text."""
    params = params or self._hyperparams.Params()
    for name, child in node.items.items():
      if name != 'cls':
        value = self.build(child, None, _join(path, name))
        params.Define(name, value, '')
    return params

  def _thawed(self, params: Any) -> Any:
    thawed = self._hyperparams.Params()
    if 'cls' in params:
      thawed = self._hyperparams.InstantiableParams(params.cls)
    for name, value in params.IterParams():
      if name != 'cls':
        thawed.Define(name, value, '')
    return thawed

  def _absent(self, name: str, params: Any, path: str, lacks_empty: bool):
    """Handles a field that the text does not have."""
    default = params.Get(name)
    if not (lacks_empty and isinstance(default, (list, tuple))):
      self.defaulted.append(_join(path, name))
    elif default:
      params.Set(**{name: type(default)()})
      self.emptied.append(_join(path, name))

  def _no_field(self, name: str, params: Any, path: str):
    if any(fnmatch.fnmatchcase(path, pattern) for pattern in self._drop):
      self.dropped.append(path)
      return
    owner = params.cls.__name__ if 'cls' in params else 'these Params'
    near = errors.did_you_mean(name, params.GetKeys())
    self.issues.append(Issue(path, f'{owner} has no field {name!r}{near}'))

  def _type(self, node: nodes.TypeName, old: Any, path: str) -> Any:
    # A lambda or an inner class cannot be found in its module.
    is_code = isinstance(old, type) or callable(old)
    if is_code and (old.__module__, old.__name__) == (node.module, node.name):
      return old
    return self._finder.find(node)

  def _dtype(self, node: nodes.DTypeName, old: Any, path: str) -> Any:
    try:
      return self._tf.as_dtype(node.name)
    except TypeError as error:
      raise _CannotMakeError(f'{node.name!r} is not a dtype') from error

  def _enum(self, node: nodes.EnumName, old: Any, path: str) -> enum.Enum:
    members = self._finder.find_enum(node.type_name).__members__
    if node.name not in members:
      raise _CannotMakeError(
        f'{node.type_name} has no member {node.name!r}'
        + errors.did_you_mean(node.name, members)
      )
    return members[node.name]

  def _record(self, node: nodes.Record, old: Any, path: str) -> Any:
    cls = self._finder.find(node.type_name)
    names = _names_of_fields(cls)
    if names is None or len(names) != len(node.values):
      raise _CannotMakeError(
        f'{node.type_name} is not a namedtuple or dataclass with'
        f' {len(node.values)} fields'
      )
    return cls(
      **{
        name: self.build(child, getattr(old, name, None), f'{path}[{name}]')
        for name, child in zip(names, node.values, strict=True)
      }
    )

  def _message(self, node: nodes.Message, old: Any, path: str) -> Any:
    proto = self._finder.find_message(node.type_name)()
    try:
      if isinstance(node.content, bytes):
        proto.ParseFromString(node.content)
      else:
        text_format.Parse(node.content, proto)
    except (message.DecodeError, text_format.ParseError) as error:
      raise _CannotMakeError(
        f'this is not a {node.type_name}: {error}'
      ) from error
    return proto

  def _float(self, node: nodes.Float32, old: Any, path: str) -> float:
    with np.errstate(over='ignore'):
      same = isinstance(old, float) and np.float32(old) == np.float32(
        node.value
      )
    # Otherwise the shortest decimal with these 32 bits, such as 0.1.
    return old if same else float(str(np.float32(node.value)))

  def _items(self, node: nodes.Items, old: Any, path: str) -> Any:
    kind = tuple if isinstance(old, tuple) else list
    return self._sequence(kind(node.values), old, path)

  def _sequence(self, node: list | tuple, old: Any, path: str) -> Any:
    olds = old if isinstance(old, (list, tuple)) else ()
    built = []
    for i, child in enumerate(node):
      guide = olds[i] if i < len(olds) else None
      if _is_named(child):
        guide = (
          guide[1] if isinstance(guide, tuple) and len(guide) == 2 else None
        )
        here = f'{path}[{child[0]}]'
        built.append((child[0], self.build(child[1], guide, here)))
      else:
        built.append(self.build(child, guide, f'{path}[{i}]'))
    if isinstance(node, tuple) and len(
      _names_of_fields(type(old)) or ()
    ) == len(node):
      # In the proto text a namedtuple looks like a tuple.
      return type(old)(*built)
    return type(node)(built)

  def _dict(self, node: dict[str, Any], old: Any, path: str) -> Any:
    if _names_of_fields(type(old)) is not None:
      return self._changed_record(node, old, path)
    olds = old if isinstance(old, dict) else {}
    kind = type(old) if isinstance(old, dict) else dict
    return kind(
      {
        key: self.build(child, olds.get(key), f"{path}['{key}']")
        for key, child in node.items()
      }
    )

  def _changed_record(self, node: dict[str, Any], old: Any, path: str) -> Any:
    """Returns a namedtuple or dataclass that is a dict in the text."""
    try:
      return param_values.convert(old, repr(node))
    except param_values.WrongValueError as error:
      raise _CannotMakeError(f'expected {error}') from error

  def _array(self, node: nodes.ArrayText, old: Any, path: str) -> np.ndarray:
    try:
      return arrays.read(node.text, node.shape)
    except arrays.UnreadableError as error:
      raise _CannotMakeError(
        f'an array that cannot be read: {error}; give it as the value of'
        f' {path!r}'
      ) from error

  def _bare(self, node: nodes.Bare, old: Any, path: str) -> Any:
    if isinstance(old, enum.Enum):
      try:
        return param_values.convert(old, node.text)
      except param_values.WrongValueError as error:
        raise _CannotMakeError(f'{node.text!r}: expected {error}') from error
    try:
      return self._tf.as_dtype(node.text)
    except TypeError as error:
      raise _CannotMakeError(
        f'the text has {node.text!r}, from which no value can be built; give it'
        f' as the value of {path!r}'
      ) from error


class _CannotMakeError(Exception):
  """A node without a valid value; the message says why."""


def _join(path: str, name: str) -> str:
  return f'{path}.{name}' if path else name


def _is_named(node: Any) -> bool:
  """Whether a node is a (name, Params) pair, as in a list of sub-layers."""
  return (
    isinstance(node, tuple)
    and len(node) == 2
    and isinstance(node[0], str)
    and isinstance(node[1], nodes.Fields)
  )


def _names_of_fields(cls: type) -> tuple[str, ...] | None:
  """Returns the fields of a namedtuple or dataclass; None for other classes."""
  if dataclasses.is_dataclass(cls):
    return tuple(field.name for field in dataclasses.fields(cls))
  return getattr(cls, '_fields', None) if issubclass(cls, tuple) else None
