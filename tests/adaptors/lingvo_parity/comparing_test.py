"""Tests of comparisons, and of pairs of layers."""

import numpy as np
import pytest

from adaptors.lingvo_parity import (
  comparing,
  pairing,
  reporting,
  results,
)
from adaptors.translate.variables import Stack, Variable, VariableMap

B, T, D = 2, 3, 4
_NAMES = ('first', 'second', 'third')
VARIABLES = VariableMap(Variable((f'lm.{n}.w',), f'net/{n}/w') for n in _NAMES)


def _value(seed: int) -> np.ndarray:
  return np.random.default_rng(seed).normal(size=[B, T, D]).astype(np.float32)


def _lingvo(values, *, loss=1.0, **more) -> results.Run:
  """Returns a run of layers, each of which is computed from all before."""
  layers = [
    results.LayerOutput(
      f'lm.{name}', '', value, tuple(range(i + 1, len(values))), True
    )
    for i, (name, value) in enumerate(zip(_NAMES, values, strict=False))
  ]
  return results.Run(weights={}, layers=layers, loss=loss, **more)


def _ours(values, *, loss=1.0, **more) -> results.Run:
  layers = [
    results.LayerOutput(f'net/{name}', '', value)
    for name, value in zip(_NAMES, values, strict=False)
  ]
  fields = dict(gradients={}, metrics={}) | more
  return results.Run(layers=layers, loss=loss, **fields)


def _compare(lingvo, ours, tolerance=1e-5):
  return comparing.compare(
    lingvo, ours, VARIABLES, mask=None, tolerance=tolerance
  )


def _verdicts(compared) -> list[str]:
  return [row.verdict for row in compared.layers]


VALUES = [_value(i) for i in range(3)]


def test_what_is_equal_agrees():
  compared = _compare(_lingvo(VALUES), _ours(VALUES))
  assert _verdicts(compared) == [comparing.AGREES] * 3
  assert compared.first is None and not compared.departing
  assert reporting.verdict(compared) == 'Lingvo and its translation agree'


def test_the_first_layer_that_departs():
  others = [VALUES[0], VALUES[1] + 0.1, VALUES[2] + 0.1]
  compared = _compare(_lingvo(VALUES), _ours(others, loss=1.1))
  assert compared.first.lingvo == 'lm.second'
  assert [row.lingvo for row in compared.departing] == [
    'lm.second',
    'lm.third',
    'loss 1',
  ]
  last = reporting.report(compared).splitlines()[-1]
  assert 'The first layer that departs: lm.second, here net/second' in last


def test_operations_grouped_into_layers_differently():
  """The second layer differs, but values computed from it agree."""
  others = [VALUES[0], VALUES[1] + 0.1, VALUES[2]]
  compared = _compare(_lingvo(VALUES), _ours(others))
  assert _verdicts(compared) == [
    comparing.AGREES,
    comparing.REGROUPED,
    comparing.AGREES,
  ]
  assert not compared.departing


def test_nan_departs():
  others = [VALUES[0], VALUES[1], VALUES[2] * np.nan]
  compared = _compare(_lingvo(VALUES), _ours(others, loss=np.nan))
  assert compared.first.lingvo == 'lm.third'
  assert compared.loss[0].verdict == comparing.DEPARTS


def test_gradients_may_differ_more_than_outputs():
  gradients = {'lm.first.w': VALUES[0], 'lm.second.w': VALUES[1]}
  others = {
    'lm.first.w': VALUES[0] * (1 + 5e-5),
    'lm.second.w': VALUES[1] * (1 + 5e-4),
  }
  compared = _compare(
    _lingvo(VALUES, gradients=gradients), _ours(VALUES, gradients=others)
  )
  assert [row.verdict for row in compared.gradients] == [
    comparing.AGREES,
    comparing.DEPARTS,
  ]
  assert 'no layer does. The first: lm.second.w' in reporting.verdict(compared)


@pytest.mark.parametrize(
  'losses,rates,departing',
  [
    ([2.0, 1.0], [0.1, 0.2], []),
    ([2.0, 1.00005], [0.1, 0.2], []),
    ([2.0002, 1.0], [0.1, 0.2], ['1: loss 2']),
    ([2.0, 1.001], [0.1, 0.2], ['2: loss 1']),
    ([2.0, 1.0], [0.1, 0.21], ['2: learning rate 0.2']),
  ],
)
def test_steps(losses, rates, departing):
  lingvos = [results.Step(2.0, 0.1), results.Step(1.0, 0.2)]
  ours = [
    results.Step(loss, rate) for loss, rate in zip(losses, rates, strict=True)
  ]
  compared = _compare(_lingvo(VALUES, steps=lingvos), _ours(VALUES, steps=ours))
  assert [row.lingvo for row in compared.departing] == departing


def test_random_values_are_not_compared():
  """The second layer is random in Lingvo; the third departs."""
  others = [VALUES[0], VALUES[1] + 0.1, VALUES[2] + 0.1]
  lingvo = _lingvo(VALUES, is_random=True, random_layers=frozenset({1}))
  compared = _compare(lingvo, _ours(others, loss=2.0))
  assert _verdicts(compared) == [
    comparing.AGREES,
    comparing.RANDOM,
    comparing.DEPARTS,
  ]
  assert compared.loss[0].verdict == comparing.RANDOM
  assert compared.first.lingvo == 'lm.third'
  agreeing = _compare(lingvo, _ours([*others[:2], VALUES[2]], loss=2.0))
  assert not agreeing.departing and len(agreeing.random) == 1
  assert '1 value(s) are random' in reporting.verdict(agreeing)


