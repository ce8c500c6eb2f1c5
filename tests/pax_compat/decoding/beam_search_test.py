"""Beam search against all sequences there are."""

import itertools

import jax
import numpy as np
import pytest

from pax_compat.decoder_hparams import BeamSearchHParams, FlatBeamSearchHParams
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import greedy_test, sample_decode_test
from tests.pax_compat.decoding.table_network import decode

V, STEPS, EOS = 4, 4, 1
TABLE = np.random.default_rng(4).normal(size=(V, V)).astype(np.float32) * 2
LOGPROBS = np.asarray(jax.nn.log_softmax(TABLE, axis=-1))
BATCH = NestedMap(
  ids=np.array([[2, 3], [3, 0]], np.int32),
  paddings=np.array([[0, 0], [0, 1]], np.float32),
)


def _all_sequences(token, alpha, eos):
  """Returns {sequence: score} of all that end."""
  scores = {}
  others = [i for i in range(V) if i != eos]
  for number in range(STEPS) if eos >= 0 else [STEPS]:
    for middle in itertools.product(others, repeat=number):
      sequence = (*middle, eos) if eos >= 0 else middle
      steps = zip((token, *sequence), sequence, strict=False)
      total = sum(LOGPROBS[pair] for pair in steps)
      scores[sequence] = total / ((len(sequence) + 5) / 5) ** alpha
  return scores


@pytest.mark.parametrize('cls', [BeamSearchHParams, FlatBeamSearchHParams])
@pytest.mark.parametrize(
  ('alpha', 'eos'), [(0.0, EOS), (0.8, EOS), (2.0, EOS), (0.8, -1)]
)
def test_a_wide_beam_finds_the_best_of_all_sequences(cls, alpha, eos):
  settings = cls(
    beam_size=27 if eos >= 0 else 64,
    tokens_per_beam=V,
    eos_id=eos,
    max_decode_steps=STEPS,
    length_norm_alpha=alpha,
    fprop_for_prefix=True,
    seqlen=9,
  )
  out = decode(TABLE, settings, BATCH)
  for row, (length, last) in enumerate(((2, 3), (1, 3))):
    scores = _all_sequences(last, alpha, eos)
    best = sorted(scores.values(), reverse=True)[:20]
    np.testing.assert_allclose(out.scores[row, :20], best, rtol=1e-5)
    # Some sequences are of the same pairs of tokens, so their scores are equal.
    found = [
      tuple(ids[length:end].tolist())
      for ids, end in zip(
        out.output_ids[row, :20], out.decode_lengths[row], strict=False
      )
    ]
    assert len(set(found)) == 20
    np.testing.assert_allclose([scores[ids] for ids in found], best, rtol=1e-5)


@pytest.mark.parametrize('steps', [greedy_test.STEPS, (2, greedy_test.STEPS)])
def test_a_network_of_layers_follows_its_hypotheses(steps):
  """The scores are those of passes over whole sequences.

  Args:
    steps: with two stages, the cache grows.
  """
  run = sample_decode_test.decoder(
    BeamSearchHParams,
    'stacked',
    beam_size=3,
    eos_id=3,
    length_norm_alpha=0.0,
    max_decode_steps=steps,
  )
  params = sample_decode_test.params()
  out = jax.tree.map(np.asarray, run(params, greedy_test.prefix_batch(), 0))
  shape = out.output_ids.shape
  found = sample_decode_test.log_probs(out.output_ids.reshape(-1, shape[2]))
  found = found.reshape(shape[0], shape[1], -1)
  for row, prefix in enumerate(greedy_test.LENGTHS):
    for beam in range(3):
      end = out.decode_lengths[row, beam]
      assert out.output_ids[row, beam, end - 1] == 3
      np.testing.assert_allclose(
        out.scores[row, beam],
        found[row, beam, prefix - 1 : end - 1].sum(),
        rtol=1e-4,
      )
