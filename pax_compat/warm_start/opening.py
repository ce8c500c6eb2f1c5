"""Opens a checkpoint for a warm start, whoever wrote it."""

import os

from pax_compat import errors, experiment_sources
from pax_compat.runs import files, job_dir
from pax_compat.warm_start import own_source, pax_source, sources


def open_checkpoint(
  path: str | os.PathLike, step: int | None = None
) -> sources.Source:
  """Returns a checkpoint of this package, of Pax, or of another framework.

  Args:
    path: of a run, of its checkpoints, or of one of them.
    step: of the checkpoint; None for the newest.

  Raises:
    UserError: there is none, or it cannot be read.
  """
  folder = job_dir.answering_path(path)
  own = own_source.folder_of(folder)
  if own is not None:
    return own_source.OwnSource(own[0], own[1] if step is None else step)
  for experiment_source in experiment_sources.sources():
    opened = getattr(experiment_source, 'open_checkpoint', None)
    found = opened(path, step) if opened else None
    if found is not None:
      return found
  pax = pax_source.folder_of(folder, step)
  if pax is not None:
    if (pax[0] / 'about').exists():
      raise errors.UserError(
        f'{pax[0]} was never committed: it has no manifest; expected a'
        ' checkpoint of a run with its checkpoints/manifests'
      )
    return pax_source.PaxSource(*pax)
  children = sorted(child.name for child in files.children(folder))[:5]
  raise errors.UserError(
    f'{folder} has no checkpoint; expected the folder of a run, with'
    ' checkpoints/manifests of this package, or checkpoint_00000100 of Pax; it '
    + (f'contains {", ".join(children)}' if children else 'is empty or missing')
  )
