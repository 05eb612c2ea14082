"""Table 1 of Chen and Campbell, counted and computed: `python -m benchmarks.rank_metric`.

Ranks are counted from the geometry of each layer, and computed from its matrix at random weights
and the gradient of a random input.
"""

from __future__ import annotations

import time

import seepage as sp
from benchmarks.provenance import save
from seepage.exposure._rank_metric import RankMetric, rank_metric

PUBLISHED = {
    "cnn2-v1": 0,
    "cnn2-v2": -1470,
    "cnn3-v1": -2266,
    "cnn3-v2": -1995,
    "cnn3-v3": 0,
    "cnn3-v4": -2146,
    "cnn4-v1": -2772,
    "cnn4-v2": -6211,
}


def main() -> None:
    rows: list[dict[str, object]] = []
    for variant, published in PUBLISHED.items():
        task = sp.zoo.cnn(variant=variant)
        row: dict[str, object] = {"network": variant, "published": published}
        for way in ("counted", "computed"):
            began = time.perf_counter()
            metric = rank_metric(task, numerical=way == "computed")
            row[way] = described(metric) | {"seconds": round(time.perf_counter() - began, 2)}
        print(row, flush=True)
        rows.append(row)
    print(save("rank_metric", "cpu", {"rows": rows}))


def described(metric: RankMetric) -> dict[str, object]:
    return {
        "deficiency": [layer.deficiency for layer in metric.layers],
        "c": metric.value,
        "rounded": round(metric.value),
    }


if __name__ == "__main__":
    main()
