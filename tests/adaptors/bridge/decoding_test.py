"""Tests of decoding with bridged tasks: strings, metrics, refusals."""

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import searching
from adaptors.bridge import task as bridge_task
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.bridge.model import BridgedModel
from adaptors.lingvo_parity.batches import nested
from pax_compat import base_layer, errors
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.metrics import clu_metrics
from pax_compat.nested_map import NestedMap
from tests.adaptors.bridge import decoded, small_task
from tests.adaptors.bridge.families import (
  asr_grapheme,
  mt_rnmt,
  mt_transformer,
  mt_xendec,
  starnet_kitti,
)

_SEEDS = 0, 1


def _translation(family):
  """Returns Params of a family's task that decodes to letters."""
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  inputs = lingvo_runtime.module('lingvo.tasks.mt.input_generator')
  params = family.task_params()
  tokenizer = tokenizers.AsciiTokenizer.Params().Set(vocab_size=76)
  params.input = inputs.NmtInput.Params().Set(tokenizer=tokenizer)
  params.decoder.beam_search.num_hyps_per_beam = 2
  params.decoder.target_seq_len = 5
  return params


@pytest.mark.slow
def test_the_bridge_decodes_to_lingvos_strings():
  params = _translation(mt_transformer)
  batches = [mt_transformer.batch(seed) for seed in _SEEDS]
  weights, pairs, metrics, _ = decoded.in_lingvo(params, batches)
  model = BridgedModel.config(lingvo_task=LingvoTask(params)).Instantiate()
  found = None
  for batch, expected in zip(batches, pairs, strict=True):
    scalars, found_pairs, clu = decoded.by_bridged(
      model, weights, nested(batch)
    )
    assert scalars == {}
    decoded.check_same(found_pairs, expected)
    found = clu_metrics.merge(found, clu)
  assert decoded.values(found) == pytest.approx(metrics)


@pytest.mark.slow
@pytest.mark.parametrize(
  'family', [mt_transformer, mt_rnmt, mt_xendec], ids=lambda f: f.__name__[-6:]
)
def test_translated_models_find_lingvos_strings_in_jax(family):
  params = _translation(family)
  batches = [family.batch(seed) for seed in _SEEDS]
  is_rnmt = family is mt_rnmt
  if is_rnmt:  # With random weights its end is unlikely.
    params.decoder.beam_search.force_eos_in_last_step = True
    assert params.decoder.beam_search.coverage_penalty
  weights, pairs, metrics, _ = decoded.in_lingvo(
    params, batches, lambda path: 1.0 if is_rnmt else 0.3
  )
  native = bridge_task.translate(params, 'mt', 'native')
  assert issubclass(native.config.model.cls, searching._PrunedSearch)
  model = native.config.model.Instantiate()
  variables = {
    PARAMS: native.variables.only(is_trainable=True).to_jax(weights),
    # Of XEnDec.
    NON_TRAINABLE: {'global_step': np.int32(3)},
  }
  found = None
  for batch, expected in zip(batches, pairs, strict=True):
    _, found_pairs, clu = decoded.by_model(model, variables, nested(batch))
    decoded.check_same(found_pairs, expected)
    found = clu_metrics.merge(found, clu)
  assert decoded.values(found) == pytest.approx(metrics)
  assert metrics['num_samples_in_batch'] == 8
  best = {
    value.split('hyp0: ')[1].split(' score0')[0]
    for batch in pairs
    for _, value in batch
  }
  assert len(best) > 3


def test_other_searches_are_lingvos_own():
  params = _translation(mt_transformer)
  params.decoder.beam_search.coverage_penalty = 0.2
  native = bridge_task.translate(params, 'mt', 'native')
  assert native.config.model.cls is searching.SearchedSequenceModel
  assert any('in TensorFlow on the host' in note for note in native.notes)


def _speech():
  """Returns Params of a recogniser whose hypotheses are not all empty."""
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  params = asr_grapheme.task_params()
  params.input.tokenizer = tokenizers.AsciiTokenizer.Params().Set(vocab_size=76)
  params.decoder.beam_search.num_hyps_per_beam = 2
  params.decoder.target_seq_len = 5
  return params


def _utterances(seed):
  batch = asr_grapheme.batch(seed)
  rows = len(batch['tgt.ids'])
  return {**batch, 'sample_ids': np.arange(rows, dtype=np.int32)}


@pytest.mark.slow
def test_translated_speech_has_lingvos_word_errors():
  params = _speech()
  batches = [_utterances(seed) for seed in _SEEDS]
  weights, _, metrics, _ = decoded.in_lingvo(params, batches)
  native = bridge_task.translate(params, 'asr', 'native')
  assert native.config.model.cls is searching.PrunedSearchSpeechModel
  model = native.config.model.Instantiate()
  own = decoded.variables(native, weights)
  found = None
  for batch in batches:
    _, _, clu = decoded.by_model(model, own, nested(batch))
    found = clu_metrics.merge(found, clu)
  values = decoded.values(found)
  assert values == pytest.approx({name: metrics[name] for name in values})
  assert metrics['num_samples_in_batch'] == 8  # The mean of batches.
  assert 0 < metrics['wer']


