"""Options that an experiment source adds to the command line.

A source declares its options as the fields of one dataclass. Each field is a
flag of every program that takes `--exp`:

    @dataclasses.dataclass(frozen=True)
    class WordsOptions(options.Options):
      KIND = 'Words'

      corpus: str | None = options.option(None, 'Folder of the corpus.')
      lower: bool = options.option(False, 'Convert the text to lower case.')

The default value gives the type of the flag: a string, a bool, or a tuple of
strings for a flag that may be repeated.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from absl import flags

_METADATA = 'flag'


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of one experiment source.

  Attributes:
    KIND: the kind of its experiments in messages, such as 'Words'.
  """

  KIND: ClassVar[str] = ''

  def experiment_name(self) -> str:
    """Returns the name of the experiment that these options imply.

    Used without `--exp`. '', the default, if they do not imply one.
    """
    return ''


@dataclasses.dataclass(frozen=True)
class _Flag:
  help: str
  name: str
  choices: Sequence[str]
  instead: str


def option(
  default: str | bool | tuple[str, ...] | None,
  description: str,
  *,
  flag: str = '',
  choices: Sequence[str] = (),
  instead: str = '',
) -> Any:
  """Returns a field of an `Options` class.

  Args:
    default: the value without the flag.
    description: the description in `--help`.
    flag: the name of the flag; '' for that of the field.
    choices: the valid values; any by default.
    instead: the end of the error message for experiments of other sources:
      what to use instead.
  """
  metadata = {_METADATA: _Flag(description, flag, choices, instead)}
  return dataclasses.field(default=default, metadata=metadata)


def define(kind: type[Options]):
  """Defines the flags of a source's options, and lists them in `--help`."""
  for field, flag in _flags(kind):
    if flag.choices:
      flags.DEFINE_enum(flag.name, field.default, flag.choices, flag.help)
    elif isinstance(field.default, bool):
      flags.DEFINE_bool(flag.name, field.default, flag.help)
    elif isinstance(field.default, tuple):
      flags.DEFINE_multi_string(flag.name, list(field.default), flag.help)
    else:
      flags.DEFINE_string(flag.name, field.default, flag.help)
    # absl identifies the module of the program by the name of its file.
    defined = flags.FLAGS[flag.name]
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], defined)


def from_flags(kind: type[Options]) -> Options:
  """Returns the options from the command line.

  Args:
    kind: the class of the options. A flag that is not defined has its default.
  """
  given = {}
  for field, flag in _flags(kind):
    if flag.name in flags.FLAGS:
      value = flags.FLAGS[flag.name].value
      given[field.name] = tuple(value) if isinstance(value, list) else value
  return kind(**given)


def changed(options: Options) -> Iterator[tuple[str, str]]:
  """Yields the name and the `instead` of each flag that is not a default."""
  for field, flag in _flags(type(options)):
    if getattr(options, field.name) != field.default:
      yield flag.name, flag.instead


def _flags(kind) -> Iterator[tuple[dataclasses.Field, _Flag]]:
  for field in dataclasses.fields(kind):
    flag = field.metadata[_METADATA]
    yield field, dataclasses.replace(flag, name=flag.name or field.name)
