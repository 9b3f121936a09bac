"""The verbs: inspect, quantize, export, retrofit, convert and the trial of a study, one file each."""
