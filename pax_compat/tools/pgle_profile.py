"""Turns a profile into what XLA schedules a GPU's next run by.

    python -m pax_compat.tools.pgle_profile --profile=runs/x

XLA's profile-guided latency estimator (PGLE) reads how long each instruction
took from a file, which this writes: `profile.pb` in the folder of the profile,
or --output. It is what `--xla_gpu_pgle_profile_file_or_directory_path` in
XLA_FLAGS expects. See docs/gpu.md.

The exit status is 2 without a profile of a GPU.
"""

import pathlib
import tempfile
from typing import Any

from absl import flags

from pax_compat import errors
from pax_compat.cli import command_line, experiment_flags
from pax_compat.runs import files, job_dir, remote

_PROFILE = flags.DEFINE_string(
  'profile',
  None,
  'Folder of a run, of its summaries or of one profile, local or gs://. The'
  ' newest profile in it is taken.',
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'File to write; by default profile.pb beside the profile.'
)
_SUFFIX = '.xplane.pb'
# Where a profile may lie in the folder: see `task.train.profiler_capture_step`.
_WITHIN = ('.', 'summaries/train')


def newest_profile(folder: Any) -> Any:
  """Returns the folder of the newest profile: the one with `*.xplane.pb`.

  Args:
    folder: of a run, of summaries or of a profile.

  Raises:
    UserError: there is none.
  """
  if _traces(folder):
    return folder
  found = [
    profile
    for part in _WITHIN
    for profile in files.children(folder / part / 'plugins' / 'profile')
    if _traces(profile)
  ]
  if not found:
    raise errors.UserError(
      f'{folder} has no profile; expected a folder with'
      f' plugins/profile/*/*{_SUFFIX}, which a run with'
      ' --set=task.train.profiler_capture_step=10 writes'
    )
  return max(found, key=lambda profile: profile.name)  # They are times.


def instruction_times(profile: Any) -> bytes:
  """Returns XLA's times of instructions, a serialized protocol buffer.

  Args:
    profile: folder of a profile, local or remote. The profiles of all hosts in
      it are merged.

  Raises:
    UserError: it has no time of a GPU's instruction.
  """
  # Late: JAX takes a second to import, which an invalid flag should not cost.
  from jax.experimental import profiler

  with tempfile.TemporaryDirectory() as copies:
    folder = profile
    if remote.is_remote(profile):
      folder = pathlib.Path(copies)
      for trace in _traces(profile):
        (folder / trace.name).write_bytes(trace.read_bytes())
    times = profiler.get_profiled_instructions_proto(str(folder))
  if not times:
    raise errors.UserError(
      f"the profile {profile} has no times of a GPU's instructions; expected"
      ' one that was taken on an NVIDIA GPU'
    )
  return times


def _traces(folder: Any) -> list[Any]:
  """Returns the files of a profile, one for each host."""
  try:
    return [p for p in files.children(folder) if p.name.endswith(_SUFFIX)]
  except NotADirectoryError:
    return []


def main(argv: list[str]):
  """Writes the file, and prints the flag that uses it."""
  command_line.no_arguments(argv)
  experiment_flags.require(_PROFILE)
  profile = newest_profile(job_dir.checked_path(_PROFILE.value))
  output = profile / 'profile.pb'
  if _OUTPUT.value:
    output = job_dir.checked_path(_OUTPUT.value)
  content = instruction_times(profile)
  try:
    files.replace(output, content)
  except OSError as e:
    raise errors.UserError(
      f'--output={output} cannot be written: {errors.one_line(e)}; expected a'
      ' file in a writable folder'
    ) from e
  print(f'wrote {output}, {len(content):,} bytes, from {profile}')
  print(
    'Train with it: XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true'
    f' --xla_gpu_pgle_profile_file_or_directory_path={output}"'
  )


if __name__ == '__main__':
  command_line.run(main)
