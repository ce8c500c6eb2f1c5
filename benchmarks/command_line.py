"""Flags shared by the benchmarks.

They are defined once: absl's flags are global, and a process may import several
benchmarks.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import flags

ROUNDS = flags.DEFINE_integer('rounds', 10, 'Rounds.', lower_bound=1)
STEPS = flags.DEFINE_integer(
  'steps', 5, 'Steps of each peer on each shape in a round.', lower_bound=1
)
BATCHES = flags.DEFINE_integer(
  'batches', 200, 'Batches of each reader at a time.', lower_bound=1
)
JSON = flags.DEFINE_string('json', None, 'File for the results.')


def write(result: Mapping[str, Any]):
  """Writes the results to the file of `--json`, if given."""
  if JSON.value:
    path = pathlib.Path(JSON.value)
    path.write_text(json.dumps(result, indent=2) + '\n')
