"""Translates Lingvo's program schedules: evaluation and decoding intervals.

A schedule alternates between runs of its train program and runs of its other
programs. Here the trainer evaluates and decodes at intervals of steps.
"""

import dataclasses

from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.view import ParamsView, Report
from pax_compat import errors

TRAIN = 'Train'


@dataclasses.dataclass(frozen=True)
class ProgramSchedule:
  """The evaluations and decodings during training.

  Attributes:
    interval_steps: train steps between evaluations.
    evaluated: by evaluated dataset, the number of batches that Lingvo reads.
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
  """A program that trains for some steps."""

  steps: int


@dataclasses.dataclass(frozen=True)
class _Evaluate:
  """A program that evaluates some batches of a dataset."""

  dataset: str
  batches: int


@dataclasses.dataclass(frozen=True)
class _Decode:
  """A program that decodes datasets.

  Attributes:
    datasets: their names.
    offset: the first round of the schedule that decodes; 0 for the `every`th.
    every: rounds between decodings.
  """

  datasets: tuple[str, ...]
  offset: int = 0
  every: int = 1


def read(params, name: str) -> ProgramSchedule:
  """Translates the Params of a program schedule.

  Args:
    params: the result of an experiment's `ProgramSchedule()`.
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
  report.log(name)
  return schedule


@translates('lingvo.core.program.SimpleProgramSchedule')
def simple(view: ParamsView) -> ProgramSchedule | None:
  """Returns the schedule; None after an issue."""
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
  view.ignore('there are no e-mails', 'emails', 'summary_exporter')
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
    view.issue('train_program', 'it is not a program that trains')
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
  """Returns the first round that decodes and the rounds between decodings.

  Both are 0 if nothing is decoded.
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
  """Reads the fields that all programs have."""
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
  view.ignore('the mesh determines the devices', 'spmd')


@translates('lingvo.core.program.TrainProgram')
@translates('lingvo.core.program.HostDrivenTrainProgram')
def train_program(view: ParamsView) -> _Train:
  _program_fields(view)
  view.require('dataset_name', TRAIN)
  view.ignore(
    "the task's summary_interval_steps sets it", 'summary_interval_steps'
  )
  return _Train(view.get('steps_per_loop'))


@translates('lingvo.core.program.EvalProgram')
def eval_program(view: ParamsView) -> _Evaluate:
  _program_fields(view)
  return _Evaluate(view.get('dataset_name'), view.get('steps_per_loop'))


@translates('lingvo.core.program.DecodeProgram')
@translates('lingvo.core.program.ExperimentalDecodeProgram')
def decode_program(view: ParamsView) -> _Decode:
  return _decode_program(view, (view.get('dataset_name'),))


@translates('lingvo.core.program.MultiInputsDecodeProgram')
def multi_inputs_decode_program(view: ParamsView) -> _Decode:
  view.ignore('it has dataset_names', 'dataset_name')
  view.ignore("it concerns Lingvo's executor only", 'input_params')
  return _decode_program(view, tuple(view.get('dataset_names')))


def _decode_program(view: ParamsView, datasets: tuple[str, ...]) -> _Decode:
  _program_fields(view)
  view.ignore(
    'a dataset is always decoded completely, batch by batch',
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
