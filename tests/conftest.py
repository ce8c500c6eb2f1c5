"""What all tests share: limits on threads, and data beside the checkout."""

import gc
import os
import pathlib

import pytest


def _threads_per_worker() -> int:
  workers = int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', '1'))
  return max(1, len(os.sched_getaffinity(0)) // workers)


# Read when JAX and TensorFlow load their backends, so set before any test file
# is imported. Processes that a test starts inherit them.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# XLA's thread pools: parallel workers must share the cores, not fight for them.
os.environ.setdefault('NPROC', str(_threads_per_worker()))
# Most of the tests' time goes into compiling what runs once: no optimization,
# and each operation written by the emitter that needs the least time.
os.environ.setdefault(
  'XLA_FLAGS',
  '--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false',
)
# Not TF_NUM_INTEROP_THREADS: an input op that waits would hold the only one.
os.environ.setdefault('TF_NUM_INTRAOP_THREADS', str(_threads_per_worker()))
# A worker comes to hold millions of objects that stay: they are looked through
# seldom.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope='session')
def shared_data() -> pathlib.Path:
  """Returns the folder of data beside the checkout, or skips the test."""
  path = pathlib.Path(__file__).resolve().parents[2] / 'shared' / 'data'
  if not path.is_dir():
    pytest.skip('needs ../shared/data, a folder beside the checkout')
  return path
