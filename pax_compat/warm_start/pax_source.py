"""Checkpoints that Pax wrote as sources of a warm start.

    checkpoint_00000100/state/...     arrays of TensorStore: a folder for each,
                                      or all of them in an OCDBT database
    checkpoint_100/state/checkpoint   flax's msgpack: a list of the leaves, and
                                      the text of their tree

Names in Pax are `mdl_vars.params.lm.w`, or with slashes, and for the state of
the optimizers `opt_states_0.no_prefix_2.m.params.lm.w` or
`opt_states.0.no_prefix.2.m.params.lm.w`. Here all of them have slashes.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from absl import logging
from flax import serialization

from pax_compat import errors
from pax_compat.runs import files, remote
from pax_compat.warm_start import pax_trees, sources

_STEP_FOLDER = re.compile(r'(?:checkpoint_)?(\d+)')
_VARIABLES, _OPT_STATES = 'mdl_vars/', 'opt_states/'
_COLLECTIONS = ('params', 'non_trainable')
# The moving average of updates in Adafactor, not that of weights: it is nested
# one more time.
_OF_OPTIMIZER = re.compile(r'^opt_states/\d+/(?:.*/)?\d+/\d+/ema/')
_STATE, _AGGREGATE = 'state', 'checkpoint'


def folder_of(path: Any, step: int | None) -> tuple[Any, int] | None:
  """Returns the folder, or the file, of a checkpoint of Pax, and its step.

  Args:
    path: of a run, of its checkpoints, or of one of them.
    step: of the checkpoint; None for the newest.

  Returns:
    None if it is not a checkpoint of Pax.

  Raises:
    UserError: the step has no checkpoint.
  """
  one = re.fullmatch(r'checkpoint_(\d+)', path.name)
  if one:
    return path, int(one[1])
  for folder in (path / 'checkpoints', path):
    found = {}
    for child in files.children(folder):
      match = _STEP_FOLDER.fullmatch(child.name)
      if match:
        found[int(match[1])] = child
    if not found:
      continue
    chosen = max(found) if step is None else step
    if chosen not in found:
      nearest = sorted(found, key=lambda s: abs(s - chosen))[:3]
      raise errors.UserError(
        f'{folder} has no checkpoint of step {chosen}; the nearest are:'
        f' {", ".join(map(str, nearest))}'
      )
    return found[chosen], chosen
  return None


class PaxSource(sources.Source):
  """A checkpoint of Pax."""

  def __init__(self, path: Any, step: int):
    """Opens it.

    Args:
      path: of the checkpoint.
      step: in its name.

    Raises:
      UserError: it is damaged, or has another layout.
    """
    self.path, self.step = str(path), step
    try:
      self._arrays = _opened(path)
      self.arrays = self._arrays.shapes
    except errors.UserError:
      raise
    except Exception as e:
      # The libraries have error types of their own.
      raise errors.UserError(
        f'{path} is not a checkpoint of Pax that can be read:'
        f' {errors.one_line(e)}'
      ) from e
    self.variables = {
      name.removeprefix(_VARIABLES): name
      for name in self.arrays
      if name.startswith(_VARIABLES)
    }
    self.opt_states = tuple(n for n in self.arrays if n.startswith(_OPT_STATES))
    self.averages, self.slots = {}, {}
    for name in self.opt_states:
      variable = sources.longest_suffix(name, self.variables)
      if variable is None:
        continue
      slot = name.removesuffix(f'/{variable}').rpartition('/')[2]
      if slot == 'ema' and not _OF_OPTIMIZER.search(name):
        self.averages[variable] = name
      else:
        self.slots[slot, variable] = name
    # Weights that are not trained have no average of their own in Pax.
    for variable, name in self.variables.items() if self.averages else ():
      self.averages.setdefault(variable, name)

  def read(
    self, requests: Mapping[str, sources.Request]
  ) -> dict[str, jax.Array]:
    found = {}
    for target, one in requests.items():
      with self._explained(one.name):
        found[target] = self._arrays.read(one.name, one.like)
    return found

  def region(self, name: str, index: Any) -> np.ndarray:
    """Returns a part of an array, of which only this is read."""
    with self._explained(name):
      return self._arrays.region(name, index)

  @contextlib.contextmanager
  def _explained(self, name: str) -> Iterator[None]:
    """Within it, errors of reading an array are UserErrors."""
    try:
      yield
    except ValueError as e:
      raise errors.UserError(
        f'{self.path}: the array {name} cannot be read: {errors.one_line(e)}'
      ) from e


def _opened(path: Any) -> '_Aggregate | _Stored':
  for aggregate in (path / _STATE / _AGGREGATE, path / _AGGREGATE, path):
    if aggregate.is_file():
      return _Aggregate(aggregate)
  state = path / _STATE
  state = state if state.is_dir() else path
  if not state.is_dir():
    raise errors.UserError(
      f'{path} does not exist; expected a checkpoint of Pax'
    )
  return _Stored(state, _unpadded(path))


def _unpadded(path: Any) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of arrays without the padding of uneven shards."""
  file = path / 'metadata' / 'metadata'
  if not file.is_file():
    return {}
  found = {}

  def visit(node: Any, name: str):
    if isinstance(node, Mapping) and '_array_metadata_tag' in node:
      if 'unpadded_shape' in node:
        found[name] = tuple(node['unpadded_shape'])
    elif isinstance(node, Mapping):
      for key, child in node.items():
        visit(child, f'{name}/{key}' if name else str(key))

  read = json.loads(file.read_text(encoding='utf-8'))
  visit(read.get('train_state_metadata', {}), '')
  return found


