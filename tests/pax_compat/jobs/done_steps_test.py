"""Tests of the record of what a job has done."""

import pytest

from pax_compat import errors
from pax_compat.jobs import done_steps


def test_what_is_done_is_kept(tmp_path):
  path = tmp_path / 'eval_steps.json'
  done = done_steps.DoneSteps(path)
  assert not path.exists()
  done.add(5, 'aa', 'eval_test_dev')
  done.add(10, 'bb', 'eval_test_dev')
  done.add(5, 'aa', 'decode_test_few')
  done = done_steps.DoneSteps(path)
  assert done.has(5, 'aa', 'eval_test_dev')
  assert done.has(5, 'aa', 'decode_test_few')
  assert not done.has(10, 'bb', 'decode_test_few')
  # Another checkpoint of the same step is another one.
  assert not done.has(5, 'cc', 'eval_test_dev') and done.replaced(5, 'cc')
  assert not done.replaced(5, 'aa') and not done.replaced(7, 'aa')
  assert (5, 'eval_test_dev') in done and (7, 'eval_test_dev') not in done

  done.forget_from(10)
  done.add(7, 'dd', 'eval_test_dev')
  done = done_steps.DoneSteps(path)
  assert (10, 'eval_test_dev') not in done and (7, 'eval_test_dev') in done


@pytest.mark.parametrize('text', ['', '[]', '{"5": {}}', '{"x": 1}', '{"5'])
def test_a_damaged_record_is_an_error(tmp_path, text):
  path = tmp_path / 'eval_steps.json'
  path.write_text(text)
  with pytest.raises(
    errors.UserError, match='eval_steps.json is damaged .* De'
  ):
    done_steps.DoneSteps(path)
