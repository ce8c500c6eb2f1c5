"""The experiments of images: fields against Pax's, and short runs."""

import json
import lzma
import pathlib
import re
import shlex

import jax
import numpy as np
import pytest

from lm_tasks.vision import imagenet_input
from lm_tasks.vision.params import imagenet_resnets, mnist
from pax_compat import base_layer, experiment_registry
from pax_compat.experiment_sources import SourceOptions
from pax_compat.experiments import class_attributes, native_params, resolved
from pax_compat.trainer import run
from tests import source_tree
from tests.lm_tasks.vision import mnist_input_test
from tests.pax import fields
from tests.pax_compat import launching

_RECORDED = source_tree.ROOT / 'testdata' / 'pax' / 'vision_tasks.json.xz'
_PAGE = source_tree.ROOT / 'docs' / 'vision.md'


@pytest.mark.parametrize(
  'cls', [imagenet_resnets.ResNet50Pjit, mnist.MnistExperiment]
)
def test_every_field_is_that_of_pax(cls):
  recorded = json.loads(lzma.decompress(_RECORDED.read_bytes()))
  text = recorded[f'{cls.__module__.rpartition(".")[2]}.{cls.__name__}']
  assert fields.unexplained(cls().task(), text) == []


@pytest.mark.slow
def test_resnet_50():
  experiment = imagenet_resnets.ResNet50Pjit()
  assert experiment.task().train.num_train_steps == 90 * 2502
  specs = experiment.get_input_specs_provider_params().Instantiate()
  batch = specs.get_input_specs()
  assert batch.image.shape == (512, 224, 224, 3)
  model = experiment.task().model.set(ici_mesh_shape=None, mesh_axis_names=None)
  made = jax.eval_shape(
    model.Instantiate().init, jax.random.key(0), imagenet_input.specs(2)
  )
  weights = jax.tree.leaves(base_layer.unbox(made['params']))
  # 25.6 million, as ResNet-50 is known to have.
  assert sum(int(np.prod(x.shape)) for x in weights) == 25557032


@pytest.fixture(name='installed')
def _installed(tmp_path, monkeypatch):
  """A folder in which the entry point of setup.py is installed."""
  folder = tmp_path / 'site'
  info = folder / 'vision-1.dist-info'
  info.mkdir(parents=True)
  (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: vision\n')
  line = 'tasks.vision.params = lm_tasks.vision.params'
  assert f"'{line}'" in (source_tree.ROOT / 'setup.py').read_text()
  (info / 'entry_points.txt').write_text(f'[{native_params.GROUP}]\n{line}\n')
  monkeypatch.syspath_prepend(folder)
  return folder


def test_names(installed):
  del installed
  names = experiment_registry.names(SourceOptions())
  for name in (
    'imagenet_resnets.ResNet50Pjit',
    'mnist.MnistExperiment',
    'digits.DrawnDigits',
  ):
    assert f'tasks.vision.params.{name}' in names


def _losses(folder: pathlib.Path) -> dict[tuple[str, str, int], float]:
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return {
    (record['split'], record['name'], record['step']): record['value']
    for record in map(json.loads, lines)
  }


def _trained(experiment, settings: list[str], folder: pathlib.Path):
  changed = class_attributes.changed(experiment, settings)
  run.train(resolved.resolve(changed, name='test'), job_log_dir=folder)
  return _losses(folder)


def test_mnist_trains(tmp_path):
  for prefix in ('train', 't10k'):
    mnist_input_test.write(tmp_path, prefix)

  class Small(mnist.MnistExperiment):
    def datasets(self):
      found = super().datasets()
      return [data.set(tfds_data_dir=str(tmp_path)) for data in found]

    def task(self):
      task = super().task()
      task.train.set(eval_interval_steps=2, summary_interval_steps=1)
      return task

  settings = ['BATCH_SIZE=4', 'TRAIN_STEPS=2']
  losses = _trained(Small(), settings, tmp_path / 'run')
  assert ('train', 'loss', 2) in losses
  assert 0 <= losses['eval_test', 'accuracy', 2] <= 1


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path, installed):
  text = _PAGE.read_text('utf-8')
  commands = re.findall(
    r'^python -m (pax_compat\.main .*DrawnDigits.*)$', text, re.M
  )
  assert commands
  for i, command in enumerate(commands):
    words = shlex.split(re.sub('--job_log_dir=.*', '', command))
    small = [
      f'--job_log_dir={tmp_path / str(i)}',
      *('--attr=NUM_TRAIN_STEPS=4', '--attr=WARMUP_STEPS=1'),
      '--attr=NUM_TEST_IMAGES=64',
      *('--attr=CHANNELS=[4,8]', '--attr=BLOCKS=[1,1]'),
    ]
    script = f"""
      import runpy, sys
      sys.path.insert(0, {str(installed)!r})
      sys.argv[1:] = {[*words[1:], *small]!r}
      runpy.run_module('pax_compat.main', run_name='__main__')
    """
    done = launching.run_script(script)
    assert done.returncode == 0, done.stderr
