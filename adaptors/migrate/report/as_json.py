"""The report as what JSON holds."""

import dataclasses
from typing import Any

from adaptors.migrate.findings import Experiment


def experiment(found: Experiment) -> dict[str, Any]:
  """Returns what was found out about an experiment, in dicts and lists."""
  data = dataclasses.asdict(found)
  data['parameters'] = found.parameters
  data['bytes_per_device'] = found.bytes_per_device
  return data
