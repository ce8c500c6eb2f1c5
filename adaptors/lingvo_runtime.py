"""The only access of the adaptors to Lingvo, TensorFlow and SeqIO.

`load` prepares the process once: TensorFlow without accelerators, Lingvo's
native ops (repaired if this system is older than the one they were built on),
readable flags, stand-ins for packages that cannot be installed, eager mode.
`tensorflow` and `seqio` do not load Lingvo. Importing this module loads
nothing.

Seconds of a first `load` on two slow cores, files cached: TensorFlow 6.3
(including Keras 2.3), Lingvo 1.3, native ops 0.1.
"""

import contextlib
import contextvars
import functools
import importlib
import importlib.util
import os
import sys
import tempfile
import threading
import types
from collections.abc import Iterator

from absl import flags, logging

from adaptors.native import native_ops
from adaptors.stand_ins import absent_packages, older_names, trainer_flags
from pax_compat import errors
from pax_compat.config_core import context_values
from pax_compat.runs import garbage

# The extra to install for a missing package, if it is not that of Lingvo.
_EXTRAS = {'seqio': 'seqio', 'tensorflow_datasets': 'seqio'}

# What every adaptor needs. `lingvo.model_registry` takes half a second more
# than the others, nearly all of it for `lingvo.core.base_model_params`.
_CORE = (
  'lingvo.compat',
  'lingvo.core.py_utils',
  'lingvo.core.cluster_factory',
  'lingvo.model_registry',
)

# Packages whose objects have other classes in a graph than outside of it.
_OF_TENSORS = ('keras', 'numpy', 'tensorflow', 'tf_keras')

_lock = threading.RLock()
_building_input = contextvars.ContextVar('building_input', default=False)
# Lingvo's eager flag is global to the process.
_flag_lock = threading.RLock()
_done: set[str] = set()
# Modules that `module` returned, by name.
_imported: dict[str, types.ModuleType] = {}


def load() -> None:
  """Makes Lingvo and TensorFlow ready to use. Later calls do nothing.

  Then Lingvo's flags, and those of its trainer, can be read, even if the
  program has not parsed flags; the program's own flags keep their values.
  Lingvo's car tasks load their native ops, repaired too, when imported.

  Raises:
    UserError: TensorFlow or Lingvo is not installed, cannot be repaired for
      this system, or has already started with an accelerator.
  """
  with _lock:
    if 'core' in _done:
      return
    tensorflow()
    native_ops.load('lingvo.core.ops', 'x_ops')
    native_ops.load_when_imported('lingvo.tasks.car.ops', 'car_ops')
    absent_packages.install()
    older_names.install()
    with garbage.uncollected(stays=True), _own_flags_kept():
      for name in _CORE:
        _import(name)
      for folder in sys.modules['lingvo'].__path__:
        trainer_flags.define(folder)
    _keep_default_cluster()
    importlib.import_module('lingvo.core.py_utils').SetEagerMode(True)
    _done.add('core')


def tensorflow() -> types.ModuleType:
  """Returns TensorFlow, without accelerators; does not load Lingvo.

  Raises:
    UserError: it is not installed, or has already started with an accelerator.
  """
  with _lock:
    if 'tensorflow' not in _done:
      _import_tensorflow()
      _done.add('tensorflow')
    return _import('tensorflow')


def seqio() -> types.ModuleType:
  """Returns SeqIO; does not load Lingvo.

  Raises:
    UserError: it is not installed, or as for `tensorflow`.
  """
  if importlib.util.find_spec('seqio'):  # If not, the error names SeqIO.
    tensorflow()
  with _lock, _own_flags_kept():
    return _import('seqio')


def tensorflow_datasets() -> types.ModuleType:
  """Returns TensorFlow Datasets; does not load Lingvo.

  Raises:
    UserError: it is not installed, or as for `tensorflow`.
  """
  tensorflow()
  with _lock, _own_flags_kept():
    return _import('tensorflow_datasets')


def is_wrong_name(error: Exception) -> bool:
  """Returns whether an error is a wrong name in the user's code.

  Building such code with another backend would fail again. Attributes that
  TensorFlow's objects or None lack do not count: with another backend these may
  be objects of other classes.
  """
  if isinstance(error, NameError | ImportError):
    return not isinstance(error, UnboundLocalError)
  if not isinstance(error, AttributeError):
    return False
  if error.obj is None:  # Or raised without it, as Lingvo's Params do.
    return "'NoneType' object" not in str(error)
  is_module = isinstance(error.obj, types.ModuleType)
  name = error.obj.__name__ if is_module else type(error.obj).__module__
  return name.partition('.')[0] not in _OF_TENSORS


def module(name: str) -> types.ModuleType:
  """Returns a module that needs Lingvo or TensorFlow.

  Args:
    name: the full name, such as `lingvo.core.base_model`. A module of
      TensorFlow, such as `tensorflow.python.eager`, does not load Lingvo.

  Raises:
    UserError: the module is missing, or `load` fails.
  """
  if name in _imported:
    return _imported[name]
  if name.startswith('tensorflow.'):
    tensorflow()
  else:
    load()
  with _lock, _own_flags_kept():
    return _imported.setdefault(name, _import(name))


