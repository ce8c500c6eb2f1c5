"""Tests of the number of token ids of a Lingvo task."""

import pytest

from adaptors.bridge import vocabulary
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.bridge.model import BridgedModel
from tests.adaptors.bridge import small_task
from tests.adaptors.bridge.families import (
  lenet5,
  mt_transformer,
  sentence_pairs,
)
from tests.adaptors.lingvo_input import generators


def test_the_rows_of_the_largest_table():
  params = mt_transformer.task_params()
  # However large the vocabulary of its input is.
  params.input = generators.lm_params('iota:3')
  assert vocabulary.num_ids(params) == sentence_pairs.VOCAB_SIZE
  params.encoder.token_emb.vocab_size = 50
  config = BridgedModel.config(lingvo_task=LingvoTask(params))
  assert BridgedModel.known_ids(config) == 50


@pytest.mark.parametrize('params', [lenet5.task_params, small_task.params])
def test_other_tasks_are_uncertain(params):
  """Image classes are not tokens, and a user's task may have any table."""
  assert vocabulary.num_ids(params()) is None
