"""Whole runs: Lingvo's trainer, then this one, then Lingvo's again."""

import shutil

import pytest

from adaptors.checkpoints import files
from tests.adaptors import native_library, short_waits
from tests.pax_compat import trainer_runs

pytestmark = native_library.NEEDS_LINGVO

_NAME = 'lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmaxTiny'
_WORDS = ['<epsilon>', '<S>', '</S>', '<UNK>', 'to', 'be', 'or', 'not']


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """Returns overrides that make the experiment small, on a text."""
  folder = tmp_path_factory.mktemp('corpus')
  vocab, text = folder / 'vocab.txt', folder / 'news.txt'
  vocab.write_text(''.join(f'{w}\t{i}\n' for i, w in enumerate(_WORDS)))
  text.write_text('to be or not to be\nthat is the question or not\n' * 8)
  size = len(_WORDS)
  return [
    f'input.file_pattern : text:{text}',
    f'input.tokenizer.token_vocab_filepath : {vocab}',
    f'input.tokenizer.vocab_size : {size}',
    f'input.bucket_batch_limit : {[8] * 9}',
    f'task.lm.vocab_size : {size}',
    f'task.lm.emb.vocab_size : {size}',
    f'task.lm.softmax.num_classes : {size}',
    'task.lm.softmax.num_sampled : 4',
  ]


def _lingvos_trainer(folder, corpus, steps):
  """Trains with Lingvo's trainer up to a step."""
  overrides = [f'{p}train.max_steps : {steps}' for p in ('', 'task.')]
  done = short_waits.run_trainer(
    f'--model={_NAME}',
    f'--logdir={folder}',
    '--run_locally=cpu',
    '--mode=sync',
    f'--model_params_override={"; ".join(corpus + overrides)}',
  )
  assert done.returncode == 0, done.stderr[-4000:]
  return done.stderr


@pytest.fixture(scope='module')
def lingvos(corpus, tmp_path_factory):
  """Returns the folder of a run that Lingvo's trainer left after 3 steps."""
  folder = tmp_path_factory.mktemp('lingvos') / 'run'
  _lingvos_trainer(folder, corpus, 3)
  return folder


def _convert(*arguments):
  return trainer_runs.forked('-m', 'adaptors.lingvo_checkpoint', *arguments)


def test_a_run_continues_from_its_folder_alone(lingvos, tmp_path):
  folder = tmp_path / 'run'
  done = trainer_runs.main(
    f'--lingvo_logdir={lingvos}',
    f'--job_log_dir={folder}',
    '--model_params_override=task.train.max_steps : 5',
  )
  assert done.returncode == 0, done.stderr
  newest = lingvos / 'train' / 'ckpt-00000003'
  assert f"starts from Lingvo's checkpoint {newest} of step 3" in done.stdout
  metrics = trainer_runs.metrics(folder)
  steps = {step for step, split, _ in metrics if split == 'train'}
  assert steps == {4, 5}
  assert trainer_runs.steps_saved(folder) == [5]


@pytest.mark.slow
def test_there_and_back(lingvos, corpus, tmp_path):
  ours, theirs = tmp_path / 'ours', tmp_path / 'theirs'
  flags = (f'--lingvo_logdir={lingvos}', f'--job_log_dir={ours}')
  back = f'--to_lingvo={theirs / "train"}'
  done = _convert('convert', *flags, back, '--verify')
  assert done.returncode == 0, done.stderr
  assert f'{ours} continues from' in done.stdout
  assert 'bit by bit' in done.stdout
  done = _convert('verify', *flags)
  assert done.returncode == 0, done.stderr
  original = files.newest(lingvos)
  exported = files.newest(theirs)
  assert exported.shapes == original.shapes
  for name in original.shapes:
    assert exported.read(name).tobytes() == original.read(name).tobytes()
  log = _lingvos_trainer(theirs, corpus, 4)
  assert f'Load from checkpoint {exported.prefix}' in log
  assert int(files.newest(theirs).read('global_step')) == 4
  # Differences are listed, and nothing is overwritten.
  other = tmp_path / 'other'
  shutil.copytree(lingvos, other)
  for file in (other / 'train').glob('ckpt-00000003*'):
    file.unlink()
  done = _convert('verify', f'--lingvo_logdir={other}', f'--job_log_dir={ours}')
  trainer_runs.assert_mistake(
    done,
    'does not equal',
    'ckpt-00000000',
    'mdl_vars.params.lm.softmax.w',
    'step',
  )
  trainer_runs.assert_mistake(
    _convert('convert', *flags), 'has checkpoints already'
  )


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ((), 'no command'),
    (('convert',), '--exp is required'),
    (('convert', '--exp=x', '--job_log_dir=y'), '--to_lingvo'),
    (
      ('convert', '--exp=x', '--lingvo_logdir=y', '--to_lingvo=z'),
      '--job_log_dir with a new folder',
    ),
    (
      ('convert', '--lingvo_logdir=/nowhere', '--job_log_dir=y'),
      '/nowhere has no Params',
    ),
  ],
)
def test_mistakes(flags, message, tmp_path):
  trainer_runs.assert_mistake(_convert(*flags), message)
