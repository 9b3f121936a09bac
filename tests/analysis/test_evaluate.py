"""Figures before and after quantization: against transformers' own loss, float64 formulas and brute force."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import nn

from quietformer.analysis import output_quality as scores
from quietformer.analysis.evaluate import Evaluation, evaluate, reference_run
from quietformer.architectures.task import task_of
from quietformer.data.batches_from_options import labelled_images_of
from quietformer.data.calibration_split import split_indices, split_sequences
from quietformer.data.image_batches import image_batches, labelled_folder_images
from quietformer.data.text_batches import text_batches
from quietformer.data.token_labels import IGNORED, mask_tokens
from quietformer.errors import QuietformerError
from tests.recorded_progress import RecordedProgress
from tests.tiny_models import CAUSAL, VOCABULARY, build, inputs

PAD, FIRST, LAST, MASK = 0, 1, 2, 3
SPECIAL = (PAD, FIRST, LAST, MASK)


def sequences(count=7, seed=0):
    """Sequences of different lengths between special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [FIRST, *torch.randint(4, VOCABULARY, (5 + 3 * number % 17,), generator=generator).tolist(), LAST]
        for number in range(count)
    ]


def batched(found, batch_size=3):
    return list(text_batches(found, pad=PAD, batch_size=batch_size))


def masked(batches, seed=0, **options):
    return mask_tokens(batches, mask_token=MASK, special_tokens=SPECIAL, vocabulary=VOCABULARY, seed=seed, **options)


