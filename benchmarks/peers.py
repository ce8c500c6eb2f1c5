"""Compares peers that train the same task, and times them alternately."""

import collections
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from absl import logging

from pax_compat import base_experiment, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from pax_compat.trainer.feeding import pipeline
from pax_compat.trainer.reporting import progress_report

# Number of batches read to find their shapes.
_BATCHES = 60
# Largest relative difference of losses, at the first step and after it.
_FIRST_TOLERANCE = 1e-5
_LATER_TOLERANCE = 1e-4
# Number of comparisons of losses on each shape.
_COMPARISONS = 2


class Peer(Protocol):
  """An implementation of training."""

  def step(self, shape: str) -> Any:
    """Runs a step on the batch of a shape; returns its loss."""

  def wait(self):
    """Returns when all steps are done."""


class OurPeer:
  """The trainer's compiled step, with batches on the devices.

  Summaries are computed as often as in training.
  """

  def __init__(self, task_program: program.TaskProgram, state, batches):
    self._program = task_program
    self._state = state
    self._count = 0
    sharding = partitioning.batch_sharding(task_program.mesh)
    self._batches = {
      shape: partitioning.global_batch(batch, sharding)
      for shape, batch in batches.items()
    }

  def step(self, shape: str) -> jax.Array:
    self._count += 1
    due = progress_report.has_summaries(
      self._program.task.train, self._count, start=0
    )
    self._state, metrics = self._program.train_step(
      self._state, self._batches[shape], np.bool_(due)
    )
    return metrics['loss']

  def wait(self):
    jax.block_until_ready(self._state)


def batches_by_shape(
  experiment: base_experiment.BaseExperiment, fields: Sequence[str]
) -> tuple[dict[str, NestedMap], dict[str, float]]:
  """Returns a batch of each shape, and the frequency of each shape.

  Args:
    experiment: provides the training input.
    fields: of the batches; they include `ids`, whose shape is used.
  """
  (config,) = experiment.train_datasets()
  data = config.Instantiate()
  batches, counts = {}, collections.Counter()
  try:
    for _ in range(_BATCHES):
      batch = data.get_next()
      batch = NestedMap({k: batch[k] for k in fields})
      shape = pipeline.shapes_of(NestedMap(ids=batch.ids))
      batches.setdefault(shape, batch)
      counts[shape] += 1
  finally:
    data.close()
  shapes = sorted(batches)
  return (
    {shape: batches[shape] for shape in shapes},
    {shape: counts[shape] / counts.total() for shape in shapes},
  )


def compare(
  peers: Mapping[str, Peer],
  shapes: Sequence[str],
  tolerance: float | None = None,
) -> dict[str, list[float]]:
  """Runs a few steps of every peer and returns their losses by peer.

  Args:
    peers: by name; one of them is 'ours'.
    shapes: of the batches.
    tolerance: the largest relative difference of losses if peers draw different
      random numbers; None for rounding errors only.

  Raises:
    UserError: the losses differ.
  """
  losses = {name: [] for name in peers}
  for number, shape in enumerate([*shapes] * _COMPARISONS):
    for name, peer in peers.items():
      losses[name].append(float(peer.step(shape)))
    expected = losses['ours'][-1]
    by_rounding = _LATER_TOLERANCE if number else _FIRST_TOLERANCE
    allowed = by_rounding if tolerance is None else tolerance
    for name, values in losses.items():
      if not abs(values[-1] / expected - 1) <= allowed:
        raise errors.UserError(
          f'step {number} of {name} has the loss {values[-1]}, ours has'
          f' {expected}; expected a relative difference of at most {allowed},'
          ' since only equal computations are timed'
        )
  return losses


def time_in_turns(
  peers: Mapping[str, Peer],
  shapes: Sequence[str],
  *,
  rounds: int,
  steps: int,
) -> dict[str, dict[str, list[float]]]:
  """Returns seconds per step in each round, by peer and shape."""
  seconds = {name: {shape: [] for shape in shapes} for name in peers}
  names = list(peers)
  for number in range(rounds):
    logging.info('round %d of %d', number + 1, rounds)
    first = number % len(names)
    for shape in shapes:
      for name in names[first:] + names[:first]:
        taken = _time_steps(peers[name], shape, steps)
        seconds[name][shape].append(taken)
  return seconds


def _time_steps(peer: Peer, shape: str, steps: int) -> float:
  """Returns seconds per step, after an untimed step."""
  peer.step(shape)
  peer.wait()
  start = time.perf_counter()
  for _ in range(steps):
    peer.step(shape)
  peer.wait()
  return (time.perf_counter() - start) / steps


def summary(
  seconds: Mapping[str, Mapping[str, Sequence[float]]],
  shares: Mapping[str, float],
) -> dict[str, Any]:
  """Returns medians and ratios of times.

  Args:
    seconds: per step in each round, by peer and shape.
    shares: the frequency of each shape.

  Returns:
    `shares`; `seconds`, the medians by peer and shape, with `all` for the mean
    batch; and `ratios` of our time to another peer's, likewise.
  """
  with_all = {
    name: {
      **shapes,
      'all': [
        sum(shares[s] * t for s, t in zip(shapes, times, strict=True))
        for times in zip(*shapes.values(), strict=True)
      ],
    }
    for name, shapes in seconds.items()
  }
  ours = with_all['ours']
  return {
    'shares': dict(shares),
    'seconds': {
      name: {s: statistics.median(times) for s, times in shapes.items()}
      for name, shapes in with_all.items()
    },
    'ratios': {
      name: {
        s: statistics.median(a / b for a, b in zip(ours[s], times, strict=True))
        for s, times in shapes.items()
      }
      for name, shapes in with_all.items()
      if name != 'ours'
    },
  }
