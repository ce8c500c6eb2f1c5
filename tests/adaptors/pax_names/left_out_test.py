"""Each public name of Pax's core modules is here, or left out for a reason."""

import dataclasses
import importlib
import json

import pytest

from adaptors import pax_names
from adaptors.pax_names import left_out
from tests import source_tree

# Written from the checkouts of google/paxml (b397693) and google/praxis
# (feeaff1): {module: {name: public members, of a class}}.
_FILE = source_tree.ROOT / 'testdata/pax/names.json'
RECORDED = json.loads(_FILE.read_text())
# What objects have that classes do not show.
_OF_OBJECTS = {
  'praxis.base_layer.JaxContext.hparams',
  'praxis.base_layer.JaxContext.summary_dict',
  'praxis.asserts.AssertsContext.enabled',
}
# Aliases of an enum are not in its `dir`.
_ALIASES = {
  'praxis.base_layer.SummaryType.AGGREGATE_IMAGE',
  'praxis.base_layer.SummaryType.AGGREGATE_SCALAR',
}


def _absent(module_name: str) -> set[str]:
  module, found = importlib.import_module(module_name), set()
  for name, members in RECORDED[module_name].items():
    full = f'{module_name}.{name}'
    try:
      value = getattr(module, name)
    except AttributeError:
      found.add(full)
      continue
    has = set(dir(value))
    if dataclasses.is_dataclass(value):
      has |= {field.name for field in dataclasses.fields(value)}
    found |= {f'{full}.{m}' for m in members if m not in has}
  return found - _OF_OBJECTS - _ALIASES


@pytest.mark.parametrize('module_name', RECORDED)
def test_names_are_here_or_left_out_for_a_reason(module_name):
  pax_names.install()
  listed = {n for n in left_out.REASONS if n.startswith(f'{module_name}.')}
  assert _absent(module_name) == listed


def test_a_name_that_is_left_out_says_why():
  pax_names.install()
  sgf = importlib.import_module('paxml.sgf')
  with pytest.raises(AttributeError, match='pmap is not supported'):
    _ = sgf.PercoreClippedDpSgdGradient
