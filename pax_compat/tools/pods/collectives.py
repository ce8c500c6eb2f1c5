"""The collectives of a compiled program: what they send, over which axes."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pax_compat.tools.pods import hlo_text

_KINDS = (
  'all-gather',
  'all-reduce',
  'all-to-all',
  'collective-permute',
  'ragged-all-to-all',
  'reduce-scatter',
)
_MESH = re.compile(r'replica_groups=@?mesh\[([^\]]*)\](?:[^{]*)\{([^}]*)\}')
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_IOTA = re.compile(
  r'replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?'
)
_LISTS = re.compile(r'replica_groups=\{(\{[\d,{} ]*\})\}')
_PAIRS = re.compile(r'source_target_pairs=\{(\{[\d,{} ]*\})\}')
# Transfers between slices, which libtpu compiles to sends to the host.
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')


@dataclasses.dataclass(frozen=True)
class Collective:
  """A collective of a program.

  Attributes:
    kind: such as `all-gather`.
    axes: axes of the mesh that devices communicate along; empty if its groups
      are not along axes.
    devices: number of devices that communicate with each other.
    sent: bytes that each device sends, each time.
    times: how often it runs in a step.
    between_slices: whether it is sent over the network between slices.
  """

  kind: str
  axes: tuple[str, ...]
  devices: int
  sent: float
  times: int
  between_slices: bool = False


def of(
  program: hlo_text.Program,
  mesh_shape: Mapping[str, int],
  slices: Sequence[int] = (),
) -> list[Collective]:
  """Returns the collectives of a program, in the order of their first run.

  Args:
    program: the compiled program.
    mesh_shape: length of each axis of the mesh, whose devices, in order, are
      the program's.
    slices: the slice of each of these devices; empty for a single slice.
  """
  count = math.prod(mesh_shape.values())
  return list(_of(program, mesh_shape, np.asarray(slices or [0] * count)))


def _of(program, mesh_shape, slices: np.ndarray) -> Iterator[Collective]:
  for _, operation, times in program.executed():
    if operation.kind == 'send':
      if found := _TRANSFER.search(operation.attributes):
        yield _between_slices(found[1], operation, times, mesh_shape, slices)
      continue
    kind = operation.kind.removesuffix('-start')
    if kind in _KINDS:
      payload = _payload(operation)
    elif inner := _within(program, operation):
      # TPUs have a fusion of an all-reduce and a slice of its result.
      is_part = operation.num_bytes < inner.num_bytes
      kind = 'reduce-scatter' if is_part else inner.kind
      payload, operation = operation.num_bytes, inner
    else:
      continue
    groups = _groups(operation.attributes, mesh_shape)
    devices = max(map(len, groups))
    if devices > 1:
      yield Collective(
        kind=kind,
        axes=_axes(groups, mesh_shape),
        devices=devices,
        sent=_sent(kind, payload, devices),
        times=times,
        between_slices=any(len(set(slices[list(g)])) > 1 for g in groups),
      )


def _between_slices(
  transfer: str,
  operation: hlo_text.Operation,
  times: int,
  mesh_shape: Mapping[str, int],
  slices: np.ndarray,
) -> Collective:
  """Returns a transfer between slices, such as an `ALL_REDUCE`.

  Args:
    transfer: what it does.
    operation: the send, whose result begins with what is sent.
    times: how often it runs.
    mesh_shape: as of `of`.
    slices: as of `of`.
  """
  kind = transfer.lower().replace('_', '-')
  payload = hlo_text.bytes_of(operation.result.lstrip('(').split(' ')[0])
  count = len(set(slices.tolist()))
  others = count - 1
  factors = {
    'all-reduce': 2 * others / count,
    'all-gather': others,
    'all-to-all': others / count,
    'reduce-scatter': others / count,
  }
  by_axis = slices.reshape(tuple(mesh_shape.values()))
  return Collective(
    kind=kind,
    axes=tuple(
      name
      for i, name in enumerate(mesh_shape)
      if (by_axis != by_axis.take([0], axis=i)).any()
    ),
    devices=count,
    sent=factors.get(kind, 1) * payload,
    times=times,
    between_slices=True,
  )


def _within(
  program: hlo_text.Program, operation: hlo_text.Operation
) -> hlo_text.Operation | None:
  """Returns the collective within a fusion, if there is one."""
  if operation.kind != 'fusion':
    return None
  for name in program.called(operation):
    for one in program.computations[name].values():
      if one.kind in _KINDS:
        return one
  return None


def _payload(operation: hlo_text.Operation) -> int:
  """Returns the bytes of the result of each device."""
  if not operation.kind.endswith('-start'):
    return operation.num_bytes
  # The result of a start is a pair of operands and results, and more.
  total = operation.num_bytes
  return total // 2 if operation.kind != 'all-reduce-start' else total


def _sent(kind: str, payload: int, devices: int) -> float:
  """Returns the bytes that a device sends, if each link is used evenly."""
  others = (devices - 1) / devices
  if kind == 'all-reduce':
    return 2 * others * payload
  if kind == 'reduce-scatter':  # The result is a part of the operand.
    return (devices - 1) * payload
  if kind == 'collective-permute':
    return payload
  return others * payload


def _groups(text: str, mesh_shape: Mapping[str, int]) -> list[Sequence[int]]:
  """Returns the devices of each group of a collective."""
  if found := _MESH.search(text):
    return _along_axes(found[1], found[2])
  if found := _IOTA.search(text):
    shape = hlo_text.dims_of(found[2])
    ids = np.arange(np.prod(shape)).reshape(shape)
    if found[3]:
      ids = ids.transpose(hlo_text.dims_of(found[3]))
    return ids.reshape(hlo_text.dims_of(found[1])).tolist()
  if found := _LISTS.search(text) or _PAIRS.search(text):
    lists = re.findall(r'\{([\d, ]*)\}', found[1])
    return [hlo_text.dims_of(one) for one in lists if one.strip()]
  return [range(int(np.prod(list(mesh_shape.values()))))]


def _along_axes(mesh: str, axes: str) -> list[list[int]]:
  """Returns groups that are given by axes of a mesh of the program's own."""
  sizes = {name: int(size) for name, size in _AXIS.findall(mesh)}
  wanted = [name for name in sizes if f"'{name}'" in axes]
  ids = np.arange(np.prod(list(sizes.values()))).reshape(list(sizes.values()))
  names = list(sizes)
  rest = [name for name in names if name not in wanted]
  ids = ids.transpose([names.index(name) for name in (*rest, *wanted)])
  width = int(np.prod([sizes[name] for name in wanted]))
  return ids.reshape(-1, width).tolist()


def _axes(
  groups: Sequence[Sequence[int]], mesh_shape: Mapping[str, int]
) -> tuple[str, ...]:
  """Returns the axes along which the devices of a group differ."""
  shape = tuple(mesh_shape.values())
  differ = set()
  for group in groups:
    places = np.stack(np.unravel_index(np.asarray(group), shape), axis=-1)
    differ.update(np.flatnonzero((places != places[0]).any(axis=0)).tolist())
  return tuple(name for i, name in enumerate(mesh_shape) if i in differ)


def by_axes(
  found: Sequence[Collective],
) -> dict[tuple[tuple[str, ...], str], tuple[int, float]]:
  """Returns how often, and with how many bytes, by (axes, kind).

  The kind of those between slices ends with the words `between slices`.
  """

  def key(one: Collective) -> tuple[tuple[str, ...], str]:
    where = ' between slices' if one.between_slices else ''
    return one.axes, one.kind + where

  return {
    k: (sum(c.times for c in group), sum(c.times * c.sent for c in group))
    for k, members in itertools.groupby(sorted(found, key=key), key)
    for group in [list(members)]
  }
