"""Processes meet before JAX connects them, and notice when one is gone.

JAX waits for minutes if a process is missing, and ends a process with a native
stack if another one was killed. So the processes first meet at the address of
process 0: it counts them, compares their flags, and answers all of them at
once, with an error that names what is wrong, or that they may begin. Their
connections stay open. If one breaks without a farewell, its process was killed,
and the others end with one line.

A message is a line of JSON.
"""

import contextlib
import dataclasses
import errno
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from pax_compat import errors

_NAME = 'pax_compat'
_SECONDS_BETWEEN_TRIES = 0.2
_SECONDS_TO_REPORT = 10.0
# For processes that JAX has connected.
_SECONDS_TO_CONNECT = 20.0
# A machine that is gone is noticed after idle + count * interval seconds.
_KEEPALIVE = {'TCP_KEEPIDLE': 10, 'TCP_KEEPINTVL': 5, 'TCP_KEEPCNT': 4}
# How long process 0, at which JAX's service runs, waits for others to end.
_SECONDS_TO_LEAVE = 2.0
_MAX_LINES = 10
_COUNT_BY_FLAG, _COUNT_IN_CLUSTER = 'flag --num_hosts', 'number of processes'
_MAX_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Address:
  """HOST:PORT of process 0."""

  host: str
  port: int

  @classmethod
  def parse(cls, text: str) -> 'Address':
    """Returns the address.

    Raises:
      UserError: it is not HOST:PORT.
    """
    host, _, port = text.rpartition(':')
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
      raise errors.UserError(
        f'--server_addr is {text}; expected HOST:PORT of process 0, such as'
        ' 10.0.0.1:1234'
      )
    return cls(host.strip('[]'), int(port))

  def __str__(self) -> str:
    return f'{self.host}:{self.port}'


class _Connection:
  """Lines of JSON over a socket."""

  def __init__(self, connected: socket.socket):
    self._socket = connected
    self._file = connected.makefile('rb')
    self._lock = threading.Lock()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
      if hasattr(socket, name):
        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

  def send(self, **message: Any):
    """Sends a message; nothing happens if nobody listens any more."""
    with contextlib.suppress(OSError), self._lock:
      self._socket.sendall(json.dumps(message).encode() + b'\n')

  def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
    """Returns the next message; None at the end, or if it is none of ours."""
    try:
      self._socket.settimeout(seconds)
      message = json.loads(self._file.readline(_MAX_BYTES))
      return message if isinstance(message, dict) else None
    except (OSError, ValueError):
      return None

  def close(self):
    """Closes it; a thread that receives gets None."""
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)
    self._socket.close()


class Meeting:
  """The processes that have met; each watches the others.

  Attributes:
    index: of this process.
  """

  def __init__(
    self, index: int, connections: Mapping[int, tuple[_Connection, str]]
  ):
    """Starts to watch.

    Args:
      index: of this process.
      connections: to other processes by index, with their descriptions: to
        process 0, or from it to all others.
    """
    self.index = index
    self._connections = dict(connections)
    self._is_over = threading.Event()
    self._left: set[int] = set()
    self._threads = [
      threading.Thread(
        target=self._watch, args=(other,), name='other processes', daemon=True
      )
      for other in connections
    ]
    for thread in self._threads:
      thread.start()

  def leave(self):
    """Says farewell: the end of this process is not a failure."""
    if self._is_over.is_set():
      return
    self._is_over.set()
    for connection, _ in self._connections.values():
      connection.send(bye=True)

  def _watch(self, other: int):
    connection, described = self._connections[other]
    while True:
      message = connection.receive()
      if self._is_over.is_set():
        return
      if message is not None and 'bye' in message:
        self._left.add(other)
        return
      gone = f'process {other} ({described})'
      if message is not None:
        gone = message.get('gone', gone)
      self._end(gone, other)
      return

  def _end(self, gone: str, other: int):
    """Ends this process, as another one is gone."""
    text = (
      f'error: {gone} is gone: it was killed, or its log says why. This process'
      ' ends, too; the same command in all of them continues from the last'
      ' checkpoint\n'
    )
    with contextlib.suppress(OSError):
      os.write(2, text.encode())
    if self.index == 0:
      others = [c for i, (c, _) in self._connections.items() if i != other]
      for connection in others:
        connection.send(gone=gone)
      # JAX ends a process with a native stack if its service disappears.
      deadline = time.monotonic() + _SECONDS_TO_LEAVE
      for thread in self._threads:
        if thread is not threading.current_thread():
          thread.join(max(deadline - time.monotonic(), 0))
    with contextlib.suppress(Exception):
      sys.stdout.flush()
    os._exit(1)


_meeting: Meeting | None = None


