"""The benchmark of decoding measures what it says, at a tiny size."""

import numpy as np
import pytest

from benchmarks import decode
from pax_compat.nested_map import NestedMap


@pytest.mark.parametrize('kind', ['greedy', 'beam', 'translate'])
def test_both_loops_decode_the_same_tokens(kind):
  config = decode.network_config(dims=8, layers=1, vocab_size=11)
  if kind == 'translate':
    config = decode.translator_config(dims=8, layers=1, vocab_size=11)
    kind = 'beam'
  ids = np.random.default_rng(1).integers(3, 11, (2, 4)).astype(np.int32)
  batch = NestedMap(ids=ids, paddings=np.zeros(ids.shape, np.float32))
  params = decode.random_weights(config, batch)
  settings, repeats = decode.decoders(3)[kind]
  ours = decode.decoding(config, settings)(params, batch)
  bare = decode.bare_loop(config, 3, repeats, kind)(params, batch)
  np.testing.assert_array_equal(ours.reshape(bare.shape), bare)


@pytest.mark.exhaustive
def test_every_decoder_is_measured():
  found = decode.measure(
    batch_size=1,
    prefix=2,
    steps=2,
    dims=8,
    layers=1,
    vocab_size=11,
    rounds=1,
  )
  assert set(found) == {'greedy', 'sample', 'beam', 'prefill', 'translate'}
  assert all(min(rates) > 0 for rates in found.values())
