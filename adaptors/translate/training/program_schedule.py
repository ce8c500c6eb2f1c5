"""Translates Lingvo's program schedules: what is evaluated and decoded, when.

A schedule runs its train program some times, then its other programs, and so
on. Here the trainer evaluates and decodes every so many steps.
"""

import dataclasses

from absl import logging

from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.view import ParamsView, Report
from pax_compat import errors

TRAIN = 'Train'


@dataclasses.dataclass(frozen=True)
class ProgramSchedule:
  """What is evaluated and decoded while a task is trained.

  Attributes:
    interval_steps: train steps between evaluations.
    evaluated: for each evaluated dataset how many batches Lingvo reads of it
      each time.
    decoded: the datasets that are decoded.
    decode_interval_steps: train steps between decodings; 0 for none.
    decode_start_steps: train steps before the first decoding.
  """

  interval_steps: int
  evaluated: dict[str, int]
  decoded: tuple[str, ...] = ()
  decode_interval_steps: int = 0
  decode_start_steps: int = 0


@dataclasses.dataclass(frozen=True)
class _Train:
  """A program that trains for so many steps."""

  steps: int


@dataclasses.dataclass(frozen=True)
class _Evaluate:
  """A program that evaluates so many batches of a dataset."""

  dataset: str
  batches: int


@dataclasses.dataclass(frozen=True)
class _Decode:
  """A program that decodes datasets.

  Attributes:
    datasets: their names.
    offset: at which of the schedule's rounds first; 0 for the `every`th.
    every: then every so many rounds.
  """

  datasets: tuple[str, ...]
  offset: int = 0
  every: int = 1


def read(params, name: str) -> ProgramSchedule:
  """Translates the Params of a program schedule.

  Args:
    params: what an experiment's `ProgramSchedule()` returns.
    name: of the experiment, for messages.

  Raises:
    UserError: it cannot be translated; the message lists every reason.
  """
  report = Report()
  view = ParamsView(params.Copy(), 'ProgramSchedule()', report)
  schedule = registry.translate(view)
  if report.issues:
    lines = '\n'.join(f'  {issue}' for issue in map(str, report.issues))
    raise errors.UserError(
      f'{name}: its program schedule cannot be translated:\n{lines}'
    )
  for note in report.notes:
    logging.info('%s: %s', name, note)
  return schedule


@translates('lingvo.core.program.SimpleProgramSchedule')
def simple(view: ParamsView) -> ProgramSchedule | None:
  """`SimpleProgramSchedule`."""
  view.ignore(
    "it concerns Lingvo's executor only",
    'task_dict',
    'task_name',
    'logdir',
    'num_splits_per_client',
    'dataset_names',
    'async_postprocess',
    'ml_perf',
  )
  view.ignore('nobody is written to', 'emails', 'summary_exporter')
  view.require('checkpoint_to_load', None)
  rounds = view.get('train_executions_per_eval')
  rounds = 1 if rounds is None else rounds
  if not rounds or view.get('train_program') is None:
    view.issue('train_program', 'it does not train')
    return None
  train = _program(view, 'train_program', view.get('train_program'))
  others = [
    _program(view, f'eval_programs[{index}]', params)
    for index, params in enumerate(view.get('eval_programs') or ())
  ]
  if not isinstance(train, _Train):
    view.issue('train_program', 'it is no program that trains')
    return None
  interval = train.steps * rounds
  if interval < 1:
    view.issue('train_program.steps_per_loop', f'it is {train.steps}')
  offset, every = _decode_rounds(view, others)
  return ProgramSchedule(
    interval_steps=interval,
    evaluated={p.dataset: p.batches for p in others if _is(p, _Evaluate)},
    decoded=tuple(
      dict.fromkeys(d for p in others if _is(p, _Decode) for d in p.datasets)
    ),
    decode_interval_steps=every * interval,
    decode_start_steps=offset * interval,
  )


def _decode_rounds(view: ParamsView, programs: list) -> tuple[int, int]:
  """Returns the first round that decodes, and every how many rounds it is.

  Both 0 where nothing is decoded.
  """
  found = {(p.offset, p.every) for p in programs if _is(p, _Decode)}
  if len(found) > 1:
    view.issue(
      'eval_programs',
      'datasets that are decoded at different times are not translated:'
      f' trigger_offset and trigger_interval are {sorted(found)}',
    )
  offset, every = min(found, default=(0, 0))
  if every and offset % every:
    view.issue(
      'eval_programs',
      f'trigger_offset {offset} is translated only if it is a multiple of'
      f' trigger_interval, {every}',
    )
  return offset, every


def _is(program, kind: type) -> bool:
  return isinstance(program, kind)


def _program(view: ParamsView, name: str, params):
  return registry.translate(
    ParamsView(params, f'{view.path}.{name}', view.report)
  )


def _program_fields(view: ParamsView):
  """Reads what all programs have."""
  view.ignore(
    "it concerns Lingvo's executor only",
    'task',
    'logdir',
    'num_splits_per_client',
    'task_name',
    'num_threads',
    'write_train_input_stats',
    'max_metrics',
    'ml_perf',
  )
  view.ignore('devices are used as the mesh says', 'spmd')


@translates('lingvo.core.program.TrainProgram')
@translates('lingvo.core.program.HostDrivenTrainProgram')
def train_program(view: ParamsView) -> _Train:
  """`TrainProgram`, and the one that the host drives."""
  _program_fields(view)
  view.require('dataset_name', TRAIN)
  view.ignore(
    "the task's summary_interval_steps says it", 'summary_interval_steps'
  )
  return _Train(view.get('steps_per_loop'))


@translates('lingvo.core.program.EvalProgram')
def eval_program(view: ParamsView) -> _Evaluate:
  """`EvalProgram`."""
  _program_fields(view)
  return _Evaluate(view.get('dataset_name'), view.get('steps_per_loop'))


@translates('lingvo.core.program.DecodeProgram')
@translates('lingvo.core.program.ExperimentalDecodeProgram')
def decode_program(view: ParamsView) -> _Decode:
  """`DecodeProgram`, and the one whose loop is on the device."""
  return _decode_program(view, (view.get('dataset_name'),))


@translates('lingvo.core.program.MultiInputsDecodeProgram')
def multi_inputs_decode_program(view: ParamsView) -> _Decode:
  """`MultiInputsDecodeProgram`."""
  view.ignore('it has several', 'dataset_name')
  view.ignore("it concerns Lingvo's executor only", 'input_params')
  return _decode_program(view, tuple(view.get('dataset_names')))


def _decode_program(view: ParamsView, datasets: tuple[str, ...]) -> _Decode:
  _program_fields(view)
  view.ignore(
    'the whole of a dataset is decoded, batch by batch',
    'steps_per_loop',
    'decode_until_out_of_range',
    'postprocess_all_at_once',
    'decode_num_samples',
    'drop_remainder',
  )
  return _Decode(
    datasets,
    offset=view.get('trigger_offset'),
    every=view.get('trigger_interval'),
  )
