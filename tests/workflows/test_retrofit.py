"""A retrofit: each thing is done once, defaults follow the model, and folders of the first release still answer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import quietformer as qf
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.deployment.usage_note import INTEGER
from quietformer.models.open_any import open_model
from quietformer.results.retrofit import RetrofitReport
from quietformer.workflows import measure_before_after as measure_side
from quietformer.workflows import open_once
from quietformer.workflows import retrofit as workflow
from quietformer.workflows.measure_before_after import spread_over
from quietformer.workflows.retrofit_recipe import LONG_TAIL, attention_for_pretrained, long_tail
from tests.speech import whisper
from tests.told import Remembered
from tests.training.pretrained import tiny_pretrained
from tests.training.recipes import write_prose

QUICK = {"placement": "paper", "steps": 6, "batch_size": 4, "sequences": 24, "seeds": 1, "length": 24, "real": False}


@pytest.fixture
def loud(tmp_path):
    """A post-norm model with outliers, so that it is balanced."""
    return tiny_pretrained(tmp_path / "loud", outlier=150.0)


@pytest.fixture
def options(tmp_path):
    return RetrofitOptions(texts=(str(write_prose(tmp_path / "text.txt")),), **QUICK)


def test_everything_is_done_once(tmp_path, loud, options, monkeypatch):
    """The model is opened once (the teacher is a copy), balanced once, data built once, and inspected before and after."""
    from quietformer.data import unseen_data as measuring_data
    from quietformer.training import run
    from quietformer.training.strategies import base, distillation

    counts = Counter()

    def count(name, *modules):
        original = getattr(modules[0], name)

        def counting(*args, **kwargs):
            counts[name] += 1
            if name == "open_model" and "checkpoint" in str(args[0]):
                counts[name] -= 1  # the best checkpoint of this very run
            return original(*args, **kwargs)

        for module in modules:
            assert getattr(module, name) is original
            monkeypatch.setattr(module, name, counting)

    count("open_model", open_once, workflow, run, distillation)
    count("balance_", workflow, distillation)
    count("training_data", workflow, base, measuring_data)
    count("inspect_model", measure_side)
    report = workflow.retrofit(loud, tmp_path / "out", options)
    assert report.balance > 0
    assert report.balanced_alone is not None
    assert counts == {"open_model": 1, "balance_": 1, "training_data": 1, "inspect_model": 2}


def test_a_report_is_read_back_and_says_the_same(tmp_path, loud, options):
    told = Remembered()
    report = workflow.retrofit(loud, tmp_path / "out", options, told)
    again = RetrofitReport.read(tmp_path / "out" / "retrofit.json")
    assert (again.sentences(), str(again.table)) == (report.sentences(), str(report.table))
    assert again.to_json() == report.to_json()
    assert workflow.retrofit(loud, tmp_path / "out", options, told) == again
    assert "nothing to do" in told.said[-1]
    assert report.before.real.per_channel.cosine is None  # not measured, and no error to ask for
    assert report.before.fp32.cosine == pytest.approx(1.0, abs=1e-6)
    assert report.after.simulated.per_channel.cosine.mean == pytest.approx(
        next(row.after for row in report.rows if row.what == "simulated W8A8, per-channel weights: cosine")
    )


def test_a_speech_model_is_told_what_it_can_have(tmp_path):
    whisper(tmp_path / "whisper")
    with pytest.raises(qf.QuietformerError, match=r"takes audio.*quietformer export .*whisper OUT --audio DIR"):
        workflow.retrofit(tmp_path / "whisper", tmp_path / "out", RetrofitOptions(steps=1))
    assert not (tmp_path / "out").exists()


def test_a_finished_folder_of_the_first_release_is_finished(tmp_path, loud, options):
    out = tmp_path / "out"
    workflow.retrofit(loud, out, options)
    new = json.loads((out / "retrofit.json").read_text())
    (out / "retrofit.json").write_text(json.dumps(as_version_1(new)))
    told = Remembered()
    report = workflow.retrofit(loud, out, options, told)
    assert "nothing to do" in told.said[-1]
    assert report.version == 2
    assert report.after.fp32.cosine == new["after"]["fp32"]["cosine"]
    assert [row.what for row in report.rows] == [row["what"] for row in new["rows"]]
    assert report.recipe == new["recipe"]


def as_version_1(fields):
    """What the first release wrote for the same retrofit."""
    old = json.loads(
        json.dumps(fields).replace('"fp32": {"cosine"', '"float": {"cosine"').replace("eval_fp32", "eval_float")
    )
    old["version"] = 1
    old["model"]["class"] = old["model"].pop("class_name")
    for side in ("before", "after"):
        old[side]["real"] = None
        del old[side]["inspect"]["kind"]
        old[side]["inspect"]["version"] = 1
        old[side]["inspect"]["model"]["class"] = old[side]["inspect"]["model"].pop("class_name")
    for row in old["rows"]:
        row["what"] = row["what"].replace("fp32", "floating point")
    old["recipe"]["task"], old["recipe"]["rounding"] = "imitate", old["recipe"].pop("qat")
    old["asked"]["rounding"] = old["asked"].pop("qat")
    for name in ("texts", "dataset", "images", "eval_texts", "eval_images"):
        del old["asked"][name]
    old["asked"] |= {"sources": ["Source(path='text.txt')"], "evaluation": [], "images": False}
    return old


def test_outliers_are_looked_for_in_texts_of_all_lengths():
    batches = [{"input_ids": torch.zeros(4, length)} for length in range(5, 45)]
    lengths = [batch["input_ids"].shape[1] for batch in spread_over(batches, 16)]
    assert lengths == [44, 31, 18, 5]
    assert len(spread_over(batches[:2], 64)) == 2
    assert [batch["input_ids"].shape[1] for batch in spread_over(batches, 1)] == [5]


def test_the_threshold_follows_the_models_own_scale():
    def inspected(factor):
        rows = [
            SimpleNamespace(site="ffn_output", percentiles={"1": -size * factor, "99": size * factor / 2})
            for size in (1.0, 2.0, 9.0)
        ]
        return SimpleNamespace(sites=rows)

    assert long_tail(inspected(1), "ffn_output", LONG_TAIL) == LONG_TAIL * 2.0
    assert long_tail(inspected(10), "ffn_output", 6.0) == 10 * long_tail(inspected(1), "ffn_output", 6.0)


def test_a_gate_named_without_fields_starts_as_the_identity(tmp_path):
    model = open_model(str(tiny_pretrained(tmp_path / "model")))
    batch = {"input_ids": torch.randint(5, 200, (2, 9))}
    before = model(**batch).last_hidden_state
    qf.apply_attention_(model, attention_for_pretrained("softmax", "linear"))
    torch.testing.assert_close(model(**batch).last_hidden_state, before, rtol=0.1, atol=0.1)
    assert attention_for_pretrained("softmax1", "none").gate is None


def test_fields_of_a_gate_leave_it_open():
    gate = attention_for_pretrained("", "mlp(hidden=8)").gate
    assert (gate.hidden, gate.scale * gate.pi_init) == (8, 1.0)
    gate = attention_for_pretrained("", "linear(pi_init=0.25)").gate
    assert (gate.pi_init, gate.scale) == (0.25, 4.0)


def test_attention_that_is_there_stays_unless_named():
    there = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=2), gate=qf.LinearGate(pi_init=0.3))
    assert attention_for_pretrained("", "", there) == there
    assert attention_for_pretrained("softmax1", "", there).gate == there.gate
    assert attention_for_pretrained("", "none", there) == qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=2))
    bare = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=2))
    assert attention_for_pretrained("", "", bare) == bare.model_copy(update={"gate": qf.LinearGate.for_pretrained()})


CODE = """
from transformers import BertConfig, BertModel

