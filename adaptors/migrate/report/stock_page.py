"""Makes a page of Lingvo's own experiments from reports with trial runs.

    python -m adaptors.migrate --all --lingvo_source=/data/lingvo \\
        --run_steps=5 --json=report.json
    python -m adaptors.migrate.report.stock_page /data/lingvo report.json \\
        > docs/stock_experiments.md

Several reports are joined; of an experiment in two of them the later counts.
"""

import argparse
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adaptors.migrate.report.terminal import format_loss

_HEAD = """\
# Lingvo's own experiments

Made by `python -m adaptors.migrate --all --lingvo_source=... --run_steps=5
--json=report.json` and `python -m adaptors.migrate.report.stock_page
<lingvo_source> report.json`. Each experiment with losses below was trained for
some steps and evaluated once, in a process of its own: reduced in size, on
synthetic batches with the fields and shapes of its input. *native*: translated
to JAX; *bridged*: Lingvo's own code within the compiled step; *partly bridged*:
translated, but for a layer of Lingvo's within the step; *not run*: not tried
yet.
"""
_TABLE = """
| experiment | runs | steps | loss | evaluated | reason |
|---|---|---|---|---|---|
"""
_REGISTERED = re.compile(
  r'^@(?:\w+\.)*Register\w*\s*(?:\([^)]*\))?\nclass (\w+)', re.MULTILINE
)
_NOT_RUN = 'not run'
# The line of code of an error: `(/folder/file.py:3)`.
_PLACE = re.compile(r' \(/[^ ]*:\d+\)$')


def names(checkout: pathlib.Path) -> list[str]:
  """Returns the names of the experiments in a checkout of Lingvo.

  Args:
    checkout: its folder.
  """
  tasks = checkout / 'lingvo' / 'tasks'
  found = []
  for file in sorted(tasks.rglob('params/**/*.py')):
    *parents, module = file.relative_to(tasks).with_suffix('').parts
    prefix = '.'.join([*(p for p in parents if p != 'params'), module])
    if not module.endswith('_test'):
      classes = _REGISTERED.findall(file.read_text('utf-8'))
      found += [f'{prefix}.{name}' for name in classes]
  return found


def page(known: Sequence[str], reports: Mapping[str, Any]) -> str:
  """Returns the page in Markdown.

  Args:
    known: names of all experiments.
    reports: findings of `--json`, by name.
  """
  rows = [_row(name, reports.get(name)) for name in known]
  return f'{_HEAD}\n{_summary(known, reports)}\n{_TABLE}' + ''.join(rows)


def _summary(known, reports) -> str:
  """Returns a sentence with the numbers of experiments."""
  found = [reports[name] for name in known if name in reports]
  tried = [one for one in found if one['trial']]
  ran = [one for one in tried if not one['trial']['problem']]
  kinds = [one['status'] for one in found]
  counts = ', '.join(f'{kinds.count(k)} {k}' for k in sorted(set(kinds)))
  return (
    f'{len(known)} experiments; examined {len(found)}: {counts}. Tried'
    f' {len(tried)}, of which {len(ran)} ran as reported.'
  )


def _row(name: str, report: Mapping[str, Any] | None) -> str:
  cells = [f'`{name}`', *_cells(report)]
  return f'| {" | ".join(cells)} |\n'


def _cells(report: Mapping[str, Any] | None) -> Iterator[str]:
  if report is None:
    yield from (_NOT_RUN, '', '', '', '')
    return
  yield report['status']
  trial = report['trial'] or {}
  losses = trial.get('losses', ())
  yield str(len(losses)) if trial else _NOT_RUN
  yield (
    f'{format_loss(losses[0])} to {format_loss(losses[-1])}' if losses else ''
  )
  yield ', '.join(map(format_loss, trial.get('eval_losses', ())))
  yield _reason(report, trial)


def _reason(report: Mapping[str, Any], trial: Mapping[str, Any]) -> str:
  """Returns why an experiment is not native, or does not run."""
  problem = _PLACE.sub('', trial.get('problem') or report['problem'])
  if not problem:
    issues = [i for task in report['tasks'] for i in task['issues']]
    problem = '; '.join(
      dict.fromkeys(
        f'{i["field"] and i["path"] or i["class_path"]}: {i["message"]}'
        for i in issues
      )
    )
  return ' '.join(problem.split()).replace('|', '\\|')


def main() -> None:
  """Prints the page."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('lingvo_source', help='A source checkout of Lingvo.')
  parser.add_argument('reports', nargs='+', help='Files that --json wrote.')
  arguments = parser.parse_args()
  known = names(pathlib.Path(arguments.lingvo_source))
  if not known:
    parser.error(f'{arguments.lingvo_source} has no experiments')
  found = {
    one['name']: one
    for file in arguments.reports
    for one in json.loads(pathlib.Path(file).read_text('utf-8'))
  }
  print(page(known, found), end='')


if __name__ == '__main__':
  main()
