"""How a run changes its weights: the optimizer and the learning rate over the run."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from quietformer.config.spec_base import Spec, listed

Pair = Annotated[tuple[float, float], BeforeValidator(listed)]

MUON = "muon"


class OptimizerRecipe(Spec):
    """AdamW, Muon, or whatever else the Trainer knows."""

    title: ClassVar[str] = "optimizer"
    name: str = Field(
        default="adamw_torch_fused",
        description="an optimizer of the Hugging Face Trainer, or muon: Muon for the matrices of the blocks, AdamW for the rest",
    )
    learning_rate: float = Field(default=1e-3, gt=0)
    gate_factor: float = Field(default=1.0, gt=0, description="the gates' learning rate is this times the others'")
    norm_factor: float = Field(default=1.0, gt=0, description="the norms' learning rate is this times the others'")
    betas: Pair = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    decay_norms: bool = Field(default=False, description="also decay the scales of LayerNorms")
    max_grad_norm: float = Field(default=1.0, ge=0, description="0: no clipping")
    single_scale_norms: bool = Field(
        default=False,
        description="keep all gains of a norm equal, as in a norm with one scale; for models from nothing",
    )
    freeze_embeddings: bool = Field(
        default=False, description="leave the embeddings of tokens and positions as they are"
    )

    @model_validator(mode="after")
    def _betas_are_shares(self) -> OptimizerRecipe:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {list(self.betas)}")
        return self


class ScheduleRecipe(Spec):
    """The learning rate over the run."""

    title: ClassVar[str] = "schedule"
    shape: Literal["linear", "cosine", "constant"] = "linear"
    warmup_steps: int = Field(default=0, ge=0)
    warmup_epochs: float = Field(default=0.0, ge=0, description="instead of warmup_steps")
    warmup_from: float = Field(default=0.0, ge=0, description="learning rate of the first step of the warm-up")
    final: float = Field(default=0.0, ge=0, description="learning rate that the decay ends at")
    hold: float = Field(default=0.0, ge=0, lt=1, description="share of the run at the full rate before it falls")

    @model_validator(mode="after")
    def _one_warmup(self) -> ScheduleRecipe:
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError("give warmup_steps or warmup_epochs, not both")
        return self
