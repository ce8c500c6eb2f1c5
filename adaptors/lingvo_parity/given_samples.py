"""A sampled softmax with given samples: the classes that TensorFlow drew.

Shapes: R training steps, S sampled classes.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from pax_compat import config as config_lib
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import Config
from pax_compat.layers.softmaxes.candidate_sampling import Sample
from pax_compat.layers.softmaxes.sampled_softmax import SampledSoftmax


class GivenSamples(SampledSoftmax):
  """A sampled softmax that uses the given samples one after the other.

  Attributes:
    classes: [R, S], sampled classes of each step.
    num_tries: [R], number of tries of each step's sample.
  """

  classes: Sequence[Sequence[int]] = ()
  num_tries: Sequence[int] = ()

  def setup(self):
    super().setup()
    if len(self.classes) > 1:
      self.create_variable(
        'step',
        WeightHParams([], init=WeightInit.Constant(0), dtype=jnp.int32),
        trainable=False,
      )

  def draw_sample(self) -> Sample:
    step = 0
    if len(self.classes) > 1:
      step = self.get_var('step')
      self.update_var('step', step + 1)
    return Sample(
      jnp.array(self.classes)[step], jnp.array(self.num_tries)[step]
    )


def given(softmax: Config, samples: Sequence[tuple]) -> Config:
  """Returns the config of a `SampledSoftmax` with given samples.

  Args:
    softmax: the config.
    samples: for each step the classes [S], and TensorFlow's expected count of
      each class.
  """
  classes, counts = zip(*samples, strict=True)
  return GivenSamples.config(
    **config_lib.set_fields(softmax),
    classes=[c.tolist() for c in classes],
    num_tries=[
      _num_tries(*sample, softmax.num_classes)
      for sample in zip(classes, counts, strict=True)
    ],
  )


def _num_tries(classes, expected_counts, num_classes: int) -> int:
  """Returns TensorFlow's number of tries, computed from its expected counts."""
  classes = classes.astype(np.float64)
  p = np.log1p(1 / (classes + 1)) / np.log(num_classes + 1)
  counts = expected_counts.astype(np.float64)
  if np.allclose(counts, classes.size * p, rtol=1e-5):
    return classes.size  # Its formula if no class was drawn twice.
  tries = np.log1p(-counts) / np.log1p(-p)
  # The rarest class is most precise: its count is furthest from 1.
  return round(float(tries[np.argmax(classes)]))