def leave():
  """Says farewell to the processes that this one has met, if any."""
  if _meeting is not None:
    _meeting.leave()


def has_met() -> bool:
  """Whether this process watches others."""
  return _meeting is not None


def meet(
  address: str,
  *,
  count: int,
  index: int,
  flag_values: Mapping[str, str],
  seconds: float,
  cluster: str = '',
  machines: Sequence[str] = (),
) -> None:
  """Waits until all processes are there, and have been started alike.

  From then on, this process ends if another one is killed.

  Args:
    address: HOST:PORT of process 0.
    count: number of processes.
    index: of this process.
    flag_values: flags that all must have in common, by name.
    seconds: how long to wait for the others.
    cluster: the name of the cluster that has started them, for messages; '' if
      they were started with flags.
    machines: of each process by its index, for messages; () if not known.

  Raises:
    UserError: a process is missing, two have the same index, flags differ, or
      the address cannot be used; in all processes that are connected.
  """
  global _meeting
  where = Address.parse(address)
  if count == 1:
    return
  mine = _about(index, count, flag_values, cluster, machines)
  if index:
    _meeting = Meeting(index, _join(where, mine, seconds))
    return
  with _listening(where, mine) as listener:
    found = _gather(listener, mine, seconds)
  _meeting = Meeting(index, found)


def meet_connected(
  host: str, *, count: int, index: int, exchange: Callable[[str | None], str]
) -> None:
  """Lets processes that JAX has connected watch each other, too.

  If they cannot connect, as a firewall is between them, that is logged.

  Args:
    host: the machine of process 0.
    count: number of processes.
    index: of this process.
    exchange: takes a string in process 0, None in others; returns that of
      process 0.
  """
  global _meeting
  mine = _about(index, count, {})
  try:
    if index:
      where = Address(host, int(exchange(None)))
      _meeting = Meeting(index, _join(where, mine, _SECONDS_TO_CONNECT))
      return
    with _listening(Address(host, 0), mine) as listener:
      exchange(str(listener.getsockname()[1]))
      found = _gather(listener, mine, _SECONDS_TO_CONNECT)
    _meeting = Meeting(index, found)
  except errors.UserError as e:
    logging.warning(
      'a process that is killed is noticed after up to a minute, by JAX: %s', e
    )


def _about(
  index: int,
  count: int,
  flag_values: Mapping[str, str],
  cluster: str = '',
  machines: Sequence[str] = (),
) -> dict[str, Any]:
  return {
    'name': _NAME,
    'index': index,
    'count': count,
    'flags': dict(flag_values),
    'cluster': cluster,
    'machines': list(machines),
    'process': f'pid {os.getpid()} on {socket.gethostname()}',
  }


def _index(mine: Mapping[str, Any], *indices: int) -> str:
  """Returns what gives processes their indices, with their machines."""
  joined = ', '.join(map(str, indices))
  if not mine['cluster']:
    return f'--host_idx={joined}'
  machines = ', '.join(mine['machines'][i] for i in indices if mine['machines'])
  on = f' ({machines})' if machines else ''
  return f'the rank {joined} in {mine["cluster"]}{on}'


def _place(mine: Mapping[str, Any], address: Address) -> str:
  """Returns what gives the address."""
  cluster = mine['cluster']
  return f'{address} ({cluster})' if cluster else f'--server_addr={address}'


def _join(
  address: Address, mine: dict[str, Any], seconds: float
) -> dict[int, tuple[_Connection, str]]:
  """Returns the connection to process 0, when that has counted all."""
  deadline = time.monotonic() + seconds
  while True:
    connection, problem = _connected(address)
    if connection is not None:
      connection.send(**mine)
      # Process 0 has its own deadline, and may have begun to wait later.
      answer = connection.receive(seconds + _SECONDS_TO_REPORT)
      if answer is not None and 'error' in answer:
        raise errors.UserError(answer['error'])
      if answer is not None and 'process' in answer:
        return {0: (connection, answer['process'])}
      problem = 'another program answers there, or the others have begun'
      connection.close()
    if time.monotonic() > deadline:
      raise errors.UserError(
        f'process 0 does not answer at {_place(mine, address)} within'
        f' {seconds:.0f} seconds (--join_timeout_secs): {problem}; expected the'
        ' address of a machine on which the same command runs with'
        f' {_index(mine, 0)}'
      )
    time.sleep(_SECONDS_BETWEEN_TRIES)


def _connected(address: Address) -> tuple[_Connection | None, str]:
  """Returns a connection, or None and what is wrong."""
  try:
    return _Connection(
      socket.create_connection((address.host, address.port), timeout=5)
    ), ''
  except OSError as e:
    return None, e.strerror or str(e)


