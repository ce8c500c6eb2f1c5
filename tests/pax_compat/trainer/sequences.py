"""Sequences of many lengths that can be asked for by number.

And the metrics of an evaluation on them, for a separate process to print.
"""

import json

import jax
import numpy as np

from pax_compat.inputs import indexed_input
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.evaluating import batch_results, evaluation
from tests.pax_compat.trainer import tiny


class Sequences(indexed_input.IndexedInput):
  """Rows that count up by steps of their own, of 1 to 8 tokens that count.

  Attributes:
    count: how many there are.
  """

  count: int = 0

  @property
  def num_examples(self) -> int:
    return self.count

  def examples(self, indices: np.ndarray) -> NestedMap:
    positions = np.arange(tiny.LENGTH + 1)
    stride = 1 + indices[:, None] % 3
    ids = ((indices[:, None] + stride * positions) % tiny.VOCAB).astype(int)
    lengths = 1 + indices[:, None] * 5 % tiny.LENGTH
    weights = (positions[:-1] < lengths).astype(np.float32)
    return NestedMap(
      ids=ids[:, :-1].astype(np.int32),
      labels=ids[:, 1:].astype(np.int32),
      paddings=1 - weights,
      weights=weights,
    )


def print_metrics(path: str, count: int, rows: int):
  """Prints, as JSON, the metrics of weights on `count` sequences.

  Args:
    path: a file of `np.savez` with the leaves of the variables in order.
    count: how many sequences.
    rows: of a batch of this process.
  """
  made = tiny.make_program()
  shapes, treedef = jax.tree.flatten(made.abstract_state.mdl_vars)
  with np.load(path) as leaves:
    arrays = [
      jax.device_put(leaves[f'arr_{i}'], shape.sharding)
      for i, shape in enumerate(shapes)
    ]
  data = Sequences(
    name='dev',
    count=count,
    batch_size=rows,
    reset_for_eval=True,
    num_infeed_hosts=jax.process_count(),
    infeed_host_index=jax.process_index(),
  )
  found = evaluation.evaluate(
    data,
    task_program=made,
    mdl_vars=jax.tree.unflatten(treedef, arrays),
  )
  print(json.dumps(batch_results.numbers(found)))
