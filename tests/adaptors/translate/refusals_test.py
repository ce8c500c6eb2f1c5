"""What is not translated is refused: all of it, by path, class and value."""

import pytest
from absl import logging

from adaptors import lingvo_runtime
from adaptors.experiments import lingvo_experiment
from adaptors.lingvo_registry.options import LingvoOptions
from adaptors.translate import registry
from adaptors.translate.view import ParamsView, Report
from pax_compat import errors
from tests.adaptors.translate import parity
from tests.pax_compat import trainer_runs

MODULE = 'tests.adaptors.translate.refused_experiments'
LAYERS = 'lingvo.core.layers'
WITH_ATTENTION = 'lingvo.core.layers_with_attention'
# The issues of each experiment: path, class, message.
REASONS = {
  'ManyOwn': [
    (
      'task.lm.emb',
      f'{MODULE}.OwnVariables',
      f'it is not its parent {LAYERS}.EmbeddingLayer, since it overrides'
      ' _CreateLayerVariables',
    ),
    (
      'task.lm.input_dropout_prob',
      'lingvo.tasks.lm.layers.TransformerLm',
      "'some' is a string; expected a number (the default is 0.0)",
    ),
    (
      'task.lm.position_emb',
      f'{MODULE}.OwnMixture',
      f'it is not its parent {LAYERS}.PositionalEmbeddingLayer, since it'
      ' overrides FProp',
    ),
    (
      'task.lm.softmax',
      f'{MODULE}.OwnSoftmax',
      'no translator is registered for this class',
    ),
    (
      'task.lm.trans_tpl.tr_atten_tpl.ln_tpl',
      f'{MODULE}.OwnInit',
      f'it is not its parent {LAYERS}.LayerNorm, since it overrides __init__',
    ),
    (
      'task.lm.trans_tpl.tr_atten_tpl.residual_function',
      f'{WITH_ATTENTION}.TransformerAttentionLayer',
      "'HIGHWAY' is not translated, only None",
    ),
    (
      'task.lm.trans_tpl.tr_fflayer_tpl',
      f'{MODULE}.OwnFProp',
      f'it is not its parent {WITH_ATTENTION}.TransformerFeedForwardLayer,'
      ' since it overrides FProp',
    ),
    (
      'task.train.lr_schedule.warmup_steps',
      'lingvo.core.schedule.TransformerSchedule',
      "'a hundred' is a string; expected a number (the default is 4000)",
    ),
    (
      'task.train.optimizer',
      f'{MODULE}.OwnOptimizer',
      'it is not its parent lingvo.core.optimizer.Adam, since it overrides'
      ' Apply; write a function with'
      f" @registry.translates('{MODULE}.OwnOptimizer') (of adaptors.translate)"
      ' that returns the config of an equivalent optimizer, in a module of'
      ' --import_modules',
    ),
  ],
  'OwnNetwork': [
    (
      'task.lm',
      f'{MODULE}.OwnLm',
      'it is not its parent lingvo.tasks.lm.layers.TransformerLm, since it'
      ' overrides FProp',
    ),
  ],
}


@pytest.fixture(scope='module')
def own():
  """The module with a user's layers."""
  return lingvo_runtime.module(MODULE)


def _lines(name: str) -> list[str]:
  return [f'  {path} ({cls}): {why}' for path, cls, why in REASONS[name]]


@pytest.mark.parametrize('name', REASONS)
def test_every_reason_is_listed(own, name):
  experiment = lingvo_experiment.LingvoExperiment(
    name='own',
    model_params=getattr(own, name)(),
    options=LingvoOptions(translation='native'),
  )
  with pytest.raises(errors.UserError) as error:
    experiment.task()
  _, *lines = str(error.value).splitlines()
  assert lines == _lines(name)


def test_nothing_is_trained(tmp_path):
  """From the command line: status 2, no traceback, no folder of a run."""
  done = trainer_runs.main(
    f'--exp={MODULE}.ManyOwn',
    f'--import_modules={MODULE}',
    f'--job_log_dir={tmp_path / "run"}',
  )
  trainer_runs.assert_mistake(done, *_lines('ManyOwn'))
  assert not list(tmp_path.iterdir())


def test_defaults_of_ones_own(own):
  """They are settings like any other."""
  params = own.OwnDefaults.Params().Set(name='norm', input_dim=4)
  assert parity.translate(params).config.epsilon == 1e-3


def test_defaults_of_ones_own_that_are_not_translated(own):
  """Also of fields that the translator of the parent never reads."""
  params = own.OwnUnknownDefaults.Params().Set(name='norm', input_dim=4)
  assert parity.issues_of(params) == [
    f'layer.center ({MODULE}.OwnUnknownDefaults): False is not translated,'
    ' only True',
    f'layer.child_variable_scope_override ({MODULE}.OwnUnknownDefaults):'
    " {'scale': ['own']} is not translated (the default is {})",
  ]


@pytest.mark.parametrize('name', ['OwnFProp', 'OwnInit', 'OwnVariables'])
def test_names_of_what_is_overridden(own, name):
  method = {'OwnFProp': 'FProp', 'OwnInit': '__init__'}.get(
    name, '_CreateLayerVariables'
  )
  assert registry.overrides(getattr(own, name)) == {method}


def test_an_error_after_an_issue_leaves_a_trace_in_the_log(monkeypatch, caplog):
  def translator(view):
    view.issue('', 'it is not there')
    raise KeyError('a mistake of the translator')

  schedule = lingvo_runtime.module('lingvo.core.schedule')
  path = 'lingvo.core.schedule.Constant'
  registry.load_translators()
  monkeypatch.setitem(registry._translators, path, translator)
  report = Report()
  monkeypatch.setattr(logging, 'debug', logging.info)
  caplog.set_level('INFO')
  view = ParamsView(schedule.Constant.Params(), 'layer', report)
  assert registry.translate(view) is None
  assert len(report.issues) == 1
  assert 'a mistake of the translator' in caplog.text
  assert 'Traceback' in caplog.text