def data_of(name, batch_size=3):
    if name == "vit":
        pixels = torch.randn(7, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        return list(image_batches(pixels, batch_size=batch_size, labels=torch.arange(7) % 5))
    return masked(batched(sequences(), batch_size)) if name in ("bert", "pre") else batched(sequences(), batch_size)


def make(name):
    if name not in ("encoder", "classifier", "tagger"):
        return build(name)
    whole = build("bert")
    kinds = {
        "encoder": transformers.BertModel,
        "classifier": transformers.BertForSequenceClassification,
        "tagger": transformers.BertForTokenClassification,
    }
    torch.manual_seed(0)
    model = kinds[name](copy.deepcopy(whole.config))
    getattr(model, "bert", model).load_state_dict(whole.bert.state_dict(), strict=False)
    return model.eval()


EVERY = ("bert", "opt", "vit", "encoder", "classifier", "tagger")


def disturbed(model, scale=0.02):
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return other


@pytest.mark.parametrize("name", ["bert", *CAUSAL])
def test_perplexity_is_that_of_transformers_own_loss(name):
    model, total, count = build(name), 0.0, 0
    batches = data_of(name, batch_size=1)  # alone, hence without padding
    with torch.no_grad():
        for batch in batches:
            labels = batch["labels"] if name == "bert" else batch["input_ids"]
            tokens = int((labels != IGNORED).sum()) if name == "bert" else labels.shape[1] - 1
            total += float(model(batch["input_ids"], labels=labels).loss) * tokens
            count += tokens
    found = evaluate(model, data_of(name), task_of(model))
    assert found.scored == count
    assert found.value == pytest.approx(math.exp(total / count), rel=1e-5)
    assert (found.primary, found.better) == ("perplexity", "lower")


def test_token_scores_are_the_float64_formula_however_they_are_cut(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = 30 * torch.randn(3, 7, 50, generator=generator)
    labels = torch.randint(50, (3, 7), generator=generator).masked_fill(torch.arange(7) % 3 == 1, IGNORED)
    x, expected = logits.numpy().astype(np.float64), 0.0
    for row, column in np.argwhere(labels.numpy() != IGNORED):
        line = x[row, column]
        expected += np.log(np.exp(line - line.max()).sum()) + line.max() - line[labels[row, column]]
    total, predictions = scores.token_scores(logits, labels)
    assert total == pytest.approx(expected, rel=1e-12)
    assert predictions.tolist() == logits.argmax(-1)[labels != IGNORED].tolist()
    monkeypatch.setattr(scores, "CHUNK", 120)
    cut, same = scores.token_scores(logits, labels)
    assert cut == pytest.approx(expected, rel=1e-12)
    assert torch.equal(same, predictions)


@pytest.mark.parametrize("name", EVERY)
def test_neither_padding_nor_the_batch_size_changes_a_figure(name):
    model = make(name)
    task, other = task_of(model), disturbed(model)
    figures = []
    for batch_size in (1, 3, 7):
        reference = reference_run(model, data_of(name, batch_size))
        figures.append(evaluate(other, data_of(name, batch_size), task, reference).measured)
    assert figures[0] == pytest.approx(figures[1], rel=1e-5)
    assert figures[0] == pytest.approx(figures[2], rel=1e-5)


def test_padding_on_the_left_is_not_scored():
    found = sequences(2)
    (batch,) = batched(found)
    turned = {name: value.clone() for name, value in batch.items()}
    for row, tokens in enumerate(found):
        turned["input_ids"][row] = batch["input_ids"][row].roll(batch["input_ids"].shape[1] - len(tokens))
        turned["attention_mask"][row] = batch["attention_mask"][row].roll(batch["input_ids"].shape[1] - len(tokens))
    model = build("llama")  # rotary positions: a shift changes nothing
    right, left = (evaluate(model, [given], "causal") for given in (batch, turned))
    assert right.scored == left.scored == sum(len(tokens) - 1 for tokens in found)
    assert left.value == pytest.approx(right.value, rel=1e-5)


def test_masks_are_fixed_and_depend_on_the_sequences_alone():
    once, again, other = (
        masked(batched(sequences())),
        masked(batched(sequences())),
        masked(batched(sequences()), seed=1),
    )
    assert all(torch.equal(a[name], b[name]) for a, b in zip(once, again, strict=True) for name in a)
    assert any(not torch.equal(a["labels"], b["labels"]) for a, b in zip(once, other, strict=True))
    by_one = masked(batched(sequences(), batch_size=1))
    rows = [(batch["input_ids"][row], batch["labels"][row]) for batch in once for row in range(len(batch["input_ids"]))]
    for (ids, labels), alone in zip(rows, by_one, strict=True):
        length = alone["labels"].shape[1]
        assert torch.equal(ids[:length], alone["input_ids"][0])
        assert torch.equal(labels[:length], alone["labels"][0])


def test_padding_is_not_masked_even_if_an_ordinary_token_pads():
    plain = list(text_batches(sequences(), pad=50, batch_size=7))
    (batch,) = masked(plain, probability=1.0)
    assert not bool((batch["labels"] != IGNORED)[batch["attention_mask"] == 0].any())


def test_masks_follow_the_rule_of_bert():
    found = [[FIRST, *np.random.default_rng(0).integers(4, VOCABULARY, 400).tolist(), LAST] for _ in range(60)]
    plain, hidden = batched([*found, [FIRST, 9, LAST]]), masked(batched([*found, [FIRST, 9, LAST]]))
    before = torch.cat([batch["input_ids"].flatten() for batch in plain])
    after, labels = (torch.cat([batch[name].flatten() for batch in hidden]) for name in ("input_ids", "labels"))
    chosen = labels != IGNORED
    ordinary = ~torch.isin(before, torch.tensor(SPECIAL))
    assert torch.equal(before[chosen], labels[chosen])
    assert torch.equal(before[~chosen], after[~chosen])
    assert not bool((chosen & ~ordinary).any())
    assert float(chosen[ordinary].double().mean()) == pytest.approx(0.15, abs=0.01)
    is_mask, is_same = after[chosen] == MASK, after[chosen] == before[chosen]
    assert float(is_mask.double().mean()) == pytest.approx(0.8, abs=0.03)
    assert float(is_same.double().mean()) == pytest.approx(0.1, abs=0.03)
    assert not bool(torch.isin(after[chosen][~is_mask], torch.tensor(SPECIAL)).any())
    everyone = [row for batch in masked(batched(sequences(40)), probability=0.0) for row in batch["labels"]]
    assert [int((row != IGNORED).sum()) for row in everyone] == [1] * 40


def test_without_a_mask_token_one_line_says_so():
    with pytest.raises(QuietformerError, match="no mask token"):
        mask_tokens(batched(sequences()), mask_token=None, special_tokens=(), vocabulary=VOCABULARY)


@pytest.mark.parametrize("name", EVERY)
def test_a_function_gives_the_figures_of_the_model_it_wraps(name):
    model = make(name)
    task, batches, other = task_of(model), data_of(name), disturbed(model)
    seen = []

    @torch.no_grad()
    def run(batch):
        seen.append(set(batch))
        return dict(other(**batch))

    reference = reference_run(model, batches)
    assert evaluate(run, batches, task, reference) == evaluate(other, batches, task, reference)
    assert not any("labels" in names for names in seen)


@pytest.mark.parametrize("name", EVERY)
def test_a_model_agrees_with_itself(name):
    model = make(name)
    reference = reference_run(model, data_of(name))
    assert evaluate(model, data_of(name), reference.task, reference) == reference.evaluation
    figures = reference.evaluation.measured
    compared = {"cosine", "neighbour_agreement", "agreement", "token_agreement"} & set(figures)
    assert compared
    assert all(figures[figure] == pytest.approx(1.0, abs=1e-12) for figure in compared)


def test_top1_is_counted_on_labels_and_agreement_without():
    model, other, batches = make("vit"), disturbed(make("vit"), 0.2), data_of("vit")
    with torch.no_grad():
        ours, theirs = (
            torch.cat([m(batch["pixel_values"]).logits.argmax(-1) for batch in batches]).tolist()
            for m in (model, other)
        )
    labels = torch.cat([batch["labels"] for batch in batches]).tolist()
    reference = reference_run(model, batches)
    found = evaluate(other, batches, "images", reference)
    assert (found.primary, found.better) == ("top1", "higher")
    assert found.value == np.mean(np.equal(theirs, labels))
    assert found.measured["agreement"] == np.mean(np.equal(theirs, ours))
    bare = [{"pixel_values": batch["pixel_values"]} for batch in batches]
    found = evaluate(other, bare, "images", reference_run(model, bare))
    assert found.primary == "agreement"
    assert found.value == np.mean(np.equal(theirs, ours))


def test_broken_predictions_agree_with_nothing():
    nowhere = scores.predicted(torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [-math.inf, 2.0]]))
    assert nowhere.tolist() == [scores.BROKEN, scores.BROKEN, 1]
    assert scores.agreement(nowhere, nowhere) == pytest.approx(1 / 3)


