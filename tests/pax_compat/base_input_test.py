"""Tests of the base class of inputs."""

import doctest
import sys
import types

import jax
import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.evaluating import evaluation


class Numbered(base_input.BaseInput):
  """Six batches of three rows, each with the batch's number.

  Attributes:
    weight: of the rows; None leaves it to others.
    has_state: whether the input has a state.
  """

  weight: float | None = None
  has_state: bool = True

  def __post_init__(self):
    super().__post_init__()
    self._next = 0

  def get_next(self):
    if self._next == len(_ALL):
      raise StopIteration
    batch = NestedMap(x=np.full([3, 2], self._next))
    if self.weight is not None:
      batch.eval_sample_weights = np.full([3], self.weight, np.float32)
    self._next += 1
    return batch

  def reset(self):
    self._next = 0

  def _get_state_internal(self):
    if not self.has_state:
      raise NotImplementedError
    return str(self._next).encode()

  def _set_state_internal(self, state):
    self._next = int(state)


def test_the_example_of_the_module():
  result = doctest.testmod(base_input)
  assert result.attempted > 5 and not result.failed


@pytest.mark.parametrize('name', ['Train', 'dev.v1:a_b+c-2'])
def test_names_that_can_be_a_folder(name):
  assert base_input.BaseInput.config(name=name).Instantiate().name == name


@pytest.mark.parametrize('name', ['', 'a/b', 'two words', 'größe', 'a\n'])
def test_other_names_are_refused(name):
  with pytest.raises(errors.UserError, match=r'BaseInput: name is '):
    base_input.BaseInput.config(name=name).Instantiate()


# (reset_for_eval, eval_loop_num_batches) and the batches of two evaluations;
# of six, numbered from 0.
_ALL = [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
  ('fields', 'first', 'second'),
  [
    (dict(reset_for_eval=True), _ALL, _ALL),
    (dict(reset_for_eval=True, eval_loop_num_batches=None), _ALL, _ALL),
    (dict(reset_for_eval=True, eval_loop_num_batches=-1), _ALL, _ALL),
    (dict(reset_for_eval=True, eval_loop_num_batches=1), [0], [0]),
    (dict(reset_for_eval=True, eval_loop_num_batches=2), [0, 1], [0, 1]),
    (dict(eval_loop_num_batches=2), [0, 1], [2, 3]),
    (dict(), [0], [1]),
  ],
)
def test_the_batches_of_an_evaluation(fields, first, second):
  data = Numbered.config(**fields).Instantiate()
  assert [_evaluated(data), _evaluated(data)] == [first, second]


def _evaluated(data) -> list[int]:
  """Returns the numbers of the batches of one evaluation."""
  batches = evaluation.all_batches(data, lambda batch: batch)
  return [int(fed.arrays.x[0, 0]) for fed in batches]


@pytest.mark.parametrize('count', [None, -1])
def test_all_of_the_data_without_reset(count):
  config = Numbered.config(name='d', eval_loop_num_batches=count)
  with pytest.raises(errors.UserError, match='of d is None without reset_for'):
    config.Instantiate()
  training = config.Instantiate(is_training=True)
  assert training.eval_loop_num_batches is None


def test_too_few_batches_are_refused():
  data = Numbered.config(
    name='d', reset_for_eval=True, eval_loop_num_batches=7
  ).Instantiate()
  with pytest.raises(errors.UserError, match="'d' has 6 batches; expected 7"):
    _evaluated(data)


@pytest.mark.parametrize('count', [0, -2])
def test_an_evaluation_without_batches(count):
  config = base_input.BaseInput.config(name='d', eval_loop_num_batches=count)
  with pytest.raises(errors.UserError, match=f'batches of d is {count}; expec'):
    config.Instantiate()


def test_a_missing_method_names_the_subclass():
  class Mine(base_input.BaseInput):
    """Nothing of its own."""

  data = Mine.config().Instantiate()
  with pytest.raises(errors.UserError, match='Mine has no method `get_next`'):
    data.get_next()
  with pytest.raises(errors.UserError, match='Mine: .*the class has no method'):
    Mine.config(reset_for_eval=True).Instantiate()
  with pytest.raises(NotImplementedError, match='Mine'):
    data.reset()
  data.resume_at(3)
  data.close()