@pytest.mark.slow
def test_detections_have_lingvos_average_precision():
  """Its value is read once, after the last batch, by class and difficulty."""
  params = starnet_kitti.detection_params()
  batches = [starnet_kitti.scenes(seed) for seed in _SEEDS]
  weights, pairs, metrics, _ = decoded.in_lingvo(
    params, batches, lambda path: 0.003 if 'localization' in path else 0.3
  )
  bridged = BridgedModel.config(lingvo_task=LingvoTask(params)).Instantiate()
  native = bridge_task.translate(params, 'car', 'native')
  model = native.config.model.Instantiate()
  own = decoded.variables(native, weights)
  found, also_found = None, None
  for batch, expected in zip(batches, pairs, strict=True):
    texts = {k: v for k, v in batch.items() if v.dtype.kind == 'S'}
    numbers = {k: v for k, v in batch.items() if k not in texts}
    _, written, clu = decoded.by_bridged(
      bridged, weights, nested(numbers), texts
    )
    assert [key for key, _ in written] == [key for key, _ in expected]
    assert all(isinstance(value, bytes) for _, value in written)
    found = clu_metrics.merge(found, clu)
    # Of a translated model Lingvo suppresses boxes likewise.
    _, written, clu = decoded.by_model(model, own, nested(numbers), texts)
    assert [key for key, _ in written] == [key for key, _ in expected]
    also_found = clu_metrics.merge(also_found, clu)
  for values in map(decoded.values, (found, also_found)):
    assert values == pytest.approx(metrics, nan_ok=True, rel=1e-5)
  assert 0.01 < metrics['kitti_AP_v2/Car/AP_moderate'] < 0.9
  assert metrics['num_samples_in_batch'] == 8


@pytest.fixture(scope='module')
def means():
  return BridgedModel.config(
    lingvo_task=LingvoTask(small_task.means())
  ).Instantiate()


def _small(model, batch, **also_decoded):
  theta = small_task.values()
  count = theta.pop('count')
  variables = {
    PARAMS: theta,
    NON_TRAINABLE: {'count': count, 'global_step': np.int32(3)},
  }
  _, given, _ = model.apply(
    variables,
    batch,
    method='decode',
    rngs={base_layer.RANDOM: jax.random.key(0)},
  )
  given = jax.device_get(given) | also_decoded
  return model.process_decode_out(None, given)


def test_strings_of_a_batch_reach_the_task(means):
  batch = small_task.batch() | {'eval_sample_weights': np.array([0.0, 1.0])}
  texts = NestedMap({'info.name': np.array([b'?', b'\xff'], object)})
  _, pairs, _ = _small(means, nested(batch), host_fields=texts)
  assert [key for key, _ in pairs] == [b'4\xff']


def test_metrics_are_of_the_examples_of_all_batches(means):
  """Padding rows of the last batch are not examples."""
  first = nested(small_task.batch())
  last = nested(
    small_task.batch() | {'eval_sample_weights': np.array([1.0, 0.0])}
  )
  _, pairs, one = _small(means, first)
  _, last_pairs, other = _small(means, last)
  expected = (small_task.batch()['x'] * small_task.values()['w']).mean(1)
  np.testing.assert_allclose([value for _, value in pairs], expected)
  assert [key for key, _ in pairs] == [b'4', b'4']
  np.testing.assert_allclose([value for _, value in last_pairs], expected[:1])
  found = decoded.values(clu_metrics.merge(clu_metrics.merge(None, one), other))
  want = (2 * expected[0] + expected[1]) / 3
  assert found['mean'] == pytest.approx(want)
  assert found['step'] == 3


def test_random_numbers_follow_from_the_runs_key(means):
  batch = nested(small_task.batch())
  noises = [decoded.values(_small(means, batch)[2])['noise'] for _ in range(2)]
  assert noises[0] == noises[1] != 0


def test_a_task_that_does_not_decode():
  model = BridgedModel.config(
    lingvo_task=LingvoTask(small_task.params())
  ).Instantiate()
  with pytest.raises(errors.UserError, match='SmallTask has neither Decode'):
    _small(model, nested(small_task.batch()))


def test_the_end_of_a_decoding_goes_to_the_task(tmp_path):
  """`DecodeFinalize`, with all pairs and a path for a file."""
  params, seen = small_task.means(), []

  class Ending(params.cls):
    """Overrides what happens after all batches."""

    def DecodeFinalize(self, decode_finalize_args):
      seen.append(tuple(decode_finalize_args))
      if not decode_finalize_args.decode_out:
        raise ValueError('no examples')

  ending = params.Copy().Set(name='ending')
  ending.cls = Ending
  model = BridgedModel.config(lingvo_task=LingvoTask(ending)).Instantiate()
  finish = model.after_decoding()
  finish(tmp_path / 'all', [('a', 1)])
  assert seen == [(str(tmp_path / 'all'), [('a', 1)])]
  with pytest.raises(errors.UserError, match='DecodeFinalize fails: Value.*no'):
    finish(tmp_path / 'all', [])
  other = BridgedModel.config(lingvo_task=LingvoTask(params)).Instantiate()
  assert other.after_decoding() is None


def test_a_task_that_fails_to_decode():
  tf = lingvo_runtime.module('lingvo.compat')
  params = small_task.means()

  class Failing(params.cls):
    """Uses a field that does not exist."""

    def DecodeWithTheta(self, theta, input_batch):
      return {'means': tf.identity(input_batch.absent)}

  failing = Failing.Params().Set(name='failing', compute=small_task.product)
  failing.input, failing.train = params.input, params.train
  model = BridgedModel.config(lingvo_task=LingvoTask(failing)).Instantiate()
  with pytest.raises(
    errors.UserError, match='failing cannot be decoded.*absent'
  ):
    _small(model, nested(small_task.batch()))
