"""Replay: Lingvo's real readers go on exactly, whatever the number of hosts."""

import collections
import time

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from adaptors import lingvo_runtime
from adaptors.lingvo_input import eval_adaptors, input_adaptor, new_batch_size
from adaptors.lingvo_input.drivers import randomness
from adaptors.lingvo_input.replay import replay_order
from pax_compat import errors
from pax_compat.nested_map import NestedMap
from tests.adaptors.lingvo_input import generators as testing

LIMITS = [8, 4, 2]
LINES = 97


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  """Returns a folder of five files of lines that all differ."""
  folder = tmp_path_factory.mktemp('files')
  lines = testing.mixed_lines(LINES)
  for i in range(5):
    testing.write_lines(folder / f'part{i}.txt', lines[i::5])
  return folder


@pytest.fixture(name='adapt')
def _adapt():
  """Builds the adaptors of some hosts; all are closed at the end."""
  built = []

  def build(params, hosts=1, cls=input_adaptor.LingvoInputAdaptor, **fields):
    made = [
      cls(
        input=params,
        num_infeed_hosts=hosts,
        infeed_host_index=host,
        **{'is_training': True, 'replay': True, **fields},
      )
      for host in range(hosts)
    ]
    built.extend(made)
    return made

  yield build
  for adaptor in built:
    adaptor.close()


def _params(folder, **fields):
  return testing.letters_params(
    f'text:{folder}/part*.txt',
    **{'bucket_batch_limit': LIMITS, 'file_parallelism': 4, **fields},
  )


def _step(adaptors) -> tuple[list[str], bytes]:
  """Returns what all hosts feed at the next step, and their state then."""
  batches = [adaptor.get_next() for adaptor in adaptors]
  assert len({b.ids.shape for b in batches}) == 1
  states = {adaptor.get_state() for adaptor in adaptors}
  assert len(states) == 1
  lines = [t for b in batches for t in testing.texts(b, weighted=True)]
  return lines, states.pop()


def _history(adapt, params, plan, **fields) -> list[str]:
  """Returns what runs feed, each of which is killed after its last state.

  Args:
    adapt: builds adaptors.
    params: of their input.
    plan: hosts and steps of each run; more steps than there are end the data.
    **fields: of the adaptors.
  """
  fed, state = [], None
  for hosts, steps in plan:
    adaptors = adapt(params, hosts, **fields)
    for adaptor in adaptors if state else ():
      adaptor.set_state(state)
    for _ in range(steps):
      try:
        lines, state = _step(adaptors)
      except StopIteration:
        for adaptor in adaptors:
          with pytest.raises(StopIteration):
            adaptor.get_next()
        break
      fed += lines
    for adaptor in adaptors:
      adaptor.close()
  return fed


@pytest.mark.parametrize(
  'plan',
  [
    [(1, 100)],
    [(2, 3), (4, 2), (1, 100)],
    [(4, 1), (4, 3), (3, 1), (2, 100)],
    [(1, 5), (8, 100)],
  ],
)
def test_each_example_once_over_all_runs(adapt, folder, plan):
  fed = _history(adapt, _params(folder, repeat_count=1), plan)
  assert len(fed) == LINES == len(set(fed))


def test_small_batches_cut_from_large_ones_go_on_exactly(adapt, folder):
  fed = _history(
    adapt,
    _params(folder, repeat_count=1),
    [(2, 3), (4, 2), (1, 7), (3, 200)],
    cls=new_batch_size.LingvoInputAdaptorNewBatchSize,
    batch_size=2,
  )
  assert len(fed) == LINES == len(set(fed))


def test_an_endless_input_feeds_what_it_would_have_without_a_stop(
  adapt, folder
):
  params = _params(folder)
  whole = _history(adapt, params, [(1, 80)])
  assert len(whole) > 2 * LINES
  assert _history(adapt, params, [(1, 1), (1, 30), (1, 49)]) == whole
  # Of hosts that stop with no batch waiting, the examples are the same ones.
  for stop in (5, 12):
    fed = _history(adapt, params, [(2, stop), (1, 80)])
    counts = collections.Counter(fed) - collections.Counter(whole)
    assert sum(counts.values()) == len(fed) - len(whole)
  # Every bucket's examples come once an epoch, give or take a batch.
  counts = collections.Counter(whole).values()
  assert max(counts) - min(counts) <= 1


def test_how_fast_batches_are_taken_does_not_matter(adapt, folder):
  [fast], [slow] = adapt(_params(folder)), adapt(_params(folder))
  for i in range(60):
    if i % 7 == 0:
      time.sleep(0.01)
    testing.assert_same([fast.get_next()], [slow.get_next()])


def test_buckets_keep_their_shapes_on_several_hosts(adapt, folder):
  adaptors = adapt(_params(folder), 2)
  shapes = set()
  for _ in range(30):
    first, second = (adaptor.get_next() for adaptor in adaptors)
    assert first.ids.shape == second.ids.shape
    assert not set(testing.texts(first)) & set(testing.texts(second))
    shapes.add(first.ids.shape)
  assert shapes == {(8, 11), (4, 21), (2, 41)}


