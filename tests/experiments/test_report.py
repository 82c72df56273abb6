"""A report as a person sees it: opened in a browser, offline, light and dark."""

from __future__ import annotations

import json
import shutil

import pytest

from browser import visit
from moose.data.files import save_dataset
from moose.errors import ConfigError
from moose.experiments import runner
from moose.experiments.judgement import judge_settings
from moose.experiments.report import LARGEST, write_report
from moose.tasks.intake import load_plant
from plant_log import HEADER, rows, text_of, tree_with, write
from runs import JUDGED_QUICKLY, TINY_CLONE, judged

WILD = "<script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def own_plant(tmp_path_factory):
    """A run on a log with a column that looks like a script."""
    folder = tmp_path_factory.mktemp("report")
    table = rows()
    table[0][HEADER.index("pressure")] = WILD
    tree = tree_with(name='boiler <b>"1"</b>')
    tree["observations"] = {
        "temperature": tree["observations"]["temperature"],
        WILD: {"low": 0, "unit": "<bar>"},
    }
    task = folder / "plant.yaml"
    task.write_text(json.dumps(tree))
    dataset, _ = load_plant(task, [write(folder, text_of(table))])
    save_dataset(dataset, folder / "data")
    request = runner.make_request(str(folder / "data"), algorithm="clone", settings=[TINY_CLONE])
    runner.start_run(request, folder / "run")
    path, content = write_report(
        folder / "run", settings=judge_settings((*JUDGED_QUICKLY, "folds=3"))
    )
    assert path == folder / "run" / "report.html"
    return path, content


@pytest.mark.parametrize("dark", [False, True])
def test_a_report_opens_offline_in_any_light(own_plant, dark):
    path, content = own_plant
    assert path.stat().st_size < LARGEST
    with visit(path.as_uri(), dark=dark) as seen:
        page = seen.page
        assert seen.errors == []
        assert seen.requests == [path.as_uri()]
        assert page.title() == f'boiler <b>"1"</b>: {content["verdict"]}'
        assert page.locator("main > section").first.get_attribute("id") == "verdict"
        assert page.locator(".verdict strong").inner_text().lower() == content["verdict"]
        assert page.locator("script").count() == 0
        assert page.get_by_text(WILD).first.is_visible()
        headings = page.locator("h2").all_inner_texts()
        assert "What it earns in the true plant" not in headings
        pictures = page.locator("svg.chart")
        assert pictures.count() == 12
        for i in range(pictures.count()):
            box = pictures.nth(i).bounding_box()
            assert box["width"] > 200
            assert box["height"] > 80
        # Nothing is cut off or needs scrolling sideways.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        colours = [
            page.evaluate(f"getComputedStyle(document.body).{which}")
            for which in ("color", "backgroundColor")
        ]
    ink, paper = (sum(int(n) for n in colour[4:-1].split(",")) for colour in colours)
    assert (ink > 600 and paper < 100) if dark else (ink < 150 and paper > 700)


def test_a_report_fits_a_telephone(own_plant):
    with visit(own_plant[0].as_uri(), width=390) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_reason_is_told(own_plant):
    path, content = own_plant
    with visit(path.as_uri()) as seen:
        told = seen.page.locator("ul.reasons li").all_inner_texts()
    assert [text.replace("\u00a0", " ") for text in told] == [
        reason["text"] for reason in content["reasons"]
    ]


def test_a_benchmark_has_the_true_returns_too(tmp_path):
    shutil.copytree(judged(), tmp_path / "run")
    cache = judged().parent / "cache"
    path, _ = write_report(
        tmp_path / "run", tmp_path / "page.html", judge_settings(JUDGED_QUICKLY), cache=cache
    )
    page = path.read_text()
    assert "What it earns in the true plant" in page
    assert "True return in the course of training" in page
    assert "−64.9" in page  # what holding still earns


def test_a_report_is_a_web_page(tmp_path, own_plant):
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report(own_plant[0].parent, tmp_path / "report.pdf")
