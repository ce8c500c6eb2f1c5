"""Flags shared by the benchmarks.

They are defined once: absl's flags are global, and a process may import several
benchmarks.
"""

import argparse
import json
import pathlib
from collections.abc import Callable, Mapping
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


def run(
  module: str,
  measure: Callable[[int], Mapping[str, Any]],
  table: Callable[[Mapping[str, Any]], str],
):
  """Measures, prints the table, and writes the JSON, by a command's flags.

  For benchmarks that are processes of their own, without absl's flags.

  Args:
    module: the name of the benchmark.
    measure: returns the result of a number of rounds.
    table: returns a result as text.
  """
  parser = argparse.ArgumentParser(prog=f'python -m benchmarks.{module}')
  parser.add_argument('--rounds', type=int, default=5, help='number of rounds')
  parser.add_argument('--json', type=pathlib.Path, help='file for the results')
  given = parser.parse_args()
  result = measure(given.rounds)
  print(table(result))
  if given.json:
    given.json.write_text(json.dumps(result, indent=2) + '\n')
