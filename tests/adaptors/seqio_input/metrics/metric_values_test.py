"""Tests of converting values of SeqIO metrics for a MetricWriter."""

import numpy as np
import pytest
from clu import values as clu_values

from adaptors import lingvo_runtime
from adaptors.seqio_input.metrics import metric_values
from pax_compat.metrics import metric_writers


@pytest.fixture(name='metrics', scope='module')
def _metrics():
  return lingvo_runtime.seqio().metrics


def _one(value):
  return metric_values.translate('some', {'x': value}).get('x')


def test_scalars_become_floats(metrics):
  values = (
    metrics.Scalar(3),
    metrics.Scalar(np.ones([1, 1])),
    clu_values.Scalar(np.float32(0.25)),
    np.float32(0.5),
    np.array(2),
    True,
    7,
  )
  found = [_one(value) for value in values]
  assert found == [3.0, 1.0, 0.25, 0.5, 2.0, 1.0, 7.0]
  assert {type(value) for value in found} == {float}


def test_other_kinds_become_those_of_clu(metrics):
  assert _one(metrics.Text('a')) == clu_values.Text('a')
  assert _one(metrics.Text('ä'.encode())) == clu_values.Text('ä')
  images = np.arange(5 * 12, dtype=np.uint8).reshape(5, 2, 2, 3)
  shown = _one(metrics.Image(images, max_outputs=2))
  assert isinstance(shown, clu_values.Image)
  np.testing.assert_array_equal(shown.value, images[:2])
  np.testing.assert_array_equal(
    _one(metrics.Image(images[0], max_outputs=1)).value, images[0]
  )
  histogram = _one(metrics.Histogram(np.array([1.0, 5.0]), bins=3))
  assert isinstance(histogram, clu_values.Histogram)
  assert (histogram.value.tolist(), histogram.num_buckets) == ([1.0, 5.0], 3)
  assert _one(clu_values.Text('b')) == clu_values.Text('b')


def test_unsupported_values_are_named(metrics, log):
  audio = metrics.Audio(np.zeros([1, 4, 1]))
  found = metric_values.translate(
    'spoken', {'sound': audio, 'word': 'x', 'many': np.ones(3), 'good': 1}
  )
  assert found == {'good': 1.0}
  for name, kind in (('sound', 'Audio'), ('word', 'str'), ('many', 'ndarray')):
    assert (
      f"the metric spoken: its value '{name}' is left out, as it is a {kind}"
      in log()
    )


def test_invalid_metrics(metrics):
  with pytest.raises(TypeError, match='returned a float; expected values by'):
    metric_values.translate('some', 0.5)
  with pytest.raises(ValueError, match=r'has the shape \[2\]; expected one'):
    _one(metrics.Scalar(np.ones(2)))


def test_a_metric_writer_takes_them(metrics, tmp_path):
  found = metric_values.translate(
    'some',
    {
      'n': metrics.Scalar(1),
      'text': metrics.Text('a'),
      'image': metrics.Image(np.zeros([1, 2, 2, 3], np.uint8)),
      'spread': metrics.Histogram(np.array([1, 2, 3])),
    },
  )
  writer = metric_writers.MetricWriter(tmp_path)
  writer.write_values(1, 'eval', found)
  writer.close()
  assert '"name": "n", "value": 1.0' in (tmp_path / 'metrics.jsonl').read_text()
