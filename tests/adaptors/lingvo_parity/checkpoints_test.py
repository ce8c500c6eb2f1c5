"""Tests of comparisons that start from weights of a TensorFlow checkpoint."""

import contextlib

import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.lingvo_parity import (
  checkpoints,
  equalizing,
  lingvo_side,
  our_side,
  synthetic,
)
from adaptors.params import shrinking
from adaptors.translate.tasks import single as task_translation
from pax_compat import errors
from pax_compat.nested_map import NestedMap
from tests.adaptors import small_experiments

_NAME = 'lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmaxTiny'


def _params(width: int):
  """Returns Params of a small recurrent model."""
  params = small_experiments.task_params(_NAME, shrinking.Sizes(width=width))
  return equalizing.equalize(params)[0]


@contextlib.contextmanager
def _task(params):
  """Builds a task; yields it with its variables by theta path."""
  batch = synthetic.batch(params, 2, 4)
  with fed_task.build(params, batch, optimized=False) as made:
    yield made, dict(made.task.vars.FlattenItems())


@pytest.fixture(scope='module')
def params():
  """Params of a task."""
  return _params(16)


@pytest.fixture(scope='module')
def saved(params, tmp_path_factory):
  """The folder of a run with a checkpoint, and the weights in it."""
  tf = lingvo_runtime.module('lingvo.compat')
  folder = tmp_path_factory.mktemp('run')
  with _task(params) as (made, variables):
    saver = tf.train.Saver(list(variables.values()))
    made.start()
    shifted = {k: v + 0.5 for k, v in made.session.run(variables).items()}
    for path, variable in variables.items():
      variable.load(shifted[path], made.session)
    saver.save(made.session, str(folder / 'train' / 'ckpt'), global_step=7)
  return folder, shifted


def test_it_is_found_by_any_of_its_names(params, saved):
  folder, weights = saved
  with _task(params) as (_, variables):
    for path in ('', 'train', 'train/ckpt-7'):
      read = checkpoints.weights_of(str(folder / path))(variables)
      assert set(read) == set(weights)
      for theta, value in weights.items():
        assert (read[theta] == value).all()


def test_both_sides_start_from_it(params, saved):
  folder, weights = saved
  batch = synthetic.batch(params, 2, 4)
  read = checkpoints.weights_of(str(folder))
  lingvo = lingvo_side.run(params, batch, [], read)
  assert set(lingvo.weights) == set(weights)
  for theta, value in weights.items():
    assert (lingvo.weights[theta] == value).all()
  ours = our_side.run(
    task_translation.translate_task(params, 'saved'),
    NestedMap(batch),
    [],
    lingvo.weights,
    sample=lingvo.sample,
    step_samples=[],
  )
  assert ours.loss == pytest.approx(lingvo.loss, rel=1e-5)


def _refusal(params, saved) -> list[str]:
  """Returns the reasons why a checkpoint is refused."""
  read = checkpoints.weights_of(str(saved[0]))
  with _task(params) as (_, variables):
    with pytest.raises(errors.UserError) as error:
      read(variables)
  assert 'does not have the weights of this experiment' in str(error.value)
  return str(error.value).splitlines()[1:]


def test_a_checkpoint_of_other_sizes(saved):
  """Each variable of another shape is named."""
  lines = _refusal(_params(32), saved)
  [of_table] = [line for line in lines if '(of lm.emb.wm[0])' in line]
  assert 'has the shape [' in of_table and 'the experiment has [' in of_table


def test_a_checkpoint_of_another_task(params, saved):
  """Each variable that is not there is named."""
  lines = _refusal(params.Copy().Set(name='other'), saved)
  assert len(lines) == len(saved[1])
  assert all(' is missing; did you mean: 1bwds_' in line for line in lines)


def test_no_checkpoint(tmp_path):
  with pytest.raises(errors.UserError, match='has no TensorFlow checkpoint'):
    checkpoints.weights_of(str(tmp_path))
