"""Options of a job that uses the checkpoints of a run."""

import dataclasses

# The jobs, as `--mode` names them.
EVAL, DECODE, DECODE_ONCE, INFER = 'eval', 'decode', 'decode_once', 'infer'
MODES = (EVAL, DECODE, DECODE_ONCE, INFER)
# Those that take each new checkpoint of a run, until training ends.
_FOLLOWING = (EVAL, DECODE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobOptions:
  """Options of a job.

  Attributes:
    mode: one of `MODES`.
    restore_dir: folder of the checkpoints, or of their run; None for that of
      the job.
    steps: of the checkpoints to use; empty for each new one, or for the newest
      if the mode takes one.
    also_evaluates: whether a decoding job evaluates, too.
  """

  mode: str
  restore_dir: str | None = None
  steps: tuple[int, ...] = ()
  also_evaluates: bool = False

  @property
  def follows(self) -> bool:
    """Whether the job takes each new checkpoint, until training ends."""
    return self.mode in _FOLLOWING and not self.steps
