r"""Runs Lingvo's own trainer, with repaired native ops if needed.

    python -m adaptors.lingvo_trainer --model=lm.my_params.MyModel \
        --logdir=/tmp/run --run_locally=cpu --mode=sync

takes every flag of `lingvo.trainer`; `--lingvo_source` for a checkout with the
`params` packages that Lingvo's wheel lacks; and `--import_modules` for modules,
separated by commas, that register experiments. It runs TensorFlow on the CPU,
for comparison: `pax_compat.main` trains the same experiment on JAX.
"""

import runpy
import sys
from collections.abc import Sequence

from absl import flags

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import lookup, mounts
from pax_compat import errors


def main(argv: list[str]) -> None:
  """Mounts the packages of experiments and runs the trainer to its end.

  Args:
    argv: the program's name and its flags.

  Raises:
    UserError: `--model` is missing, a flag selects an accelerator,
      `--lingvo_source` is not a checkout, or Lingvo or a module of
      `--import_modules` cannot be loaded.
  """
  own, sys.argv = _own_flags(argv)
  if not own.model:
    raise errors.UserError('--model is required; see --help')
  if own.run_locally in ('gpu', 'tpu'):
    raise errors.UserError(
      f'--run_locally={own.run_locally} is not possible here: TensorFlow does'
      ' not see accelerators; expected --run_locally=cpu, or pax_compat.main'
      ' to train on an accelerator'
    )
  if own.lingvo_source:
    mounts.mount_checkout(own.lingvo_source)
  mounts.mount_entry_points()
  lingvo_runtime.load()
  _import_with_model(own.import_modules)
  # As `__main__`, because only then the trainer sets up TensorFlow and imports
  # the model.
  runpy.run_module('lingvo.trainer', run_name='__main__', alter_sys=True)


def _import_with_model(modules: Sequence[str]):
  """Makes the trainer import modules just before that of the model.

  By then its flags are defined, which such modules may read.
  """
  imports = lingvo_runtime.module('lingvo.model_imports')
  registry = lingvo_runtime.module('lingvo.model_registry')
  import_params = imports.ImportParams

  def import_all(name: str, *args, **kwargs) -> bool:
    for module in modules:
      lookup.import_module(module)
    known = registry._ModelRegistryHelper.GetAllRegisteredClasses() or {}
    return name in known or import_params(name, *args, **kwargs)

  if modules:
    imports.ImportParams = import_all


def _own_flags(argv: list[str]) -> tuple[flags.FlagValues, list[str]]:
  """Returns the flags of this module, and the trainer's command line.

  They are separate from absl's global flags, which the trainer parses. It gets
  all of them but those that it does not know.
  """
  own = flags.FlagValues()
  for name in ('lingvo_source', 'model', 'run_locally'):
    flags.DEFINE_string(
      name, None, 'Read before the trainer starts.', flag_values=own
    )
  flags.DEFINE_list(
    'import_modules', [], 'Read before the trainer starts.', flag_values=own
  )
  own.set_gnu_getopt(True)
  program, *others = own(argv, known_only=True)
  shared = {'model': own.model, 'run_locally': own.run_locally}
  given = [f'--{name}={value}' for name, value in shared.items() if value]
  return own, [program, *given, *others]


if __name__ == '__main__':
  if any(arg.startswith(('--help', '-help')) for arg in sys.argv):
    print(__doc__)
    sys.exit()
  try:
    main(sys.argv)
  except errors.UserError as e:
    print(f'error: {e}', file=sys.stderr)
    sys.exit(2)
