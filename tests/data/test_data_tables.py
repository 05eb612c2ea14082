"""Tables: column types are inferred, can be declared, and what is odd is said in one sentence."""

import csv
import tracemalloc

import numpy as np
import pytest
import torch

import seepage as sp
from seepage.core.errors import DataNotFound, InvalidValue, SeepageError
from seepage.data import _table_rows as table_rows
from seepage.domains import Categorical, Continuous
from seepage.report.page._audit_page import audit_page


@pytest.fixture
def written(tmp_path):
    def write(header, rows, *, name="people.csv", separator=","):
        path = tmp_path / name
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=separator).writerows([header, *rows])
        return path

    return write


HEADER = ["name", "age", "smokes", "city", "pressure", "ill"]


def people(count=120):
    """Made-up patients, some of whom lack a pressure or an answer."""
    drawn = np.random.default_rng(0)
    return [
        [
            f"Person {number}, MD",
            int(drawn.integers(18, 90)),
            ["yes", "no", "NA"][int(drawn.integers(3))],
            ["Ulm", "Bonn", "Kiel"][int(drawn.integers(3))],
            "" if number % 10 == 3 else round(float(drawn.normal(125, 15)), 1),
            ["no", "yes"][number % 2],
        ]
        for number in range(count)
    ]


def test_columns_are_numbers_or_categories_and_names_are_left_out(written):
    rows = people()
    found = sp.data.load(f"csv:{written(HEADER, rows)}")
    kinds = {column.name: type(column) for column in found.domain.columns}
    assert kinds == {
        "age": Continuous, "smokes": Categorical, "city": Categorical, "pressure": Continuous,
    }  # fmt: skip
    assert found.class_names == ("no", "yes")
    assert "name left out" in found.source
    assert "missing numbers of pressure filled with the median" in found.source
    for person in (0, 17, 80):
        said = dict(word.split(": ") for word in found.domain.words(found.inputs[person]))
        assert said["age"] == str(rows[person][1])
        assert said["city"] == rows[person][3]
        assert said["smokes"] == {"NA": "missing"}.get(rows[person][2], rows[person][2])
        assert float(said["pressure"]) == pytest.approx(rows[person][4], abs=0.05)


def test_a_network_reads_numbers_standardised(written):
    found = sp.data.load(f"csv:{written(HEADER, people())}")
    read = found.domain.normalise(found.inputs)
    age = found.domain.places[0]
    assert float(read[:, age].mean()) == pytest.approx(0, abs=1e-5)
    assert float(read[:, age].std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_bounds_of_a_column_are_nobodys_number(written):
    rows = people()
    column = sp.data.load(f"csv:{written(HEADER, rows)}").domain.columns[0]
    ages = [row[1] for row in rows]
    assert column.low < min(ages)
    assert column.high > max(ages)


def test_types_are_declared_in_a_file_beside_the_table(written):
    path = written(HEADER, people())
    path.with_suffix(".columns.toml").write_text(
        'label = "age"\n[columns]\nill = "leave out"\n'
        'pressure = { kind = "number", low = 0, high = 300, mean = 0, std = 1 }\n'
    )
    found = sp.data.read_table(path)
    pressure = next(column for column in found.domain.columns if column.name == "pressure")
    assert (pressure.low, pressure.high, pressure.std) == (0, 300, 1)
    assert "ill" not in {column.name for column in found.domain.columns}
    # An age is a number to predict, standardised.
    assert found.labels.shape == (120, 1)
    assert float(found.labels.mean()) == pytest.approx(0, abs=1e-5)
    told = sp.data.read_table(path, label="ill", columns={"ill": "category"})
    assert told.class_names == ("no", "yes")


def test_a_table_may_come_as_columns_or_with_other_separators(written):
    rows = people(20)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(HEADER)}
    first = sp.data.read_table(columns)
    second = sp.data.read_table(written(HEADER, rows, separator=";"))
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.labels, second.labels)


def test_a_long_table_is_sampled_in_bounded_memory(written, monkeypatch):
    monkeypatch.setattr(table_rows, "_MOST_ROWS", 500)
    rows = ([number, number % 7, number % 2] for number in range(60_000))
    path = written(["number", "week day", "label"], rows)
    tracemalloc.start()
    found = sp.data.read_table(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 500
    assert most < 4_000_000  # all rows would take 12 MB and more
    assert "500 of its 60000 rows were drawn at random" in found.source
    # Drawn from all of it, not from its beginning.
    column = found.domain.columns[0]
    numbers = column.low + (column.high - column.low) * found.inputs[:, 0]
    assert abs(float(numbers.mean()) - 30_000) < 5_000


MIXED = [*range(200), "about 30"]


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        (["age", "ill"], [[value, number % 2] for number, value in enumerate(MIXED)],
         "column 'age' of .* to hold numbers, as most of its rows do, got something else in 1 of"),
        (["age", "ill"], [[1, 0], [2, 1, 3]], "expected 2 values in row 2"),
        (["age", "age"], [[1, 0], [2, 1]], "different column names"),
        (["age", "ill"], [[1, ""], [2, "yes"], [3, "no"]], "in every row"),
        (["age", "name"], [[i, f"P{i}"] for i in range(99)], "2 to 50 classes, got 99"),
        (["age", "ill"], [[1, 0]], "two rows or more"),
        (["name", "ill"], [[f"P{i}", i % 2] for i in range(99)], "numbers or categories"),
        (["age", "ill"], [[10.0 ** (100 * i), i % 2] for i in range(4)], r"numbers up to 1e\+30"),
    ],
    ids=["mixed", "ragged", "twice", "no label", "names as label", "one row", "names alone",
         "too large"],
)  # fmt: skip
def test_an_odd_table_is_refused_in_one_sentence(header, rows, said, written):
    with pytest.raises(InvalidValue, match=said) as caught:
        sp.data.read_table(written(header, rows))
    assert "\n" not in str(caught.value)


