"""The pages of docs/ are in the site's menu, and their links lead somewhere."""

import ast
import pathlib
import re

import pytest
import yaml

from pax_compat.layers import attentions
from tests import source_tree

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DOCS = _ROOT / 'docs'
_PAGES = sorted(_DOCS.rglob('*.md'))
_LINK = re.compile(r'\]\(([^)\s]+)\)')


def _menu(entries) -> list[str]:
  """Returns the pages of a menu, in order."""
  if isinstance(entries, str):
    return [entries]
  if isinstance(entries, dict):
    entries = list(entries.values())
  return [page for entry in entries for page in _menu(entry)]


def test_every_page_is_in_the_menu_once():
  config = yaml.safe_load((_ROOT / 'mkdocs.yml').read_text('utf-8'))
  pages = [str(page.relative_to(_DOCS)) for page in _PAGES]
  assert sorted(_menu(config['nav'])) == pages


def test_the_reference_has_the_packages_of_layers():
  pages = (_DOCS / 'api').glob('*.md')
  text = '\n'.join(page.read_text('utf-8') for page in pages)
  shown = set(
    re.findall(r'^::: pax_compat\.layers\.(\w+)$', text, re.MULTILINE)
  )
  packages = {
    path.parent.name
    for path in _ROOT.glob('pax_compat/layers/*/__init__.py')
    if 'public_layers(' in path.read_text('utf-8')
  }
  assert not packages - shown


@pytest.mark.slow
def test_the_reference_has_the_layers_that_a_package_exports():
  griffe = pytest.importorskip('griffe', reason="needs the extra 'docs'")
  loader = griffe.GriffeLoader(
    extensions=griffe.load_extensions(str(_DOCS / 'griffe_extensions.py')),
    search_paths=[str(_ROOT)],
  )
  package = loader.load('pax_compat')['layers.attentions']
  assert sorted(package.exports) == sorted(attentions.__all__)
  layer = package['DotProductAttention']
  assert layer.target_path == (
    'pax_compat.layers.attentions.dot_product.DotProductAttention'
  )


@pytest.mark.parametrize('page', [_ROOT / 'README.md', *_PAGES], ids=str)
def test_links_lead_somewhere(page):
  text = re.sub(r'```.*?```', '', page.read_text('utf-8'), flags=re.DOTALL)
  for link in _LINK.findall(text):
    path, _, anchor = link.partition('#')
    if '://' in link:
      continue
    target = page.parent / path if path else page
    assert target.exists(), link
    if anchor:
      assert anchor in _anchors(target), link


def _anchors(page: pathlib.Path) -> set[str]:
  """Returns the anchors that GitHub and MkDocs make of a page's headings."""
  headings = re.findall(r'^#+ (.*)', page.read_text('utf-8'), re.MULTILINE)
  return {
    re.sub(r'[^\w\- ]', '', heading.lower()).strip().replace(' ', '-')
    for heading in headings
  }


def test_the_messages_of_the_troubleshooting_page_exist():
  text = (_DOCS / 'troubleshooting.md').read_text('utf-8')
  messages = re.findall(r'^### `(.*)`?$', text, re.MULTILINE)
  assert len(messages) > 10
  strings = {
    node.value
    for path in source_tree.python_files('pax_compat', 'adaptors')
    for node in ast.walk(source_tree.tree(path))
    if isinstance(node, ast.Constant) and isinstance(node.value, str)
  }
  for message in messages:
    message = message.removesuffix('`')
    assert any(message in string for string in strings), message
