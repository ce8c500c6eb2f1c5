"""Says of Lingvo experiments what runs here, how, and what is in the way.

    python -m adaptors.migrate --exp='lm.*' --html=report.html
    python -m adaptors.migrate --all --import_modules=my_team.params

For each experiment: whether it is translated to JAX (native), run by TensorFlow
inside of JAX (bridged), some of both, or impossible; layer by layer with the
reasons, and what would make it native; how many parameters it has, and what
memory training takes; what drives its inputs, what its program schedule
becomes, and whether its checkpoints can come in. Nothing is allocated, however
large a model is, and no data is read.

Ends with status 0 if all can be used; with 1 if one is impossible; with 2 after
a mistake in what was asked for.
"""

import json
import pathlib
import shutil

from absl import flags, logging

from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors
from pax_compat.cli import command_line, experiment_flags

flags.adopt_module_key_flags(experiment_flags)

_ALL = flags.DEFINE_bool(
  'all', False, 'Report on every experiment of the registry; else on --exp.'
)
_HTML = flags.DEFINE_string(
  'html', None, 'File to write the report to as a page, complete in itself.'
)
_JSON = flags.DEFINE_string(
  'json', None, 'File to write the report to as data.'
)
_TRACE = flags.DEFINE_bool(
  'trace',
  False,
  'Trace a training step of each task too, which finds what XLA cannot compile.'
  ' On made-up batches where it is known what they are like, else on one of the'
  ' input.',
)


def main(argv: list[str]) -> int:
  """Does what the flags say; returns the exit status."""
  experiment_flags.no_arguments(argv)
  options = experiment_flags.options()
  own = options.of(LingvoOptions)
  _check_flags(own)
  # JAX and TensorFlow take seconds to import, which a mistake in a name should
  # not cost.
  from adaptors.migrate import choosing

  if _ALL.value:
    names = choosing.everything(options)
  elif experiment_flags.EXP.value:
    names = choosing.matching(experiment_flags.EXP.value, options)
  else:
    names = [own.lingvo_logdir]
  return _report(names, options)


def _check_flags(options):
  """Raises a UserError over flags that do not go together."""
  if options.translation != 'auto':
    raise errors.UserError(
      f'--translation={options.translation} has no meaning for a report, which'
      ' says what each would be; expected it without'
    )
  asked = [
    f'--{name}'
    for name, value in (
      ('all', _ALL.value),
      ('exp', experiment_flags.EXP.value),
      ('lingvo_logdir', options.lingvo_logdir),
    )
    if value
  ]
  if len(asked) != 1:
    raise errors.UserError(
      f'{" and ".join(asked) or "nothing"} is asked for; expected one of --all,'
      ' --exp and --lingvo_logdir'
    )
  for flag in (_HTML, _JSON):
    folder = pathlib.Path(flag.value or '.').expanduser().parent
    if not folder.is_dir():
      raise errors.UserError(f'--{flag.name}: there is no folder {folder}')


def _report(names, options) -> int:
  from adaptors.migrate.examine import examining
  from adaptors.migrate.findings import Status
  from adaptors.migrate.report import as_json, page, terminal

  logging.set_verbosity(logging.WARNING)
  found = []
  for number, name in enumerate(names, 1):
    found.append(examining.examine(name, options, traces=_TRACE.value))
    if len(names) > 1:
      print(f'{number}/{len(names)} {name}: {found[-1].status}', flush=True)
  if len(found) == 1:
    print(terminal.details(found[0]))
  else:
    print(terminal.table(found, shutil.get_terminal_size((160, 24)).columns))
  if _HTML.value:
    _write(_HTML.value, page.page(found))
  if _JSON.value:
    data = [as_json.experiment(one) for one in found]
    _write(_JSON.value, json.dumps(data, indent=2) + '\n')
  return 1 if any(e.status is Status.IMPOSSIBLE for e in found) else 0


def _write(path: str, text: str):
  pathlib.Path(path).expanduser().write_text(text, 'utf-8')
  print(f'written: {path}')


if __name__ == '__main__':
  command_line.run(main, experiment_flags.define_of_sources)
