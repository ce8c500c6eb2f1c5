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
_SAVE_INITIAL = flags.DEFINE_bool(
  'save_initial_checkpoint',
  False,
  'Save a new run before its first step, too, as Pax does.',
)
_INPUT_MINUTES = flags.DEFINE_float(
  'input_timeout_minutes',
  60.0,
  'How long a run waits for a batch until that is an error; 0 for no limit.'
  ' After a minute the log says what it waits for.',
  lower_bound=0,
)
_STEP_MINUTES = flags.DEFINE_float(
  'step_timeout_minutes',
  60.0,
  'How long a run shows no sign of life, such as the end of a step, of a batch'
  ' of an evaluation or of a save, until its process ends with status 1, as it'
  ' hangs; 0 for no limit. After five minutes the log says where it is.',
  lower_bound=0,
)
_ON_NAN = flags.DEFINE_enum(
  'on_nan',
  'stop',
  ['stop', 'skip', 'warn'],
  'What to do if the loss or the gradient norm of a step is not finite: stop'
  ' the run, whose checkpoints are all good; skip the step, so that the state'
  ' stays as before it; or warn only. A state that is not finite is never'
  ' saved.',
)
_SPIKE = flags.DEFINE_float(
  'loss_spike_factor',
  None,
  'A loss that many times the median of the last 100 steps stops the run, or'
  ' with --on_nan=warn is logged. By default no finite loss does.',
  lower_bound=1,
)


def options() -> dict[str, Any]:
  """Returns fields of `trainer.run_options.RunOptions`."""
  return dict(
    save_interval_seconds=60 * _SAVE_MINUTES.value or None,
    saves_initial_state=_SAVE_INITIAL.value,
    input_timeout_seconds=60 * _INPUT_MINUTES.value or None,
    step_timeout_seconds=60 * _STEP_MINUTES.value or None,
    on_nan=_ON_NAN.value,
    loss_spike_factor=_SPIKE.value,
  )
