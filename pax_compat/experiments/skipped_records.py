"""Leaving out damaged records in every input that can.

An input can if its class has the field `skip_bad_records`.
"""

from collections.abc import Sequence

import fiddle as fdl
from absl import logging
from fiddle import daglish

from pax_compat import config as config_lib
from pax_compat import errors

_FIELD = 'skip_bad_records'


def set_in(configs: Sequence[config_lib.Config], *, must: bool):
  """Makes inputs leave out damaged records.

  Args:
    configs: of the inputs. The field is set in them, and in the configs that
      they contain, such as those of a `MultiInput`.
    must: whether one of them has to be able to.

  Raises:
    UserError: none of them can, though one has to.
  """
  others = [config.name for config in configs if not _set(config)]
  if must and len(others) == len(configs):
    raise errors.UserError(
      f'--{_FIELD}: none of the datasets {", ".join(others)} can leave out'
      f' records; expected an input that has the field {_FIELD}'
    )
  if others:
    logging.warning(
      '--%s: of the datasets, %s cannot leave out records',
      _FIELD,
      ', '.join(others),
    )


def _set(config: config_lib.Config) -> int:
  """Sets the field in a config and those within; returns in how many."""
  able = [
    part
    for part, _ in daglish.iterate(config)
    if isinstance(part, fdl.Config) and _FIELD in config_lib.field_names(part)
  ]
  for part in able:
    setattr(part, _FIELD, True)
  return len(able)
