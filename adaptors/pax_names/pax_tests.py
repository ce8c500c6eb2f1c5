"""Runs Pax's own unit tests, from a checkout, against our names.

    python -m adaptors.pax_names.pax_tests --source=CHECKOUT [FILE ...]

The checkout is one of praxis or of paxml. Each file, such as `schedules` or
`layers/linears`, runs in a process of its own under `install()`; without a
FILE, all of them. Tests of `paxml/tasks` run with the experiments of the
checkout, as with `--pax_source`, all others with ours. A line for each file has
the number of tests that pass; `--failures` prints what the others raise.
`--table=testdata/pax/praxis_tests.json` prints a table in Markdown instead,
beside the numbers with Pax itself.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from absl import flags

from pax_compat import errors
from pax_compat.cli import command_line

_SOURCE = flags.DEFINE_string('source', None, 'A checkout of praxis or paxml.')
_FAILURES = flags.DEFINE_bool('failures', False, 'Print the failing tests.')
_SECONDS = flags.DEFINE_integer(
  'seconds', 600, 'Time limit of each file, in seconds.', lower_bound=1
)
_TABLE = flags.DEFINE_string(
  'table',
  None,
  'Print a table, beside the numbers of tests that pass with Pax itself and'
  ' of all tests, by file, in this JSON file.',
)
_SUFFIX = '_test.py'

_ROW = '| {} | {} | {} | {} | {} |'

# What the process of a file runs; its arguments are the file, and a checkout to
# mount, if any. Tests in a folder `tests` import helpers from it, a folder that
# Pax does not install.
_RUN = """
import importlib.util, pathlib, runpy, sys, types
from adaptors import lingvo_runtime, pax_names
from adaptors.pax_names import finder
path, *checkout = sys.argv[1:]
if any(name in open(path).read() for name in ('tensorflow', 'lingvo')):
  lingvo_runtime.load()
pax_names.install(return_atten_probs=True, pax_summary_keys=True)
if checkout:
  finder.mount(pathlib.Path(checkout[0]))
folder = pathlib.Path(path).parent
if folder.name == 'tests':
  tops = [i for i, x in enumerate(folder.parts) if x in ('praxis', 'paxml')]
  package = types.ModuleType('.'.join(folder.parts[tops[-1]:]))
  sys.modules[package.__name__] = package
  for helper in folder.glob('*_util.py'):
    name = f'{package.__name__}.{helper.stem}'
    spec = importlib.util.spec_from_file_location(name, helper)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    setattr(package, helper.stem, module)
sys.argv[:] = [path]
runpy.run_path(path, run_name='__main__')
"""


def main(argv: Sequence[str]) -> int:
  """Returns 0 if all tests of all files pass, 1 if not."""
  command_line.require(_SOURCE)
  known = files(pathlib.Path(_SOURCE.value).expanduser().resolve())
  names = [name.removesuffix(_SUFFIX) for name in argv[1:]] or list(known)
  totals, passes = [0, 0], True
  pax = None
  if _TABLE.value:
    pax = json.loads(pathlib.Path(_TABLE.value).read_text('utf-8'))
    print(_ROW.format('file', 'pass', 'Pax', 'of', 'what the others raise'))
    print('|---|---|---|---|---|')
  for name in names:
    if name not in known:
      raise errors.UserError(
        f'tests {name!r} not found in {_SOURCE.value}'
        + errors.did_you_mean(name, known)
      )
    passed, total, reasons = run(known[name], seconds=_SECONDS.value)
    totals = [totals[0] + passed, totals[1] + total]
    passes &= 0 < passed == total
    if pax is not None:
      print(row(name, passed, total, reasons, pax), flush=True)
      continue
    print(f'{name:45} {passed:5} of {total:5}', flush=True)
    for reason in reasons if _FAILURES.value or not total else ():
      print(f'    {reason}')
  print(f'{"all":45} {totals[0]:5} of {totals[1]:5}')
  return int(not passes)


def files(source: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the files of tests of a checkout, by name such as `layers/linears`.

  Args:
    source: a folder that contains `praxis` or `paxml`.

  Raises:
    UserError: if it contains neither, or no tests.
  """
  roots = [source / 'praxis', source / 'paxml']
  found = {
    str(path.relative_to(root)).removesuffix(_SUFFIX): path
    for root in roots
    # The files of a folder before those of its folders.
    for path in sorted(
      root.rglob(f'*{_SUFFIX}'), key=lambda path: (len(path.parts), path)
    )
  }
  if not found:
    raise errors.UserError(
      f'{source} is not a source checkout of praxis or paxml; expected a folder'
      ' that contains praxis/*_test.py or paxml/*_test.py'
    )
  return found


