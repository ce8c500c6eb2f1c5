"""Tests of lines with the arguments of metrics."""

import json
import types

import numpy as np
import pytest

from adaptors.seqio_input.metrics import example_lines
from adaptors.seqio_input.reading import host_rows
from pax_compat import errors
from pax_compat.metrics import example_outputs


def _data(postprocess):
  """Returns the interface of an input, with two examples."""
  task = types.SimpleNamespace(
    name='some_task', output_features={}, postprocess_fn=postprocess
  )
  examples = [
    {'targets_pretokenized': text, 'ids': np.arange(2)} for text in (b'a', b'b')
  ]
  return types.SimpleNamespace(
    name='dev',
    mixture_or_task_inst=task,
    reset_for_eval=True,
    eval_loop_num_batches=None,
    targets=lambda first: enumerate(examples),
  )


def _lines(postprocess, kind='decode', **output):
  output = output or {'decoded_substr': 'x', 'scores': np.float32(0.5)}
  examples = [({host_rows.INDEX: i}, output) for i in (1, 0)]
  return list(example_lines.lines(_data(postprocess), kind, examples))


def test_whatever_a_postprocessor_returns_can_be_written(tmp_path):
  def postprocess(text, example, is_target):
    return {'text': (text, {example['targets_pretokenized']}), 'is': is_target}

  with example_outputs.example_writer(tmp_path / 'x.jsonl') as writer:
    for line in _lines(postprocess):
      writer.write(**line)
  [first, second] = map(
    json.loads, (tmp_path / 'x.jsonl').read_text().splitlines()
  )
  assert first == {
    'number': 0,
    'seqio_postprocessed_targets': {'text': ['a', "{b'a'}"], 'is': True},
    'seqio_preprocessed_targets': {'targets_pretokenized': 'a', 'ids': [0, 1]},
    'decoded_substr': 'x',
    'seqio_postprocessed_predictions': {'text': ['x', "{b'a'}"], 'is': False},
  }
  assert second['number'] == 1


def test_a_postprocessor_that_fails_leaves_the_rest(log):
  def postprocess(text, example, is_target):
    raise ZeroDivisionError(text)

  [line, _] = _lines(postprocess, 'eval')
  assert set(line) == {'number', 'seqio_preprocessed_targets', 'scores'}
  assert "'dev': seqio_postprocessed_targets cannot be written" in log()


def test_missing_outputs_are_named():
  with pytest.raises(
    errors.UserError, match="output 'scores' of .* returns xent"
  ):
    _lines(lambda text, **_: text, 'eval', xent=1.0)
