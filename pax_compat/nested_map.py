"""A dict with attribute access: the structure that batches and outputs use."""

import jax


class NestedMap(dict):
  """A `dict` whose string keys are also attributes; a JAX pytree.

  Leaves are visited in the order of the sorted keys, so two maps with the same
  keys always have the same tree structure.
  """

  def __getattr__(self, key):
    try:
      return self[key]
    except KeyError:
      raise AttributeError(
        f'no field {key!r}; the fields are: {", ".join(sorted(self))}'
      ) from None

  def __setattr__(self, key, value):
    self[key] = value

  def __delattr__(self, key):
    try:
      del self[key]
    except KeyError:
      raise AttributeError(key) from None

  def copy(self) -> 'NestedMap':
    """Returns a shallow copy."""
    return NestedMap(self)

  def flatten_items(self) -> list[tuple[str, object]]:
    """Returns (dotted path, leaf) pairs, in tree order."""
    paths, _ = jax.tree_util.tree_flatten_with_path(self)
    return [
      (jax.tree_util.keystr(path, simple=True, separator='.'), leaf)
      for path, leaf in paths
    ]

  def transform(self, fn) -> 'NestedMap':
    """Returns a map of the same structure with `fn` applied to each leaf."""
    return jax.tree.map(fn, self)


def _flatten_with_keys(m: NestedMap):
  keys = tuple(sorted(m))
  return [(jax.tree_util.DictKey(k), m[k]) for k in keys], keys


jax.tree_util.register_pytree_with_keys(
  NestedMap,
  _flatten_with_keys,
  lambda keys, values: NestedMap(zip(keys, values, strict=True)),
  lambda m: ([m[k] for k in sorted(m)], tuple(sorted(m))),
)
