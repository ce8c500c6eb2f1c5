"""Tests of `adaptors.lingvo_trainer`: Lingvo's trainer takes real steps."""

from adaptors import lingvo_runtime
from tests.adaptors import native_library, short_waits

pytestmark = native_library.NEEDS_LINGVO

_MODEL = """
from lingvo import model_registry
from lingvo.core import base_input_generator, base_model, base_model_params
from lingvo.core import py_utils
import lingvo.compat as tf


class Points(base_input_generator.BaseInputGenerator):

  def _InputBatch(self):
    return py_utils.NestedMap(x=tf.random.uniform([4], seed=1))


class Slope(base_model.BaseTask):

  def _CreateLayerVariables(self):
    super()._CreateLayerVariables()
    self.CreateVariable('w', py_utils.WeightParams(
      [1], py_utils.WeightInit.Constant(0.), tf.float32))

  def FPropTower(self, theta, batch):
    loss = tf.reduce_mean(tf.square(theta.w * batch.x - 3. * batch.x))
    return {'loss': (loss, 4.)}, {}


@model_registry.RegisterSingleTaskModel
class Line(base_model_params.SingleTaskModelParams):

  def Train(self):
    return Points.Params().Set(name='points')

  def Task(self):
    p = Slope.Params().Set(name='slope')
    p.train.Set(learning_rate=.1, max_steps=3)
    return p
"""


def _trainer(site, *flags):
  env = native_library.environment(site, cache=site / 'cache')
  return short_waits.run_trainer(*flags, **env)


def test_trains_an_experiment_of_an_installed_package(tmp_path):
  (tmp_path / 'models').mkdir()
  (tmp_path / 'models' / '__init__.py').write_text('')
  (tmp_path / 'models' / 'tiny.py').write_text(_MODEL)
  native_library.add_distribution(
    tmp_path, '[pax_compat.lingvo_params]\nmytask = models\n'
  )
  # It is imported first, and may import the mounted packages.
  (tmp_path / 'mine.py').write_text(
    'import pathlib\n'
    'from lingvo.tasks.mytask.params import tiny\n'
    'pathlib.Path(__file__).with_suffix(".txt").write_text(str(tiny.Line))\n'
  )
  run = tmp_path / 'run'
  done = _trainer(
    tmp_path,
    '--model',
    'mytask.tiny.Line',
    f'--logdir={run}',
    '--run_locally=cpu',
    '--mode=sync',
    '--import_modules=mine',
  )
  assert done.returncode == 0, done.stderr[-4000:]
  assert 'tiny.Line' in (tmp_path / 'mine.txt').read_text()
  # The controller's first checkpoint, and the one of the end.
  (newest,) = (run / 'train').glob('ckpt-00000003.index')
  tf = lingvo_runtime.tensorflow()
  reader = tf.train.load_checkpoint(str(newest.with_suffix('')))
  assert reader.get_tensor('global_step') == 3
  assert 'slope/w/var' in reader.get_variable_to_shape_map()
  assert (run / 'train' / 'trainer_params.txt').exists()


def test_mistakes_are_told_without_a_traceback(tmp_path):
  for flags, message in (
    (['--model=a.b.C', '--lingvo_source=/nowhere'], 'not a source checkout'),
    (['--model=a.b.C', '--run_locally=gpu'], 'does not see accelerators'),
    ([], '--model is required; see --help'),
  ):
    done = _trainer(tmp_path, *flags)
    assert done.returncode == 2
    assert message in done.stderr and 'Traceback' not in done.stderr


def test_help_is_the_description_of_the_command(tmp_path):
  done = _trainer(tmp_path, '--help')
  assert done.returncode == 0
  assert done.stdout.startswith("Runs Lingvo's own trainer")
