"""Files of a Lingvo checkout that Params name relative to it.

    tokenizer.vocab_filepath : 'lingvo/tasks/asr/wpm_16k_librispeech.vocab'

In Lingvo such a path is found because programs run in the checkout's root.
"""

import pathlib
import re
from typing import Any

from absl import logging

from adaptors.params import params_trees

# An optional type of record files, and a path or glob pattern of a checkout.
_PATH = re.compile(r'(?P<type>[a-z_]+:)?(?P<path>lingvo/[^:,\s]+)')


def resolve(params: Any, checkout: pathlib.Path | None, name: str) -> None:
  """Makes paths of the checkout absolute, unless they exist as they are.

  Args:
    params: of a model or an input; they are changed.
    checkout: the root; None for none.
    name: of the experiment, for the log.
  """
  for node in params_trees.all_params(params):
    for field, value in node.IterParams():
      if not isinstance(value, str):
        continue
      found = _PATH.fullmatch(value)
      if not found or _exists(pathlib.Path(), found['path']):
        continue
      if checkout is None or not _exists(checkout, found['path']):
        logging.warning(
          '%s: %s is %s, a path in a checkout of Lingvo, without such a'
          ' file; expected --lingvo_source with a checkout that has it',
          name,
          field,
          value,
        )
        continue
      path = f'{found["type"] or ""}{checkout / found["path"]}'
      logging.info('%s: %s is %s', name, field, path)
      node.Set(**{field: path})


def _exists(root: pathlib.Path, path: str) -> bool:
  """Whether a path, or a file of a glob pattern, exists below a folder."""
  return (root / path).exists() or any(root.glob(path))
