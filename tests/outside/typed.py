"""What is typed of plugins/, by kind: the file, and the spec behind it."""

TYPED = {
    "guards": ("sign_bit.py", "SignBit(scale=2.0)"),
    "attacks": ("nearest.py", "Nearest()"),
    "rules": ("half_way.py", "HalfWay(share=0.25)"),
    "detectors": ("large_gradients.py", "LargeGradients(times=1000.0)"),
    "partitions": ("in_order.py", "InOrder()"),
    "protocols": ("smoothed_labels.py", "Smoothed(share=0.2)"),
    "data": ("stripes.py", "Stripes(count=40)"),
    "nets": ("two_layers.py", "TwoLayers(width=12)"),
}
