"""Quantization: affine arithmetic, range estimators, placement, insertion, calibration, sensitivity."""
