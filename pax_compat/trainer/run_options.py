"""Options of a run that are not settings of its task."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
  """Options of a run.

  Attributes:
    save_interval_seconds: the longest time between two saves, in addition to
      the task's own intervals; None for no limit.
    input_timeout_seconds: how long a batch is awaited; None for no limit.
    step_timeout_seconds: how long a run shows no sign of life until its process
      ends, as it hangs; None for no limit, as a program of its own may have
      more to do. See `processes.watchdog`.
    on_nan: what happens if a loss or gradient is not finite: 'stop', 'skip' or
      'warn'; see `numbers_guard`.
    loss_spike_factor: a loss that many times the usual one is treated in the
      same way; None for no limit.
    saves_initial_state: whether a new run saves before its first step.
    saves_checkpoints: whether the run saves; without, it cannot continue.
    save_timeout_seconds: how long a save in the background may take; None for
      Orbax's default.
    checkpoint_todelete_subdir: subfolder of `checkpoints` that old checkpoints
      are moved to; None deletes them.
    writes_summaries: whether there are event files for TensorBoard.
    only_scalars: whether summaries of other types are left out.
    peak_flops: the largest number of floating point operations per second of a
      device, for the MFU; None for that of its kind, if it is known.
    early_stopping: returns the early stopping function of the run, given the
      task's own one or None; None for the task's own one.
  """

  save_interval_seconds: float | None = 1800.0
  input_timeout_seconds: float | None = 3600.0
  step_timeout_seconds: float | None = None
  on_nan: str = 'stop'
  loss_spike_factor: float | None = None
  saves_initial_state: bool = False
  saves_checkpoints: bool = True
  save_timeout_seconds: int | None = None
  checkpoint_todelete_subdir: str | None = None
  writes_summaries: bool = True
  only_scalars: bool = False
  peak_flops: float | None = None
  early_stopping: Callable[[Any], Any] | None = None
