"""Tests of traced training steps."""

from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO


from adaptors.lingvo_registry import lookup  # noqa: E402
from adaptors.migrate.examine import examining  # noqa: E402
from adaptors.migrate.findings import Status  # noqa: E402
from pax_compat import experiment_sources  # noqa: E402

_MODULE = 'tests.adaptors.migrate.user_experiments'


def _traced(name):
  options = experiment_sources.SourceOptions()
  lookup.import_module(_MODULE)
  return examining.examine(f'{_MODULE}.{name}', options, traces=True)


def test_a_native_task_on_a_synthetic_batch():
  [task] = _traced('Native').tasks
  assert task.trace.works and 'synthetic' in task.trace.text


def test_a_bridged_task_whose_files_are_missing():
  found = _traced('NoFiles')
  [task] = found.tasks
  assert found.status is Status.BRIDGED
  assert found.traced == 'yes'
  assert task.trace.works, task.trace.text
  assert 'synthetic' in task.trace.text


def test_an_op_that_cannot_be_compiled_is_named():
  found = _traced('Uncompilable')
  [task] = found.tasks
  assert not task.trace.works
  assert 'AsString' in task.trace.text
  assert found.status is Status.IMPOSSIBLE
  assert found.problem == task.trace.text


def test_an_input_without_batches():
  found = _traced('NoBatches')
  [task] = found.tasks
  assert found.status is Status.BRIDGED
  assert task.trace.works is None and found.traced == 'not traced'
  assert 'not written yet' in task.trace.text
