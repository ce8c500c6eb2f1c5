"""Inspects the data of an experiment.

    python -m pax_compat.tools.inspect_input --exp=NAME --split=Dev

For each dataset it prints the fields of a batch with their shapes, the first
batches as text, and whether several hosts would read the same examples; with
--html it writes a page with grey padding and coloured segments.

The exit status is 0 if the check finds no problems, 1 if it finds some (the
lines that begin with `warning`), and 2 if a flag is invalid.
"""

import os
import pathlib

from absl import flags

from pax_compat import errors, experiment_sources
from pax_compat.cli import command_line, experiment_flags
from pax_compat.experiments import experiment_overrides

flags.adopt_module_key_flags(experiment_flags)

_SPLIT = flags.DEFINE_list(
  'split', [], 'Names of the datasets to inspect; all by default.'
)
_BATCHES = flags.DEFINE_integer(
  'batches', 2, 'Number of batches shown of each dataset.', lower_bound=1
)
_ROWS = flags.DEFINE_integer(
  'rows', 4, 'Number of examples printed of each batch.', lower_bound=0
)
_HOSTS = flags.DEFINE_integer(
  'hosts',
  2,
  'Number of simulated hosts whose examples are compared; 1 for no check.',
  lower_bound=1,
)
_SHARD_BATCHES = flags.DEFINE_integer(
  'shard_batches',
  20,
  'Maximum number of batches compared of each host.',
  lower_bound=1,
)
_HTML = flags.DEFINE_string('html', None, 'File for an HTML page of examples.')


def main(argv: list[str]) -> int:
  """Inspects the data; returns the exit status."""
  command_line.no_arguments(argv)
  name = experiment_flags.name()
  page = _page()
  experiment = experiment_sources.find(name, experiment_flags.options())
  # Late: JAX takes a second to import, which an invalid name should not cost.
  from pax_compat.tools import inspecting, inspection_page, inspection_text

  found, datasets = [], []
  for config in _chosen(experiment):
    for one in inspecting.with_children(config):
      found.append(
        inspecting.inspect(
          one,
          batches=_BATCHES.value,
          hosts=_HOSTS.value,
          shard_batches=_SHARD_BATCHES.value,
        )
      )
      print(inspection_text.of_dataset(found[-1], _ROWS.value), flush=True)
      if one is config:
        datasets.append(found[-1])
  warnings = inspecting.different_tokenizers(datasets)
  for warning in warnings:
    print(f'warning: {warning}')
  if page is not None:
    text = inspection_page.page(name, found, warnings)
    page.write_text(text, encoding='utf-8')
    print(f'wrote {page}')
  return 1 if warnings or any(dataset.warnings for dataset in found) else 0


def _page() -> pathlib.Path | None:
  """Returns the path of the page, checked before any data is read."""
  if not _HTML.value:
    return None
  path = pathlib.Path(_HTML.value)
  if path.is_dir() or not os.access(path.parent, os.W_OK):
    raise errors.UserError(
      f'--html={path}: expected a file in a writable folder'
    )
  return path


def _chosen(experiment) -> list:
  """Returns the configs of the datasets to inspect."""
  experiment = experiment_overrides.changed(
    experiment, skip_bad_records=experiment_flags.skip_bad_records()
  )
  known = {
    config.name: config
    for config in (*experiment.decode_datasets(), *experiment.datasets())
  }
  for split in _SPLIT.value:
    if split not in known:
      raise errors.UserError(
        f'--split: unknown dataset {split!r}'
        + errors.did_you_mean(split, known)
      )
  return [known[split] for split in _SPLIT.value or known]


if __name__ == '__main__':
  command_line.run(main, experiment_flags.define_of_sources)
