"""Experiments of a paxml checkout are found, built and run."""

import os
import subprocess
import sys

import pytest

from adaptors.pax_names import checkout, experiments
from adaptors.pax_names.options import PaxOptions
from pax_compat import errors, experiment_sources
from pax_compat.experiment_sources import SourceOptions
from tests.adaptors.pax_names import small_checkout

_RUN = """
import sys
from pax_compat import main
main.run()
"""


def _options(root) -> SourceOptions:
  return SourceOptions(own=(PaxOptions(pax_source=str(root)),))


def test_names_of_a_checkout_are_read_without_importing(tmp_path):
  root = small_checkout.write(tmp_path)
  name = 'paxml.tasks.lm.params.small.Small'
  assert checkout.names(root) == {name: 'A small decoder.'}
  assert name not in sys.modules


def test_a_folder_that_is_not_a_checkout(tmp_path):
  (tmp_path / 'paxml' / 'tasks').mkdir(parents=True)
  with pytest.raises(errors.UserError, match=f'did you mean: {tmp_path}'):
    checkout.mount(tmp_path / 'paxml')
  with pytest.raises(errors.UserError, match='and it does not exist'):
    checkout.mount('/nowhere')


def test_without_a_checkout_it_has_no_experiments():
  assert experiments.find('small.Small', SourceOptions()) is None
  assert experiments.names(SourceOptions()) == {}
  assert not experiments.claims('anything')
  with pytest.raises(errors.UserError, match='--pax_source=FOLDER of a checko'):
    experiment_sources.find('lm.params.nvidia.NVIDIA5B', SourceOptions())
  assert experiments.hint('nvidia.X', _options('/a')) is None


@pytest.mark.slow
def test_an_experiment_of_a_checkout_is_built(tmp_path):
  """In a process of its own: a process has one checkout."""
  root = small_checkout.write(tmp_path)
  code = f"""
from adaptors.pax_names import experiments
from pax_compat import base_experiment, errors
from pax_compat.experiment_sources import SourceOptions
from adaptors.pax_names.options import PaxOptions

options = SourceOptions(own=(PaxOptions(pax_source={str(root)!r}),))
for name in ('small.Small', 'tasks.lm.params.small.Small',
             'paxml.tasks.lm.params.small.Small', 'lm.small.Small'):
  found = experiments.find(name, options)
  assert type(found).__module__ == 'paxml.tasks.lm.params.small', found
assert isinstance(found, base_experiment.BaseExperiment)
layer = found.task().model.lm_tpl.stacked_transformer_tpl
activation = layer.transformer_layer_params_tpl.tr_fflayer_tpl.activation_tpl
assert activation.cls.__module__ == 'paxml.tasks.lm.params.own_layers'
assert activation.scale == 0.5
assert experiments.find('no.Such', options) is None
try:
  experiments.prepare(
    SourceOptions(own=(PaxOptions(pax_source={str(tmp_path.parent)!r}),)))
except errors.UserError as e:
  assert 'is not a source checkout of paxml' in str(e)
else:
  raise AssertionError
assert 'tensorflow' not in __import__('sys').modules
"""
  _run(code)


@pytest.mark.slow
def test_it_trains(tmp_path):
  if experiments not in experiment_sources.sources():
    pytest.skip('needs the entry point 05_pax: pip install --no-deps -e .')
  root = small_checkout.write(tmp_path)
  flags = (
    f'--pax_source={root}',
    '--exp=small.Small',
    f'--job_log_dir={tmp_path / "run"}',
  )
  found = _run(_RUN, *flags)
  assert 'step 2/2' in found.stdout + found.stderr


def _run(code: str, *flags: str) -> subprocess.CompletedProcess:
  found = subprocess.run(
    [sys.executable, '-c', code, *flags],
    text=True,
    capture_output=True,
    env=os.environ,
    check=False,
  )
  assert found.returncode == 0, found.stderr[-3000:]
  return found
