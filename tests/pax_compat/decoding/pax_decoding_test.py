"""Sampling and beam search against what real praxis decodes.

The network is a table of logits; `testdata/pax_decoding` has the results of
praxis's `sample_decode`, `beam_search` and `flat_beam_search`.
"""

import functools
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.layers import models
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import table_network

DATA = pathlib.Path('testdata/pax_decoding')


@functools.cache
def _recorded(name):
  with np.load(DATA / f'{name}.npz') as arrays:
    return dict(arrays)


def _batch(**fields):
  beams = _recorded('beams')
  return NestedMap(ids=beams['ids'], paddings=beams['paddings'], **fields)


def _found(settings, batch):
  return table_network.decode(_recorded('beams')['table'], settings, batch)


def _tuples(settings):
  return {
    k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
  }


def _check(out, want):
  """Compares results, log-probabilities only up to the end of a sequence."""
  is_token = np.arange(out.output_ids.shape[-1]) < out.decode_lengths[..., None]
  for name, value in want.items():
    found = out[name]
    if name == 'prefix_ids':  # Those of praxis have room for what follows.
      value = value[..., : found.shape[-1]]
    if name == 'logprobs':
      found, value = np.where(is_token, found, 1), np.where(is_token, value, 1)
      # Praxis writes 0 or 1 where no token was predicted.
      found, value = np.minimum(found, 0), np.minimum(value, 0)
    np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize('kind', ['Beam', 'FlatBeam'])
@pytest.mark.parametrize('case', range(5))
def test_beam_search_is_that_of_praxis(case, kind):
  recorded = _recorded('beams')
  settings = _tuples(json.loads(str(recorded['cases']))[case])
  if kind == 'FlatBeam' and isinstance(settings['eos_id'], tuple):
    pytest.skip('a flat beam search has one end token')
  cls = getattr(models, f'{kind}SearchHParams')
  out = _found(cls(fprop_for_prefix=True, seqlen=20, **settings), _batch())
  names = ('output_ids', 'scores', 'decode_lengths', 'logprobs', 'done')
  _check(out, {name: recorded[f'{case}/{name}'] for name in names})


def test_flat_beam_search_is_that_of_praxis():
  recorded = _recorded('beams')
  settings = models.FlatBeamSearchHParams(
    beam_size=3, eos_id=2, max_decode_steps=5, seqlen=6, fprop_for_prefix=True
  )
  batch = NestedMap(ids=np.array([[4]]), paddings=np.zeros([1, 1]))
  out = _found(settings, batch)
  for name in ('output_ids', 'scores', 'decode_lengths'):
    np.testing.assert_allclose(
      out[name], recorded[f'flat/{name}'], rtol=1e-5, err_msg=name
    )


# Not 4, `optimize_eos`: praxis adds 1 for each position of the prefix to the
# score of an end, except to that of the first, and its lengths lack the prefix.
@pytest.mark.parametrize('case', [0, 1, 2, 3, 5, 6, 7])
def test_samples_are_those_of_praxis(case):
  recorded = _recorded('samples')
  settings, fields = json.loads(str(recorded['cases']))[case]
  is_vanilla = settings.get('vanilla_sample_decode', False)
  if is_vanilla:
    settings['temperature'] = 0.0
  else:
    fields['gumbel_prng_key'] = recorded['keys']
  fields = {name: jnp.asarray(x) for name, x in fields.items()}
  out = _found(
    models.SampleDecoderHParams(**_tuples(settings)), _batch(**fields)
  )
  names = [n.split('/')[1] for n in recorded if n.startswith(f'{case}/')]
  assert 'logprobs' in names
  _check(out, {name: recorded[f'{case}/{name}'] for name in names})
