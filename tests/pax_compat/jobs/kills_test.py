"""One kill; `kills` as a program makes as many as you like."""

import pytest

from tests.pax_compat.jobs import kills


@pytest.mark.slow
def test_a_killed_run_and_its_job_lose_nothing(tmp_path):
  kills.kill_at_random(tmp_path, kills=1, seed=1)
