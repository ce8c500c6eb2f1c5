"""Tests of `benchmarks.inputs`: both read everything; no times."""

from benchmarks import inputs


def test_a_short_run(tmp_path):
  result = {
    'feeding': inputs.feeding(tmp_path, rounds=1, batches=2),
    # A whole epoch, or it fails.
    'evaluation': {'200': inputs.evaluation(tmp_path, 200)},
  }
  assert len(result['feeding']) == 3
  for row in result['feeding'].values():
    assert row.keys() == {'ours', 'bare', 'ratio', 'lower', 'upper'}
    assert all(value > 0 for value in row.values())
  assert result['evaluation']['200']['microseconds'] > 0
  assert len(inputs.text_of(result).splitlines()) == 6
