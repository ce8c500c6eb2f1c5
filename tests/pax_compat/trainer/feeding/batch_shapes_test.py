"""Tests of the shapes of batches without data."""

import jax
import numpy as np
import pytest

from lm_tasks.vision.params import imagenet_resnets
from pax_compat import errors
from pax_compat.experiments import resolved
from pax_compat.trainer.feeding import batch_shapes


def _resolved(*settings: str) -> resolved.ResolvedExperiment:
  return resolved.resolve(
    imagenet_resnets.ResNet50Pjit(),
    name='resnet',
    attributes=['TRAIN_BATCH_SIZE=16', "IMAGENET_DATA_DIR='/missing'"],
    settings=settings,
  )


def test_a_provider_that_needs_no_input_is_asked_first():
  specs, source = batch_shapes.of(_resolved())
  assert source == batch_shapes.BY_CONFIG
  assert specs.image == jax.ShapeDtypeStruct((16, 224, 224, 3), np.float32)


def test_without_enforced_specs_the_data_is_needed():
  with pytest.raises(errors.UserError, match='ImageNet is not in /missing'):
    batch_shapes.of(_resolved('task.train.enforce_input_specs=False'))
