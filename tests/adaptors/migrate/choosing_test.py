"""Tests of choosing the experiments of a report."""

import pytest

from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

from adaptors.migrate import choosing  # noqa: E402
from pax_compat import errors  # noqa: E402
from pax_compat.experiment_sources import SourceOptions  # noqa: E402
from tests.pax_compat import trainer_runs  # noqa: E402


def test_a_pattern_and_a_name():
  assert choosing.matching('lm.python_docs.*Tiny', SourceOptions()) == [
    trainer_runs.LINGVO
  ]
  assert choosing.matching(trainer_runs.LINGVO, SourceOptions()) == [
    trainer_runs.LINGVO
  ]


@pytest.mark.parametrize(
  'pattern', ['lm.python_docs.Tiny', 'lm.python_docs.T?']
)
def test_what_matches_nothing(pattern):
  with pytest.raises(
    errors.UserError, match=f'did you mean: {trainer_runs.LINGVO}'
  ):
    choosing.matching(pattern, SourceOptions())


# A process can mount one checkout only, so this runs in a separate one.
_EVERYTHING = """
import sys
from adaptors.migrate import choosing
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat.experiment_sources import SourceOptions
own = LingvoOptions(lingvo_source=sys.argv[1])
names = choosing.everything(SourceOptions(own=(own,)))
assert names == sorted(set(names))
print(*names)
"""


def test_everything_has_what_cannot_be_imported_too(tmp_path):
  folder = tmp_path / 'lingvo' / 'tasks' / 'own' / 'params'
  folder.mkdir(parents=True)
  (folder / 'broken.py').write_text(
    'from lingvo import model_registry\nimport no_such_module\n'
    '@model_registry.RegisterSingleTaskModel\nclass Model:\n  """It."""\n'
  )
  done = trainer_runs.forked('-c', _EVERYTHING, tmp_path)
  assert done.returncode == 0, done.stderr
  assert {'own.broken.Model', trainer_runs.LINGVO} <= set(done.stdout.split())
