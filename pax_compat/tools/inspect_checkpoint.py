"""Shows, verifies and compares the checkpoints of a run.

    python -m pax_compat.tools.inspect_checkpoint /runs/a            # all steps
    python -m pax_compat.tools.inspect_checkpoint /runs/a --verify
    python -m pax_compat.tools.inspect_checkpoint /runs/a --checkpoint_step=100
    python -m pax_compat.tools.inspect_checkpoint /runs/a --arrays
    python -m pax_compat.tools.inspect_checkpoint /runs/a --diff=/runs/b

Nothing is changed. The exit status is 1 if a checkpoint is damaged, or if two
differ.
"""

from absl import flags

from pax_compat import errors
from pax_compat.cli import command_line

_STEP = flags.DEFINE_integer(
  'checkpoint_step',
  None,
  'The step of --arrays and --diff, by default the newest. Without these, only'
  ' the checkpoint of this step is listed, and with --verify read.',
  lower_bound=0,
)
_VERIFY = flags.DEFINE_bool(
  'verify', False, 'Read all files and compare them with their checksums.'
)
_ARRAYS = flags.DEFINE_bool(
  'arrays', False, 'Print path, type and range of each array.'
)
_DIFF = flags.DEFINE_string(
  'diff',
  None,
  'Folder of another run, with whose checkpoint of the same step, or else its'
  ' newest, arrays are compared. The same folder with --diff_step compares two'
  ' steps.',
)
_DIFF_STEP = flags.DEFINE_integer(
  'diff_step',
  None,
  'The step of the other checkpoint, of --diff.',
  lower_bound=0,
)


def main(argv: list[str]) -> int:
  """Prints what the flags ask for; returns the exit status."""
  if len(argv) != 2:
    raise errors.UserError(
      'expected the folder of a run, or of its checkpoints: python -m'
      ' pax_compat.tools.inspect_checkpoint DIR'
    )
  if _DIFF_STEP.value is not None and not _DIFF.value:
    raise errors.UserError(
      '--diff_step is for --diff; expected --diff=OTHER, too'
    )
  # Imported late, because JAX and Orbax take seconds.
  from pax_compat.checkpoints import stored
  from pax_compat.tools import checkpoint_inspection

  folder = checkpoint_inspection.folder_of(argv[1])
  shows_one = _ARRAYS.value or _DIFF.value
  good = checkpoint_inspection.print_steps(
    folder,
    verifies=_VERIFY.value,
    only=None if shows_one else _STEP.value,
  )
  if shows_one:
    one = stored.StoredCheckpoint(folder, _STEP.value)
    if _ARRAYS.value:
      checkpoint_inspection.print_arrays(one)
    if _DIFF.value:
      good &= checkpoint_inspection.print_differences(
        one, _DIFF.value, _DIFF_STEP.value
      )
  return 0 if good else 1


def run():
  """Entry point."""
  command_line.run(main)


if __name__ == '__main__':
  run()
