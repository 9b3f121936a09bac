"""Where a model keeps its layers, FFNs and residual adds, and which tensor flows where."""