class _Stored:
  """Arrays of TensorStore.

  Attributes:
    shapes: of each array by its name.
  """

  def __init__(self, folder: Any, unpadded: Mapping[str, tuple[int, ...]]):
    url = str(folder) if remote.is_remote(folder) else f'file://{folder}'
    is_database = (folder / 'manifest.ocdbt').exists()
    if is_database:
      self._store = {'driver': 'ocdbt', 'base': f'{url}/'}
      keys = _keys(self._store)
    else:
      self._store = f'{url}/'
      keys = [
        f'{child.name}/{marker}'
        for child in files.children(folder)
        for marker in ('.zarray', 'zarr.json')
        if (child / marker).exists()
      ]
    self._specs, self.shapes = {}, {}
    for key in keys:
      own, _, marker = key.rpartition('/')
      driver = {'.zarray': 'zarr', 'zarr.json': 'zarr3'}.get(marker)
      if driver:
        self._specs[_name_of(own)] = {
          'driver': driver,
          'kvstore': _below(self._store, own),
        }
    opened = {n: ts.open(spec, read=True) for n, spec in self._specs.items()}
    for name, future in opened.items():
      array = future.result()
      self.shapes[name] = unpadded.get(name, tuple(array.shape))
      # Without a value for chunks that were left out, none was, and one that is
      # missing is lost; it would be read as zeros.
      if array.fill_value is None:
        self._specs[name]['fill_missing_data_reads'] = False

  def read(self, name: str, like: jax.ShapeDtypeStruct) -> jax.Array:
    array = ts.open(self._specs[name], read=True).result()

    def shard(index):
      index = tuple(
        slice(*one.indices(size))
        for one, size in zip(index, like.shape, strict=True)
      )
      return array[index].read().result().astype(like.dtype)

    return jax.make_array_from_callback(like.shape, like.sharding, shard)

  def region(self, name: str, index: Any) -> np.ndarray:
    array = ts.open(self._specs[name], read=True).result()
    inside = tuple(slice(0, size) for size in self.shapes[name])
    return array[inside][index].read().result()


def _keys(store: Any) -> list[str]:
  keys = ts.KvStore.open(store).result().list().result()
  return [key.decode('utf-8') for key in keys]


def _below(store: Any, name: str) -> Any:
  """Returns the specification of the values of one array."""
  if isinstance(store, str):
    return f'{store}{name}/'
  return {**store, 'path': f'{name}/'}


_INDEXED = re.compile(r'_(\d+)(?=[./]|$)')


def _name_of(stored: str) -> str:
  """Returns the name of an array by that in the store.

  >>> _name_of('opt_states_0.no_prefix_2.m.params.lm.w')
  'opt_states/0/no_prefix/2/m/params/lm/w'
  >>> _name_of('mdl_vars.params.lm.x_layers_0.w')
  'mdl_vars/params/lm/x_layers_0/w'
  """
  for collection in _COLLECTIONS:
    head, found, rest = stored.partition(f'.{collection}.')
    if found:
      break
  else:
    head, found, rest = stored, '', ''
  if head.startswith('opt_states'):
    head = _INDEXED.sub(r'.\1', head)
  return f'{head}{found}{rest}'.replace('.', '/')


class _Aggregate:
  """The arrays of a file of flax.

  Attributes:
    shapes: of each array by its name.
  """

  def __init__(self, file: Any):
    read = serialization.msgpack_restore(file.read_bytes())
    if not isinstance(read, dict) or 'flattened_state' not in read:
      raise errors.UserError(
        f'{file} has no flattened_state; expected a checkpoint that Pax wrote'
      )
    leaves = read['flattened_state']
    if isinstance(leaves, dict):
      leaves = [leaves[str(i)] for i in range(len(leaves))]
    names = _leaf_names(read['str_pytree_state'], len(leaves), file)
    self._leaves = {
      name: np.asarray(leaf)
      for name, leaf in zip(names, leaves, strict=True)
      if isinstance(leaf, np.ndarray | np.generic | jax.Array)
    }
    self.shapes = {name: leaf.shape for name, leaf in self._leaves.items()}

  def read(self, name: str, like: jax.ShapeDtypeStruct) -> jax.Array:
    return sources.sharded(self._leaves[name], like)

  def region(self, name: str, index: Any) -> np.ndarray:
    return self._leaves[name][index]


def _leaf_names(text: str, count: int, file: Any) -> Iterable[str]:
  try:
    names = pax_trees.leaf_names(text)
  except ValueError as e:
    raise errors.UserError(
      f'{file}: the structure of the state cannot be read: {e}'
    ) from e
  if len(names) != count:
    raise errors.UserError(
      f'{file} has {count} arrays, and the structure of the state'
      f' {len(names)}; expected as many'
    )
  logging.debug('%s has %d arrays', file, count)
  return names
