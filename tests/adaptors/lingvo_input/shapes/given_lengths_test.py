"""Inputs without buckets: a warning, and padding to given lengths."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import eval_adaptors
from adaptors.lingvo_input.shapes import given_lengths
from pax_compat import errors
from pax_compat.nested_map import NestedMap
from tests.adaptors.lingvo_input import generators as testing


def _batch(length, other=3):
  return NestedMap(
    frames=np.ones([2, length, 3], np.float32),
    tgt=NestedMap(
      ids=np.ones([2, other], np.int32),
      text=np.full([2, other], b'x'),
      paddings=np.zeros([2, other], np.float32),
      lengths=np.full([2], other),
    ),
    x=np.ones([2]),
  )


def _lines(tmp_path, lengths):
  """Returns Params of an input that pads batches to their longest example."""
  tf = lingvo_runtime.module('tensorflow')
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  generic = lingvo_runtime.module('lingvo.core.generic_input')

  class Lines(generators.BaseSequenceInputGenerator):
    def _DataSourceFromFilePattern(self, file_pattern, **unused):  # noqa: N802
      def read(line):
        letters = tf.strings.bytes_split(line)
        frames = tf.ones_like(letters, tf.float32)
        return [frames, tf.zeros_like(frames)], 1

      [frames, paddings], _ = generic.GenericInput(
        file_pattern=file_pattern,
        processor=read,
        dynamic_padding_dimensions=[0, 0],
        dynamic_padding_constants=[0, 1],
        **self.CommonInputOpArgs(),
      )
      return NestedMap(frames=frames, frame_paddings=paddings)

    def _InputBatch(self):  # noqa: N802
      return self._BuildDataSource()

  lines = ['x' * n for n in lengths]
  return Lines.Params().Set(
    file_pattern=testing.write_lines(tmp_path / 'a.txt', lines),
    file_buffer_size=1,
    file_parallelism=1,
    bucket_batch_limit=[1],
    repeat_count=1,
  )


def test_the_third_shape_is_a_warning(adapt, tmp_path, log):
  adaptor = adapt(_lines(tmp_path, [3, 5, 3, 9, 4]))
  for _ in range(3):
    adaptor.get_next()
  assert 'shapes' not in log()
  adaptor.get_next()
  found = log()
  assert 'the batches so far have 3 shapes, and a step is compiled' in found
  assert 'frame_paddings [1, 3], [1, 5], [1, 9]; frames [1, 3]' in found
  assert "pad_to_lengths={'frame_paddings': (16,), 'frames': (16,)}" in found
  adaptor.get_next()
  assert log().count('the batches so far') == 1


def test_batches_get_the_given_lengths(adapt, tmp_path, log):
  lengths = {'frames': (8, 4), 'frame_paddings': (4, 8)}
  params = _lines(tmp_path, [3, 5, 9, 4])
  adaptor = adapt(params, pad_to_lengths=lengths)
  batches = testing.drain(adaptor)
  assert [b.frames.shape[1] for b in batches] == [4, 8, 9, 4]
  for batch, real in zip(batches, [3, 5, 9, 4], strict=True):
    assert batch.frames.sum() == real
    assert (1 - batch.frame_paddings).sum() == real
  assert "'frames' has the length 9 in a batch, and the longest of" in log()
  held_out = adapt(
    params,
    cls=eval_adaptors.LingvoEvalAdaptor,
    batch_size=2,
    reset_for_eval=True,
    pad_to_lengths=lengths,
  )
  shapes = sorted(b.frames.shape for b in testing.drain(held_out))
  assert shapes == [(2, 4), (2, 8), (2, 9)]


def test_a_map_stands_for_its_fields():
  pad = given_lengths.GivenLengths('own', {'frames': (10,), 'tgt': [4, 6]})
  assert pad.count == 2
  batch = pad(_batch(7, 5))
  assert batch.frames.shape == (2, 10, 3) and batch.frames.sum() == 42
  assert batch.tgt.ids.tolist() == [[1, 1, 1, 1, 1, 0]] * 2
  assert batch.tgt.text[0].tolist() == [b'x'] * 5 + [b'']
  assert batch.tgt.paddings.tolist() == [[0, 0, 0, 0, 0, 1]] * 2
  assert batch.tgt.lengths.tolist() == [5, 5]
  same = _batch(10, 4)
  assert pad(same) is same


@pytest.mark.parametrize(
  ('lengths', 'words'),
  [
    ({'frame': (4,)}, "pad_to_lengths has 'frame', and batches have frames"),
    ({'x': (4,)}, "'x', which is without an axis T; expected fields"),
    ({'': (4,)}, 'which is a map without paddings'),
    ({'frames': ()}, r"of 'frames' is \(\); expected lengths"),
    ({'frames': 2.5}, "of 'frames' is 2.5; expected lengths"),
  ],
)
def test_what_is_no_length_of_a_field(lengths, words):
  with pytest.raises(errors.UserError, match=words):
    given_lengths.GivenLengths('own', lengths)(_batch(3))


def test_planned_shapes_are_no_reason_to_warn():
  watch = given_lengths.ShapeWatch('own', planned=4)
  for length in range(5):
    assert not watch.was_logged
    watch(_batch(length))
  assert watch.was_logged
