"""Whole batches out of trained convolutional networks: everybody's feature maps, then images."""
