"""`python -m pax_compat.main` with Lingvo experiments, a user's own too."""

import re

import pytest

from tests.pax_compat import trainer_runs

SMALL = '''
from lingvo import model_registry
from lm_tasks.lingvo_params import python_docs


@model_registry.RegisterSingleTaskModel
class Small(python_docs.TransformerLmTiny):
  """A decoder of one layer."""

  NUM_LAYERS = 1
  MAX_STEPS = 2
'''


def test_list_of_what_lingvo_registers():
  done = trainer_runs.main('--list', '--lingvo')
  assert done.returncode == 0, done.stderr
  assert trainer_runs.LISTED_LINGVO in trainer_runs.listed(done)


def test_a_lingvo_module_of_the_user_trains(tmp_path):
  (tmp_path / 'my_lm.py').write_text(SMALL)
  folder = tmp_path / 'run'
  trainer_runs.train(
    folder,
    '--import_modules=my_lm',
    exp='my_lm.Small',
    PYTHONPATH=f'{trainer_runs.ROOT}:{tmp_path}',
  )
  assert len(trainer_runs.losses(folder)) == 2
  assert trainer_runs.steps_saved(folder) == [2]


FLAGGED = """
from lingvo import compat as tf
from lingvo import model_registry
from lm_tasks.lingvo_params import python_docs

tf.flags.DEFINE_integer('my_layers', 4, 'Number of layers.')


@model_registry.RegisterSingleTaskModel
class Flagged(python_docs.TransformerLmTiny):

  def __init__(self):
    super().__init__()
    self.NUM_LAYERS = tf.flags.FLAGS.my_layers
"""


