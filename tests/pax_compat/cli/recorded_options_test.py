"""Tests of the record of how a run's experiment was selected."""

import dataclasses
import json

import pytest

from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors, experiment_sources
from pax_compat.cli import recorded_options


def _recorded():
  return recorded_options.Recorded(
    name='lm.words.Model',
    options=experiment_sources.SourceOptions(
      import_modules=('my.params',),
      attributes=('NUM_LAYERS=1',),
      module_flags=('--my_path', '/data'),
      own=(LingvoOptions(translation='bridge', allow_missing=('a', 'b')),),
    ),
    settings=('task.train.num_train_steps=7',),
    skip_bad_records=True,
  )


def test_what_is_written_is_read(tmp_path):
  recorded = _recorded()
  path = tmp_path / recorded_options.FILE
  path.write_text(recorded.to_json())
  read = recorded_options.read(tmp_path)
  own = recorded.options.of(LingvoOptions)
  assert read.options.of(LingvoOptions) == own
  # The other sources have their defaults.
  options = dataclasses.replace(read.options, own=(own,))
  assert dataclasses.replace(read, options=options) == recorded
  # Defaults are not recorded, so that they can change.
  [own] = json.loads(path.read_text())['options'].values()
  assert own == {'translation': 'bridge', 'allow_missing': ['a', 'b']}


def test_a_run_of_an_older_version_has_a_name_only(tmp_path):
  (tmp_path / 'experiment.json').write_text('{"name": "lm.words.Model"}')
  recorded = recorded_options.read(tmp_path)
  assert recorded.name == 'lm.words.Model'
  assert recorded.settings == ()


@pytest.mark.parametrize(
  'text',
  ['', '[]', '{}', '{"name": "a", "settings": "b"}', '{"name": "a", "options":'
   ' {"adaptors.lingvo_registry.options.LingvoOptions": {"x": 1}}}'],
)  # fmt: skip
def test_damaged_files_are_errors(tmp_path, text):
  (tmp_path / recorded_options.FILE).write_text(text)
  with pytest.raises(errors.UserError, match=r'options\.json is damaged'):
    recorded_options.read(tmp_path)
