"""Calls of functions of praxis, with the same arguments there and here."""

import importlib
from typing import Any

import jax.numpy as jnp
import numpy as np


def results() -> dict[str, np.ndarray]:
  """Returns the results of `praxis`, whichever is importable by this name."""
  return {
    f'{name}/{i}': np.asarray(value)
    for name, values in (_masks() | _numbers()).items()
    for i, value in enumerate(values)
    if value is not None
  }


def _arrays() -> dict[str, Any]:
  rng = np.random.default_rng(0)
  floats = {
    'x': (2, 4, 3),
    'source': (2, 5, 3),
    'w': (3, 2),
    'logits': (2, 4, 6),
  }
  arrays = {k: rng.normal(size=s).astype('f') for k, s in floats.items()}
  arrays |= {
    'codes': rng.integers(0, 4, (2, 4, 2)),
    'labels': rng.integers(0, 6, (2, 4)),
    'paddings': np.float32([[0, 0, 0, 1], [0, 0, 1, 1]]),
    'source_paddings': np.float32([[0, 0, 0, 1, 1], [0] * 5]),
    'segments': np.int32([[1, 1, 2, 2], [1, 2, 2, 0]]),
    'source_segments': np.int32([[1, 1, 2, 2, 2], [1, 1, 2, 2, 0]]),
  }
  return {name: jnp.asarray(x) for name, x in arrays.items()}


def _masks() -> dict[str, Any]:
  layers, a = importlib.import_module('praxis.layers'), _arrays()
  own = layers.segment_mask(a['segments'])
  cross = layers.segment_mask(a['segments'], a['source_segments'])
  of_prefix = layers.compute_attention_masks_for_fprop
  return {
    'padded': of_prefix(a['x'], a['paddings']),
    'causal': of_prefix(a['x'], a['paddings'], causal_attention=True),
    'packed': of_prefix(a['x'], a['paddings'], segment_mask=own),
    'folded': of_prefix(
      a['x'],
      causal_attention=True,
      segment_mask=own,
      fold_padding_with_segment_mask=True,
    ),
    'cross': of_prefix(
      a['x'],
      a['paddings'],
      cross_inputs=a['source'],
      cross_paddings=a['source_paddings'],
      cross_segment_mask=cross,
    ),
    'step': layers.compute_attention_masks_for_extend_step(
      jnp.asarray(2),
      4,
      segment_mask=own[:, :, 2],
      cross_paddings=a['source_paddings'],
      cross_segment_mask=cross[:, :, 2],
    ),
  }


def _numbers() -> dict[str, Any]:
  layers, a = importlib.import_module('praxis.layers'), _arrays()
  codes = importlib.import_module('praxis.layers.quantizer_objectives')
  stats = importlib.import_module('praxis.layers.stats')
  metrics = importlib.import_module('praxis.metric_utils')
  padding = a['paddings'][..., None]
  of_stats = stats.compute_stats(a['x'], padding)
  return {
    'projected': [layers.project_last_dim(a['x'], a['w'])],
    'moments': layers.compute_moments(a['x'], padding, [0, 1], keepdims=True),
    'cumulative': layers.compute_moments(
      a['x'], padding, [2], cumulative_axis=1, keepdims=True
    ),
    'stats': [of_stats[name] for name in ('mean_v', 'std_v', 'max_v')],
    'codes': codes.batch_pplx_entropy_from_codes(
      a['codes'], 4, paddings=a['paddings']
    ),
    'accuracy': [
      metrics.top_k_accuracy(
        3, a['logits'], a['labels'], weights=1 - a['paddings']
      ),
      metrics.top_k_accuracy(2, a['logits'], label_probs=a['logits']),
    ],
  }
