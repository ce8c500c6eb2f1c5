"""The size of an experiment, without data, weights and its devices.

The devices of the experiment's mesh are simulated: CPU devices that hold
nothing. So an experiment for a pod is checked on any machine, by the code that
trains it: its mesh, its shardings and its batch are those of the run, as if one
process had all devices. Everything is traced, nothing is compiled or computed.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import backend

from pax_compat import errors, learners
from pax_compat.layer_core import sharding as sharding_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import model_flops, partitioning, program
from pax_compat.trainer.feeding import batch_shapes
from pax_compat.trainer.reporting import start_lines

_SIMULATION = re.compile(r'--xla_force_host_platform_device_count=\d+')
# A weight of so many bytes is large if every device has a copy.
_LARGE_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
  """The size of an experiment.

  Attributes:
    name: of the experiment.
    num_devices: number of devices of the mesh.
    mesh: length of each axis of the mesh.
    sizes: of the state.
    rows: rows of the global batch.
    length: tokens of a row; 0 if rows are not sequences.
    dtypes: of weights and computation, as text.
    flops: model FLOPs of a train step; None if they cannot be counted.
    shapes_from: how the shapes of batches were found.
    warnings: what may be a mistake.
    notes: what was chosen automatically.
  """

  name: str
  num_devices: int
  mesh: dict[str, int]
  sizes: start_lines.Sizes
  rows: int
  length: int
  dtypes: str
  flops: float | None
  shapes_from: str
  warnings: tuple[str, ...]
  notes: tuple[str, ...] = ()

  def text(self, peak: float | None = None) -> str:
    """Returns the lines that `--check` prints.

    Args:
      peak: FLOPs per second of a device; None leaves out the time of a step.
    """
    rows = {
      'parameters': f'{self.sizes.parameters:,}',
      'mesh': f'{start_lines.mesh_text(self.mesh)}, {self.num_devices} devices',
      'global batch': self._batch(),
      'dtypes': self.dtypes,
      'bytes per device': start_lines.bytes_text(self.sizes),
      'FLOPs per step': self._flops(peak),
    }
    width = max(map(len, rows))
    read = self.shapes_from != batch_shapes.BY_CONFIG
    without = 'weights' if read else 'data and weights'
    return '\n'.join(
      [
        f'{self.name}: checked without {without}, on simulated devices',
        *(f'  {label.ljust(width)}  {text}' for label, text in rows.items()),
        *self.notes,
        *(f'warning: {warning}' for warning in self.warnings),
      ]
    )

  def _batch(self) -> str:
    text = f'{self.rows:,} rows'
    if self.length:
      tokens = self.rows * self.length
      text += f' of {self.length:,}: {tokens:,} tokens per step'
    return f'{text} ({self.shapes_from})'

  def _flops(self, peak: float | None) -> str:
    if self.flops is None:
      return 'not known: a layer hides its products'
    each = self.flops / self.num_devices
    text = f'{self.flops:.3g}, {each:.3g} per device'
    if peak is not None:
      text += f'; {each / peak:.3g} s at {peak / 1e12:g} TFLOP/s'
    return text


def check(resolve: Callable[[], Any], *, peak: float | None = None) -> str:
  """Returns the lines that `--check` prints for an experiment.

  It changes the devices of this process: nothing can be trained afterwards.

  Args:
    resolve: returns the `experiments.resolved.ResolvedExperiment`. It is called
      again for the devices of the mesh, as experiments may use their number.
    peak: FLOPs per second of a device, for the time of a step.

  Raises:
    UserError: the experiment is invalid, or the shapes of its batches are not
      known without data that is not there.
  """
  jax.config.update('jax_platforms', 'cpu')
  experiment = resolve()
  with experiment.set_up():
    count = partitioning.num_devices(experiment.task.model)
    if count != len(jax.devices()):
      simulate(count)
      experiment = resolve()
    return examine(experiment).text(peak)


def examine(experiment: Any) -> Checked:
  """Returns the size of an experiment on the devices of this process.

  Args:
    experiment: the `experiments.resolved.ResolvedExperiment`.
  """
  task = experiment.task.Instantiate()
  mesh = partitioning.mesh_of_task(task)
  batch, source = batch_shapes.of(experiment)
  made = program.create(task, mesh, batch)
  rows, length = start_lines.global_shape(batch, made)
  return Checked(
    name=experiment.name,
    num_devices=mesh.size,
    mesh=dict(mesh.shape),
    sizes=start_lines.Sizes.of(made),
    rows=rows,
    length=length,
    dtypes=start_lines.dtypes(made),
    flops=model_flops.of_train_step(made, batch),
    shapes_from=source,
    warnings=tuple(_warnings(made, batch)),
    notes=tuple(start_lines.auto_sharding_lines(made)),
  )


def simulate(count: int):
  """Replaces the devices of this process by `count` CPU devices."""
  backend.clear_backends()
  flags = os.environ.get('XLA_FLAGS', '')
  if _SIMULATION.search(flags):  # It must not contradict the setting.
    os.environ['XLA_FLAGS'] = _SIMULATION.sub('', flags)
  jax.config.update('jax_num_cpu_devices', count)


def _warnings(made: program.TaskProgram, batch: NestedMap) -> list[str]:
  try:
    made.check_rows(batch)
    problems = start_lines.padding_lines(batch, made)
  except errors.UserError as e:
    problems = [str(e)]
  if made.mesh.size > 1:
    problems += [
      *_replicated(made),
      *start_lines.moved_lines(made),
      *_idle_axes(made),
    ]
  return problems


def _replicated(made: program.TaskProgram) -> list[str]:
  """Returns a warning about large weights that every device has a copy of."""
  weights = learners.by_path(made.abstract_state.mdl_vars)
  large = {
    path: start_lines.bytes_per_device(x)
    for path, x in weights.items()
    if not any(_spec(x)) and made.model.ici_mesh_shape is not None
  }
  large = {path: n for path, n in large.items() if n >= _LARGE_BYTES}
  if not large:
    return []
  return [
    f'every device has a copy of {errors.short_list(list(large))}:'
    f' {start_lines.short_bytes(sum(large.values()))}'
  ]


def _idle_axes(made: program.TaskProgram) -> list[str]:
  """Returns a warning about mesh axes that split nothing."""
  used = set(made.batch_sharding.batch_axes)
  for x in jax.tree.leaves(made.abstract_state):
    for entry in _spec(x):
      used.update(sharding_lib.axes_of(entry))
  idle = [
    f'{axis} ({size} devices)'
    for axis, size in made.mesh.shape.items()
    if size > 1 and axis not in used
  ]
  if not idle:
    return []
  return [f'neither weights nor batches are split over {", ".join(idle)}']


def _spec(x: jax.ShapeDtypeStruct) -> Sequence[Any]:
  return () if x.sharding is None else x.sharding.spec
