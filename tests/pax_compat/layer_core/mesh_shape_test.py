"""The mesh of a layer: its slices, and the devices of each."""

from pax_compat import base_layer


def test_the_mesh_of_all_slices():
  tpl = base_layer.BaseLayer.config(ici_mesh_shape=[2, 4])
  assert tpl.mesh_shape == [2, 4]
  tpl.dcn_mesh_shape = [3, 1]
  assert tpl.mesh_shape == [6, 4] == tpl.Instantiate().mesh_shape
