"""Tests that Pax's modules offer functions of arrays, with clear errors.

What they return is held against Pax in `layers_test`.
"""

import numpy as np
import pytest

from adaptors import pax_names
from pax_compat import errors


@pytest.fixture(scope='module', autouse=True)
def installed():
  pax_names.install()


def test_each_is_where_pax_has_it():
  from praxis import layers, metric_utils
  from praxis.layers import (
    linears,
    normalizations,
    quantizer_objectives,
    stats,
    transformers,
  )
  from praxis.layers.video import enc_dec_3dcnn

  for module, name in (
    (layers, 'causal_mask'),
    (layers, 'get_bigram_ids'),
    (layers, 'quantize_vector'),
    (layers, 'compute_attention_masks_for_extend_step'),
    (enc_dec_3dcnn, 'scan_function'),
    (linears, 'project_last_dim'),
    (metric_utils, 'top_k_accuracy'),
    (normalizations, 'compute_moments'),
    (quantizer_objectives, 'batch_codebook_coverage'),
    (stats, 'compute_stats'),
    (transformers, 'compute_attention_masks_for_fprop'),
  ):
    assert callable(getattr(module, name)), name


def test_what_is_missing_is_named():
  from praxis import layers, metric_utils
  from praxis.layers.video.enc_dec_3dcnn import scan_function

  x = np.zeros([2, 3, 4], np.float32)
  masks = layers.compute_attention_masks_for_fprop
  for call, match in (
    (lambda: masks(x), 'paddings is missing'),
    (lambda: masks(x, fold_padding_with_segment_mask=True), 'segment_mask is'),
    (lambda: masks(x, x[..., 0], cross_inputs=x), 'cross_paddings is'),
    (lambda: layers.project_last_dim(x, x[0]), r'\[..., D\] and \[D, E\]'),
    (lambda: metric_utils.top_k_accuracy(2, x), 'label_ids or label_probs'),
    (lambda: scan_function(abs, 3)(x), 'in_axis is 3'),
    (lambda: scan_function(lambda x: x[0, 0], 1)(x), 'in_axis is 1'),
  ):
    with pytest.raises(errors.UserError, match=match):
      call()
