"""A NestedMap of Lingvo is a pytree."""

import sys
import types

import jax

from adaptors.pax_names import lingvo_maps


def test_a_map_is_registered_once(monkeypatch):
  class NestedMap(dict):
    """Stands for Lingvo's, which takes long to import."""

  module = types.ModuleType('lingvo.core.nested_map')
  monkeypatch.setitem(sys.modules, 'lingvo.core.nested_map', module)
  lingvo_maps.register()  # The module has no NestedMap yet.
  module.NestedMap = NestedMap
  lingvo_maps.register()
  lingvo_maps.register()
  made = jax.tree.map(lambda x: x + 1, NestedMap(b=1, a=NestedMap(c=2)))
  assert type(made) is type(made['a']) is NestedMap
  assert jax.tree.leaves(made) == [3, 2]
  [(path, _), _] = jax.tree_util.tree_leaves_with_path(made)
  assert jax.tree_util.keystr(path) == "['a']['c']"
