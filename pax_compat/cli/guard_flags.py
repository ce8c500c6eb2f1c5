"""Flags that limit what a run can lose: time, steps, weights."""

from typing import Any

from absl import flags

_SAVE_MINUTES = flags.DEFINE_float(
  'save_interval_minutes',
  30.0,
  'A checkpoint is saved at least this often, in addition to the intervals of'
  ' the task; 0 for these only.',
  lower_bound=0,
)
_INPUT_MINUTES = flags.DEFINE_float(
  'input_timeout_minutes',
  60.0,
  'How long a run waits for a batch until that is an error; 0 for no limit.'
  ' After a minute the log says what it waits for.',
  lower_bound=0,
)


def options() -> dict[str, Any]:
  """Returns fields of `trainer.run_options.RunOptions`."""
  return dict(
    save_interval_seconds=60 * _SAVE_MINUTES.value or None,
    input_timeout_seconds=60 * _INPUT_MINUTES.value or None,
  )
