"""Tests of the picture of a run's loss."""

import math
from xml.etree import ElementTree

import pytest

from pax_compat import errors
from pax_compat.tools.run_report import picture, records
from tests.pax_compat.tools.run_report import folders

_SVG = '{http://www.w3.org/2000/svg}'


def _runs(tmp_path, **losses):
  for name, values in losses.items():
    (tmp_path / name).mkdir()
    text = folders.lines({('train', 'loss'): dict(enumerate(values, 1))})
    (tmp_path / name / 'metrics.jsonl').write_text(text)
  return records.read([str(tmp_path / name) for name in losses])


def _texts(svg: str) -> list[str]:
  return [e.text for e in ElementTree.fromstring(svg).iter(f'{_SVG}text')]


def test_curves_of_runs_and_splits(tmp_path):
  folders.make(tmp_path / 'a&b')
  folders.make(tmp_path / 'c', steps=5)
  runs = records.read([str(tmp_path / 'a&b'), str(tmp_path / 'c')])
  svg = picture.svg(runs)
  texts = _texts(svg)
  assert {'a&b train', 'a&b eval_dev', 'c train'} <= set(texts)
  assert 'loss of lm.Tiny' in texts
  assert svg == picture.svg(runs)  # Deterministic.
  assert len(svg) < 6000


def test_points_are_within_the_axes(tmp_path):
  [run] = _runs(tmp_path, a=[8.0, math.nan, 4.0, 2.0])
  tree = ElementTree.fromstring(picture.svg([run]))
  [curve] = [
    e.get('d') for e in tree.iter(f'{_SVG}path') if e.get('fill') == 'none'
  ]
  # A gap where the loss is not a number: two pieces.
  pieces = [piece.split('L') for piece in curve.split('M')[1:]]
  points = [[tuple(map(float, p.split())) for p in piece] for piece in pieces]
  assert [len(piece) for piece in points] == [1, 2]
  for x, y in sum(points, []):
    assert 64 <= x <= picture.WIDTH - 16 and 40 <= y <= picture.HEIGHT - 48
  assert points[0][0][1] < points[1][0][1] < points[1][1][1]
  assert {'1', '4', '2', '8'} <= set(_texts(picture.svg([run])))


@pytest.mark.parametrize('values', [[2.5], [3.0, 3.0], [1e-7, 3e9]])
def test_few_equal_and_far_values(tmp_path, values):
  ElementTree.fromstring(picture.svg(_runs(tmp_path, a=values)))


def test_a_metric_that_no_run_has(tmp_path):
  runs = _runs(tmp_path, a=[1.0])
  with pytest.raises(errors.UserError, match="'los' to draw; .*mean: loss"):
    picture.svg(runs, 'los')
  with pytest.raises(errors.UserError, match='to draw; expected one of loss'):
    picture.svg(runs, 'xyz')
  with pytest.raises(errors.UserError, match="no metric 'loss' to draw"):
    picture.svg(_runs(tmp_path, b=[math.nan]))
