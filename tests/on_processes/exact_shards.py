"""A program that reads the examples of an evaluation."""

import jax

from tests.adaptors import exact_inputs


def print_shards(folder: str, *counts: str):
  """Prints, as JSON, this process's shards of all kinds of inputs.

  Args:
    folder: for data.
    *counts: how many examples.
  """
  exact_inputs.print_shards(
    folder, jax.process_index(), jax.process_count(), tuple(map(int, counts))
  )