def test_strings_without_a_tokenizer_are_numbers():
  data = base_input.BaseInput.config().Instantiate()
  ids = np.array([[5, 6, 7], [8, 9, 0]])
  assert data.ids_to_strings(ids, np.array([3, 1])) == ['5 6 7', '8']


# Peeking, padding, and where an input stands.


def test_the_peeked_batch_comes_next():
  data = Numbered.config().Instantiate()
  assert data.peek_padded() is data.peek_padded()
  assert [data.get_next_padded().x[0, 0] for _ in range(6)] == _ALL
  assert data.peek_padded() is None
  with pytest.raises(StopIteration):
    data.get_next_padded()


def test_a_reset_drops_the_peeked_batch():
  data = Numbered.config().Instantiate()
  data.get_next_padded()
  assert data.peek_padded().x[0, 0] == 1
  data.reset()
  assert [data.get_next_padded().x[0, 0] for _ in range(6)] == _ALL


@pytest.mark.parametrize('weight', [None, 0.5])
def test_padding_rows_have_weight_0(weight):
  data = Numbered.config(batch_padding_size=2, weight=weight).Instantiate()
  data.get_next_padded()
  batch = data.peek_padded()
  np.testing.assert_array_equal(batch.x, [[1, 1]] * 3 + [[0, 0]] * 2)
  weights = [1.0 if weight is None else weight] * 3 + [0.0] * 2
  np.testing.assert_array_equal(batch.eval_sample_weights, weights)
  assert batch.eval_sample_weights.dtype == np.float32


def test_an_input_continues_at_its_state(tmp_path):
  data = Numbered.config().Instantiate()
  data.get_next_padded()
  data.save(tmp_path / 'at_1')
  data.peek_padded()
  data.save(tmp_path / 'peeked_at_1')
  assert data.get_next_padded().x[0, 0] == 1
  data.save(tmp_path / 'at_2')
  for file, number in (('at_1', 1), ('peeked_at_1', 1), ('at_2', 2)):
    other = Numbered.config().Instantiate()
    other.peek_padded()
    other.restore(tmp_path / file)
    assert other.get_next_padded().x[0, 0] == number
  with pytest.raises(
    errors.UserError, match="'input' cannot be read from .*no"
  ):
    data.restore(tmp_path / 'nothing')


def test_a_state_is_asked_for_too_late():
  data = Numbered.config(has_state=False).Instantiate()
  data.peek_padded()
  with pytest.raises(errors.UserError, match=r'expected get_state\(\) before'):
    data.get_state()
  data.get_next_padded()
  with pytest.raises(NotImplementedError):
    data.get_state()


@pytest.mark.parametrize(
  ('batch', 'wrong'),
  [
    ({'x': np.zeros(3)}, 'a batch of d is a dict; expected a NestedMap'),
    (None, 'a batch of d is a NoneType; expected'),
    (NestedMap(a=NestedMap(x=[1])), "'a.x.0' of a batch of d is a int; expect"),
  ],
)
def test_a_batch_is_a_map_of_arrays(batch, wrong):
  class Mine(Numbered):
    def get_next(self):
      return batch

  with pytest.raises(errors.UserError, match=f'Mine: .*{wrong}'):
    Mine.config(name='d').Instantiate().peek_padded()


def test_the_end_of_data_of_tensorflow(monkeypatch):
  class OutOfRangeError(Exception):
    """Stands for TensorFlow's, which is not loaded here."""

  class Mine(Numbered):
    def get_next(self):
      raise OutOfRangeError

  with pytest.raises(OutOfRangeError):
    Mine.config().Instantiate().get_next_padded()
  module = types.SimpleNamespace(OutOfRangeError=OutOfRangeError)
  monkeypatch.setitem(
    sys.modules, 'tensorflow.python.framework.errors_impl', module
  )
  assert Mine.config().Instantiate().peek_padded() is None


def test_an_input_whose_state_fails_can_be_peeked_at():
  class Refuses(Numbered):
    """Raises for its state."""

    def _get_state_internal(self):
      raise errors.UserError('not now')

  data = Refuses.config().Instantiate()
  with pytest.raises(errors.UserError, match='not now'):
    data.get_state()
  assert data.peek_padded() is data.get_next_padded()


