"""Look inside a network: its layers in running order, which reads the input, which is last."""
