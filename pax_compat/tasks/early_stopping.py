"""The interface of a task's early stopping function."""

import enum
import pathlib
from typing import Protocol


class RunningMode(enum.Flag):
  """The kinds of metrics that an early stopping function gets."""

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
    """Returns the modes that have metrics."""
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
  """A task's `early_stopping_fn`, called after evaluations and decodings.

  With several processes, it is called on the first one.
  """

  def __call__(
    self,
    metrics: dict[str, float],
    running_mode: RunningMode,
    global_step: int,
    is_last_ckpt: bool,
    checkpoint_path: pathlib.Path,
  ) -> bool:
    """Returns whether the run ends now.

    Args:
      metrics: metrics by `<split>/<name>`, such as `eval_dev/log_pplx` or
        `train/loss`: the splits and names in `metrics.jsonl`.
      running_mode: the kinds of metrics among them.
      global_step: number of finished steps.
      is_last_ckpt: whether this is the last step of the run.
      checkpoint_path: the folder of the run's checkpoints.
    """