def test_files_that_are_no_tables_are_refused_in_one_sentence(tmp_path):
    broken = tmp_path / "broken.csv"
    broken.write_bytes(b"age,ill\n\xff\xfe\x00,1\n")
    parquet = tmp_path / "people.parquet"
    parquet.write_bytes(b"PAR1")
    for path, said in ((broken, "UTF-8"), (parquet, "Parquet"), (tmp_path / "none.csv", "nothing")):
        with pytest.raises((SeepageError, DataNotFound), match=said):
            sp.data.read_table(path)
    with pytest.raises(SeepageError, match="did you mean 'age'"):
        sp.data.read_table({"age": [1, 2], "ill": [0, 1]}, columns={"agee": "number"})
    with pytest.raises(SeepageError, match="'number', 'category' or 'leave out'"):
        sp.data.read_table({"age": [1, 2], "ill": [0, 1]}, columns={"age": "text"})


def test_an_archive_of_rows_is_read_as_the_network_reads_it(tmp_path):
    rows = np.random.default_rng(0).normal(scale=[1, 50, 0.01], size=(40, 3))
    np.savez(tmp_path / "rows.npz", inputs=rows, labels=np.arange(40) % 3)
    np.savez(tmp_path / "prices.npz", inputs=rows, labels=rows.sum(1))
    found = sp.data.load(f"npz:{tmp_path / 'rows.npz'}")
    read = found.domain.normalise(found.inputs)
    assert torch.allclose(read, torch.from_numpy(rows).float(), rtol=1e-3, atol=1e-3)
    prices = sp.data.load(f"npz:{tmp_path / 'prices.npz'}")
    assert prices.labels.shape == (40, 1)


@pytest.mark.parametrize("loss", [None, "MSELoss"])
def test_every_person_of_a_table_comes_back_exactly_from_a_spec(loss, written, tmp_path):
    path = written(HEADER, people())
    label = "ill" if loss is None else "age"
    path.with_suffix(".columns.toml").write_text(f'label = "{label}"\n')
    model = {"name": "mlp", "hidden": [64]} | ({} if loss is None else {"loss": loss})
    spec = {
        "title": "Patients",
        "controls": False,
        "scenario": [
            {
                "data": {"name": f"csv:{path}", "people": 3},
                "models": model,
                "threats": {"knows_labels": False},
                "attacks": {"name": "analytic_fc", "infer_labels": True},
            }
        ],
    }
    result = sp.audit.run(spec, tmp_path / "out")
    for record in result.records:
        assert record.scores["feature_accuracy"] == (1.0,)
        assert record.certificate["unique"]
    page = audit_page(result)
    assert '<th scope="row">pressure</th>' in page
    assert 'class="signal"' not in page


def test_a_parquet_file_is_read_as_the_same_table_in_csv(written, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    rows = people()
    typed = {
        name: [None if value in ("", "NA") else value for value in column]
        for name, column in zip(HEADER, zip(*rows, strict=True), strict=True)
    }
    parquet.write_table(pyarrow.table(typed), tmp_path / "people.parquet")
    one = sp.data.load(f"csv:{written(HEADER, rows)}")
    other = sp.data.load(f"parquet:{tmp_path / 'people.parquet'}")
    assert one.domain == other.domain
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.labels, other.labels)


def test_a_long_parquet_file_is_sampled_from_all_of_it(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    monkeypatch.setattr(table_rows, "_MOST_ROWS", 500)
    numbers = np.arange(20_000)
    table = pyarrow.table({"number": numbers, "label": numbers % 2})
    parquet.write_table(table, tmp_path / "long.parquet")
    found = sp.data.read_table(tmp_path / "long.parquet")
    assert len(found) == 500
    column = found.domain.columns[0]
    drawn = column.low + (column.high - column.low) * found.inputs[:, 0]
    assert abs(float(drawn.mean()) - 10_000) < 2_000


def test_the_name_of_a_column_may_hold_the_end_of_a_line(tmp_path):
    (tmp_path / "lines.csv").write_text('"age\nin years",label\n' + "31,0\n62,1\n18,0\n")
    found = sp.data.read_table(tmp_path / "lines.csv")
    assert [column.name for column in found.domain.columns] == ["age\nin years"]
