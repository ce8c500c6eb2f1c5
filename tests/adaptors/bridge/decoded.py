"""Decodes batches by tasks in JAX, as the trainer does, and by Lingvo."""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.bridge.scoped_variables import jax_path
from pax_compat import base_layer
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.input_core import host_fields
from pax_compat.metrics import clu_metrics


def by_bridged(model, theta, batch, texts=None):
  """Decodes a batch as the trainer does; returns its results.

  Args:
    model: a bridged one.
    theta: Lingvo's weights by path.
    batch: without strings.
    texts: the strings, by dotted path.
  """
  params = {}
  for path, value in theta.items():
    *parents, name = jax_path(path).split('/')
    node = params
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = value
  variables = {PARAMS: params, NON_TRAINABLE: {'global_step': np.int32(3)}}
  return by_model(model, variables, batch, texts)


def by_model(model, variables, batch, texts=None):
  """Decodes a batch as the trainer does; returns its results."""
  given = given_by_model(model, variables, batch)
  given = given | {host_fields.NAME: texts} if texts else given
  return model.process_decode_out(None, given)


def given_by_model(model, variables, batch):
  """Returns what the step of decoding gives to the host."""

  @jax.jit
  def step(variables, batch):
    return model.apply(
      variables,
      batch,
      method='decode',
      rngs={base_layer.RANDOM: jax.random.key(0)},
    )

  with base_layer.eval_mode():
    weighted, given, clu = jax.device_get(step(variables, batch))
  assert (weighted, clu) == ({}, {})
  return given


def variables(native, weights):
  """Returns the variables of a translated task."""
  return {
    name: native.variables.only(is_trainable=trained).to_jax(weights)
    for name, trained in ((PARAMS, True), (NON_TRAINABLE, False))
  }


def values(clu):
  return {k: float(v.value) for k, v in clu_metrics.compute(clu).items()}


class InLingvo(NamedTuple):
  """What Lingvo decoded.

  Attributes:
    weights: by theta path.
    pairs: of strings, of each batch.
    metrics: of all batches.
    outputs: of the decoder, for each batch.
  """

  weights: dict[str, np.ndarray]
  pairs: list[Any]
  metrics: dict[str, float]
  outputs: list[Any]


def in_lingvo(params, batches, scale_of=lambda path: 0.3, theta=None):
  """Decodes batches by Lingvo; returns an `InLingvo`.

  Args:
    params: of the task.
    batches: by dotted name.
    scale_of: the standard deviation of a random weight, from its theta path.
    theta: the weights by path; None for random ones.
  """
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  with fed_task.build(
    params, batches[0], do_eval=True, static_shapes=True, optimized=False
  ) as made:
    tensors = py_utils.NestedMap()
    for path, placeholder in made.feeds.items():
      tensors.Set(path, placeholder)
    outputs = made.task.Decode(tensors)
    made.start()
    own = dict(made.task.vars.FlattenItems())
    rng = np.random.default_rng(0)
    for path, variable in own.items():
      value = rng.normal(scale=scale_of(path), size=variable.shape)
      value = value.astype(np.float32)
      if variable.name.endswith('moving_variance/var:0'):
        value = np.abs(value) + 0.5
      variable.load(theta[path] if theta else value, made.session)
    metrics = made.task.CreateDecoderMetrics()
    found = [
      made.session.run(outputs, made.feed_dict(batch)) for batch in batches
    ]
    pairs = [made.task.PostProcessDecodeOut(out, metrics) for out in found]
    weights = made.session.run(own)
  numbers = {
    one.tag: one.simple_value
    for name, metric in metrics.items()
    if metric.value is not None
    for one in metric.Summary(name).value
    if one.HasField('simple_value')
  }
  return InLingvo(weights, pairs, numbers, found)


def check_same(pairs, expected):
  """Checks pairs of strings; scores in them may differ by rounding."""
  assert len(pairs) == len(expected)
  for pair, other in zip(pairs, expected, strict=True):
    ours = [getattr(word, 'expected', word) for word in _words(pair)]
    assert ours == _words(other)


def _words(pair):
  """Returns the words of a pair of strings, its scores as numbers."""
  key, value = pair
  words = value.split(' ')
  return [key] + [
    pytest.approx(float(word), rel=1e-5, abs=1e-5)
    if last.startswith('score')
    else word
    for last, word in zip(['', *words], words, strict=False)
  ]
