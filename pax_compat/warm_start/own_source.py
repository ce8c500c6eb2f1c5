"""Checkpoints of this package as sources of a warm start."""

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
    for target, one in requests.items():
      path = self._paths[one.name]
      stored = self._stored.arrays[path]
      like = jax.ShapeDtypeStruct(
        tuple(stored['shape']),
        one.like.dtype if 'prng_impl' in stored else jnp.dtype(stored['dtype']),
        sharding=one.like.sharding,
      )
      array = self._stored.read({path: like})[path]
      if array.dtype != one.like.dtype:
        array = array.astype(one.like.dtype)
      found[target] = array
    return found
