"""Tests of batch specs."""

import jax
import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap
from tests.pax_compat.input_core.numbered import Numbered


def test_specs_are_read_from_a_batch(caplog):
  config = Numbered.config(name='d', batch_padding_size=2, weight=1.0)
  assert config.Instantiate().batch_specs() is None
  provider = base_input.DatasetInputSpecsProvider.config(input_p=config)
  with caplog.at_level('INFO', logger='absl'):
    specs = provider.Instantiate().get_input_specs()
  assert specs == NestedMap(
    x=jax.ShapeDtypeStruct((5, 2), np.int64),
    eval_sample_weights=jax.ShapeDtypeStruct((5,), np.float32),
  )
  assert "Numbered 'd' has no batch_specs(): reading one batch" in caplog.text


def test_a_provider_closes_its_input():
  closed = []

  class Ending(Numbered):
    """Has no batch."""

    def get_next(self):
      raise StopIteration

    def close(self):
      closed.append(self)

  provider = base_input.DatasetInputSpecsProvider.config(
    input_p=Ending.config(name='d')
  )
  with pytest.raises(errors.UserError, match="dataset 'd' has no batch"):
    provider.Instantiate().get_input_specs()
  assert len(closed) == 1


def test_host_fields_have_no_specs():
  class Texts(Numbered):
    """Has the host field `inner.source` too."""

    def is_host_field(self, path, leaf):
      return path == 'inner.source' or super().is_host_field(path, leaf)

  batch = NestedMap(
    inner=NestedMap(source=np.ones([2]), x=np.ones([2, 3])),
    text=np.array(['a', 'b']),
  )
  assert Texts.config().Instantiate().specs_of(batch, rows=7) == NestedMap(
    inner=NestedMap(x=jax.ShapeDtypeStruct((7, 3), np.float64))
  )
