"""Reports runs, from the files in their folders.

    python -m pax_compat.tools.report /runs/a --to=report.html
    python -m pax_compat.tools.report /runs/a /runs/b --to=report.html
    python -m pax_compat.tools.report /runs/a --svg=loss.svg

The page has the curves of several runs over each other, throughput and input
wait, configs and their differences, parameters with sharding and bytes, decoded
examples, and the warnings of the log. It is one file, which needs no network.
The picture has the loss only.
"""

import importlib.util
import os
from typing import Any

from absl import flags

from pax_compat import errors
from pax_compat.cli import command_line
from pax_compat.runs import files, job_dir, remote

_TO = flags.DEFINE_string('to', None, 'File for the HTML page.')
_SVG = flags.DEFINE_string('svg', None, 'File for a picture of the loss.')
_METRIC = flags.DEFINE_string('metric', 'loss', 'The metric of the picture.')


def main(argv: list[str]):
  """Writes the page and the picture that the flags ask for."""
  paths = argv[1:]
  if not paths or not (_TO.value or _SVG.value):
    raise errors.UserError(
      'expected folders of runs and a file: python -m pax_compat.tools.report'
      ' RUN [RUN ...] --to=report.html; see --help'
    )
  if _METRIC.present and not _SVG.value:
    raise errors.UserError(
      '--metric is of the picture; expected --svg=FILE, too: the page has all'
      ' metrics'
    )
  page_file, picture_file = _target(_TO), _target(_SVG)
  if page_file is not None and importlib.util.find_spec('plotly') is None:
    raise errors.UserError(
      '--to needs the package plotly, which is not installed; expected pip'
      " install 'pax-compat[report]', or --svg, which needs no package"
    )
  # Imported late, because Plotly and JAX take seconds.
  from pax_compat.tools.run_report import picture, records

  runs = records.read(paths)
  if picture_file is not None:
    _write(picture_file, picture.svg(runs, _METRIC.value))
  if page_file is not None:
    from pax_compat.tools.run_report import page

    _write(page_file, page.page(runs))


def _target(flag: flags.FlagHolder) -> Any:
  """Returns the path of a file to write, checked before anything is read."""
  if not flag.value:
    return None
  path = job_dir.answering_path(flag.value)
  if remote.is_remote(path):
    return path
  if path.is_dir() or not os.access(path.parent, os.W_OK):
    raise errors.UserError(
      f'--{flag.name}={flag.value}: expected a file in a writable folder'
    )
  return path


def _write(path: Any, text: str):
  files.replace(path, text.encode())
  print(f'wrote {path}')


def run():
  """Entry point."""
  command_line.run(main)


if __name__ == '__main__':
  run()
