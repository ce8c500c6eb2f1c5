"""Lingvo's stock language models at full size, translated, as text.

The files in `testdata/golden/lingvo` contain each translated config, and path,
shape, dtype, initializer and sharding of each weight; files of similar
experiments contain the differences. See `tests.golden_test`.
"""

import functools

import pytest

from adaptors.lingvo_parity import synthetic
from adaptors.lingvo_registry import lookup
from pax_compat import experiment_sources
from pax_compat.nested_map import NestedMap
from tests import golden

_FOLDER = golden.FOLDER / 'lingvo'
_OPTIONS = experiment_sources.SourceOptions()
_WORDS = 'lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmax'
_DENSE = 'lm.synthetic_packed_input.Dense'
_BERT = 'lm.wiki_bert.MLPerf'

# By the name of each experiment, which one it is described by; None for none.
EXPERIMENTS = {
  'lm.one_billion_wds.OneBWdsGPipeTransformerWPM': None,
  _WORDS: None,
  f'{_WORDS}Tiny': _WORDS,
  f'{_DENSE}LM13B32x32': None,
  f'{_DENSE}Lm128B16x16': None,
  f'{_DENSE}Lm128B32x32': f'{_DENSE}Lm128B16x16',
  f'{_DENSE}Lm128B8x8': f'{_DENSE}Lm128B16x16',
  f'{_DENSE}Lm12kWide162BAdam16x16': f'{_DENSE}Lm128B16x16',
  f'{_DENSE}Lm12kWide162BAdam32x32': f'{_DENSE}Lm12kWide162BAdam16x16',
  f'{_DENSE}Lm12kWide162BAdamBS25616x16': f'{_DENSE}Lm12kWide162BAdam16x16',
  f'{_DENSE}Lm12kWide41BAdam16x16': f'{_DENSE}Lm12kWide162BAdam16x16',
  f'{_DENSE}Lm12kWide41BAdam8x8': f'{_DENSE}Lm12kWide162BAdam16x16',
  f'{_DENSE}Lm175B1K': f'{_DENSE}LM13B32x32',
  f'{_DENSE}Lm175B32x32': f'{_DENSE}LM13B32x32',
  f'{_DENSE}Lm175B32x32DP': f'{_DENSE}LM13B32x32',
  f'{_DENSE}Lm175B8x8Decode2D': f'{_DENSE}LM13B32x32',
  f'{_DENSE}Lm1T16x16': f'{_DENSE}Lm128B16x16',
  f'{_DENSE}Lm8B2x2': f'{_DENSE}Lm128B16x16',
  f'{_DENSE}Lm8B2x2Decode': f'{_DENSE}Lm128B16x16',
  f'{_BERT}BertDense13B32x32': None,
  f'{_BERT}BertDense175B': f'{_BERT}BertDense13B32x32',
  f'{_BERT}BertDense1T': f'{_BERT}BertDense13B32x32',
  f'{_BERT}BertDense1TWider': f'{_BERT}BertDense13B32x32',
  f'{_BERT}BertDense500B': f'{_BERT}BertDense13B32x32',
  f'{_BERT}BertDense500B2K': f'{_BERT}BertDense13B32x32',
  f'{_BERT}TrainBertDense2B': f'{_BERT}BertDense13B32x32',
}

# One of each family.
_QUICK = (
  'lm.one_billion_wds.OneBWdsGPipeTransformerWPM',
  f'{_WORDS}Tiny',
  f'{_DENSE}LM13B32x32',
  f'{_BERT}BertDense13B32x32',
)


@functools.cache
def _whole(name: str) -> str:
  params = lookup.find_model_params(name, _OPTIONS).Task()
  batch = NestedMap()
  # Weights do not depend on the batch size.
  for path, array in synthetic.batch(params, 2, 16).items():
    *parents, last = path.split('.')
    node = batch
    for parent in parents:
      node = node.setdefault(parent, NestedMap())
    node[last] = array
  return golden.text(experiment_sources.find(name, _OPTIONS).task(), batch)


def golden_text(name: str) -> str:
  """Returns the text of an experiment, as its file has it."""
  base = EXPERIMENTS[name]
  if base is None:
    return _whole(name)
  return golden.changes(_whole(name), _whole(base), base)


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[] if name in _QUICK else pytest.mark.slow)
    for name in EXPERIMENTS
  ],
)
def test_a_stock_experiment_is_what_its_file_says(name):
  golden.check(_FOLDER / f'{name}.txt', golden_text(name))


def test_there_is_a_file_for_each_experiment_and_no_other():
  assert {p.stem for p in _FOLDER.glob('*.txt')} == set(EXPERIMENTS)


def write():
  """Writes all files anew."""
  golden.write(_FOLDER, {name: golden_text(name) for name in EXPERIMENTS})
