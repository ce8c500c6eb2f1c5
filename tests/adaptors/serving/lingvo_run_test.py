"""A run of the README's experiment, used as docs/using_a_model.md says."""

import contextlib
import pathlib
import re
import shlex

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from adaptors import lingvo_runtime
from adaptors.serving import __main__ as serving
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


@pytest.fixture(scope='module')
def generated(folder):
  """What the command of the page prints.

  In a process of its own, before TensorFlow's threads run in this one.
  """
  command = shlex.split(_blocks('bash')[0])[1:]
  command[-1] = '--prompt=The '
  command[-2] = f'--job_log_dir={folder}/runs/first'
  done = trainer_runs.forked(*command)
  assert done.returncode == 0, done.stderr
  [line] = done.stdout.splitlines()
  return line


@pytest.fixture(scope='module')
def page(folder, generated):
  """What the names of the page's Python blocks are, and what they print."""
  assert generated
  names, printed = {}, []
  names['print'] = lambda *values: printed.append(' '.join(map(str, values)))
  with contextlib.chdir(folder):
    for block in _blocks('python'):
      exec(compile(block, _PAGE.name, 'exec'), names)
  return names, printed


def test_python_and_the_command_generate_the_same_text(page, generated):
  _, (text, numbers) = page
  assert text
  assert generated.startswith(f'The {text}')
  assert 3 < float(numbers.split()[0]) < 6


def test_exported_models_have_the_same_logits(page, folder):
  names, _ = page
  model, batch = names['model'], names['batch']
  wanted = np.asarray(model.predict(batch).logits)
  np.testing.assert_allclose(names['logits'], wanted, atol=1e-5)
  arguments = shlex.split(_blocks('bash')[1])[2:]
  assert arguments[0] == 'adaptors.serving'
  with contextlib.chdir(folder), flagsaver.flagsaver():
    flags.FLAGS(arguments)
    assert serving.main(arguments[:1]) == 0
  signature = saved_model.open_saved_model(folder / 'served')
  tf = lingvo_runtime.tensorflow()
  fields = {k: tf.constant(batch[k]) for k in names['exported'].inputs}
  np.testing.assert_allclose(signature(**fields)['logits'], wanted, atol=1e-5)
