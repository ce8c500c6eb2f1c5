"""Reads the Params texts of Lingvo's stock experiments, and compares.

They are files beside the checkout that Lingvo itself wrote.
"""

import gzip

import pytest

from adaptors import lingvo_runtime
from adaptors.params.text import reader
from pax_compat import errors

text_format = pytest.importorskip('google.protobuf.text_format')
pytest.importorskip('lingvo')

# How many experiments of each task there are, those apart whose params modules
# are not installed.
COUNTS = {'asr': 5, 'image': 1, 'lm': 26, 'mt': 9, 'punctuator': 1}


def _files(shared_data, pattern):
  return sorted((shared_data / 'lingvo_stock').glob(pattern))


def _proto(path):
  pb2 = lingvo_runtime.module('lingvo.core.hyperparams_pb2')
  with gzip.open(path, 'rt') as file:
    return text_format.Parse(file.read(), pb2.Hyperparam())


@pytest.mark.parametrize('task', COUNTS)
def test_params_are_what_is_in_the_text(shared_data, task):
  paths = _files(shared_data, f'{task}.*.pbtxt.gz')
  of_models = [path for path in paths if '.trainer_params.' in path.name]
  assert len(of_models) == COUNTS[task]
  for path in paths:
    read = reader.read_file(path)
    assert read.params.ToProto() == _proto(path), path
    assert not read.defaulted, path


@pytest.mark.parametrize('task', COUNTS)
def test_plain_text_says_the_same(shared_data, task):
  for path in _files(shared_data, f'{task}.*.trainer_params.pbtxt.gz'):
    params = reader.read_file(path).params
    text = params.ToText()
    read = reader.read_text(text, form='.txt').params
    assert read.ToText() == text, path
    assert read.ToProto() == params.ToProto(), path


def test_absent_params_modules_are_refused_by_name(shared_data):
  paths = _files(shared_data, 'car.kitti.*.Train.pbtxt.gz')
  assert paths
  for path in paths:
    with pytest.raises(
      errors.UserError, match=r'module lingvo\.tasks\.car\.params\S* not found'
    ):
      reader.read_file(path)
