"""When a run ends before its last step: what a task's function is asked."""

import enum
import pathlib
from typing import Protocol


class RunningMode(enum.Flag):
  """What was measured when an early stopping function is asked."""

  UNKNOWN = 0
  TRAIN = enum.auto()
  EVAL = enum.auto()
  DECODE = enum.auto()

  @classmethod
  def detect(
    cls,
    has_train_metrics: bool,
    has_eval_metrics: bool,
    has_decode_metrics: bool,
  ) -> 'RunningMode':
    """Returns the modes of which there are metrics."""
    found = cls.UNKNOWN
    for has, mode in (
      (has_train_metrics, cls.TRAIN),
      (has_eval_metrics, cls.EVAL),
      (has_decode_metrics, cls.DECODE),
    ):
      found |= mode if has else cls.UNKNOWN
    return found

  @property
  def has_train(self) -> bool:
    return bool(self & RunningMode.TRAIN)

  @property
  def has_eval(self) -> bool:
    return bool(self & RunningMode.EVAL)

  @property
  def has_decode(self) -> bool:
    return bool(self & RunningMode.DECODE)


class EarlyStoppingFn(Protocol):
  """A task's `early_stopping_fn`, asked after evaluations and decodings.

  Where several processes run, it is asked on the first one.
  """

  def __call__(
    self,
    metrics: dict[str, float],
    running_mode: RunningMode,
    global_step: int,
    is_last_ckpt: bool,
    checkpoint_path: pathlib.Path,
  ) -> bool:
    """Says whether the run is to end now.

    Args:
      metrics: what was measured, as `<split>/<name>`, such as
        `eval_dev/log_pplx` or `train/loss`: the splits and names that
        `metrics.jsonl` has.
      running_mode: which kinds of metrics are among them.
      global_step: steps that were made.
      is_last_ckpt: whether that was the last step anyway.
      checkpoint_path: the folder of the run's checkpoints.
    """
