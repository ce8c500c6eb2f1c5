r"""Compiles the documented experiments for their pods, for `docs/pods.md`.

    python -m pax_compat.tools.pods.documented --page=docs/pods.md [NAME ...]

Each is compiled in a process of its own, one after the other, which takes
minutes each; its row of the page's table is replaced. With NAMEs only those.
Flags that change an experiment, such as `--attr=...`, hold for all of them, and
stand in their rows; write their values behind `=`.
"""

import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

from pax_compat import errors, experiment_sources
from pax_compat.cli import command_line, experiment_flags
from pax_compat.experiments import resolved
from pax_compat.tools.pods import compiling
from pax_compat.trainer.reporting import start_lines

flags.adopt_module_key_flags(experiment_flags)

_PAGE = flags.DEFINE_string('page', None, 'The page whose table is updated.')
_ROW_OF = flags.DEFINE_string(
  'row_of', None, 'Print the row of one experiment, and compile no others.'
)

_COLUMNS = (
  'experiment',
  'topology',
  'compiled in',
  'memory allocated',
  'in use at once',
  'attention',
  'step',
  'limited by',
  'roofline MFU',
)
_HEADER = f'| {" | ".join(_COLUMNS)} |'
_NOT_YET = '| `{name}` | {topology} | not compiled yet' + ' |' * 7


class Documented(NamedTuple):
  """An experiment, and the machine that it is documented for.

  Attributes:
    topology: as of `--topology`.
    num_slices: number of slices.
  """

  topology: str
  num_slices: int = 1

  def text(self) -> str:
    """Returns a cell of the table."""
    slices = f', {self.num_slices} slices' if self.num_slices > 1 else ''
    return f'`{self.topology}`{slices}'


# A chip of TPU v4 is one device; a name such as v4-128 counts its two cores.
EXPERIMENTS = {
  'tasks.lm.params.c4.C4Spmd1BAdam4Replicas': Documented('v4:2x2x1'),
  'tasks.lm.params.c4.C4Spmd16BAdam32Replicas': Documented('v4:2x4x4'),
  'tasks.lm.params.c4.C4SpmdPipelineGpt3SmallAdam64Replicas': Documented(
    'v4:4x4x4'
  ),
  'tasks.lm.params.c4_multislice.C4Spmd22BAdam2xv4_128': Documented(
    'v4:4x4x4', 2
  ),
  'tasks.lm.params.lm_cloud.LmCloudSpmd2B': Documented('v4:2x2x1'),
  # Of TPU v3 in Lingvo's documents, which libtpu does not compile for: as many
  # devices of TPU v4.
  'lm.synthetic_packed_input.DenseLm8B2x2': Documented('v4:2x2x2'),
  'lm.synthetic_packed_input.DenseLm128B8x8': Documented('v4:4x4x8'),
  'lm.synthetic_packed_input.DenseLm175B32x32': Documented('v4:8x16x16'),
}


def main(argv: list[str]):
  """Compiles the experiments and updates the page."""
  if _ROW_OF.value:
    print(_compiled_row(_documented(_ROW_OF.value)), flush=True)
    return
  if not _PAGE.value or not pathlib.Path(_PAGE.value).is_file():
    raise errors.UserError(
      f'--page={_PAGE.value}: expected a file with the table, docs/pods.md'
    )
  page = pathlib.Path(_PAGE.value)
  for name in [_documented(name) for name in argv[1:]] or EXPERIMENTS:
    done = subprocess.run(
      [
        *(sys.executable, '-m', __spec__.name),
        *(f'--row_of={name}', *_options(sys.argv[1:])),
      ],
      stdout=subprocess.PIPE,
      text=True,
      check=False,
    )
    if done.returncode:
      print(f'{name} was not compiled', flush=True)
      continue
    found = done.stdout.splitlines()[-1]
    page.write_text(with_row(page.read_text('utf-8'), name, found), 'utf-8')
    print(found, flush=True)


def _documented(name: str) -> str:
  """Returns the full name of a documented experiment."""
  for known in EXPERIMENTS:
    if known == name or known.endswith(f'.{name}'):
      return known
  raise errors.UserError(
    f'{name!r} is not among the documented experiments'
    + errors.did_you_mean(name, EXPERIMENTS)
  )


def _compiled_row(name: str) -> str:
  experiment = experiment_sources.find(name, experiment_flags.options())
  made = compiling.compile_only(
    lambda: resolved.resolve(experiment, name=name, settings=()),
    *EXPERIMENTS[name],
  )
  return row(made, _options(sys.argv[1:]))


def _options(arguments: list[str]) -> list[str]:
  """Returns the flags among arguments that change the experiment."""
  own = tuple(f'--{flag.name}=' for flag in (_PAGE, _ROW_OF))
  return [x for x in arguments if x.startswith('--') and not x.startswith(own)]


def row(made: compiling.Compiled, options: Sequence[str] = ()) -> str:
  """Returns the row of an experiment that was compiled with such flags."""
  limit, seconds = made.roofline()
  size = start_lines.short_bytes
  memory = (
    f'{size(made.total_memory)} of {size(made.topology.chip.memory_bytes)}'
  )
  kernels = sorted({text.partition(',')[0] for text in made.attention})
  cells = (
    ' '.join(f'`{text}`' for text in (made.name, *options)),
    Documented(made.topology.name, made.topology.num_slices).text(),
    f'{made.cpu_seconds:.0f} s of CPU time',
    memory if made.fits else f'{memory}: does not fit',
    '' if made.peak_memory is None else size(made.peak_memory),
    ', '.join(kernels),
    f'{seconds:.3g} s',
    limit,
    '' if made.mfu is None else f'{100 * made.mfu:.1f} %',
  )
  return f'| {" | ".join(cells)} |'


def with_row(page: str, name: str, new: str) -> str:
  """Returns a page with the row of an experiment replaced.

  Args:
    page: text with the table, of which rows may be missing.
    name: of the experiment.
    new: its row.

  Raises:
    UserError: the page does not have the table.
  """
  before, found, rest = page.partition(_HEADER)
  if not found:
    raise errors.UserError(f'the page has no table that begins {_HEADER}')
  lines = rest.lstrip('\n').splitlines()
  count = next(
    (i for i, line in enumerate(lines) if not line.startswith('|')), len(lines)
  )
  rows = {line.split('`')[1]: line for line in lines[1:count] if '`' in line}
  rows[name] = new
  table = [
    rows.get(one, _NOT_YET.format(name=one, topology=machine.text()))
    for one, machine in EXPERIMENTS.items()
  ]
  rule = '|---' * len(_COLUMNS) + '|'
  return '\n'.join([before + _HEADER, rule, *table, *lines[count:], ''])


if __name__ == '__main__':
  command_line.run(main, experiment_flags.define_of_sources)