class OwnConfig(BertConfig):
    model_type = "own"

class OwnModel(BertModel):
    config_class = OwnConfig
"""


def test_a_model_with_code_of_its_own_is_retrofitted_if_it_is_trusted(tmp_path, loud, options):
    """The best checkpoint and a finished run are opened again, with the same trust."""
    config = json.loads((loud / "config.json").read_text())
    config |= {"model_type": "own", "architectures": ["OwnModel"]}
    config |= {"auto_map": {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}}
    (loud / "config.json").write_text(json.dumps(config))
    (loud / "own_code.py").write_text(CODE)
    out = tmp_path / "out"
    with pytest.raises(qf.QuietformerError, match="trust_remote_code"):
        workflow.retrofit(loud, out, options)
    trusting = options.model_copy(update={"trust_remote_code": True})
    report = workflow.retrofit(loud, out, trusting)
    assert report.changed
    assert report.model.class_name == "OwnModel"
    assert "--trust-remote-code" in report.command
    (out / workflow.REPORT).unlink()  # as if it had been killed while measuring
    again = workflow.retrofit(loud, out, trusting)
    assert again.after == report.after
    assert workflow.retrofit(loud, out, options) == again  # whether code is trusted makes no other retrofit


@pytest.fixture
def shippable(options):
    """Real INT8 at matrix products, the default."""
    return options.model_copy(update={"placement": "matmul", "real": True})


def test_without_training_where_that_is_enough(tmp_path, loud, shippable):
    """Nothing is trained, real INT8 is shipped, and ONNX Runtime agrees with the metrics that are told."""
    out, told = tmp_path / "out", Remembered()
    report = workflow.retrofit(loud, out, shippable, told)
    assert report.after is None
    assert not report.changed
    assert report.training_free is not None
    assert report.training_free.real
    assert "next to nothing" in report.sentence
    assert sorted(path.name for path in out.iterdir() if path.name[0] != ".") == ["int8", "retrofit.json"]
    assert report.training_free.metrics.cosine == pytest.approx(cosine_of(loud, out, shippable), abs=1e-4)
    assert workflow.retrofit(loud, out, shippable, told) == RetrofitReport.read(out / "retrofit.json")
    assert "finished" in told.said[-1]


def cosine_of(folder, out, options):
    """Of mean-pooled embeddings, by onnxruntime and transformers alone, on the text it was measured on."""
    import onnxruntime
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    session = onnxruntime.InferenceSession(out / "int8" / INTEGER)
    lines = [line for line in Path(options.texts[0]).read_text(encoding="utf-8").splitlines() if line.strip()]
    cosines = []
    for line in lines[:40]:
        given = tokenizer(line, return_tensors="pt", truncation=True, max_length=options.length)
        wanted = {item.name for item in session.get_inputs()}
        ours = session.run(None, {name: x.numpy() for name, x in given.items() if name in wanted})[0]
        with torch.no_grad():
            exact = model(**given).last_hidden_state
        pair = torch.from_numpy(ours).mean(1), exact.mean(1)
        cosines.append(float(torch.nn.functional.cosine_similarity(*pair)))
    return sum(cosines) / len(cosines)


def test_force_trains_all_the_same_and_the_better_int8_is_kept(tmp_path, loud, shippable):
    report = workflow.retrofit(loud, tmp_path / "out", shippable.model_copy(update={"force": True}))
    free, healed = report.training_free, report.healed_int8
    assert report.changed
    assert "without training and" in report.sentence
    better = "healed model" if healed.metrics.cosine > free.metrics.cosine else "original"
    assert f"that of the {better} is shipped" in report.sentence
    assert (tmp_path / "out" / "int8" / INTEGER).is_file()


def test_every_tensor_in_int8_is_trained_for_and_set_beside_no_training(tmp_path, loud, options):
    """However good the search alone is; the better of both is told, and shipped if real INT8 is asked for."""
    out = tmp_path / "out"
    report = workflow.retrofit(loud, out, options.model_copy(update={"real": True}))
    free, healed = report.training_free, report.healed_int8
    assert report.changed
    assert free.everywhere
    assert healed.everywhere
    better = healed if healed.metrics.cosine > free.metrics.cosine else free
    sizes = [found.facts.bytes.int8 for found in (free, healed)]
    assert sizes[0] < sizes[1]  # gates
    assert (out / "int8" / INTEGER).stat().st_size == better.facts.bytes.int8
    assert ("Training adds nothing" in report.sentence) == (better is free)
    assert "INT8 of every tensor has cosine" in report.sentence
    assert free.what in str(report)