def row(
  name: str,
  passed: int,
  total: int,
  reasons: Sequence[str],
  pax: Mapping[str, Sequence[int | None]],
) -> str:
  """Returns a row of a table in Markdown.

  Args:
    name: the file.
    passed: see `run`.
    total: likewise.
    reasons: likewise; the two most frequent ones are shown.
    pax: by file, the tests that pass with Pax itself, None if that is
      unknown, and all tests.
  """
  known, of = pax.get(name, (None, total))
  raised = (
    re.sub(r'^(ERROR|FAIL): .*?[)\]]: ', '', reason) for reason in reasons
  )
  counts = collections.Counter(text.strip().rstrip(':') for text in raised)
  shown = '; '.join(
    f'{count} x `{text[:100]}`' for text, count in counts.most_common(2)
  )
  known = '?' if known is None else known
  return _ROW.format(f'`{name}`', passed, known, max(of, total), shown)


def run(path: pathlib.Path, *, seconds: int) -> tuple[int, int, list[str]]:
  """Runs the tests of a file.

  Args:
    path: the file.
    seconds: its time limit.

  Returns:
    The tests that pass (skipped ones do), all tests, and a line about each that
    fails. If the file cannot be imported, 0 and 0 and the reason. If the time
    limit is reached, the tests that were begun until then.
  """
  try:
    done = subprocess.run(
      [sys.executable, '-c', _RUN, str(path), *_checkout(path)],
      capture_output=True,
      text=True,
      timeout=seconds,
      env=os.environ,
      check=False,
    )
  except subprocess.TimeoutExpired as stopped:
    text = (stopped.stderr or b'').decode(errors='replace')
    begun, passed = (
      len(re.findall(rf'^\[ +{word} +\]', text, re.MULTILINE))
      for word in ('RUN', 'OK')
    )
    return passed, begun, [f'not done after {seconds} s; others were not run']
  return counted(done.stderr)


def _checkout(path: pathlib.Path) -> list[str]:
  """Returns the checkout of a test of experiments, as `--pax_source`."""
  parents = [str(parent) for parent in path.parents]
  tasks = os.path.join('paxml', 'tasks')
  roots = [p.removesuffix(tasks) for p in parents if p.endswith(os.sep + tasks)]
  return roots[:1]


def counted(text: str) -> tuple[int, int, list[str]]:
  """Returns what the output of unittest says; see `run`."""
  ran = re.search(r'^Ran (\d+) tests?', text, re.MULTILINE)
  if ran is None:
    lines = text.strip().splitlines() or ['no output']
    return 0, 0, [lines[-1]]
  total = int(ran[1])
  reasons = []
  parts = re.split(r'^={70}\n', text, flags=re.MULTILINE)[1:]
  failed = set()
  for part in parts:
    title, _, body = part.partition('\n')
    # Of a test with subtests there is a part for each that fails.
    failed.add(re.sub(r'^\w+: ', '', title).split(' ')[0])
    raised = re.findall(r'^(\w[\w.]*(?:Error|Exception).*)', body, re.MULTILINE)
    reasons.append(f'{title}: {raised[-1] if raised else "failed"}'[:300])
  return total - len(failed), total, reasons


if __name__ == '__main__':
  command_line.run(main)
