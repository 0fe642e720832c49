"""What several codecs share: packing bits, and choosing the smallest form of a tensor."""
