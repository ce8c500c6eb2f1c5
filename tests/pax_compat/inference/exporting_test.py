"""Tests of exporting: what is an input, and what cannot be exported."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.inference import exporting


class Twice:
  """Stands for the class of the model."""


def _model(predictions):
  """Returns what `export` needs of a `TrainedModel`."""
  ids = jax.ShapeDtypeStruct((4, 3), 'int32')
  return types.SimpleNamespace(
    example={'ids': ids, 'labels': ids},
    mdl_vars={'params': {'w': jnp.full(3, 2.0)}},
    step=1,
    experiment=types.SimpleNamespace(name='twice', task=None),
    program=types.SimpleNamespace(
      model=Twice(), mesh=jax.make_mesh((1,), ('data',))
    ),
    predictions=lambda weights, batch, mesh: predictions(weights, batch),
  )


def test_fields_that_do_not_matter_are_no_inputs(tmp_path):
  model = _model(lambda v, b: {'logits': b.ids * v['params']['w']})
  exporting.export(model, tmp_path)
  exported = exporting.open_folder(tmp_path)
  assert list(exported.inputs) == ['ids']
  for rows in (1, 5):
    found = exported.predict({'ids': np.ones((rows, 3)), 'more': None})
    np.testing.assert_array_equal(found['logits'], np.full((rows, 3), 2.0))
  with pytest.raises(errors.UserError, match=r"shape \[1, 4\]; .*\['b', 3\]"):
    exported.predict({'ids': np.ones((1, 4))})
  (tmp_path / exporting.FUNCTION).write_bytes(b'damaged')
  with pytest.raises(errors.UserError, match='is damaged'):
    exporting.open_folder(tmp_path)
  with pytest.raises(errors.UserError, match='not an exported model'):
    exporting.open_folder(tmp_path / 'none')


def test_models_that_cannot_be_exported(tmp_path):
  def fails(variables, batch):
    raise AssertionError('no such operation')

  def counts_rows(variables, batch):
    return {'logits': batch.ids * (2 if batch.ids.shape[0] > 5 else 1)}

  with pytest.raises(errors.UserError, match='Twice cannot .*no such opera'):
    exporting.export(_model(fails), tmp_path / 'a')
  with pytest.raises(errors.UserError, match=r'expected export\(..., rows=8'):
    exporting.export(_model(counts_rows), tmp_path / 'a')
  assert not (tmp_path / 'a').exists()
  exporting.export(_model(counts_rows), tmp_path / 'a', rows=8)
  [spec] = exporting.open_folder(tmp_path / 'a').inputs.values()
  assert spec['shape'] == [8, 3]
