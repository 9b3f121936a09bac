"""Range estimators, one idea a file; importing the package registers them."""

from quietformer.quant.estimators.base import RangeEstimator as RangeEstimator
from quietformer.quant.estimators.current_minmax import CurrentMinMax as CurrentMinMax
from quietformer.quant.estimators.minmax import MinMax as MinMax
from quietformer.quant.estimators.mse import MSE as MSE
from quietformer.quant.estimators.percentile import Percentile as Percentile
from quietformer.quant.estimators.running_minmax import RunningMinMax as RunningMinMax
