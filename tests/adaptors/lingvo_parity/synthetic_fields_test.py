"""Tests of the values of synthetic batches."""

import numpy as np

from adaptors.lingvo_parity import synthetic_fields
from adaptors.lingvo_parity.input_specs import Spec
from pax_compat.nested_map import NestedMap

B, T = 3, 8


def _filled(num_ids=10, **fields):
  """Returns values of fields, given as (shape, dtype) by dotted name."""
  specs = NestedMap()
  for path, (shape, dtype) in fields.items():
    *parents, name = path.split('__')
    node = specs
    for parent in parents:
      node = node.setdefault(parent, NestedMap())
    node[name] = Spec(path, shape, np.dtype(dtype))
  return synthetic_fields.fill(specs, num_ids, seed=1)


def test_sentences():
  batch = _filled(
    src__ids=((B, T), 'int32'),
    src__paddings=((B, T), 'float32'),
    tgt__ids=((B, T), 'int32'),
    tgt__labels=((B, T), 'int32'),
    tgt__paddings=((B, T), 'float32'),
    tgt__weights=((B, T), 'float32'),
    bucket_keys=((B,), 'int32'),
  )
  np.testing.assert_array_equal(
    batch.src.paddings.sum(axis=1), [0, 2, T - T // 2]
  )
  np.testing.assert_array_equal(batch.tgt.weights, 1 - batch.tgt.paddings)
  assert np.all(batch.src.ids * batch.src.paddings == 0)
  real = batch.src.ids[batch.src.paddings == 0]
  assert real.min() >= synthetic_fields.FIRST_ID and real.max() < 10
  np.testing.assert_array_equal(batch.tgt.labels[:, :-1], batch.tgt.ids[:, 1:])
  np.testing.assert_array_equal(batch.bucket_keys, [8, 6, 4])


def test_packed_sentences():
  batch = _filled(
    ids=((B, T), 'int32'),
    paddings=((B, T), 'float32'),
    segment_ids=((B, T), 'float32'),
    segment_pos=((B, T), 'int32'),
  )
  assert not batch.paddings.any() and batch.ids.all()
  np.testing.assert_array_equal(batch.segment_ids[1], [1] * 6 + [2] * 2)
  np.testing.assert_array_equal(batch.segment_pos[1], [*range(6), 0, 1])


def test_frames_are_zero_at_paddings():
  batch = _filled(
    frames=((B, T, 2, 1), 'float32'), paddings=((B, T), 'float32')
  )
  is_padding = batch.paddings.astype(bool)
  assert not batch.frames[is_padding].any()
  assert batch.frames[~is_padding].all()


def test_images_and_scenes():
  batch = _filled(
    num_ids=3,
    label=((B,), 'float32'),
    weight=((B,), 'float32'),
    sample_ids=((B,), 'int32'),
    gt_bboxes=((B, T, 7), 'float32'),
    assigned_cls_mask=((B, T), 'float32'),
    pillar_locations=((B, T, 3), 'int32'),
    text_lengths=((B,), 'int32'),
    flag=((B,), 'bool'),
  )
  assert set(batch.label) <= {0, 1, 2} and batch.weight.all()
  np.testing.assert_array_equal(batch.sample_ids, range(B))
  assert np.all(batch.gt_bboxes[..., 3:6] >= 1)
  assert set(np.unique(batch.assigned_cls_mask)) <= {0, 1}
  assert len(np.unique(batch.pillar_locations[0], axis=0)) == T
  assert batch.text_lengths.max() == T and batch.flag.dtype == bool


def test_no_vocabulary():
  batch = _filled(num_ids=2, ids=((B, T), 'int32'))
  assert set(np.unique(batch.ids)) <= {0, 1}


def test_pixels_are_in_the_image():
  batch = _filled(projected__points_in_best_camera=((B, T, 3), 'float32'))
  pixels = batch.projected.points_in_best_camera
  assert pixels.min() >= 0 and 1 < pixels.max() < 8
