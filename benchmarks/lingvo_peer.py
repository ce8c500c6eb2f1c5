"""The same experiment in TensorFlow: Lingvo's own graph and train op.

Batches are fed, without an input pipeline.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from adaptors.bridge.functional import fed_task

FIELDS = ('ids', 'labels', 'paddings', 'weights', 'word_count')


class LingvoPeer:
  """Runs train steps in a TensorFlow session."""

  def __init__(self, made: fed_task.FedTask, batches: Mapping):
    """Wraps a task and the batches to train on, by key."""
    self._fed = {
      key: list(made.feed_dict(batch).values())
      for key, batch in batches.items()
    }
    # A callable with fixed fetches has less overhead than `run`.
    self._callables = made.session.make_callable(
      [made.task.loss, made.task.train_op], feed_list=list(made.feeds.values())
    )

  def step(self, key: str) -> float:
    """Runs a step on the batch of a key; returns its loss."""
    return float(self._callables(*self._fed[key])[0])

  def wait(self):
    """Does nothing: steps are synchronous."""


@contextlib.contextmanager
def training(
  params: Any,
  batches: Mapping[str, dict],
  theta: Mapping[str, np.ndarray],
  *,
  fields: Sequence[str] = FIELDS,
  static_shapes: bool = False,
) -> Iterator[LingvoPeer]:
  """Yields a peer that trains a task in graph mode.

  Args:
    params: of the task, with its training input.
    batches: numpy batches with the fields, by key.
    theta: initial values of variables by theta path; Lingvo initializes those
      of learners.
    fields: of the batches, by dotted name.
    static_shapes: see `fed_task.build`.
  """
  some = next(iter(batches.values()))
  with fed_task.build(
    params, {f: some[f] for f in fields}, static_shapes=static_shapes
  ) as made:
    made.start()
    for path, variable in made.task.vars.FlattenItems():
      if not path.startswith('learners['):
        variable.load(theta[path], made.session)
    yield LingvoPeer(made, batches)
