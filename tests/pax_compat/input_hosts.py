"""One input on several hosts that are simulated in this process.

Legend: B examples of a host in a batch, H hosts.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pax_compat import config as config_lib


@dataclasses.dataclass
class Share:
  """The batches of all hosts in some steps.

  Attributes:
    ids: the field `id` of the examples that count, in the order of the hosts
      and the steps.
    weights: how much these count.
    num_batches: number of batches of each host.
    states: where each host's input stood afterwards.
  """

  ids: list
  weights: list[float]
  num_batches: int
  states: list[bytes]


def read(
  config: config_lib.Config,
  *,
  hosts: int,
  batch_size: int,
  steps: int | None = None,
  state: bytes | None = None,
) -> Share:
  """Reads an input on all hosts.

  Args:
    config: of an input whose examples have a number or text `id`.
    hosts: H.
    batch_size: B.
    steps: number of batches of each host; None for all.
    state: where to begin; None for the beginning.
  """
  inputs = [
    config.Instantiate(
      num_infeed_hosts=hosts, infeed_host_index=host, batch_size=batch_size
    )
    for host in range(hosts)
  ]
  try:
    if state is not None:
      for data in inputs:
        data.set_state(state)
    batches = [_batches(data, steps) for data in inputs]
    states = [data.get_state() for data in inputs]
  finally:
    for data in inputs:
      data.close()
  return _share(batches, batch_size, states)


def _batches(data, steps: int | None) -> list:
  """Returns N batches, or all, checking that the end lasts."""
  if steps is not None:
    return [data.get_next_padded() for _ in range(steps)]
  found = []
  while (batch := data.peek_padded()) is not None:
    found.append(data.get_next_padded())
    assert found[-1] is batch
  assert data.peek_padded() is None
  return found


def _share(batches: Sequence[list], batch_size: int, states) -> Share:
  counts = {len(of_host) for of_host in batches}
  assert len(counts) == 1, f'the hosts have {counts} batches'
  ids, weights = [], []
  for step in zip(*batches, strict=True):
    for batch in step:
      for name, x in batch.flatten_items():
        assert x.shape[0] == batch_size, (name, x.shape)
      counts_here = batch.eval_sample_weights
      assert counts_here.dtype == np.float32
      rows = np.flatnonzero(counts_here)
      ids += np.asarray(batch.id)[rows].tolist()
      weights += counts_here[rows].tolist()
  return Share(ids, weights, counts.pop(), states)
