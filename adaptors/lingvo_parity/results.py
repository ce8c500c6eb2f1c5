"""The results of a run, of Lingvo's task or of the translated one."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class LayerOutput:
  """An output of a layer's call.

  Attributes:
    path: of the layer: `lm.trans[0].fflayer` in Lingvo, here
      `lm/transformer/x_layers_0`.
    name: of the value in a map; '' for a single output.
    value: an array of floats.
    followers: indices of the outputs that are computed from it; of Lingvo only.
    reaches_loss: whether the loss is computed from it; of Lingvo only.
  """

  path: str
  name: str
  value: np.ndarray
  followers: tuple[int, ...] = ()
  reaches_loss: bool = False


@dataclasses.dataclass(frozen=True)
class Step:
  """The results of a training step.

  Attributes:
    loss: before the step.
    rate: the learning rate; None if there are several learners.
  """

  loss: float
  rate: float | None


@dataclasses.dataclass(frozen=True)
class Sample:
  """Classes that a sampled softmax drew.

  Attributes:
    classes: [S], int.
    expected_counts: [S], float.
  """

  classes: np.ndarray
  expected_counts: np.ndarray


@dataclasses.dataclass
class Run:
  """The results of a task; arrays by theta path.

  Attributes:
    weights: initial weights; of Lingvo only.
    layers: outputs of layers for the first batch, in order of computation.
    loss: of the first batch.
    gradients: of that loss, before clipping.
    metrics: of the first batch at evaluation, by name.
    steps: of training, one per batch.
    last: the weights after the last step.
    sample: of the softmax for the first batch; None without sampling.
    step_samples: of the softmax in each step.
    is_random: whether the loss still depends on random numbers: it differs if
      it is computed again.
    random_layers: indices of the layers whose outputs differ then; of Lingvo
      only.
    random_gradients: paths of the gradients that differ then; of Lingvo only.
    random_ops: ops of the graph that draw random numbers; of Lingvo only.
    fixed: number of calls of random ops that got fixed numbers, by (function,
      name scope); of Lingvo only.
    eval_device: the device type that Lingvo's evaluation was built for.
  """

  weights: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  layers: list[LayerOutput] = dataclasses.field(default_factory=list)
  loss: float = 0.0
  gradients: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  metrics: dict[str, float] = dataclasses.field(default_factory=dict)
  steps: list[Step] = dataclasses.field(default_factory=list)
  last: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  sample: Sample | None = None
  step_samples: list[Sample] = dataclasses.field(default_factory=list)
  is_random: bool = False
  random_layers: frozenset[int] = frozenset()
  random_gradients: frozenset[str] = frozenset()
  random_ops: tuple[str, ...] = ()
  fixed: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)
  eval_device: str = 'cpu'
