"""Parses `*.pbtxt`, the proto text of Params, into nodes."""

from typing import Any

from google.protobuf import message, text_format

from adaptors import lingvo_runtime
from adaptors.params.text import nodes
from pax_compat import errors

_ARRAY = 'array('


def parse(text: str, source: str) -> nodes.Fields:
  """Parses the text of a `Hyperparam` proto.

  Args:
    text: the contents of the file.
    source: its name, for messages.

  Raises:
    UserError: the text is not valid.
  """
  hyperparams_pb2 = lingvo_runtime.module('lingvo.core.hyperparams_pb2')
  proto = hyperparams_pb2.Hyperparam()
  try:
    text_format.Parse(text, proto)
  except (text_format.ParseError, message.DecodeError) as error:
    raise errors.UserError(
      f'{source} is not the proto text of Params, the form that Lingvo writes'
      f' to trainer_params.pbtxt: {error}'
    ) from error
  return _fields(proto)


def _fields(proto: Any) -> nodes.Fields:
  return nodes.Fields({k: _node(v) for k, v in sorted(proto.items.items())})


def _node(value: Any) -> Any:
  """Returns the node of a `HyperparamValue` proto."""
  kind = value.WhichOneof('kind')
  if kind is None:
    return None
  content = getattr(value, kind)
  return _KINDS[kind](content) if kind in _KINDS else content


def _items(content: Any) -> list[Any]:
  return [_node(item) for item in content.items]


def _shown(text: str) -> nodes.ArrayText | nodes.Unreadable:
  """Returns the node of a value that is written as its `repr`."""
  if text.startswith(_ARRAY):
    return nodes.ArrayText(text)
  return nodes.Unreadable(
    f'the text has {text!r}, from which no value can be built'
  )


# All other kinds are plain values.
_KINDS = {
  'param_val': _fields,
  'list_val': _items,
  'tuple_val': lambda content: tuple(_items(content)),
  'dict_val': lambda content: _fields(content).items,
  'type_val': nodes.TypeName.parse,
  'dtype_val': nodes.DTypeName,
  'float_val': nodes.Float32,
  'proto_val': lambda v: nodes.Message(nodes.TypeName.parse(v.type), v.val),
  'enum_val': lambda v: nodes.EnumName(nodes.TypeName.parse(v.type), v.name),
  'named_tuple_val': lambda v: nodes.Record(
    nodes.TypeName.parse(v.type), tuple(_items(v))
  ),
  'string_repr_val': _shown,
  'symbolic_val': lambda _: nodes.Unreadable(
    'it is a pickled symbolic expression, and pickles are not loaded'
  ),
}
