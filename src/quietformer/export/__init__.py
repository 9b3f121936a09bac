"""Export: ONNX whose quantizers are the calibrated ones, checked against the simulation, with latency and size."""
