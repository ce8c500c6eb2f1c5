"""Tests of the progress line."""

import pytest

from pax_compat.metrics import progress


class Clock:
  seconds = 100.0

  def __call__(self):
    return self.seconds


def test_line_and_rates():
  clock = Clock()
  p = progress.Progress(400, start_step=100, clock=clock)
  for i in range(20):
    clock.seconds += 0.5
    p.count_step(tokens=4096, input_wait=0.01)
    p.set_loss(3 - i / 10)
  line, rates = p.report()
  assert line == (
    'step 120/400  loss 1.1  2.0 steps/s  8.2k tokens/s  input wait 2%'
    '  ETA 2m20s'
  )
  assert rates == pytest.approx(
    {
      'steps_per_second': 2,
      'tokens_per_second': 8192,
      'input_wait_fraction': 0.02,
    }
  )


def test_model_flops_utilisation():
  """2 steps a second of 3e12 FLOPs, of a peak of 24e12."""
  clock = Clock()
  p = progress.Progress(400, peak_flops=24e12, clock=clock)
  for _ in range(4):
    clock.seconds += 0.5
    p.count_step(flops=3e12)
  line, rates = p.report()
  assert rates['mfu'] == pytest.approx(0.25)
  assert '2.0 steps/s  MFU 25.0%  input wait 0%' in line


@pytest.mark.parametrize('peak, flops', [(None, 3e12), (24e12, 0.0)])
def test_without_peak_or_flops_there_is_no_utilisation(peak, flops):
  clock = Clock()
  p = progress.Progress(400, peak_flops=peak, clock=clock)
  clock.seconds += 0.5
  p.count_step(flops=flops)
  line, rates = p.report()
  assert 'mfu' not in rates and 'MFU' not in line


@pytest.mark.parametrize(
  ('rate_steps', 'rate', 'tokens', 'wait'),
  [(1, 0.25, 5.0, 0.5), (2, 0.4, 5.2, 0.4), (50, 0.5, 13 / 3, 0.35)],
)
def test_rates_are_of_the_last_steps(rate_steps, rate, tokens, wait):
  clock = Clock()
  p = progress.Progress(10, rate_steps=rate_steps, clock=clock)
  for seconds, count, waited in ((1, 0, 0.1), (1, 6, 0.0), (4, 20, 2.0)):
    clock.seconds += seconds
    p.count_step(tokens=count, input_wait=waited)
  _, rates = p.report()
  assert rates == pytest.approx(
    {
      'steps_per_second': rate,
      'tokens_per_second': tokens,
      'input_wait_fraction': wait,
    }
  )
  # Asking changes nothing.
  assert p.report()[1] == rates


def test_a_line_without_tokens():
  clock = Clock()
  p = progress.Progress(10, rate_steps=1, clock=clock)
  for _ in range(2):
    clock.seconds += 4
    p.count_step()
  line, _ = p.report()
  assert line == 'step 2/10  0.25 steps/s  input wait 0%  ETA 32s'


def test_compilation_does_not_count():
  clock = Clock()
  p = progress.Progress(11, clock=clock)
  clock.seconds += 60
  p.count_step(tokens=10, input_wait=30)
  p.set_loss(5)
  p.start()
  for _ in range(5):
    clock.seconds += 0.25
    p.count_step(tokens=10)
  line, rates = p.report()
  assert rates['steps_per_second'] == pytest.approx(4)
  assert rates['tokens_per_second'] == pytest.approx(40)
  assert line.startswith('step 6/11  loss 5  4.0 steps/s')


def test_compilation_between_steps_does_not_count():
  clock = Clock()
  p = progress.Progress(10, clock=clock)
  for seconds in (0.5, 30.5, 0.5):
    clock.seconds += seconds
    p.leave_out(30 if seconds > 30 else 0)
    p.count_step()
  line, rates = p.report()
  assert rates['steps_per_second'] == pytest.approx(2)
  assert line.endswith('ETA 4s')


def test_steps_that_are_counted_late():
  clock = Clock()
  p = progress.Progress(10, clock=clock)
  ends = []
  for _ in range(3):
    clock.seconds += 0.5
    ends.append(p.now())
  clock.seconds += 60
  for ended in ends:
    p.count_step(ended=ended)
  assert p.report()[1]['steps_per_second'] == pytest.approx(2)
  p.start()
  p.count_step(ended=ends[-1])  # Before the window, so it adds no time.
  assert p.report()[1] == {}


def test_rates_may_begin_at_the_last_step():
  clock = Clock()
  p = progress.Progress(10, clock=clock)
  began = p.now()
  p.count_step(ended=began + 3)
  clock.seconds += 60
  p.start(at_last_step=True)
  for seconds in (3.5, 4.0):
    p.count_step(ended=began + seconds)
  assert p.report()[1]['steps_per_second'] == pytest.approx(2)


def test_empty_window_has_no_rates():
  p = progress.Progress(10, start_step=10, clock=Clock())
  assert p.report() == ('step 10/10', {})


@pytest.mark.parametrize(
  ('seconds', 'text'),
  [
    (0, '0s'),
    (59.6, '1m00s'),
    (83, '1m23s'),
    (7500, '2h05m'),
    (86400 * 3 + 3600 * 4 + 5, '3d04h'),
  ],
)
def test_format_seconds(seconds, text):
  assert progress.format_seconds(seconds) == text
