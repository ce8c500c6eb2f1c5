"""Tests of the options of Lingvo experiments."""

import pytest

from adaptors.experiments import lingvo_source
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors, experiment_sources
from tests.pax_compat import trainer_runs


@pytest.mark.parametrize(
  ('option', 'instead'),
  [
    (dict(translation='native'), ''),
    (dict(model_params_override='task.name : x'), '; expected --set'),
    (dict(lingvo_input_replay=True), '; expected replay=True of its Lingvo'),
    (dict(lingvo_logdir='/old/run'), ''),
    (dict(lingvo_source='/a/checkout'), ''),
    (dict(allow_missing=('x',)), ''),
    (dict(allow_unused=('x',)), ''),
  ],
)
def test_options_for_lingvo_are_refused(option, instead):
  [name] = option
  options = experiment_sources.SourceOptions(own=(LingvoOptions(**option),))
  message = (
    f'--{name} is for Lingvo.*{trainer_runs.COUNTING} is a native one{instead}'
  )
  with pytest.raises(errors.UserError, match=message):
    experiment_sources.find(trainer_runs.COUNTING, options)


def test_the_source_declares_them():
  assert lingvo_source.OPTIONS in experiment_sources.option_kinds()
  assert LingvoOptions(lingvo_logdir='/old/run').experiment_name() == '/old/run'
  assert LingvoOptions().experiment_name() == ''


@pytest.mark.parametrize('option', ['allow_missing', 'allow_unused'])
def test_tensors_of_no_checkpoint(option):
  options = experiment_sources.SourceOptions(
    own=(LingvoOptions(**{option: ('x',)}),)
  )
  with pytest.raises(
    errors.UserError, match=f'--{option} is of the checkpoint of --lingvo_log'
  ):
    experiment_sources.find('lm.python_docs.TransformerLmTiny', options)
