"""Tests of the stand-ins for packages that cannot be installed."""

import importlib.util

import pytest

from adaptors import lingvo_runtime
from pax_compat import errors
from tests.adaptors import native_library

pytestmark = [
  native_library.NEEDS_LINGVO,
  pytest.mark.skipif(
    importlib.util.find_spec('waymo_open_dataset') is not None,
    reason='waymo_open_dataset is installed',
  ),
]

_PACKAGE = 'waymo_open_dataset'
_METRICS = f'{_PACKAGE}.protos.metrics_pb2'


def test_lingvos_waymo_tasks_can_be_imported_and_name_what_is_missing():
  metric = lingvo_runtime.module('lingvo.tasks.car.waymo.waymo_ap_metric')
  metadata = lingvo_runtime.module('lingvo.tasks.car.waymo.waymo_metadata')
  params = metric.WaymoAPMetrics.Params(metadata.WaymoMetadata())
  with pytest.raises(errors.UserError) as error:
    params.Instantiate()
  for words in (f'{_METRICS}.Config', 'is not installed', 'does not decode'):
    assert words in str(error.value)


def test_a_module_without_a_stand_in_is_missing():
  lingvo_runtime.load()
  with pytest.raises(ModuleNotFoundError, match='stand-in has no dataset_pb2'):
    importlib.import_module(f'{_PACKAGE}.dataset_pb2')


def test_an_installed_package_comes_first(tmp_path):
  package = tmp_path / 'waymo_open_dataset'
  package.mkdir()
  (package / '__init__.py').write_text('')
  (package / 'label_pb2.py').write_text('Label = "real"')
  out, _ = native_library.run_python(
    """
from adaptors.stand_ins import absent_packages
absent_packages.install()
absent_packages.install()
import importlib
package = 'waymo_open_dataset'
print(importlib.import_module(package + '.label_pb2').Label)
try:
  importlib.import_module(package + '.protos.metrics_pb2')
except ModuleNotFoundError as error:
  print(error)
""",
    tmp_path,
    cache=tmp_path,
  )
  assert out == ['real', "No module named 'waymo_open_dataset.protos'"]
