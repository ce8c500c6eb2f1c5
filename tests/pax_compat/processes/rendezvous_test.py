"""Tests of processes that meet, here in threads, and of killed ones."""

import contextlib
import re
import signal
import socket
import threading
import time

import pytest

from pax_compat import errors
from pax_compat.processes import rendezvous
from tests.pax_compat import launching, trainer_runs


@pytest.fixture
def port():
  with launching.free_port() as number:
    yield number


def _about(index, count=3, **flags):
  return rendezvous._about(index, count, flags)


def _meet(port, *hosts, seconds=2.0):
  """Lets processes meet; returns the error of each, None without one."""
  address = rendezvous.Address('localhost', port)
  found, connections = [None] * len(hosts), []

  def run(place, mine):
    try:
      if mine['index']:
        made = rendezvous._join(address, mine, seconds)
      else:
        with rendezvous._listening(address, mine) as listener:
          made = rendezvous._gather(listener, mine, seconds)
      connections.extend(connection for connection, _ in made.values())
    except errors.UserError as e:
      found[place] = str(e)

  threads = []
  for place, mine in enumerate(hosts):
    threads.append(threading.Thread(target=run, args=(place, mine)))
    threads[-1].start()
    time.sleep(0.1)
  for thread in threads:
    thread.join(60)
    assert not thread.is_alive()
  for connection in connections:
    connection.close()
  return found


def test_processes_meet(port):
  assert _meet(port, _about(2, a='1'), _about(0, a='1'), _about(1, a='1')) == (
    [None] * 3
  )


@pytest.mark.parametrize(
  ('others', 'message'),
  [
    ([_about(2)], r'2 of 3 processes .* within 2 seconds .* --host_idx=1, too'),
    (
      [_about(2), _about(2)],
      'two processes have --host_idx=2: pid .*, and pid',
    ),
    ([_about(1, 2)], '--num_hosts: 3 in process 0, 2 in process 1'),
    (
      [_about(1, exp='b')],
      'not start alike.*\n  flag --exp: not given in process 0, b in process 1',
    ),
    ([_about(0)], 'two processes have --host_idx=0: pid'),
  ],
)
def test_what_is_wrong_is_said_in_all_of_them(port, others, message):
  found = _meet(port, _about(0), *others)
  for error in found:
    assert re.search(message, error), found


def test_processes_of_a_cluster_have_ranks(port):
  first = _about(0) | {'cluster': 'slurm'}
  [error] = _meet(port, first, seconds=0.5)
  assert re.search(
    r'1 of 3 processes .* with the rank 1, 2 in slurm, too', error
  )
  [error] = _meet(port, first | {'index': 1}, seconds=0.5)
  assert f'does not answer at localhost:{port} (slurm) within' in error
  assert error.endswith('the same command runs with the rank 0 in slurm')


def test_an_address_that_cannot_be_used(port):
  for text in ('host', 'host:', ':12', 'host:0', 'host:99999', 'host:x'):
    with pytest.raises(errors.UserError, match='expected HOST:PORT of process'):
      rendezvous.Address.parse(text)
  with pytest.raises(errors.UserError, match='expected HOST:PORT of process'):
    rendezvous.meet('host', count=1, index=0, flag_values={}, seconds=1)
  [error] = _meet(port, _about(1), seconds=0.5)
  assert f'process 0 does not answer at --server_addr=localhost:{port}' in error
  assert 'Connection refused' in error
  nowhere = rendezvous.Address('nowhere.invalid', port)
  with pytest.raises(errors.UserError, match='does not answer .* Name or'):
    rendezvous._join(nowhere, _about(1), 0.1)


def test_a_port_in_use():
  with socket.create_server(('', 0)) as other:
    port = other.getsockname()[1]

    def answer():
      with contextlib.suppress(OSError):
        connected, _ = other.accept()
        with connected:
          connected.sendall(b'SSH-2.0\n')

    threading.Thread(target=answer, daemon=True).start()
    [error] = _meet(port, _about(0))
  assert f'the port {port} of --server_addr=localhost:{port} is in use' in error


@pytest.mark.slow
@pytest.mark.parametrize('killed', [0, 1])
def test_if_one_is_killed_the_other_one_ends(tmp_path, killed):
  folder = tmp_path / 'run'
  settings = {'train': {'slow_from': 8}}
  with trainer_runs.two_processes(folder, tmp_path, settings, settings) as both:
    both[0].wait_until(lambda: 'step 6/12' in both[0].stdout)
    both[killed].process.send_signal(signal.SIGKILL)
    began = time.monotonic()
    other = both[1 - killed]
    assert other.end() == 1, other.stderr
    assert time.monotonic() - began < 30
  lines = [x for x in other.stderr.splitlines() if x.startswith('error: ')]
  assert len(lines) == 1, other.stderr
  assert re.match(
    rf'error: process {killed} \(pid \d+ on .*\) is gone', lines[0]
  )
  assert 'Traceback' not in other.stderr
  assert 'stack trace' not in other.stderr
