"""Lingvo's NestedMap as a pytree of JAX.

Pax's NestedMap is Lingvo's, so that code written for Pax passes those of Lingvo
to JAX.
"""

import sys

_MODULE = 'lingvo.core.nested_map'
_registered: set[type] = set()


def register():
  """Registers Lingvo's NestedMap, if Lingvo and JAX are imported. Once.

  Neither is imported for it: commands that answer `--help` need none of them.
  Leaves are in the order of the sorted keys, as in a NestedMap of ours.
  """
  jax = sys.modules.get('jax')
  cls = getattr(sys.modules.get(_MODULE), 'NestedMap', None)
  if jax is None or cls is None or cls in _registered:
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
