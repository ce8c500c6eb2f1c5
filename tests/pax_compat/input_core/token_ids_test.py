"""Tests of checking token ids against the vocabulary size."""

import flax.linen as nn
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.input_core import token_ids
from pax_compat.layers import flax_adapter, models
from pax_compat.layers.embeddings import embedding_tables
from pax_compat.layers.models import multi_task_model
from pax_compat.nested_map import NestedMap
from tests.pax_compat.trainer import tiny


def _batch(*rows):
  ids = np.array(rows, np.int32)
  return NestedMap(src=NestedMap(ids=ids), labels=ids + 100, of=[ids * 0])


def test_ids_beyond_the_largest_table_are_refused():
  token_ids.check_known('Train', _batch([0, 15]), 16)
  message = (
    r'Train: in example 1 of a batch, src.ids has the id 17 at \[1, 0\] of'
    r' \[2, 3\], and 1 more of the kind; expected ids below 16, the rows of'
  )
  with pytest.raises(errors.UserError, match=message):
    token_ids.check_known('Train', _batch([1, 2, 3], [17, 5, 16]), 16)
  with pytest.raises(errors.UserError, match='src.ids has the id 16'):
    token_ids.check_known('Train', _batch([0, 16]), 16)
  with pytest.raises(
    errors.UserError, match='src.ids has the id -1 .*; expected none below 0'
  ):
    token_ids.check_known('Train', _batch([3, -1]), 16)


class Own(base_layer.BaseLayer):
  """A layer of a user, with an unknown table."""


def test_the_vocabulary_size_is_the_rows_of_the_largest_table():
  model = tiny.task().model
  assert token_ids.known_to(model) == tiny.VOCAB
  model.lm_tpl.separate_embedding_tpl = embedding_tables.Embedding.config(
    num_classes=40
  )
  assert token_ids.known_to(model) == 40
  several = multi_task_model.MultiTaskModel.config(
    tasks={'a': model, 'b': tiny.task().model}
  )
  assert token_ids.known_to(several) == 40


@pytest.mark.parametrize(
  'layer',
  [
    Own.config(),
    flax_adapter.FlaxModuleAdapter.config(module_factory_method=nn.Embed),
  ],
)
def test_the_vocabulary_size_is_unknown_with_other_layers(layer):
  model = tiny.task().model
  model.lm_tpl.final_ln_tpl = layer
  assert token_ids.known_to(model) is None


def test_image_classes_are_not_tokens():
  assert token_ids.known_to(models.ClassificationModel.config()) is None
