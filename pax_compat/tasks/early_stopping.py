"""The interface of a task's early stopping function."""

import enum
import inspect
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol


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
        `train/loss`: the splits and names in `metrics.jsonl`. Those of
        evaluations and decodings have Pax's names, too, such as
        `eval_test_dev/metrics/log_pplx` and `decode_test_dev/num_decoded`.
      running_mode: the kinds of metrics among them.
      global_step: number of finished steps.
      is_last_ckpt: whether this is the last step of the run.
      checkpoint_path: the folder of the run's checkpoints. A function of four
        arguments, as in Pax until 2023, does not get it.
    """


def accepted(fn: Callable[..., Any], arguments: tuple) -> tuple:
  """Returns the arguments of an `EarlyStoppingFn` that a function accepts.

  Args:
    fn: the function, of five arguments, or of the first four.
    arguments: all five.
  """
  try:
    inspect.signature(fn).bind(*arguments)
  except TypeError:
    return arguments[:-1]
  except ValueError:  # No signature is known.
    pass
  return arguments


def pax_names(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the metrics of evaluations and decodings under Pax's names.

  Args:
    measured: metrics by name, by split.
  """
  found = {}
  for split, values in measured.items():
    kind, _, dataset = split.partition('_')
    if kind == 'eval':
      prefix = f'eval_test_{dataset.removeprefix("test_")}/metrics'
      if dataset == 'train':
        prefix = 'eval_train/metrics'
    elif kind == 'decode':
      prefix = f'decode_test_{dataset.removeprefix("test_")}'
    else:
      continue
    found |= {f'{prefix}/{name}': value for name, value in values.items()}
  return found
