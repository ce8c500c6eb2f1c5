"""A run of the README's experiment, used as docs/using_a_model.md says."""

import pathlib
import re

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.serving import saved_model
from tests.pax_compat import trainer_runs

_PAGE = pathlib.Path(__file__).parents[3] / 'docs/using_a_model.md'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with the run `runs/first`."""
  folder = tmp_path_factory.mktemp('used')
  trainer_runs.train(
    folder / 'runs/first',
    '--attr=NUM_LAYERS=1',
    '--attr=MAX_STEPS=2',
    exp=trainer_runs.LINGVO,
  )
  return folder


def _blocks(language: str) -> list[str]:
  text = _PAGE.read_text('utf-8')
  return re.findall(rf'```{language}\n(.*?)```', text, re.DOTALL)


def test_the_page_on_a_run_of_lingvos_experiment(folder, monkeypatch, capsys):
  monkeypatch.chdir(folder)
  names = {}
  for block in _blocks('python'):
    exec(compile(block, _PAGE.name, 'exec'), names)
  text, numbers = capsys.readouterr().out.splitlines()[:2]
  assert 0 < len(text) <= 40
  assert 3 < float(numbers.split()[0]) < 6
  model, batch = names['model'], names['batch']
  wanted = np.asarray(model.predict(batch).logits)
  np.testing.assert_allclose(names['logits'], wanted, atol=1e-5)
  generate, serve = (block.split()[2:] for block in _blocks('bash'))
  generate = generate[:-2] + ['--prompt=The ']
  done = trainer_runs.forked('-m', *generate)
  assert done.returncode == 0, done.stderr
  [line] = done.stdout.splitlines()
  assert line.startswith(f'The {text}')
  done = trainer_runs.forked('-m', *serve)
  assert done.returncode == 0, done.stderr
  signature = saved_model.open_saved_model('served')
  tf = lingvo_runtime.tensorflow()
  fields = {k: tf.constant(batch[k]) for k in names['exported'].inputs}
  np.testing.assert_allclose(signature(**fields)['logits'], wanted, atol=1e-5)
