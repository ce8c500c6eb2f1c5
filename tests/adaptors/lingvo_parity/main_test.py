"""`python -m adaptors.lingvo_parity` as users start it."""

import pytest

from tests import resources
from tests.pax_compat import trainer_runs

PARITY = ('-m', 'adaptors.lingvo_parity')
RNN = 'lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmaxTiny'


def _parity(*flags):
  return trainer_runs.forked(*PARITY, *flags)


def test_help():
  began = resources.children_seconds()
  done, imported = trainer_runs.traced(*PARITY, '--help')
  assert resources.children_seconds() - began < 5
  assert done.returncode == 0
  for flag in ('--exp', '--import_modules', '--lingvo_source', '--checkpoint'):
    assert flag in done.stdout
  assert not imported & trainer_runs.SLOW_TO_IMPORT


@pytest.mark.parametrize(
  'flags,words',
  [
    (
      ['--exp=lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmaxTin'],
      ['did you mean', RNN],
    ),
    ([], ['--exp is required']),
    (['--exp=x.Y', '--steps=-1'], ['steps', '-1']),
    (['--exp=x.Y', 'lm.python_docs'], ['lm.python_docs: expected flags only']),
  ],
)
def test_mistakes_in_the_flags(flags, words):
  done, imported = trainer_runs.traced(*PARITY, *flags)
  trainer_runs.assert_mistake(done, *words)
  assert not imported & trainer_runs.SLOW_TO_IMPORT


def test_an_experiment_that_is_not_lingvos():
  done = _parity(
    f'--exp={trainer_runs.COUNTING}',
    '--import_modules=tests.pax_compat.counting_experiment',
  )
  trainer_runs.assert_mistake(done, 'is not a Lingvo experiment')


def test_files_that_are_not_there():
  done = _parity(f'--exp={RNN}')
  trainer_runs.assert_mistake(done, 'no file matches', '--synthetic')


def test_a_translation_that_agrees():
  """With dropout off, and the classes that Lingvo samples."""
  flags = f'--exp={RNN}', '--shrink', '--synthetic', '--steps=3'
  done = _parity(*flags)
  assert done.returncode == 0, done.stdout + done.stderr
  lines = done.stdout.splitlines()
  assert lines[-1] == 'Lingvo and its translation agree'
  assert 'in both, off: keep_prob 0.75 (1 place(s))' in lines
  assert any('classes that Lingvo has sampled' in line for line in lines)
  agreeing = [line.split()[0] for line in lines if line.endswith('  agrees')]
  for compared in (
    *('lm.emb', 'lm.rnns.rnn[0]', 'lm.rnns.rnn[1]', 'loss', 'log_pplx'),
    *('lm.rnns.rnn[0].cell.wm', 'lm.softmax.weight_7', '1:', '3:'),
  ):
    assert compared in agreeing


def test_a_translation_that_departs():
  """On the experiment's own text, truncated to fit the small model."""
  done = _parity(
    *(f'--exp={trainer_runs.LINGVO}', '--shrink', '--steps=0'),
    '--import_modules=tests.adaptors.lingvo_parity.wrong_translations',
  )
  assert done.returncode == 1, done.stdout + done.stderr
  lines = done.stdout.splitlines()
  assert (
    'The first layer that departs: lm.trans[0].fflayer.fflayer.fc[0],'
    ' here lm/transformer/x_layers_0/ff_layer/ffn_layer1'
  ) in lines[-1]
  departing = [line.split()[0] for line in lines if line.endswith('DEPARTS')]
  assert 'lm.trans[0].self_atten.atten' not in departing
  assert {'lm.trans[1]', 'loss', 'log_pplx', 'lm.emb.wm[0]'} <= set(departing)


def test_a_task_that_ends_the_process_in_lingvo():
  done = _parity(
    '--exp=tests.adaptors.lingvo_parity.user_experiments.Aborting',
    *('--synthetic', '--steps=0'),
  )
  assert done.returncode == 3, done.stdout + done.stderr
  assert 'error: Lingvo ended its process with the signal SIGABRT' in (
    done.stderr
  )
  assert 'Traceback' not in done.stderr
