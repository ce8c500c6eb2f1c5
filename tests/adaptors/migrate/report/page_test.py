"""Tests of the report's page: self-contained, sorted, and safe."""

import base64
import hashlib
import html
import html.parser
import re

from adaptors.migrate.findings import Status
from adaptors.migrate.report import page, page_style
from tests.adaptors.migrate import found


class _Reader(html.parser.HTMLParser):
  """Parses a page.

  Attributes:
    elements: (name, attributes) in order.
    text: of all elements, except for the page's own style and script.
    own: contents of its `style` and `script` elements.
  """

  def __init__(self, source: str):
    super().__init__()
    self.elements, self.text, self.own = [], '', []
    self._within = []
    self.feed(source)

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))
    if tag not in ('input', 'meta'):
      self._within.append(tag)

  def handle_endtag(self, tag):
    assert self._within.pop() == tag

  def handle_data(self, data):
    if self._within and self._within[-1] in ('style', 'script'):
      self.own.append(data)
    else:
      self.text += data

  def named(self, name: str) -> list[dict]:
    return [attrs for tag, attrs in self.elements if tag == name]


def _read(*experiments) -> _Reader:
  return _Reader(page.page(experiments))


_ALL = (
  found.experiment(f'lm.{found.SCRIPT}'),
  found.experiment('lm.far', Status.BRIDGED, issues=2),
  found.experiment('lm.near', Status.BRIDGED, issues=1),
  found.experiment('lm.broken', Status.IMPOSSIBLE),
)


def test_texts_are_shown_and_not_run():
  read = _read(*_ALL)
  assert read.own == [page_style.STYLE, page_style.SCRIPT]
  # Names, values, reasons, classes of layers, notes, inputs, schedules.
  assert read.text.count(found.SCRIPT) > 20
  for _, attributes in read.elements:
    assert not any(name.startswith('on') for name in attributes)


def test_the_policy_allows_only_the_pages_own_style_and_script():
  read = _read(*_ALL)
  policy = next(
    meta['content'] for meta in read.named('meta') if 'http-equiv' in meta
  )
  hashes = [
    base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    for text in read.own
  ]
  assert policy == (
    f"default-src 'none'; style-src 'sha256-{hashes[0]}';"
    f" script-src 'sha256-{hashes[1]}'"
  )
  for name, attributes in read.elements:
    assert not {'src', 'href', 'style'} & set(attributes), name
  assert not re.search(r'url\(|@import|https?:', ''.join(read.own))


def test_it_is_sorted_by_priority():
  read = _read(*_ALL)
  names = re.findall(r'<span class="name">(.*?)</span>', page.page(_ALL))
  assert [html.unescape(name) for name in names] == [
    *('lm.broken', 'lm.near', 'lm.far', f'lm.{found.SCRIPT}'),
  ]
  statuses = [
    d['data-status'] for d in read.named('details') if 'data-status' in d
  ]
  assert statuses == ['impossible', 'bridged', 'bridged', 'native']


def test_there_is_a_search_box_and_a_button_for_each_status():
  read = _read(*_ALL)
  assert [box['id'] for box in read.named('input')] == ['search']
  buttons = [b['data-status'] for b in read.named('button') if len(b) > 2]
  assert buttons == ['impossible', 'bridged', 'native']


def test_a_report_on_one_experiment_is_open():
  [experiment] = [
    d for d in _read(_ALL[1]).named('details') if 'data-status' in d
  ]
  assert 'open' in experiment
  assert not any(
    'open' in d for d in _read(*_ALL).named('details') if 'data-status' in d
  )


def test_layers_have_the_color_of_their_status():
  read = _read(_ALL[1])
  badges = [
    a['class'] for name, a in read.elements if name == 'span' and 'title' in a
  ]
  assert badges == ['badge bridged', 'badge native', 'badge bridged']
