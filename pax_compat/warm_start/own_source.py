"""Checkpoints of this package as sources of a warm start."""

import collections
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import checkpoints
from pax_compat.runs import files
from pax_compat.warm_start import sources

_VARIABLES, _OPT_STATE = 'mdl_vars/', 'opt_state/'
_AVERAGES = 'opt_state/average/ema/'
_OTHER_AVERAGES = 'opt_state/average/variables/'


def folder_of(path: Any) -> tuple[Any, int | None] | None:
  """Returns the folder of checkpoints at a path, and the step it names.

  Args:
    path: of a run, of its checkpoints, or of one of them.

  Returns:
    None if it is not of this package.
  """
  for folder in (path / 'checkpoints', path):
    if files.children(folder / 'manifests'):
      return folder, None
  if path.name.isdigit() and files.children(path.parent / 'manifests'):
    return path.parent, int(path.name)
  return None


class OwnSource(sources.Source):
  """A checkpoint of this package, whose files are verified."""

  def __init__(self, folder: Any, step: int | None):
    """Opens it.

    Args:
      folder: of the checkpoints.
      step: of the checkpoint; None for the newest that is intact.

    Raises:
      UserError: it does not exist, or is damaged.
    """
    self._stored = checkpoints.StoredCheckpoint(folder, step)
    self.step = self._stored.step
    self.path = f'checkpoint {self.step} in {folder}'
    self._paths = {p.replace('.', '/'): p for p in self._stored.arrays}
    self.arrays = {
      name: tuple(self._stored.arrays[path]['shape'])
      for name, path in self._paths.items()
    }
    self.variables = self._below(_VARIABLES)
    params = self._below(_AVERAGES)
    self.averages = {
      **{f'params/{name}': array for name, array in params.items()},
      **self._below(_OTHER_AVERAGES),
    }
    self.opt_states = tuple(self._below(_OPT_STATE).values())
    weights = {n.removeprefix('params/'): n for n in self.variables}
    self.slots = {}
    for array in self.opt_states:
      weight = sources.longest_suffix(array, weights)
      if weight is not None and array not in self.averages.values():
        slot = array.removesuffix(f'/{weight}').rpartition('/')[2]
        self.slots[slot, weights[weight]] = array

  def _below(self, prefix: str) -> dict[str, str]:
    return {
      name.removeprefix(prefix): name
      for name in self.arrays
      if name.startswith(prefix)
    }

  def read(
    self, requests: Mapping[str, sources.Request]
  ) -> dict[str, jax.Array]:
    found = {}
    for part in _distinct(requests):
      paths = {target: self._paths[one.name] for target, one in part.items()}
      read = self._stored.read(
        {paths[target]: self._stored_like(one) for target, one in part.items()}
      )
      for target, one in part.items():
        array = read[paths[target]]
        if array.dtype != one.like.dtype:
          array = array.astype(one.like.dtype)
        found[target] = array
    return found

  def _stored_like(self, one: sources.Request) -> jax.ShapeDtypeStruct:
    """Returns the array of a request with the dtype that is stored."""
    stored = self._stored.arrays[self._paths[one.name]]
    is_key = 'prng_impl' in stored
    dtype = one.like.dtype if is_key else jnp.dtype(stored['dtype'])
    return jax.ShapeDtypeStruct(
      tuple(stored['shape']), dtype, sharding=one.like.sharding
    )


def _distinct(
  requests: Mapping[str, sources.Request],
) -> list[dict[str, sources.Request]]:
  """Splits requests so that no part has an array twice."""
  parts: list[dict[str, sources.Request]] = []
  seen = collections.Counter()
  for target, one in requests.items():
    number = seen[one.name]
    seen[one.name] += 1
    if number == len(parts):
      parts.append({})
    parts[number][target] = one
  return parts
