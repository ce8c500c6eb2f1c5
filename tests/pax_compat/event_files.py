"""What TensorBoard reads out of event files."""

import json
import pathlib
from typing import Any

import pytest

from tests.pax_compat import launching

# TensorBoard imports TensorFlow where it finds it, and does without elsewhere.
# It reads in a process of its own, where there is none, because that is fast.
_READ = """
  import json, sys
  sys.modules['tensorflow'] = None
  from tensorboard.backend.event_processing import event_accumulator
  kept = dict.fromkeys(('scalars', 'tensors', 'histograms', 'images'), 0)
  events = event_accumulator.EventAccumulator(sys.argv[1], kept)
  events.Reload()
  tags = events.Tags()
  def spread(h):
    return [h.min, h.max, h.num, h.sum, h.sum_squares, list(h.bucket_limit),
            list(h.bucket)]
  print(json.dumps({
    'scalars': {
      t: [[e.step, e.value] for e in events.Scalars(t)]
      for t in tags['scalars']},
    'texts': {
      t: [[e.step, e.tensor_proto.string_val[0].decode()]
          for e in events.Tensors(t)]
      for t in tags['tensors']},
    'histograms': {
      t: [[e.step, *spread(e.histogram_value)] for e in events.Histograms(t)]
      for t in tags['histograms']},
    'images': {
      t: [[e.step, e.width, e.height, e.encoded_image_string.find(b'IHDR') - 4]
          for e in events.Images(t)]
      for t in tags['images']},
  }))
"""


def read(folder: pathlib.Path) -> dict[str, Any]:
  """Returns what the event files of a folder hold, by kind and tag.

  Each entry of a tag begins with its step. Scalars and texts have their value;
  histograms minimum, maximum, count, sum, sum of squares, the upper limits of
  the buckets and their counts; images their width and height, and the place in
  the file where the head begins, which is 8 in a PNG.
  """
  pytest.importorskip('tensorboard')
  done = launching.run_script(_READ, folder)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)
