"""Record files of Lingvo's readers: finding, copying and checking them."""
