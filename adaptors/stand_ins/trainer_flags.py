"""The flags that Lingvo's programs define, for modules that read them.

`lingvo/trainer.py` and the modules beside it define flags such as `--tpu`, and
modules of experiments read them. A JAX run does not run these programs. Their
source is parsed, and each flag is defined with its default.
"""

import ast
import os
import pathlib
from typing import Any

from absl import flags, logging

_DEFINE = 'DEFINE_'


def define(folder: str | os.PathLike) -> None:
  """Defines the flags of the programs in a folder that do not exist yet.

  A program that defines one of them later replaces it.

  Args:
    folder: of Lingvo's package, which contains `trainer.py`.
  """
  found = []
  for path in sorted(pathlib.Path(folder).glob('*.py')):
    source = path.read_bytes()
    if _DEFINE.encode() not in source or path.name.endswith('_test.py'):
      continue
    try:
      tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:  # Such as Python 2.
      logging.warning('the flags of %s are not defined: %s', path, error)
      continue
    for call in ast.walk(tree):
      if isinstance(call, ast.Call) and _kind(call):
        found += _defined(call)
  if found:
    logging.vlog(1, 'flags with the defaults of %s: %s', folder, found)


def _kind(call: ast.Call) -> str:
  """Returns the name of absl's function that a call defines a flag with."""
  name = getattr(call.func, 'attr', '')
  return name if name.startswith(_DEFINE) and hasattr(flags, name) else ''


def _defined(call: ast.Call) -> list[str]:
  """Defines the flag of a call, and returns its name; or an empty list."""
  try:
    args = [ast.literal_eval(node) for node in call.args]
    named = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
  except ValueError:  # A default that is computed.
    return []
  name: Any = args[0] if args else named.get('name')
  if not isinstance(name, str) or name in flags.FLAGS:
    return []
  getattr(flags, _kind(call))(*args, **named, allow_override=True)
  return [name]
