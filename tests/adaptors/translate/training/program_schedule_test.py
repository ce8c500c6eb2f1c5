"""Program schedules against the runs of Lingvo's programs."""

import pytest

from adaptors import lingvo_runtime
from adaptors.translate.training import program_schedule
from pax_compat import errors


def _program():
  return lingvo_runtime.module('lingvo.core.program')


def _simple(**fields):
  settings = dict(
    train_dataset_name='Train',
    train_steps_per_loop=100,
    eval_dataset_names=['Dev', 'Test'],
    eval_steps_per_loop=[7, 0],
    decode_steps_per_loop=0,
  )
  return _program().SimpleProgramScheduleForTask(**{**settings, **fields})


def _read(params):
  return program_schedule.read(params, 'lm.some.Model')


def test_what_is_evaluated():
  params = _simple()
  params.train_program.spmd = True
  params.train_executions_per_eval = 5
  params.ml_perf.benchmark_name = 'bert'
  assert _read(params) == program_schedule.ProgramSchedule(
    interval_steps=500, evaluated={'Dev': 7}
  )


def test_nothing_is_evaluated():
  params = _simple(eval_dataset_names=[], eval_steps_per_loop=0)
  assert _read(params) == program_schedule.ProgramSchedule(100, {})


@pytest.mark.parametrize('experimental', [False, True])
def test_what_is_decoded(experimental):
  found = _read(
    _simple(
      decode_steps_per_loop=[-1, 3],
      decode_trigger_offset=4,
      decode_trigger_interval=2,
      experimental_decoder=experimental,
    )
  )
  assert found.decoded == ('Dev', 'Test')
  assert found.decode_interval_steps == 200
  assert found.decode_start_steps == 400


def test_one_program_that_decodes_all():
  found = _read(
    _simple(multi_inputs_decoder=True, decode_steps_per_loop=[2, 2])
  )
  assert found.decoded == ('Dev', 'Test')
  assert found.decode_interval_steps == 100


@pytest.mark.parametrize('offset,every', [(0, 1), (0, 3), (4, 2), (3, 3)])
def test_rounds_are_those_of_lingvos_trigger(offset, every):
  utils = lingvo_runtime.module('lingvo.core.program_utils')
  trigger = utils.TriggerScheduler(offset, every)
  expected = []
  for number in range(1, 13):
    trigger.Trigger()
    if trigger.ShouldRun():
      expected.append(number)
  found = _read(
    _simple(
      decode_steps_per_loop=1,
      decode_trigger_offset=offset,
      decode_trigger_interval=every,
    )
  )
  ours = [
    number
    for number in range(1, 13)
    if number * 100 % found.decode_interval_steps == 0
    and number * 100 >= found.decode_start_steps
  ]
  assert ours == expected


def _different_times():
  return _simple(decode_steps_per_loop=1, decode_trigger_interval=[1, 2])


def _no_multiple():
  return _simple(
    decode_steps_per_loop=1, decode_trigger_offset=3, decode_trigger_interval=2
  )


def _never_trains():
  params = _simple()
  params.train_executions_per_eval = 0
  return params


def _other_program():
  program = _program()

  class Faster(program.TrainProgram):
    """Does something else."""

    def Run(self):
      pass

  return _simple(train_program_cls=Faster)


def _other_checkpoint():
  params = _simple()
  params.checkpoint_to_load = '/somewhere'
  return params


@pytest.mark.parametrize(
  'make,message',
  [
    (_different_times, 'trigger_interval are [(0, 1), (0, 2)]'),
    (_no_multiple, 'trigger_offset 3'),
    (_never_trains, 'it does not train'),
    (_other_program, 'ProgramSchedule().train_program'),
    (_other_checkpoint, 'checkpoint_to_load'),
    (lambda: _simple(train_dataset_name='Big'), "'Big' is not translated"),
    (lambda: _simple(train_steps_per_loop=0), 'steps_per_loop'),
    (
      lambda: _program().MLPerfProgramScheduleForTask('Train', 10, 'Test', 10),
      'lingvo.core.program.MLPerfProgramSchedule',
    ),
    (
      lambda: _program().SimpleProgramSchedule.Params(),
      'it does not train',
    ),
  ],
)
def test_what_is_refused(make, message):
  with pytest.raises(errors.UserError) as error:
    _read(make())
  assert 'lm.some.Model' in str(error.value) and message in str(error.value)
