"""TPU topologies: devices that libtpu compiles for, and that are not there."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies

from pax_compat import errors


@dataclasses.dataclass(frozen=True)
class Chip:
  """What JAX calls one device of a TPU generation.

  The numbers are from Google's descriptions of the systems. Two cores of a
  TPU v4 or v5p are one device ("megacore").

  Attributes:
    accelerator_type: a type of machine, which libtpu asks for.
    dims: number of dimensions of the torus.
    memory_bytes: HBM that a program can use, as libtpu says.
    memory_rate: bytes per second from and to HBM.
    link_rate: bytes per second of a link to a neighbour, in each direction.
    options: of `topologies.get_topology_desc`.
  """

  accelerator_type: str
  dims: int
  memory_bytes: float
  memory_rate: float
  link_rate: float
  options: dict[str, Any] = dataclasses.field(default_factory=dict)


CHIPS = {
  'v4': Chip(
    'v4-8', 3, 30.75 * 2**30, 1228e9, 45e9, {'chip_config_name': 'megacore'}
  ),
  'v5e': Chip('v5litepod-4', 2, 15.75 * 2**30, 819e9, 45e9),
  'v5p': Chip('v5p-8', 3, 95.74 * 2**30, 2765e9, 90e9),
  'v6e': Chip('v6e-4', 2, 31.25 * 2**30, 1640e9, 90e9),
}
# Bytes per second of a chip to other slices, over the data center's network.
NETWORK_RATE = 6.25e9


@dataclasses.dataclass(frozen=True)
class Topology:
  """A number of slices of TPU devices.

  Attributes:
    name: such as `v4:2x2x1`.
    num_slices: number of slices.
    chip: what a device is.
    devices: of all slices. They hold nothing and run nothing.
  """

  name: str
  num_slices: int
  chip: Chip
  devices: tuple[jax.Device, ...]

  def __str__(self):
    slices = f'{self.num_slices} slices of ' if self.num_slices > 1 else ''
    return f'{slices}{self.name}, {len(self.devices)} devices'


def parse(name: str) -> tuple[Chip, int]:
  """Returns the kind of device of a topology, and how many a slice has.

  >>> parse('v4:2x2x4')[1]
  16

  Raises:
    UserError: it is not a topology.
  """
  kind, _, shape = name.partition(':')
  if kind not in CHIPS:
    raise errors.UserError(
      f'unknown kind of TPU {kind!r} in the topology {name!r}'
      f'{errors.did_you_mean(kind, CHIPS)}; expected one of {", ".join(CHIPS)}'
    )
  chip = CHIPS[kind]
  example = 'x'.join(['2', '2', '1'][: chip.dims])
  if not re.fullmatch('x'.join([r'[1-9]\d*'] * chip.dims), shape):
    raise errors.UserError(
      f'the topology {name!r} needs {chip.dims} numbers of chips; expected, for'
      f' example, {kind}:{example}'
    )
  return chip, math.prod(map(int, shape.split('x')))


def create(name: str, num_slices: int = 1) -> Topology:
  """Returns a topology, described by libtpu.

  Args:
    name: kind of TPU, and chips of a slice along each dimension: `v4:2x2x1`.
    num_slices: number of slices.

  Raises:
    UserError: it is not a topology, or libtpu is not installed.
  """
  chip, _ = parse(name)
  if importlib.util.find_spec('libtpu') is None:
    raise errors.UserError(
      'compiling for TPUs needs libtpu, which is not installed; expected'
      " pip install 'pax-compat[tpu]'"
    )
  options = dict(chip.options)
  if num_slices > 1:
    options['num_slices'] = num_slices
  with _no_machine(chip):
    try:
      found = topologies.get_topology_desc(
        platform='tpu', topology_name=name, **options
      )
    except jax.errors.JaxRuntimeError as e:
      raise errors.UserError(
        f'libtpu does not know the topology {name!r}: {errors.one_line(e)}'
      ) from e
  return Topology(name, num_slices, chip, tuple(found.devices))


def slices_of(mesh: jax.sharding.Mesh) -> list[int]:
  """Returns the slice of each device of a mesh, in order."""
  return [getattr(d, 'slice_index', 0) for d in mesh.devices.flat]


@contextlib.contextmanager
def _no_machine(chip: Chip) -> Iterator[None]:
  """Within it, libtpu does not look for TPUs of this machine."""
  wanted = {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',  # Nothing conflicts without a TPU.
    'TPU_ACCELERATOR_TYPE': chip.accelerator_type,
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
  }
  missing = {k: v for k, v in wanted.items() if k not in os.environ}
  os.environ.update(missing)
  try:
    yield
  finally:
    for name in missing:
      del os.environ[name]
