"""Words that look like personal data, as tokenizers of several kinds write them."""

import pytest

from seepage.report.page._picture import _find_personal_data

TEXTS = {
    "words": (("Ann", "Lee", "owes", "12345678"), ("name", "name", "", "long number")),
    "byte pairs": (
        ("\u0120mail", "\u0120ann", "@", "lee", ".", "org", "\u0120now"),
        ("", *["email address"] * 5, ""),
    ),
    "word pieces": (("on", "12", "##.03", "##.1971", "again"), ("", "date", "date", "date", "")),
    "nothing": (("the", "king", "is", "dead", "99"), ("",) * 5),
    "empty": ((), ()),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_personal_data_is_found_across_tokens(kind):
    words, kinds = TEXTS[kind]
    assert _find_personal_data(words) == kinds
