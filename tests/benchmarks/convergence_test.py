"""Tests of the check that curves stay within their bands."""

import json

import pytest

from benchmarks import convergence
from tests.pax_compat import launching


def test_a_band_and_what_leaves_it():
  lines = [
    json.dumps(dict(step=step, split=split, name=name, value=step / 10))
    for step in (10, 20)
    for split in ('train', 'eval_dev')
    for name in ('loss', 'accuracy')
  ]
  first = convergence.curve(lines, 'eval_dev', 'loss')
  assert first == {10: 1.0, 20: 2.0}
  bounds = convergence.band([first, {10: 1.2, 20: 2.0, 30: 0.0}])
  assert bounds == {10: [0.8, 1.4], 20: [1.96, 2.04]}
  assert convergence.band([first], most=2.0)[20] == [1.96, 2.0]
  assert not convergence.outside(first, bounds)
  assert convergence.outside({10: 1.5}, bounds) == [
    'step 10: 1.5000 is not within 0.8 to 1.4',
    'step 20: no value',
  ]


def test_the_page_has_what_is_recorded():
  assert convergence.PAGE.read_text('utf-8') == convergence.page()
  assert list(convergence.FOLDER.glob('*.json'))


def test_unknown_names_are_refused(capsys):
  with pytest.raises(SystemExit):
    convergence.main(['text_byte'])
  assert 'expected first_run, text_bytes' in capsys.readouterr().err


@pytest.mark.slow
def test_digits_are_learned_within_their_band(capsys, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', launching.flags_of_long_runs())
  train, curves = convergence.train, []

  def kept(example):
    curves.append(train(example))
    return curves[-1]

  monkeypatch.setattr(convergence, 'train', kept)
  assert convergence.main(['drawn_digits']) == 0
  assert 'drawn_digits is within its band' in capsys.readouterr().out
  [curve] = curves
  assert curve[200] >= 0.98
