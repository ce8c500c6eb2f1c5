"""Tests of `adaptors.lingvo_runtime`, most in processes of their own."""

import importlib
import os

import pytest

from adaptors import lingvo_runtime
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO


@pytest.fixture(name='cache', scope='module')
def _cache(tmp_path_factory):
  return tmp_path_factory.mktemp('cache')


def test_importing_the_adaptors_loads_nothing(cache):
  out, _ = native_library.run_python(
    """
import sys
from adaptors.native import elf_symbols
from adaptors.lingvo_registry import mounts
from adaptors import lingvo_runtime
from adaptors import lingvo_trainer
from adaptors.native import native_ops
print([m for m in ('tensorflow', 'lingvo', 'jax') if m in sys.modules])
""",
    cache=cache,
    fresh=True,
  )
  assert out == ['[]']


def test_load_prepares_the_process(cache):
  out, _ = native_library.run_python(
    """
import threading
from absl import flags
from adaptors import lingvo_runtime

failures = []
def load():
  try:
    lingvo_runtime.load()
  except BaseException as e:
    failures.append(e)
threads = [threading.Thread(target=load) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(failures)
lingvo_runtime.load()

tf = lingvo_runtime.module('tensorflow')
print({d.device_type for d in tf.config.get_visible_devices()})
print(flags.FLAGS.enable_asserts, repr(flags.FLAGS.xla_device))
py_utils = lingvo_runtime.module('lingvo.core.py_utils')
print(py_utils.IsEagerMode(), tf.executing_eagerly())
ops = lingvo_runtime.module('lingvo.core.ops')
print(ops.ascii_to_token_id(['hi'], maxlen=3).token_ids.numpy().tolist())

factory = lingvo_runtime.module('lingvo.core.cluster_factory')
before = factory.Current()
with lingvo_runtime.cluster(
    do_eval=True, require_sequential_input_order=True, xla_device='tpu'):
  inner = factory.Current()
  print(inner.do_eval, inner.require_sequential_input_order)
  print(py_utils.use_tpu(), inner.mode, inner.job, inner.num_replicas)
with lingvo_runtime.cluster():
  print(factory.Current().do_eval, py_utils.use_tpu())
print(factory.Current().params == before.params, factory.Current() is before)
try:
  with lingvo_runtime.eager_flag(False):
    with lingvo_runtime.eager_flag(True):
      inner = py_utils.IsEagerMode()
    print(inner, py_utils.IsEagerMode(), tf.executing_eagerly())
    raise ValueError
except ValueError:
  print(py_utils.IsEagerMode())

from lingvo.tasks.car import ops as car  # As a module of the user does.
box = [[0., 0., 0., 1., 1., 1., 0.]]
print(car.pairwise_iou3d(box, box).numpy().tolist())
""",
    cache=cache,
    fresh=True,
  )
  assert out == [
    '[]',
    "{'CPU'}",
    "True ''",
    'True True',
    '[[1, 12, 13]]',
    'True True',
    'True sync trainer_client 1',
    'False False',
    'True True',
    'True False True',
    'True',
    '[[1.0]]',
  ]


def test_flags_that_a_program_parsed_stay(cache):
  out, _ = native_library.run_python(
    """
import sys
from absl import app, flags
flags.DEFINE_string('model_params_override', 'default', 'Ours, as in Lingvo.')
flags.DEFINE_integer('ours', 1, 'Ours alone.')
from adaptors import lingvo_runtime

def main(argv):
  values = flags.FLAGS
  lingvo_runtime.load()
  lingvo_runtime.module('lingvo.trainer_utils')
  print(values.model_params_override, values.ours, values.logdir == '')
  print(values.enable_asserts, values.model_params_file_override == '')
  flag = values['model_params_override']
  print(flag.help, flag.allow_override, flag.using_default_value)
  print(values['ours'].using_default_value)
  print(values.find_module_defining_flag('model_params_override'))
  try:
    flags.DEFINE_integer('ours', 2, 'Again.')
  except flags.DuplicateFlagError:
    print('duplicate')

app.run(main, argv=['program', '--model_params_override=given'])
""",
    cache=cache,
  )
  assert out[:4] == [
    'given 1 True',
    'True True',
    'Ours, as in Lingvo. False False',
    'True',
  ]
  assert out[4] in ('__main__', '-c', 'program')
  # Defined twice by one module is a reload to absl, and no error.
  assert out[5:] in ([], ['duplicate'])


