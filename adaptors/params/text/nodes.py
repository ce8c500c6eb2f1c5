"""The parse tree of a text of Params, before classes are looked up.

A node is one of the dataclasses here; a plain None, bool, int, float or str; a
list or a tuple of nodes; or a dict from str to nodes.
"""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fields:
  """Params.

  Attributes:
    items: nodes by field name; `cls`, if any, is a `TypeName`.
    lacks_empty: whether the text omits empty lists and tuples.
  """

  items: dict[str, Any]
  lacks_empty: bool = False


@dataclasses.dataclass(frozen=True)
class TypeName:
  """A class or a function.

  Attributes:
    module: full name of its module.
    name: its name there.
  """

  module: str
  name: str

  @classmethod
  def parse(cls, text: str) -> 'TypeName':
    """Parses `module/name`."""
    module, _, name = text.partition('/')
    return cls(module, name)

  def __str__(self):
    return f'{self.module}/{self.name}'


@dataclasses.dataclass(frozen=True)
class DTypeName:
  """A TensorFlow dtype, such as `float32`."""

  name: str


@dataclasses.dataclass(frozen=True)
class EnumName:
  """A member of an enum of a known class."""

  type_name: TypeName
  name: str


@dataclasses.dataclass(frozen=True)
class Record:
  """A namedtuple or a dataclass.

  Attributes:
    type_name: its class.
    values: nodes of its fields, in the order of the class.
  """

  type_name: TypeName
  values: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Message:
  """A proto, as bytes in the wire format or as text."""

  type_name: TypeName
  content: bytes | str


@dataclasses.dataclass(frozen=True)
class Float32:
  """A float that was rounded to 32 bits."""

  value: float


@dataclasses.dataclass(frozen=True)
class Items:
  """The elements of a list or a tuple, which look the same in the text."""

  values: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class ArrayText:
  """A numpy array as printed by numpy, perhaps abbreviated with `...`.

  Attributes:
    text: the printed array.
    shape: its shape, if a separate field has it.
  """

  text: str
  shape: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Bare:
  """A word without quotes: a dtype, `Enum.MEMBER`, or an object's class."""

  text: str


@dataclasses.dataclass(frozen=True)
class Unreadable:
  """A value that cannot be built from the text.

  Attributes:
    why: the reason.
  """

  why: str
