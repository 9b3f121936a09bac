"""Quantization: affine arithmetic, range estimators, placement, calibration, sensitivity."""

from quietformer.quant import estimators as estimators  # registers the estimators
