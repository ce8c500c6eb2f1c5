"""Tests of the page of Lingvo's own experiments."""

import dataclasses
import json

from adaptors.migrate.findings import Status, Trial
from adaptors.migrate.report import stock_page
from tests.adaptors.migrate import found


def test_names_are_those_of_registered_classes(tmp_path):
  params = tmp_path / 'lingvo' / 'tasks' / 'mt' / 'params' / 'deep'
  params.mkdir(parents=True)
  code = (
    '@model_registry.RegisterSingleTaskModel\nclass Big(Base):\n  pass\n\n\n'
    'class Other:\n  pass\n'
  )
  (params / 'words.py').write_text(code)
  (params / 'words_test.py').write_text(code)
  assert stock_page.names(tmp_path) == ['mt.deep.words.Big']


def test_each_experiment_has_a_row():
  trial = Trial(seconds=3.0, losses=(2.5, 'NaN', 1.25), eval_losses=(1.5,))
  findings = [
    dataclasses.replace(
      found.experiment('lm.Ran', Status.BRIDGED, issues=1), trial=trial
    ),
    found.experiment('lm.Odd', Status.IMPOSSIBLE),
    dataclasses.replace(
      found.experiment('lm.Bad'), trial=Trial(problem='no | space (/a/b.py:3)')
    ),
  ]
  reports = {
    one.name: json.loads(json.dumps(one.as_dict())) for one in findings
  }
  known = ['lm.Ran', 'lm.Odd', 'lm.Bad', 'lm.New']
  lines = stock_page.page(known, reports).splitlines()
  assert (
    '4 experiments; examined 3: 1 bridged, 1 impossible, 1 native. Tried 2, of'
    ' which 1 ran as reported.'
  ) in lines
  ran, odd, bad, new = lines[-4:]
  assert ran.startswith(
    '| `lm.Ran` | bridged | 3 | 2.5 to 1.25 | 1.5 | task.lm.size_0: '
  )
  assert odd.startswith('| `lm.Odd` | impossible | not run |  |  | ')
  assert bad == r'| `lm.Bad` | native | 0 |  |  | no \| space |'
  assert new == '| `lm.New` | not run |  |  |  |  |'