def _gather(
  listener: socket.socket, mine: dict[str, Any], seconds: float
) -> dict[int, tuple[_Connection, str]]:
  """Returns the connections to all other processes, in process 0."""
  guests: dict[int, tuple[_Connection, dict[str, Any]]] = {}
  refused: list[_Connection] = []
  problem = _wait(listener, mine, guests, refused, seconds)
  everyone = [connection for connection, _ in guests.values()]
  if problem:
    for connection in (*everyone, *refused):
      connection.send(error=problem)
    raise errors.UserError(problem)
  for connection in everyone:
    connection.send(process=mine['process'])
  return {i: (c, about['process']) for i, (c, about) in guests.items()}


def _wait(listener, mine, guests, refused, seconds: float) -> str:
  """Accepts all others; returns what is wrong, '' if nothing."""
  began = time.monotonic()
  report_at = began + _SECONDS_TO_REPORT
  while len(guests) < mine['count'] - 1:
    now = time.monotonic()
    missing = sorted(set(range(1, mine['count'])) - guests.keys())
    named = _index(mine, *missing[:_MAX_LINES])
    if now > began + seconds:
      return (
        f'{len(guests) + 1} of {mine["count"]} processes have started within'
        f' {seconds:.0f} seconds (--join_timeout_secs); expected the same'
        f' command with {named}, too'
      )
    if now > report_at:
      report_at = now + _SECONDS_TO_REPORT
      logging.info('waiting for %s', named)
    try:
      connected, _ = listener.accept()
    except TimeoutError:
      continue
    problem = _admit(_Connection(connected), mine, guests, refused)
    if problem:
      return problem
  return ''


def _admit(connection: _Connection, mine, guests, refused) -> str:
  """Adds a process; returns what is wrong with it, '' if nothing."""
  about = connection.receive(5)
  if about is None or about.get('name') != _NAME:
    connection.close()  # Somebody else, who looks for open ports.
    return ''
  index, process = about['index'], about['process']
  if about['count'] != mine['count']:
    refused.append(connection)
    return _unlike(
      [
        f'{_COUNT_IN_CLUSTER if mine["cluster"] else _COUNT_BY_FLAG}:'
        f' {mine["count"]} in process 0, {about["count"]} in process {index}'
      ]
    )
  if index in guests or index == 0:
    refused.append(connection)
    first = guests[index][1] if index else mine
    return (
      f'two processes have {_index(mine, index)}: {first["process"]}, and'
      f' {process}; expected each index from 0 to {mine["count"] - 1} once'
    )
  guests[index] = connection, about
  names = sorted(mine['flags'].keys() | about['flags'].keys())
  lines = [
    f'flag --{name}: {mine["flags"].get(name, "not given")} in process 0,'
    f' {about["flags"].get(name, "not given")} in process {index}'
    for name in names
    if mine['flags'].get(name) != about['flags'].get(name)
  ]
  return _unlike(lines) if lines else ''


def _unlike(lines: list[str]) -> str:
  return (
    'the processes of this run did not start alike; expected the same command'
    ' and the same code in each:\n  ' + '\n  '.join(lines[:_MAX_LINES])
  )


@contextlib.contextmanager
def _listening(address: Address, mine: dict[str, Any]):
  """Within it, process 0 listens at its port."""
  dual = socket.has_dualstack_ipv6()
  try:
    listener = socket.create_server(
      ('', address.port),
      family=socket.AF_INET6 if dual else socket.AF_INET,
      backlog=mine['count'],
      dualstack_ipv6=dual,
    )
  except OSError as e:
    if e.errno == errno.EADDRINUSE:
      raise errors.UserError(_why_in_use(address, mine)) from e
    raise errors.UserError(
      f'{_place(mine, address)} cannot be used: {e.strerror or e}'
    ) from e
  with listener:
    listener.settimeout(_SECONDS_BETWEEN_TRIES)
    yield listener


def _why_in_use(address: Address, mine: dict[str, Any]) -> str:
  """Returns why process 0 cannot listen at its port."""
  local = Address('localhost', address.port)
  connection, _ = _connected(local)
  answer = None
  if connection is not None:
    connection.send(**mine)
    answer = connection.receive(5)
    connection.close()
  if answer is not None and 'error' in answer:
    return answer['error']
  return (
    f'the port {address.port} of {_place(mine, address)} is in use on this'
    ' machine by another program; expected a free one'
  )


def failure_to_await(error: BaseException) -> bool:
  """Whether an error is that of a collective, which another process caused."""
  text = str(error)
  return has_met() and any(
    name in text for name in ('Gloo', 'gloo', 'NCCL', 'UNAVAILABLE', 'Socket')
  )
