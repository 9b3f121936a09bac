"""Real INT8 outside torch: ONNX graphs, runtimes, latency, baselines of other tools."""