def test_resuming_without_a_state(adapt, folder, log):
  for hosts in (1, 2):
    whole, again = adapt(_params(folder), hosts), adapt(_params(folder), hosts)
    for adaptor in again:
      adaptor.resume_at(9)
    expected = [_step(whole) for _ in range(12)][9:]
    assert [_step(again) for _ in range(3)] == expected
  assert 'read 9 batches again' in log()
  assert 'cannot be positioned' not in log()


def test_the_state_is_that_of_the_batch_that_was_peeked_at(adapt, folder):
  [first], [again] = adapt(_params(folder)), adapt(_params(folder))
  first.get_next_padded()
  peeked = first.peek_padded()
  again.set_state(first.get_state())
  testing.assert_same([again.get_next_padded()], [peeked])


def test_a_reset_starts_again(adapt, folder):
  [adaptor] = adapt(_params(folder), num_batches=3)
  whole = testing.drain(adaptor)
  assert len(whole) == 3
  state = adaptor.get_state()
  adaptor.reset()
  testing.assert_same(testing.drain(adaptor), whole)
  adaptor.set_state(state)
  with pytest.raises(StopIteration):
    adaptor.get_next()


def test_what_is_drawn_at_random_is_the_same_again(adapt, folder, log):
  params = _drawing_params(folder, file_random_seed=7)
  [whole], [again] = adapt(params), adapt(params)
  batches = [whole.get_next() for _ in range(5)]
  state = whole.get_state()
  batches += [whole.get_next() for _ in range(5)]
  assert len({float(b.per_batch[0]) for b in batches}) == 10
  assert len(np.unique(np.concatenate([b.per_line for b in batches]))) > 20
  again.set_state(state)
  testing.assert_same([again.get_next() for _ in range(5)], batches[5:])
  assert 'the random seed is 7' in log()
  assert 'drawn with a seed: RandomUniform' in log()
  [other] = adapt(params.Copy().Set(file_random_seed=8))
  assert not np.array_equal(other.get_next().per_line, batches[0].per_line)
  [fixed] = adapt(params.Copy().Set(file_random_seed=0), input_random_seed=3)
  [same] = adapt(params.Copy().Set(file_random_seed=0), input_random_seed=3)
  testing.assert_same([fixed.get_next()], [same.get_next()])


def _drawing_params(folder, **fields):
  """Returns Params of an input that draws at random, by line and by batch."""
  tf = lingvo_runtime.module('tensorflow')
  generic = lingvo_runtime.module('lingvo.core.generic_input')
  ops = lingvo_runtime.module('lingvo.core.ops')
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  class DrawingInput(generators.BaseSequenceInputGenerator):
    @classmethod
    def Params(cls):  # noqa: N802
      p = super().Params()
      p.Define('draws_without_seed', False, 'Draws in a way of its own.')
      p.Define('threads', None, 'Threads of the reader.')
      return p

    def _DataSourceFromFilePattern(self, file_pattern, **unused):  # noqa: N802
      @tf.function
      def draw():  # A function called within a function.
        return tf.random.uniform([])

      def read(unused_line):
        return [draw()], tf.constant(1)

      p = self.params
      args = self.CommonInputOpArgs()
      args['num_threads'] = p.threads or args['num_threads']
      features, _ = generic.GenericInput(
        file_pattern=file_pattern, processor=read, **args
      )
      batch = py_utils.NestedMap(per_line=features[0])
      batch.per_batch = tf.zeros_like(features[0]) + tf.random.uniform([])
      if p.draws_without_seed:
        batch.drawn = ops.random_permutation_sequence(num=4, batch=4, seed=0)
      return batch

  return DrawingInput.Params().Set(
    file_pattern=f'text:{folder}/part*.txt',
    bucket_upper_bound=[10],
    bucket_batch_limit=[4],
    **fields,
  )


def test_what_cannot_be_replayed_is_refused(adapt, folder):
  drawing = _drawing_params(folder)
  with pytest.raises(errors.UserError, match='RandomPermutationSequence.*seed'):
    adapt(drawing.Copy().Set(draws_without_seed=True))[0].get_next()
  with pytest.raises(errors.UserError, match='reads in 3 threads'):
    adapt(drawing.Copy().Set(threads=3))[0].get_next()
  with pytest.raises(errors.UserError, match='tf.data'):
    adapt(testing.numbers(10))
  patterns = [(f'text:{folder}/part0.txt', 0.5), (f'{folder}/part1.txt', 0.5)]
  mixed = _params(folder, file_pattern=patterns)
  with pytest.raises(errors.UserError, match='records of several patterns'):
    adapt(mixed.Copy().Set(use_within_batch_mixing=True))
  adapt(mixed)
  with pytest.raises(errors.UserError, match='replay is True; leave it False'):
    eval_adaptors.LingvoEvalAdaptor(
      input=_params(folder), batch_size=2, reset_for_eval=True, replay=True
    )


