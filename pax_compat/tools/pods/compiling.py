"""`--compile_only`: a train step, compiled for TPUs that are not there.

The step is the one that trains: its mesh, shardings and batch are those of the
run. libtpu compiles it on the CPU. Memory and collectives are read from the
compiled program, so they are what the machine would do; its time is a bound
(a roofline), never measured.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax

from pax_compat import errors
from pax_compat.layers.attentions import attention_kernels
from pax_compat.tools import experiment_check
from pax_compat.tools.pods import (
  collectives,
  hlo_text,
  memory_traffic,
  topology,
)
from pax_compat.trainer import model_flops, partitioning, program
from pax_compat.trainer.feeding import batch_shapes
from pax_compat.trainer.reporting import start_lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
  """A compiled train step.

  Attributes:
    name: of the experiment.
    topology: the machine.
    mesh: length of each axis of the mesh.
    batch: the global batch, as text.
    seconds: of tracing and lowering, and of compiling.
    cpu_seconds: of compiling, in all threads.
    memory: bytes of each device that the program allocates, by kind.
    peak_memory: bytes of each device that are in use at once, of the same
      memory; None if the compiler does not say.
    attention: the attention kernels.
    model_flops: of the model, each device and step; None if not known.
    computed_flops: with what is computed again; None if not known.
    traffic: bytes to and from the memory of each device in a step.
    collectives: of a step.
  """

  name: str
  topology: topology.Topology
  mesh: dict[str, int]
  batch: str
  seconds: tuple[float, float]
  cpu_seconds: float
  memory: dict[str, int]
  peak_memory: int | None
  attention: tuple[str, ...]
  model_flops: float | None
  computed_flops: float | None
  traffic: float
  collectives: list[collectives.Collective]

  @property
  def peak(self) -> float:
    """Peak FLOPs per second of a device."""
    return model_flops.peak_of(self.topology.devices[0].device_kind)

  @property
  def fits(self) -> bool:
    """Whether a device has the memory."""
    return self.total_memory <= self.topology.chip.memory_bytes

  @property
  def total_memory(self) -> int:
    return sum(self.memory.values())

  def times(self) -> dict[str, float]:
    """Returns seconds of a step, if only one resource were limited."""
    chip = self.topology.chip
    sent = {True: 0.0, False: 0.0}
    for one in self.collectives:
      sent[one.between_slices] += one.times * one.sent
    # A ring along one dimension of the torus uses both directions.
    found = {
      'memory': self.traffic / chip.memory_rate,
      'links': sent[False] / (2 * chip.link_rate),
    }
    if self.computed_flops is not None:
      found['products'] = self.computed_flops / self.peak
    if sent[True]:
      found['network'] = sent[True] / topology.NETWORK_RATE
    return found

  def roofline(self) -> tuple[str, float]:
    """Returns what limits a step, and the seconds that it takes at least."""
    times = self.times()
    limit = max(times, key=times.__getitem__)
    return limit, times[limit]

  @property
  def mfu(self) -> float | None:
    """The model FLOPs utilisation of the roofline; None if not known."""
    if self.model_flops is None:
      return None
    return self.model_flops / self.peak / self.roofline()[1]

  def text(self) -> str:
    """Returns the lines that `--compile_only` prints."""
    times = self.times()
    limit, step = self.roofline()
    parts = ', '.join(
      f'{kind} {start_lines.short_bytes(n)}' for kind, n in self.memory.items()
    )
    capacity = start_lines.short_bytes(self.topology.chip.memory_bytes)
    verdict = 'fits' if self.fits else 'DOES NOT FIT'
    rows = {
      'topology': str(self.topology),
      'mesh': start_lines.mesh_text(self.mesh),
      'global batch': self.batch,
      'compiled in': f'{self.seconds[1]:.0f} s ({self.cpu_seconds:.0f} s of'
      f' CPU time), after {self.seconds[0]:.0f} s of tracing',
      'memory per device': f'{start_lines.short_bytes(self.total_memory)} of'
      f' {capacity}, {verdict}: {parts}',
      'in use at once': start_lines.short_bytes(self.peak_memory or 0),
      'memory traffic': start_lines.short_bytes(self.traffic),
    }
    if self.peak_memory is None:
      del rows['in use at once']
    if self.attention:
      rows['attention'] = '; '.join(self.attention)
    if self.model_flops is not None:
      rows['FLOPs per device'] = (
        f'{self.model_flops:.3g} of the model, {self.computed_flops:.3g}'
        ' computed'
      )
    for (axes, kind), (times_, sent) in collectives.by_axes(
      self.collectives
    ).items():
      rows[f'{kind} ({", ".join(axes)})'] = (
        f'{times_:,} times, {start_lines.short_bytes(sent)} sent by a device'
      )
    rows['bounds of a step'] = ', '.join(
      f'{kind} {seconds:.3g} s' for kind, seconds in times.items()
    )
    if self.model_flops is not None:
      rows['roofline'] = (
        f'{step:.3g} s a step, limited by {limit}: MFU {100 * self.mfu:.1f} %'
      )
    width = max(map(len, rows))
    return '\n'.join(
      [
        f'{self.name}: compiled for TPUs that are not there',
        *(f'  {label.ljust(width)}  {text}' for label, text in rows.items()),
      ]
    )


def compile_only(
  resolve: Callable[[], Any], topology_name: str, num_slices: int = 1
) -> Compiled:
  """Compiles the train step of an experiment for a topology.

  It changes the devices of this process: nothing can be trained afterwards.

  Args:
    resolve: see `experiment_check.check`.
    topology_name: see `topology.create`.
    num_slices: number of slices.

  Raises:
    UserError: the experiment or the topology is invalid, or they do not fit.
  """
  jax.config.update('jax_platforms', 'cpu')
  machine = topology.create(topology_name, num_slices)
  experiment_check.simulate(len(machine.devices))
  experiment = resolve()
  with experiment.set_up():
    task = experiment.task.Instantiate()
    mesh = partitioning.mesh_of_task(task, machine.devices)
    batch = _batch_of_a_process(experiment, task, mesh)
    started = time.monotonic()
    made = program.create(task, mesh, batch)
    with attention_kernels.recording() as attention:
      traced = made.trace_train_step(batch)
  lowered = traced.lower()
  compiling, cpu = time.monotonic(), time.process_time()
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    raise errors.UserError(
      f'{experiment.name} cannot be compiled for {machine}: {_short(e)}'
    ) from e
  ended, cpu = time.monotonic(), time.process_time() - cpu
  memory = compiled.memory_analysis()
  text = hlo_text.Program(compiled.as_text())
  whole = program.global_shapes(batch, made.batch_sharding)
  return Compiled(
    name=experiment.name,
    topology=machine,
    mesh=dict(mesh.shape),
    batch=start_lines.batch_text(batch, made),
    seconds=(compiling - started, ended - compiling),
    cpu_seconds=cpu,
    memory=_memory(memory),
    peak_memory=getattr(memory, 'peak_memory_in_bytes', None),
    attention=tuple(sorted(attention)),
    traffic=memory_traffic.of(text),
    collectives=collectives.of(text, mesh.shape, topology.slices_of(mesh)),
    model_flops=_each(model_flops.of_train_step(made, whole), mesh),
    computed_flops=_each(model_flops.of_traced(traced), mesh),
  )


def _batch_of_a_process(
  experiment: Any, task: Any, mesh: jax.sharding.Mesh
) -> Any:
  """Returns the shapes of the batch of one of the processes of the mesh.

  The input counts all devices as those of one process.
  """
  batch, _ = batch_shapes.of(experiment)
  sharding = partitioning.batch_sharding(mesh, task.train.inputs_split_mapping)
  hosts = sharding.num_infeed_hosts

  def shape(x):
    if x.shape and x.shape[0] % hosts:
      raise errors.UserError(
        f'{experiment.name}: a batch of {x.shape[0]} rows cannot be divided'
        f' over {hosts} hosts'
      )
    rows = (x.shape[0] // hosts,) if x.shape else ()
    return jax.ShapeDtypeStruct((*rows, *x.shape[1:]), x.dtype)

  return jax.tree.map(shape, batch)


def _each(flops: float | None, mesh: jax.sharding.Mesh) -> float | None:
  return None if flops is None else flops / mesh.size


def _memory(analysis: Any) -> dict[str, int]:
  new = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
  return {
    'state and batch': analysis.argument_size_in_bytes,
    'temporary': analysis.temp_size_in_bytes,
    'results': max(new, 0),
    'code': analysis.generated_code_size_in_bytes,
  }


def _short(error: Exception) -> str:
  """Returns the first lines of an error of XLA, which may have hundreds."""
  return '\n'.join(str(error).splitlines()[:3])
