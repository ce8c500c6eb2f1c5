"""`SyntheticLmData` of Pax's inputs, read through Lingvo's adaptor."""

import numpy as np

from adaptors import pax_names

pax_names.install()


def test_its_batches():
  from paxml.tasks.lm import input_generator
  from praxis import base_input

  p = input_generator.SyntheticLmData.HParams()
  p.batch_size, p.seq_len = 2, 4
  adaptor = base_input.LingvoInputAdaptor.HParams(input=p, is_training=True)
  batch = adaptor.Instantiate().get_next()
  for name in ('ids', 'labels', 'segment_ids', 'weights'):
    np.testing.assert_array_equal(batch[name], np.ones([2, 4]))
  np.testing.assert_array_equal(batch.paddings, np.zeros([2, 4]))
  np.testing.assert_array_equal(batch.segment_pos, [[0, 1, 2, 3]] * 2)
  assert batch.ids.dtype == np.int32 and batch.weights.dtype == np.float32
