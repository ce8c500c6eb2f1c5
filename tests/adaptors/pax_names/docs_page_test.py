"""The code of docs/your_pax_code.md runs."""

import re

import jax

from adaptors import pax_names
from tests import source_tree

_PAGE = source_tree.ROOT / 'docs' / 'your_pax_code.md'


def _block(word: str) -> str:
  text = _PAGE.read_text('utf-8')
  blocks = re.findall(r'^```python\n(.*?)^```', text, re.S | re.M)
  (block,) = [block for block in blocks if word in block]
  return block


def test_the_layer():
  pax_names.install()
  found: dict = {'__name__': __name__}
  exec(_block('class Cubed'), found)  # noqa: S102
  layer = found['Cubed'].config(scale=1.0).Instantiate()
  x = jax.numpy.asarray([2.0])
  variables = layer.init(jax.random.key(0), x)
  assert layer.apply(variables, x) == 8


def test_names_in_python():
  found: dict = {}
  exec(_block('from praxis import base_layer, layers'), found)  # noqa: S102
  assert found['layers'].Linear
