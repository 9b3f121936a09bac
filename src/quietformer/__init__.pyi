# The public names: the only list of them. __init__.py reads it, and type checkers read it.
from quietformer.analysis.inspection import inspect as inspect
from quietformer.architectures.patch_norm import add_patch_norm_ as add_patch_norm_
from quietformer.attention.gates.all_heads import AllHeadsGate as AllHeadsGate
from quietformer.attention.gates.elementwise import ElementwiseGate as ElementwiseGate
from quietformer.attention.gates.linear import LinearGate as LinearGate
from quietformer.attention.gates.mlp import MLPGate as MLPGate
from quietformer.attention.inject import advance_warmup_ as advance_warmup_
from quietformer.attention.inject import apply_attention_ as apply_attention_
from quietformer.attention.inject import attention_cores as attention_cores
from quietformer.attention.inject import remove_attention_ as remove_attention_
from quietformer.attention.normalizers.clipped_causal import ClippedCausal as ClippedCausal
from quietformer.attention.normalizers.clipped_softmax import ClippedSoftmax as ClippedSoftmax
from quietformer.attention.normalizers.learned_sink import LearnedSink as LearnedSink
from quietformer.attention.normalizers.softmax import Softmax as Softmax
from quietformer.attention.normalizers.softmax1 import Softmax1 as Softmax1
from quietformer.config.attention import AttentionSpec as AttentionSpec
from quietformer.config.quantization import QuantSpec as QuantSpec
from quietformer.deployment.onnx_export import export_onnx as export_onnx
from quietformer.errors import QuietformerError as QuietformerError
from quietformer.models.load import load as load
from quietformer.models.open import open_model as open_model
from quietformer.models.save import save as save
from quietformer.quant.calibration import calibrate_ as calibrate_
from quietformer.quant.calibration import dequantize_ as dequantize_
from quietformer.quant.calibration import quantize_ as quantize_
from quietformer.training.callbacks import OutlierCallback as OutlierCallback
from quietformer.training.callbacks import WarmupCallback as WarmupCallback
from quietformer.transforms.balance import balance_ as balance_
from quietformer.transforms.rotation import rotate_ as rotate_

__version__: str
