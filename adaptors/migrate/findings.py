"""Findings about experiments, as plain values for any kind of report.

All sizes are in bytes.
"""

import dataclasses
import enum
from typing import Any

from adaptors.translate.view import Issue


class Status(enum.StrEnum):
  """How a task or an experiment runs here."""

  NATIVE = 'native'
  PARTLY = 'partly bridged'
  BRIDGED = 'bridged'
  IMPOSSIBLE = 'impossible'

  @property
  def urgency(self) -> int:
    """Sort key: 0 is the most urgent."""
    return list(reversed(Status)).index(self)

  @classmethod
  def worst(cls, statuses) -> 'Status':
    """Returns the most urgent status.

    >>> str(Status.worst([Status.NATIVE, Status.BRIDGED]))
    'bridged'
    """
    return min(statuses, key=lambda status: status.urgency)


@dataclasses.dataclass(frozen=True)
class Layer:
  """A layer of a task, or several identical ones, with its children.

  Attributes:
    name: in its parent, such as `trans[0-5]` for several identical layers.
    class_path: the dotted path of its class; '' if unknown.
    is_native: whether it has a translation to JAX.
    parameters: number of trainable parameters, with those of its children, in
      all `count` layers.
    count: number of identical layers.
    becomes: its path in the JAX model, with slashes; '' if there is none.
    issues: reasons why it, apart from its children, is not native.
    children: its child layers.
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
  """An estimate of the memory of training: the state and the gradients.

  Attributes:
    weights: trainable variables.
    others: non-trainable variables, such as moving statistics.
    optimizer: the learner's state, with moving averages of weights.
    gradients: of all weights.
    per_device: the total on the device with the most.
    mesh: devices by axis; empty if weights are replicated.
  """

  weights: int
  others: int
  optimizer: int
  gradients: int
  per_device: int
  mesh: dict[str, int]

  @property
  def total(self) -> int:
    """The memory on a single device."""
    return self.weights + self.others + self.optimizer + self.gradients


# What the estimate does not include.
NOT_IN_MEMORY = (
  "activations, batches, XLA's temporary buffers, and a checkpoint that is"
  ' being written'
)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of a check.

  Attributes:
    works: None if it could not be checked.
    text: how it works, or why not.
  """

  works: bool | None
  text: str


NOT_TRACED = Outcome(None, 'not traced: its steps may fail')


@dataclasses.dataclass(frozen=True)
class Task:
  """A task of an experiment.

  Attributes:
    name: in a multi-task model; '' for a single task.
    class_path: the dotted path of its class.
    status: how it runs here.
    problem: why it does not run; '' if it does.
    issues: reasons why it is not native.
    notes: settings without an effect here, and other notes.
    advice: changes that would make it native.
    sketch: source code of a translator to start from; '' for none.
    layers: its layers; None if unknown.
    parameters: number of trainable parameters; None if unknown.
    memory: of a training run; None if unknown.
    memory_problem: why its layers or weights are unknown; else ''.
    misfit: why its weights cannot be sharded over its mesh; else ''.
    checkpoints: whether Lingvo's checkpoints can be imported.
    trace: whether a step of training and of an evaluation can be traced; None
      if not tried.
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
    kind: the source of its examples.
    driven: the adaptor, and its backend.
    shapes: (examples, length) of batches, length None if it varies; empty if
      unknown.
    remarks: limitations, and differences from Lingvo.
  """

  dataset: str
  class_path: str
  kind: str
  driven: str
  shapes: tuple[tuple[int, int | None], ...] = ()
  remarks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Trial:
  """A trial run: some steps of training and an evaluation, reduced.

  Attributes:
    problem: why it failed; '' if it did not.
    seconds: it took, without the start of its process; None if it crashed.
    losses: of each step of training.
    eval_losses: of each task's evaluation.
  """

  problem: str = ''
  seconds: float | None = None
  losses: tuple[float | str, ...] = ()
  eval_losses: tuple[float | str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Experiment:
  """All findings about an experiment.

  Attributes:
    name: in the registry, or the folder of an old run.
    status: how it runs here.
    next_step: what to do next, in a line with all reasons.
    problem: why it does not run; '' if it does.
    tasks: one, or several that take turns; empty if its Params cannot be made.
    inputs: its datasets.
    inputs_problem: why they are unknown; else ''.
    schedule: its translated program schedule, in lines.
    trial: a trial run; None if none was made.
  """

  name: str
  status: Status
  next_step: str
  problem: str = ''
  tasks: tuple[Task, ...] = ()
  inputs: tuple[Input, ...] = ()
  inputs_problem: str = ''
  schedule: tuple[str, ...] = ()
  trial: Trial | None = None

  @property
  def command(self) -> str:
    """The command that runs it; '' if it is impossible."""
    if self.status is Status.IMPOSSIBLE:
      return ''
    flag = 'lingvo_logdir' if '/' in self.name else 'exp'
    return f'python -m pax_compat.main --{flag}={self.name} --job_log_dir=...'

  @property
  def parameters(self) -> int | None:
    """Number of trainable parameters; None if unknown."""
    counts = [task.parameters for task in self.tasks]
    return None if not counts or None in counts else sum(counts)

  @property
  def bytes_per_device(self) -> int | None:
    """Memory of a training run per device; None if unknown."""
    memories = [task.memory for task in self.tasks]
    if not memories or None in memories:
      return None
    return sum(memory.per_device for memory in memories)

  @property
  def traced(self) -> str:
    """Whether steps of all tasks can be traced: `yes`, `NO` or `not traced`.

    >>> Experiment('lm.A', Status.NATIVE, 'run it').traced
    'not traced'
    """
    works = [task.trace and task.trace.works for task in self.tasks]
    if False in works:
      return 'NO'
    return 'yes' if works and all(works) else 'not traced'

  @property
  def agrees(self) -> bool | None:
    """Whether the trial ran as the report says; None without a trial.

    >>> trial = Trial(problem='it has no loss')
    >>> Experiment('lm.A', Status.BRIDGED, 'run it', trial=trial).agrees
    False
    """
    if self.trial is None:
      return None
    return bool(self.trial.problem) == (self.status is Status.IMPOSSIBLE)

  @property
  def reasons(self) -> int:
    """Number of reasons why it is not native."""
    return sum(len(task.issues) for task in self.tasks)

  def as_dict(self) -> dict[str, Any]:
    """Returns the findings in dicts and lists, for JSON."""
    return dataclasses.asdict(self) | {
      'parameters': self.parameters,
      'traced': self.traced,
      'bytes_per_device': self.bytes_per_device,
    }


def by_priority(experiments: list[Experiment]) -> list[Experiment]:
  """Returns experiments in the order in which to work on them.

  Impossible ones are first; then those that are not native, with the fewest
  reasons first; then native ones.

  >>> native = Experiment('lm.A', Status.NATIVE, 'run it')
  >>> broken = Experiment('lm.B', Status.IMPOSSIBLE, 'repair it: no file')
  >>> [e.name for e in by_priority([native, broken])]
  ['lm.B', 'lm.A']
  """
  return sorted(
    experiments, key=lambda e: (e.status.urgency, e.reasons, e.name)
  )
