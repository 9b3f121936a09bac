"""A Hugging Face Trainer trains changed models, moves the warm-up on, and leaves checkpoints that load."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import quietformer as qf
from tests.tiny_models import VARIANTS, build, inputs, logits


class Copies(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        tokens = torch.randint(3, 90, (6,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def short_run(folder, **more):
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )


def test_a_trainer_advances_the_warmup_once_for_each_optimizer_step(tmp_path):
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["clipped-warmup"])
    settings = short_run(tmp_path, max_steps=3, gradient_checkpointing=True, save_steps=2)
    Trainer(model=model, args=settings, train_dataset=Copies(), callbacks=[qf.WarmupCallback()]).train()
    assert [core.normalizer.step.item() for _, core in qf.attention_cores(model)] == [3, 3]
    stored = qf.load(tmp_path / "checkpoint-2")
    assert [core.normalizer.step.item() for _, core in qf.attention_cores(stored)] == [2, 2]
    loaded = qf.load(tmp_path / "checkpoint-3")
    assert torch.equal(logits(loaded, inputs("bert")), logits(model.eval(), inputs("bert")))
    # A loaded model trains again: transformers must not take it for a quantized one.
    Trainer(model=loaded, args=settings, train_dataset=Copies()).train()


def test_outlier_figures_reach_whatever_the_trainer_reports_to(tmp_path):
    from transformers import TrainerCallback

    class Tracker(TrainerCallback):
        def __init__(self):
            self.seen = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.seen.append(dict(logs))

    model, tracker = build("bert"), Tracker()
    qf.apply_attention_(model, VARIANTS["both"])
    settings = short_run(tmp_path, max_steps=4, logging_steps=2, save_strategy="no")
    trainer = Trainer(model=model, args=settings, train_dataset=Copies(), callbacks=[tracker])
    qf.OutlierCallback(every=2).attach_(trainer)
    trainer.train()
    logged = [logs for logs in tracker.seen if "loss" in logs]
    assert len(logged) == 2
    for logs in logged:
        assert logs["outliers/ffn_infinity_norm"] > 0
        assert logs["outliers/ffn_kurtosis"] > 1
        assert 0 <= logs["outliers/dead_rows"] <= 1
        assert 0 < logs["outliers/gate_openness"] < 2
    assert not any(len(module._forward_hooks) > 1 for module in model.modules())


def test_an_outlier_figure_is_logged_once_and_not_repeated_for_steps_nobody_looked_at(tmp_path):
    model = build("bert")
    settings = short_run(tmp_path, max_steps=6, logging_steps=1, save_strategy="no")
    trainer = Trainer(model=model, args=settings, train_dataset=Copies())
    qf.OutlierCallback(every=3).attach_(trainer)
    trainer.train()
    steps = [row["step"] for row in trainer.state.log_history if "outliers/ffn_infinity_norm" in row]
    assert steps == [1, 4]


def test_a_step_with_numbers_that_are_none_is_left_to_whoever_watches_the_loss(tmp_path):
    model = build("bert")
    settings = short_run(tmp_path, max_steps=2, logging_steps=1, save_strategy="no")
    trainer = Trainer(model=model, args=settings, train_dataset=Copies())
    qf.OutlierCallback(every=1).attach_(trainer)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    trainer.train()
    assert not any("outliers/ffn_infinity_norm" in row for row in trainer.state.log_history)
