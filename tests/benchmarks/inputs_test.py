"""Tests of `benchmarks.inputs`: that both read, and all is read; no times."""

from benchmarks import inputs


def test_a_short_run(tmp_path):
  result = {
    'feeding': inputs.feeding(tmp_path, rounds=1, batches=2),
    # A whole epoch, or it fails.
    'evaluation': {'200': inputs.evaluation(tmp_path, 200)},
  }
  assert len(result['feeding']) == 3
  for told in result['feeding'].values():
    assert told.keys() == {'ours', 'bare', 'ratio', 'lower', 'upper'}
    assert all(value > 0 for value in told.values())
  assert result['evaluation']['200']['microseconds'] > 0
  assert len(inputs.text_of(result).splitlines()) == 6
