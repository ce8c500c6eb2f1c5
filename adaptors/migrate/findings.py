"""What is found out about an experiment: plain values, for any kind of report.

All sizes are in bytes.
"""

import dataclasses
import enum

from adaptors.translate.view import Issue


class Status(enum.StrEnum):
  """How a task or an experiment runs here."""

  NATIVE = 'native'
  PARTLY = 'partly bridged'
  BRIDGED = 'bridged'
  IMPOSSIBLE = 'impossible'

  @property
  def urgency(self) -> int:
    """What is to be looked at first has the lowest number."""
    return list(reversed(Status)).index(self)

  @classmethod
  def of_all(cls, parts) -> 'Status':
    """Returns the status of what has parts: that of the worst."""
    return min(parts, key=lambda status: status.urgency)


@dataclasses.dataclass(frozen=True)
class Layer:
  """A layer of a task, and those in it.

  Attributes:
    name: as its parent calls it, such as `trans[0-5]` of several alike.
    class_path: the dotted path of its class; '' where it is not known.
    is_native: whether it has a translation to JAX.
    parameters: how many numbers it has to train, those in it included, and all
      of those alike.
    count: how many layers alike there are.
    becomes: where it is in the JAX model, with slashes; '' if nowhere.
    issues: what keeps it, and not a layer in it, from being native.
    children: the layers in it.
  """

  name: str
  class_path: str
  is_native: bool
  parameters: int
  count: int = 1
  becomes: str = ''
  issues: tuple[Issue, ...] = ()
  children: tuple['Layer', ...] = ()


@dataclasses.dataclass(frozen=True)
class Memory:
  """An estimate of what a training run holds between its steps, and gradients.

  Attributes:
    weights: what is trained.
    others: variables that are not trained, such as moving statistics.
    optimizer: what the learner keeps of them, averages of weights included.
    gradients: of the weights, all of them at once.
    per_device: of all these, what the device with the most of it has.
    mesh: devices by axis; empty where weights are whole on every device.
  """

  weights: int
  others: int
  optimizer: int
  gradients: int
  per_device: int
  mesh: dict[str, int]

  @property
  def total(self) -> int:
    """All of it, were there a single device."""
    return self.weights + self.others + self.optimizer + self.gradients


# What the estimate leaves out.
NOT_IN_MEMORY = (
  'activations, batches, what XLA needs while it computes, and a checkpoint'
  ' that is being written'
)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Whether something works.

  Attributes:
    works: whether it does; None where it could not be tried.
    text: how, or why not.
  """

  works: bool | None
  text: str


@dataclasses.dataclass(frozen=True)
class Task:
  """A task of an experiment.

  Attributes:
    name: of a task of several; '' of the only one.
    class_path: the dotted path of its class.
    status: how it runs here.
    problem: why it does not run at all; '' if it does.
    issues: what keeps it from being native.
    notes: settings that have no effect here, and what else is to be known.
    advice: what would make it native, one piece each.
    sketch: the source of a translator to begin with; '' for none.
    layers: its layers; None where they are not known.
    parameters: how many numbers are trained; None where it is not known.
    memory: of a training run; None where it is not known.
    memory_problem: why its layers or weights are not known; else ''.
    misfit: why they cannot be split as it asks for; else ''.
    checkpoints: whether those of Lingvo can come in.
    trace: whether XLA compiles it; None where it was not tried.
  """

  name: str
  class_path: str
  status: Status
  problem: str = ''
  issues: tuple[Issue, ...] = ()
  notes: tuple[str, ...] = ()
  advice: tuple[str, ...] = ()
  sketch: str = ''
  layers: Layer | None = None
  parameters: int | None = None
  memory: Memory | None = None
  memory_problem: str = ''
  misfit: str = ''
  checkpoints: Outcome | None = None
  trace: Outcome | None = None


@dataclasses.dataclass(frozen=True)
class Input:
  """A dataset of an experiment.

  Attributes:
    dataset: its name, such as `Train`.
    class_path: the dotted path of the input generator.
    kind: where it has its examples from.
    driven: the adaptor, and how it calls the generator.
    shapes: batches as (examples, length), length None where it varies; empty
      where it is not known.
    remarks: what is known not to work, and what is different here.
  """

  dataset: str
  class_path: str
  kind: str
  driven: str
  shapes: tuple[tuple[int, int | None], ...] = ()
  remarks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Experiment:
  """All that is found out about an experiment.

  Attributes:
    name: in the registry, or the folder of an old run.
    status: how it runs here.
    next_step: what to do next, in a line.
    problem: why it does not run at all; '' if it does.
    tasks: one, or several that are trained in turns; empty where its Params
      cannot be made.
    inputs: its datasets.
    inputs_problem: why they are not known; else ''.
    schedule: what its program schedule becomes, in lines.
  """

  name: str
  status: Status
  next_step: str
  problem: str = ''
  tasks: tuple[Task, ...] = ()
  inputs: tuple[Input, ...] = ()
  inputs_problem: str = ''
  schedule: tuple[str, ...] = ()

  @property
  def command(self) -> str:
    """What runs it; '' if nothing does."""
    if self.status is Status.IMPOSSIBLE:
      return ''
    flag = 'lingvo_logdir' if '/' in self.name else 'exp'
    return f'python -m pax_compat.main --{flag}={self.name} --job_log_dir=...'

  @property
  def parameters(self) -> int | None:
    """How many numbers are trained; None where it is not known."""
    counts = [task.parameters for task in self.tasks]
    return None if not counts or None in counts else sum(counts)

  @property
  def bytes_per_device(self) -> int | None:
    """Of a training run; None where it is not known."""
    memories = [task.memory for task in self.tasks]
    if not memories or None in memories:
      return None
    return sum(memory.per_device for memory in memories)

  @property
  def reasons(self) -> int:
    """How many things keep it from being native."""
    return sum(len(task.issues) for task in self.tasks)


def by_what_to_do(experiments: list[Experiment]) -> list[Experiment]:
  """Returns experiments in the order in which to look at them.

  First what does not run; then what could be native, with the least to do in
  front; then what is.
  """
  return sorted(
    experiments, key=lambda e: (e.status.urgency, e.reasons, e.name)
  )