def test_descriptions_of_restarts():
  data = Numbered.config().Instantiate()
  assert data.after_restart() == 'it starts at its first batch again'

  class Resumes(Numbered):
    """Has a `resume_at`."""

    def resume_at(self, step):
      self._next = step

  data = Resumes.config().Instantiate()
  assert data.after_restart() == 'it goes on where its resume_at(step) puts it'


def test_default_names():
  for fields, name in (
    (dict(is_training=True), 'train'),
    (dict(), 'input'),
    (dict(is_training=True, name='input'), 'input'),
  ):
    assert Numbered.config(**fields).Instantiate().name == name


def test_a_batch_for_pmap():
  batch = NestedMap(x=np.arange(6.0).reshape(3, 2), y=np.arange(3))
  data = Numbered.config(name='d').Instantiate()
  split = data.reshard_for_pmap(batch)
  assert jax.tree.map(np.shape, split) == NestedMap(x=(1, 3, 2), y=(1, 3))
  np.testing.assert_array_equal(jax.pmap(lambda b: b.x)(split)[0], batch.x)


def test_batch_sizes():
  config = Numbered.config(batch_size=4, num_infeed_hosts=3)
  assert Numbered.get_batch_size(config) == 4
  assert Numbered.get_global_batch_size(config) == 12
  with pytest.raises(errors.UserError, match='Numbered.batch_size of d is not'):
    Numbered.get_batch_size(Numbered.config(name='d'))


def test_negative_padding_is_refused():
  with pytest.raises(errors.UserError, match='of d is -1; expected 0 or more'):
    Numbered.config(name='d', batch_padding_size=-1).Instantiate()


# What batches are like.


def test_specs_are_read_from_a_batch(caplog):
  config = Numbered.config(name='d', batch_padding_size=2, weight=1.0)
  assert config.Instantiate().batch_specs() is None
  provider = base_input.DatasetInputSpecsProvider.config(input_p=config)
  with caplog.at_level('INFO', logger='absl'):
    specs = provider.Instantiate().get_input_specs()
  assert specs == NestedMap(
    x=jax.ShapeDtypeStruct((5, 2), np.int64),
    eval_sample_weights=jax.ShapeDtypeStruct((5,), np.float32),
  )
  assert "Numbered 'd' has no batch_specs(): reading one batch" in caplog.text


def test_a_provider_closes_its_input():
  closed = []

  class Ending(Numbered):
    """Has no batch."""

    def get_next(self):
      raise StopIteration

    def close(self):
      closed.append(self)

  provider = base_input.DatasetInputSpecsProvider.config(
    input_p=Ending.config(name='d')
  )
  with pytest.raises(errors.UserError, match="dataset 'd' has no batch"):
    provider.Instantiate().get_input_specs()
  assert len(closed) == 1


def test_host_fields_have_no_specs():
  class Texts(Numbered):
    """Keeps `inner.source` on the host, too."""

    def is_host_field(self, path, leaf):
      return path == 'inner.source' or super().is_host_field(path, leaf)

  batch = NestedMap(
    inner=NestedMap(source=np.ones([2]), x=np.ones([2, 3])),
    text=np.array(['a', 'b']),
  )
  assert Texts.config().Instantiate().specs_of(batch, rows=7) == NestedMap(
    inner=NestedMap(x=jax.ShapeDtypeStruct((7, 3), np.float64))
  )


def test_fields_may_be_declared_in_a_nested_class():
  class Longer(Numbered):
    """Adds to the batches of another input."""

    class HParams(Numbered.HParams):
      """What is set."""

      more: int = 3

    def get_next(self):
      batch = super().get_next()
      batch.y = batch.x + self.more
      return batch

  batch = Longer.HParams(name='d', weight=0.5, more=4).Instantiate().get_next()
  np.testing.assert_array_equal(batch.y, batch.x + 4)
  np.testing.assert_array_equal(batch.eval_sample_weights, 0.5)


def test_whether_a_state_fits_any_hosts_is_a_property_of_the_class():
  assert isinstance(
    vars(base_input.BaseInput)['state_fits_any_hosts'], property
  )
  data = Numbered.config(batch_size=3).Instantiate()
  assert not data.state_fits_any_hosts
  with pytest.raises(AttributeError):
    data.state_fits_any_hosts = True
