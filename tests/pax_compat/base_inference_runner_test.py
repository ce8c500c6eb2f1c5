"""The outputs of inference runners as serialized examples."""

import jax
import numpy as np
import pytest

from pax_compat import base_inference_runner, errors
from pax_compat.nested_map import NestedMap
from pax_compat.runs import example_records


class _Runner(base_inference_runner.BaseInferenceRunner):
  def infer(self, train_state, prng_key, var_weight_hparams, input_batch):
    return input_batch

  @property
  def output_schema(self):
    return NestedMap(
      scores=jax.ShapeDtypeStruct([2], np.float32),
      nested=NestedMap(text=jax.ShapeDtypeStruct([], np.object_)),
    )


def test_each_example_is_serialized():
  scores = np.float32([[1, 2], [3, 4], [5, 6]])
  texts = np.array([b'a', b'', b'c'], object)
  found = _Runner(model=None).serialize_outputs(
    NestedMap(scores=scores, nested=NestedMap(text=texts))
  )
  assert found == [
    example_records.serialized({'nested/text': text, 'scores': row})
    for text, row in zip(texts, scores, strict=True)
  ]
  assert len(set(found)) == 3


def test_outputs_of_another_structure():
  with pytest.raises(errors.UserError, match='nested/text, scores'):
    _Runner(model=None).serialize_outputs(NestedMap(scores=np.ones([3, 2])))
