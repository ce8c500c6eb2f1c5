"""What `base_input` is made of: fields, hosts, padding rows, token ids."""