@pytest.mark.slow
def test_a_cold_and_a_warm_cache(tmp_path):
  """On any system: with ops that are newer than all of them."""
  site, cache = tmp_path / 'site', tmp_path / 'cache'
  data = native_library.from_the_future()
  original = native_library.shadow_lingvo(site, data)
  program = """
from absl import logging
logging.set_verbosity('info')
from adaptors import lingvo_runtime
ops = lingvo_runtime.module('lingvo.core.ops')
print(ops.ascii_to_token_id(['hi'], maxlen=3).token_ids.numpy().tolist())
"""
  states = []
  for is_new in (True, False):
    out, log = native_library.run_python(program, site, cache=cache)
    assert out == ['[[1, 12, 13]]']
    wrote = f'{original} needs a newer system than this one; wrote the repaired'
    assert log.count(wrote) == is_new
    (copy,) = cache.rglob('*.so')
    states.append((copy.stat().st_ino, copy.stat().st_mtime_ns))
  assert states[0] == states[1]
  assert original.read_bytes() == data


def test_other_failures_are_reported_as_they_are(tmp_path):
  site, cache = tmp_path / 'site', tmp_path / 'cache'
  original = native_library.shadow_lingvo(
    site, native_library.from_the_future()[:30]
  )
  out, _ = native_library.run_python(
    """
from adaptors import lingvo_runtime
for _ in range(2):  # A failure is not taken for success the second time.
  try:
    lingvo_runtime.load()
  except Exception as e:
    print(type(e).__name__, e)
""",
    site,
    cache=cache,
  )
  assert len(out) == 2
  for line in out:
    assert line.startswith('NotFoundError') and str(original) in line
  assert not list(cache.rglob('*.so'))


def test_what_is_not_there_is_the_users_mistake(cache):
  out, _ = native_library.run_python(
    """
import sys
from adaptors import lingvo_runtime
from pax_compat import errors

def attempt(action, *args):
  try:
    action(*args)
  except errors.UserError as e:
    print(e)

sys.modules['tensorflow'] = None
attempt(lingvo_runtime.load)
del sys.modules['tensorflow']
sys.modules['lingvo'] = None
attempt(lingvo_runtime.load)
del sys.modules['lingvo']
sys.modules['seqio'] = None
attempt(lingvo_runtime.seqio)
attempt(lingvo_runtime.module, 'lingvo.tasks.lm.params.nothing')
attempt(lingvo_runtime.module, 'lingvo.core.base_modle')
""",
    cache=cache,
    fresh=True,
  )
  assert len(out) == 5
  assert 'tensorflow is not installed' in out[0]
  assert 'lingvo is not installed' in out[1]
  assert all("pip install 'pax-compat[lingvo]'" in line for line in out[:2])
  assert 'seqio is not installed' in out[2]
  assert "pip install 'pax-compat[seqio]'" in out[2]
  assert '--lingvo_source' in out[3] and 'lm.params is missing' in out[3]
  assert 'did you mean: base_model' in out[4]


def test_a_layer_that_cannot_be_built_leaves_no_variables():
  """Lingvo itself keeps them for the next layer of the same name."""
  base_layer = lingvo_runtime.module('lingvo.core.base_layer')

  class Fails(base_layer.BaseLayer):
    """Cannot be built."""

    def __init__(self, params):
      super().__init__(params)
      raise ArithmeticError

  with lingvo_runtime.cluster(), pytest.raises(ArithmeticError):
    Fails.Params().Set(name='same').Instantiate()
  graph = lingvo_runtime.module('tensorflow').compat.v1.get_default_graph()
  assert getattr(graph, 'lingvo_variable_store', None) is None


def _raised(function) -> Exception:
  try:
    function()
  except Exception as e:  # noqa: BLE001 (whatever it is)
    return e
  raise AssertionError('nothing was raised')


def _lacks(name: str) -> Exception:
  raise AttributeError(name)  # As Lingvo's Params do, without an object.


def test_which_errors_are_of_wrong_names():
  tf = lingvo_runtime.tensorflow()

  def unbound():
    if not tf:
      x = 1
    return x

  for function, expected in (
    (lambda: no_such_name, True),  # noqa: F821 (meant)
    (lambda: importlib.import_module('adaptors.no_such_module'), True),
    (lambda: Exception().no_such_method(), True),
    (lambda: _lacks('file_patern'), True),
    (lambda: os.no_such_function(), True),
    # In another way these may be there.
    (lambda: None.run(), False),
    (lambda: tf.no_such_function(), False),
    (lambda: tf.zeros([2]).no_such_method(), False),
    (unbound, False),
    (lambda: 1 / 0, False),
  ):
    error = _raised(function)
    assert lingvo_runtime.is_wrong_name(error) == expected, repr(error)
