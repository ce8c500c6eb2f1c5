"""The code of docs/quantization.md runs, and has the results it describes."""

import re

import jax
import numpy as np

from tests import source_tree

_PAGE = source_tree.ROOT / 'docs' / 'quantization.md'


def test_the_code_of_the_page_runs():
  blocks = re.findall(r'```python\n(.*?)```', _PAGE.read_text(), re.DOTALL)
  names = {}
  exec('\n'.join(blocks), names)
  assert names['ratio'] > 3
  batch, trained = names['batch'], names['trained']
  float_outputs = names['config'].Instantiate().apply(trained, *batch)
  errors = np.abs(np.asarray(names['outputs']) - np.asarray(float_outputs))
  assert 0 < errors.mean() < 0.3 * np.abs(float_outputs).mean()
  masks = jax.tree.map(np.shape, names['sparse_trained'])['non_trainable']
  assert 'w_sparsity_mask' in str(masks)
  assert 'non_trainable' not in names['pruned']
  pruned = jax.tree.map(np.shape, names['pruned'])
  assert pruned == jax.tree.map(np.shape, trained)
  checked = names['checked'].Instantiate().apply(trained, *batch)
  np.testing.assert_allclose(checked, float_outputs, atol=1e-5)
  updated = jax.tree_util.tree_flatten_with_path(names['updates'])[0]
  trains = [
    path
    for path, _ in updated
    if re.match(names['lora_layers'].TRAINED, '/'.join(key.key for key in path))
  ]
  # Two layers: queries, keys, values, output, and both feed-forward layers.
  assert len(trains) == 2 * 6 * 2
  outputs = names['adapted'].Instantiate().apply(names['updates'], *batch)
  assert np.all(np.isfinite(outputs))
  weights = names['linear'].Instantiate().init(jax.random.key(0), batch[0])
  assert names['linear'].Instantiate().apply(weights, batch[0]).shape == (
    2,
    8,
    8,
  )
