"""The options of experiments of a paxml checkout, each of which is a flag."""

import dataclasses

from pax_compat.experiments import options


@dataclasses.dataclass(frozen=True)
class PaxOptions(options.Options):
  """Where the experiments are."""

  KIND = 'Pax'

  pax_source: str | None = options.option(
    None,
    "A checkout of paxml's source. Its experiments, in paxml/tasks and"
    ' paxml/contrib, run on our layers, before those of the same name here; so'
    ' do modules of --import_modules that import praxis or paxml.',
  )