def test_a_single_logit_decides_by_its_sign():
    assert scores.predicted(torch.tensor([[-2.0], [0.5], [math.nan]])).tolist() == [0, 1, scores.BROKEN]


def test_embeddings_are_masked_means_and_their_neighbours_those_of_brute_force():
    model, batches = make("encoder"), batched(sequences(23), batch_size=4)
    other = disturbed(model, 0.3)

    def embeddings(of):
        with torch.no_grad():
            rows = [of(torch.tensor([tokens])).last_hidden_state[0].mean(0) for tokens in sequences(23)]
        return torch.stack(rows).numpy().astype(np.float64)

    def cosine(a, b):
        return a @ b / np.sqrt((a @ a) * (b @ b))

    def nearest(rows, of):
        return max((i for i in range(len(rows)) if i != of), key=lambda i: cosine(rows[i], rows[of]))

    ours, theirs = embeddings(model), embeddings(other)
    found = evaluate(other, batches, "embedding", reference_run(model, batches))
    same = np.mean([nearest(ours, i) == nearest(theirs, i) for i in range(23)])
    assert 0 < same < 1
    assert found.measured["neighbour_agreement"] == pytest.approx(same)
    assert found.value == pytest.approx(np.mean([cosine(a, b) for a, b in zip(ours, theirs, strict=True)]), rel=1e-5)
    assert (found.primary, found.better, found.scored) == ("cosine", "higher", 23)


