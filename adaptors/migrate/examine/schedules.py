"""Describes the translated program schedule of an experiment."""

from typing import Any

from adaptors.translate.training import program_schedule
from adaptors.translate.training.program_schedule import ProgramSchedule


def of(model_params: Any, name: str) -> tuple[str, ...]:
  """Returns lines on what is evaluated and decoded during training.

  Args:
    model_params: an instance of the registered class.
    name: of the experiment, for messages.

  Raises:
    UserError: the schedule cannot be translated.
  """
  try:
    params = model_params.ProgramSchedule()
  except NotImplementedError:
    params = None
  if params is None:
    return ('no program schedule: evaluation only at the end',)
  by_task = getattr(params, 'program_schedule_dict', None)
  if by_task is None:
    return _lines(program_schedule.read(params, name))
  return tuple(
    f'{task}: {line}'
    for task, own in sorted(by_task.items())
    for line in _lines(program_schedule.read(own, name))
  )


def _lines(schedule: ProgramSchedule) -> tuple[str, ...]:
  lines = []
  for dataset, batches in schedule.evaluated.items():
    if dataset == program_schedule.TRAIN:
      lines.append(
        f'every {schedule.interval_steps} steps it evaluates the next training'
        ' batch'
      )
      continue
    lines.append(
      f'every {schedule.interval_steps} steps it evaluates {dataset}, all of it'
      f' if it is finite (in Lingvo {batches} batches)'
    )
  for dataset in schedule.decoded:
    lines.append(
      f'every {schedule.decode_interval_steps} steps it decodes {dataset}, from'
      f' step {schedule.decode_start_steps} on'
    )
  return tuple(lines) or ('training only; held-out datasets at the end',)
