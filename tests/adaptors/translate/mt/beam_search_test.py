"""Pruned beam search against Lingvo's, on networks of random tables."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import base_layer, errors
from pax_compat.decoder_hparams import PrunedBeamSearchHParams
from pax_compat.decoding import algorithms, prefixes
from pax_compat.nested_map import NestedMap

_ROWS, _BEAMS, _STEPS, _VOCAB, _SOURCE = 3, 3, 7, 9, 4
_SOS, _EOS = 1, 2
_LENGTHS = np.asarray([4, 2, 3], np.int32)

# By the names of Lingvo's Params.
_CASES = {
  'defaults': {},
  'long': dict(beam_size=100.0, length_normalization=0.6),
  'ensure_full_beam': dict(ensure_full_beam=True, beam_size=0.2),
  'eos': dict(valid_eos_max_logit_delta=0.8, local_eos_threshold=-1.5),
  'force_eos_in_top_k': dict(
    force_eos_in_top_k=True, valid_eos_max_logit_delta=50.0
  ),
  'last_step': dict(force_eos_in_last_step=True, local_eos_threshold=0.0),
  'independent': dict(terminate_beams_independently=True, beam_size=0.5),
  'coverage': dict(
    coverage_penalty=0.4, target_seq_length_ratio=1.3, length_normalization=0.2
  ),
  'nothing_ends': dict(local_eos_threshold=0.0),
}
_NAMES = {
  'beam_size': 'max_score_gap',
  'length_normalization': 'length_norm_alpha',
}


class _Markov(base_layer.BaseLayer):
  """The next token, and the attention to the source, follow from a token."""

  def setup(self):
    constant = base_layer.WeightInit.Constant(0.0)
    for name, dims in (('logits', _VOCAB), ('attention', _SOURCE)):
      self.create_variable(
        name,
        base_layer.WeightHParams(shape=[_ROWS, _VOCAB, dims], init=constant),
      )

  def init_states(self, rows: int):
    self.update_decode_state('row', jnp.repeat(jnp.arange(_ROWS), rows))
    zeros = jnp.zeros([rows * _ROWS, _SOURCE])
    self.update_decode_state('source_coverage', zeros)

  def extend_step(self, ids):
    row = self.get_decode_state('row')
    coverage = self.get_decode_state('source_coverage')
    attention = self.theta.attention[row, ids[:, 0]]
    self.update_decode_state('source_coverage', coverage + attention)
    return self.theta.logits[row, ids[:, 0]][:, None]


def _tables(seed):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(_ROWS, _VOCAB, _VOCAB), scale=1.5)
  logits[..., _EOS] += 1.0
  attention = rng.uniform(size=(_ROWS, _VOCAB, _SOURCE))
  return {
    'logits': logits.astype(np.float32),
    'attention': attention.astype(np.float32),
  }


@functools.cache
def _network():
  return _Markov.config().Instantiate()


def _ours(settings, tables, rows=None):
  batch = NestedMap() if rows is None else NestedMap(eval_sample_weights=rows)
  layer = _network()
  prefix = prefixes.create(
    jnp.full([_ROWS, 1], _SOS), jnp.ones([_ROWS], jnp.int32)
  )

  @jax.jit
  def run(tables):
    return algorithms.decode(
      layer.bind({base_layer.PARAMS: tables}),
      settings,
      prefix,
      init_states=lambda module, length, repeats: module.init_states(repeats),
      extend_step=lambda module, ids, **_: module.extend_step(ids),
      batch=batch,
      content=(prefix.ids, prefix.ids >= 0),
      source_paddings=jnp.arange(_SOURCE) >= _LENGTHS[:, None],
    )

  return jax.device_get(run(tables))


def _lingvo(params, tables):
  """Returns (ids [B, K, T], lengths [B, K], scores [B, K])."""
  tf = lingvo_runtime.module('tensorflow')
  helper = lingvo_runtime.module('lingvo.core.beam_search_helper')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  # Hypothesis h of row b is h * B + b.
  row = np.tile(np.arange(_ROWS), _BEAMS)

  def results(ids):
    given = tf.stack([tf.constant(row, tf.int32), ids], axis=1)
    return py_utils.NestedMap(
      log_probs=tf.nn.log_softmax(tf.gather_nd(tables['logits'], given)),
      atten_probs=tf.gather_nd(tables['attention'], given),
    )

  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    p = helper.BeamSearchHelper.Params().Set(
      num_hyps_per_beam=_BEAMS,
      target_seq_len=_STEPS,
      target_sos_id=_SOS,
      target_eos_id=_EOS,
      **params,
    )
    out = p.Instantiate().BeamSearchDecode(
      py_utils.NestedMap(),
      py_utils.NestedMap(seq_lengths=tf.constant(_LENGTHS)),
      init_beam_search_state=lambda theta, encoded, hyps: (
        results(tf.fill([_ROWS * hyps], _SOS)),
        py_utils.NestedMap(none=tf.zeros([_ROWS * hyps])),
      ),
      pre_beam_search_step_callback=(
        lambda theta, encoded, ids, states, hyps, step: (
          results(ids[:, 0]),
          states,
        )
      ),
      post_beam_search_step_callback=lambda theta, encoded, ids, states: states,
    )
    ids, lengths, scores = session.run(
      [out.topk_ids, out.topk_lens, out.topk_scores]
    )
  shape = _ROWS, _BEAMS
  return ids.reshape(*shape, -1), lengths.reshape(shape), scores


def _settings(params):
  return PrunedBeamSearchHParams(
    beam_size=_BEAMS,
    seqlen=_STEPS + 1,
    max_decode_steps=_STEPS,
    eos_id=_EOS,
    **{_NAMES.get(name, name): value for name, value in params.items()},
  )


@pytest.mark.parametrize('case', _CASES)
def test_hypotheses_are_lingvos(case):
  found_some = False
  for seed in range(2):
    tables = _tables(seed)
    ids, lengths, scores = _lingvo(_CASES[case], tables)
    found = _ours(_settings(_CASES[case]), tables)
    # Without the begin token, which Lingvo does not return.
    np.testing.assert_array_equal(found.decode_lengths - 1, lengths)
    has_ended = lengths > 0
    found_some |= has_ended.any()
    np.testing.assert_allclose(
      found.scores[has_ended], scores[has_ended], rtol=1e-5
    )
    assert (found.scores[~has_ended] == -1e9).all()
    is_token = np.arange(_STEPS) < lengths[..., None]
    np.testing.assert_array_equal(
      found.output_ids[..., 1:] * is_token, ids[..., :_STEPS] * is_token
    )
  assert found_some != (case == 'nothing_ends')


def test_padding_rows_do_not_prolong_the_search():
  tables = _tables(0)
  tables['logits'][0, :, _EOS] = -5.0  # It does not end soon.
  settings = _settings({})
  others = np.asarray([0, 1, 1], np.float32)
  found = _ours(settings, tables, rows=others)
  tables['logits'][0] = tables['logits'][1]
  alone = _ours(settings, tables)
  for name in ('output_ids', 'scores', 'decode_lengths'):
    np.testing.assert_array_equal(found[name][1:], alone[name][1:])


def test_a_coverage_penalty_needs_the_attention(monkeypatch):
  monkeypatch.setattr(
    _Markov, 'extend_step', lambda self, ids: jnp.zeros([*ids.shape, _VOCAB])
  )
  monkeypatch.setattr(
    _Markov,
    'init_states',
    lambda self, rows: self.update_decode_state(
      'row', jnp.zeros([rows * _ROWS])
    ),
  )
  with pytest.raises(errors.UserError, match='coverage_penalty is 0.2'):
    _ours(_settings({'coverage_penalty': 0.2}), _tables(0))