def test_flags_of_a_lingvo_module_of_the_user(tmp_path):
  (tmp_path / 'my_lm.py').write_text(FLAGGED)
  command = ['--check', '--exp=my_lm.Flagged', '--import_modules=my_lm']
  path = f'{trainer_runs.ROOT}:{tmp_path}'
  sizes = []
  for given in ([], ['--my_layers', '1']):
    done = trainer_runs.main(*command, *given, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    [line] = [x for x in done.stdout.splitlines() if 'parameters' in x]
    sizes.append(int(re.search(r'([\d,]+)', line)[1].replace(',', '')))
  assert sizes[1] < sizes[0] / 2
  done = trainer_runs.main(*command, '--my_layer=1', PYTHONPATH=path)
  trainer_runs.assert_mistake(done, "'my_layer'", 'my_layers', 'my_lm')


@pytest.fixture
def checkout(tmp_path):
  """Returns the flag for a checkout of Lingvo with one params module."""
  params = tmp_path / 'checkout' / 'lingvo' / 'tasks' / 'lm' / 'params'
  params.mkdir(parents=True)
  (params / 'my_lm.py').write_text(SMALL)
  return f'--lingvo_source={tmp_path / "checkout"}'


def test_a_checkout_is_listed(checkout):
  done, imported = trainer_runs.traced(
    '-m', 'pax_compat.main', '--list', 'lm.*', checkout
  )
  assert done.returncode == 0
  lines = trainer_runs.listed(done)
  assert 'lm.my_lm.Small A decoder of one layer.' in lines
  assert trainer_runs.LISTED_LINGVO in lines
  assert not imported & trainer_runs.SLOW_TO_IMPORT


def test_missing_files_of_an_experiment_in_a_checkout(tmp_path, checkout):
  trainer_runs.assert_mistake(
    _override(
      tmp_path,
      'input.file_pattern : "text:/no/such"',
      checkout,
      exp='lm.my_lm.Small',
    ),
    "'Train'",
    "no file matches '/no/such'",
  )


# Mistakes in the settings of a Lingvo experiment.


def _override(tmp_path, text, *more, exp=trainer_runs.LINGVO):
  """Runs an experiment with an override; asserts that it leaves no folder."""
  folder = tmp_path / 'run'
  done = trainer_runs.main(
    *(f'--exp={exp}', f'--job_log_dir={folder}'),
    *(f'--model_params_override={text}', *more),
  )
  assert not folder.exists()
  return done


def test_an_override_of_no_field(tmp_path):
  trainer_runs.assert_mistake(
    _override(tmp_path, 'task.lm.num_trans_layer : 1'),
    "'task.lm.num_trans_layer'; did you mean: task.lm.num_trans_layers, ",
  )


def test_what_is_not_translated_is_listed(tmp_path):
  done = _override(
    tmp_path,
    'task.lm.trans_tpl.has_aux_atten : True;'
    # Fewer letters than the tokenizer has.
    ' task.lm.vocab_size : 40',
  )
  trainer_runs.assert_mistake(
    done,
    f'{trainer_runs.LINGVO} cannot be translated',
    'task.lm.trans_tpl.has_aux_atten (lingvo.tasks.lm.layers.TransformerLm):'
    ' True',
    'task.lm.vocab_size (lingvo.tasks.lm.model.LanguageModel): 40',
    '76',
  )


def test_a_stock_experiment_trains_on_a_corpus_elsewhere(tmp_path):
  words = ['<epsilon>', '<S>', '</S>', '<UNK>', 'to', 'be', 'or', 'not']
  vocab = tmp_path / 'vocab.txt'
  vocab.write_text(''.join(f'{w}\t{i}\n' for i, w in enumerate(words)))
  corpus = tmp_path / 'news.txt'
  corpus.write_text('to be or not to be\nthat is the question or not\n' * 8)
  overrides = [
    'task.train.max_steps : 2',
    f'input.file_pattern : text:{corpus}',
    f'input.tokenizer.token_vocab_filepath : {vocab}',
    f'input.bucket_batch_limit : {[8] * 9}',
  ]
  done = trainer_runs.train(
    tmp_path / 'run',
    f'--model_params_override={"; ".join(overrides)}',
    exp='lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmaxTiny',
  )
  assert 'starts with 11,906,368 new parameters' in done.stdout
  assert len(trainer_runs.losses(tmp_path / 'run')) == 2
  evaluated = {split for _, split, _ in trainer_runs.metrics(tmp_path / 'run')}
  assert {'eval_Dev', 'eval_Test'} <= evaluated


@pytest.mark.slow
def test_a_pipelined_experiment_trains_in_small_on_a_corpus_elsewhere(tmp_path):
  corpus = tmp_path / 'news.txt'
  corpus.write_text('to be or not to be\nthat is the question\n' * 8)
  stack = 'task.lm.stack'
  overrides = {
    'task.train.max_steps': 2,
    'task.lm.vocab_size': 80,
    f'{stack}.emb_tpl.token_emb.vocab_size': 80,
    f'{stack}.emb_tpl.token_emb.embedding_dim': 16,
    f'{stack}.emb_tpl.position_emb.embedding_dim': 16,
    f'{stack}.num_encoder_layers': 4,
    f'{stack}.splits': [1, 2, 3, 4],
    f'{stack}.encoder_tpl.input_dim': 16,
    f'{stack}.encoder_tpl.output_dim': 16,
    f'{stack}.encoder_tpl.tr_atten_tpl.input_dim': 16,
    f'{stack}.encoder_tpl.tr_atten_tpl.hidden_dim': 16,
    f'{stack}.encoder_tpl.tr_atten_tpl.num_heads': 2,
    f'{stack}.encoder_tpl.tr_fflayer_tpl.hidden_dim': 32,
    f'{stack}.softmax_tpl.input_dim': 16,
    f'{stack}.softmax_tpl.num_classes': 80,
    'input.file_pattern': f'text:{corpus}',
    'input.tokenizer.vocab_size': 80,
    'input.target_max_length': 24,
    'input.bucket_upper_bound': [24],
    'input.bucket_batch_limit': [8],
  }
  text = '; '.join(f'{name} : {value}' for name, value in overrides.items())
  done = trainer_runs.train(
    tmp_path / 'run',
    f'--model_params_override={text}',
    exp='lm.one_billion_wds.OneBWdsGPipeTransformerWPM',
  )
  assert 'without effect here: ' in done.stderr
  assert 'task.lm.stack.splits = [1, 2, 3, 4] (' in done.stderr
  assert len(trainer_runs.losses(tmp_path / 'run')) == 2
  evaluated = {split for _, split, _ in trainer_runs.metrics(tmp_path / 'run')}
  assert {'eval_Dev', 'eval_Test'} <= evaluated
