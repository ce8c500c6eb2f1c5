"""A server on this machine that answers as Google Cloud Storage does.

It knows as much of the JSON API as gcsfs and TensorStore use to write, list,
read and delete objects. Everything is in memory.
"""

import base64
import contextlib
import http.server
import itertools
import json
import re
import threading
import urllib.parse
import zlib
from collections.abc import Iterator

_OBJECT = re.compile(r'(?:/download)?/storage/v1/b/([^/]+)/o/(.+)')
_OBJECTS = re.compile(r'(?:/upload)?/storage/v1/b/([^/]+)/o/?')
_BUCKET = re.compile(r'/storage/v1/b/([^/]+)/?')
_COPY = re.compile(r'(.+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/(.+)')
_MOVE = re.compile(r'/?(.+)/moveTo/o/(.+)')


class Storage:
  """The objects of all buckets.

  Attributes:
    objects: content and generation, by bucket and name.
    requests: method and path of each request.
    replacements: contents that replace objects once somebody has asked for
      their sizes, by bucket and name.
  """

  def __init__(self):
    self.objects: dict[tuple[str, str], tuple[bytes, int]] = {}
    self.requests: list[str] = []
    self.replacements: dict[tuple[str, str], bytes] = {}
    self.uploads: dict[str, tuple[str, str, bytes]] = {}
    self.lock = threading.Lock()
    self._generations = itertools.count(1)

  def put(self, bucket: str, name: str, content: bytes) -> dict:
    with self.lock:
      generation = next(self._generations)
      self.objects[bucket, name] = content, generation
    return self.about(bucket, name)

  def replace_if_due(self, bucket: str, name: str):
    content = self.replacements.pop((bucket, name), None)
    if content is not None:
      self.put(bucket, name, content)

  def about(self, bucket: str, name: str) -> dict:
    content, generation = self.objects[bucket, name]
    checksum = zlib.crc32(content).to_bytes(4, 'big')
    return {
      'kind': 'storage#object',
      'bucket': bucket,
      'name': name,
      'id': f'{bucket}/{name}/{generation}',
      'size': str(len(content)),
      'generation': str(generation),
      'metageneration': '1',
      'crc32c': base64.b64encode(checksum).decode(),
      'etag': str(generation),
      'contentType': 'application/octet-stream',
      'timeCreated': '2026-01-01T00:00:00.000Z',
      'updated': '2026-01-01T00:00:00.000Z',
      'storageClass': 'STANDARD',
    }

  def names(self, bucket: str = 'bucket') -> list[str]:
    return sorted(name for b, name in self.objects if b == bucket)

  def listed(self, bucket: str, query: dict) -> dict:
    prefix, delimiter = query.get('prefix', ''), query.get('delimiter', '')
    items, prefixes = [], set()
    for name in self.names(bucket):
      if not name.startswith(prefix):
        continue
      if not query.get('startOffset', '') <= name:
        continue
      if query.get('endOffset') and name >= query['endOffset']:
        continue
      rest = name[len(prefix) :]
      if delimiter and delimiter in rest:
        prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
      else:
        items.append(self.about(bucket, name))
    return {
      'kind': 'storage#objects',
      'items': items,
      'prefixes': sorted(prefixes),
    }


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers a request."""

  protocol_version = 'HTTP/1.1'
  storage: Storage

  def log_message(self, *unused_args):
    pass

  def do_GET(self):
    path, query = self._split()
    if found := _OBJECT.fullmatch(path):
      bucket, name = found[1], urllib.parse.unquote(found[2])
      if (bucket, name) not in self.storage.objects:
        self._answer(404, {'error': {'code': 404, 'message': 'No such object'}})
      elif query.get('alt') == 'media':
        self._media(bucket, name, query)
      else:
        self._answer(200, self.storage.about(bucket, name))
        self.storage.replace_if_due(bucket, name)
    elif found := _OBJECTS.fullmatch(path):
      self._answer(200, self.storage.listed(found[1], query))
    elif found := _BUCKET.fullmatch(path):
      self._answer(200, {'name': found[1], 'kind': 'storage#bucket'})
    else:
      self._answer(404, {'error': {'code': 404, 'message': path}})

  def _media(self, bucket, name, query):
    content, generation = self.storage.objects[bucket, name]
    headers = {
      'x-goog-generation': str(generation),
      'etag': str(generation),
      'content-type': 'application/octet-stream',
    }
    if query.get('ifGenerationNotMatch') == str(generation):
      self._answer(304, b'', headers)
      return
    wanted = re.fullmatch(r'bytes=(\d*)-(\d*)', self.headers.get('Range', ''))
    if not wanted:
      self._answer(200, content, headers)
      return
    first, last = wanted.groups()
    start = int(first) if first else max(0, len(content) - int(last))
    stop = int(last) + 1 if first and last else len(content)
    stop = min(stop, len(content))
    if start >= len(content):
      self._answer(416, b'', headers)
      return
    headers['content-range'] = f'bytes {start}-{stop - 1}/{len(content)}'
    self._answer(206, content[start:stop], headers)

  def do_POST(self):
    path, query = self._split()
    body = self._body()
    if path == '/resumable':
      self._continue(query['upload_id'], body)
    elif path.startswith('/batch/'):
      self._batch(body)
    elif found := _COPY.fullmatch(path):
      source = _OBJECT.fullmatch(found[1])
      key = source[1], urllib.parse.unquote(source[2])
      about = self.storage.put(
        found[2],
        urllib.parse.unquote(found[3]),
        self.storage.objects[key][0],
      )
      self._answer(200, {'done': True, 'resource': about})
    elif found := _MOVE.fullmatch(path):
      bucket, name = _OBJECT.fullmatch(f'/{found[1]}').groups()
      key = bucket, urllib.parse.unquote(name)
      content, _ = self.storage.objects.pop(key)
      about = self.storage.put(bucket, urllib.parse.unquote(found[2]), content)
      self._answer(200, about)
    elif found := _OBJECTS.fullmatch(path):
      self._upload(found[1], query, body)
    else:
      self._answer(404, {'error': {'code': 404, 'message': path}})

  def _upload(self, bucket, query, body):
    kind, name = query.get('uploadType'), query.get('name', '')
    if kind == 'resumable':
      name = name or json.loads(body or b'{}').get('name', '')
      number = str(len(self.storage.uploads))
      self.storage.uploads[number] = bucket, name, b''
      host = self.headers['Host']
      location = f'http://{host}/resumable?upload_id={number}'
      self._answer(200, {}, {'Location': location})
      return
    if kind == 'multipart':
      boundary = re.search(
        r'boundary="?([^";]+)"?', self.headers['Content-Type']
      )[1].encode()
      first, second = body.split(b'--' + boundary)[1:3]
      about = json.loads(first.partition(b'\n\n')[2] or _after_head(first))
      name, body = about['name'], _after_head(second)
    wanted = query.get('ifGenerationMatch')
    with self.storage.lock:
      known = self.storage.objects.get((bucket, name), (b'', 0))[1]
    if wanted is not None and wanted != str(known):
      self._answer(412, {'error': {'code': 412, 'message': 'it exists'}})
      return
    self._answer(200, self.storage.put(bucket, name, body))

  def do_PUT(self):
    _, query = self._split()
    self._continue(query['upload_id'], self._body())

  def _continue(self, number: str, body: bytes):
    """Takes a part of an upload; the last one gives the total size."""
    bucket, name, before = self.storage.uploads[number]
    content = before + body
    self.storage.uploads[number] = bucket, name, content
    total = self.headers.get('Content-Range', '').rpartition('/')[2]
    if total in ('*', '') and total:
      self._answer(308, b'', {'Range': f'bytes=0-{len(content) - 1}'})
      return
    self._answer(200, self.storage.put(bucket, name, content))

  def do_DELETE(self):
    path, _ = self._split()
    self._answer(self._delete(path), b'')

  def _delete(self, path) -> int:
    found = _OBJECT.fullmatch(path)
    key = found[1], urllib.parse.unquote(found[2])
    with self.storage.lock:
      return 404 if self.storage.objects.pop(key, None) is None else 204

  def _batch(self, body):
    """Answers several deletions in one request."""
    parts = []
    for number, path in enumerate(
      re.findall(rb'DELETE (\S+) HTTP', body), start=1
    ):
      path = urllib.parse.urlsplit(path.decode()).path
      parts.append(
        '--batch\r\nContent-Type: application/http\r\n'
        f'Content-ID: <response-{number}>\r\n\r\n'
        f'HTTP/1.1 {self._delete(path)} No Content\r\n\r\n'
      )
    text = ''.join(parts) + '--batch--\r\n'
    headers = {'content-type': 'multipart/mixed; boundary=batch'}
    self._answer(200, text.encode(), headers)

  def _split(self) -> tuple[str, dict[str, str]]:
    self.storage.requests.append(f'{self.command} {self.path}')
    parsed = urllib.parse.urlsplit(self.path)
    return parsed.path, dict(
      urllib.parse.parse_qsl(parsed.query, keep_blank_values=True)
    )

  def _body(self) -> bytes:
    if self.headers.get('Transfer-Encoding') != 'chunked':
      return self.rfile.read(int(self.headers.get('Content-Length') or 0))
    found = b''
    while size := int(self.rfile.readline().split(b';')[0], 16):
      found += self.rfile.read(size)
      self.rfile.readline()
    self.rfile.readline()
    return found

  def _answer(self, status: int, content, headers=None):
    if not isinstance(content, bytes):
      content = json.dumps(content).encode()
      headers = {'content-type': 'application/json', **(headers or {})}
    self.send_response(status)
    for name, value in (headers or {}).items():
      self.send_header(name, value)
    if status not in (204, 304):
      self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    if status not in (204, 304):
      with contextlib.suppress(BrokenPipeError):  # The client has left.
        self.wfile.write(content)


def _after_head(part: bytes) -> bytes:
  """Returns the content of a part of a multipart body."""
  for blank in (b'\r\n\r\n', b'\n\n'):
    head, found, content = part.partition(blank)
    if found and (blank == b'\r\n\r\n' or b'\r\n\r\n' not in part):
      return content.removesuffix(b'\r\n').removesuffix(b'\n')
  return part


@contextlib.contextmanager
def serve() -> Iterator[tuple[Storage, dict[str, str]]]:
  """Yields the storage, and the environment of processes that use it."""
  storage = Storage()
  handler = type('Handler', (_Handler,), {'storage': storage})
  server = http.server.ThreadingHTTPServer(('localhost', 0), handler)
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  url = f'http://localhost:{server.server_address[1]}'
  try:
    yield (
      storage,
      {
        'STORAGE_EMULATOR_HOST': url,
        'TENSORSTORE_GCS_HTTP_URL': url,
        'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'none',
        'GOOGLE_CLOUD_PROJECT': 'none',
        'NO_GCE_CHECK': 'true',
        # Which asks Google for the kind of the bucket.
        'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false',
      },
    )
  finally:
    server.shutdown()
    server.server_close()
