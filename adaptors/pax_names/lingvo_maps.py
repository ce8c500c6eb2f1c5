"""Lingvo's NestedMap as a pytree of JAX.

Pax's NestedMap is Lingvo's, so that code written for Pax passes those of Lingvo
to JAX.
"""

import sys

import jax

_MODULE = 'lingvo.core.nested_map'
_registered: set[type] = set()


def register():
  """Registers Lingvo's NestedMap, if Lingvo is imported. Later calls do not.

  Leaves are in the order of the sorted keys, as in a NestedMap of ours.
  """
  module = sys.modules.get(_MODULE)
  cls = getattr(module, 'NestedMap', None)
  if cls is None or cls in _registered:
    return
  _registered.add(cls)

  def flatten(m):
    keys = tuple(sorted(m))
    return [m[key] for key in keys], keys

  def flatten_with_keys(m):
    values, keys = flatten(m)
    paths = map(jax.tree_util.DictKey, keys)
    return list(zip(paths, values, strict=True)), keys

  jax.tree_util.register_pytree_with_keys(
    cls,
    flatten_with_keys,
    lambda keys, values: cls(zip(keys, values, strict=True)),
    flatten,
  )
