"""Leaving out damaged records in every input of an experiment that can.

An input can if its class has the field `skip_bad_records`.
"""

import functools

import fiddle as fdl
from absl import logging
from fiddle import daglish

from pax_compat import base_experiment, errors
from pax_compat import config as config_lib

_FIELD = 'skip_bad_records'


def in_inputs_of(experiment: base_experiment.BaseExperiment):
  """Makes the inputs that an experiment defines leave out damaged records.

  Args:
    experiment: changed: its `datasets` and `decode_datasets` give configs in
      which the field is set, also within others, such as of a `MultiInput`.
      `datasets` raises a UserError if no config of them has the field.
  """
  for method in ('datasets', 'decode_datasets'):
    defined = getattr(experiment, method)
    must = method == 'datasets'
    setattr(experiment, method, functools.partial(_skipping, defined, must))


def _skipping(defined, must: bool) -> list[config_lib.Config]:
  configs = [config.clone() for config in defined()]
  others = [config.name for config in configs if not _set(config)]
  if must and len(others) == len(configs):
    raise errors.UserError(
      f'--{_FIELD}: none of the datasets {", ".join(others)} can leave out'
      f' records; expected an input that has the field {_FIELD}, such as a'
      ' LingvoInputAdaptor'
    )
  if others:
    logging.warning(
      '--%s: of the datasets, %s cannot leave out records',
      _FIELD,
      ', '.join(others),
    )
  return configs


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