@contextlib.contextmanager
def cluster(
  *,
  do_eval: bool = False,
  require_sequential_input_order: bool = False,
  keeps_order: bool = False,
  xla_device: str = 'cpu',
  job: str = 'trainer_client',
) -> Iterator[object]:
  """Enters a Lingvo cluster of one process without accelerators.

  Instantiate and call inputs and tasks within.

  Args:
    do_eval: whether layers behave as in evaluation.
    require_sequential_input_order: whether inputs keep the order of their files
      and end after one epoch.
    keeps_order: whether tf.data datasets are deterministic, which is slower.
    xla_device: 'cpu', or 'tpu' for static shapes. It changes how graphs are
      built, not where they run.
    job: Lingvo's name of what the process does: 'trainer_client', 'evaler' or
      'decoder'. Params of inputs may depend on it.

  Yields:
    The cluster.
  """
  factory = module('lingvo.core.cluster_factory')
  entered = factory.ForTestingWorker(
    mode='sync', job=job, cpus=1, gpus=0, tpus=0, do_eval=do_eval
  )
  entered.params.require_sequential_input_order = require_sequential_input_order
  if keeps_order:
    # Lingvo has this switch for its tests; off is None.
    entered.params.in_unit_test = True
  entered.params.xla_device = xla_device
  if xla_device == 'tpu':
    # Lingvo's assertions are not XLA ops, and it refuses to mix the two.
    entered.params.enable_asserts = False
  with entered, _no_variables_left():
    yield entered


@contextlib.contextmanager
def _no_variables_left() -> Iterator[None]:
  """Drops the variables of a layer that could not be built.

  The next layer with the same names would get them.
  """
  graph = module('tensorflow').compat.v1.get_default_graph()
  while getattr(graph, 'outer_graph', None):
    graph = graph.outer_graph
  before = getattr(graph, 'lingvo_variable_store', None)
  try:
    yield
  finally:
    graph.lingvo_variable_store = before


def building_input() -> contextlib.AbstractContextManager:
  """Enters code of an input generator, which makes Lingvo's NestedMaps."""
  return context_values.set_within(_building_input, True)


def is_building_input() -> bool:
  """Whether this thread is within `building_input`."""
  return _building_input.get()


@contextlib.contextmanager
def eager_flag(is_on: bool) -> Iterator[None]:
  """Sets Lingvo's own eager flag; other threads that set it wait.

  TensorFlow's eager execution stays on.

  Args:
    is_on: the value that layers and generators find while they are built.
  """
  py_utils = module('lingvo.core.py_utils')
  with _flag_lock:
    before = py_utils.IsEagerMode()
    py_utils.SetEagerMode(is_on, test_mode=True)
    try:
      yield
    finally:
      py_utils.SetEagerMode(before, test_mode=True)


def _import_tensorflow():
  """Imports TensorFlow and hides every accelerator from it."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  try:
    with garbage.uncollected(stays=True), _stderr_held_back():
      tf = _import('tensorflow')
      for kind in ('GPU', 'TPU'):
        tf.config.set_visible_devices([], kind)
  except RuntimeError as e:
    raise errors.UserError(
      'TensorFlow was started in this process before Lingvo was loaded, and'
      ' uses an accelerator; expected that nothing runs TensorFlow before'
      f' adaptors.lingvo_runtime.load() ({e})'
    ) from e


def _keep_default_cluster():
  """Makes the cluster that counts outside of any other only once.

  Lingvo makes one, with 100 Params, for each Params of each layer.
  """
  factory = importlib.import_module('lingvo.core.cluster_factory')
  default = functools.cache(lambda kind: kind(kind.Params()))
  factory.Current = lambda: factory.Cluster.Top() or default(factory.Cluster)


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
  """Captures what native code writes to stderr; prints it after an error.

  At any log level, TensorFlow prints processor features and missing CUDA
  drivers as if they were errors.
  """
  sys.stderr.flush()
  with tempfile.TemporaryFile() as held:
    stderr = os.dup(2)
    os.dup2(held.fileno(), 2)
    try:
      yield
    except BaseException:
      held.seek(0)
      os.write(stderr, held.read())
      raise
    finally:
      sys.stderr.flush()
      os.dup2(stderr, 2)
      os.close(stderr)


def _import(name: str) -> types.ModuleType:
  """Imports a module; raises a UserError if it does not exist.

  If it exists, but lacks another module, the error stays as it is, unless the
  other one is TensorFlow, Lingvo or SeqIO as a whole.
  """
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as e:
    if e.name in ('tensorflow', 'lingvo', *_EXTRAS):
      extra = _EXTRAS.get(name, 'lingvo')
      needs = '' if e.name == name else f', and {name} needs it'
      raise errors.UserError(
        f'{e.name} is not installed{needs}; install it with:'
        f" pip install 'pax-compat[{extra}]'"
      ) from e
    missing = errors.missing_module(name, e)
    if missing is None:
      raise
    if e.name.endswith('.params'):
      missing += (
        "; Lingvo's wheel has no `params` packages: give a source checkout with"
        ' --lingvo_source, or install a package that has them'
      )
    raise errors.UserError(missing) from e


@contextlib.contextmanager
def _own_flags_kept() -> Iterator[None]:
  """Lets modules define absl flags after the command line was parsed.

  They can be read, even if flags are never parsed. If one has the name of an
  existing flag, the existing flag and its value stay, and the module reads
  these.
  """
  known = flags.FLAGS
  # absl keeps an existing flag instead of a new one if the former may be
  # overridden, and its value was set and is not the default.
  saved = [(f, f.allow_override, f.using_default_value) for f in _all(known)]
  for flag, _, _ in saved:
    flag.allow_override, flag.using_default_value = True, False
  try:
    yield
  finally:
    for flag, allow_override, using_default_value in saved:
      flag.allow_override = allow_override
      flag.using_default_value = using_default_value
  if not known.is_parsed():
    logging.vlog(1, 'absl flags were never parsed; Lingvo reads the defaults')
    known.mark_as_parsed()


def _all(values: flags.FlagValues) -> list[flags.Flag]:
  """Returns the defined flags, each once."""
  return list({id(values[name]): values[name] for name in values}.values())
