"""Prints a table of the experiments of a paxml checkout; see `check`."""

import pathlib
import sys
from collections.abc import Iterator, Sequence

from absl import flags

from adaptors.pax_names import checkout
from adaptors.pax_names.check import checking, recording
from pax_compat import errors
from pax_compat.cli import command_line

_SOURCE = flags.DEFINE_string('pax_source', None, 'A checkout of paxml.')
_RECORDED = flags.DEFINE_multi_string(
  'recorded', [], 'Folder of recordings of Pax. May be repeated.'
)
_ONLY = flags.DEFINE_string(
  'only', '', 'Check the experiments whose name contains this.'
)
_CHECKS = ('task', 'variables', 'numbers')


def main(argv: Sequence[str]) -> int:
  """Returns 0 if all experiments are as in Pax, 1 if not."""
  command_line.no_arguments(argv)
  command_line.require(_SOURCE)
  folders = [pathlib.Path(folder) for folder in _RECORDED.value]
  for folder in folders:
    recording.check(folder)
  root = checkout.mount(_SOURCE.value)
  names = [
    name
    for name in checkout.names(root)
    if _ONLY.value in name and name.startswith('paxml.tasks.')
  ]
  if not names:
    raise errors.UserError(
      f'{root} has no experiment whose name contains {_ONLY.value!r}'
      + errors.did_you_mean(_ONLY.value, checkout.names(root))
    )
  counts = {check: [0, 0] for check in _CHECKS}
  width = max(map(len, names))
  print(f'{"experiment":{width}} {" ".join(f"{c:>9}" for c in _CHECKS)}')
  for name, outcomes in _checked(names, folders):
    results = [outcome.result for outcome in outcomes]
    print(f'{name:{width}} {" ".join(f"{r:>9}" for r in results)}')
    for check, outcome in zip(_CHECKS, outcomes, strict=True):
      for reason in outcome.reasons:
        print(f'    {check}: {reason}')
      counts[check][0] += outcome.result == checking.OK
      counts[check][1] += outcome.result != checking.NONE
    sys.stdout.flush()
  for check, (good, all_) in counts.items():
    print(f'{check}: {good} of {all_}')
  return int(any(good < all_ for good, all_ in counts.values()))


def _checked(
  names: Sequence[str], folders: Sequence[pathlib.Path]
) -> Iterator[tuple[str, list[checking.Outcome]]]:
  """Yields each name with the outcomes of its checks."""
  recorded = recording.variables(folders)
  files = recording.numbers(folders)
  for name in names:

    def experiment(name=name):
      return checkout.experiment(name)

    outcomes = [checking.task(experiment)]
    if outcomes[0].result == checking.OK:
      outcomes += [
        checking.variables_of(
          experiment, recorded.get(name.removeprefix('paxml.'))
        ),
        checking.numbers_of(
          experiment, files.get('.'.join(name.split('.')[-2:]))
        ),
      ]
    else:
      none = checking.Outcome(checking.FAILED)
      outcomes += [
        none if key in found else checking.Outcome(checking.NONE)
        for key, found in (
          (name.removeprefix('paxml.'), recorded),
          ('.'.join(name.split('.')[-2:]), files),
        )
      ]
    yield name, outcomes


if __name__ == '__main__':
  command_line.run(main)
