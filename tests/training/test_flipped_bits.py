"""A flipped bit anywhere in a run folder is noticed; what earlier versions wrote, without checksums, is still read."""

import contextlib
import json
import random

import pytest

from fheat.system.errors import BadInput
from fheat.system.sealed import sealed, unsealed
from fheat.training.checkpoints import newest_checkpoint
from fheat.training.log import from_line, is_checked, split_log, to_line
from fheat.training.run_folder import RunFolder
from fheat.training.runs import read_history
from tests.attack.campaigns.flips import Campaign, finished_run
from tests.training.helpers import Run


@pytest.mark.slow
def test_no_flipped_bit_of_a_run_folder_is_accepted_with_other_values(scans, tmp_path):
    """All files get some; the campaign has thousands."""
    campaign, chance = Campaign(finished_run(scans, tmp_path), tmp_path), random.Random(0)
    for path in campaign.files():
        for _ in range(8):
            assert campaign.flip(path, chance.randrange(8 * path.stat().st_size)) in ("refused", "unchanged")


def test_every_bit_of_a_sealed_file_counts():
    whole = sealed({"iteration": 1200, "best": 0.75, "name": "é"})
    assert unsealed(whole) == {"iteration": 1200, "best": 0.75, "name": "é"}
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(ValueError):
            assert unsealed(bytes(changed)).keys() != {"iteration", "best", "name"}


def test_every_bit_of_a_log_counts():
    lines = [{"iteration": 1, "total": 0.5}, {"iteration": 2, "total": float("nan")}]
    whole = b"".join(map(to_line, lines))
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        texts = split_log(bytes(changed))
        with pytest.raises(ValueError):
            [from_line(text, checked=is_checked(texts)) for text in texts]


def test_the_beginning_of_a_last_line_is_no_line():
    whole = to_line({"iteration": 1, "total": 0.5})
    for length in range(len(whole) - 1):
        assert split_log(whole + whole[:length]) in ([whole[:-1]], [whole[:-1], whole[:length]])
        assert len(split_log(whole + whole[: min(length, len(whole) - 2)])) == 1


def test_settings_that_were_edited_are_refused_until_their_last_line_is_deleted(config, tmp_path):
    Run(config(), tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    text = path.read_text()
    path.write_text(text.replace("checkpoint_every = 2", "checkpoint_every = 3"))
    with pytest.raises(BadInput, match=r"config.toml: was changed since .*delete that line if the change is yours"):
        RunFolder(tmp_path / "run").settings()
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert RunFolder(tmp_path / "run").settings().output.checkpoint_every == 3


def test_a_run_of_an_earlier_version_is_read_and_goes_on(config, tmp_path):
    """Without checksums in log, settings and manifests; the log has them once the run has gone on."""
    run = Run(config(iterations=4, checkpoint_every=2), tmp_path / "run")
    run.train()
    before = read_history(tmp_path / "run")
    log, settings = tmp_path / "run" / "log.jsonl", tmp_path / "run" / "config.toml"
    lines = [from_line(text, checked=True) for text in log.read_bytes().splitlines()]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings.write_text("".join(settings.read_text().splitlines(keepends=True)[:-1]))
    for path in (tmp_path / "run").glob("checkpoints/*/manifest.json"):
        path.write_text(json.dumps(unsealed(path.read_bytes()), indent=1))
    assert read_history(tmp_path / "run") == before
    assert newest_checkpoint(tmp_path / "run" / "checkpoints").iteration == 4
    Run(config(iterations=6, checkpoint_every=2), tmp_path / "run", resume=True).train()
    texts = log.read_bytes().splitlines()
    assert [from_line(text, checked=True) for text in texts][: len(lines) - 1] == lines[: len(lines) - 1]