def test_random_state_of_its_own_is_refused():
  tf = lingvo_runtime.module('tensorflow')
  with tf.Graph().as_default() as graph:
    randomness.check('the input', graph)
    tf.random.Generator.from_seed(1).uniform([])
  with pytest.raises(errors.UserError, match='Rng.* its own random state'):
    randomness.check('the input', graph)


def test_a_curriculum_is_for_one_host(adapt, folder):
  sources = lingvo_runtime.module('lingvo.core.datasource')
  subs = [
    sources.SimpleDataSource.Params().Set(
      file_pattern=f'text:{folder}/part{i}.txt'
    )
    for i in range(2)
  ]
  curriculum = sources.CurriculumDataSource.Params().Set(
    sub=subs, boundaries=[5]
  )
  params = _params(folder, file_pattern='', file_datasource=curriculum)
  adapt(params)
  with pytest.raises(errors.UserError, match='Curriculum.*expected one host'):
    adapt(params, 2)


def test_mixed_sources_of_whole_batches(adapt, folder):
  patterns = [(f'text:{folder}/part[01].txt', 0.3)]
  patterns += [(f'text:{folder}/part[234].txt', 0.7)]
  params = _params(folder, file_pattern=patterns)
  whole = _history(adapt, params, [(1, 40)])
  assert _history(adapt, params, [(1, 11), (1, 29)]) == whole


def test_a_state_of_something_else_is_refused(adapt, folder, tmp_path):
  params = _params(folder, repeat_count=1)
  [adaptor] = adapt(params)
  adaptor.get_next()
  state = adaptor.get_state()
  [other] = adapt(params.Copy().Set(bucket_batch_limit=[4, 4, 4]))
  with pytest.raises(errors.UserError, match=r'bucket_batch_limit was \[8, 4'):
    other.set_state(state)
  for i in range(5):  # The same names, with other lines.
    testing.write_lines(tmp_path / f'part{i}.txt', ['abc'])
  [other] = adapt(_params(tmp_path, repeat_count=1))
  with pytest.raises(errors.UserError, match='files was .*same.*new order'):
    other.set_state(state)
  with pytest.raises(
    errors.UserError, match='not that of a LingvoInputAdaptor'
  ):
    adaptor.set_state(b'\x00 what')
  with pytest.raises(errors.UserError, match='there are 33; expected the same'):
    adaptor.set_state(state.replace(b'"read": 1', b'"read": 1000'))
  [plain] = adapt(params, replay=False)
  with pytest.raises(NotImplementedError):
    plain.get_state()
  assert adaptor.state_fits_any_hosts and not plain.state_fits_any_hosts


def test_files_may_move(adapt, folder, tmp_path):
  [adaptor] = adapt(_params(folder))
  batches = [adaptor.get_next() for _ in range(4)]
  state = adaptor.get_state()
  for path in folder.iterdir():
    (tmp_path / path.name).write_bytes(path.read_bytes())
  [moved] = adapt(_params(tmp_path))
  moved.set_state(state)
  batches.append(adaptor.get_next())
  testing.assert_same([moved.get_next()], batches[4:])


def test_the_users_params_stay_as_they_are(adapt, folder):
  params = _params(folder, num_batcher_threads=3)
  before = params.ToText()
  [adaptor] = adapt(params)
  adaptor.get_next()
  adaptor.reset()
  adaptor.get_next()
  assert params.ToText() == before


def _order(lengths, hosts, host):
  """Returns a `ReplayOrder` of numbered one-example batches."""
  batches = iter(
    NestedMap(ids=np.full([1, n], i), eval_sample_weights=np.ones([1]))
    for i, n in enumerate(lengths)
  )
  return replay_order.ReplayOrder(
    name='the input',
    next_batch=lambda: next(batches),
    skip=lambda: next(batches),
    num_hosts=hosts,
    host=host,
  )


@hypothesis.settings(deadline=None, max_examples=60, database=None)
@hypothesis.given(
  lengths=strategies.lists(strategies.integers(1, 3), max_size=40),
  plan=strategies.lists(
    strategies.tuples(strategies.integers(1, 5), strategies.integers(0, 6)),
    max_size=5,
  ),
  last=strategies.integers(1, 5),
)
def test_any_history_feeds_each_batch_once(lengths, plan, last):
  fed, state = [], {'read': 0, 'waiting': []}
  for hosts, steps in [*plan, (last, len(lengths) + 1)]:
    orders = [_order(lengths, hosts, host) for host in range(hosts)]
    for order in orders:
      order.go_to(**state)
    for _ in range(steps):
      try:
        batches = [order.next() for order in orders]
      except StopIteration:
        break
      assert len({b.ids.shape for b in batches}) == 1
      assert any(b.eval_sample_weights[0] for b in batches)
      fed += [b.ids[0, 0] for b in batches if b.eval_sample_weights[0]]
    states = [order.state() for order in orders]
    assert all(s == states[0] for s in states)
    state = states[0]
  assert sorted(fed) == list(range(len(lengths)))
  assert not state['waiting']


def test_what_waits_is_bounded():
  order = _order(range(1, 1000), hosts=2, host=0)
  with pytest.raises(errors.UserError, match='65 shapes.*expected a few'):
    order.next()