def _trained(run, *, factor):
  """Gives a run a gradient, two steps and last weights."""
  run.gradients = {'lm.first.w': VALUES[0]}
  run.steps = [results.Step(2.0, 0.1), results.Step(1.0 + factor, 0.1)]
  run.last = {'lm.first.w': VALUES[0] * (1 + 10 * factor)}
  return run


@pytest.mark.parametrize(
  'of_rounding,verdict', [(0.01, comparing.ROUNDING), (0, comparing.DEPARTS)]
)
def test_differences_that_rounding_errors_explain(of_rounding, verdict):
  lingvo = _trained(_lingvo(VALUES), factor=0)
  ours = _trained(_ours(VALUES), factor=0.02)
  assert _compare(lingvo, ours).may_be_rounding
  compared = comparing.compare(
    *(lingvo, ours, VARIABLES),
    mask=None,
    tolerance=1e-5,
    rounded=_trained(_ours(VALUES), factor=0.02 - of_rounding),
  )
  assert [row.verdict for row in compared.steps] == [comparing.AGREES, verdict]
  text = reporting.report(compared)
  assert ('amplifies' in text) == (verdict == comparing.ROUNDING)
  if verdict == comparing.ROUNDING:
    assert text.endswith('agree, 1 value(s) up to rounding errors')


@pytest.mark.parametrize(('others', 'explained'), [(0.0, True), (1e-2, False)])
def test_a_unit_at_its_kink_is_told(others, explained):
  lingvo = _trained(_lingvo(VALUES), factor=0)
  ours = _trained(_ours(VALUES), factor=0)
  rounded = _trained(_ours(VALUES), factor=0)
  ours.last = {'lm.first.w': VALUES[0] * (1 + others)}
  ours.last['lm.first.w'][0, 0, 0] += 0.1
  rounded.last = {'lm.first.w': ours.last['lm.first.w'] * (1 + 1e-5)}
  compared = comparing.compare(
    *(lingvo, ours, VARIABLES), mask=None, tolerance=1e-5, rounded=rounded
  )
  text = reporting.report(compared)
  explanation = f'rounding errors explain all but 1 of its {B * T * D} elements'
  assert (explanation in text) == explained
  assert ('rounding errors do not explain it' in text) != explained


def _pairs(lingvos, ours, variables=VARIABLES, mask=None):
  return pairing.pairs(
    [results.LayerOutput(p, n, v, (), True) for p, n, v in lingvos],
    [results.LayerOutput(p, n, v) for p, n, v in ours],
    variables,
    mask,
  )


def test_axes_in_another_order_and_in_other_groups():
  """Lingvo's has time first, and one axis for batch and time."""
  swapped = np.swapaxes(VALUES[1], 0, 1)
  found = _pairs(
    [('lm.first', '', VALUES[0].reshape(B * T, D)), ('lm.second', '', swapped)],
    [('net/first', '', VALUES[0]), ('net/second', '', VALUES[1])],
  )
  assert [pair.difference for pair in found] == [0, 0]


def test_padding_is_ignored():
  mask = np.array([[1, 1, 1], [1, 0, 0]], np.float32)
  ours = VALUES[0] + 7 * (1 - mask[:, :, None])
  for lingvos in (VALUES[0], np.swapaxes(VALUES[0], 0, 1)):
    [pair] = _pairs(
      [('lm.first', '', lingvos)], [('net/first', '', ours)], mask=mask
    )
    assert pair.difference == 0
  [pair] = _pairs([('lm.first', '', VALUES[0])], [('net/first', '', ours)])
  assert pair.difference > 1


def test_of_layers_with_the_same_weights_the_one_that_is_alike():
  found = _pairs(
    [('lm', 'logits', VALUES[0]), ('lm.first', '', VALUES[1])],
    [
      ('net', 'logits', VALUES[0]),
      ('net', 'xent', VALUES[1]),
      ('', 'logits', VALUES[2]),
      ('net/first', '', VALUES[1]),
    ],
  )
  assert [(p.lingvo, p.ours, p.difference) for p in found] == [
    ('lm (logits)', 'net (logits)', 0),
    ('lm.first', 'net/first', 0),
  ]


def test_layers_without_a_counterpart():
  found = _pairs(
    [('lm.fir', '', VALUES[0]), ('lm.second', '', VALUES[0][:1])],
    [('net/first', '', VALUES[0]), ('net/second', '', VALUES[0])],
  )
  assert found == []


def test_stacked_layers():
  """Each of Lingvo's is one of ours in a stack."""
  variables = VariableMap([Variable(('l[0].w', 'l[1].w'), 'rep/w', Stack())])
  found = _pairs(
    [('l[0]', '', VALUES[0]), ('l[1]', '', VALUES[1])],
    [('rep', '', np.stack(VALUES[:2]))],
    variables,
  )
  assert [(p.ours, p.difference) for p in found] == [
    ('rep[0]', 0),
    ('rep[1]', 0),
  ]
