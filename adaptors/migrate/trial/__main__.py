"""Trains one reduced experiment for a few steps, for `adaptors.migrate`.

    python -m adaptors.migrate.trial <file with the request> <file to write>

It is a process of its own, so that a crash concerns one experiment only.
"""

import json
import pathlib
import sys
import tempfile
import time


def main(argv: list[str]) -> None:
  """Runs a request of `trials.run`, and writes the result."""
  from adaptors.lingvo_registry.options import LingvoOptions
  from pax_compat import errors, experiment_sources

  request = json.loads(pathlib.Path(argv[1]).read_text('utf-8'))
  name, steps = request['name'], request['steps']
  options = experiment_sources.SourceOptions(
    import_modules=tuple(request['import_modules']),
    module_flags=tuple(request['module_flags']),
    own=(LingvoOptions(**request['own']),),
  )
  result = {'problem': '', 'metrics': {}}
  began = time.monotonic()
  try:
    experiment_sources.import_modules(options)
    result['metrics'] = _train(name, steps, options)
  except errors.UserError as error:
    result['problem'] = str(error)
  except Exception as error:  # User code runs here.
    result['problem'] = f'{errors.one_line(error)} ({_place(error)})'
    raise
  finally:
    result['seconds'] = time.monotonic() - began
    pathlib.Path(argv[2]).write_text(json.dumps(result), 'utf-8')


def _train(name: str, steps: int, options) -> dict[str, list]:
  """Trains an experiment, reduced; returns its losses, see `_metrics`."""
  # These take seconds to import.
  from adaptors.experiments import lingvo_source
  from adaptors.migrate.trial import reduced
  from pax_compat.trainer import run

  experiment = lingvo_source.find(name, options)
  made = reduced.resolve(experiment, name, steps)
  with tempfile.TemporaryDirectory() as folder:
    run.train(made, job_log_dir=folder)
    return _metrics(pathlib.Path(folder, 'metrics.jsonl'))


def _place(error: Exception) -> str:
  from pax_compat import errors

  return errors.best_location_of(error)


def _metrics(path: pathlib.Path) -> dict[str, list]:
  """Returns the values of each loss, by split and name."""
  found: dict[str, list] = {}
  for line in path.read_text('utf-8').splitlines():
    one = json.loads(line)
    if one['name'] == 'loss':
      value = one.get('note') or one['value']
      found.setdefault(one['split'], []).append(value)
  return found


if __name__ == '__main__':
  main(sys.argv)
