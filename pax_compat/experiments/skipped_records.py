"""Sets `skip_bad_records` in the inputs whose class has this field."""

from collections.abc import Sequence

from absl import logging

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.experiments import dataset_fields

_FIELD = 'skip_bad_records'


def set_in(configs: Sequence[config_lib.Config], *, required: bool):
  """Makes inputs skip damaged records.

  Args:
    configs: the configs of the inputs. Nested configs, such as those in a
      `MultiInput`, are changed too.
    required: whether at least one of the inputs must have the field.

  Raises:
    UserError: `required`, and none of them has the field.
  """
  others = [
    config.name
    for config in configs
    if not dataset_fields.set_in(config, _FIELD, True)
  ]
  if required and len(others) == len(configs):
    raise errors.UserError(
      f'--{_FIELD}: none of the datasets {", ".join(others)} can skip'
      f' damaged records; expected an input that has the field {_FIELD}'
    )
  if others:
    logging.warning(
      '--%s has no effect on the datasets %s, which cannot skip records',
      _FIELD,
      ', '.join(others),
    )