def test_equally_near_neighbours_agree_and_broken_ones_do_not():
    corners = torch.eye(4, dtype=torch.float64)  # all are equally far from each other
    assert scores.neighbour_agreement(corners.flip(0), corners) == 1.0
    assert scores.neighbour_agreement(corners, corners + 1e-8 * torch.arange(16).view(4, 4)) == 1.0
    broken = corners.clone()
    broken[1] = math.nan
    assert scores.neighbour_agreement(broken, corners) == 0.75


@pytest.mark.parametrize("name", EVERY)
def test_nan_gives_none_in_json_and_no_crash(name):
    model, batches = make(name), data_of(name)
    broken = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in broken.parameters():
            parameter.fill_(math.nan)
    found = evaluate(broken, batches, task_of(model), reference_run(model, batches))
    figures = json.loads(found.metrics.model_dump_json())
    if "perplexity" in figures:
        assert found.value == math.inf
    compared = "neighbour_agreement", "agreement", "token_agreement", "top1"
    assert all(figures[figure] in ((0.0,) if figure in compared else (None,)) for figure in figures), figures


def test_perplexity_past_float64_is_infinite():
    assert scores.perplexity(1e4) == math.inf
    assert Evaluation("causal", "perplexity", {"perplexity": math.inf}, 1, 1).metrics.model_dump() == {
        "perplexity": None
    }


def test_the_model_is_left_as_it_was_and_progress_is_told():
    model = build("bert").train()
    model.bert.embeddings.eval()  # a frozen part
    modes, progress = [module.training for module in model.modules()], RecordedProgress()
    evaluate(model, data_of("bert"), "masked", progress=progress)
    assert [module.training for module in model.modules()] == modes
    assert progress.steps == [("evaluating", done, 3) for done in (0, 1, 2, 3)]
    with pytest.raises(QuietformerError, match="does not accept this input"):
        evaluate(model, [{"pixel_values": torch.zeros(1, 3, 4, 4)}], "masked")
    assert [module.training for module in model.modules()] == modes


def test_mistakes_are_named():
    model, batches = make("encoder"), batched(sequences())
    reference = reference_run(model, batches)
    for call, message in (
        (lambda: evaluate(model, batches, "embedding"), "against a reference"),
        (lambda: evaluate(model, batches[:1], "embedding", reference), "other batches"),
        (lambda: evaluate(model, batches, "classes", reference), "was run for 'embedding'"),
        (lambda: evaluate(model, batches, "poetry"), "unknown task 'poetry'"),
        (lambda: evaluate(model, batches, "causal"), "no logits"),
        (lambda: evaluate(build("bert"), batches, "masked"), "mask_tokens"),
        (lambda: reference_run(model, batched(sequences(1))), "at least 2 sequences"),
        (lambda: reference_run(model, []), "nothing to evaluate"),
        (lambda: evaluate(build("opt"), batched([[5]]), "causal"), "nothing to evaluate"),
        (lambda: reference_run(lambda batch: batch, batches), "name the task"),
    ):
        with pytest.raises(QuietformerError, match=message):
            call()
    once, other = masked(batches, probability=0.0), masked(batches, probability=0.0, seed=1)
    with pytest.raises(QuietformerError, match="other batches"):
        evaluate(build("bert"), other, "masked", reference_run(build("bert"), once))


class Renamed(transformers.BertForMaskedLM):
    """A class of somebody's own."""


TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 20}


