"""How the stock language models are trained, from the texts of their Params."""

import pathlib

import jax.numpy as jnp
import pytest

from adaptors import lingvo_runtime
from adaptors.params.text import reader
from adaptors.translate.training import train_params
from adaptors.translate.training.variable_layout import TaskFacts
from adaptors.translate.variable_names import VariableNames
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, Report
from pax_compat import optimizers

_NUM_EXPERIMENTS = 26


def _files(shared_data) -> list[pathlib.Path]:
  return sorted(
    (shared_data / 'lingvo_stock').glob('lm.*.trainer_params.pbtxt.gz')
  )


def _translated(path: pathlib.Path):
  """Returns the translation of a file's `task.train`, and its report."""
  task = reader.read_file(path).params.task
  report = Report()
  view = ParamsView(task, 'task', report).group('train')
  for name in ('max_lstm_gradient_norm', 'sum_loss_across_tokens_in_batch'):
    if name in view.params:
      view.get(name)  # The task's own, which its translator reads.
  view.ignore('noise is off', 'vn_std', 'vn_start_step')
  names = VariableNames(task, VariableMap())
  facts = TaskFacts(names=names)
  return train_params.train(view, facts), report


def test_every_stock_language_model(shared_data):
  pytest.importorskip('lingvo')
  paths = _files(shared_data)
  assert len(paths) == _NUM_EXPERIMENTS
  for path in paths:
    translated, report = _translated(path)
    assert not report.issues, (path.name, list(map(str, report.issues)))
    learner = translated.config.learner.Instantiate()
    optimizer = learner.optimizer
    rate = optimizer.learning_rate_fn()(jnp.int32(100))
    assert float(rate) > 0, path.name
    assert translated.config.Instantiate().num_train_steps > 1e6, path.name


@pytest.mark.parametrize(
  'name,cls,fields',
  [
    (
      'synthetic_packed_input.DenseLm1T16x16',
      optimizers.ShardedAdafactor,
      {
        'decay_method': 'pow',
        'decay_pow': 0.8,
        'clip_threshold': 1.0,
        'multiply_by_parameter_scale': True,
        'learning_rate': 1.0,
      },
    ),
    (
      'one_billion_wds.OneBWdsGPipeTransformerWPM',
      optimizers.Adam,
      {'beta2': 0.997, 'epsilon': 1e-9, 'l2_regularizer_weight': 1e-6},
    ),
    (
      'one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmax',
      optimizers.Adagrad,
      {'initial_accumulator_value': 1.0, 'epsilon': 0.0, 'learning_rate': 0.2},
    ),
  ],
)
def test_some_of_their_optimizers(shared_data, name, cls, fields):
  pytest.importorskip('lingvo')
  (path,) = [p for p in _files(shared_data) if f'.{name}.t' in p.name]
  translated, _ = _translated(path)
  made = translated.config.learner.optimizer.Instantiate()
  assert type(made) is cls
  assert {field: getattr(made, field) for field in fields} == fields


def test_steps_of_micro_batches(shared_data):
  """Lingvo counts 5 steps in 4 batches of this one."""
  lingvo_runtime.load()
  name = 'lm.synthetic_packed_input.DenseLm12kWide162BAdamBS25616x16.'
  (path,) = [p for p in _files(shared_data) if p.name.startswith(name)]
  translated, report = _translated(path)
  learner = translated.config.learner
  assert learner.optimizer.num_sub_batches == 4
  assert translated.config.num_train_steps == 2_000_000 * 4 // 5
  assert any('global step grow by 5 in 4' in note for note in report.notes)
