"""Tests of starting a native run from a TensorFlow checkpoint."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import checkpoints, errors, tasks_lib
from pax_compat.warm_start import opening, start
from tests.pax_compat.trainer import tiny

_AVERAGE = '/ExponentialMovingAverage'


def test_variables_averages_and_the_step(tmp_path):
  tf = lingvo_runtime.tensorflow()
  scale, bias, average = (np.full(8, x, np.float32) for x in (1, 2, 3))
  (tmp_path / 'train').mkdir()
  for step in (5, 7):
    tensors = {
      'lm/ln/scale/var': scale + step,
      'lm/ln/bias/var': bias,
      f'lm/ln/bias/var{_AVERAGE}': average,
      'global_step': np.int64(step),
    }
    tf.raw_ops.SaveV2(
      prefix=str(tmp_path / 'train' / f'ckpt-{step:08d}'),
      tensor_names=list(tensors),
      shape_and_slices=[''] * len(tensors),
      tensors=list(map(tf.constant, tensors.values())),
    )
  rules = tasks_lib.CheckpointLoadingRules(
    load_rules=[
      ('params/lm/final_ln/bias', 'ema/lm/ln/bias/var'),
      ('params/lm/final_ln/(.*)', 'lm/ln/{}/var'),
    ],
    load_step=True,
  )
  one = start.Start({str(tmp_path): rules})
  assert one.step == 7
  state = one.state(tiny.make_program(), tiny.batch())
  found = checkpoints.state_paths(state)
  np.testing.assert_array_equal(
    found['mdl_vars.params.lm.final_ln.scale'], scale + 7
  )
  np.testing.assert_array_equal(
    found['mdl_vars.params.lm.final_ln.bias'], average
  )
  assert int(found['step']) == 7
  prefix = tmp_path / 'train' / 'ckpt-00000005'
  assert opening.open_checkpoint(prefix).step == 5
  assert opening.open_checkpoint(tmp_path, 5).step == 5
  with pytest.raises(errors.UserError, match='step 6; expected one of 5, 7'):
    opening.open_checkpoint(tmp_path, 6)
  wrong = tasks_lib.CheckpointLoadingRules(
    load_rules=[('params/lm/final_ln/scale', 'lm/ln/scales/var')]
  )
  with pytest.raises(errors.UserError, match='did you mean: lm/ln/scale/var'):
    start.Start({str(tmp_path): wrong}).state(tiny.make_program(), tiny.batch())