@pytest.mark.parametrize(
    ("make_model", "task"),
    [
        (lambda: Renamed(transformers.BertConfig(**TINY)), "masked"),
        (lambda: transformers.BertForPreTraining(transformers.BertConfig(**TINY)), "masked"),
        (lambda: build("gpt2"), "causal"),
        (lambda: transformers.GPT2DoubleHeadsModel(build("gpt2").config), "causal"),
        (lambda: transformers.GPT2Model(build("gpt2").config), "embedding"),
        (lambda: build("vit"), "images"),
        (lambda: transformers.ViTModel(build("vit").config), "embedding"),
        (lambda: transformers.GPT2ForSequenceClassification(build("gpt2").config), "classes"),
        (lambda: make("tagger"), "classes"),
        (lambda: make("encoder"), "embedding"),
        (lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)), "classes"),
        (lambda: transformers.T5EncoderModel(transformers.T5Config(**T5)), "embedding"),
        (
            lambda: transformers.XLMWithLMHeadModel(
                transformers.XLMConfig(vocab_size=20, emb_dim=8, n_layers=1, n_heads=2, causal=False)
            ),
            "masked",
        ),
        (lambda: nn.Linear(2, 2), "embedding"),
    ],
)
def test_the_task_is_read_off_the_model(make_model, task):
    model = make_model()
    assert task_of(model) == task
    if isinstance(model, transformers.PreTrainedModel):
        given = [inputs("vit")] if model.main_input_name == "pixel_values" else batched([[1, 5, 6], [1, 7]])
        given = mask_tokens(given, mask_token=3, special_tokens=(), vocabulary=20) if task == "masked" else given
        if "GPT2ForSequence" in type(model).__name__:
            model.config.pad_token_id = PAD
        assert reference_run(model, given).evaluation.sequences == 2


def test_calibration_and_evaluation_are_apart_and_the_seed_changes_the_first_alone():
    pool = sequences(40)
    calibration, evaluation = split_sequences(pool, calibration=10, evaluation=20, seed=0)
    other, same = split_sequences(pool, calibration=10, evaluation=20, seed=1)
    assert (len(calibration), len(evaluation)) == (10, 20)
    assert evaluation == same
    assert calibration != other
    assert split_sequences(pool, calibration=10, evaluation=20, seed=1) == (other, same)
    assert split_sequences(pool, calibration=5, evaluation=20)[1] == evaluation
    for seed in range(5):
        indices = split_indices(40, calibration=15, evaluation=25, seed=seed)
        assert sorted([*indices[0], *indices[1]]) == list(range(40))
    with pytest.raises(QuietformerError, match=r"^40 .* 21 to calibrate and 20 .* make 41$"):
        split_sequences(pool, calibration=21, evaluation=20)


def test_class_folders_are_labels(tmp_path):
    def fill(*names, images=2):
        for place, name in enumerate(names):
            (tmp_path / name).mkdir(exist_ok=True)
            for number in range(images):
                Image.new("L", (4, 4), 10 * place).save(tmp_path / name / f"{number}.png")

    def labels(count=9, **options):
        pixels, found = labelled_folder_images(tmp_path, count=count, size=4, channels=1, **options)
        if found is None:
            return None
        shades = [round((float(image.mean()) + 1) * 12.75) for image in pixels]
        return list(zip(shades, found.tolist(), strict=True))

    fill("2")
    assert labels() is None  # one folder is a place, not a class
    fill("2", "9", "10")  # by name, 10 would come first
    assert labels(count=3) == [(0, 0), (1, 1), (2, 2)]
    assert labels(label2id={"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}) == [(0, 0), (1, 1), (2, 2)] * 2
    assert labels(count=3, label2id={"10": 7, "2": 5, "9": 6, "11": 8}) == [(2, 7), (0, 5), (1, 6)]
    assert labels(label2id={f"LABEL_{number}": number for number in range(9)}) is None
    with pytest.raises(QuietformerError, match="'10' is no class"):
        labels(label2id={"2": 5, "9": 6})
    Image.new("L", (4, 4)).save(tmp_path / "loose.png")
    assert labels() is None


def test_digits_are_labels_only_of_models_that_may_sort_digits():
    model = build("vit")
    assert labelled_images_of(model, None, 3)[1] is None
    model.config.num_labels = 10
    assert labelled_images_of(model, None, 3)[1].tolist() == [0, 1, 2]
    model.config.id2label = {number: f"animal {number}" for number in range(10)}
    assert labelled_images_of(model, None, 3)[1] is None
