"""What the texts of Params are parsed into, before any class is looked up.

A node is one of the dataclasses here; None, a bool, an int, a float or a str,
which stand for themselves; a list or a tuple of nodes; or a dict from str to
nodes.
"""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fields:
  """Params.

  Attributes:
    items: nodes by field name; `cls`, where the Params have a class, is a
      `TypeName`.
    lacks_empty: whether empty lists and tuples among the fields were not
      written.
  """

  items: dict[str, Any]
  lacks_empty: bool = False


@dataclasses.dataclass(frozen=True)
class TypeName:
  """A class or a function.

  Attributes:
    module: full name of the module that it is in.
    name: its name there.
  """

  module: str
  name: str

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
  """A float that went through 32 bits, and may have lost digits there."""

  value: float


@dataclasses.dataclass(frozen=True)
class Items:
  """Numbered elements, of which the text does not tell a list from a tuple."""

  values: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class ArrayText:
  """A numpy array, as numpy shows it, perhaps abbreviated with `...`.

  Attributes:
    text: what is shown.
    shape: its shape, if something beside it tells.
  """

  text: str
  shape: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Bare:
  """A word without quotes: a dtype, `Enum.MEMBER`, or any object's class."""

  text: str


@dataclasses.dataclass(frozen=True)
class Unreadable:
  """What a text cannot bring back.

  Attributes:
    why: what it is, and why it cannot be read.
  """

  why: str
