"""Tests that functions of Pax's names return what Pax's do."""

import numpy as np
import pytest

from adaptors import pax_names
from pax_compat import errors
from tests import source_tree
from tests.pax import function_cases

_RECORDED = np.load(source_tree.ROOT / 'testdata/pax/functions.npz')


@pytest.fixture(scope='module', autouse=True)
def installed():
  pax_names.install()


def test_results_are_those_of_pax():
  found = function_cases.results()
  assert set(found) == set(_RECORDED.files)
  for name, value in found.items():
    np.testing.assert_allclose(
      value, _RECORDED[name], rtol=1e-6, atol=1e-6, err_msg=name
    )
    assert value.dtype == _RECORDED[name].dtype, name


def test_what_is_missing_is_named():
  from praxis import layers, metric_utils

  x = np.zeros([2, 3, 4], np.float32)
  masks = layers.compute_attention_masks_for_fprop
  for call, match in (
    (lambda: masks(x), 'paddings is missing'),
    (lambda: masks(x, fold_padding_with_segment_mask=True), 'segment_mask is'),
    (lambda: masks(x, x[..., 0], cross_inputs=x), 'cross_paddings is'),
    (lambda: layers.project_last_dim(x, x[0]), r'\[..., D\] and \[D, E\]'),
    (lambda: metric_utils.top_k_accuracy(2, x), 'label_ids or label_probs'),
  ):
    with pytest.raises(errors.UserError, match=match):
      call()
