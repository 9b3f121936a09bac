"""How hidden states become one embedding: as the folder of the model says, or the mean over its tokens."""

# B sequences, T tokens, d features

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from quietformer.architectures.forward import mean_pooled
from quietformer.models.origin import origin_of, sentence_folder_of
from quietformer.models.sentence_folder import SentenceSettings, sentence_embedding


@dataclass(frozen=True)
class Pooling:
    """One embedding a sequence or image; without settings the mean over its tokens."""

    settings: SentenceSettings | None = None

    @property
    def is_mean(self) -> bool:
        return self.settings is None or self.settings.pooling in ((), ("mean",))

    def __call__(self, states: Tensor, mask_BT: Tensor | None) -> Tensor:
        if self.settings is None or self.is_mean or states.dim() != 3:
            return mean_pooled(states, mask_BT)
        if mask_BT is None or mask_BT.shape != states.shape[:2]:
            mask_BT = states.new_ones(states.shape[:2])
        return sentence_embedding(states, mask_BT, self.settings)


MEAN = Pooling()


def pooling_of(model: nn.Module) -> Pooling:
    """As the sentence-transformers folder that the model came from says; for any other model the mean."""
    origin = origin_of(model)
    found = None if origin is None else sentence_folder_of(origin)
    return MEAN if found is None else Pooling(found[1])
