"""The state of Shampoo in checkpoints of Pax.

Pax has a node for each weight, `.../stats/params/lm/w/momentum/quantized`,
with a matrix `statistics/i` for dimension d of block b, i = b * dims + d. If
matrices are sharded, `.../stats/global_stats/statistics` [n, m, m] has those of
all weights, in the order of their paths, each in the corner of [m, m]; weights
are below `.../stats/local_stats/`. Stacked weights have dimensions in front.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

import fiddle as fdl
import jax
import numpy as np

from pax_compat import config as config_lib
from pax_compat import errors, optimizers
from pax_compat.optimizers.weight_blocks import WeightBlocks
from pax_compat.warm_start import pax_source

_LEAF = re.compile(
  r'.*/(sum_squares|graft_momentum|momentum|statistics|roots|errors)/(.+)'
)
# Fields of the state here -> in Pax.
_OF_WEIGHTS = {
  'sum_squares': 'diagonal_statistics',
  'graft_momentum': 'diagonal_momentum',
  'momentum': 'momentum',
}
_MATRICES = {'statistics': 'statistics', 'roots': 'preconditioners'}
_ERRORS = 'training_metrics/inverse_pth_root_errors'
_LOCAL, _GLOBAL = 'local_stats/', 'global_stats/'

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class Assembly:
  """A leaf of the state that is made of parts of arrays.

  Attributes:
    like: its shape, dtype and sharding.
    values: maps an index of the leaf to its values there.
  """

  like: jax.ShapeDtypeStruct
  values: Callable[[Index], np.ndarray]

  def read(self) -> jax.Array:
    """Returns the leaf; each process reads what its devices have."""
    return jax.make_array_from_callback(
      self.like.shape,
      self.like.sharding,
      lambda index: self.values(index).astype(self.like.dtype),
    )


def optimizer_of(learner: config_lib.Config) -> config_lib.Config | None:
  """Returns the config of Shampoo of a learner, if it has one."""
  config = learner.optimizer
  while config is not None:
    if issubclass(fdl.get_callable(config), optimizers.DistributedShampoo):
      return config
    config = config_lib.field_values(config).get('optimizer_tpl')
  return None


class ShampooState:
  """What Pax kept of Shampoo."""

  def __init__(
    self, source: pax_source.PaxSource, optimizer: config_lib.Config
  ):
    """Takes a checkpoint.

    Args:
      source: the checkpoint.
      optimizer: config of the optimizer here.
    """
    self._source = source
    self._optimizer = optimizer.Instantiate()
    # Name of a weight's node -> the weight, and its first node.
    self._weights: dict[str, str] = {}
    self._nodes: dict[str, str] = {}
    self._quantized: set[str] = set()
    self._firsts = functools.cache(self._find_firsts)
    for name in source.opt_states:
      _, found, rest = name.partition('/stats/')
      rest = rest.removeprefix(_LOCAL)
      weight = _longest_prefix(rest, source.variables) if found else None
      if weight is None:
        continue
      node = f'{name.removesuffix(rest)}{weight}'
      self._weights[node] = weight
      self._nodes.setdefault(weight, node)
      if _is_quantized(name.removeprefix(f'{node}/')):
        self._quantized.add(node)

  def assembly(self, path: str, like: jax.ShapeDtypeStruct) -> Assembly | None:
    """Returns a leaf of the state; None if the checkpoint lacks it.

    Args:
      path: of the leaf.
      like: its shape, dtype and sharding.

    Raises:
      UserError: Pax quantized the state.
    """
    found = _LEAF.fullmatch(path)
    if not found or not self._nodes:
      return None
    field, weight = found.groups()
    dim = 0
    if field not in _OF_WEIGHTS:
      weight, _, index = weight.rpartition('/')
      dim = int(index)
    node = self._nodes.get(f'params/{weight}')
    if node is None:
      return None
    if node in self._quantized:
      raise errors.UserError(
        f'{self._source.path}: the state of Shampoo is quantized'
        ' (best_effort_memory_usage_reduction), which is not supported;'
        ' expected load_opt_states=False'
      )
    if field in _OF_WEIGHTS:
      return self._of_weight(f'{node}/{_OF_WEIGHTS[field]}', like)
    stack = len(like.shape) - (1 if field == 'errors' else 3)
    blocks = self._blocks(node, stack)
    if blocks is None or dim >= len(blocks.block_shape):
      return None
    if like.shape[stack] != blocks.num_blocks:
      return None
    if field == 'errors':
      return self._errors(f'{node}/{_ERRORS}', like, blocks, dim)
    return self._matrices(node, field, like, blocks, dim)

  def _blocks(self, node: str, lead: int) -> WeightBlocks | None:
    """Returns the blocks of a weight with `lead` stacked dimensions."""
    shape = self._source.arrays[self._source.variables[self._weights[node]]]
    return self._optimizer.weight_blocks(shape[lead:])

  def _of_weight(
    self, name: str, like: jax.ShapeDtypeStruct
  ) -> Assembly | None:
    """Returns what has the shape of the weight."""
    name = f'{name}/quantized'
    shape = self._source.arrays.get(name)
    if shape == like.shape:
      return Assembly(like, lambda index: self._source.region(name, index))
    if like.shape[-1:] == (1,):  # There are no squares, here as in Pax.
      return Assembly(like, lambda index: np.zeros(like.shape)[index])
    return None

  def _errors(
    self,
    name: str,
    like: jax.ShapeDtypeStruct,
    blocks: WeightBlocks,
    dim: int,
  ) -> Assembly:
    """Returns the errors [..., N] of roots: 0 if Pax kept none."""
    rank = len(blocks.block_shape)
    is_kept = name in self._source.arrays

    def values(index):
      if not is_kept:
        return np.zeros(like.shape)[index]
      return self._source.region(name, (...,))[..., dim::rank][index]

    return Assembly(like, values)

  def _matrices(
    self,
    node: str,
    field: str,
    like: jax.ShapeDtypeStruct,
    blocks: WeightBlocks,
    dim: int,
  ) -> Assembly | None:
    """Returns matrices [..., N, D, D], of identities beyond their sizes."""
    sizes, rank = blocks.sizes(dim), len(blocks.block_shape)
    lead = len(like.shape) - 3
    kept, first = _MATRICES[field], None
    if _LOCAL in node:
      group = node.partition(_LOCAL)[0]
      shared = f'{group}{_GLOBAL}{kept}'
      first = self._firsts(group, lead)[node]
      names = [shared] * blocks.num_blocks
    else:
      names = [f'{node}/{kept}/{i * rank + dim}' for i in range(len(sizes))]
    if any(name not in self._source.arrays for name in names):
      return None
    scale = self._optimizer.matrix_epsilon if field == 'statistics' else 1.0

    def matrix(block, stack, rows, columns):
      corner = _within(rows, sizes[block]), _within(columns, sizes[block])
      own = () if first is None else (first + block * rank + dim,)
      values = scale * np.eye(*like.shape[-2:])[rows, columns]
      full = np.broadcast_to(
        values, [*_lengths(stack, like.shape), *values.shape]
      ).copy()
      part = self._source.region(names[block], (*stack, *own, *corner))
      full[..., : part.shape[-2], : part.shape[-1]] = part
      return full

    def values(index):
      *stack, which, rows, columns = index
      made = [
        matrix(block, tuple(stack), rows, columns)
        for block in range(len(sizes))[which]
      ]
      return np.stack(made, axis=lead)

    return Assembly(like, values)

  def _find_firsts(self, group: str, lead: int) -> dict[str, int]:
    """Returns the index of each weight's first matrix, in Pax's order."""
    nodes = [n for n in self._weights if n.startswith(f'{group}{_LOCAL}')]
    found, count = {}, 0
    for node in sorted(nodes, key=lambda n: n.split('/')):
      found[node] = count
      blocks = self._blocks(node, lead)
      if blocks is not None:
        count += blocks.num_blocks * len(blocks.block_shape)
    return found


def _is_quantized(inside: str) -> bool:
  """Whether an array within the node of a weight is of quantized state."""
  first, last = inside.split('/')[0], inside.split('/')[-1]
  return last in ('diagonal', 'bucket_size') or (
    first in _MATRICES.values() and last == 'quantized'
  )


def _longest_prefix(path: str, names) -> str | None:
  """Returns the longest of some names that a path begins with, or None."""
  parts = path.split('/')
  for end in range(len(parts), 0, -1):
    if '/'.join(parts[:end]) in names:
      return '/'.join(parts[:end])
  return None


def _within(part: slice, size: int) -> slice:
  """Returns the indices of a slice that are below a size."""
  start, stop = part.start or 0, part.stop
  stop = int(size) if stop is None else min(stop, int(size))
  return slice(min(start, stop), stop)


def _lengths(stack: Index, shape: tuple[int, ...]) -> list[int]:
  return [
    len(range(size)[part]) for part, size in zip(stack, shape, strict=False)
  ]
