"""Converts a state to the arrays that a checkpoint stores, and back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors

_MAX_LISTED = 5  # differences that an error message lists


def state_paths(tree: Any) -> dict[str, Any]:
  """Returns a map from dotted path to leaf, in tree order.

  Raises:
    ValueError: two leaves have the same path, such as `{'a.b': x}` and
      `{'a': {'b': y}}` in one tree.
  """
  paths, _ = jax.tree.flatten_with_path(tree)
  leaves = {}
  for path, leaf in paths:
    name = jax.tree_util.keystr(path, simple=True, separator='.')
    if name in leaves:
      raise ValueError(f'two leaves of the state have the path {name}')
    leaves[name] = leaf
  return leaves


def array_metadata(leaves: dict[str, Any]) -> dict[str, dict]:
  """Returns the metadata of arrays, which a restore compares, by path."""
  return {path: _metadata(leaf) for path, leaf in leaves.items()}


def differences(stored: dict[str, dict], wanted: dict[str, dict]) -> list[str]:
  """Returns a line for each array that is missing or has another type.

  Args:
    stored: `array_metadata` of the stored arrays.
    wanted: `array_metadata` of the expected arrays.
  """
  return [
    f'{path}: stored {type_text(stored.get(path))}, wanted'
    f' {type_text(wanted.get(path))}'
    for path in sorted(stored.keys() | wanted.keys())
    if type_text(stored.get(path)) != type_text(wanted.get(path))
  ]


def require_fit(
  step: int, directory: Any, stored: dict[str, dict], wanted: dict[str, Any]
):
  """Raises a UserError if stored arrays are not those that are wanted.

  Args:
    step: of the checkpoint.
    directory: the folder of the checkpoints.
    stored: `array_metadata` of the stored arrays.
    wanted: the expected arrays, or their shapes and dtypes.
  """
  lines = differences(stored, array_metadata(wanted))
  if lines:
    raise errors.UserError(
      f'checkpoint {step} in {directory} does not fit the experiment; were its'
      ' settings changed?\n  ' + '\n  '.join(errors.listed(lines, _MAX_LISTED))
    )


def to_stored(leaves: dict[str, Any]) -> dict[str, Any]:
  """Returns the arrays for Orbax: PRNG keys as data, without empty arrays."""
  stored = {}
  for path, leaf in leaves.items():
    if not isinstance(leaf, jax.Array):
      # A copy, because the caller may change its array during the write.
      leaf = np.array(leaf, dtype=jnp.result_type(leaf))
    elif _is_key(leaf):
      leaf = jax.random.key_data(leaf)
    if leaf.size:
      stored[path] = leaf
  return stored


def to_stored_target(wanted: dict[str, Any]) -> dict[str, Any]:
  """Returns the target for restoring the arrays of `to_stored`."""
  target = {}
  for path, leaf in wanted.items():
    if leaf.sharding is None:
      raise ValueError(f'the target of {path} has no sharding')
    data = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    if data.size:
      target[path] = jax.ShapeDtypeStruct(
        data.shape, data.dtype, sharding=leaf.sharding
      )
  return target


def from_stored(array: jax.Array | None, wanted: Any, about: dict) -> jax.Array:
  """Inverts `to_stored` for one array.

  Args:
    array: the stored array; None for an empty one.
    wanted: the leaf of the target.
    about: the metadata of the array, see `array_metadata`.
  """
  if array is None:
    return jax.device_put(np.zeros(wanted.shape, wanted.dtype), wanted.sharding)
  if 'prng_impl' in about:
    return jax.random.wrap_key_data(array, impl=about['prng_impl'])
  return array


def _metadata(leaf) -> dict:
  about = {
    'shape': list(np.shape(leaf)),
    'dtype': str(jnp.result_type(leaf)),
  }
  if isinstance(leaf, jax.Array) and _is_key(leaf):
    about['prng_impl'] = str(jax.random.key_impl(leaf))
  return about


def type_text(about: dict | None) -> str:
  """Returns the type of an array as `float32[2,3]`; `nothing` if None."""
  if about is None:
    return 'nothing'
  return f'{about["dtype"]}[{",".join(map(str, about["shape"]))}]'


def _is_key(leaf) -> bool:
  return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
