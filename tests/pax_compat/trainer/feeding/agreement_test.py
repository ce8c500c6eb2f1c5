"""Processes that read different data raise; none waits forever."""

from pax_compat.trainer.feeding import agreement
from tests.on_processes import agreement as programs
from tests.pax_compat import launching


def test_a_single_process_agrees_with_itself():
  alone = agreement.CrossHostCheck('Dev')
  alone.check('ids[4,7]', b'any')
  alone.check(None, None)


def test_processes_compare_what_they_read():
  outputs = launching.run_on_processes(programs.check_hosts, 3)
  assert outputs[0] == outputs[1] == outputs[2]
  short, shape, order, at_end = outputs[0].splitlines()
  for line in (short, shape, order, at_end):
    assert "dataset 'Dev' is not the same" in line
  assert 'after batch 1, the last one on processes 1, 2, there are' in short
  assert 'more on 0;' in short
  assert 'batch 2 has another shape on processes 1 than on process 0' in shape
  for line in (order, at_end):
    assert 'batch 2 has other examples in it' in line
    assert 'on processes 1, 2 than' in line


def test_processes_that_hold_the_same_rows_must_read_the_same():
  outputs = launching.run_on_processes(programs.check_replica_rows, 3)
  assert outputs[0] == outputs[1] == outputs[2]
  *same, differ = outputs[0].splitlines()
  assert same == ['same'] * 6
  assert "dataset 'Train' is not the same on the processes 0, 1," in differ


def test_hosts_that_read_the_same_examples_are_named():
  outputs = launching.run_on_processes(programs.warn_of_equal_batches, 3)
  assert outputs[0] == outputs[1] == outputs[2]
  (line,) = outputs[0].splitlines()
  assert "dataset 'Train' is the same on the hosts 0, 1: expected" in line


def test_an_evaluation_on_data_that_differs_ends_with_an_error():
  outputs = launching.run_on_processes(programs.read_all_batches, 2)
  assert outputs[0] == outputs[1]
  same, fewer, others = outputs[0].splitlines()
  assert same == '3'
  assert 'after batch 2, the last one on processes 1, there are more' in fewer
  # Before the first batch that differs is evaluated.
  assert others.startswith("1 the dataset 'Dev' is not the same")
  assert 'batch 2 has other examples in it' in others
