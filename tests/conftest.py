"""Shared by all tests: thread limits, compiled programs, data of examples."""

import gc
import os
import pathlib
import sys
from importlib import metadata

import hypothesis
import pytest

from pax_compat.runs import compiled_programs, files
from tests import exhaustive_tests, pairwise, slow_tests
from tests.crashed_workers import pytest_xdist_make_scheduler  # noqa: F401


def _threads_per_worker() -> int:
  workers = int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', '1'))
  return max(1, len(os.sched_getaffinity(0)) // workers)


def _xla_flags() -> str:
  """Most of the tests' time goes into compiling what runs once."""
  # In one piece: nothing is compiled sooner in 32 pieces on so few threads.
  flags = (
    '--xla_backend_optimization_level=0'
    ' --xla_cpu_parallel_codegen_split_count=1'
  )
  if metadata.version('jaxlib').startswith('0.10.'):
    # The older emitters need half the time of the default ones. From 0.11 on
    # they are gone, and a flag that XLA does not know ends the process.
    flags += ' --xla_cpu_use_fusion_emitters=false'
  return flags


def _compilation_cache() -> pathlib.Path:
  """Returns the folder of programs that earlier processes have compiled.

  JAX's own keys contain the program, the flags and the version of jaxlib, but
  no features of the processor.
  """
  version = metadata.version('jaxlib')
  name = f'jaxlib-{version}-{compiled_programs.processor_digest()}'
  return files.user_cache().with_name('pax_compat-tests') / name


# Otherwise each worker, and each process that a test starts, compiles our
# modules and tests.
sys.dont_write_bytecode = False
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
# Read when JAX and TensorFlow load their backends, so set before any test file
# is imported. Processes that a test starts inherit them.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# XLA's thread pools: parallel workers must share the cores, not fight for them.
os.environ.setdefault('NPROC', str(_threads_per_worker()))
os.environ.setdefault('XLA_FLAGS', _xla_flags())
# Workers, processes that tests start, and later test runs share compiled
# programs. Unbounded: a bounded cache is locked while it is read.
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(_compilation_cache()))
# Less time goes into compiling a small program than into writing it.
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.1')
# Programs without the stacks of their operations are lowered sooner.
os.environ.setdefault('JAX_TRACEBACK_IN_LOCATIONS_LIMIT', '0')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
# Not TF_NUM_INTEROP_THREADS: an input op that waits would hold the only one.
os.environ.setdefault('TF_NUM_INTRAOP_THREADS', str(_threads_per_worker()))
# TensorFlow's oneDNN kernels overwrite memory that is not theirs in the graphs
# of Lingvo's recurrent layers, on processors without AVX-512.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
# A worker comes to hold millions of objects that stay: they are looked through
# once, see `_collected`.
gc.set_threshold(50_000, 50, 1000)
# Properties are tried with the same examples each time, however long they take.
hypothesis.settings.register_profile(
  'same', deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile('same')


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
  """Marks slow tests, and marks or leaves out exhaustive ones."""
  slow, exhaustive = slow_tests.listed(), exhaustive_tests.listed()
  for item in items:
    if item.nodeid in slow:
      item.add_marker('slow')
    if item.nodeid in exhaustive:
      item.add_marker(exhaustive_tests.MARKER)
  for item in pairwise.without_new_pairs(items):
    item.add_marker(exhaustive_tests.MARKER)
  exhaustive_tests.leave_out(config, items)


def pytest_runtest_logreport(report):
  """Writes the names of tests that fail to $FAILED_TESTS, for .ci/run.

  Also of those whose worker ended, which another worker may run again.
  """
  path = os.environ.get('FAILED_TESTS')
  if path and report.failed and 'PYTEST_XDIST_WORKER' not in os.environ:
    with open(path, 'a') as file:
      file.write(f'{report.nodeid}\n')


@pytest.fixture(autouse=True, scope='module')
def _collected():
  """Collects the garbage of a file's tests, once; what is left stays.

  So tests that collect all garbage take no longer in a worker that has run
  thousands before.
  """
  yield
  if gc.get_freeze_count():
    gc.collect()
  # After a test that has unfrozen all of it, looking through it takes seconds.
  gc.freeze()


@pytest.fixture(scope='session')
def shared_data() -> pathlib.Path:
  """Returns the folder of data beside the checkout, or skips the test."""
  path = pathlib.Path(__file__).resolve().parents[2] / 'shared' / 'data'
  if not path.is_dir():
    pytest.skip('needs ../shared/data, a folder beside the checkout')
  return path
