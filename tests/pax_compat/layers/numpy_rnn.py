"""Recurrent layers in numpy, as loops over time, to hold ours against.

Shapes: B batch, T time, I input nodes, O output nodes, H hidden nodes.
"""

import numpy as np


def sigmoid(x):
  """Returns the logistic function of `x`."""
  return 1 / (1 + np.exp(-x))


def _bias(fields, weights, gates):
  bias = weights.get('b', np.zeros(weights['wm'].shape[1]))
  parts = np.split(np.array(bias, np.float64), gates)
  parts[2 if gates == 4 else 1] += fields.get('forget_gate_bias', 0.0)
  return parts


def _normal(x, epsilon):
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)


def lstm_step(fields, weights, m, c, x, padding, stays=None):
  """Returns the next (m, c) of an LSTM.

  Args:
    fields: the cell's fields that are not at their defaults.
    weights: the cell's weights by name.
    m: [B, O].
    c: [B, H].
    x: [B, I].
    padding: [B], 1 where the state stays.
    stays: (of m, of c), where elements stay that were drawn in training; None
      at evaluation.
  """
  weights = {k: np.asarray(v, np.float64) for k, v in weights.items()}
  gates = 3 if fields.get('couple_input_forget_gates') else 4
  parts = np.split(np.concatenate([x, m], 1) @ weights['wm'], gates, axis=1)
  if 'ln_scale' in weights:
    epsilon = fields.get('layer_norm_epsilon', 1e-8)
    scales = np.split(weights['ln_scale'], gates)
    parts = [
      _normal(p, epsilon) * s for p, s in zip(parts, scales, strict=True)
    ]
  parts = [
    p + b for p, b in zip(parts, _bias(fields, weights, gates), strict=True)
  ]
  forget = sigmoid(parts[-2])
  into = 1 - forget if gates == 3 else sigmoid(parts[1])
  new_c = forget * c + into * np.tanh(parts[0])
  cap = fields.get('cell_value_cap', 10.0)
  if cap is not None:
    new_c = np.minimum(np.maximum(new_c, -cap), cap)
  out = np.tanh(new_c) if fields.get('output_nonlinearity', True) else new_c
  new_m = sigmoid(parts[-1]) * out
  if 'w_proj' in weights:
    new_m = new_m @ weights['w_proj']
  zoneout = fields.get('zo_prob', 0.0)
  if stays is not None:
    new_m, new_c = np.where(stays[0], m, new_m), np.where(stays[1], c, new_c)
  else:
    new_m = zoneout * m + (1 - zoneout) * new_m
    new_c = zoneout * c + (1 - zoneout) * new_c
  padded = np.asarray(padding)[:, None] > 0
  return np.where(padded, m, new_m), np.where(padded, c, new_c)


def lstm(
  fields, weights, x, paddings, *, segment_ids=None, reverse=False, start=None
):
  """Returns the outputs [B, T, O] of an LSTM, and the last (m, c).

  Args:
    fields: as for `lstm_step`.
    weights: likewise.
    x: [B, T, I].
    paddings: [B, T].
    segment_ids: [B, T]; the state is zero before the first step of each.
    reverse: whether it goes from the last position to the first.
    start: the first (m, c); None for zeros.
  """
  columns = np.shape(weights['wm'])[1]
  gates = 3 if fields.get('couple_input_forget_gates') else 4
  outputs = np.shape(weights['wm'])[0] - x.shape[2]
  m, c = np.zeros([len(x), outputs]), np.zeros([len(x), columns // gates])
  if start is not None:
    m, c = start
  steps = list(range(x.shape[1]))
  if reverse:
    steps.reverse()
  result, before = np.zeros([*x.shape[:2], outputs]), None
  for t in steps:
    if segment_ids is not None and before is not None:
      anew = (segment_ids[:, t] != segment_ids[:, before])[:, None]
      m, c = np.where(anew, 0, m), np.where(anew, 0, c)
    m, c = lstm_step(fields, weights, m, c, x[:, t], paddings[:, t])
    result[:, t], before = m, t
  return result, (m, c)


def derivative(function, arrays, directions, size=1e-5):
  """Returns how fast a number changes as arrays move, by differences.

  Args:
    function: (arrays) -> a number.
    arrays: a dict of arrays.
    directions: where they move, arrays by the same names.
    size: of the steps to either side.
  """

  def at(step):
    return function({k: v + step * directions[k] for k, v in arrays.items()})

  return (at(size) - at(-size)) / (2 * size)
