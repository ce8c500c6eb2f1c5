"""A program that trains on meshes of two processes with two devices each."""

import json

import jax

from pax_compat.trainer import partitioning, program
from tests.pax_compat.trainer import lines


def train():
  """Prints, as JSON, losses and rows for each mesh, and what slices are."""
  results = {
    name: _train_on(partitioning.create_mesh((2, 2), names))
    for name, names in (
      ('across', ('data', 'mdl')),
      ('within', ('mdl', 'data')),
    )
  }
  mesh = partitioning.create_mesh((1, 2), ('data', 'mdl'), (2, 1))
  results['slices'] = _processes(mesh)
  mesh = partitioning.create_mesh((2, 1), ('data', 'mdl'), (1, 2))
  results['slices of mdl'] = _processes(mesh)
  print(json.dumps(results))


def _train_on(mesh: jax.sharding.Mesh) -> list:
  """Returns hosts, index of this one, losses, own rows and rows of all."""
  sharding = partitioning.batch_sharding(mesh)
  hosts = sharding.num_infeed_hosts
  rows = lines.BATCH // hosts
  losses = []
  first_rows = lines.rows(0, count=rows)
  made = program.create(lines.task().Instantiate(), mesh, first_rows)
  state = made.init_state(first_rows)
  for step in range(3):
    first = step * lines.BATCH + rows * sharding.infeed_host_index
    batch = lines.rows(first, count=rows)
    batch = made.put(batch)
    state, outputs = made.train_step(state, batch)
    losses.append(float(outputs['loss']))
  own = [partitioning.local_rows(batch.y).tolist(), batch.y.shape[0]]
  return [hosts, sharding.infeed_host_index, losses, own]


def _processes(mesh: jax.sharding.Mesh) -> list[list[int]]:
  return [[d.process_index for d in row] for row in mesh.devices]
