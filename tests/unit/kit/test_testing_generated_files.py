"""scripts/generate notices files that are not what their generator writes."""

from __future__ import annotations

from pathlib import Path

import generated_files
import pytest


class Pages:
    """Writes one page, and owns a directory of them."""

    OWNED = ("pages/*.md",)

    def files(self) -> dict[str, str]:
        return {"pages/one.md": "new"}


def test_outdated_generator_of_a_missing_an_old_and_a_superfluous_file_yields_each(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "pages/one.md", tmp_path / "pages/other.md"

    def outdated() -> list[tuple[Path, str | None]]:
        return list(generated_files.outdated(Pages(), tmp_path))

    assert outdated() == [(one, "new")]
    generated_files.write(one, "old")
    other.write_text("")
    assert outdated() == [(one, "new"), (other, None)]
    for path, text in outdated():
        generated_files.write(path, text)
    assert outdated() == []
    assert one.read_text() == "new"


def test_replace_part_page_without_the_comments_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated_files, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- calls: written by scripts/generate -->\nb\n<!-- end of calls -->\nc\n")
    begin, end = "<!-- calls: written by scripts/generate -->", "<!-- end of calls -->"
    expected = f"a\n{begin}\n\nnew\n\n{end}\nc\n"
    assert generated_files.replace_part("page.md", "calls", "new") == expected
    page.write_text("nothing")
    with pytest.raises(LookupError):
        generated_files.replace_part("page.md", "calls", "new")


@pytest.mark.slow
@pytest.mark.parametrize("name", generated_files.GENERATORS)
def test_generated_files_of_the_repository_are_current(name: str) -> None:
    assert list(generated_files.outdated(generated_files.load(name))) == []
